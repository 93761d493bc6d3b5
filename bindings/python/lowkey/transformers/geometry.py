# SPDX-License-Identifier: Apache-2.0
"""The attention layers of a model of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import UnsupportedError
from ..plan import Geometry, Layer


def _layer_types(config: Any, layers: Sequence[Any]) -> list[str]:
    named = getattr(config, 'layer_types', None)
    if named is not None:
        return list(named)
    types = []
    for layer in layers:
        if getattr(layer, 'sliding_window', None) is not None:
            types.append('sliding_attention')
        elif getattr(layer, 'attention_chunk_size', None) is not None:
            types.append('chunked_attention')
        else:
            types.append('full_attention')
    return types


def _scale(config: Any) -> float:
    """The scale of the logits; 0 = 1 / sqrt(head_dim)."""
    wanted = getattr(config, 'query_pre_attn_scalar', None)
    if wanted is not None:
        return float(float(wanted) ** -0.5)
    return float(getattr(config, 'attention_multiplier', None) or 0.0)


def _refuse(config: Any) -> None:
    kind = getattr(config, 'model_type', type(config).__name__)
    if getattr(config, 'kv_lora_rank', None):
        raise UnsupportedError(f'{kind} keeps latent keys (kv_lora_rank), lowkey keeps keys and values of heads')
    if getattr(config, 'num_kv_shared_layers', 0) or getattr(config, 'kv_sharing_modes', None):
        raise UnsupportedError(f'{kind} shares keys and values between layers')
    if getattr(config, 'is_encoder_decoder', False):
        raise UnsupportedError(f'{kind} has an encoder: lowkey serves decoders')


def geometry_of(config: Any, *, scale: float | None = None,
                sink_logits: Sequence[Sequence[float]] | None = None) -> Geometry:
    """The geometry of a model's configuration.

    scale        of the logits, where the configuration does not have it
    sink_logits  [n_layers][n_query_heads] of models that learn them: see sink_logits_of()

    Raises UnsupportedError for layers that are not full or sliding-window attention over heads.
    """
    config = config.get_text_config(decoder=True)
    _refuse(config)
    n = config.num_hidden_layers
    own = list(getattr(config, 'per_layer_config', None) or [config] * n)
    layers = []
    for i, (kind, one) in enumerate(zip(_layer_types(config, own), own)):
        if kind == 'full_attention':
            window = 0
        elif kind == 'sliding_attention':
            window = int(one.sliding_window)
        else:
            raise UnsupportedError(f'layer {i} is {kind}: lowkey has full_attention and sliding_attention')
        heads = one.num_attention_heads
        head_dim = getattr(one, 'head_dim', None) or one.hidden_size // heads
        sinks = () if sink_logits is None else tuple(float(x) for x in sink_logits[i])
        layers.append(Layer(heads, getattr(one, 'num_key_value_heads', None) or heads, head_dim, window,
                            scale=_scale(config) if scale is None else scale,
                            soft_cap=float(getattr(config, 'attn_logit_softcapping', None) or 0.0),
                            sink_logits=sinks))
    return Geometry(tuple(layers))


def sink_logits_of(model: Any) -> list[list[float]] | None:
    """The learned sink logits of a model whose attention modules have ``sinks`` (gpt-oss), by layer, or None."""
    found = {module.layer_idx: module.sinks.detach().float().tolist() for module in model.modules()
             if hasattr(module, 'sinks') and hasattr(module, 'layer_idx')}
    return [found[i] for i in sorted(found)] or None
