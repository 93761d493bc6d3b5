# SPDX-License-Identifier: Apache-2.0
"""Layers with states, in transformers' own classes, which older versions do not have: state_classes() imports this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import LinearAttentionLayer

from .context_layers import KeptLayer
from .layers import AttentionLayer

if TYPE_CHECKING:
    from .cache import LowkeyCache

StateLayer = LinearAttentionLayer


class HybridLayer(LinearAttentionLayer, AttentionLayer):  # type: ignore[override]
    """A layer of a LowkeyCache with attention, whose tokens are in the cache, and with states, which are here."""

    is_compileable = False

    def __init__(self, owner: LowkeyCache, number: int, number_of_states: int):
        AttentionLayer.__init__(self, owner, number)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)


class FixedStateLayer(LinearAttentionLayer):
    """States after a context. Passes after the first one, perhaps of more rows, read them and keep nothing."""

    n_tokens = 0  # of the context, after the first pass

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None,
                          **options: Any) -> torch.Tensor:
        before = self.conv_states[state_idx]
        if before is None or not self.n_tokens:
            return super().update_conv_state(conv_states, state_idx, conv_kernel_size, **options)
        return torch.cat([before.expand(conv_states.shape[0], *before.shape[1:]), conv_states], -1)

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0,
                               **options: Any) -> torch.Tensor:
        if not self.n_tokens:
            return super().update_recurrent_state(recurrent_states, state_idx, **options)
        return recurrent_states


class FixedHybridLayer(FixedStateLayer, KeptLayer):  # type: ignore[override]
    """A layer of a DocumentContext with attention and states."""

    is_compileable = False

    def __init__(self, is_sliding: bool, number_of_states: int):
        KeptLayer.__init__(self, is_sliding)
        FixedStateLayer.__init__(self, number_of_states=number_of_states)
