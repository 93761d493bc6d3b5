# SPDX-License-Identifier: Apache-2.0
"""Chunks of a context: scores of their relevance to a query, and classes by score (Cocktail, arXiv 2503.23294).

::

    sequence.defer()
    sequence.score_attention(chunks.Attention(n_query_tokens=4, n_chunks=12))
    ...                                                # a step of context and query
    scores = sequence.attention_scores(12)             # or cosine(), Bm25.scores(), or the caller's own
    classes, _ = chunks.Quota().classes(scores)
    sequence.assign_chunks(n_context_tokens, classes, scores)

Scores that need no keys come before the prefill, and the context is packed as it comes::

    scores = Bm25().scores(context_ids[32:], query_ids)
    classes, _ = chunks.Quota().classes(scores)
    sequence.assign_chunks(len(context_ids), classes, scores)
    ...                                                # steps of a few thousand tokens

The plan has chunks: the preset "cocktail", or Plan.set_chunks(). Sequence.chunks() has the classes and
widths of the chunks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _abi
from ._fields import Fields, name_of
from ._library import check, library
from .arrays import Tensor, describe, empty_like
from .context import Context
from .errors import ArgumentError
from .plan import CHUNK_CLASSES

MODES = {'off': 0, 'refuse': 1, 'pack': 2}


@dataclass(frozen=True)
class Attention(Fields):
    """The attention that Sequence.score_attention() scores chunks by.

    n_query_tokens  how many of the step's last tokens are the query
    n_chunks        chunks of chunk_tokens tokens each, the first one after the plan's sinks
    layers          ascending; empty = all layers without a sliding window
    """

    _struct = _abi.ChunkAttention

    n_query_tokens: int
    n_chunks: int
    chunk_tokens: int = 32
    layers: tuple[int, ...] = ()

    def raw(self) -> Any:
        raw = super().raw()
        raw.n_layers = len(self.layers)
        return raw


@dataclass(frozen=True)
class Chunks(Fields):
    """The chunks of a sequence.

    deferral        "off", "refuse" or "pack"
    n_wider         chunks that are kept wider than assigned, to fill pages or after a truncation
    n_narrower      chunks that are kept narrower than assigned, because their 16-bit values are gone
    retained_bytes  bytes of originals in host memory, which forks share
    n_pending       chunks of a context that is still to come whose classes are not laid out yet
    assigned        the class of each chunk that assign_chunks() got; "none" before
    stored          the class at whose width each chunk is kept; "none" without a class
    order           the chunk at each position, counted from the sinks
    """

    _struct = _abi.ChunksInfo
    _tables = {'deferral': MODES}

    n_chunks: int
    chunk_tokens: int
    deferral: str
    n_low: int
    n_middle: int
    n_high: int
    n_wider: int
    n_narrower: int
    first_token: int
    retained_bytes: int
    assigned: list[str]
    stored: list[str]
    order: list[int]
    is_assigned: bool = False
    n_pending: int = 0


def split(tokens: Sequence[int], chunk_tokens: int = 32, first_token: int = 32) -> list[list[int]]:
    """Token ids of each whole chunk of a context, in order; the ids after the last whole chunk belong to none.

    tokens        ids of the context
    chunk_tokens  of a chunk, as in the plan
    first_token   of the first chunk: the plan's sinks are in front of it, 32 in the preset "cocktail"

    Raises ArgumentError."""
    if chunk_tokens < 1 or first_token < 0:
        raise ArgumentError(f'chunks of {chunk_tokens} tokens from token {first_token} on')
    last = len(tokens) - chunk_tokens
    return [list(tokens[at:at + chunk_tokens]) for at in range(first_token, last + 1, chunk_tokens)]


def _vectors(array: Any, what: str, stream: int) -> tuple[Any, tuple[int, int], Any]:
    """An array [n, n_channels], or [n_channels] for a single vector, as a tensor [n][1][n_channels]; n and n_channels;
    its owner."""
    found = describe(array.array if isinstance(array, Tensor) else array, stream)
    shape, strides = found.shape, found.strides
    if len(shape) == 1:
        shape, strides = (1, *shape), (0, *strides)
    if len(shape) == 3 and shape[1] == 1:
        shape, strides = (shape[0], shape[2]), (strides[0], strides[2])
    if len(shape) != 2:
        raise ArgumentError(f'{what} have shape {list(found.shape)}, must be [n, n_channels]')
    if shape[1] > 1 and strides[1] != 1:
        raise ArgumentError(f'the channel stride of {what} is {strides[1]} elements and must be 1')
    raw = library().start(_abi.Tensor)
    raw.data, raw.dtype, raw.memory = found.pointer, found.dtype, found.memory
    raw.token_stride = strides[0] if shape[0] > 1 else 0
    return raw, (shape[0], shape[1]), found


def _embeddings(embeddings: Any, query: Any, stream: int) -> tuple[Any, Any, tuple[int, int], Any]:
    chunks, shape, owner = _vectors(embeddings, 'embeddings', stream)
    one, of_query, other = _vectors(query, 'query', stream)
    if of_query != (1, shape[1]):
        raise ArgumentError(f'query has shape {list(of_query)}, embeddings of {shape[1]} channels need [{shape[1]}]')
    return chunks, one, shape, (owner, other)


def cosine(embeddings: Any, query: Any) -> list[float]:
    """Scores of embeddings [n_chunks, n_channels] by a query [n_channels], in host memory: the cosines.

    Raises ArgumentError, DataError (only zeros, or not finite; the sentence names the chunk)."""
    chunks, one, (n, n_channels), _keep = _embeddings(embeddings, query, 0)
    scores = (ctypes.c_float * n)()
    check(library().lk_chunks_cosine(_abi.byref(chunks), _abi.byref(one), n, n_channels, scores))
    return list(scores)


def score_cosine(context: Context, embeddings: Any, query: Any, scores: Any = None, *, stream: Any = None) -> Any:
    """The same on a context's device.

    scores  float32 [n_chunks] written by the call; default: a new array like embeddings
    stream  CUDA: as for Cache.step()

    Returns scores. On a device a vector of zeros scores NaN, which classes refuse. Raises ArgumentError,
    DataError, UnsupportedError (memory of another kind), DeviceError."""
    queue, handle = context._queue(stream)
    chunks, one, (n, n_channels), _keep = _embeddings(embeddings, query, handle)
    if scores is None:
        scores = empty_like(embeddings, (n,), 'float32')
    found = describe(scores, handle)
    if found.shape != (n,) or not found.writable:
        raise ArgumentError(f'scores have shape {list(found.shape)}, must be a writable [{n}]')
    out = library().start(_abi.Tensor)
    out.data, out.dtype, out.memory = found.pointer, found.dtype, found.memory
    out.token_stride = found.strides[0] if n > 1 else 0
    with context._handle.read_lock:
        check(context._lk.lk_chunks_score_cosine(context._handle.get(), queue, _abi.byref(chunks), _abi.byref(one), n,
                                                 n_channels, _abi.byref(out)))
    return scores


@dataclass(frozen=True)
class Bm25(Fields):
    """BM25: k1 sets how late repetitions saturate, b how much long chunks lose."""

    _struct = _abi.Bm25

    chunk_tokens: int = 32
    k1: float = 1.2
    b: float = 0.75

    def scores(self, tokens: Sequence[int], query: Sequence[int], starts: Sequence[int] | None = None) -> list[float]:
        """Scores [n_chunks] of chunks of token ids by the token ids of a query.

        starts  [n_chunks + 1] the first token of each chunk, then the end; None: whole chunks of chunk_tokens

        Raises ArgumentError."""
        n = len(starts) - 1 if starts is not None else len(tokens) // self.chunk_tokens if self.chunk_tokens > 0 else 0
        if starts is not None and (n < 0 or min(starts) < 0 or max(starts) > len(tokens)):
            raise ArgumentError(f'chunks at {list(starts)} of {len(tokens)} tokens')
        for ids in (tokens, query):
            if any(not 0 <= id < 2**32 for id in ids):
                raise ArgumentError('token ids are numbers of 32 bits')
        out = (ctypes.c_float * n)()
        check(library().lk_chunks_score_bm25(_abi.byref(self.raw()), (ctypes.c_uint32 * len(tokens))(*tokens),
                                             None if starts is None else (ctypes.c_uint64 * len(starts))(*starts), n,
                                             (ctypes.c_uint32 * len(query))(*query), len(query), out))
        return list(out)


class ByThresholds(NamedTuple):
    """The class of each chunk, and the two thresholds."""

    classes: list[str]
    low: float
    high: float


def by_thresholds(scores: Sequence[float], alpha: float = 0.6, beta: float = 0.1) -> ByThresholds:
    """Classes "low", "middle" and "high" by thresholds within the range of the scores [n_chunks].

    Raises ArgumentError, DataError (a score is not finite; the sentence names the chunk)."""
    n = len(scores)
    classes, low, high = (ctypes.c_uint32 * n)(), ctypes.c_double(), ctypes.c_double()
    check(library().lk_chunks_by_thresholds((ctypes.c_float * n)(*scores), n, alpha, beta, classes, _abi.byref(low),
                                            _abi.byref(high)))
    return ByThresholds([name_of(CHUNK_CLASSES, number) for number in classes], low.value, high.value)


@dataclass(frozen=True)
class Quota(Fields):
    """How many chunks each class gets.

    block_chunks              chunks of a block, at least 1
    low_share, high_share     shares of the chunks; low_share counts only without a budget
    budget_bytes              most bytes of all chunks; 0 = only the shares count
    low_bytes ... high_bytes  bytes of one chunk of each class, over all layers and heads; needed with a budget
    """

    _struct = _abi.ChunkQuota

    block_chunks: int = 4
    low_share: float = 0.6
    high_share: float = 0.1
    budget_bytes: int = 0
    low_bytes: int = 0
    middle_bytes: int = 0
    high_bytes: int = 0

    def classes(self, scores: Sequence[float]) -> tuple[list[str], int]:
        """Classes of the chunks by the rank of their scores [n_chunks], and the bytes of these chunks.

        Raises ArgumentError, DataError (a score is not finite), BudgetError (not even the lowest classes fit)."""
        n, n_bytes = len(scores), ctypes.c_uint64()
        classes = (ctypes.c_uint32 * n)()
        check(library().lk_chunks_by_quota((ctypes.c_float * n)(*scores), n, _abi.byref(self.raw()), classes,
                                           _abi.byref(n_bytes)))
        return [name_of(CHUNK_CLASSES, number) for number in classes], n_bytes.value
