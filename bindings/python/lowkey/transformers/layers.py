# SPDX-License-Identifier: Apache-2.0
"""The layers of a LowkeyCache in the interface of transformers."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache as HostCache
from transformers.cache_utils import CacheLayerMixin

from ..errors import UnsupportedError
from .attention import tag
from .geometry import ModelLayers

if TYPE_CHECKING:
    from .cache import LowkeyCache


class AttentionLayer(CacheLayerMixin):
    """A layer of the model whose tokens, if it has any, are in the cache that owns the layer.

    number     of the layer in the geometry; None = the layer keeps nothing
    """

    is_compileable = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, owner: LowkeyCache, number: int | None):
        super().__init__()
        self.owner, self.number = owner, number
        self.is_sliding = number is not None and owner.geometry.layers[number].window_tokens > 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any,
               **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.owner._check_open()
        self.is_initialized = True
        assert self.number is not None
        return tag(key_states, self.owner, self.number), value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        # A model makes its masks first of all, so that this call is the earliest sign of a pass.
        self.owner._announce(query_length)
        return self.owner.n_columns + query_length, 0

    def get_seq_length(self) -> int:
        return self.owner.n_columns

    def get_max_length(self) -> int:
        return -1

    # The whole cache is changed at once, by the owner.
    def reset(self) -> None: ...
    def crop(self, tokens_to_remove: int) -> None: ...


def make_layers(owner: LowkeyCache) -> list[Any]:
    """A layer for each of the model's."""
    model = owner.model_layers
    layers: list[Any] = [AttentionLayer(owner, owner.numbers.get(i)) for i in range(model.n_layers)]
    for i in model.states:
        made = state_classes(model)
        layers[i] = made.HybridLayer(owner, owner.numbers[i]) if i in owner.numbers else made.StateLayer()
    return layers


def state_classes(model: ModelLayers) -> ModuleType:
    """The module of the classes for layers with states."""
    # Models of older versions reach into the layers, past the cache, which then learns of no change.
    if not hasattr(HostCache, 'get_conv_state'):
        raise UnsupportedError(f'{model.kind} has layers with states, whose interface (Cache.get_conv_state) this '
                               'transformers does not have: install 5.23 or later')
    from . import state_layers
    return state_layers
