# SPDX-License-Identifier: Apache-2.0
"""The attention function "lowkey" of transformers, and how a model is switched to it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..errors import StateError, UnsupportedError
from .batch import NextPass
from .spans import read_mask

if TYPE_CHECKING:
    from .cache import LowkeyCache

NAME = 'lowkey'
_TAG = '_lowkey_source'
_held = threading.local()  # latents on their way from a cache to the attention function


def tag(key: torch.Tensor, cache: LowkeyCache, layer: int) -> torch.Tensor:
    """Attach the cache to the new keys of a layer, because the attention function gets the keys but not the cache."""
    setattr(key, _TAG, (cache, layer))
    return key


def hold(cache: LowkeyCache, layer: int, latent: torch.Tensor, rotated: torch.Tensor) -> None:
    """Keep the new latents of a layer for the attention function, which gets the keys and values of heads that the
    model expands from them."""
    _held.latent = cache, layer, torch.cat((latent, rotated), -1)


def _take_latent(module: torch.nn.Module, key: torch.Tensor) -> tuple[LowkeyCache, int, torch.Tensor] | None:
    """What hold() kept for this layer's keys."""
    held, _held.latent = getattr(_held, 'latent', None), None
    if held is None or held[0].numbers.get(getattr(module, 'layer_idx', -1)) != held[1] \
            or held[2].shape[2] != key.shape[2]:
        return None
    found: tuple[LowkeyCache, int, torch.Tensor] = held
    return found


def _attend_latent(module: Any, held: tuple[LowkeyCache, int, torch.Tensor], query: torch.Tensor,
                   mask: torch.Tensor | None, options: dict[str, Any]) -> torch.Tensor:
    """Attention over latents: queries are multiplied by the weights that expand latents to keys, outputs by those that
    expand them to values (DeepSeek V2, section 2.1.2: absorbed weights)."""
    cache, layer, latent = held
    nope, width = module.qk_nope_head_dim, module.v_head_dim
    weight = module.kv_b_proj.weight
    if not weight.is_floating_point():
        raise UnsupportedError(f'layer {layer} expands its latents by weights of {weight.dtype}: lowkey needs those of '
                               'kv_b_proj in floating point')
    to_keys, to_values = weight.detach().view(query.shape[1], nope + width, -1).split((nope, width), 1)
    absorbed = torch.cat((query[..., :nope] @ to_keys, query[..., nope:]), -1)
    out = cache._attend(layer, absorbed, latent, None, mask, options).transpose(1, 2)
    expanded: torch.Tensor = out @ to_values.transpose(1, 2)
    return expanded.transpose(1, 2)


# The cache that a pass was announced to, until the model makes the pass's mask: a mask function gets no cache.
_announced = threading.local()


def announce(cache: LowkeyCache) -> None:
    """The mask that the model makes next is of a pass over the cache."""
    _announced.cache = weakref.ref(cache)


def _show(found: torch.Tensor | None, batch_size: int, q_length: int, options: dict[str, Any]) -> None:
    """Give the mask of a pass to the cache that the pass was announced to."""
    cache = getattr(_announced, 'cache', lambda: None)()
    _announced.cache = lambda: None
    if cache is None:
        return
    device, dtype = options['device'], options['dtype']
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    cache._see(NextPass(device, dtype, batch_size, q_length, found))


def attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attention_mask: torch.Tensor | None, scaling: float | None = None, dropout: float = 0.0,
              **options: Any) -> tuple[torch.Tensor, None]:
    """Attention of a layer over its LowkeyCache.

    query       [batch, n_query_heads, n_tokens, head_dim]
    key, value  [batch, n_kv_heads, n_tokens, head_dim], of the new tokens, as LowkeyCache.update() returns them

    Returns [batch, n_tokens, n_query_heads, head_dim].
    """
    source, held = getattr(key, _TAG, None), _take_latent(module, key)
    if dropout:
        raise UnsupportedError(f'attention dropout is {dropout}: call model.eval()')
    if held is not None:
        return _attend_latent(module, held, query, attention_mask, dict(options, scaling=scaling)), None
    if source is None:
        raise StateError('attention "lowkey" runs on a LowkeyCache: pass past_key_values=LowkeyCache(...), or run the '
                         "model's own attention in `with cache.paused():`, or close the cache")
    cache, layer = _cache_and_layer(module, source)
    if options.get('position_bias') is not None:
        raise UnsupportedError(f'layer {layer} adds a position bias to its logits')
    return cache._attend(layer, query, key, value, attention_mask, dict(options, scaling=scaling)), None


def _cache_and_layer(module: torch.nn.Module, source: tuple[LowkeyCache, int]) -> tuple[LowkeyCache, int]:
    """The cache that keys come from, and the layer of its geometry that attends to them: the layer of the keys, or one
    that reads them."""
    cache, kv_layer = source
    number = cache.numbers.get(getattr(module, 'layer_idx', -1))
    if number is not None and cache.geometry.layers[number].kv_layer == kv_layer:
        return cache, number
    return cache, kv_layer


def mask(batch_size: int, q_length: int, kv_length: int, attention_mask: torch.Tensor | None = None,
         **options: Any) -> torch.Tensor | None:
    """The padding mask [batch, 1, 1, n_tokens so far] if it hides a token, else None: attention is causal by itself. It
    has a dimension for queries because Gemma 4 slices its masks there. Of a model whose mask is not causal the whole
    mask [batch, 1, q_length, n_tokens so far], whose spans the cache finds."""
    is_causal = options.get('allow_is_causal_skip') is not False
    if options.get('allow_is_bidirectional_skip') is not None or (not is_causal and q_length == 1):
        raise UnsupportedError('the model needs a mask that is not causal (packed sequences, blocks or both '
                               'directions)')
    if not is_causal:
        return read_mask(options['mask_function'], batch_size, q_length, kv_length, int(options.get('q_offset', 0)),
                         attention_mask, options.get('device'))
    found = None
    if attention_mask is not None and not bool(attention_mask.all()):
        found = attention_mask.bool()[:, None, None]
    _show(found, batch_size, q_length, options)
    return found


ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, mask)

# Configurations that caches have switched: the attention before, and the number of open caches.
_switched: dict[int, list[Any]] = {}


class Switch:
    """Switches a configuration to the attention "lowkey"; the last open cache undoes that."""

    def __init__(self, config: Any, owner: Any):
        entry = _switched.setdefault(id(config), [config, config._attn_implementation, 0])
        entry[2] += 1
        config._attn_implementation = NAME
        self._key = id(config)
        self.undo = weakref.finalize(owner, _undo, self._key)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The configuration's attention before all open caches; the end sets "lowkey" again, if one is open then."""
        config, before, _ = _switched[self._key]
        config._attn_implementation = before
        try:
            yield
        finally:
            if self._key in _switched:
                config._attn_implementation = NAME


def _undo(key: int) -> None:
    entry = _switched[key]
    entry[2] -= 1
    if not entry[2]:
        config, before, _ = _switched.pop(key)
        if config._attn_implementation == NAME:
            config._attn_implementation = before
