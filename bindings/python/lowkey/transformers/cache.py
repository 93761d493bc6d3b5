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
    """One layer as transformers sees it. The tokens are in the cache that owns it."""

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

    config           model.config; its layers, heads, windows, scale and soft-cap are taken
    plan             a preset's name, a Plan, or a PlanSpec
    budget           hard limit of all that the cache holds, in bytes or as "2GiB"
    device           where the model runs, as for torch.device(); default: where the first keys are
    max_sequences    rows of a batch; default: the first batch's
    max_step_tokens  tokens of one forward pass, over all rows; default: 2048, or the first pass's if that has more
    scale            of the logits, where the configuration does not say it
    sink_logits      [n_layers][n_query_heads] of models that learn them: sink_logits_of(model)
    context          an open Context to share; default: one of its own
    n_threads        of its own context on the CPU; default: torch's

    While it is open the configuration's attention is "lowkey"; close(), the end of a ``with`` block or of the
    object sets it back. Each row is a sequence of its own; tokens that the attention mask hides are not kept, so
    that padding costs nothing. A forward pass is one step: it is committed after the last layer, and one that
    fails half way is dropped by the next.

    Raises what lowkey.Cache raises, at the first pass; UnsupportedError for models with other layers.
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
        self.n_columns = 0  # tokens of a row so far, padding included
        self._passes: list[tuple[int, torch.Tensor | None]] = []  # columns, and which are tokens (None: all)
        self._step: Step | None = None
        self._rows: _Rows | None = None
        super().__init__(layers=[_Layer(self, i) for i in range(len(self.geometry.layers))])
        self._switch = Switch(config.get_text_config(decoder=True), self)

    @classmethod
    def over(cls, config: Any, cache: Cache, sequences: Iterable[Sequence], *, scale: float | None = None,
             sink_logits: Any = None) -> LowkeyCache:
        """A batch whose rows are sequences that are there, with the tokens that they have; passes go on behind those.

        config     model.config
        cache      an open lowkey.Cache on the model's device, with the geometry that geometry_of() gives
        sequences  distinct ones of it, a row each: new ones, forks, a snapshot's, or ones whose chunks are deferred,
                   watched or have classes

        Rows with fewer tokens than the longest count as padded on the left: masks and positions say so, as they do
        for prompts. The cache and its sequences stay the caller's: close() leaves them. Until then no one else steps,
        truncates or removes the rows.

        Raises ArgumentError (another geometry or cache, no rows, a row twice), NotFoundError (a row was removed),
        UnsupportedError."""
        geometry, rows = geometry_of(config, scale=scale, sink_logits=sink_logits), list(sequences)
        if geometry != cache.geometry:
            raise ArgumentError('the cache was made for another geometry than geometry_of() gives for this model')
        if not rows or len({row.id for row in rows}) < len(rows):
            raise ArgumentError(f'rows are {rows}: give at least one sequence, each once')
        if any(row.cache is not cache for row in rows):
            raise ArgumentError('a row belongs to another cache')
        lengths = torch.tensor([len(row) for row in rows])
        made = cls(config, cache.plan(), device=torch.device(cache.context.backend, cache.context.device_index),
                   scale=scale, sink_logits=sink_logits, context=cache.context)
        made._cache, made._own_cache, made.sequences = cache, False, rows
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

    # What programs ask.

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, padding left out."""
        return [len(sequence) for sequence in self.sequences]

    def stats(self) -> CacheStats | None:
        """What the cache holds now; None before the first pass."""
        return None if self._cache is None else self._cache.stats()

    def close(self) -> None:
        """Free the cache, unless it is the caller's, and give the model its attention back. Twice is fine."""
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

    # What transformers calls.

    @property
    def batch_size(self) -> int:
        return len(self.sequences) or -1

    def reset(self) -> None:
        """Remove all rows; the next pass may have another batch."""
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
        """Keep these rows, in this order; one that comes again is forked and shares its pages."""
        rows = torch.arange(len(self.sequences))[indices.cpu()].tolist()
        self._drop_step()
        for i, sequence in enumerate(self.sequences):
            if i not in rows:
                sequence.remove()
        self.sequences = [self.sequences[i].fork() if i in rows[:at] else self.sequences[i]
                          for at, i in enumerate(rows)]
        self._passes = [(columns, None if real is None else real[rows]) for columns, real in self._passes]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """As batch_select_indices(), for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row so many times, one beside the other. max_sequences must hold them."""
        self.batch_select_indices(torch.arange(len(self.sequences)).repeat_interleave(repeats))

    # What the attention function calls.

    def _attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                mask: torch.Tensor | None, options: dict[str, Any]) -> torch.Tensor:
        self._check_open()
        self._check_layer(layer, options)
        if layer == 0:
            self._begin(query, mask)
        step, rows = self._step, self._rows
        if step is None or rows is None:
            raise StateError(f'layer {layer} came without layer 0 of the same pass')
        step.append(layer, rows.tokens(key), rows.tokens(value))
        out = rows.batch(step.attend(layer, rows.tokens(query)))
        if layer == len(self.geometry.layers) - 1:
            step.commit()
            self._step = self._rows = None
            self.n_columns += rows.n_columns
            last = self._passes[-1] if self._passes else (0, rows.real)
            if last[1] is None and rows.real is None and self._passes:
                self._passes[-1] = (last[0] + rows.n_columns, None)
            else:
                self._passes.append((rows.n_columns, None if rows.real is None else rows.real.cpu()))
        return out

    def _check_layer(self, layer: int, options: dict[str, Any]) -> None:
        """What the model asks for in a call is what the cache was made for."""
        own = self.geometry.layers[layer]
        scale = own.scale or own.head_dim ** -0.5
        scaling = options['scaling'] or scale
        if abs(scaling - scale) > 1e-6 * scale:
            raise ArgumentError(f'layer {layer} scales its logits by {scaling}, the cache was made for {scale}: '
                                'give scale')
        for name, made_for in (('softcap', own.soft_cap), ('sliding_window', own.window_tokens)):
            asked = options.get(name, made_for) or 0
            if asked != made_for:
                raise UnsupportedError(f'layer {layer} asks for {name} {asked}, its configuration says {made_for}')
        if (options.get('s_aux') is not None) != bool(own.sink_logits):
            raise ArgumentError(f'layer {layer} has learned sink logits or the cache has: give '
                                'sink_logits=sink_logits_of(model)')

    def _drop_step(self) -> None:
        """A pass that failed half way left a step."""
        if self._step is not None and self._step.open:
            self._step.discard()
        self._step = self._rows = None

    def _begin(self, query: torch.Tensor, mask: torch.Tensor | None) -> None:
        self._drop_step()
        batch, _, n_tokens, _ = query.shape
        real = self._new_tokens(mask, batch, n_tokens)
        cache = self._open(query.device, batch, n_tokens)
        if not self.sequences:
            self.sequences = [cache.add() for _ in range(batch)]
        elif len(self.sequences) != batch:
            raise ArgumentError(f'a batch of {batch} rows on a cache of {len(self.sequences)}: reset() it first')
        counts = [n_tokens] * batch if real is None else real.sum(1).tolist()
        rows = [(sequence, n) for sequence, n in zip(self.sequences, counts) if n]
        if not rows:
            raise ArgumentError('the attention mask hides every new token')
        self._rows = _Rows(batch, n_tokens, real)
        self._step = cache.step([sequence for sequence, _ in rows], [n for _, n in rows])

    def _new_tokens(self, mask: torch.Tensor | None, batch: int, n_tokens: int) -> torch.Tensor | None:
        """[batch, n_tokens] which of the new columns are tokens; None when all are."""
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
        """The cache of lowkey, which needs the first pass's device and size."""
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


class _Rows:
    """How a batch [batch, heads, n_columns, channels] and the tokens of a step [tokens, heads, channels] match."""

    def __init__(self, batch: int, n_columns: int, real: torch.Tensor | None):
        self.n_batch, self.n_columns, self.real = batch, n_columns, real

    def tokens(self, x: torch.Tensor) -> torch.Tensor:
        """The tokens of all rows, one row after the other: a view where the strides allow it."""
        rows = x.detach().transpose(1, 2) if not torch.is_grad_enabled() else x.transpose(1, 2)
        if self.real is not None:
            return rows[self.real]
        return rows.reshape(self.n_batch * self.n_columns, *rows.shape[2:])

    def batch(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, n_columns, heads, channels] of the tokens; zeros at padding."""
        shape = (self.n_batch, self.n_columns, *x.shape[1:])
        if self.real is None:
            return x.view(shape)
        out = x.new_zeros(shape)
        out[self.real] = x
        return out
