# SPDX-License-Identifier: Apache-2.0
"""The shapes of the states that recurrent layers and convolutions keep, from a model's configuration."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..cache import state_bytes
from ..errors import UnsupportedError
from .geometry import layers_of

_STATE_ALIGNMENT = 16  # bytes of a state are a multiple of it: lk_cache_desc.state_bytes


class StateShape(NamedTuple):
    """The states of a layer, for one sequence.

    conv         [channels, kernel]: the last inputs of a convolution, in the model's data type
    recurrent    of the state that a recurrence advances; None = the layer is a convolution alone
    is_advanced  whether that state is in float32 whatever the model computes in; else it is an input, in the model's
                 data type
    """

    conv: tuple[int, int]
    recurrent: tuple[int, ...] | None = None
    is_advanced: bool = True


class StateTensor(NamedTuple):
    """One state of a sequence, as a tensor."""

    layer: int  # of the model
    is_recurrent: bool
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def n_bytes(self) -> int:
        """Of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def slot_bytes(self) -> int:
        """Of the state of lowkey that it lies in."""
        return -(-self.n_bytes // _STATE_ALIGNMENT) * _STATE_ALIGNMENT


def _delta(config: Any) -> StateShape:
    """Gated delta rules."""
    heads, keys, values = config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
    channels = 2 * config.linear_num_key_heads * keys + heads * values
    return StateShape((channels, config.linear_conv_kernel_dim), (heads, keys, values))


def _mamba2(n_heads: int, head_dim: int, inner: int, n_groups: int, n_states: int, kernel: int) -> StateShape:
    return StateShape((inner + 2 * n_groups * n_states, kernel), (n_heads, head_dim, n_states))


def _granite(config: Any) -> StateShape:
    inner = getattr(config, 'mamba_d_ssm', None) or int(config.mamba_expand * config.hidden_size)
    return _mamba2(config.mamba_n_heads, config.mamba_d_head, inner, config.mamba_n_groups, config.mamba_d_state,
                   config.mamba_d_conv)


def _nemotron(config: Any) -> StateShape:
    heads, head_dim = config.mamba_num_heads, config.mamba_head_dim
    return _mamba2(heads, head_dim, heads * head_dim, config.n_groups, config.ssm_state_size, config.conv_kernel)


def _zamba2(config: Any) -> StateShape:
    return _mamba2(config.n_mamba_heads, config.mamba_headdim, int(config.mamba_expand * config.hidden_size),
                   config.mamba_ngroups, config.mamba_d_state, config.mamba_d_conv)


def _jamba(config: Any) -> StateShape:
    inner = config.mamba_expand * config.hidden_size
    return StateShape((inner, config.mamba_d_conv), (inner, config.mamba_d_state))


def _zamba(config: Any) -> StateShape:
    inner, heads = config.mamba_expand * config.hidden_size, config.n_mamba_heads
    return StateShape((inner, config.mamba_d_conv), (heads, inner // heads, config.mamba_d_state))


def _lfm(config: Any) -> StateShape:
    return StateShape((config.hidden_size, config.conv_L_cache))


def _zaya(config: Any) -> StateShape:
    queries, keys = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    return StateShape((queries + keys, config.cca_time0 + config.cca_time1 - 2), (keys // 2,), is_advanced=False)


_SHAPES: dict[str, Callable[[Any], StateShape]] = {
    'qwen3_next': _delta, 'qwen3_5_text': _delta, 'qwen3_5_moe_text': _delta, 'olmo_hybrid': _delta,
    'granitemoehybrid': _granite, 'bamba': _granite, 'falcon_h1': _granite, 'nemotron_h': _nemotron, 'zamba2': _zamba2,
    'jamba': _jamba, 'zamba': _zamba, 'lfm2': _lfm, 'lfm2_moe': _lfm, 'lfm3': _lfm, 'zaya': _zaya,
}


def state_tensors(config: Any, dtype: torch.dtype | None = None) -> list[StateTensor]:
    """The states of a sequence, in the order of Cache.states: of each layer the convolution's, then the recurrent one.

    Raises UnsupportedError as geometry_of(), and for states whose shapes lowkey does not know."""
    found = layers_of(config)
    if not found.states:
        return []
    known = _SHAPES.get(found.kind)
    if known is None or any(n != 1 for n in found.states.values()):
        raise UnsupportedError(f'lowkey does not know the shapes of the states of {found.kind}')
    text = config.get_text_config(decoder=True)
    shape = known(text)
    own = dtype or getattr(config, 'dtype', None) or getattr(text, 'dtype', None) or torch.get_default_dtype()
    made = []
    for layer in found.states:
        made.append(StateTensor(layer, False, shape.conv, own))
        if shape.recurrent is not None:
            made.append(StateTensor(layer, True, shape.recurrent, torch.float32 if shape.is_advanced else own))
    return made


def states_of(config: Any, dtype: torch.dtype | None = None) -> tuple[int, ...]:
    """The bytes of each state that layers without attention over heads keep for a sequence: ``states`` of lowkey.Cache.

    config  model.config
    dtype   that the model computes in; default: the configuration's

    Empty for models of attention alone. Raises UnsupportedError as geometry_of(), and for states whose shapes lowkey
    does not know."""
    return tuple(state.slot_bytes for state in state_tensors(config, dtype))


def states_size(config: Any, n_sequences: int, dtype: torch.dtype | None = None, state_versions: int = 0) -> int:
    """Bytes that the states take of a budget, at most."""
    sizes = states_of(config, dtype)
    return state_bytes(sizes, n_sequences, state_versions=state_versions, state_interval=1) if sizes else 0
