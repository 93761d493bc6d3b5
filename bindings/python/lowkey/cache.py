# SPDX-License-Identifier: Apache-2.0
"""Caches and their sequences."""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _abi, snapshot, streams
from ._calls import Calls
from ._fields import Fields, name_of, number_of
from ._handle import Handle
from ._library import check, library
from .arrays import Scratch
from .chunks import MODES, Attention, Chunks
from .context import BACKENDS, Context
from .errors import ArgumentError
from .plan import ALL, CHUNK_CLASSES, Geometry, Plan
from .step import Step

_ALL_TOKENS = 2**64 - 1
_UNITS = {'': 1, 'k': 10**3, 'm': 10**6, 'g': 10**9, 't': 10**12, 'ki': 2**10, 'mi': 2**20, 'gi': 2**30, 'ti': 2**40}


def parse_bytes(size: int | str) -> int:
    """The bytes that a number or a text states: "2GiB", "512 MiB" or "1.5GB"."""
    if isinstance(size, int):
        n_bytes = size
    else:
        match = re.fullmatch(r'\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\s*', size.lower())
        n_bytes = int(float(match[1]) * _UNITS[match[2] or '']) if match else -1
    if not 0 <= n_bytes < 2**64:  # ctypes would take it modulo 2^64
        raise ArgumentError(f'{size!r} is no number of bytes: write 2147483648 or "2GiB"')
    return n_bytes


@dataclass(frozen=True)
class CacheStats(Fields):
    """The contents of a cache in numbers, each with the name and the meaning of include/lowkey/cache.h."""

    _struct = _abi.CacheStats

    n_sequences: int
    n_tokens: int
    budget_bytes: int
    reserved_bytes: int
    payload_bytes: int
    metadata_bytes: int
    recent_bytes: int
    table_bytes: int
    workspace_bytes: int
    free_bytes: int
    pages_packed: int
    pages_dequantized: int
    values_saturated: int
    device_bytes: int
    shared_bytes: int
    pages_copied: int
    pages_shrunk: int
    sequences_evicted: int
    fragmented_bytes: int
    plane_bytes: tuple[int, ...]  # codes by width: 16, 8, 4, 3, 2, 1 bits
    state_bytes: int


class Pressure(NamedTuple):
    """Why a step does not fit: the bytes that its reservation needs beyond the budget, the bytes that the cache holds,
    and the budget."""

    shortfall_bytes: int
    reserved_bytes: int
    budget_bytes: int


