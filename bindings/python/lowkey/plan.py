# SPDX-License-Identifier: Apache-2.0
"""The geometry of a model and the quantization plan of its cache. Needs no device."""

from __future__ import annotations

import ctypes
import json
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _abi
from ._fields import Fields, number_of
from ._handle import Handle
from ._library import check, library
from .errors import ArgumentError, CorruptError, FileError, MismatchError, NotFoundError

ALL = _abi.CONSTANTS['LK_ALL']  #: as a layer or KV head of a plan's setter: all of them
AXES = {'channel': 1, 'token': 2}
RANKINGS = {'': 0, 'key': 1, 'query-range': 2}
ONE_BIT = {'deviation': 1, 'range': 2}
METADATA = {'f16': 1, 'f8': 2}
ROTATIONS = {'none': 0, 'hadamard': 1}
CHUNK_CLASSES = {'none': 0, 'low': 1, 'middle': 2, 'high': 3}


@dataclass(frozen=True)
class Layer:
    """One attention layer of a model.

    n_query_heads       a multiple of n_kv_heads, up to 1024 times as many
    head_dim            channels of queries and keys: a multiple of 16 from 32 to 512, to 576 in a latent layer
    window_tokens       a query attends to this many last tokens, itself included; 0 = all
    window_sink_tokens  first tokens that stay visible outside the window
    scale               of the logits; 0 = 1 / sqrt(head_dim)
    soft_cap            logits become soft_cap * tanh(logit / soft_cap); 0 = off
    sink_logits         [n_query_heads] a learned logit that joins each softmax; empty = none
    kv_layer            the earlier layer whose keys and values this one reads: it has no append, no bytes and the
                        rules of that layer; None = its own
    value_dim           channels of values and outputs; 0 = head_dim
    latent              the values are the first value_dim channels of the keys: the layer has keys alone, and no rule
                        for values
    """

    n_query_heads: int
    n_kv_heads: int
    head_dim: int
    window_tokens: int = 0
    window_sink_tokens: int = 0
    scale: float = 0.0
    soft_cap: float = 0.0
    sink_logits: tuple[float, ...] = ()
    kv_layer: int | None = None
    value_dim: int = 0
    latent: bool = False

    @property
    def output_dim(self) -> int:
        """Channels of values and outputs."""
        return self.value_dim or self.head_dim


