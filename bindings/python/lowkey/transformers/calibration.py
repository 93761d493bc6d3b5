# SPDX-License-Identifier: Apache-2.0
"""Dumps of a model's keys, queries and values for ``lowkey calibrate``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from safetensors.torch import save_file

from ..errors import ArgumentError, UnsupportedError
from ..plan import Geometry
from .capture import capturing, run
from .geometry import geometry_of, sink_logits_of
from .texts import Text, ids_of

_DTYPES = {'float16': torch.float16, 'bfloat16': torch.bfloat16, 'float32': torch.float32}


class _Seen:
    """The tensors of a pass, kept until the end of its backward pass."""

    def __init__(self) -> None:
        self.layers: dict[int, dict[str, torch.Tensor]] = {}

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        self.layers[layer] = {'q': query, 'k': key, 'v': value}
        for tensor in (key, value):
            if tensor.requires_grad:
                tensor.retain_grad()

    def take(self, gradients: bool) -> Iterator[tuple[int, str, torch.Tensor]]:
        """The tensors as [n_tokens, heads, head_dim], by layer and name."""
        for layer, tensors in sorted(self.layers.items()):
            for name, tensor in tensors.items():
                yield layer, name, tensor.detach()[0].transpose(0, 1)
                if gradients and name != 'q':
                    if tensor.grad is None:
                        raise UnsupportedError(f'layer {layer} gave no gradient of its {name}')
                    yield layer, f'{name}_grad', tensor.grad[0].transpose(0, 1)
        self.layers = {}


def _refuse_reading_layers(geometry: Geometry) -> None:
    for i, own in enumerate(geometry.layers):
        if own.kv_layer is not None:
            raise UnsupportedError(f'layer {i} reads the keys and values of layer {own.kv_layer}, which a dump cannot '
                                   'say: make the plan with lowkey.transformers.plan()')


def calibrate(model: Any, texts: Iterable[Text], *, out: str | os.PathLike[str], tokenizer: Any = None,
              gradients: bool = False, position_scale: int = 1, max_tokens: int = 2048, probe: Text | None = None,
              probe_repeats: int = 30, probe_prefix: Iterable[int] = (),
              dtype: str = 'float16') -> dict[str, list[int]]:
    """Run texts through a model and write its queries, keys and values for ``lowkey calibrate``.

    texts           strings (with ``tokenizer``) or token ids, each run alone
    out             the safetensors file
    gradients       write gradients of the causal cross-entropy by K and V too, for sensitivities
    position_scale  positional interpolation: token i is at position i * position_scale, so that short texts reach
                    the angles of long ones
    max_tokens      most tokens of a text; the others are left out
    probe           a sentence that is repeated probe_repeats times after the tokens probe_prefix, to find
                    retrieval heads
    dtype           of the file: "float16", "bfloat16" or "float32"; gradients are float32

    The file has for each layer N of geometry_of(), K and Q after RoPE, all texts one after the other:

        layer.N.k, layer.N.v            [n_tokens, n_kv_heads, head_dim]
        layer.N.q                       [n_tokens, n_query_heads, head_dim]
        layer.N.k_grad, layer.N.v_grad  [n_tokens, n_kv_heads, head_dim]
        layer.N.probe_k, layer.N.probe_q

    layer.N.sink_logits where the model learns them, and the metadata of docs/CALIBRATION.md, ``texts`` (number),
    ``passes`` (tokens of each) and ``position_scale``. Everything is held in memory until it is written.
    Returns the shape of each tensor.
    """
    geometry = geometry_of(model.config, sink_logits=sink_logits_of(model))  # refuses what lowkey cannot serve
    _refuse_reading_layers(geometry)
    if dtype not in _DTYPES:
        raise ArgumentError(f'dtype is {dtype!r}, must be one of {", ".join(_DTYPES)}')
    if position_scale < 1:
        raise ArgumentError(f'position_scale is {position_scale}, must be at least 1')
    by_name: dict[str, list[torch.Tensor]] = {}
    metadata = {'format': 'pt', 'position_scale': str(position_scale)}
    lengths: list[int] = []

    def keep(name: str, tensor: torch.Tensor) -> None:
        kind = torch.float32 if name.endswith('_grad') else _DTYPES[dtype]
        limit = torch.finfo(kind).max
        bounded = torch.where(tensor.isfinite(), tensor.clamp(-limit, limit), tensor)
        by_name.setdefault(name, []).append(bounded.to(kind).cpu().contiguous())

    with capturing(model) as capture:
        seen = capture.observer = _Seen()
        n_texts = 0
        for text in texts:
            ids = ids_of(text, tokenizer)[:max_tokens]
            if len(ids) < 2:
                raise ArgumentError(f'text {n_texts} has {len(ids)} tokens')
            run(model, ids, gradients=gradients, position_scale=position_scale)
            for layer, name, tensor in seen.take(gradients):
                keep(f'layer.{layer}.{name}', tensor)
            n_texts += 1
            lengths.append(len(ids))
        metadata.update(texts=str(n_texts), passes=','.join(map(str, lengths)))
        if probe is not None:
            sentence, prefix = ids_of(probe, tokenizer), list(probe_prefix)
            run(model, prefix + sentence * probe_repeats)
            for layer, name, tensor in seen.take(False):
                if name != 'v':
                    keep(f'layer.{layer}.probe_{name}', tensor)
            metadata.update(probe_period=str(len(sentence)), probe_prefix=str(len(prefix)))
    if not by_name:
        raise ArgumentError('there are neither texts nor a probe')
    whole = {name: torch.cat(tensors) for name, tensors in by_name.items()}
    for i, own in enumerate(geometry.layers):
        metadata.update({f'layer.{i}.scale': repr(own.scale), f'layer.{i}.soft_cap': repr(own.soft_cap),
                         f'layer.{i}.window': str(own.window_tokens)})
        if own.sink_logits:
            whole[f'layer.{i}.sink_logits'] = torch.tensor(own.sink_logits)
    save_file(whole, os.fspath(out), metadata)
    return {name: list(tensor.shape) for name, tensor in whole.items()}
