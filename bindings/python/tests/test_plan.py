# SPDX-License-Identifier: Apache-2.0
"""Plans: presets, fields, JSON, widths and bytes."""

from __future__ import annotations

import dataclasses

import pytest
from conftest import GEOMETRY

import lowkey
from lowkey import ChunkRule, KeyRule, LayerRule, Plan, PlanSpec, ValueRule

CLASSES = (1,) * 16 + (3,) * 16 + (2,) * 32
SPECS = {
    'defaults': PlanSpec(),
    'one rule': PlanSpec('narrow', 64, 16, 64, LayerRule(KeyRule(2, group=32), ValueRule(4, 32), 'f8')),
    'by layer': PlanSpec('layers', layers=(LayerRule(KeyRule(4), ValueRule(2)), LayerRule(KeyRule(3, 'token', 32)))),
    'by head': PlanSpec('heads', layers=LayerRule((KeyRule(2, boost_channels=16, boost_bits=4, boost_ranking='key'),
                                                   KeyRule(8)), (ValueRule(2), ValueRule(8)))),
    'classes': PlanSpec('classes', layers=LayerRule(KeyRule(2, channel_bits=CLASSES, one_bit='range'),
                                                    ValueRule(1, one_bit='range'), 'f8')),
    'clips': PlanSpec('clips', layers=LayerRule(KeyRule(2, clip=0.75), ValueRule(2, clip=0.5))),
    'centers': PlanSpec('centers', layers=LayerRule((KeyRule(2, centers=tuple(i / 4 for i in range(64))), KeyRule(2)),
                                                    ValueRule(2), 'f8')),
    'scales': PlanSpec('scales', layers=LayerRule((KeyRule(2, scales=tuple(2.0 ** (i % 5 - 2) for i in range(64))),
                                                   KeyRule(2)), ValueRule(2))),
    'chunks': PlanSpec('chunks', chunks=ChunkRule(chunk_tokens=128, low_bits=4, middle_bits=8, alpha=0.5, beta=0.125,
                                                  reorder=False),
                       layers=LayerRule(KeyRule(16), ValueRule(16))),
    'rotation': PlanSpec('rotation', layers=(LayerRule(KeyRule(2), ValueRule(2), key_rotation='hadamard'),
                                             LayerRule(KeyRule(2), ValueRule(2)))),
    'ladder': PlanSpec('ladder', layers=LayerRule(KeyRule(8), ValueRule(8), rungs=(16, 8, 4, 2), rung=8, order=3)),
    'budgets': PlanSpec('budgets', layers=(LayerRule(KeyRule(8), rungs=(8, 4), rung=8, budget_bytes=1 << 20),
                                           LayerRule(KeyRule(8)))),
}


@pytest.mark.parametrize('name', ['fp16', 'int8', 'kivi4', 'kivi2', 'kitty', 'kitty-pro', 'wide-keys', 'wide-keys-pro'])
def test_presets(name):
    assert name in lowkey.presets()
    with Plan.preset(name, GEOMETRY) as plan:
        assert plan.name == name
        plan.validate(GEOMETRY)
        again = Plan.build(GEOMETRY, plan.spec())
        assert again.to_json() == plan.to_json()


def test_default():
    """Wherever a preset's name is taken, "default" is too."""
    assert 'default' not in lowkey.presets()
    with Plan.default(GEOMETRY) as plan, Plan.named('default', GEOMETRY) as named, Plan.preset('int8', GEOMETRY) as same:
        assert plan.name == 'default' and plan.to_json() == named.to_json()
        assert plan.bytes(8192).bits_per_value == same.bytes(8192).bits_per_value
    for bits in (2.75, 3.0, 9.0, 16.0):
        with Plan.default(GEOMETRY, bits) as plan:
            assert bits / 2 < plan.bytes(8192).bits_per_value <= bits
    with pytest.raises(lowkey.BudgetError, match='must be at least'):
        Plan.default(GEOMETRY, 1.0)
    with pytest.raises(lowkey.ArgumentError, match='from 0 to 16'):
        Plan.default(GEOMETRY, 17.0)