class Sequence:
    """A sequence of a cache. It lives until remove() or the end of its cache; deleting the object frees nothing.

    The end of a ``with`` block removes the sequence.
    """

    __slots__ = ('cache', 'id')

    def __init__(self, cache: Cache, id: int):
        self.cache, self.id = cache, id

    def __repr__(self) -> str:
        return f'<lowkey.Sequence {self.id}>'

    def __len__(self) -> int:
        """Committed tokens. Raises NotFoundError after remove()."""
        n = ctypes.c_uint64()
        self._call(self.cache._lk.lk_sequence_length, _abi.byref(n))
        return n.value

    def __bool__(self) -> bool:
        return True  # else an empty sequence would be false

    def fork(self, n_tokens: int | None = None) -> Sequence:
        """A new sequence that shares the first n_tokens tokens of this one, and their pages; default: all tokens.

        Nothing is copied until one of the two writes to a shared page. Sharing never changes results.

        Raises ArgumentError (n_tokens above the length), NotFoundError, BudgetError, BusyError (a step is open)."""
        if n_tokens is not None and n_tokens < 0:
            raise ArgumentError(f'n_tokens is {n_tokens}')
        child = ctypes.c_uint64()
        n = _ALL_TOKENS if n_tokens is None else n_tokens
        self._call(self.cache._lk.lk_sequence_fork, n, _abi.byref(child))
        return Sequence(self.cache, child.value)

    def truncate(self, n_tokens: int) -> None:
        """Keep the first n_tokens tokens. A packed page that is cut is dequantized.

        Raises ArgumentError (n_tokens above the length), NotFoundError, BusyError (a step is open), BudgetError."""
        if n_tokens < 0:
            raise ArgumentError(f'n_tokens is {n_tokens}')
        self._call(self.cache._lk.lk_sequence_truncate, n_tokens)

    def find_state(self, n_tokens: int | None = None) -> int:
        """The tokens of the newest version of the recurrent states at or before n_tokens, default the length: where
        fork() and truncate() can cut. n_tokens itself in a cache without states.

        Raises ArgumentError (n_tokens above the length), NotFoundError."""
        return self._find(self.cache._lk.lk_sequence_find_state, n_tokens)

    def rollback(self, n_tokens: int) -> int:
        """Truncate to the newest version of the recurrent states at or before n_tokens. Returns the new length.

        Raises as truncate()."""
        return self._find(self.cache._lk.lk_sequence_rollback, n_tokens)

    def _find(self, function: Any, n_tokens: int | None) -> int:
        if n_tokens is not None and n_tokens < 0:
            raise ArgumentError(f'n_tokens is {n_tokens}')
        found = ctypes.c_uint64()
        self._call(function, _ALL_TOKENS if n_tokens is None else n_tokens, _abi.byref(found))
        return found.value

    def _call(self, function: Any, *arguments: Any) -> None:
        with self.cache._handle.lock:
            check(function(self.cache._handle.get(), self.id, *arguments))

    def defer(self, mode: str = 'refuse') -> None:
        """Keep the sequence's tokens at 16 bits until assign_chunks().

        mode  on a shortfall, "refuse": step() raises BudgetError; "pack": the oldest chunks are packed as middle
              chunks first. "off": pages are packed by the plan's rules

        Raises UnsupportedError (the plan has no chunks), NotFoundError, BusyError (a step is open)."""
        self._call(self.cache._lk.lk_sequence_defer, number_of(MODES, mode, 'mode'))

    def assign_chunks(self, n_context_tokens: int, classes: Iterable[str],
                      scores: Iterable[float] | None = None) -> None:
        """Give classes to the chunks of the first n_context_tokens tokens, sinks included, and end a deferral.

        Tokens of the context may be still to come: its chunks are then packed as they come, and the sequence never
        holds the whole context at 16 bits if it comes in steps.

        classes  [n_chunks] of "low", "middle" and "high": the whole chunks of the context
        scores   [n_chunks]: to fill pages, chunks with higher scores are widened first; None: later chunks are

        Raises ArgumentError, UnsupportedError (the plan has no chunks), DataError (a score is a NaN), StateError
        (tokens of the context were packed without a class), BudgetError (nothing changed), BusyError."""
        if n_context_tokens < 0:
            raise ArgumentError(f'n_context_tokens is {n_context_tokens}')
        names = [number_of(CHUNK_CLASSES, name, 'class') for name in classes]
        n, numbers = len(names), None
        if scores is not None:
            given = [float(score) for score in scores]
            if len(given) != n:
                raise ArgumentError(f'{len(given)} scores for {n} chunks')
            numbers = (ctypes.c_float * n)(*given)
        self._call(self.cache._lk.lk_chunks_assign, n_context_tokens, n, (ctypes.c_uint32 * n)(*names), numbers)

    def retain_originals(self, budget: int | str) -> None:
        """Keep the originals of the context in host memory, at most ``budget`` bytes, so that later classes may be
        wider; 0 frees them. Raises UnsupportedError (the plan has no chunks), BudgetError (the originals take more),
        BusyError."""
        self._call(self.cache._lk.lk_chunks_retain, parse_bytes(budget))

    def chunks(self) -> Chunks:
        """The classes, widths and order of the chunks. Raises UnsupportedError (the plan has no chunks)."""
        lk = self.cache._lk
        raw = lk.start(_abi.ChunksInfo)
        with self.cache._handle.lock:
            pointer = self.cache._handle.get()
            check(lk.lk_chunks_get(pointer, self.id, _abi.byref(raw), 0, None, None, None))
            lists = [(ctypes.c_uint32 * raw.n_chunks)() for _ in range(3)]
            check(lk.lk_chunks_get(pointer, self.id, _abi.byref(raw), raw.n_chunks, *lists))
        assigned, stored = ([name_of(CHUNK_CLASSES, number) for number in numbers] for numbers in lists[:2])
        return Chunks.of(raw, assigned=assigned, stored=stored, order=list(lists[2]))

    def score_attention(self, attention: Attention | None) -> None:
        """Score the context's chunks by attention in the next step; None cancels the request and frees its memory.

        Raises ArgumentError, NotFoundError (a layer), UnsupportedError (a layer with a sliding window), BudgetError,
        BusyError."""
        raw = None if attention is None else _abi.byref(attention.raw())
        self._call(self.cache._lk.lk_chunks_score_attention, raw)

    def attention_scores(self, n_chunks: int) -> list[float]:
        """The attention scores [n_chunks] of the chunks, after the step was committed; their sum is 1.

        Raises StateError (no scored step was committed), ArgumentError (another n_chunks than requested), BusyError,
        DataError."""
        if not 0 <= n_chunks < 2**32:
            raise ArgumentError(f'n_chunks is {n_chunks}')
        scores = (ctypes.c_float * n_chunks)()
        self._call(self.cache._lk.lk_chunks_attention_scores, n_chunks, scores)
        return list(scores)

    def remove(self) -> None:
        """Free the sequence's pages. Raises NotFoundError (removed already), BusyError (a step is open)."""
        self._call(self.cache._lk.lk_sequence_remove)

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.cache.closed:
            self.remove()


