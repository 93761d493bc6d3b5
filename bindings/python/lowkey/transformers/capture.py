# SPDX-License-Identifier: Apache-2.0
"""Gives a program the queries, keys and values of a model's attention, layer by layer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..errors import ArgumentError, UnsupportedError
from .attention import NAME as LOWKEY
from .geometry import geometry_of, layers_of

_NAME = 'lowkey-capture'
# Called with a layer of the geometry and its q, k and v, [1, heads, n_tokens, head_dim], before the layer's attention.
Observer = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], None]


class Capture:
    """An attention function that passes its arguments to an observer, then runs the model's own. Layers that read the
    keys and values of another layer go unobserved.

    name     of the model's own attention
    config   of the model
    """

    def __init__(self, name: str, config: Any):
        self.name = name
        self.observer: Observer | None = None
        attention, geometry = layers_of(config).attention, geometry_of(config)
        for number, layer in enumerate(geometry.layers):
            if layer.latent or layer.output_dim != layer.head_dim:
                raise UnsupportedError(f'layer {attention[number]} keeps '
                                       + ('latents' if layer.latent else 'values of another dim than keys')
                                       + ', of which lowkey gathers no statistics: take a plan that needs none, as '
                                       '"kivi4"')
        self._known = set(attention)
        # By the layer's number in the model.
        self._numbers = {attention[number]: number for number in geometry.kv_layers}
        self._seen: set[int] = set()

    def __call__(self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                 *arguments: Any, **options: Any) -> Any:
        number = self._numbers.get(self._layer_of(module))
        if number is not None:
            self._seen.add(number)
            if self.observer is not None:
                self.observer(number, query, key, value)
        # Each model has its own plain attention, in the file of its attention modules.
        inner = sys.modules[type(module).__module__].eager_attention_forward if self.name == 'eager' else \
            ALL_ATTENTION_FUNCTIONS[self.name]
        return inner(module, query, key, value, *arguments, **options)

    def _layer_of(self, module: torch.nn.Module) -> int:
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        if layer not in self._known:
            raise UnsupportedError(f'a module of {type(module).__name__} is the attention of several layers (its '
                                   f'layer_idx is {layer}), so its keys have no layer: take a plan that runs no model, '
                                   'as "kitty-pro"')
        return layer

    def check_pass(self) -> None:
        """Refuse a model whose pass did not go through this function in every layer with keys of its own."""
        missing = sorted(set(self._numbers.values()) - self._seen)
        self._seen = set()
        if missing:
            raise UnsupportedError(f'layer {missing[0]} of the model computed its attention without the interface of '
                                   'transformers (AttentionInterface), so its keys cannot be read')


@contextmanager
def frozen(model: torch.nn.Module) -> Iterator[None]:
    """The model in evaluation mode, its parameters without gradients; the end restores both."""
    training, wanted = model.training, [p for p in model.parameters() if p.requires_grad]
    try:
        model.eval()
        for parameter in wanted:
            parameter.requires_grad_(False)
        yield
    finally:
        model.train(training)
        for parameter in wanted:
            parameter.requires_grad_(True)


def check_free(model: Any) -> None:
    """Refuse a model that runs on an open LowkeyCache."""
    if model.config.get_text_config(decoder=True)._attn_implementation == LOWKEY:
        raise ArgumentError('the model runs on a LowkeyCache: close it before calibrating')


@contextmanager
def capturing(model: Any) -> Iterator[Capture]:
    """The model with captured attention, frozen; the end restores it."""
    check_free(model)
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    # Gradients need an attention with a backward pass; only the plain one knows soft-cap.
    capture = Capture('sdpa' if before == 'sdpa' else 'eager', config)
    ALL_ATTENTION_FUNCTIONS.register(_NAME, capture)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, ALL_MASK_ATTENTION_FUNCTIONS[capture.name])
    try:
        config._attn_implementation = _NAME
        with frozen(model):
            yield capture
    finally:
        config._attn_implementation = before


def run(model: Any, ids: list[int], *, gradients: bool = False, position_scale: int = 1) -> None:
    """One pass over a text; with gradients, also the backward pass of its causal cross-entropy."""
    tokens = torch.tensor([ids], device=model.device)
    positions = torch.arange(len(ids), device=model.device)[None] * position_scale
    if not gradients:  # the logits of one token, since nobody reads them
        with torch.no_grad():
            model(tokens, position_ids=positions, use_cache=False, **last_logits(model))
        return
    # Embeddings are the only leaf, since parameters are frozen. The model gets tokens, because Gemma 3n and 4 look up
    # more than one embedding of each.
    hook = model.get_input_embeddings().register_forward_hook(lambda _, __, out: out.detach().requires_grad_())
    try:
        with torch.enable_grad():
            model(tokens, position_ids=positions, labels=tokens, use_cache=False).loss.backward()
    finally:
        hook.remove()


def last_logits(model: Any) -> dict[str, int]:
    """The argument that spares a model the logits of all tokens but the last one, where the model has it."""
    return {'logits_to_keep': 1} if model._supports_logits_to_keep() else {}