@pytest.mark.parametrize('spec', SPECS.values(), ids=SPECS)
def test_fields_round_trip(spec):
    plan = Plan.build(GEOMETRY, spec)
    whole = plan.spec()
    assert (whole.name, whole.page_tokens, whole.sink_tokens, whole.recent_tokens) == \
        (spec.name, spec.page_tokens, spec.sink_tokens, spec.recent_tokens)
    assert whole.chunks == spec.chunks
    assert Plan.build(GEOMETRY, whole).to_json() == plan.to_json()
    for number, rule in enumerate(whole.layers):
        assert tuple(plan.key(number, head) for head in range(2)) == rule.key
        assert tuple(plan.value(number, head) for head in range(2)) == rule.value
    read = Plan.from_json(plan.to_json())
    assert read.geometry == GEOMETRY and read.to_json() == plan.to_json()


def test_widths():
    plan = Plan.build(GEOMETRY, SPECS['classes'])
    assert [plan.width(0, 1, channel).bits for channel in (0, 16, 32, 63)] == [1, 3, 2, 2]
    assert plan.width(1, 0, 5, value=True) == (1, 1)
    assert Plan.preset('kitty-pro', GEOMETRY).width(0, 0, 0) == lowkey.Width(2, 4)
    with pytest.raises(lowkey.NotFoundError, match='layer is 7'):
        plan.width(7, 0, 0)


def test_bytes_are_what_a_cache_takes():
    plan = Plan.preset('kivi2', GEOMETRY)
    size = plan.bytes(4096, n_sequences=2, step_tokens=64)
    # A range and a minimum for 128 tokens of a channel, and for 64 channels of a token.
    assert abs(size.bits_per_value - (2 + 32 / 128 / 2 + 32 / 64 / 2)) < 1e-9
    assert size.fp16_bytes == 2 * 4096 * 2 * 2 * 2 * 64 * 2
    with lowkey.Context() as context:
        with pytest.raises(lowkey.BudgetError, match='bytes'):
            lowkey.Cache(context, plan, 1024)
        with lowkey.Cache(context, plan, size.cache_bytes, max_sequences=2, max_step_tokens=128) as cache:
            assert cache.stats().budget_bytes == size.cache_bytes


def test_layer_budgets():
    plan = Plan.preset('pm-kvq', GEOMETRY)
    plan.set_layer_budget(1 << 20, 0)
    assert [plan.layer_budget(layer) for layer in (0, 1)] == [1 << 20, 0]
    assert plan.rung(0, 100_000) == 2 and plan.rung(1, 100_000) == 16
    assert plan.rung(0, 100, step_tokens=100) == 16
    plan.set_layer_budget(0)
    assert plan.layer_budget(0) == 0 and 'budget_bytes' not in plan.to_json()
    with pytest.raises(lowkey.ArgumentError, match='layer 0 has no ladder'):
        Plan.preset('kivi2', GEOMETRY).set_layer_budget(5, 0)
    with pytest.raises(lowkey.ArgumentError, match='layer 1 has no ladder'):
        Plan.build(GEOMETRY, PlanSpec(layers=(LayerRule(), LayerRule(budget_bytes=5))))


def test_setters_and_copies():
    plan = Plan.preset('kivi4', GEOMETRY)
    copy = plan.copy()
    copy.set_name('mine')
    copy.set_key(KeyRule(2), layer=1, kv_head=0)
    copy.set_value(ValueRule(8, 16), layer=0)
    copy.set_recent(32, 256)
    assert (plan.name, copy.name) == ('kivi4', 'mine')
    assert plan.key(1, 0).bits == 4 and copy.key(1, 0).bits == 2 and copy.key(1, 1).bits == 4
    assert copy.value(0, 1) == ValueRule(8, 16)
    copy.close()
    with pytest.raises(lowkey.ClosedError, match='the plan is closed'):
        copy.set_name('more')
    assert plan.name == 'kivi4'


