# SPDX-License-Identifier: Apache-2.0
"""Statistics of a model's keys, queries and values, and plans made from them (docs/CALIBRATION.md)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _abi
from ._fields import Fields, number_of
from ._handle import Handle
from ._library import check, library
from .arrays import Tensor
from .errors import ArgumentError
from .plan import AXES, METADATA, ONE_BIT, Geometry, Layer, Plan

STATISTICS = {'key_min': 1, 'key_max': 2, 'key_range': 3, 'key_mean': 4, 'key_magnitude': 5, 'query_magnitude': 6}
SCOPES = {'head': 1, 'layer': 2}
RETRIEVAL = {'none': 1, 'key': 2, 'key-value': 3}
SENSITIVITIES = {'gradient': 1, 'output': 2}
PAIRINGS = {'rotate-half': 1, 'interleaved': 2}
POSITION_SCALE = 4  #: factor of the positions in PM-KVQ's positional interpolation
SCALE_EXPONENTS = 21
_OWN_KV = _abi.CONSTANTS['LK_OWN_KV']
COST_CLIPS = (0.85, 0.7)  #: the clips that costs are measured with
CHANNELS = {1: 'subnormal', 2: 'normal', 3: 'outlier'}


@dataclass(frozen=True)
class Probe(Fields):
    """A probe: a sentence of period_tokens tokens that is repeated after prefix_tokens other tokens.

    sink_tokens   first keys that do not count, the prefix included
    local_tokens  last keys of a query that do not count, at most period_tokens - 1
    """

    _struct = _abi.Probe

    period_tokens: int
    prefix_tokens: int = 0
    sink_tokens: int = 16
    local_tokens: int = 64


@dataclass(frozen=True)
class ChanMix(Fields):
    """Options of a ChanMix plan; <lowkey/chanmix.h> defines each field.

    retrieval        pages of retrieval heads that are kept at 4 bits: "none", "key" or "key-value"
    scope            whose channels are clustered together: those of a "head" or of a "layer"
    outliers         outliers get 3 bits, and as many subnormals 1 bit
    centers          keys are stored without their mean
    retrieval_share  share of all KV heads that are retrieval heads; -1: 0.3, or 0.19 without groups
    budget_bytes     most bytes of a cache of budget_sequences x budget_tokens; 0 = no limit
    """

    _struct = _abi.ChanMix
    _tables = {'retrieval': RETRIEVAL, 'scope': SCOPES, 'metadata': METADATA, 'one_bit': ONE_BIT}

    retrieval: str = 'key-value'
    scope: str = 'head'
    outliers: bool = True
    centers: bool = True
    metadata: str = 'f8'
    group: int = 32
    sink_tokens: int = 32
    recent_tokens: int = 128
    retrieval_share: float = -1.0
    budget_bytes: int = 0
    budget_tokens: int = 8192
    budget_sequences: int = 1
    budget_step_tokens: int = 512
    one_bit: str = 'deviation'


@dataclass(frozen=True)
class Auto(Fields):
    """Options of the planner auto; <lowkey/auto.h> defines each field.

    centers         keys are stored without their mean
    bits_per_value  most bits of a packed value, ranges and minima included; 0 = no limit
    budget_bytes    most bytes of a cache of budget_sequences x budget_tokens; 0 = no limit. One of the two limits is
                    needed
    """

    _struct = _abi.Auto

    centers: bool = True
    sink_tokens: int = 32
    recent_tokens: int = 128
    bits_per_value: float = 0.0
    budget_bytes: int = 0
    budget_tokens: int = 8192
    budget_sequences: int = 1
    budget_step_tokens: int = 512


@dataclass(frozen=True)
class PmKvq(Fields):
    """Options of a PM-KVQ plan; <lowkey/pmkvq.h> defines each field.

    budget_bytes  bytes of the whole cache when each of budget_sequences has budget_tokens
    widths        final widths of a layer to choose from, out of 16, 8, 4 and 2
    sensitivity   "gradient", "output", or None: gradients where all layers have gradient samples
    scope         which heads have one final width: all of a "layer", or each "head" its own
    separate_values  keys and values have final widths of their own
    key_axis      "channel", or "token" as published
    group         channels of a token in a group; 0 = the head
    key_scales    keys are divided by the scales that the searches found
    layer_budgets  each layer has its own share of the budget and shrinks when that is full, as the authors run it
    """

    _struct = _abi.PmKvq
    _tables = {'scope': SCOPES, 'key_axis': AXES, 'sensitivity': SENSITIVITIES}

    budget_bytes: int
    widths: tuple[int, ...] = (4, 2)
    sensitivity: str | None = None
    scope: str = 'layer'
    separate_values: bool = False
    key_axis: str = 'channel'
    group: int = 0
    key_scales: bool = False
    sink_tokens: int = 32
    recent_tokens: int = 128
    budget_tokens: int = 32768
    budget_sequences: int = 1
    budget_step_tokens: int = 512
    layer_budgets: bool = False

    def raw(self) -> Any:
        raw, n = super().raw(), len(self.widths)
        raw.n_widths, raw.widths[:n] = n, sorted(self.widths, reverse=True)
        return raw


@dataclass(frozen=True)
class Rope(Fields):
    """How positions rotate keys and queries.

    pairing      pairs of channels: i and i + channels / 2 ("rotate-half"), or 2 i and 2 i + 1 ("interleaved")
    channels     how many first channels of a head rotate; 0 = all
    base         frequency i is base ** (-2 i / channels)
    frequencies  the frequency of each pair, instead of base
    """

    _struct = _abi.Rope
    _tables = {'pairing': PAIRINGS}

    pairing: str = 'rotate-half'
    channels: int = 0
    base: float = 10000.0
    frequencies: tuple[float, ...] = ()

    def _rotate(self, name: str, samples: Any, first_position: int, position_scale: float) -> Any:
        tensor = samples if isinstance(samples, Tensor) else Tensor(samples)
        if len(tensor.shape) != 3:
            raise ArgumentError(f'samples have shape {list(tensor.shape)}, must be [n_tokens, n_heads, head_dim]')
        n_tokens, n_heads, head_dim = tensor.shape
        if self.frequencies and len(self.frequencies) != (self.channels or head_dim) // 2:
            raise ArgumentError(f'{len(self.frequencies)} frequencies of {self.channels or head_dim} channels')
        out = (ctypes.c_float * (n_tokens * n_heads * head_dim))()
        check(getattr(library(), name)(_abi.byref(self.raw()), tensor.reference, n_tokens, n_heads, head_dim,
                                       first_position, position_scale, out))
        return memoryview(out).cast('B').cast('f', (n_tokens, n_heads, head_dim))

    def apply(self, samples: Any, *, first_position: int = 0, position_scale: float = 1.0) -> Any:
        """Rotate [n_tokens, n_heads, head_dim] to their positions: a new float32 buffer, which NumPy uses as it is.

        Token t is at (first_position + t) * position_scale; PM-KVQ's positional interpolation has POSITION_SCALE."""
        return self._rotate('lk_rope_apply', samples, first_position, position_scale)

    def invert(self, samples: Any, *, first_position: int = 0, position_scale: float = 1.0) -> Any:
        """Undo apply()."""
        return self._rotate('lk_rope_invert', samples, first_position, position_scale)