def _answer(pressure: Callable[[Pressure], int | Iterable[Sequence] | None]) -> Callable[[int, int], int]:
    """The pressure callback of C that calls a function of Python."""
    def call(_: int, address: int) -> int:
        raw = _abi.Pressure.from_address(address)
        answer = pressure(Pressure(raw.shortfall_bytes, raw.reserved_bytes, raw.budget_bytes))
        if answer is None:
            return _abi.CONSTANTS['LK_PRESSURE_REFUSE']
        if isinstance(answer, int):
            raw.budget_bytes = answer
            return _abi.CONSTANTS['LK_PRESSURE_BUDGET']
        ids = [sequence.id for sequence in answer]
        if len(ids) > raw.capacity:
            raise ArgumentError(f'{len(ids)} sequences to remove, the cache has {raw.capacity}')
        for i, id in enumerate(ids):
            raw.ids[i] = id
        raw.n_ids = len(ids)
        return _abi.CONSTANTS['LK_PRESSURE_REMOVE']
    return call


def _describe_states(desc: Any, states: Iterable[int], versions: int, interval: int) -> None:
    sizes = tuple(states)
    for number in (*sizes, versions, interval):
        if not 0 <= number < 2**64:
            raise ArgumentError(f'states are {sizes}, state_versions {versions}, state_interval {interval}')
    desc.n_states, desc.state_versions, desc.state_interval_tokens = len(sizes), versions, interval
    if sizes:
        desc.state_bytes = (ctypes.c_uint64 * len(sizes))(*sizes)


def state_bytes(states: Iterable[int], n_sequences: int = 1, *, state_versions: int = 0,
                state_interval: int = 64) -> int:
    """Bytes that the recurrent states of sequences take in a cache's budget, at most: states, state_versions and
    state_interval are Cache's. Raises ArgumentError."""
    lk = library()
    desc = lk.start(_abi.CacheDesc)
    _describe_states(desc, states, state_versions, state_interval)
    found = ctypes.c_uint64()
    check(lk.lk_state_bytes(_abi.byref(desc), n_sequences, _abi.byref(found)))
    return found.value


