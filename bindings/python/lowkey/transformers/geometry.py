# SPDX-License-Identifier: Apache-2.0
"""The layers of a model of transformers: those that lowkey keeps keys and values of, and the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import UnsupportedError
from ..plan import Geometry, Layer

# Kinds of layers with attention over heads, and whether it has a sliding window.
_WINDOWED = {'full_attention': False, 'sliding_attention': True, 'hybrid': False, 'hybrid_sliding': True}
# Kinds of layers with a state that grows with no token; the hybrid ones have attention over heads as well.
_STATEFUL = ('linear_attention', 'conv', 'hybrid', 'hybrid_sliding')
_PLAIN = ('moe', 'mlp')  # these keep nothing between passes
# Models whose layers would fit, and why they cannot run.
_REFUSED = {
    'recurrent_gemma': 'keeps its recurrent states in its modules, where no cache can fork, reorder or remove them',
    'minimax': 'runs on a cache class of its own (MiniMaxCache) alone',
    'inkling_text': 'adds a position bias to its logits',
    'inkling2_text': 'adds a position bias to its logits',
}
# The scale of the logits by head_dim, of models whose configuration does not have it.
_SCALES: dict[str, Callable[[int], float]] = {
    'gemma3n_text': lambda _: 1.0, 'gemma4_text': lambda _: 1.0, 'gemma4_unified_text': lambda _: 1.0,
    'zamba': lambda head_dim: (head_dim / 2) ** -0.5, 'zamba2': lambda head_dim: (head_dim / 2) ** -0.5,
}
# Models whose attention keeps latents, from which it expands keys and values (MLA), and whether rope_parameters change
# the scale of their logits.
_LATENT = {'deepseek_v2': True, 'deepseek_v3': True, 'glm4_moe_lite': True, 'kimi_linear': False, 'minicpm3': True,
           'youtu': True}
# KV heads of a layer with a sliding window for each of the configuration's.
_WINDOWED_KV_HEADS = {'mimo_v2_flash': 2}
# Models whose recurrent state begins at zero in each pass of several tokens (Mamba-1 in transformers).
_RESTARTING = ('jamba', 'zamba')


class ModelLayers(NamedTuple):
    """What the layers of a model keep between passes.

    kind       the model type
    n_layers   of the model
    attention  the model's layers with attention over heads: layer i of the geometry is the model's layer attention[i]
    states     the number of states of each layer that has some: recurrent layers, convolutions, hybrids
    recurrent  whether some of these states are recurrent; else all are the last inputs of convolutions
    restarts   whether a pass of several tokens begins the recurrent states anew
    """

    kind: str
    n_layers: int
    attention: tuple[int, ...]
    states: dict[int, int]
    recurrent: bool
    restarts: bool

    @property
    def spans_in_windows(self) -> bool:
        """Whether images see themselves both ways in layers with sliding windows alone."""
        return self.kind.startswith('gemma4')

    def check_pass(self, n_tokens: int, n_before: int, remedy: str = 'give the prompt in one pass, and later tokens '
                                                                     'one by one') -> None:
        """Refuse a pass of n_tokens tokens after n_before earlier ones that the model would compute wrongly."""
        if self.restarts and n_tokens > 1 and n_before:
            raise UnsupportedError(f'{self.kind} begins its recurrent states anew in a pass of several tokens, so a '
                                   f'pass of {n_tokens} tokens cannot follow {n_before} earlier ones: {remedy}')


def _per_layer(config: Any) -> list[Any]:
    """The configuration of each layer."""
    return list(getattr(config, 'per_layer_config', None) or [config] * config.num_hidden_layers)


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


def _scale(config: Any, head_dim: int) -> float:
    """The scale of the logits; 0 = 1 / sqrt(head_dim)."""
    known = _SCALES.get(_kind(config))
    if known is not None:
        return float(known(head_dim))
    wanted = getattr(config, 'query_pre_attn_scalar', None)
    if wanted is not None:
        return float(float(wanted) ** -0.5)
    return float(getattr(config, 'attention_multiplier', None) or 0.0)


def _kind(config: Any) -> str:
    return str(getattr(config, 'model_type', type(config).__name__))


def _refuse(config: Any, layers: Sequence[Any]) -> None:
    kind = _kind(config)
    if kind in _REFUSED:
        raise UnsupportedError(f'{kind} {_REFUSED[kind]}')
    if kind not in _LATENT and any(getattr(layer, 'kv_lora_rank', None) for layer in layers):
        raise UnsupportedError(f'{kind} keeps latent keys (kv_lora_rank) in a way that lowkey does not know: it knows '
                               f'{", ".join(_LATENT)}')
    if getattr(config, 'is_encoder_decoder', False):
        raise UnsupportedError(f'{kind} has an encoder: lowkey serves decoders')


def _kv_layers(config: Any, types: Sequence[str]) -> dict[int, int]:
    """The layers that read another layer's keys and values, each with that layer."""
    modes = getattr(config, 'kv_sharing_modes', None)
    if modes is None:
        if getattr(config, 'num_kv_shared_layers', None):
            raise UnsupportedError(f'{_kind(config)} shares keys and values between layers, and this transformers does '
                                   'not name them (kv_sharing_modes): install 5.23 or later')
        return {}
    unknown = set(modes) - {None, 'store', 'reuse'}
    if unknown:
        raise UnsupportedError(f'{_kind(config)} shares keys and values between layers by the modes {sorted(unknown)} '
                               'of kv_sharing_modes: lowkey has "store" and "reuse"')
    stored = {types[i]: i for i, mode in enumerate(modes) if mode == 'store'}
    return {i: stored[types[i]] for i, mode in enumerate(modes) if mode == 'reuse'}