@dataclass(frozen=True)
class Geometry:
    """A model's attention layers."""

    layers: tuple[Layer, ...]

    @property
    def kv_layers(self) -> tuple[int, ...]:
        """The layers with keys and values of their own; the others read those of an earlier one."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.kv_layer in (None, i))

    @classmethod
    def uniform(cls, n_layers: int, n_query_heads: int, n_kv_heads: int, head_dim: int, **layer: Any) -> Geometry:
        """The same layer n_layers times. ``layer`` takes the other fields of Layer."""
        return cls((Layer(n_query_heads, n_kv_heads, head_dim, **layer),) * n_layers)

    def raw(self) -> _abi.Geometry:
        """The C struct. It keeps the memory that it points to alive."""
        lk = library()
        raw = lk.start(_abi.Geometry)
        layers = (_abi.Layer * len(self.layers))()
        keep = []
        for i, layer in enumerate(self.layers):
            # The size of the first element is the distance of all, so each is initialized.
            check(lk.lk_layer_init(_abi.byref(layers[i]), ctypes.sizeof(_abi.Layer)))
            for name in ('n_query_heads', 'n_kv_heads', 'head_dim', 'window_tokens', 'window_sink_tokens', 'scale',
                         'soft_cap', 'value_dim'):
                setattr(layers[i], name, getattr(layer, name))
            layers[i].flags = _abi.CONSTANTS['LK_LAYER_LATENT'] if layer.latent else 0
            if layer.kv_layer is not None:
                layers[i].kv_layer = layer.kv_layer
            if layer.sink_logits:
                if len(layer.sink_logits) != layer.n_query_heads:
                    raise ArgumentError(f'layer {i} has {len(layer.sink_logits)} sink_logits and '
                                        f'{layer.n_query_heads} query heads')
                keep.append((ctypes.c_float * layer.n_query_heads)(*layer.sink_logits))
                layers[i].sink_logits = keep[-1]
        raw.n_layers, raw.layers = len(self.layers), layers
        raw.keep = (layers, keep)
        return raw


@dataclass(frozen=True)
class KeyRule(Fields):
    """How keys of a KV head are kept.

    bits            width of channels without a boost or a channel class: 1, 2, 3, 4, 8 or 16
    axis            "channel": consecutive tokens of a channel are a group; "token": channels of a token
    group           tokens (axis "channel") or channels (axis "token") of a group; 0 = the page or the head
    boost_channels  channels of each page that are kept at boost_bits; 0 = none
    boost_ranking   "key" (mean of abs K) or "query-range" (mean of abs Q times range of K)
    channel_bits    [head_dim] channel classes instead of a boost, or empty
    centers         [head_dim] subtracted from the keys before they are stored, or empty; logits do not change
    one_bit         the values of 1-bit codes: "deviation" (mean of the group - and + its mean absolute deviation) or
                    "range" (lowest and highest)
    scales          [head_dim] divisors of the keys before they are stored, or empty; logits do not change
    clip            share of its range, about the midpoint, that a group packed at 2 bits keeps; 1 = the whole range
    """

    _struct = _abi.KeyRule
    _tables = {'axis': AXES, 'boost_ranking': RANKINGS, 'one_bit': ONE_BIT}

    bits: int = 16
    axis: str = 'channel'
    group: int = 0
    boost_channels: int = 0
    boost_bits: int = 0
    boost_ranking: str = ''
    channel_bits: tuple[int, ...] = ()
    centers: tuple[float, ...] = ()
    one_bit: str = 'deviation'
    scales: tuple[float, ...] = ()
    clip: float = 1.0


@dataclass(frozen=True)
class ValueRule(Fields):
    """How values of a KV head are kept: at ``bits``, in groups of ``group`` consecutive channels of a token (0 = the
    head); ``one_bit`` and ``clip`` as for keys."""

    _struct = _abi.ValueRule
    _tables = {'one_bit': ONE_BIT}

    bits: int = 16
    group: int = 0
    one_bit: str = 'deviation'
    clip: float = 1.0


@dataclass(frozen=True)
class LayerRule:
    """The rules of one layer.

    key, value  one rule for all KV heads, or a rule for each
    metadata    number format of ranges and minima: "f16" or "f8"
    rungs       the layer's ladder: widths out of 16, 8, 4, 2, descending; empty = no ladder
    rung        the rung at which the layer packs new pages
    order       shrink order: among layers at one rung, the lowest shrinks first
    budget_bytes  of the layer's pages in the whole cache; 0 = the layer has no budget of its own
    key_rotation  what turns the keys of all KV heads, and queries, before packing: "none" or "hadamard"; logits do
                  not change
    """

    key: KeyRule | tuple[KeyRule, ...] = KeyRule()
    value: ValueRule | tuple[ValueRule, ...] = ValueRule()
    metadata: str = 'f16'
    rungs: tuple[int, ...] = ()
    rung: int = 0
    order: int = 0
    budget_bytes: int = 0
    key_rotation: str = 'none'


@dataclass(frozen=True)
class ChunkRule(Fields):
    """Classes of a context's chunks (Cocktail); see lk_chunk_rule.

    low_bits ... high_bits  upper limits of the widths of a class: 2, 4, 8 or 16, ascending
    alpha, beta             set the thresholds between the classes; from 0, with a sum below 1
    reorder                 pages of one class are neighbours
    hold                    tokens after the context stay at 16 bits
    """

    _struct = _abi.ChunkRule

    chunk_tokens: int = 32
    low_bits: int = 2
    middle_bits: int = 4
    high_bits: int = 16
    alpha: float = 0.6
    beta: float = 0.1
    reorder: bool = True
    hold: bool = True


@dataclass(frozen=True)
class PlanSpec:
    """A plan as plain fields; Plan.build() makes the plan.

    page_tokens    32, 64 or 128
    sink_tokens    the first tokens of a sequence that stay at 16 bits, a multiple of 16
    recent_tokens  the last tokens that stay at 16 bits
    layers         one rule for all layers, or a rule for each; a reading layer has that of its KV layer
    chunks         classes of a context's chunks; None = no chunks
    """

    name: str = 'custom'
    page_tokens: int = 128
    sink_tokens: int = 0
    recent_tokens: int = 128
    layers: LayerRule | tuple[LayerRule, ...] = LayerRule()
    chunks: ChunkRule | None = None


@dataclass(frozen=True)
class PlanSize(Fields):
    """The bytes of a plan. Every number is exact."""

    _struct = _abi.PlanSize

    n_blocks: int
    bits_per_value: float
    bytes_per_token: float
    fp16_bytes: int
    payload_bytes: int
    metadata_bytes: int
    recent_bytes: int
    table_bytes: int
    cache_bytes: int


class Width(NamedTuple):
    """Bits of a channel in a packed page, and its bits where the page boosts it."""

    bits: int
    boost_bits: int


def presets() -> list[str]:
    """Names of the presets."""
    lk = library()
    names: list[str] = []
    while (name := lk.lk_plan_preset_name(len(names))) is not None:
        names.append(name.decode())
    return names


class Plan:
    """A quantization plan for one geometry, made by preset(), build() or from_json().

    A cache copies its plan, so later changes of the plan have no effect on the cache.
    """

    def __init__(self, box: ctypes.c_void_p, geometry: Geometry):
        lk = self._lk = library()
        self.geometry = geometry  # without sink_logits when the plan came from JSON
        self._handle = Handle('plan', box, lambda pointer: lk.lk_plan_destroy(_abi.byref(pointer)))
        weakref.finalize(self, self._handle.destroy)

    @classmethod
    def preset(cls, name: str, geometry: Geometry) -> Plan:
        """A plan that the library names: see presets(), or "default": default() without a limit.

        Raises NotFoundError."""
        box, lk = ctypes.c_void_p(), library()
        check(lk.lk_plan_preset(name.encode(), _abi.byref(geometry.raw()), _abi.byref(box)))
        return cls(box, geometry)

    @classmethod
    def default(cls, geometry: Geometry, bits: float = 0.0) -> Plan:
        """The plan that, without statistics, answers best within so many bits of a packed value, ranges and minima
        included; 0: the narrowest plan with the answers of FP16 on all proving models. Raises BudgetError."""
        box, lk = ctypes.c_void_p(), library()
        check(lk.lk_plan_default(_abi.byref(geometry.raw()), bits, _abi.byref(box)))
        return cls(box, geometry)

    @classmethod
    def named(cls, name: str | os.PathLike[str], geometry: Geometry) -> Plan:
        """A preset or "default", or the plan of a JSON file for this geometry. Such a name is never a file's.

        Raises NotFoundError (neither a preset nor a file), FileError, CorruptError and MismatchError, which name the
        file and its fault."""
        text = os.fspath(name)
        names = [*presets(), 'default']
        if text in names:
            return cls.preset(text, geometry)
        if not os.path.exists(text):
            raise NotFoundError(f'plan is {text!r}, must be a preset ({", ".join(names)}) or the path of a plan\'s '
                                'JSON: there is no such file')
        try:
            with open(text, 'rb') as file:
                data = file.read()
            plan = cls.from_json(data)
            plan.validate(geometry)
        except OSError as error:
            raise FileError(f'{text} cannot be read: {error.strerror}') from None
        except (ArgumentError, CorruptError, MismatchError) as error:
            raise type(error)(f'{text}: {error}') from None
        plan.geometry = geometry
        return plan

    @classmethod
    def build(cls, geometry: Geometry, spec: PlanSpec) -> Plan:
        """The plan of the fields, validated."""
        plan = cls.preset('fp16', geometry)
        plan.set_name(spec.name)
        plan.set_pages(spec.page_tokens)
        plan.set_recent(spec.sink_tokens, spec.recent_tokens)
        plan.set_chunks(spec.chunks)
        rules = spec.layers if isinstance(spec.layers, tuple) else (spec.layers,) * len(geometry.layers)
        if len(rules) != len(geometry.layers):
            raise ArgumentError(f'{len(rules)} rules for {len(geometry.layers)} layers')
        for i, (rule, layer) in enumerate(zip(rules, geometry.layers)):
            if layer.kv_layer is not None and layer.kv_layer != i:
                if rule != rules[layer.kv_layer]:
                    raise ArgumentError(f'layer {i} reads the keys and values of layer {layer.kv_layer} and has other '
                                        'rules')
                continue
            plan.set_metadata(rule.metadata, i)
            plan.set_key_rotation(rule.key_rotation, i)
            for what, heads, put in (('key', rule.key, plan.set_key), ('value', rule.value, plan.set_value)):
                if what == 'value' and layer.latent:
                    if rule.value != ValueRule() and not isinstance(spec.layers, LayerRule):
                        raise ArgumentError(f'layer {i} is latent: its values are channels of its keys and have no '
                                            'rule')
                    continue
                if not isinstance(heads, tuple):
                    put(heads, i)  # type: ignore[arg-type]
                    continue
                if len(heads) != layer.n_kv_heads:
                    raise ArgumentError(f'layer {i} has {len(heads)} {what} rules for {layer.n_kv_heads} KV heads')
                for head, one in enumerate(heads):
                    put(one, i, head)  # type: ignore[arg-type]
            if rule.rungs:
                plan.set_ladder(rule.rungs, rule.rung, i)
                plan.set_shrink_order(rule.order, i)
            if rule.rungs or rule.budget_bytes:
                plan.set_layer_budget(rule.budget_bytes, i)
        plan.validate(geometry)
        return plan

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read a plan from untrusted text (docs/PLAN.md). Raises CorruptError or MismatchError naming the JSON path."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        box = ctypes.c_void_p()
        check(library().lk_plan_from_json(data, len(data), _abi.byref(box)))
        plan = cls(box, Geometry(()))
        plan.geometry = _geometry_of(json.loads(plan.to_json())['geometry'])
        return plan

    def to_json(self) -> str:
        """The plan as JSON; from_json() gives the same plan back."""
        needed = ctypes.c_size_t()
        with self._handle.lock:
            pointer = self._handle.get()
            check(self._lk.lk_plan_to_json(pointer, None, 0, _abi.byref(needed)))
            buffer = ctypes.create_string_buffer(needed.value)
            check(self._lk.lk_plan_to_json(pointer, buffer, len(buffer), _abi.byref(needed)))
        return buffer.value.decode()

    def spec(self) -> PlanSpec:
        """The plan's fields: Plan.build() of them gives the same plan."""
        document = json.loads(self.to_json())
        layers: list[LayerRule] = []
        for entry in document['layers']:
            heads = [head for head in entry['heads'] for _ in range(head.get('count', 1))]
            rule = LayerRule(tuple(_key_of(head['key']) for head in heads),
                             tuple(_value_of(head['value']) for head in heads) if 'value' in heads[0] else ValueRule(),
                             entry.get('metadata', 'f16'), tuple(entry.get('ladder', ())),
                             entry.get('rung', 0), entry.get('shrink_order', 0), entry.get('budget_bytes', 0),
                             entry.get('key_rotation', 'none'))
            layers += [rule] * entry.get('count', 1)
        return PlanSpec(document['name'], document['page_tokens'], document['sink_tokens'],
                        document['window_tokens'], tuple(layers), self.chunks())

    def copy(self) -> Plan:
        """An independent copy."""
        box = ctypes.c_void_p()
        with self._handle.lock:
            check(self._lk.lk_plan_copy(self._handle.get(), _abi.byref(box)))
        return Plan(box, self.geometry)

    def close(self) -> None:
        """Free the plan. Closing twice is fine."""
        self._handle.close()

    def __enter__(self) -> Plan:
        self._handle.get()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The plan's name: that of its preset, its JSON, or set_name()."""
        with self._handle.lock:
            return str(self._lk.lk_plan_name(self._handle.get()), 'utf-8')

    def _call(self, function: Any, *arguments: Any) -> None:
        with self._handle.lock:
            check(function(self._handle.get(), *arguments))

    def set_name(self, name: str) -> None:
        """Name the plan, 1 to 63 bytes."""
        self._call(self._lk.lk_plan_set_name, name.encode())

    def set_key(self, rule: KeyRule, layer: int = ALL, kv_head: int = ALL) -> None:
        """Set the rule of keys for a layer and KV head, or for all. Raises NotFoundError."""
        for what, list_ in (('channel_bits', rule.channel_bits), ('centers', rule.centers), ('scales', rule.scales)):
            layers = self.geometry.layers if layer == ALL else self.geometry.layers[layer:layer + 1]
            for one in layers:
                if list_ and len(list_) != one.head_dim:
                    raise ArgumentError(f'{len(list_)} {what} for head_dim {one.head_dim}')
        self._call(self._lk.lk_plan_set_key, layer, kv_head, _abi.byref(rule.raw()))
        for put, list_ in ((self._lk.lk_plan_set_key_centers, rule.centers),
                           (self._lk.lk_plan_set_key_scales, rule.scales)):
            self._call(put, layer, kv_head, (ctypes.c_float * len(list_))(*list_) if list_ else None)

    def set_value(self, rule: ValueRule, layer: int = ALL, kv_head: int = ALL) -> None:
        """Set the rule of values for a layer and KV head, or for all. Raises NotFoundError."""
        self._call(self._lk.lk_plan_set_value, layer, kv_head, _abi.byref(rule.raw()))

    def set_metadata(self, metadata: str, layer: int = ALL) -> None:
        """Set the number format of ranges and minima: "f16" or "f8"."""
        self._call(self._lk.lk_plan_set_metadata, layer, number_of(METADATA, metadata, 'metadata'))

    def set_key_rotation(self, rotation: str, layer: int = ALL) -> None:
        """Set what turns the keys of a layer, and queries, before packing: "none" or "hadamard"."""
        self._call(self._lk.lk_plan_set_key_rotation, layer, number_of(ROTATIONS, rotation, 'key_rotation'))

    def key_rotation(self, layer: int) -> str:
        """What turns the keys of a layer. Raises NotFoundError."""
        raw = ctypes.c_uint32()
        self._call(self._lk.lk_plan_get_key_rotation, layer, _abi.byref(raw))
        return {number: name for name, number in ROTATIONS.items()}[raw.value]

    def set_pages(self, page_tokens: int) -> None:
        """Set the tokens of a page."""
        self._call(self._lk.lk_plan_set_pages, page_tokens)

    @property
    def recent_tokens(self) -> int:
        """How many last tokens of a sequence stay at 16 bits, at least."""
        n = ctypes.c_uint32()
        self._call(self._lk.lk_plan_get_pages, None, None, _abi.byref(n))
        return n.value

    def set_chunks(self, rule: ChunkRule | None) -> None:
        """Set the chunks of a context and their classes; None = no chunks."""
        raw = self._lk.start(_abi.ChunkRule) if rule is None else rule.raw()
        if rule is None:
            raw.chunk_tokens = 0
        self._call(self._lk.lk_plan_set_chunks, _abi.byref(raw))

    def chunks(self) -> ChunkRule | None:
        """The plan's chunks; None = no chunks."""
        raw = self._lk.start(_abi.ChunkRule)
        self._call(self._lk.lk_plan_get_chunks, _abi.byref(raw))
        return ChunkRule.of(raw) if raw.chunk_tokens else None

    def set_recent(self, sink_tokens: int, recent_tokens: int) -> None:
        """Set how many first and last tokens of a sequence stay at 16 bits."""
        self._call(self._lk.lk_plan_set_recent, sink_tokens, recent_tokens)

    def set_ladder(self, rungs: Sequence[int], rung: int, layer: int = ALL) -> None:
        """Set the ladder of a layer, widest rung first, and the rung at which it packs new pages."""
        self._call(self._lk.lk_plan_set_ladder, layer, (ctypes.c_uint8 * len(rungs))(*rungs), len(rungs), rung)

    def set_shrink_order(self, order: int, layer: int = ALL) -> None:
        """Set the shrink order of a layer: on a shortfall, the lowest among layers at the widest rung shrinks first."""
        self._call(self._lk.lk_plan_set_shrink_order, layer, order)

    def set_layer_budget(self, budget_bytes: int, layer: int = ALL) -> None:
        """Set the bytes that the pages of a layer with a ladder may take in the whole cache; 0 = no budget of its own.

        The layer goes down its ladder when a step would exceed them. All layers: those with a ladder."""
        self._call(self._lk.lk_plan_set_layer_budget, layer, budget_bytes)

    def layer_budget(self, layer: int) -> int:
        """The budget of a layer in bytes; 0 = none."""
        raw = ctypes.c_uint64()
        self._call(self._lk.lk_plan_get_layer_budget, layer, _abi.byref(raw))
        return raw.value

    def rung(self, layer: int, n_tokens: int, n_sequences: int = 1, step_tokens: int = 512) -> int:
        """The width of the rung at which budgets of layers leave a layer with so many tokens, as size() counts them."""
        raw = ctypes.c_uint32()
        self._call(self._lk.lk_plan_rung, layer, n_tokens, n_sequences, step_tokens, _abi.byref(raw))
        return raw.value

    def key(self, layer: int, kv_head: int) -> KeyRule:
        """The rule of the keys of a KV head. Raises NotFoundError."""
        raw = self._lk.start(_abi.KeyRule)
        with self._handle.lock:
            check(self._lk.lk_plan_get_key(self._handle.get(), layer, kv_head, _abi.byref(raw)))
            lists = {'channel_bits': raw.channel_bits}
            for name, get in (('centers', self._lk.lk_plan_get_key_centers),
                              ('scales', self._lk.lk_plan_get_key_scales)):
                lists[name] = ctypes.POINTER(ctypes.c_float)()
                check(get(self._handle.get(), layer, kv_head, _abi.byref(lists[name])))
            width = self.geometry.layers[layer].head_dim
            return KeyRule.of(raw, **{name: tuple(list_[:width]) if list_ else () for name, list_ in lists.items()})

    def value(self, layer: int, kv_head: int) -> ValueRule:
        """The rule of the values of a KV head. Raises NotFoundError for a latent layer, which has none."""
        raw = self._lk.start(_abi.ValueRule)
        self._call(self._lk.lk_plan_get_value, layer, kv_head, _abi.byref(raw))
        return ValueRule.of(raw)

    def width(self, layer: int, kv_head: int, channel: int, *, value: bool = False, rung: int = 0,
              chunk_class: str = 'none') -> Width:
        """Bits of one channel of keys, or of values, in a packed page.

        rung         a rung of the layer's ladder; 0 = the rung at which it packs new pages
        chunk_class  "low", "middle" or "high"; "none" = a page without a chunk class"""
        bits, boost = ctypes.c_uint32(), ctypes.c_uint32()
        self._call(self._lk.lk_plan_width, layer, kv_head, int(value), channel, rung,
                   number_of(CHUNK_CLASSES, chunk_class, 'chunk_class'), _abi.byref(bits), _abi.byref(boost))
        return Width(bits.value, boost.value)

    def validate(self, geometry: Geometry | None = None) -> None:
        """Check that the plan is complete, and made for this geometry. Raises ArgumentError, MismatchError."""
        raw = None if geometry is None else _abi.byref(geometry.raw())
        self._call(self._lk.lk_plan_validate, raw)

    def bytes(self, n_tokens: int, n_sequences: int = 1, step_tokens: int = 512, *,
              keep_windowed: bool = False) -> PlanSize:
        """Bytes for n_sequences sequences of n_tokens tokens each, filled together in steps of step_tokens each.

        ``cache_bytes`` is the least budget of a Cache with max_sequences = n_sequences, max_step_tokens =
        n_sequences x step_tokens and this keep_windowed."""
        raw = self._lk.start(_abi.PlanSize)
        flags = _abi.CONSTANTS['LK_CACHE_KEEP_WINDOWED'] if keep_windowed else 0
        self._call(self._lk.lk_cache_bytes, flags, n_tokens, n_sequences, step_tokens, _abi.byref(raw))
        return PlanSize.of(raw)

    def chunk_bytes(self, n_tokens: int, n_low: int = 0, n_middle: int = 0, n_high: int = 0, *, n_sequences: int = 1,
                    step_tokens: int = 512) -> PlanSize:
        """The same after the chunks of all contexts got their first classes: n_low, n_middle and n_high of them."""
        raw, mix = self._lk.start(_abi.PlanSize), self._lk.start(_abi.ChunkMix)
        mix.n_low, mix.n_middle, mix.n_high = n_low, n_middle, n_high
        self._call(self._lk.lk_plan_chunk_bytes, n_tokens, n_sequences, step_tokens, _abi.byref(mix), _abi.byref(raw))
        return PlanSize.of(raw)

    def chunk_prefill_bytes(self, n_tokens: int, n_low: int = 0, n_middle: int = 0, n_high: int = 0, *,
                            n_sequences: int = 1, step_tokens: int = 512) -> int:
        """The budget of a Cache that reaches the state of chunk_bytes() if the classes are assigned before the
        prefill, whatever their order in the context."""
        mix, budget = self._lk.start(_abi.ChunkMix), ctypes.c_uint64()
        mix.n_low, mix.n_middle, mix.n_high = n_low, n_middle, n_high
        self._call(self._lk.lk_plan_chunk_prefill_bytes, n_tokens, n_sequences, step_tokens, _abi.byref(mix),
                   _abi.byref(budget))
        return budget.value


