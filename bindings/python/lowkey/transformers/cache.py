# SPDX-License-Identifier: Apache-2.0
"""A cache of transformers that keeps its tokens in lowkey."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache as HostCache

from ..cache import Cache, CacheStats, Sequence
from ..context import Context
from ..errors import ArgumentError, BudgetError, ClosedError, StateError, UnsupportedError
from ..plan import Plan, PlanSpec, as_plan
from ..step import Step
from .attention import Switch, announce
from .batch import Batch, NextPass
from .geometry import geometry_of, layers_of
from .graph import DecodeGraphs, switch
from .layers import make_layers
from .repeats import Repeats
from .spans import Spans, is_whole
from .state_shapes import StateTensor, state_tensors, states_of
from .states import States
from .store import Store


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
    state_versions   earlier versions of the states of recurrent layers and convolutions that a sequence keeps, to
                     which crop() and rollback() can go back: those before the last passes
    state_interval   tokens between kept versions, at least
    graph            passes of one token a prompt run from CUDA graphs, which the cache captures; needs the model in
                     place of model.config. Where a pass cannot be captured, a warning has the reason, and passes run
                     without a graph

    While the cache is open the configuration's attention is "lowkey"; close(), the end of a ``with`` block or of the
    object restores the attention before. Each prompt of the batch is a sequence. Tokens that the attention mask hides
    are not kept, so padding takes no bytes. A forward pass is one step, which is committed after the last layer; the
    next pass discards a step that an exception left open. ``copy.deepcopy(cache)`` is a fork: it shares pages and
    budget with the original, and each is closed for itself.

    Layers without attention over heads, recurrent ones and convolutions, keep their states in the cache as well, within
    the budget: ``stats().state_bytes``. Forks, beams, snapshots and reset() take the states along. crop() goes to
    lengths whose states are kept, and to others if the cache is given the model; rollback() goes to the newest such
    length.

    The first pass raises the errors of lowkey.Cache; models with other layers raise UnsupportedError.
    """

    def __init__(self, config: Any, plan: str | os.PathLike[str] | Plan | PlanSpec = 'kitty-pro',
                 budget: int | str = '1GiB', *, device: Any = None, max_sequences: int | None = None,
                 max_step_tokens: int | None = None,
                 scale: float | None = None, sink_logits: Any = None, context: Context | None = None,
                 n_threads: int | None = None, state_versions: int = 1, state_interval: int = 1, graph: bool = False):
        model = config if isinstance(config, torch.nn.Module) else None
        config = config if model is None else model.config
        if graph and model is None:
            raise ArgumentError('graph=True captures forward passes: give LowkeyCache the model in place of its '
                                'configuration')
        self.geometry, self.model_layers = geometry_of(config, scale=scale, sink_logits=sink_logits), layers_of(config)
        store = Store(as_plan(plan, self.geometry), budget, self.geometry, max_sequences, max_step_tokens,
                      state_versions, state_interval)
        store.context, store.own_context = context, context is None
        store.graphs = DecodeGraphs() if graph else None
        self._model: torch.nn.Module | None = model if graph else None
        self._repeats = Repeats(model, self) if model is not None and self.model_layers.states else None
        self._n_threads, self._device = n_threads, None if device is None else torch.device(device)
        self._closed = False
        self._own_sequences = True
        self._columns = 0  # committed tokens of a prompt, padding included
        self._passes: list[tuple[int, torch.Tensor | None]] = []  # columns, and which are tokens (None: all)
        self._batch: Batch | None = None  # of the pass whose step is open
        self._next: NextPass | None = None
        self._in_graph = False
        self._start(store, config.get_text_config(decoder=True))

    def _start(self, store: Store, config: Any) -> None:
        """Join a store, and switch the configuration."""
        self.sequences: list[Sequence] = []  # one list for life, which the finalizer holds
        self._store, self._config = store, config
        self.numbers = {i: number for number, i in enumerate(self.model_layers.attention)}
        layers = make_layers(self)
        super().__init__(layers=layers)
        self._states = States(self.model_layers, layers)
        self._tensors: dict[torch.dtype | None, list[StateTensor]] = {}  # the states of a sequence by data type
        self._switch = Switch(config, self)
        self._undo_forward = None if self._model is None else switch(self._model, self)
        self._end = weakref.finalize(self, store.abandon, self.sequences)

    def __deepcopy__(self, memo: dict[int, Any]) -> LowkeyCache:
        self._check_open()
        self._drop_step()
        made = type(self).__new__(type(self))
        made.geometry, made.model_layers = self.geometry, self.model_layers
        made._n_threads, made._device = self._n_threads, self._device
        made._closed, made._own_sequences, made._batch, made._next = False, True, None, None
        made._model, made._in_graph = self._model, False
        made._columns, made._passes = self._columns, list(self._passes)
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
        made._repeats = None if self._repeats is None else Repeats(self._repeats.model, made)
        if self._repeats is not None and made._repeats is not None:
            self._repeats.copy_to(made._repeats)
        if self._states.is_recording:
            made.activate_past_recording()
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

        The cache of a model whose layers have states is made with states=states_of(model.config), and with the
        state_versions and the state_interval that crop() is to have. A pass whose last layer has a state may be open
        until the next one: commit() ends it before the caller uses the cache.

        Raises ArgumentError (another geometry, states or cache, no sequence, a sequence twice), NotFoundError (a
        sequence was removed), UnsupportedError."""
        own = config.config if isinstance(config, torch.nn.Module) else config
        geometry, chosen = geometry_of(own, scale=scale, sink_logits=sink_logits), list(sequences)
        if geometry != cache.geometry:
            raise ArgumentError('the cache was made for another geometry than geometry_of() gives for this model')
        if not chosen or len({sequence.id for sequence in chosen}) < len(chosen):
            raise ArgumentError(f'sequences are {chosen}: give at least one sequence, each once')
        if any(sequence.cache is not cache for sequence in chosen):
            raise ArgumentError('a sequence belongs to another cache')
        lengths = torch.tensor([len(sequence) for sequence in chosen])
        if cache.states != states_of(own):
            raise ArgumentError(f'the cache has states of {list(cache.states)} bytes, {layers_of(own).kind} keeps '
                                f'states of {list(states_of(own))}: make it with states=states_of(model.config)')
        made = cls(config, cache.plan(), device=torch.device(cache.context.backend, cache.context.device_index),
                   scale=scale, sink_logits=sink_logits, context=cache.context, graph=graph)
        made._store.cache, made._store.own_cache, made._own_sequences = cache, False, False
        made._store.states = state_tensors(own)
        made.sequences.extend(chosen)
        made._end.detach()  # the sequences stay the caller's, also when the object is collected
        made._columns = n = int(lengths.max())
        if n:
            real = torch.arange(n)[None] >= n - lengths[:, None]
            made._passes = [(n, None if bool(real.all()) else real)]
        return made

    # For programs.

    @property
    def n_columns(self) -> int:
        """Tokens of a prompt so far, padding included."""
        return self._columns + (self._batch.n_columns if self._batch is not None and self._batch.is_done else 0)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence, without padding."""
        batch = self._batch
        if batch is None or not batch.is_done:
            return [len(sequence) for sequence in self.sequences]
        return [len(sequence) + n for sequence, n in zip(self.sequences, batch.counts(batch.n_columns))]

    def stats(self) -> CacheStats | None:
        """The contents of the cache in numbers, those of copies included; None before the first pass. The tokens of a
        pass that commit() would end do not count yet."""
        return None if self._store.cache is None else self._store.cache.stats()

    def commit(self) -> None:
        """End the last pass. Where the model's last layer has a state, or assisted generation may remove a part of the
        pass, its step is open until the next pass: this call closes it, for those who use the same lowkey.Cache."""
        if self._batch is not None and self._batch.is_done:
            self._settle()

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
        if self._repeats is not None:
            self._repeats.end()
        self._end.detach()
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
        self._drop_step()
        for sequence in self.sequences:
            sequence.remove()
        self.sequences.clear()
        self._states.stop_recording()
        self._columns, self._passes = 0, []
        if self._repeats is not None:
            self._repeats.cut(0)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last -tokens_to_remove columns of the batch (a negative number, or 0 for none).

        Where no states are kept for the length that is left, the cache goes back to the newest ones before it, and the
        model, if the cache was given it, computes the columns between the two again.

        Raises UnsupportedError (the model, or its inputs, are not known; nothing changed), and what a pass raises; then
        fewer columns are left."""
        if tokens_to_remove > 0:
            raise ArgumentError(f'tokens_to_remove is {tokens_to_remove}: give minus the number of tokens to remove')
        n, batch = min(-tokens_to_remove, self.n_columns), self._batch
        if batch is not None and batch.is_done and self._states.is_recording and 0 < n < batch.n_columns:
            self._settle(n)
            return
        self._drop_step()
        if not n:
            return
        left = self._columns - n
        newest, real = self._newest(left), self._real()[:, :left]
        if newest == left:
            self._cut(left)
        elif self._repeats is not None and self._repeats.has(newest, left):
            self._repeats.run(self, real, newest)
        else:
            raise UnsupportedError(f'a crop to {left} columns: the newest states of {self.model_layers.kind} that are '
                                   f'kept at or before them are those after {newest} columns: rollback() goes there, '
                                   'and a LowkeyCache that is given the model computes the columns between again')

    def rollback(self, n_columns: int) -> int:
        """Keep at most the first n_columns columns of the batch, as many as the kept states allow. Returns their
        number: the model computes those between the two again, if they are wanted."""
        if n_columns < 0:
            raise ArgumentError(f'n_columns is {n_columns}')
        self._drop_step()
        kept = self._newest(min(n_columns, self._columns))
        self._cut(kept)
        return kept

    def _newest(self, n_columns: int) -> int:
        """The columns, at most n_columns, that all sequences have states after."""
        if not self._states:
            return n_columns
        while True:
            lengths = self._lengths_after(n_columns)
            found = [sequence.find_state(n) for sequence, n in zip(self.sequences, lengths)]
            if found == lengths:
                return n_columns
            n_columns = min(self._columns_of(row, found[row]) for row, n in enumerate(lengths) if found[row] < n)

    def _real(self) -> torch.Tensor:
        """[batch, n_columns] which of the committed columns are tokens."""
        batch = len(self.sequences)
        parts = [torch.ones(batch, n, dtype=torch.bool) if real is None else real for n, real in self._passes]
        return torch.cat(parts, 1) if parts else torch.ones(batch, 0, dtype=torch.bool)

    def _lengths_after(self, n_columns: int) -> list[int]:
        """Tokens of each sequence in the first n_columns columns."""
        return [int(n) for n in self._real()[:, :n_columns].sum(1).tolist()]

    def _columns_of(self, row: int, n_tokens: int) -> int:
        """The columns that end with a token of a sequence."""
        return int(torch.searchsorted(self._real()[row].cumsum(0), n_tokens)) + 1 if n_tokens else 0

    def _cut(self, n_columns: int) -> None:
        """Keep the first n_columns columns, which all sequences have states after."""
        lengths, real = self._lengths_after(n_columns), self._real()[:, :n_columns]
        for sequence, n in zip(self.sequences, lengths):
            if n < len(sequence):
                sequence.truncate(n)
        self._columns = n_columns
        self._passes = [(n_columns, None if bool(real.all()) else real)] if n_columns else []
        if self._repeats is not None:
            self._repeats.cut(n_columns)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these sequences of the batch, in this order; a repeated one is forked and shares its pages."""
        kept = torch.arange(len(self.sequences))[indices.cpu()].tolist()
        self._drop_step()
        for i, sequence in enumerate(self.sequences):
            if i not in kept:
                sequence.remove()
        self.sequences[:] = [self.sequences[i].fork() if i in kept[:at] else self.sequences[i]
                             for at, i in enumerate(kept)]
        self._passes = [(columns, None if real is None else real[kept]) for columns, real in self._passes]
        if self._repeats is not None:
            self._repeats.select(kept)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """As batch_select_indices(), for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence ``repeats`` times, copies next to each other. max_sequences must suffice."""
        self.batch_select_indices(torch.arange(len(self.sequences)).repeat_interleave(repeats))

    def activate_past_recording(self) -> None:
        """Called by assisted generation, before it drafts. Raises UnsupportedError (recurrent states)."""
        self._states.record()
        super().activate_past_recording()

    # A layer with states reads them first of all, and some kernels write to what they read.

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        if self._states.is_touched(layer_idx) and not self._in_graph:  # another pass, which was not announced
            self._drop_step()
        self._touch(layer_idx)
        return super().get_conv_state(layer_idx, state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        self._touch(layer_idx)
        return super().get_recurrent_state(layer_idx, state_idx)

    def update_conv_state(self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0,
                          **options: Any) -> torch.Tensor:
        self._touch(layer_idx)
        self._states.check(layer_idx, conv_states, False)
        found: torch.Tensor = super().update_conv_state(conv_states, layer_idx, state_idx, **options)
        self._updated(layer_idx, False)
        return found

    def update_recurrent_state(self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0,
                               **options: Any) -> torch.Tensor:
        self._touch(layer_idx)
        self._states.check(layer_idx, recurrent_states, True)
        found: torch.Tensor = super().update_recurrent_state(recurrent_states, layer_idx, state_idx, **options)
        self._updated(layer_idx, True)
        return found

    def _touch(self, layer: int) -> None:
        self._check_open()
        if self._batch is None:
            if self._next is None:
                raise UnsupportedError(f'{self.model_layers.kind} reads its states before any attention, and a mask of '
                                       'four dimensions comes with that: give it a padding mask [batch, n_tokens]')
            self._begin(self._next.device, self._next.batch, self._next.n_columns, self._next.mask)
        self._states.touch(layer)
        assert self._batch is not None
        # The states of one token are changed in place, and no call says when: the next pass commits this one.
        if not self._in_graph and self._batch.n_columns == 1 and self._batch.attended and self._states.all_touched:
            self._batch.is_done = True

    def _updated(self, layer: int, is_recurrent: bool) -> None:
        """A layer has left a state in its tensor."""
        if self._batch is not None and self._batch.attended and self._states.is_last(layer, is_recurrent):
            self._finish(self._batch)

    # Called by the layers, and by the functions for attention and masks.

    def _announce(self, n_columns: int) -> None:
        """A pass of n_columns columns is about to begin."""
        if self._in_graph:
            return
        self.model_layers.check_pass(n_columns, self.n_columns)
        if self._states:
            self._drop_step()
            announce(self)

    def _see(self, found: NextPass) -> None:
        """The pass that was announced has this mask."""
        self._next = found

    def _attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor | None,
                mask: torch.Tensor | None, options: dict[str, Any]) -> torch.Tensor:
        self._check_open()
        self._check_layer(layer, options)
        if self._in_graph and mask is not None:
            raise UnsupportedError(f'layer {layer} has a mask of its own, which no graph holds')
        if layer == 0 and not self._in_graph and (self._batch is None or self._batch.attends or not self._states):
            self._begin(query.device, query.shape[0], query.shape[2], mask)
        step, batch = self._store.step, self._batch
        if step is None or batch is None:
            raise StateError(f'layer {layer} came without layer 0 of the same pass')
        batch.attends = True
        batch.check_mask(mask, self.geometry.layers[layer].window_tokens)
        if self.geometry.layers[layer].kv_layer is None:
            step.append(layer, batch.tokens(key), None if value is None else batch.tokens(value))
        out = batch.columns(step.attend(layer, batch.tokens(query)))
        if layer == len(self.geometry.layers) - 1 and not self._in_graph:
            batch.attended = True
            if self._states.all_touched:
                self._finish(batch)
        return out[:, -query.shape[2]:]  # a reading layer may have queries of the last columns alone

    def _finish(self, batch: Batch) -> None:
        """The pass has come to all layers, and their states are in their tensors."""
        batch.is_done = True
        if not self._states.is_recording:
            self._settle()

    def _settle(self, n_removed: int = 0) -> None:
        """Commit the open pass without its last n_removed columns if it has come to all layers, else discard it."""
        batch, step = self._batch, self._store.step
        self._batch = self._next = self._store.step = self._store.in_pass = None
        try:
            if batch is None or step is None or not step.open:
                return
            if not batch.is_done:
                step.discard()
                return
            try:
                self._states.store(n_removed)
                counts = zip(batch.counts(batch.n_columns), batch.counts(batch.n_columns - n_removed))
                step.commit([kept for n, kept in counts if n] if n_removed else None)
            except BaseException:
                step.discard()
                raise
            self._count(batch, batch.n_columns - n_removed)
        finally:
            self._states.release()

    def _count(self, batch: Batch, n_columns: int) -> None:
        """The first columns of a batch are committed."""
        real = None if batch.real is None else batch.real[:, :n_columns].cpu()
        if self._repeats is not None:
            self._repeats.add(self._columns, n_columns)
        self._columns += n_columns
        if self._passes and self._passes[-1][1] is None and real is None:
            self._passes[-1] = (self._passes[-1][0] + n_columns, None)
        else:
            self._passes.append((n_columns, real))

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
        batch.is_done = keep
        self._settle()

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
        """End the pass that is open, a copy's too: one that failed is discarded."""
        self._store.drop_step()
        self._batch = None

    def _begin(self, device: torch.device, batch: int, n_tokens: int, mask: torch.Tensor | None) -> None:
        following = self._next
        self._drop_step()
        spans = Spans(mask, self.geometry.layers[0].window_tokens, self.model_layers.spans_in_windows) \
            if is_whole(mask) else None
        real = self._new_tokens(mask, batch, n_tokens) if spans is None else spans.padding()
        cache = self._open(device, batch, n_tokens, None if following is None else following.dtype)
        self._check_batch(batch)
        if not self.sequences:
            self.sequences.extend(self._added(cache, batch))
        counts = [n_tokens] * batch if real is None else real.sum(1).tolist()
        chosen = [(sequence, n) for sequence, n in zip(self.sequences, counts) if n]
        if not chosen:
            raise ArgumentError('the attention mask hides every new token')
        self._batch = Batch(batch, n_tokens, real, spans)
        self._store.warn_of_scores(n_tokens)
        step = cache.step([sequence for sequence, _ in chosen], [n for _, n in chosen],
                          spans=[] if spans is None else spans.ranges([n > 0 for n in counts]),
                          spans_in_windows=spans is not None and spans.in_windows)
        self._store.begin(self, step)
        if self._repeats is not None:
            self._repeats.begin()
        if self._states:
            indices = iter(range(len(chosen)))
            self._states.hold(step, self._store.places_on(device), self._store.states,
                              [next(indices) if n else None for n in counts], self._columns == 0,
                              self._graphs is not None)

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

    def _open(self, device: torch.device, batch: int, n_tokens: int, dtype: torch.dtype | None) -> Cache:
        """The cache of lowkey, made for the device, the size and the data type of the first pass."""
        if self._device is None:
            self._device = device
        index = device.index or 0
        if (device.type, index) != (self._device.type, self._device.index or 0):
            raise ArgumentError(f'keys are on {device}, the cache is for {self._device}')
        store = self._store
        if store.context is None:
            threads = self._n_threads or torch.get_num_threads()
            store.context = Context(device.type, index, n_threads=threads if device.type == 'cpu' else 0)
        if not self._states:
            return store.open(batch, batch * n_tokens, [])
        if dtype not in self._tensors:
            self._tensors[dtype] = state_tensors(self._config, dtype)
        return store.open(batch, batch * n_tokens, self._tensors[dtype])

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
