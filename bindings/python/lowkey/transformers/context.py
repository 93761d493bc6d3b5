# SPDX-License-Identifier: Apache-2.0
"""A document's context in a model: its keys and values stay, and passes after it change some of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache as HostCache

from ..plan import Geometry
from .capture import last_logits
from .context_layers import KeptLayer
from .geometry import layers_of
from .layers import state_classes


class DocumentContext(HostCache):
    """The keys and values of a context, at 16 bits as in an exact cache, its states, and the model's passes after it.

    model     frozen
    geometry  of its configuration
    ids       tokens of the context

    ``kept`` has the layers of the geometry.
    """

    def __init__(self, model: Any, geometry: Geometry, ids: list[int]):
        found = layers_of(model.config)
        self._attention = found.attention
        layers: list[Any] = [KeptLayer(False) for _ in range(found.n_layers)]
        for i, own in zip(found.attention, geometry.layers):
            layers[i].is_sliding = own.window_tokens > 0
        for i, n_states in found.states.items():
            made = state_classes(found)
            layers[i] = made.FixedHybridLayer(layers[i].is_sliding, n_states) if i in found.attention else \
                made.FixedStateLayer(number_of_states=n_states)
        self.kept = [layers[i] for i in found.attention]
        super().__init__(layers=layers)
        self._model, self.n_tokens, self._rows = model, len(ids), 1
        self._decoders = decoder_layers(model, found.n_layers) if skips_layers(geometry) else []
        self._outputs: list[Any] = []  # of each decoder layer, in the exact pass over the scored tokens
        tokens = torch.tensor([ids], device=model.device)
        with torch.no_grad():
            model(tokens, past_key_values=self, use_cache=True, **last_logits(model))
        for layer in layers:
            layer.n_tokens = self.n_tokens

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self._of_rows(super().get_conv_state(layer_idx, state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self._of_rows(super().get_recurrent_state(layer_idx, state_idx))

    def _of_rows(self, state: torch.Tensor | None) -> torch.Tensor | None:
        return None if state is None else state.expand(self._rows, *state.shape[1:])

    def logits(self, ids: list[int], rows: int = 1) -> torch.Tensor:
        """Logits [rows, n_tokens, vocabulary] of tokens after the context, each row with its own keys and values."""
        tokens = torch.tensor([ids], device=self._model.device).expand(rows, -1)
        positions = torch.arange(self.n_tokens, self.n_tokens + len(ids), device=tokens.device)[None]
        self._rows = rows
        found: torch.Tensor = self._model(tokens, position_ids=positions.expand(rows, -1), past_key_values=self,
                                          use_cache=True).logits
        return found

    def exact(self, ids: list[int]) -> torch.Tensor:
        """The logits of an exact cache. Passes of from_layer() may begin at what this pass found."""
        with ExitStack() as stack, torch.no_grad():
            self._outputs = [None] * len(self._decoders)
            for i, module in enumerate(self._decoders):
                hook = module.register_forward_hook(lambda _, __, out, i=i: self._outputs.__setitem__(i, out))
                stack.callback(hook.remove)
            found = self.logits(ids)
        if not all(map(_is_one_row, self._outputs)):  # Gemma 3n has several versions of each token there
            self._outputs = []
        return found

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
        skipped = self._decoders[:self._attention[layer]] if self._outputs else []
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


def skips_layers(geometry: Geometry) -> bool:
    """Whether passes may leave out layers. One that reads another layer's keys and values needs that layer to run."""
    return len(geometry.kv_layers) == len(geometry.layers)


def _rows(output: Any, rows: int) -> Any:
    """A layer's output of one row, for several."""
    if isinstance(output, tuple):
        return tuple(_rows(part, rows) for part in output)
    return output.expand(rows, *output.shape[1:]) if isinstance(output, torch.Tensor) else output


def _is_one_row(output: Any) -> bool:
    if isinstance(output, tuple):
        return all(map(_is_one_row, output))
    return not isinstance(output, torch.Tensor) or output.shape[0] == 1


def decoder_layers(model: Any, n_layers: int) -> list[torch.nn.Module]:
    """The modules that make up a model's layers, in order; empty where they cannot be found."""
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) >= n_layers and all(
                any(getattr(part, 'layer_idx', None) == i for part in own.modules())
                for i, own in zip(range(n_layers), module)):
            return list(module)[:n_layers]
    return []