@pytest.mark.parametrize('call, kind, sentence', [
    (lambda: Plan.preset('kivi3', GEOMETRY), lowkey.NotFoundError, 'kivi3'),
    (lambda: Plan.preset('fp16', lowkey.Geometry.uniform(1, 3, 2, 64)), lowkey.ArgumentError, '3'),
    (lambda: Plan.preset('fp16', lowkey.Geometry(())), lowkey.ArgumentError, '0'),
    (lambda: Plan.from_json('{'), lowkey.CorruptError, 'JSON|json'),
    (lambda: Plan.from_json('{"lowkey_plan": 99}'), lowkey.MismatchError, '99'),
    (lambda: Plan.build(GEOMETRY, PlanSpec(layers=LayerRule(KeyRule(5)))), lowkey.ArgumentError, '5'),
    (lambda: Plan.build(GEOMETRY, PlanSpec(layers=LayerRule(KeyRule(2, 'row')))), lowkey.ArgumentError, "'row'"),
    (lambda: Plan.build(GEOMETRY, PlanSpec(layers=(LayerRule(),))), lowkey.ArgumentError, '1 rules for 2 layers'),
    (lambda: Plan.build(GEOMETRY, PlanSpec(layers=LayerRule((KeyRule(),)))), lowkey.ArgumentError, '1 key rules'),
    (lambda: Plan.build(GEOMETRY, PlanSpec(layers=LayerRule(KeyRule(2, channel_bits=(2,) * 63)))),
     lowkey.ArgumentError, '63 channel_bits'),
    (lambda: Plan.build(GEOMETRY, PlanSpec(layers=LayerRule(KeyRule(2, centers=(float('nan'),) * 64)))),
     lowkey.ArgumentError, 'nan'),
    (lambda: Plan.build(GEOMETRY, PlanSpec(layers=LayerRule(KeyRule(2, scales=(0.0,) * 64)))),
     lowkey.ArgumentError, '0'),
    (lambda: Plan.build(GEOMETRY, PlanSpec(layers=LayerRule(KeyRule(2, scales=(1.0,) * 63)))),
     lowkey.ArgumentError, '63 scales'),
    (lambda: lowkey.Geometry((lowkey.Layer(4, 2, 64, sink_logits=(1.0,)),)).raw(), lowkey.ArgumentError,
     '1 sink_logits'),
    (lambda: Plan.preset('fp16', GEOMETRY).validate(lowkey.Geometry.uniform(2, 8, 2, 128)), lowkey.MismatchError,
     '128'),
    (lambda: Plan.preset('fp16', GEOMETRY).bytes(0), lowkey.ArgumentError, '0'),
])
def test_refusals_have_the_sentence(call, kind, sentence):
    with pytest.raises(kind, match=sentence):
        call()


def test_rules_are_values():
    rule = KeyRule(2)
    assert dataclasses.replace(rule, bits=4) == KeyRule(4) and rule == KeyRule(2) and hash(rule) == hash(KeyRule(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.bits = 3


@pytest.mark.parametrize('text, n', [('2GiB', 2**31), ('512 MiB', 2**29), ('1.5kb', 1500), ('7', 7), (9, 9)])
def test_byte_sizes(text, n):
    assert lowkey.parse_bytes(text) == n


@pytest.mark.parametrize('size', ['2 gigs', '-1', -1, 2**64, '99999999TiB'])
def test_no_byte_size(size):
    """Also where C would take the number modulo 2^64: a budget of -1 would be no limit."""
    with pytest.raises(lowkey.ArgumentError, match=f'{size!r} is no number of bytes'):
        lowkey.parse_bytes(size)


def test_a_plan_by_name_or_file(geometry, tmp_path):
    """Wherever a preset's name is taken, the path of a plan's JSON is too, and the sentence has the file."""
    path = tmp_path / 'plan.json'
    with lowkey.Plan.preset('kivi4', geometry) as plan:
        path.write_text(plan.to_json())
        assert lowkey.Plan.named(path, geometry).to_json() == lowkey.Plan.named('kivi4', geometry).to_json()
    with lowkey.Context() as context, lowkey.Cache(context, str(path), '64MiB', geometry=geometry) as cache:
        assert cache.plan().name == 'kivi4'
    with pytest.raises(lowkey.NotFoundError, match="'kivi9', must be a preset .*or the path of a plan"):
        lowkey.Plan.named('kivi9', geometry)
    with pytest.raises(lowkey.MismatchError, match=r'plan\.json: '):
        lowkey.Plan.named(path, lowkey.Geometry.uniform(3, 8, 2, 64))
    with pytest.raises(lowkey.FileError, match='cannot be read'):
        lowkey.Plan.named(tmp_path, geometry)
    for text, sentence in (('{', 'plan.json: '), ('[]', 'plan.json: '), ('', 'plan.json: ')):
        path.write_text(text)
        with pytest.raises(lowkey.CorruptError, match=sentence):
            lowkey.Plan.named(path, geometry)