@dataclass(frozen=True)
class ScaleSearch(Fields):
    """Options of the search for a layer's key scales: pairs of channels, widths, every query_step-th query."""

    _struct = _abi.ScaleSearch
    _tables = {'pairing': PAIRINGS}

    pairing: str = 'rotate-half'
    channels: int = 0
    key_bits: int = 4
    value_bits: int = 4
    query_step: int = 1


class KeyScales(NamedTuple):
    """The key scale of each channel of a KV head, and the exponent by which they follow from the largest keys."""

    scales: list[float]
    exponent: float


def key_scales(maxima: Sequence[float], exponent: float) -> list[float]:
    """Key scales: maxima ** exponent from 1e-4 to 1e4, and 1 where a maximum is 0."""
    n = len(maxima)
    values = (ctypes.c_float * n)(*maxima)
    check(library().lk_key_scales(values, n, exponent, values))
    return list(values)


def solve_widths(costs: Sequence[Sequence[float]], sizes: Sequence[Sequence[int]], budget: int) -> list[int]:
    """Choose a width for each layer, head or page kind within a budget, with the least sum of costs: exactly.

    costs, sizes  [n_items][n_choices], sizes in bytes

    Returns the index of each choice. Raises BudgetError (even the smallest sizes do not fit), ArgumentError."""
    n, choices = len(costs), {len(choice) for choice in (*costs, *sizes)}
    if len(sizes) != n or len(choices) != 1:
        raise ArgumentError('costs and sizes must be [n_items][n_choices] both')
    width = choices.pop()
    out = (ctypes.c_uint32 * n)()
    check(library().lk_solve_widths(n, width, (ctypes.c_double * (n * width))(*(x for choice in costs for x in choice)),
                                    (ctypes.c_uint64 * (n * width))(*(x for choice in sizes for x in choice)), budget,
                                    out, None))
    return list(out)


