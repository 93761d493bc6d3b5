# SPDX-License-Identifier: Apache-2.0
"""A cache of transformers that keeps its tokens in lowkey."""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache as HostCache

from ..cache import Cache, CacheStats, Sequence
from ..context import Context
from ..errors import ArgumentError, BudgetError, ClosedError, StateError, UnsupportedError
from ..plan import Geometry, Plan, PlanSpec, as_plan
from ..step import Step
from .attention import Switch
from .geometry import geometry_of, layers_of
from .graph import DecodeGraphs, switch
from .layers import make_layers
from .spans import Spans, is_whole
from .states import States

_LEAST_SEQUENCES, _LEAST_STEP_TOKENS = 8, 2048


def _computes_all_logits() -> bool:
    """Whether the pass that is running was begun by a model's forward() that returns logits of all tokens."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == 'forward' and 'logits_to_keep' in frame.f_locals:
            kept = frame.f_locals['logits_to_keep']
            return isinstance(kept, int) and kept == 0
        frame = frame.f_back  # type: ignore[assignment]
    return False


class _Store:
    """The cache of lowkey that a LowkeyCache and its copies share. The last of them to close ends it.

    max_sequences    given by the user; None = at least _LEAST_SEQUENCES, and twice the first batch
    max_step_tokens  given by the user; None = at least _LEAST_STEP_TOKENS, and those of the first pass
    """

    def __init__(self, plan: Plan, budget: int | str, geometry: Geometry, max_sequences: int | None,
                 max_step_tokens: int | None):
        self.plan, self.budget, self.geometry = plan, budget, geometry
        self.given_sequences, self.given_step_tokens = max_sequences, max_step_tokens
        self.max_sequences = self.max_step_tokens = 0
        self.context: Context | None = None
        self.cache: Cache | None = None
        self.own_context = self.own_cache = True
        self.n_users = 1
        self.step: Step | None = None
        self.graphs: DecodeGraphs | None = None
        self.abandoned: list[Sequence] = []  # of copies that nobody closed
        packs = plan.bytes(2**14).bits_per_value < 16  # not by classes of chunks, which the host assigns
        self.recent_tokens = plan.recent_tokens if packs else 2**63
        self._warned = False

    def open(self, batch: int, n_tokens: int) -> Cache:
        """The cache, opened for the first pass; opened anew for a larger one while it holds no sequence."""
        if self.cache is not None and self.own_cache and not self.cache.stats().n_sequences and (
                batch > self.max_sequences or n_tokens > self.max_step_tokens):
            self._drop_graphs()
            self.cache.close()
            self.cache = None
        if self.cache is None:
            assert self.context is not None
            self.max_sequences = self.given_sequences or max(_LEAST_SEQUENCES, 2 * batch)
            self.max_step_tokens = self.given_step_tokens or max(_LEAST_STEP_TOKENS, n_tokens)
            self.cache = Cache(self.context, self.plan, self.budget, geometry=self.geometry,
                               max_sequences=self.max_sequences, max_step_tokens=self.max_step_tokens)
        if self.own_cache and n_tokens > self.max_step_tokens:
            raise ArgumentError(f'a forward pass of {n_tokens} tokens, the cache takes {self.max_step_tokens}: give '
                                f'LowkeyCache max_step_tokens={n_tokens}, or generate() '
                                f'prefill_chunk_size={self.max_step_tokens // batch or 1}')
        return self.cache

    def _drop_graphs(self) -> None:
        """Before the cache ends that they write to."""
        if self.graphs is not None:
            self.graphs.clear()

    def drop_step(self) -> None:
        """Discard the step that a failed pass left open, and remove what copies left."""
        if self.step is not None and self.step.open:
            self.step.discard()
        self.step = None
        while self.abandoned:
            self._remove(self.abandoned.pop())

    def warn_of_scores(self, n_tokens: int) -> None:
        """Warn once of a long pass that computes the logits of all its tokens: scores of it show no packing."""
        if self._warned or n_tokens <= self.recent_tokens or not _computes_all_logits():
            return
        self._warned = True
        warnings.warn(f'a pass of {n_tokens} tokens computes the logits of all of them, but attends to its own tokens '
                      f'at 16 bits, and the plan packs after {self.recent_tokens}: scores of such a pass look lossless '
                      'under any plan. Score in shorter passes, as lowkey.transformers.perplexity() does, or give a '
                      'prompt logits_to_keep=1', UserWarning, stacklevel=2)

    def _remove(self, sequence: Sequence) -> None:
        if self.cache is not None and not self.cache.closed:
            sequence.remove()

    def abandon(self, sequences: list[Sequence]) -> None:
        """Remember the sequences of a collected copy. The garbage collector may run within any call."""
        self.n_users -= 1
        self.abandoned += sequences

    def leave(self, sequences: list[Sequence]) -> None:
        """End one user, whose sequences these are, and the cache with the last one."""
        self.drop_step()
        self.n_users -= 1
        if not self.n_users:
            self._drop_graphs()
        if self.n_users or not self.own_cache:
            for sequence in sequences:
                self._remove(sequence)
        elif self.cache is not None:
            self.cache.close()
        if not self.n_users and self.own_context and self.context is not None:
            self.context.close()


class LowkeyCache(HostCache):
    """The key/value cache of a model of transformers, in packed pages and with a hard byte budget.

    config           model.config, or the model: layers, heads, windows, scale and soft-cap
    plan             a preset's name, the path of a plan's JSON, a Plan, or a PlanSpec
    budget           hard limit of all that the cache holds, in bytes or as "2GiB"
    device           the model's device, as for torch.device(); default: the device of the first keys
    max_sequences    most sequences, those of copies too; default: 8, or twice a larger first batch
    max_step_tokens  most tokens of one forward pass, over all prompts; default: 2048, or those of a longer first pass.
                     Longer prompts come in passes of generate(prefill_chunk_size=...)
    scale            of the logits, where the configuration does not have it
    sink_logits      [n_layers][n_query_heads] of models that learn them: sink_logits_of(model)
    context          an open Context to share; default: a new one
    n_threads        threads of a new context on the CPU; default: those of torch
    graph            passes of one token a prompt run from CUDA graphs, which the cache captures; needs the model in
                     place of model.config. Where a pass cannot be captured, a warning has the reason, and passes run
                     without a graph

    While the cache is open the configuration's attention is "lowkey"; close(), the end of a ``with`` block or of the
    object restores the attention before. Each prompt of the batch is a sequence. Tokens that the attention mask hides
    are not kept, so padding takes no bytes. A forward pass is one step, which is committed after the last layer; the
    next pass discards a step that an exception left open. ``copy.deepcopy(cache)`` is a fork: it shares pages and
    budget with the original, and each is closed for itself.

    Layers without attention over heads, recurrent ones and convolutions, keep their states in objects of transformers
    within the cache, outside the budget: ``state_bytes``. Forks, beams and reset() take the states along. crop() goes
    back before the last pass or to the beginning; where recurrent states cannot follow, it raises UnsupportedError.

    The first pass raises the errors of lowkey.Cache; models with other layers raise UnsupportedError.
    """

    def __init__(self, config: Any, plan: str | os.PathLike[str] | Plan | PlanSpec = 'kitty-pro',
                 budget: int | str = '1GiB', *, device: Any = None, max_sequences: int | None = None,
                 max_step_tokens: int | None = None,
                 scale: float | None = None, sink_logits: Any = None, context: Context | None = None,
                 n_threads: int | None = None, graph: bool = False):
        model = config if isinstance(config, torch.nn.Module) else None
        config = config if model is None else model.config
        if graph and model is None:
            raise ArgumentError('graph=True captures forward passes: give LowkeyCache the model in place of its '
                                'configuration')
        self.geometry, self.model_layers = geometry_of(config, scale=scale, sink_logits=sink_logits), layers_of(config)
        if graph and self.model_layers.states:
            raise UnsupportedError(f'graph=True runs some passes twice and keeps one of them, and the states of '
                                   f'{self.model_layers.kind} would change twice: leave graph out')
        store = _Store(as_plan(plan, self.geometry), budget, self.geometry, max_sequences, max_step_tokens)
        store.context, store.own_context = context, context is None
        store.graphs = DecodeGraphs() if graph else None
        self._model: torch.nn.Module | None = model if graph else None
        self._n_threads, self._device = n_threads, None if device is None else torch.device(device)
        self._closed = False
        self._own_sequences = True
        self.n_columns = 0  # tokens of a prompt so far, padding included
        self._passes: list[tuple[int, torch.Tensor | None]] = []  # columns, and which are tokens (None: all)
        self._batch: _Batch | None = None
        self._in_graph = False
        self._start(store, config.get_text_config(decoder=True))

    def _start(self, store: _Store, config: Any) -> None:
        """Join a store, and switch the configuration."""
        self.sequences: list[Sequence] = []  # one list for life, which the finalizer holds
        self._store, self._config = store, config
        self.numbers = {i: number for number, i in enumerate(self.model_layers.attention)}
        layers = make_layers(self)
        super().__init__(layers=layers)
        self._states = States(self.model_layers, layers)
        self._switch = Switch(config, self)
        self._undo_forward = None if self._model is None else switch(self._model, self)
        self._end = weakref.finalize(self, store.abandon, self.sequences)

    def __deepcopy__(self, memo: dict[int, Any]) -> LowkeyCache:
        self._check_open()
        self._drop_pass()
        made = type(self).__new__(type(self))
        made.geometry, made.model_layers = self.geometry, self.model_layers
        made._n_threads, made._device = self._n_threads, self._device
        made._closed, made._own_sequences, made._batch = False, True, None
        made._model, made._in_graph = self._model, False
        made.n_columns, made._passes = self.n_columns, list(self._passes)
        forks: list[Sequence] = []
        try:
            for sequence in self.sequences:
                forks.append(sequence.fork())
        except BudgetError as error:
            for sequence in forks:
                sequence.remove()
            raise BudgetError(f'a copy forks {len(self.sequences)} sequences: {error}; give LowkeyCache a larger '
                              'max_sequences or budget') from None
        self._store.n_users += 1
        made._start(self._store, self._config)
        made.sequences.extend(forks)
        self._states.copy_to(made._states)
        memo[id(self)] = made
        return made

    @classmethod
    def over(cls, config: Any, cache: Cache, sequences: Iterable[Sequence], *, scale: float | None = None,
             sink_logits: Any = None, graph: bool = False) -> LowkeyCache:
        """A batch of existing sequences with their tokens; passes append to them.

        config     model.config, or the model
        cache      an open lowkey.Cache on the model's device, with the geometry of geometry_of()
        sequences  distinct sequences of the cache: new ones, forks, those of a snapshot, deferred ones, or ones whose
                   chunks are scored or have classes
        graph      as in LowkeyCache()

        Sequences with fewer tokens than the longest count as padded on the left, in masks and positions, like short
        prompts. The cache and its sequences stay the caller's: close() does not free them. Until then the caller may
        not step, truncate or remove these sequences.

        Raises ArgumentError (another geometry or cache, no sequence, a sequence twice), NotFoundError (a sequence was
        removed), UnsupportedError (also sequences with tokens for a model whose layers have states)."""
        own = config.config if isinstance(config, torch.nn.Module) else config
        geometry, chosen = geometry_of(own, scale=scale, sink_logits=sink_logits), list(sequences)
        if geometry != cache.geometry:
            raise ArgumentError('the cache was made for another geometry than geometry_of() gives for this model')
        if not chosen or len({sequence.id for sequence in chosen}) < len(chosen):
            raise ArgumentError(f'sequences are {chosen}: give at least one sequence, each once')
        if any(sequence.cache is not cache for sequence in chosen):
            raise ArgumentError('a sequence belongs to another cache')
        lengths = torch.tensor([len(sequence) for sequence in chosen])
        model = layers_of(own)
        if model.states and int(lengths.max()):
            raise UnsupportedError(f'sequences have {lengths.tolist()} tokens, and the states of {model.kind} after '
                                   'them are in no lowkey.Cache: give new sequences, or continue a copy.deepcopy() of '
                                   'the LowkeyCache that has both')
        made = cls(config, cache.plan(), device=torch.device(cache.context.backend, cache.context.device_index),
                   scale=scale, sink_logits=sink_logits, context=cache.context, graph=graph)
        made._store.cache, made._store.own_cache, made._own_sequences = cache, False, False
        made.sequences.extend(chosen)
        made._end.detach()  # the sequences stay the caller's, also when the object is collected
        made.n_columns = n = int(lengths.max())
        if n:
            real = torch.arange(n)[None] >= n - lengths[:, None]
            made._passes = [(n, None if bool(real.all()) else real)]
        return made

    # For programs.

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence, without padding."""
        return [len(sequence) for sequence in self.sequences]

    def stats(self) -> CacheStats | None:
        """The contents of the cache in numbers, those of copies included; None before the first pass."""
        return None if self._store.cache is None else self._store.cache.stats()

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of recurrent layers and convolutions, those before the last pass included. They count in
        no budget, and those of a copy are its own."""
        return self._states.n_bytes

    def paused(self) -> AbstractContextManager[None]:
        """A ``with`` block in which the model runs its own attention, for passes without this cache."""
        self._check_open()
        return self._switch.paused()

    def close(self) -> None:
        """Free the sequences, and with the last copy the cache, unless they are the caller's; restore the model's
        attention. Twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._switch.undo()
        if self._undo_forward is not None:
            self._undo_forward()
        self._end.detach()
        self._states.reset()
        self._store.leave(self.sequences if self._own_sequences else [])

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
        """Sequences of the cache; -1 before the first pass."""
        return len(self.sequences) or -1

    def reset(self) -> None:
        """Remove all sequences; the next pass may have another batch, a larger one too where max_sequences allows."""
        self._drop_pass()
        for sequence in self.sequences:
            sequence.remove()
        self.sequences.clear()
        self._states.reset()
        self.n_columns, self._passes = 0, []

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last -tokens_to_remove columns of the batch (a negative number, or 0 for none).

        Raises UnsupportedError (states cannot go back there; nothing changed)."""
        if tokens_to_remove > 0:
            raise ArgumentError(f'tokens_to_remove is {tokens_to_remove}: give minus the number of tokens to remove')
        n = min(-tokens_to_remove, self.n_columns)
        self._drop_pass()
        self._states.check_crop(n, self.n_columns)
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
        self._states.crop(n, self.n_columns)
        self._passes, self.n_columns = passes, self.n_columns - n

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these sequences of the batch, in this order; a repeated one is forked and shares its pages."""
        kept = torch.arange(len(self.sequences))[indices.cpu()].tolist()
        self._drop_pass()
        for i, sequence in enumerate(self.sequences):
            if i not in kept:
                sequence.remove()
        self.sequences[:] = [self.sequences[i].fork() if i in kept[:at] else self.sequences[i]
                             for at, i in enumerate(kept)]
        self._passes = [(columns, None if real is None else real[kept]) for columns, real in self._passes]
        self._states.select(kept)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """As batch_select_indices(), for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence ``repeats`` times, copies next to each other. max_sequences must suffice."""
        self.batch_select_indices(torch.arange(len(self.sequences)).repeat_interleave(repeats))

    def activate_past_recording(self) -> None:
        """Called by assisted generation, before its first pass. Raises UnsupportedError (recurrent states)."""
        self._states.check_recording()
        super().activate_past_recording()

    # Reading a state is the first thing that a layer does in a pass, and some kernels write to what they read.

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        self._touch(layer_idx)
        return super().get_conv_state(layer_idx, state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        self._touch(layer_idx)
        return super().get_recurrent_state(layer_idx, state_idx)

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0,
                          **options: Any) -> torch.Tensor:
        self._check_batch(conv_states.shape[0])
        self._touch(layer_idx)
        return super().update_conv_state(conv_states, layer_idx, state_idx, **options)

    def update_recurrent_state(self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0,
                               **options: Any) -> torch.Tensor:
        self._touch(layer_idx)
        return super().update_recurrent_state(recurrent_states, layer_idx, state_idx, **options)

    def _touch(self, layer: int) -> None:
        self._check_open()
        self._states.touch(layer)
        self._commit_whole()

    # Called by the layers, and by the attention function.

    def _announce(self, n_columns: int) -> None:
        """A pass of n_columns columns is about to begin."""
        self.model_layers.check_pass(n_columns, self.n_columns)
        self._states.begin()

    def _attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None,
                mask: torch.Tensor | None, options: dict[str, Any]) -> torch.Tensor:
        self._check_open()
        self._check_layer(layer, options)
        if self._in_graph and mask is not None:
            raise UnsupportedError(f'layer {layer} has a mask of its own, which no graph holds')
        if layer == 0 and not self._in_graph:
            self._begin(query.device, query.shape[0], query.shape[2], mask)
        step, batch = self._store.step, self._batch
        if step is None or batch is None:
            raise StateError(f'layer {layer} came without layer 0 of the same pass')
        batch.check_mask(mask, self.geometry.layers[layer].window_tokens)
        if self.geometry.layers[layer].kv_layer is None:
            step.append(layer, batch.tokens(key), None if value is None else batch.tokens(value))
        out = batch.columns(step.attend(layer, batch.tokens(query)))
        if layer == len(self.geometry.layers) - 1 and not self._in_graph:
            batch.attended = True
            self._commit_whole()
        return out[:, -query.shape[2]:]  # a reading layer may have queries of the last columns alone

    def _commit_whole(self) -> None:
        """Commit the step of a pass that has come to all layers."""
        step, batch = self._store.step, self._batch
        if step is not None and batch is not None and batch.attended and self._states.all_touched:
            self._commit(step, batch)

    def _commit(self, step: Step, batch: _Batch) -> None:
        step.commit()
        self._store.step = self._batch = None
        self._states.end(batch.n_columns)
        self.n_columns += batch.n_columns
        last = self._passes[-1] if self._passes else (0, batch.real)
        if last[1] is None and batch.real is None and self._passes:
            self._passes[-1] = (last[0] + batch.n_columns, None)
        else:
            self._passes.append((batch.n_columns, None if batch.real is None else batch.real.cpu()))

    @contextmanager
    def _graph_step(self, keep: bool = True) -> Iterator[Step]:
        """A step of one token a sequence whose layers are captured, or run from a graph; committed if it is to keep."""
        self._check_open()
        assert self._device is not None
        self._begin(self._device, len(self.sequences), 1, None)
        step, batch = self._store.step, self._batch
        assert step is not None and batch is not None
        self._in_graph = True
        try:
            yield step
        finally:
            self._in_graph = False
        if keep:
            self._commit(step, batch)
        else:
            self._drop_step()

    @property
    def _graphs(self) -> DecodeGraphs | None:
        return self._store.graphs

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

    def _check_batch(self, batch: int) -> None:
        if self.sequences and len(self.sequences) != batch:
            raise ArgumentError(f'a batch of {batch} prompts on a cache of {len(self.sequences)} sequences: reset() it '
                                'first')

    def _drop_step(self) -> None:
        """Discard the step that a failed pass left open, a copy's too."""
        self._store.drop_step()
        self._batch = None

    def _drop_pass(self) -> None:
        """Undo a pass that failed: discard its step, and give back its states."""
        self._drop_step()
        self._states.undo()

    def _begin(self, device: torch.device, batch: int, n_tokens: int, mask: torch.Tensor | None) -> None:
        self._drop_step()
        spans = Spans(mask, self.geometry.layers[0].window_tokens, self.model_layers.spans_in_windows) \
            if is_whole(mask) else None
        real = self._new_tokens(mask, batch, n_tokens) if spans is None else spans.padding()
        cache = self._open(device, batch, n_tokens)
        self._check_batch(batch)
        if not self.sequences:
            self.sequences.extend(self._added(cache, batch))
        counts = [n_tokens] * batch if real is None else real.sum(1).tolist()
        chosen = [(sequence, n) for sequence, n in zip(self.sequences, counts) if n]
        if not chosen:
            raise ArgumentError('the attention mask hides every new token')
        self._batch = _Batch(batch, n_tokens, real, spans)
        self._store.warn_of_scores(n_tokens)
        self._store.step = cache.step([sequence for sequence, _ in chosen], [n for _, n in chosen],
                                      spans=[] if spans is None else spans.ranges([n > 0 for n in counts]),
                                      spans_in_windows=spans is not None and spans.in_windows)

    def _new_tokens(self, mask: torch.Tensor | None, batch: int, n_tokens: int) -> torch.Tensor | None:
        """[batch, n_tokens] which of the new columns are tokens; None = all."""
        if mask is None:
            return None
        if mask.dtype == torch.bool and tuple(mask.shape[1:-1]) == (1, 1):  # that of attention.mask()
            mask = mask[:, 0, 0]
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
        store = self._store
        if store.context is None:
            threads = self._n_threads or torch.get_num_threads()
            store.context = Context(device.type, index, n_threads=threads if device.type == 'cpu' else 0)
        return store.open(batch, batch * n_tokens)

    def _added(self, cache: Cache, batch: int) -> list[Sequence]:
        """New sequences, all of them or none."""
        added: list[Sequence] = []
        try:
            for _ in range(batch):
                added.append(cache.add())
        except BudgetError as error:
            for sequence in added:
                sequence.remove()
            raise BudgetError(f'a batch of {batch} prompts: {error}; give LowkeyCache max_sequences') from None
        return added


class _Batch:
    """Converts a batch [batch, heads, n_columns, channels] to tokens of a step [tokens, heads, channels], and back."""

    def __init__(self, batch: int, n_columns: int, real: torch.Tensor | None, spans: Spans | None):
        self.n_batch, self.n_columns, self.real, self.spans = batch, n_columns, real, spans
        self.attended = False  # whether the last layer with attention has run

    def check_mask(self, mask: torch.Tensor | None, window: int) -> None:
        """Refuse a layer whose mask has other spans than that of the first."""
        if self.spans is not None and (window or not self.spans.in_windows):
            self.spans.check(mask, window)
        elif is_whole(mask):
            raise UnsupportedError('a layer has a mask that is not causal, and the first layer of the pass has another')

    def tokens(self, x: torch.Tensor) -> torch.Tensor:
        """The tokens of all prompts, one prompt after the other: a view where the strides allow it. Of the last columns
        alone: zeros at the others, because a step attends with all its tokens."""
        if x.shape[2] < self.n_columns:
            x = torch.nn.functional.pad(x, (0, 0, self.n_columns - x.shape[2], 0))
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