def as_plan(plan: str | os.PathLike[str] | Plan | PlanSpec, geometry: Geometry) -> Plan:
    """The plan that is meant by a preset's name, the path of a plan's JSON, a PlanSpec or a Plan, for a geometry."""
    if isinstance(plan, PlanSpec):
        return Plan.build(geometry, plan)
    if not isinstance(plan, Plan):
        return Plan.named(plan, geometry)
    plan.validate(geometry)
    return plan


def _key_of(entry: dict[str, Any]) -> KeyRule:
    boost = entry.get('boost') or {}
    return KeyRule(entry['bits'], entry.get('axis', 'channel'), entry.get('group', 0), boost.get('channels', 0),
                   boost.get('bits', 0), boost.get('score', ''), tuple(entry.get('classes') or ()),
                   tuple(entry.get('centers') or ()), entry.get('one_bit', 'deviation'),
                   tuple(entry.get('scales') or ()), entry.get('clip', 1.0))


def _value_of(entry: dict[str, Any]) -> ValueRule:
    return ValueRule(entry['bits'], entry.get('group', 0), entry.get('one_bit', 'deviation'),
                     entry.get('clip', 1.0))


def _geometry_of(entry: dict[str, Any]) -> Geometry:
    layers: list[Layer] = []
    for one in entry['layers']:
        layers += [Layer(one['query_heads'], one['kv_heads'], one['head_dim'], one.get('window', 0),
                         one.get('window_sinks', 0), one.get('scale', 0.0), one.get('soft_cap', 0.0),
                         kv_layer=one.get('kv_layer'), value_dim=one.get('value_dim', 0),
                         latent=one.get('latent', False))] * one['count']
    return Geometry(tuple(layers))
