# SPDX-License-Identifier: Apache-2.0
"""Files of PM-KVQ's published code: sensitivities, budgets of layers and key scales, and a plan of them.

The files are those of ``torch.save()``. They are read with ``weights_only``, so nothing in them is executed: tensors,
lists, dictionaries and numbers alone. Needs PyTorch 2.6 or later."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from .errors import ArgumentError, CorruptError
from .plan import Geometry, KeyRule, LayerRule, Plan, PlanSpec, ValueRule

WIDTHS = (16, 8, 4, 2)
_GROUP = 128
_MIB = 1 << 20


@dataclass(frozen=True)
class Sensitivities:
    """Of each layer by width: ``keys[bits][layer]`` and ``values[bits][layer]``, means over values and samples."""

    keys: dict[int, tuple[float, ...]]
    values: dict[int, tuple[float, ...]]


@dataclass(frozen=True)
class LayerBudget:
    """What the integer program gives a layer: the bytes of its codes, and the width that they stand for."""

    bytes: int
    bits: int


def _load(path: str | os.PathLike[str]) -> Any:
    try:
        import numpy
        import torch
    except ImportError as error:
        raise ArgumentError(f'{os.fspath(path)} is a file of PyTorch: install torch to read it ({error})') from error
    # Numbers of a list may be NumPy's scalars, which weights_only takes by name.
    scalar = numpy.float64(0).__reduce__()[0]
    numbers: list[Any] = [numpy.dtype, type(numpy.dtype('float64')), (scalar, 'numpy.core.multiarray.scalar'),
               (scalar, 'numpy._core.multiarray.scalar')]
    try:
        with torch.serialization.safe_globals(numbers):
            return torch.load(path, map_location='cpu', weights_only=True)
    except OSError:
        raise
    except Exception as error:  # what a broken archive raises has many types
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorruptError(f'{os.fspath(path)} is no file of tensors and numbers that can be read without executing '
                           f'code: {reason}') from error


def _refuse(path: str | os.PathLike[str], sentence: str) -> CorruptError:
    return CorruptError(f'{os.fspath(path)}: {sentence}')


def _number(path: str | os.PathLike[str], what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _refuse(path, f'{what} is a {type(value).__name__}, must be a number') from None
    if not (math.isfinite(number) and number >= 0):
        raise _refuse(path, f'{what} is {number}, must be finite and at least 0')
    return number


def _layers(path: str | os.PathLike[str], what: str, found: Any, geometry: Geometry) -> list[Any]:
    if not isinstance(found, (list, tuple)):
        raise _refuse(path, f'{what} is a {type(found).__name__}, must be a list of layers')
    if len(found) != len(geometry.layers):
        raise _refuse(path, f'{what} has {len(found)} layers, the model has {len(geometry.layers)}')
    return list(found)


def _by_width(path: str | os.PathLike[str], name: str, found: Any, geometry: Geometry) -> dict[int, tuple[float, ...]]:
    if not isinstance(found, dict) or not isinstance(found.get(name), dict):
        raise _refuse(path, f'{name} is missing: a dictionary of widths')
    out = {}
    for bits, layers in found[name].items():
        what = f'{name}[{bits}]'
        if bits not in (*WIDTHS, 1):
            raise _refuse(path, f'{what} is there, widths are 16, 8, 4, 2 and 1')
        out[int(bits)] = tuple(_number(path, f'{what} of layer {i}', x)
                               for i, x in enumerate(_layers(path, what, layers, geometry)))
    if not out:
        raise _refuse(path, f'{name} has no width')
    return out


def read_sensitivities(path: str | os.PathLike[str], geometry: Geometry) -> Sensitivities:
    """Sensitivities of get_sensitivity.py. Raises CorruptError, which names the file, the layer and what is wrong."""
    found = _load(path)
    return Sensitivities(_by_width(path, 'k_sensitivity', found, geometry),
                         _by_width(path, 'v_sensitivity', found, geometry))


def read_budgets(path: str | os.PathLike[str], geometry: Geometry, max_tokens: int = 32768) -> list[LayerBudget]:
    """Budgets of allocate_memory.py, in MiB for each layer and sequences of max_tokens tokens. Raises CorruptError."""
    out = []
    for i, found in enumerate(_layers(path, 'the list of budgets', _load(path), geometry)):
        budget = _number(path, f'the budget of layer {i}', found) * _MIB
        layer = geometry.layers[i]
        per_bit = layer.n_kv_heads * layer.head_dim * 2 * max_tokens / 8
        bits = [width for width in WIDTHS if math.isclose(budget, width * per_bit, rel_tol=1e-6)]
        if not bits:
            sizes = ', '.join(f'{width * per_bit / _MIB:g} at {width} bits' for width in WIDTHS)
            raise _refuse(path, f'the budget of layer {i} is {budget / _MIB:g} MiB; {layer.n_kv_heads} KV heads of '
                                f'{layer.head_dim} channels take {sizes} for {max_tokens} tokens')
        out.append(LayerBudget(round(budget), bits[0]))
    return out


def read_key_scales(path: str | os.PathLike[str], geometry: Geometry) -> list[list[tuple[float, ...]]]:
    """Key scales of search_rep_scales.py: [layers][KV heads] of head_dim numbers, where channels i and
    i + head_dim / 2, which RoPE turns together, have one scale. Raises CorruptError."""
    out = []
    for i, found in enumerate(_layers(path, 'the list of key scales', _load(path), geometry)):
        layer = geometry.layers[i]
        shape, wanted = tuple(getattr(found, 'shape', ())), (1, layer.n_kv_heads, 1, layer.head_dim // 2)
        if shape != wanted:
            raise _refuse(path, f'the key scales of layer {i} have the shape {shape}, must have {wanted}')
        heads = [tuple(row) * 2 for row in found.double().reshape(layer.n_kv_heads, -1).tolist()]
        for head, row in enumerate(heads):
            # 1e-4 and 1e4, the bounds of the search, in the 8 bits of a BF16 number.
            if not all(0.99e-4 <= scale <= 1.01e4 for scale in row):
                raise _refuse(path, f'key scales of layer {i}, head {head} are not all from 1e-4 to 1e4')
        out.append([tuple(min(max(scale, 1e-4), 1e4) for scale in row) for row in heads])
    return out


def pm_kvq_plan(geometry: Geometry, budgets: list[LayerBudget],
                key_scales: list[list[tuple[float, ...]]] | None = None) -> Plan:
    """The plan of the authors' files with their settings: each layer goes down to its width as its own budget fills.

    Keys per token, groups of 128 channels, one tile of sinks, no recent tokens but those that fill no page. Budgets are
    taken as they are, though lowkey counts metadata in them; a layer at its last width goes on beyond its own."""
    rules = []
    for i, (layer, budget) in enumerate(zip(geometry.layers, budgets)):
        group = _GROUP if layer.head_dim > _GROUP else 0
        keys = tuple(KeyRule(16, 'token', group, scales=key_scales[i][h] if key_scales else ())
                     for h in range(layer.n_kv_heads))
        rungs = tuple(bits for bits in WIDTHS if bits >= budget.bits)
        rules.append(LayerRule(keys, ValueRule(16, group), rungs=rungs, rung=16, budget_bytes=budget.bytes))
    return Plan.build(geometry, PlanSpec('pm-kvq', sink_tokens=16, recent_tokens=0, layers=tuple(rules)))
