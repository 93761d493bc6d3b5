# SPDX-License-Identifier: Apache-2.0
"""The tokens of a batch in a step."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..errors import UnsupportedError
from .spans import Spans, is_whole


class NextPass(NamedTuple):
    """A pass whose mask is made, before its first layer.

    dtype  that the model computes in
    mask   [batch, 1, 1, tokens so far] if it hides a token
    """

    device: torch.device
    dtype: torch.dtype
    batch: int
    n_columns: int
    mask: torch.Tensor | None


class Batch:
    """Converts a batch [batch, heads, n_columns, channels] to tokens of a step [tokens, heads, channels], and back."""

    def __init__(self, batch: int, n_columns: int, real: torch.Tensor | None, spans: Spans | None):
        self.n_batch, self.n_columns, self.real, self.spans = batch, n_columns, real, spans
        self.attends = False  # whether the first layer with attention has run
        self.attended = False  # whether the last layer with attention has run
        self.is_done = False  # whether all layers have; the step may be open still

    def counts(self, n_columns: int) -> list[int]:
        """Tokens of each prompt in the first n_columns columns."""
        if self.real is None:
            return [n_columns] * self.n_batch
        return [int(n) for n in self.real[:, :n_columns].sum(1).tolist()]

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
