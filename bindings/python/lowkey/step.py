# SPDX-License-Identifier: Apache-2.0
"""Steps: prefill, chunked prefill, decode and drafts are the same calls with other counts."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _abi
from ._library import check, failure
from .arrays import empty_like
from .errors import ArgumentError, StateError

if TYPE_CHECKING:
    from .cache import Cache


class StateMemory(NamedTuple):
    """Where the bytes of a recurrent state are in an open step: memory of the host or of the CUDA device at
    ``pointer``, or on Vulkan a VkBuffer from ``offset_bytes`` on."""

    pointer: int
    buffer: int
    offset_bytes: int
    n_bytes: int


class Step:
    """New tokens of some sequences on their way through the layers. Made by Cache.step().

    ::

        with cache.step(sequence, n_tokens) as step:
            for layer in range(n_layers):
                step.append(layer, k, v)
                out = step.attend(layer, q)

    The end of the block commits the step; an exception discards it. Tensors are token-major, the sequences one after
    the other in the order of Cache.step(). On a device the calls return when the work is queued.
    """

    __slots__ = ('_cache', '_handle', '_lk', '_open', '_scratch', '_shapes', 'n_sequences', 'n_tokens', 'stream')

    def __init__(self, cache: Cache, n_sequences: int, n_tokens: int, stream: int):
        self._cache, self._handle, self._lk = cache, cache._handle, cache._lk
        self._shapes, self._scratch = cache._shapes, cache._scratch
        self.n_sequences, self.n_tokens, self.stream, self._open = n_sequences, n_tokens, stream, True

    @property
    def open(self) -> bool:
        """Neither committed nor discarded yet."""
        return self._open and not self._cache.closed

    def _pointer(self) -> ctypes.c_void_p:
        pointer = self._handle.get()
        if not self._open:
            raise StateError('the step is closed: it was committed or discarded')
        return pointer

    def _shape(self, layer: int) -> tuple[int, int, int, int]:
        if not 0 <= layer < len(self._shapes):
            raise ArgumentError(f'layer {layer} of {len(self._shapes)}')
        return self._shapes[layer]

    def append(self, layer: int, k: Any, v: Any = None) -> None:
        """Give a layer its new keys and values, once in a step.

        k  [n_tokens, n_kv_heads, head_dim], after RoPE
        v  [n_tokens, n_kv_heads, value_dim]; None for a latent layer, whose values are channels of its keys

        Their memory may not change until attend() has run.

        Raises ArgumentError, StateError, UnsupportedError, DataError (an infinity or a NaN; then only discard() works).
        """
        _, heads, width, value_width = self._shape(layer)
        shape, of_values = (self.n_tokens, heads, width), (self.n_tokens, heads, value_width)
        with self._handle.lock:
            pointer, scratch = self._pointer(), self._scratch
            status = self._lk.lk_append(pointer, layer, scratch[0].fill(k, shape, 'k', self.stream),
                                        None if v is None else scratch[1].fill(v, of_values, 'v', self.stream))
            if status:
                raise failure(status)

    def attend(self, layer: int, q: Any, out: Any = None, lse: Any = None) -> Any:
        """Attention of the step's tokens over their sequences, on the packed bytes.

        layer  the one that append() was called for last, or one that reads the keys and values of an appended layer
        q      [n_tokens, n_query_heads, head_dim], after RoPE
        out    [n_tokens, n_query_heads, value_dim] written by the call; default: a new array like q
        lse    None, True for a new array, or a float32 array [n_tokens, n_query_heads]: the natural logarithm of
               the sum of exp(logit), for merge()

        Returns out, or (out, lse) when lse is given. Raises as append().
        """
        heads, _, width, value_width = self._shape(layer)
        shape, of_out = (self.n_tokens, heads, width), (self.n_tokens, heads, value_width)
        if out is None:
            out = empty_like(q, of_out)
        if lse is True:
            lse = empty_like(q, shape[:2], 'float32')
        with self._handle.lock:
            pointer, scratch = self._pointer(), self._scratch
            status = self._lk.lk_attend(
                pointer, layer, scratch[2].fill(q, shape, 'q', self.stream),
                scratch[3].fill(out, of_out, 'out', self.stream, written=True),
                None if lse is None else scratch[4].fill(lse, (*shape[:2], 1), 'lse', self.stream, written=True))
            if status:
                raise failure(status)
        return out if lse is None else (out, lse)

    def state(self, sequence: int, state: int) -> StateMemory:
        """The place of a recurrent state of the sequence at an index of the step. Code of the host reads the state
        before the new tokens there and writes the one after them, until the commit; the place never changes.

        Raises ArgumentError, UnsupportedError (Vulkan on lowkey's own device)."""
        raw = self._lk.start(_abi.State)
        with self._handle.lock:
            check(self._lk.lk_step_state(self._pointer(), sequence, state, _abi.byref(raw)))
        return StateMemory(raw.data or 0, raw.buffer, raw.offset_bytes, raw.bytes)

    def read_state(self, sequence: int, state: int) -> bytearray:
        """A copy of a recurrent state, after the queue's work. Raises as state()."""
        with self._handle.lock:
            pointer = self._pointer()
            made = bytearray(self._state_bytes(state))
            check(self._lk.lk_step_read_state(pointer, sequence, state, (ctypes.c_char * len(made)).from_buffer(made),
                                              len(made)))
        return made

    def write_state(self, sequence: int, state: int, data: Any) -> None:
        """Copy bytes, or an array in host memory, to a recurrent state, after the queue's work.

        Raises ArgumentError (another length), and as state()."""
        taken = bytes(memoryview(data).cast('B'))
        with self._handle.lock:
            check(self._lk.lk_step_write_state(self._pointer(), sequence, state, taken, len(taken)))

    def _state_bytes(self, state: int) -> int:
        sizes = self._cache.states
        if not 0 <= state < len(sizes):
            raise ArgumentError(f'state is {state}, the cache has {len(sizes)}')
        return sizes[state]

    def replay(self) -> None:
        """CUDA: append and attend of all layers, or of some, run from graphs, which were captured in earlier steps with
        the same numbers of sequences and of new tokens (lowkey/step.h). Launch them on the step's stream, before this
        call or after it, then commit.

        Raises StateError (no step of this shape was captured), UnsupportedError (other backends)."""
        with self._handle.lock:
            check(self._lk.lk_step_replay(self._pointer()))

    def commit(self, keep: Iterable[int] | None = None) -> None:
        """Make the tokens part of their sequences.

        keep  how many of each sequence's new tokens, 0 to all; default: all

        Raises StateError (a layer has no keys), ArgumentError (keep), DataError (poisoned); the step stays open."""
        chosen = None
        if keep is not None:
            counts = tuple(keep)
            if len(counts) != self.n_sequences:
                raise ArgumentError(f'{len(counts)} counts to keep for {self.n_sequences} sequences')
            if any(n < 0 for n in counts):
                raise ArgumentError(f'counts to keep are {list(counts)}')
            chosen = (ctypes.c_uint32 * len(counts))(*counts)
        with self._handle.lock:
            check(self._lk.lk_step_commit(self._pointer(), chosen))
            self._end()

    def commit_paths(self, paths: Iterable[Iterable[int]]) -> None:
        """Keep chosen tokens of draft trees.

        paths  of each sequence the path from the root, as indices of its new tokens

        Raises as commit()."""
        chosen = [tuple(path) for path in paths]
        if len(chosen) != self.n_sequences:
            raise ArgumentError(f'{len(chosen)} paths for {self.n_sequences} sequences')
        tokens = [token for path in chosen for token in path]
        if any(not 0 <= token < 2**32 for token in tokens):
            raise ArgumentError(f'paths are {chosen}')
        with self._handle.lock:
            check(self._lk.lk_step_commit_tokens(self._pointer(), (ctypes.c_uint32 * len(chosen))(*map(len, chosen)),
                                                 (ctypes.c_uint32 * len(tokens))(*tokens)))
            self._end()

    def discard(self) -> None:
        """Drop the tokens: the sequences are as before the step."""
        with self._handle.lock:
            check(self._lk.lk_step_discard(self._pointer()))
            self._end()

    def _end(self) -> None:
        self._open = False
        for scratch in self._scratch:
            scratch.owner = None

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self.open:
            return
        if kind is not None:
            self.discard()
            return
        try:
            self.commit()
        except BaseException:
            self.discard()
            raise
