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


class StateLayer(LinearAttentionLayer):
    """A layer of a LowkeyCache whose states are in the cache. It has them as tensors while a pass runs."""

    is_compileable = False

    def hold(self, state: torch.Tensor, is_recurrent: bool, has_previous: bool) -> None:
        """A pass begins. It leaves its state in the tensor, which is that before the pass if it has_previous."""
        if is_recurrent:
            self.recurrent_states[0], self.is_recurrent_states_initialized[0] = state, True
            return
        self.conv_states[0], self.is_conv_states_initialized[0] = state, True
        self.conv_kernel_size[0], self.has_previous_state[0] = state.shape[-1], has_previous

    def after(self, is_recurrent: bool, n_removed: int) -> torch.Tensor:
        """The state after the pass without its last n_removed tokens, which only a convolution that records knows."""
        found, kernel = (self.recurrent_states if is_recurrent else self.conv_states)[0], self.conv_kernel_size[0]
        assert found is not None and kernel is not None
        if is_recurrent or not self.record_past:
            return found
        found = found[..., :found.shape[-1] - n_removed][..., -kernel:]
        return torch.nn.functional.pad(found, (kernel - found.shape[-1], 0))

    def release(self) -> None:
        """The pass has ended."""
        self.conv_states[0] = self.recurrent_states[0] = None


class HybridLayer(StateLayer, AttentionLayer):  # type: ignore[override]
    """A layer with attention and with states."""

    is_compileable = False

    def __init__(self, owner: LowkeyCache, number: int):
        AttentionLayer.__init__(self, owner, number)
        StateLayer.__init__(self)


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
