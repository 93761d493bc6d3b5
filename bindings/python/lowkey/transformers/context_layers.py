# SPDX-License-Identifier: Apache-2.0
"""The layers of a DocumentContext in the interface of transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from .two_bits import rounded


class KeptLayer(CacheLayerMixin):
    """Keys and values of a layer at 16 bits. Passes after the first one read them and keep nothing."""

    is_compileable = False
    is_croppable = False
    supports_early_init = False

    def __init__(self, is_sliding: bool):
        super().__init__()
        self.is_sliding, self.is_initialized = is_sliding, True
        self.n_tokens = 0
        self.instead: tuple[torch.Tensor, torch.Tensor] | None = None  # [rows, heads, n_tokens, head_dim]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None: ...

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any,
               **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        new = rounded(key_states), rounded(value_states)
        if self.keys is None or self.values is None:
            self.keys, self.values = new
            return new
        rows = key_states.shape[0]
        own = self.instead or (self.keys, self.values)
        key, value = (torch.cat([x.expand(rows, -1, -1, -1), y], 2) for x, y in zip(own, new))
        return key, value

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.n_tokens + query_length, 0

    def get_seq_length(self) -> int:
        return self.n_tokens

    def get_max_length(self) -> int:
        return -1
