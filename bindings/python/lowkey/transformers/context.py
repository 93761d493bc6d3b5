# SPDX-License-Identifier: Apache-2.0
"""A document's context in a model: its keys and values stay, and passes after it change some of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache as HostCache
from transformers.cache_utils import CacheLayerMixin

from .capture import last_logits
from .two_bits import rounded


class _Layer(CacheLayerMixin):
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


class DocumentContext(HostCache):
    """The keys and values of a context, at 16 bits as in an exact cache, and the model's passes after it.

    model   frozen
    layers  of Geometry
    ids     tokens of the context
    """

    def __init__(self, model: Any, layers: Any, ids: list[int]):
        self.kept = [_Layer(layer.window_tokens > 0) for layer in layers]
        super().__init__(layers=list(self.kept))
        self._model, self.n_tokens = model, len(ids)
        self._decoders = decoder_layers(model, len(self.kept))
        self._outputs: list[Any] = []  # of each decoder layer, in the exact pass over the scored tokens
        tokens = torch.tensor([ids], device=model.device)
        with torch.no_grad():
            model(tokens, past_key_values=self, use_cache=True, **last_logits(model))
        for part in self.kept:
            part.n_tokens = self.n_tokens

    def logits(self, ids: list[int], rows: int = 1) -> torch.Tensor:
        """Logits [rows, n_tokens, vocabulary] of tokens after the context, each row with its own keys and values."""
        tokens = torch.tensor([ids], device=self._model.device).expand(rows, -1)
        positions = torch.arange(self.n_tokens, self.n_tokens + len(ids), device=tokens.device)[None]
        found: torch.Tensor = self._model(tokens, position_ids=positions.expand(rows, -1), past_key_values=self,
                                          use_cache=True).logits
        return found

    def exact(self, ids: list[int]) -> torch.Tensor:
        """The logits of an exact cache. Passes of from_layer() may begin at what this pass found."""
        with ExitStack() as stack, torch.no_grad():
            self._outputs = [None] * len(self.kept)
            for i, module in enumerate(self._decoders):
                hook = module.register_forward_hook(lambda _, __, out, i=i: self._outputs.__setitem__(i, out))
                stack.callback(hook.remove)
            return self.logits(ids)

    @contextmanager
    def instead(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> Iterator[None]:
        """Other keys and values of a layer, [rows, heads, n_tokens, head_dim]; layers below it do not run again."""
        part = self.kept[layer]
        part.instead = keys, values
        try:
            with self._skipping(layer, keys.shape[0]):
                yield
        finally:
            part.instead = None

    @contextmanager
    def _skipping(self, layer: int, rows: int) -> Iterator[None]:
        """The decoder layers below a layer give what they gave in the exact pass."""
        skipped = self._decoders[:layer] if self._outputs else []
        before = [module.__dict__.get('forward') for module in skipped]
        try:
            for i, module in enumerate(skipped):
                found = _rows(self._outputs[i], rows)
                module.forward = lambda *_, found=found, **__: found
            yield
        finally:
            for module, own in zip(skipped, before):
                if own is None:
                    del module.__dict__['forward']
                else:
                    module.forward = own


def _rows(output: Any, rows: int) -> Any:
    """A layer's output of one row, for several."""
    if isinstance(output, torch.Tensor):
        return output.expand(rows, *output.shape[1:])
    return (output[0].expand(rows, *output[0].shape[1:]), *output[1:])


def decoder_layers(model: Any, n_layers: int) -> list[torch.nn.Module]:
    """The modules that make up a model's layers, in order; empty where they cannot be found."""
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) >= n_layers and all(
                any(getattr(part, 'layer_idx', None) == i for part in own.modules())
                for i, own in zip(range(n_layers), module)):
            return list(module)[:n_layers]
    return []