def layers_of(config: Any) -> ModelLayers:
    """What the layers of a model keep: which of them are layers of geometry_of(), and which have states.

    Raises UnsupportedError as geometry_of()."""
    config = config.get_text_config(decoder=True)
    own = _per_layer(config)
    _refuse(config, own)
    types = _layer_types(config, own)
    for i, kind in enumerate(types):
        if kind not in _WINDOWED and kind not in _STATEFUL and kind not in _PLAIN:
            raise UnsupportedError(f'layer {i} is {kind}: lowkey has full_attention and sliding_attention, next to '
                                   'layers with a state (linear_attention, conv)')
    attention = tuple(i for i, kind in enumerate(types) if kind in _WINDOWED)
    if not attention or not getattr(own[attention[0]], 'num_attention_heads', None):
        raise UnsupportedError(f'{_kind(config)} has no attention over heads, so there are no keys and values to keep')
    states = {i: int(getattr(one, 'number_of_conv_states', None) or 1)
              for i, (kind, one) in enumerate(zip(types, own)) if kind in _STATEFUL}
    return ModelLayers(_kind(config), len(types), attention, states, any(types[i] != 'conv' for i in states),
                       _kind(config) in _RESTARTING)


def _dims(number: int, layer: Any) -> tuple[int, int]:
    """The channels of a head's keys and values, of latents where the layer keeps these."""
    rank = getattr(layer, 'kv_lora_rank', None)
    if rank:
        dims, most = (int(rank + layer.qk_rope_head_dim), int(rank)), 576
    else:
        head_dim = int(getattr(layer, 'head_dim', None) or layer.hidden_size // layer.num_attention_heads)
        dims, most = (head_dim, int(getattr(layer, 'v_head_dim', None) or head_dim)), 512
    for what, dim, limit in (('head_dim', dims[0], most), ('value_dim', dims[1], 512)):
        if dim % 16 or not 32 <= dim <= limit:
            raise UnsupportedError(f'layer {number} has a {what} of {dim}: lowkey has multiples of 16 from 32 to '
                                   f'{limit}')
    return dims


def _latent_scale(config: Any, layer: Any) -> float:
    """The scale of the logits of heads that are expanded from latents."""
    scale = float((layer.qk_nope_head_dim + layer.qk_rope_head_dim) ** -0.5)
    rope = (getattr(config, 'rope_parameters', None) or {}) if _LATENT[_kind(config)] else {}
    factor, weight = rope.get('factor', 1), rope.get('mscale_all_dim', 0)
    if rope.get('rope_type', 'default') == 'default' or not weight or factor <= 1:
        return scale
    return scale * float(0.1 * weight * math.log(factor) + 1) ** 2


def geometry_of(config: Any, *, scale: float | None = None,
                sink_logits: Sequence[Sequence[float]] | None = None) -> Geometry:
    """The geometry of a model's configuration: its layers with attention over heads, in order. layers_of() has their
    numbers in the model.

    scale        of the logits, where the configuration does not have it
    sink_logits  [n_layers][n_query_heads] of models that learn them: see sink_logits_of()

    Raises UnsupportedError for layers that are neither full or sliding-window attention over heads nor layers with a
    state, for heads that lowkey does not have, and for models without attention."""
    model = layers_of(config)
    config = config.get_text_config(decoder=True)
    own = _per_layer(config)
    types = _layer_types(config, own)
    kv_layers, numbers = _kv_layers(config, types), {i: number for number, i in enumerate(model.attention)}
    layers = []
    for number, i in enumerate(model.attention):
        one, heads, (head_dim, value_dim) = own[i], own[i].num_attention_heads, _dims(i, own[i])
        is_latent, is_windowed = bool(getattr(one, 'kv_lora_rank', None)), _WINDOWED[types[i]]
        kv_heads = 1 if is_latent else getattr(one, 'num_key_value_heads', None) or heads
        if is_windowed:
            kv_heads *= _WINDOWED_KV_HEADS.get(model.kind, 1)
        if scale is not None:
            own_scale = scale
        else:
            own_scale = _latent_scale(config, one) if is_latent else _scale(config, head_dim)
        sinks = () if sink_logits is None else tuple(float(x) for x in sink_logits[number])
        layers.append(Layer(heads, kv_heads, head_dim, int(one.sliding_window) if is_windowed else 0, scale=own_scale,
                            soft_cap=float(getattr(config, 'attn_logit_softcapping', None) or 0.0),
                            sink_logits=sinks, kv_layer=numbers[kv_layers[i]] if i in kv_layers else None,
                            value_dim=0 if value_dim == head_dim else value_dim, latent=is_latent))
    return Geometry(tuple(layers))


def sink_logits_of(model: Any) -> list[list[float]] | None:
    """The learned sink logits of a model whose attention modules have ``sinks`` (gpt-oss), by layer, or None. The list
    of a layer without is empty."""
    found = {module.layer_idx: [] if module.sinks is None else module.sinks.detach().float().tolist()
             for module in model.modules() if hasattr(module, 'sinks') and hasattr(module, 'layer_idx')}
    return [found[i] for i in sorted(found)] if any(found.values()) else None