class SampleCounts(NamedTuple):
    """How many tokens of keys and of queries a layer got, and how many queries count in retrieval scores."""

    keys: int
    queries: int
    probe_rows: int


class Calibrator:
    """Statistics of a model, from samples of its keys and queries after RoPE in host memory.

    geometry  the model's layers

    Arrays are of the types that Step.append() takes. Any number of calls may come in any order; calls of several
    threads wait for each other.
    """

    def __init__(self, geometry: Geometry):
        box = ctypes.c_void_p()
        check(library().lk_calibrator_create(_abi.byref(geometry.raw()), _abi.byref(box)))
        self._own(box, geometry)

    def _own(self, box: ctypes.c_void_p, geometry: Geometry) -> None:
        lk = self._lk = library()
        self.geometry = geometry
        self._handle = Handle('calibrator', box, lambda pointer: lk.lk_calibrator_destroy(_abi.byref(pointer)))
        weakref.finalize(self, self._handle.destroy)

    @classmethod
    def from_bytes(cls, data: bytes) -> Calibrator:
        """Read statistics from untrusted bytes; more samples may be added. Raises CorruptError, MismatchError."""
        lk, box, n = library(), ctypes.c_void_p(), ctypes.c_uint32()
        check(lk.lk_calibrator_from_bytes(data, len(data), _abi.byref(box)))
        made = cls.__new__(cls)
        made._own(box, Geometry(()))
        check(lk.lk_calibrator_get_geometry(box, None, 0, _abi.byref(n)))
        layers = (_abi.Layer * n.value)()
        for layer in layers:
            check(lk.lk_layer_init(_abi.byref(layer), ctypes.sizeof(layer)))
        check(lk.lk_calibrator_get_geometry(box, layers, n.value, _abi.byref(n)))
        made.geometry = Geometry(tuple(
            Layer(one.n_query_heads, one.n_kv_heads, one.head_dim, one.window_tokens, one.window_sink_tokens,
                  one.scale, one.soft_cap, kv_layer=None if one.kv_layer == _OWN_KV else one.kv_layer)
            for one in layers))
        return made

    def to_bytes(self) -> bytes:
        """The statistics as a safetensors file."""
        needed = ctypes.c_size_t()
        with self._handle.lock:
            pointer = self._handle.get()
            check(self._lk.lk_calibrator_to_bytes(pointer, None, 0, _abi.byref(needed)))
            buffer = (ctypes.c_uint8 * needed.value)()
            check(self._lk.lk_calibrator_to_bytes(pointer, buffer, needed.value, _abi.byref(needed)))
        return bytes(buffer)

    def close(self) -> None:
        """Free the statistics. Closing twice is fine."""
        self._handle.close()

    def __enter__(self) -> Calibrator:
        self._handle.get()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, function: Any, *arguments: Any) -> None:
        with self._handle.lock:
            check(function(self._handle.get(), *arguments))

    def _samples(self, layer: int, array: Any, what: str) -> Tensor:
        if not 0 <= layer < len(self.geometry.layers):
            raise ArgumentError(f'layer {layer} of {len(self.geometry.layers)}')
        own = self.geometry.layers[layer]
        tensor = array if isinstance(array, Tensor) else Tensor(array)
        wanted = (own.n_query_heads if what == 'queries' else own.n_kv_heads, own.head_dim)
        if tensor.shape[1:] != wanted:
            raise ArgumentError(f'{what} have shape {list(tensor.shape)}, layer {layer} needs [n_tokens, {wanted[0]} '
                                f'heads, {wanted[1]} channels]')
        return tensor

    def _pass(self, layer: int, **arrays: Any) -> list[Tensor]:
        tensors = [self._samples(layer, array, what) for what, array in arrays.items()]
        if len({tensor.shape[0] for tensor in tensors}) > 1:
            *most, last = (f'{tensor.shape[0]} {what}' for what, tensor in zip(arrays, tensors))
            raise ArgumentError(f'{", ".join(most)} and {last} of one pass')
        return tensors

    def add_keys(self, layer: int, keys: Any) -> None:
        """Add keys [n_tokens, n_kv_heads, head_dim] of a layer. Raises DataError naming an infinity or a NaN."""
        tensor = self._samples(layer, keys, 'keys')
        self._call(self._lk.lk_calibrator_add_keys, layer, tensor.reference, tensor.shape[0])

    def add_queries(self, layer: int, queries: Any) -> None:
        """Add queries [n_tokens, n_query_heads, head_dim] of a layer."""
        tensor = self._samples(layer, queries, 'queries')
        self._call(self._lk.lk_calibrator_add_queries, layer, tensor.reference, tensor.shape[0])

    def add_probe(self, layer: int, probe: Probe, queries: Any, keys: Any) -> None:
        """Add a layer's attention in the pass of a probe to its heads' retrieval scores.

        queries  [n_tokens, n_query_heads, head_dim]
        keys     [n_tokens, n_kv_heads, head_dim], of all tokens of the pass"""
        q, k = self._pass(layer, queries=queries, keys=keys)
        self._call(self._lk.lk_calibrator_add_probe, layer, _abi.byref(probe.raw()), q.reference, k.reference,
                   q.shape[0])

    def add_gradients(self, layer: int, samples: Any, gradients: Any, *, value: bool = False) -> None:
        """Add keys, or values, with the gradients of a loss by them, for the sensitivity to each width.

        samples, gradients  [n_tokens, n_kv_heads, head_dim]"""
        x, gradient = self._pass(layer, samples=samples, gradients=gradients)
        self._call(self._lk.lk_calibrator_add_gradients, layer, int(value), x.reference, gradient.reference,
                   x.shape[0])

    def add_attention(self, layer: int, queries: Any, keys: Any, values: Any) -> None:
        """The same without gradients: from the error in the layer's output over one causal pass.

        queries       [n_tokens, n_query_heads, head_dim]
        keys, values  [n_tokens, n_kv_heads, head_dim]"""
        q, k, v = self._pass(layer, queries=queries, keys=keys, values=values)
        self._call(self._lk.lk_calibrator_add_attention, layer, q.reference, k.reference, v.reference, q.shape[0])

    def sensitivity(self, layer: int, kv_head: int, bits: int, *, value: bool = False, kind: str = 'gradient') -> float:
        """The sensitivity of a KV head's keys, or values, to 16, 8, 4 or 2 bits, for solve_widths().

        kind  "gradient" or "output". Raises StateError without samples of the kind."""
        out = ctypes.c_double()
        self._call(self._lk.lk_calibrator_get_sensitivity, layer, kv_head, int(value),
                   number_of(SENSITIVITIES, kind, 'kind'), bits, _abi.byref(out))
        return out.value

    def set_costs(self, layer: int, costs: Sequence[tuple[float, float]]) -> None:
        """Set the measured costs of 2 bits for the keys and for the values of each KV head; auto() uses them.

        costs  (keys, values) of each KV head, in any unit that is the same for all layers"""
        self._set_costs(self._lk.lk_calibrator_set_costs, layer, costs)

    def costs(self, layer: int) -> list[tuple[float, float]]:
        """The costs of the last set_costs(). Raises StateError before the first."""
        values = self._get_costs(self._lk.lk_calibrator_get_costs, layer, 1)
        return list(zip(values[::2], values[1::2]))

    def set_clip_costs(self, layer: int, costs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> None:
        """Set the same costs with ranges clipped to each of COST_CLIPS; auto() chooses the clip of least cost.

        costs  (keys, values) of each KV head, each with a number for every clip, in the unit of set_costs()"""
        self._set_costs(self._lk.lk_calibrator_set_clip_costs, layer, [(*keys, *values) for keys, values in costs],
                        len(COST_CLIPS))

    def clip_costs(self, layer: int) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
        """The costs of the last set_clip_costs(). Raises StateError before the first."""
        n = len(COST_CLIPS)
        values = self._get_costs(self._lk.lk_calibrator_get_clip_costs, layer, n)
        by_page = [tuple(values[i:i + n]) for i in range(0, len(values), n)]  # K, V of each head
        return list(zip(by_page[::2], by_page[1::2]))

    def _set_costs(self, call: Any, layer: int, costs: Sequence[Sequence[float]], n_clips: int = 1) -> None:
        n = self._kv_heads(layer)
        if len(costs) != n:
            raise ArgumentError(f'costs are of {len(costs)} KV heads, layer {layer} has {n}')
        for of_head in costs:
            if len(of_head) != 2 * n_clips:
                raise ArgumentError(f'{len(of_head)} costs of a KV head, must be {2 * n_clips}')
        numbers = [float(cost) for of_head in costs for cost in of_head]
        self._call(call, layer, (ctypes.c_double * len(numbers))(*numbers))

    def _get_costs(self, call: Any, layer: int, n_clips: int) -> list[float]:
        values = (ctypes.c_double * (2 * n_clips * self._kv_heads(layer)))()
        self._call(call, layer, values)
        return list(values)

    def counts(self, layer: int) -> SampleCounts:
        """How many samples a layer got."""
        numbers = [ctypes.c_uint64() for _ in range(3)]
        self._call(self._lk.lk_calibrator_get_counts, layer, *(_abi.byref(n) for n in numbers))
        return SampleCounts(*(n.value for n in numbers))

    def channels(self, layer: int, kv_head: int, statistic: str) -> list[float]:
        """A statistic of every channel: "key_min", "key_max", "key_range", "key_mean", "key_magnitude" or
        "query_magnitude". Raises StateError without such samples."""
        number = number_of(STATISTICS, statistic, 'statistic')
        values = (ctypes.c_float * self._head_dim(layer))()
        self._call(self._lk.lk_calibrator_get_channels, layer, kv_head, number, values)
        return list(values)

    def classes(self, layer: int, kv_head: int, scope: str = 'head') -> list[str]:
        """The class of every channel by its range: "subnormal", "normal" or "outlier"."""
        values = (ctypes.c_uint8 * self._head_dim(layer))()
        self._call(self._lk.lk_calibrator_get_classes, layer, kv_head, number_of(SCOPES, scope, 'scope'), values, None)
        return [CHANNELS[value] for value in values]

    def retrieval(self, layer: int, kv_head: int) -> float:
        """The retrieval score of a KV head, 0 to 1. Raises StateError without a probe."""
        score = ctypes.c_float()
        self._call(self._lk.lk_calibrator_get_retrieval, layer, kv_head, _abi.byref(score))
        return score.value

    def _kv_heads(self, layer: int) -> int:
        return self.geometry.layers[layer].n_kv_heads if 0 <= layer < len(self.geometry.layers) else 1

    def _head_dim(self, layer: int) -> int:
        # For an index without a layer, the call that gets this buffer refuses.
        return self.geometry.layers[layer].head_dim if 0 <= layer < len(self.geometry.layers) else 1

    def pair_maxima(self, layer: int, kv_head: int, pairing: str = 'rotate-half', channels: int = 0) -> list[float]:
        """For each channel, the largest abs K of its RoPE pair."""
        values = (ctypes.c_float * self._head_dim(layer))()
        self._call(self._lk.lk_calibrator_get_pair_maxima, layer, kv_head, number_of(PAIRINGS, pairing, 'pairing'),
                   channels, values)
        return list(values)

    def add_scale_search(self, layer: int, queries: Any, keys: Any, values: Any,
                         search: ScaleSearch | None = None) -> None:
        """Add a causal pass of a layer to its search for key scales, after the layer's keys. Raises MismatchError when
        search differs from the first one of the layer.

        queries       [n_tokens, n_query_heads, head_dim]
        keys, values  [n_tokens, n_kv_heads, head_dim]"""
        q, k, v = self._pass(layer, queries=queries, keys=keys, values=values)
        raw = (search or ScaleSearch()).raw()
        self._call(self._lk.lk_calibrator_add_scale_search, layer, _abi.byref(raw), q.reference, k.reference,
                   v.reference, q.shape[0])

    def scale_errors(self, layer: int) -> dict[float, float]:
        """The error of each exponent of the search, relative to that of exponent 0."""
        out = {}
        for index in range(SCALE_EXPONENTS):
            exponent, error = ctypes.c_double(), ctypes.c_double()
            self._call(self._lk.lk_calibrator_get_scale_error, layer, index, _abi.byref(exponent), _abi.byref(error))
            out[exponent.value] = error.value
        return out

    def key_scales(self, layer: int, kv_head: int) -> KeyScales:
        """The scales of least error. Raises StateError without a search."""
        values, exponent = (ctypes.c_float * self._head_dim(layer))(), ctypes.c_double()
        self._call(self._lk.lk_calibrator_get_key_scales, layer, kv_head, values, _abi.byref(exponent))
        return KeyScales(list(values), exponent.value)

    def _plan(self, make: Any, options: Fields) -> Plan:
        box = ctypes.c_void_p()
        self._call(make, _abi.byref(options.raw()), _abi.byref(box))
        return Plan(box, self.geometry)

    def pm_kvq(self, options: PmKvq) -> Plan:
        """A PM-KVQ plan of the sensitivities. Raises StateError (samples are missing), BudgetError (the sentence has
        the bytes that suffice), ArgumentError."""
        return self._plan(self._lk.lk_calibrator_pmkvq, options)

    def chanmix(self, options: ChanMix | None = None) -> Plan:
        """A ChanMix plan of the statistics. Raises StateError (samples are missing), BudgetError, ArgumentError."""
        return self._plan(self._lk.lk_calibrator_chanmix, options or ChanMix())

    def auto(self, options: Auto) -> Plan:
        """The plan of the least error within a limit. Raises StateError (samples are missing), BudgetError,
        ArgumentError."""
        return self._plan(self._lk.lk_calibrator_auto, options)
