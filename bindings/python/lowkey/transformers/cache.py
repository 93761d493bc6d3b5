# SPDX-License-Identifier: Apache-2.0
"""A cache of transformers that keeps its tokens in lowkey."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers.cache_utils import Cache as HostCache
from transformers.cache_utils import CacheLayerMixin

from ..cache import Cache, CacheStats, Sequence
from ..context import Context
from ..errors import ArgumentError, ClosedError, StateError, UnsupportedError
from ..plan import Plan, PlanSpec
from ..step import Step
from .attention import Switch, tag
from .geometry import geometry_of


class _Layer(CacheLayerMixin):
    """One layer in the interface of transformers. The tokens are in the cache that owns the layer."""

    is_compileable = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, owner: LowkeyCache, index: int):
        super().__init__()
        self.owner, self.index = owner, index
        self.is_sliding = owner.geometry.layers[index].window_tokens > 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any,
               **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.owner._check_open()
        self.is_initialized = True
        return tag(key_states, self.owner, self.index), value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.n_columns + query_length, 0

    def get_seq_length(self) -> int:
        return self.owner.n_columns

    def get_max_length(self) -> int:
        return -1

    # The whole cache is changed at once, by the owner.
    def reset(self) -> None: ...
    def crop(self, tokens_to_remove: int) -> None: ...


class LowkeyCache(HostCache):
    """The key/value cache of a model of transformers, in packed pages and with a hard byte budget.

    config           model.config: layers, heads, windows, scale and soft-cap
    plan             a preset's name, a Plan, or a PlanSpec
    budget           hard limit of all that the cache holds, in bytes or as "2GiB"
    device           the model's device, as for torch.device(); default: the device of the first keys
    max_sequences    most prompts of a batch; default: as many as the first batch has
    max_step_tokens  most tokens of one forward pass, over all prompts; default: 2048, or those of a longer first pass
    scale            of the logits, where the configuration does not have it
    sink_logits      [n_layers][n_query_heads] of models that learn them: sink_logits_of(model)
    context          an open Context to share; default: a new one
    n_threads        threads of a new context on the CPU; default: those of torch

    While the cache is open the configuration's attention is "lowkey"; close(), the end of a ``with`` block or of the
    object restores the attention before. Each prompt of the batch is a sequence. Tokens that the attention mask hides
    are not kept, so padding takes no bytes. A forward pass is one step, which is committed after the last layer; the
    next pass discards a step that an exception left open.

    The first pass raises the errors of lowkey.Cache; models with other layers raise UnsupportedError.
    """

    def __init__(self, config: Any, plan: str | Plan | PlanSpec = 'kitty-pro', budget: int | str = '1GiB', *,
                 device: Any = None, max_sequences: int | None = None, max_step_tokens: int | None = None,
                 scale: float | None = None, sink_logits: Any = None, context: Context | None = None,
                 n_threads: int | None = None):
        self.geometry = geometry_of(config, scale=scale, sink_logits=sink_logits)
        self._plan, self._budget = self._planned(plan), budget
        self._max_sequences, self._max_step_tokens = max_sequences, max_step_tokens
        self._n_threads, self._device = n_threads, None if device is None else torch.device(device)
        self._context, self._own_context = context, context is None
        self._cache: Cache | None = None
        self._own_cache = True
        self._closed = False
        self.sequences: list[Sequence] = []
        self.n_columns = 0  # tokens of a prompt so far, padding included
        self._passes: list[tuple[int, torch.Tensor | None]] = []  # columns, and which are tokens (None: all)
        self._step: Step | None = None
        self._batch: _Batch | None = None
        super().__init__(layers=[_Layer(self, i) for i in range(len(self.geometry.layers))])
        self._switch = Switch(config.get_text_config(decoder=True), self)

    @classmethod
    def over(cls, config: Any, cache: Cache, sequences: Iterable[Sequence], *, scale: float | None = None,
             sink_logits: Any = None) -> LowkeyCache:
        """A batch of existing sequences with their tokens; passes append to them.

        config     model.config
        cache      an open lowkey.Cache on the model's device, with the geometry of geometry_of()
        sequences  distinct sequences of the cache: new ones, forks, those of a snapshot, deferred ones, or ones whose
                   chunks are scored or have classes

        Sequences with fewer tokens than the longest count as padded on the left, in masks and positions, like short
        prompts. The cache and its sequences stay the caller's: close() does not free them. Until then the caller may
        not step, truncate or remove these sequences.

        Raises ArgumentError (another geometry or cache, no sequence, a sequence twice), NotFoundError (a sequence was
        removed), UnsupportedError."""
        geometry, chosen = geometry_of(config, scale=scale, sink_logits=sink_logits), list(sequences)
        if geometry != cache.geometry:
            raise ArgumentError('the cache was made for another geometry than geometry_of() gives for this model')
        if not chosen or len({sequence.id for sequence in chosen}) < len(chosen):
            raise ArgumentError(f'sequences are {chosen}: give at least one sequence, each once')
        if any(sequence.cache is not cache for sequence in chosen):
            raise ArgumentError('a sequence belongs to another cache')
        lengths = torch.tensor([len(sequence) for sequence in chosen])
        made = cls(config, cache.plan(), device=torch.device(cache.context.backend, cache.context.device_index),
                   scale=scale, sink_logits=sink_logits, context=cache.context)
        made._cache, made._own_cache, made.sequences = cache, False, chosen
        made.n_columns = n = int(lengths.max())
        if n:
            real = torch.arange(n)[None] >= n - lengths[:, None]
            made._passes = [(n, None if bool(real.all()) else real)]
        return made

    def _planned(self, plan: str | Plan | PlanSpec) -> Plan:
        if isinstance(plan, str):
            return Plan.preset(plan, self.geometry)
        if isinstance(plan, PlanSpec):
            return Plan.build(self.geometry, plan)
        plan.validate(self.geometry)
        return plan

    # For programs.

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence, without padding."""
        return [len(sequence) for sequence in self.sequences]

    def stats(self) -> CacheStats | None:
        """The contents of the cache in numbers; None before the first pass."""
        return None if self._cache is None else self._cache.stats()

    def close(self) -> None:
        """Free the cache, unless it is the caller's, and restore the model's attention. Twice is fine."""
        self._closed = True
        self._switch.undo()
        if not self._own_cache:
            self._drop_step()
        elif self._cache is not None:
            self._cache.close()
        if self._own_context and self._context is not None:
            self._context.close()

    def __enter__(self) -> LowkeyCache:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError('the LowkeyCache is closed')

    # Called by transformers.

    @property
    def batch_size(self) -> int:
        return len(self.sequences) or -1

    def reset(self) -> None:
        """Remove all sequences; the next pass may have another batch."""
        self._drop_step()
        for sequence in self.sequences:
            sequence.remove()
        self.sequences, self.n_columns, self._passes = [], 0, []

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last -tokens_to_remove columns of the batch (a negative number, or 0 for none)."""
        if tokens_to_remove > 0:
            raise ArgumentError(f'tokens_to_remove is {tokens_to_remove}: give minus the number of tokens to remove')
        n = min(-tokens_to_remove, self.n_columns)
        self._drop_step()
        removed = torch.zeros(len(self.sequences), dtype=torch.long)
        left, passes = n, list(self._passes)
        while left:
            columns, real = passes.pop()
            taken = min(left, columns)
            removed += taken if real is None else real[:, columns - taken:].sum(1)
            left -= taken
            if taken < columns:
                passes.append((columns - taken, None if real is None else real[:, :columns - taken]))
        for sequence, count in zip(self.sequences, removed.tolist()):
            if count:
                sequence.truncate(len(sequence) - count)
        self._passes, self.n_columns = passes, self.n_columns - n

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these sequences of the batch, in this order; a repeated one is forked and shares its pages."""
        kept = torch.arange(len(self.sequences))[indices.cpu()].tolist()
        self._drop_step()
        for i, sequence in enumerate(self.sequences):
            if i not in kept:
                sequence.remove()
        self.sequences = [self.sequences[i].fork() if i in kept[:at] else self.sequences[i]
                          for at, i in enumerate(kept)]
        self._passes = [(columns, None if real is None else real[kept]) for columns, real in self._passes]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """As batch_select_indices(), for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence ``repeats`` times, copies next to each other. max_sequences must suffice."""
        self.batch_select_indices(torch.arange(len(self.sequences)).repeat_interleave(repeats))

    # Called by the attention function.

    def _attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                mask: torch.Tensor | None, options: dict[str, Any]) -> torch.Tensor:
        self._check_open()
        self._check_layer(layer, options)
        if layer == 0:
            self._begin(query, mask)
        step, batch = self._step, self._batch
        if step is None or batch is None:
            raise StateError(f'layer {layer} came without layer 0 of the same pass')
        step.append(layer, batch.tokens(key), batch.tokens(value))
        out = batch.columns(step.attend(layer, batch.tokens(query)))
        if layer == len(self.geometry.layers) - 1:
            step.commit()
            self._step = self._batch = None
            self.n_columns += batch.n_columns
            last = self._passes[-1] if self._passes else (0, batch.real)
            if last[1] is None and batch.real is None and self._passes:
                self._passes[-1] = (last[0] + batch.n_columns, None)
            else:
                self._passes.append((batch.n_columns, None if batch.real is None else batch.real.cpu()))
        return out

    def _check_layer(self, layer: int, options: dict[str, Any]) -> None:
        """Refuse a call whose options differ from the cache's geometry."""
        own = self.geometry.layers[layer]
        scale = own.scale or own.head_dim ** -0.5
        scaling = options['scaling'] or scale
        if abs(scaling - scale) > 1e-6 * scale:
            raise ArgumentError(f'layer {layer} scales its logits by {scaling}, the cache was made for {scale}: '
                                'give scale')
        for name, made_for in (('softcap', own.soft_cap), ('sliding_window', own.window_tokens)):
            requested = options.get(name, made_for) or 0
            if requested != made_for:
                raise UnsupportedError(f'layer {layer} has {name} {requested}, its configuration has {made_for}')
        if (options.get('s_aux') is not None) != bool(own.sink_logits):
            raise ArgumentError(f'layer {layer} has learned sink logits or the cache has: give '
                                'sink_logits=sink_logits_of(model)')

    def _drop_step(self) -> None:
        """Discard the step that a failed pass left open."""
        if self._step is not None and self._step.open:
            self._step.discard()
        self._step = self._batch = None

    def _begin(self, query: torch.Tensor, mask: torch.Tensor | None) -> None:
        self._drop_step()
        batch, _, n_tokens, _ = query.shape
        real = self._new_tokens(mask, batch, n_tokens)
        cache = self._open(query.device, batch, n_tokens)
        if not self.sequences:
            self.sequences = [cache.add() for _ in range(batch)]
        elif len(self.sequences) != batch:
            raise ArgumentError(f'a batch of {batch} prompts on a cache of {len(self.sequences)} sequences: reset() it '
                                'first')
        counts = [n_tokens] * batch if real is None else real.sum(1).tolist()
        chosen = [(sequence, n) for sequence, n in zip(self.sequences, counts) if n]
        if not chosen:
            raise ArgumentError('the attention mask hides every new token')
        self._batch = _Batch(batch, n_tokens, real)
        self._step = cache.step([sequence for sequence, _ in chosen], [n for _, n in chosen])

    def _new_tokens(self, mask: torch.Tensor | None, batch: int, n_tokens: int) -> torch.Tensor | None:
        """[batch, n_tokens] which of the new columns are tokens; None = all."""
        if mask is None:
            return None
        if mask.ndim != 2:
            raise UnsupportedError(f'an attention mask of shape {list(mask.shape)}: lowkey takes padding masks '
                                   '[batch, n_tokens] and is causal by itself')
        wanted = (batch, self.n_columns + n_tokens)
        if tuple(mask.shape) != wanted:
            raise ArgumentError(f'the attention mask has shape {list(mask.shape)}, this pass needs {list(wanted)}')
        real = mask[:, -n_tokens:].bool()
        earlier = (mask.sum(1) - real.sum(1)).tolist()
        if self.sequences and earlier != self.lengths:
            raise ArgumentError(f'the attention mask shows {earlier} earlier tokens, the cache holds {self.lengths}: '
                                'tokens cannot be hidden later')
        return None if bool(real.all()) else real

    def _open(self, device: torch.device, batch: int, n_tokens: int) -> Cache:
        """The cache of lowkey, made for the device and the size of the first pass."""
        if self._device is None:
            self._device = device
        index = device.index or 0
        if (device.type, index) != (self._device.type, self._device.index or 0):
            raise ArgumentError(f'keys are on {device}, the cache is for {self._device}')
        if self._cache is None:
            if self._context is None:
                threads = self._n_threads or torch.get_num_threads()
                self._context = Context(device.type, index, n_threads=threads if device.type == 'cpu' else 0)
            self._cache = Cache(self._context, self._plan, self._budget, geometry=self.geometry,
                                max_sequences=self._max_sequences or batch,
                                max_step_tokens=self._max_step_tokens or max(2048, batch * n_tokens))
        return self._cache


class _Batch:
    """Converts a batch [batch, heads, n_columns, channels] to tokens of a step [tokens, heads, channels], and back."""

    def __init__(self, batch: int, n_columns: int, real: torch.Tensor | None):
        self.n_batch, self.n_columns, self.real = batch, n_columns, real

    def tokens(self, x: torch.Tensor) -> torch.Tensor:
        """The tokens of all prompts, one prompt after the other: a view where the strides allow it."""
        columns = x.detach().transpose(1, 2) if not torch.is_grad_enabled() else x.transpose(1, 2)
        if self.real is not None:
            return columns[self.real]
        return columns.reshape(self.n_batch * self.n_columns, *columns.shape[2:])

    def columns(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, n_columns, heads, channels] of the tokens; zeros at padding."""
        shape = (self.n_batch, self.n_columns, *x.shape[1:])
        if self.real is None:
            return x.view(shape)
        out = x.new_zeros(shape)
        out[self.real] = x
        return out