class Cache:
    """The key/value cache of one model: many sequences, one plan, one byte budget.

    context          an open device
    plan             a Plan, the name of a preset or the path of a plan's JSON; copied
    budget           hard limit of all that the cache holds, in bytes or as "2GiB"
    geometry         the model; default: the plan's. Needed with a name or a path
    max_sequences    at once
    max_step_tokens  of one step, over all its sequences
    slab_bytes       size of a slab, a multiple of 256 KiB; 0 = 64 MiB
    max_budget       the highest value that the budget may be set to; 0 = budget
    sequence_limit   most bytes of pages and tables that only one sequence uses; 0 = no limit
    evict            on a shortfall, remove the sequence that a step named least recently
    keep_windowed    layers with a sliding window keep the pages that it has left, so that sequences can be cut at any
                     token; Plan.bytes() counts them
    states           bytes of each recurrent state of a sequence, multiples of 16 (lowkey/state.h)
    state_versions   versions of the states after earlier steps that a sequence keeps
    state_interval   tokens between kept versions, at least
    pressure         called with a Pressure inside step(), on a shortfall when the ladders have ended. It returns a new
                     budget in bytes, the sequences to remove, or None to refuse; step() raises its exceptions

    One thread at a time uses a cache; calls of several threads wait for each other. stats() and poll() never wait.

    Raises ArgumentError, MismatchError (the plan is for another geometry), UnsupportedError, BudgetError (less
    than the fixed tables and workspace; the sentence names the bytes), OutOfMemoryError, DeviceError.
    """

    def __init__(self, context: Context, plan: Plan | str | os.PathLike[str], budget: int | str, *,
                 geometry: Geometry | None = None,
                 max_sequences: int = 1, max_step_tokens: int = 512, slab_bytes: int = 0,
                 max_budget: int | str = 0, sequence_limit: int | str = 0, evict: bool = False,
                 keep_windowed: bool = False, states: Iterable[int] = (), state_versions: int = 0,
                 state_interval: int = 64,
                 pressure: Callable[[Pressure], int | Iterable[Sequence] | None] | None = None):
        lk = self._lk = library()
        if not isinstance(plan, Plan):
            if geometry is None:
                raise ArgumentError(f'the plan {os.fspath(plan)!r} needs a geometry')
            plan = Plan.named(plan, geometry)
        self.context = context
        self.geometry = geometry or plan.geometry
        desc = lk.start(_abi.CacheDesc)
        desc.max_sequences, desc.max_step_tokens = max_sequences, max_step_tokens
        desc.budget_bytes, desc.slab_bytes = parse_bytes(budget), slab_bytes
        desc.max_budget_bytes, desc.sequence_limit_bytes = parse_bytes(max_budget), parse_bytes(sequence_limit)
        desc.flags = (_abi.CONSTANTS['LK_CACHE_EVICT'] if evict else 0) | (
            _abi.CONSTANTS['LK_CACHE_KEEP_WINDOWED'] if keep_windowed else 0)
        self.states = tuple(states)
        _describe_states(desc, self.states, state_versions, state_interval)
        self._calls = Calls()
        if pressure is not None:
            desc.pressure = _abi.PressureFn(self._calls.guard(_answer(pressure), _abi.CONSTANTS['LK_PRESSURE_REFUSE']))
        keep = desc.pressure  # as long as the handle's destroyer
        box = ctypes.c_void_p()

        def end(pointer: ctypes.c_void_p, keep: Any = keep) -> None:
            lk.lk_cache_destroy(_abi.byref(pointer))

        with context._handle.lock, plan._handle.lock:
            check(lk.lk_cache_create(context._handle.get(), _abi.byref(self.geometry.raw()), plan._handle.get(),
                                     _abi.byref(desc), _abi.byref(box)))
            self._handle = Handle('cache', box, end, context._handle)
        weakref.finalize(self, self._handle.destroy)
        # Of each layer: heads of q, heads of k, channels of keys, channels of values.
        self._shapes = [(layer.n_query_heads, layer.n_kv_heads, layer.head_dim, layer.output_dim)
                        for layer in self.geometry.layers]
        self._scratch = tuple(Scratch() for _ in range(5))  # k, v, q, out, lse
        self._max_sequences = max_sequences
        self._queue: _abi.Queue | None = None
        if BACKENDS.get(context.backend) == BACKENDS['cuda']:
            self._queue = lk.start(_abi.Queue)
            self._queue.kind = _abi.CONSTANTS['LK_QUEUE_CUDA_STREAM']

    @property
    def closed(self) -> bool:
        """Whether close() was called, or the context's end closed the cache."""
        return not self._handle.box

    def close(self) -> None:
        """Destroy the cache with its sequences, an open step included. Waits for its work. Twice is fine."""
        self._handle.close()

    def __enter__(self) -> Cache:
        self._handle.get()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self) -> Sequence:
        """A new, empty sequence.

        Raises BudgetError (max_sequences are there, or no bytes), BusyError (a step is open)."""
        id = ctypes.c_uint64()
        with self._handle.lock:
            check(self._lk.lk_sequence_add(self._handle.get(), _abi.byref(id)))
        return Sequence(self, id.value)

    def step(self, sequences: Sequence | Iterable[Sequence], n_tokens: int | Iterable[int], *,
             parents: Iterable[int] | None = None, spans: Iterable[tuple[int, int, int]] = (),
             spans_in_windows: bool = False, stream: Any = None) -> Step:
        """Open a step of new tokens: see Step.

        sequences  a sequence, or several distinct sequences of this cache
        n_tokens   new tokens of each, or one number for all
        parents    [sum of n_tokens] a draft tree: for each token the index of its parent among its sequence's new
                   tokens, or -1 for the last committed one. Default: each token follows the token before it
        spans      new tokens that see each other both ways, as those of an image in Gemma 3: (index of the sequence,
                   first token, end) each, in this order. Without parents
        spans_in_windows  whether layers with a sliding window alone have the spans, as in Gemma 4
        stream     CUDA: a stream or its handle. Default: the current stream of PyTorch, else of CuPy, else the
                   legacy default stream

        Raises ArgumentError, NotFoundError, StateError (a step is open), BudgetError (nothing changed), DataError (a
        committed step had an infinity or a NaN: reported once, call again), OutOfMemoryError, DeviceError.
        """
        chosen = (sequences,) if isinstance(sequences, Sequence) else tuple(sequences)
        counts = (n_tokens,) * len(chosen) if isinstance(n_tokens, int) else tuple(n_tokens)
        if len(counts) != len(chosen):
            raise ArgumentError(f'{len(counts)} counts of tokens for {len(chosen)} sequences')
        for sequence in chosen:
            if sequence.cache is not self:
                raise ArgumentError(f'{sequence!r} belongs to another cache')
        if any(not 0 < n < 2**32 for n in counts):
            raise ArgumentError(f'counts of new tokens are {list(counts)}, each must be at least 1')
        total, tree = sum(counts), None
        if parents is not None:
            chain = tuple(parents)
            if len(chain) != total:
                raise ArgumentError(f'{len(chain)} parents for {total} new tokens')
            tree = (ctypes.c_int32 * total)(*chain)
        ranges = tuple(tuple(span) for span in spans)
        if ranges and tree is not None:
            raise ArgumentError('a step has parents or spans, not both')
        if any(len(span) != 3 or not all(0 <= number < 2**32 for number in span) for span in ranges):
            raise ArgumentError(f'spans are {list(ranges)}, each must be (sequence, first token, end)')
        handle, queue = 0, None
        if self._queue is not None:
            handle = streams.current(self.context.device_index) if stream is None else streams.handle_of(stream)
            self._queue.handle, queue = handle, _abi.byref(self._queue)
        elif stream is not None:
            raise ArgumentError(f'a context on {self.context.backend} takes no stream')
        ids = (ctypes.c_uint64 * len(chosen))(*(sequence.id for sequence in chosen))
        numbers = (ctypes.c_uint32 * len(counts))(*counts)
        with self._handle.lock:
            pointer = self._handle.get()
            if ranges:
                flat = (ctypes.c_uint32 * (3 * len(ranges)))(*(number for span in ranges for number in span))
                status = self._lk.lk_step_begin_spans(pointer, queue, len(chosen), ids, numbers, flat, len(ranges),
                                                      _abi.CONSTANTS['LK_SPANS_WINDOWED'] if spans_in_windows else 0)
            else:
                status = self._lk.lk_step_begin(pointer, queue, len(chosen), ids, numbers, tree)
            self._calls.check(status)
        return Step(self, len(chosen), total, handle)

    def save(self, target: snapshot.Target = None, sequences: Iterable[Sequence] | None = None, *,
             fingerprint: bytes = b'', progress: snapshot.Progress | None = None) -> bytes | None:
        """Save sequences as a snapshot that any backend's cache of the same plan loads.

        target       a path (the file is replaced whole or not at all), an object with write(), or None to return bytes
        sequences    default: all, in the order of their ids
        fingerprint  at most 256 bytes that name the model; load() refuses any other
        progress     called with (done_bytes, total_bytes); an exception ends the save

        Raises ArgumentError, NotFoundError, BusyError (a step is open), FileError, OutOfMemoryError, DeviceError."""
        return snapshot.save(self, target, sequences, fingerprint, progress)

    def load(self, source: snapshot.Source, *, fingerprint: bytes = b'',
             progress: snapshot.Progress | None = None) -> list[Sequence]:
        """Load all sequences of a snapshot into the cache. A failure leaves the cache unchanged.

        source  a path, bytes, or an object with read()

        Raises CorruptError, MismatchError (another plan, model or version), BudgetError, BusyError, FileError."""
        return [Sequence(self, id) for id in snapshot.load(self, source, fingerprint, progress)]

    def stats(self) -> CacheStats:
        """The contents of the cache in numbers. May run at the same time as any other call."""
        raw = self._lk.start(_abi.CacheStats)
        with self._handle.read_lock:
            check(self._lk.lk_cache_get_stats(self._handle.get(), _abi.byref(raw)))
        return CacheStats.of(raw)

    @property
    def budget(self) -> int:
        """The byte budget."""
        n = ctypes.c_uint64()
        with self._handle.lock:
            check(self._lk.lk_cache_get_budget(self._handle.get(), _abi.byref(n)))
        return n.value

    @budget.setter
    def budget(self, size: int | str) -> None:
        """Change the budget, up to max_budget; a lower one compacts extents and shrinks pages down their ladders.

        Raises ArgumentError, BudgetError (less than the last rungs take; nothing changed), BusyError."""
        with self._handle.lock:
            check(self._lk.lk_cache_set_budget(self._handle.get(), parse_bytes(size)))

    def shrink(self, bits: int, layer: int = ALL) -> None:
        """Shrink the packed pages of a layer, or of all layers, to a rung of the ladder; later pages are packed at it.

        Raises ArgumentError (no rung of the ladder), NotFoundError, BusyError, BudgetError."""
        with self._handle.lock:
            check(self._lk.lk_cache_shrink(self._handle.get(), layer, bits))

    def poll(self) -> None:
        """Check the open step and committed ones for faults. May run at the same time as any other call.

        Raises DataError, DeviceError."""
        with self._handle.read_lock:
            check(self._lk.lk_cache_poll(self._handle.get()))

    def plan(self) -> Plan:
        """A copy of the plan that the cache runs."""
        box = ctypes.c_void_p()
        with self._handle.lock:
            check(self._lk.lk_plan_copy(self._lk.lk_cache_plan(self._handle.get()), _abi.byref(box)))
        return Plan(box, self.geometry)
