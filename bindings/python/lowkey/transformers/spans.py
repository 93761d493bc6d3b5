# SPDX-License-Identifier: Apache-2.0
"""Masks of models whose new tokens see each other both ways in spans, as the tokens of an image do in Gemma 3."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..errors import UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import TypeGuard


def read_mask(function: Callable[..., torch.Tensor], batch: int, n_queries: int, n_keys: int, first_query: int,
              padding: torch.Tensor | None, device: Any) -> torch.Tensor:
    """[batch, 1, n_queries, n_keys] which keys a mask function of transformers shows."""
    rows, queries, keys = (torch.arange(n, device=device) for n in (batch, n_queries, n_keys))
    shown = function(rows[:, None, None, None], torch.zeros((1, 1, 1, 1), dtype=torch.long, device=device),
                     (queries + first_query)[None, None, :, None], keys[None, None, None, :])
    shown = shown.expand(batch, 1, n_queries, n_keys)
    return shown if padding is None else shown & padding.bool()[:, None, None, :n_keys]


def is_whole(mask: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Whether a mask is that of read_mask(), and not one of padding alone."""
    return mask is not None and mask.dtype == torch.bool and mask.ndim == 4 and mask.shape[2] > 1


class Spans:
    """The spans of a pass.

    mask    [batch, 1, n_columns, columns so far] of the first layer
    window  of that layer
    in_windows  whether layers with a window alone have the spans

    Raises UnsupportedError: the mask is neither causal nor causal but for spans.
    """

    def __init__(self, mask: torch.Tensor, window: int, in_windows: bool = False):
        self.in_windows = in_windows
        shown = mask[:, 0].cpu()
        n = shown.shape[1]
        self._past = shown.shape[2] - n
        new = shown[:, :, self._past:]
        self._real = new.diagonal(dim1=1, dim2=2)
        columns = torch.arange(n)
        self._reach = torch.maximum(torch.where(new, columns, -1).amax(2), columns)
        self._spans = [self._spans_of(row) for row in range(len(new))]
        self._checked: set[tuple[int, int]] = set()
        self._masks: list[torch.Tensor | None] = []  # so that no other gets the id of a checked one
        self.check(mask, window)

    def padding(self) -> torch.Tensor | None:
        """[batch, n_columns] which of the new columns are tokens; None = all."""
        return None if bool(self._real.all()) else self._real

    def ranges(self, has_tokens: list[bool]) -> list[tuple[int, int, int]]:
        """(sequence, first token, end) of each span, of the rows that have tokens."""
        tokens, found, number = self._real.cumsum(1) - 1, [], 0
        for row, spans in enumerate(self._spans):
            found += [(number, int(tokens[row, first]), int(tokens[row, last]) + 1) for first, last in spans]
            number += has_tokens[row]
        return found

    def check(self, mask: torch.Tensor | None, window: int) -> None:
        """Refuse the mask of a layer with this window if it is not causal but for the spans."""
        if (id(mask), window) in self._checked:
            return
        if not is_whole(mask) or not self._fits(mask[:, 0].cpu(), window):
            raise UnsupportedError('the model needs a mask that is neither causal nor causal but for spans of new '
                                   'tokens (packed sequences, blocks or both directions)')
        self._checked.add((id(mask), window))
        self._masks.append(mask)

    def _fits(self, shown: torch.Tensor, window: int) -> bool:
        keys = torch.arange(shown.shape[2])
        queries = torch.arange(shown.shape[1])[:, None] + self._past
        known = torch.cat([shown[:, :, :self._past].any(1), self._real], 1)
        wanted = (keys <= self._reach[:, :, None] + self._past) & known[:, None]
        if window:
            wanted = wanted & (keys > queries - window)
        real = self._real[:, :, None]
        return torch.equal(wanted & real, shown & real) and all(
            bool((self._reach[row, first:last + 1] == last).all())
            for row, spans in enumerate(self._spans) for first, last in spans)

    def _spans_of(self, row: int) -> list[tuple[int, int]]:
        """First and last columns of the spans of a row."""
        found, column, reach = [], 0, self._reach[row].tolist()
        while column < len(reach):
            if reach[column] > column and self._real[row, column]:
                found.append((column, reach[column]))
            column = reach[column] + 1
        return found
