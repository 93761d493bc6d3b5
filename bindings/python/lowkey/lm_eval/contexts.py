# SPDX-License-Identifier: Apache-2.0
"""Contexts that begin alike are read once, and continued by forks."""

from __future__ import annotations

import copy
from collections.abc import Generator
from typing import Any, NamedTuple

from ..transformers import LowkeyCache
from ..transformers.scoring import read

MOST_KEPT = 4  # beginnings that are kept at once, each a sequence


class _Beginning(NamedTuple):
    ids: list[int]
    cache: LowkeyCache  # which holds these tokens


class SharedContexts:
    """Reads contexts one after another, in passes that end at multiples of chunk_tokens, so that a context's passes,
    and with them its answers, are the same whether it is read whole or continues a fork.

    model       runs on the caches
    root        an open cache without sequences, whose copies hold the contexts
    most_kept   beginnings that stay for the next contexts; 0 = each context is read whole

    ``n_read`` counts the tokens that went through the model.
    """

    def __init__(self, model: Any, root: LowkeyCache, chunk_tokens: int, most_kept: int = MOST_KEPT):
        self._model, self._root, self._chunk_tokens, self._most_kept = model, root, chunk_tokens, most_kept
        self._kept: list[_Beginning] = []  # each is a beginning of the next one
        self.n_read = 0

    def each(self, contexts: list[list[int]]) -> Generator[LowkeyCache, None, None]:
        """A cache that holds each context, in turn; sorted contexts share most. A cache is closed when the next one is
        taken."""
        try:
            for ids, following in zip(contexts, [*contexts[1:], []]):
                cache = self._hold(ids, following)
                try:
                    yield cache
                finally:
                    cache.close()
        finally:
            self._drop(0)

    def _hold(self, ids: list[int], following: list[int]) -> LowkeyCache:
        """A cache that holds a context, whose beginning in common with the following one is kept."""
        n_valid = 0
        while n_valid < len(self._kept) and ids[:len(self._kept[n_valid].ids)] == self._kept[n_valid].ids:
            n_valid += 1
        self._drop(n_valid)
        last = self._kept[-1] if self._kept else _Beginning([], self._root)
        cache, n = copy.deepcopy(last.cache), len(last.ids)
        try:
            n_shared = _common(ids, following) // self._chunk_tokens * self._chunk_tokens
            if n_shared > n and len(self._kept) < self._most_kept:
                self._read(cache, ids[n:n_shared])
                self._kept.append(_Beginning(ids[:n_shared], copy.deepcopy(cache)))
                n = n_shared
            self._read(cache, ids[n:])
        except BaseException:
            cache.close()
            raise
        return cache

    def _read(self, cache: LowkeyCache, ids: list[int]) -> None:
        read(self._model, cache, ids, self._chunk_tokens)
        self.n_read += len(ids)

    def _drop(self, n_valid: int) -> None:
        """Close all kept beginnings but the first n_valid."""
        while len(self._kept) > n_valid:
            self._kept.pop().cache.close()


def _common(a: list[int], b: list[int]) -> int:
    """Tokens that two contexts have in common at their beginning."""
    n = 0
    for x, y in zip(a, b):
        if x != y:
            break
        n += 1
    return n
