# SPDX-License-Identifier: Apache-2.0
"""Statistics and plans from arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest

import lowkey
from lowkey import Calibrator, ChanMix, PmKvq, Probe, Rope, ScaleSearch

GEOMETRY = lowkey.Geometry.uniform(2, 4, 2, 32)


def samples(seed: int, n_tokens: int, heads: int) -> np.ndarray:
    """Channels of three ranges."""
    spread = np.repeat([0.1, 1.0, 8.0], [8, 16, 8])
    return (np.random.default_rng(seed).uniform(-1, 1, (n_tokens, heads, 32)) * spread + 0.5).astype(np.float16)


@pytest.fixture
def fed():
    with Calibrator(GEOMETRY) as calibrator:
        for layer in range(2):
            for keys in np.split(samples(layer, 300, 2), 3):
                calibrator.add_keys(layer, keys)
            calibrator.add_queries(layer, samples(5, 40, 4))
            calibrator.add_probe(layer, Probe(20, 1, 4, 8), samples(6, 101, 4), samples(7, 101, 2))
        yield calibrator


def test_statistics(fed):
    keys = samples(1, 300, 2)[:, 1].astype(np.float64)
    assert fed.channels(1, 1, 'key_min') == pytest.approx(keys.min(0)) and \
        fed.channels(1, 1, 'key_max') == pytest.approx(keys.max(0))
    assert fed.channels(1, 1, 'key_mean') == pytest.approx(keys.mean(0), abs=1e-3)
    assert fed.counts(0) == (300, 40, 80)
    assert fed.classes(0, 0) == ['subnormal'] * 8 + ['normal'] * 16 + ['outlier'] * 8 or \
        set(fed.classes(0, 0)) <= {'subnormal', 'normal', 'outlier'}
    assert 0 <= fed.retrieval(1, 0) <= 1


def test_plans(fed):
    plan = fed.chanmix(ChanMix(retrieval='none'))
    plan.validate(GEOMETRY)
    rule = plan.key(0, 0)
    assert rule.channel_bits.count(1) == rule.channel_bits.count(3) > 0
    assert rule.centers == pytest.approx(fed.channels(0, 0, 'key_mean'), abs=1e-6)
    assert fed.chanmix(ChanMix(retrieval_share=0.5)).bytes(4096).bits_per_value > plan.bytes(4096).bits_per_value
    assert not fed.chanmix(ChanMix(centers=False)).key(0, 0).centers
    with lowkey.Context(n_threads=1) as context, lowkey.Cache(context, plan, '32MiB') as cache, \
            cache.step(cache.add(), 5) as step:
        for layer in range(2):
            step.append(layer, samples(8, 5, 2), samples(9, 5, 2))
            step.attend(layer, samples(10, 5, 4))


def test_sensitivities(fed):
    """Fewer bits cost more, by either kind, and nothing at 16."""
    for layer in range(2):
        q, (k, v) = samples(1, 64, 4), (samples(i, 64, 2) for i in (2, 3))
        fed.add_attention(layer, q, k, v)
        for value, x in ((False, k), (True, v)):
            fed.add_gradients(layer, x, np.random.default_rng(4).standard_normal(x.shape, np.float32), value=value)
            for kind in ('gradient', 'output'):
                costs = [fed.sensitivity(layer, 1, bits, value=value, kind=kind) for bits in (16, 8, 4, 2)]
                assert costs[0] == 0 and costs == sorted(costs) and costs[3] > costs[1]
    with pytest.raises(lowkey.ArgumentError, match='64 samples and 63 gradients'):
        fed.add_gradients(0, k, k[1:])
    with pytest.raises(lowkey.ArgumentError, match='64 queries, 63 keys'):
        fed.add_attention(0, q, k[1:], v)
    with pytest.raises(lowkey.StateError):
        Calibrator(GEOMETRY).sensitivity(0, 0, 4)


def test_rope():
    x = np.random.default_rng(3).normal(0, 1, (7, 2, 32)).astype(np.float32)
    turned = np.asarray(Rope().apply(x, first_position=2, position_scale=lowkey.POSITION_SCALE))
    angle = (np.arange(7) + 2)[:, None, None] * 4 * 10000.0 ** (-np.arange(16) / 16)
    a, b = x[..., :16], x[..., 16:]
    assert turned[..., :16] == pytest.approx(a * np.cos(angle) - b * np.sin(angle), abs=1e-6)
    assert turned[..., 16:] == pytest.approx(a * np.sin(angle) + b * np.cos(angle), abs=1e-6)
    back = np.asarray(Rope().invert(turned, first_position=2, position_scale=4))
    assert back == pytest.approx(x, abs=1e-6)
    same = Rope('interleaved', 8, frequencies=(0.0,) * 4)
    assert (np.asarray(same.apply(x)) == x).all()
    with pytest.raises(lowkey.ArgumentError, match='3 frequencies'):
        Rope(channels=8, frequencies=(1.0,) * 3).apply(x)
    with pytest.raises(lowkey.ArgumentError, match='position_scale'):
        Rope().apply(x, position_scale=-1)


def test_key_scales(fed):
    keys, values, queries = samples(1, 40, 2), samples(2, 40, 2), samples(3, 40, 4)
    with pytest.raises(lowkey.StateError, match='no search'):
        fed.key_scales(1, 0)
    fed.add_scale_search(1, queries, keys, values, ScaleSearch(key_bits=2, value_bits=2, query_step=3))
    with pytest.raises(lowkey.MismatchError, match='key_bits 2'):
        fed.add_scale_search(1, queries, keys, values)
    errors = fed.scale_errors(1)
    assert len(errors) == 21 and errors[0.0] == 1
    scales, exponent = fed.key_scales(1, 1)
    assert errors[exponent] == min(errors.values())
    maxima = fed.pair_maxima(1, 1)
    assert maxima[:16] == maxima[16:] and max(maxima) == pytest.approx(np.abs(samples(1, 300, 2)[:, 1]).max())
    assert scales == lowkey.key_scales(maxima, exponent)
    again = Calibrator.from_bytes(fed.to_bytes())
    assert again.key_scales(1, 1) == (scales, exponent)


def test_costs(fed):
    with pytest.raises(lowkey.StateError, match='no costs'):
        fed.costs(1)
    fed.set_costs(1, [(1.5, 0), (2, 0.25)])
    again = Calibrator.from_bytes(fed.to_bytes())
    assert again.costs(1) == [(1.5, 0), (2, 0.25)]
    with pytest.raises(lowkey.ArgumentError, match='2'):
        fed.set_costs(1, [(1, 1)])
    with pytest.raises(lowkey.StateError, match='no clip costs'):
        fed.clip_costs(1)
    clipped = [((1.0, 2.0), (0.0, 0.5)), ((3.0, 0.25), (0.125, 4.0))]
    fed.set_clip_costs(1, clipped)
    assert Calibrator.from_bytes(fed.to_bytes()).clip_costs(1) == clipped
    with pytest.raises(lowkey.ArgumentError, match='5 costs of a KV head, must be 4'):
        fed.set_clip_costs(1, [((1, 2, 3), (1, 2))] * 2)


def test_pm_kvq(fed):
    with pytest.raises(lowkey.StateError, match='no attention'):
        fed.pm_kvq(PmKvq(64 << 20))
    for layer in range(2):
        keys, values = samples(1, 40, 2), samples(2, 40, 2)
        for value, x in enumerate((keys, values)):
            fed.add_gradients(layer, x, np.full(x.shape, 1 + layer, np.float32), value=bool(value))
    with pytest.raises(lowkey.BudgetError, match='at 2 bits') as refused:
        fed.pm_kvq(PmKvq(1, budget_tokens=20000))
    least = int(str(refused.value).split(' need ')[1].split()[0])
    plan = fed.pm_kvq(PmKvq(least + (1 << 20), budget_tokens=20000))
    plan.validate(GEOMETRY)
    layers = json.loads(plan.to_json())['layers']
    assert [layer['ladder'] for layer in layers] == [[16, 8, 4, 2], [16, 8, 4]]
    assert [layer.get('shrink_order', 0) for layer in layers] == [0, 1]
    assert [plan.layer_budget(layer) for layer in (0, 1)] == [0, 0]
    budgeted = fed.pm_kvq(PmKvq(least + (1 << 20), budget_tokens=20000, layer_budgets=True))
    shares = [budgeted.layer_budget(layer) for layer in (0, 1)]
    assert 0 < 1.5 * shares[0] < shares[1] and sum(shares) <= least + (1 << 20)
    assert [budgeted.rung(layer, 20000) for layer in (0, 1)] == [2, 4]
    with pytest.raises(lowkey.ArgumentError, match='n_widths is 0'):
        fed.pm_kvq(PmKvq(least, widths=()))
    with pytest.raises(lowkey.StateError, match='no search'):
        fed.pm_kvq(PmKvq(least, key_scales=True))


def test_solve_widths():
    costs, sizes = [[9, 3, 1], [5, 4, 0]], [[2, 4, 8], [2, 4, 8]]
    assert [lowkey.solve_widths(costs, sizes, budget) for budget in (4, 6, 10, 16)] == [[0, 0], [1, 0], [2, 0], [2, 2]]
    with pytest.raises(lowkey.BudgetError, match='4'):
        lowkey.solve_widths(costs, sizes, 3)
    with pytest.raises(lowkey.ArgumentError, match='n_items'):
        lowkey.solve_widths(costs, [[1, 2], [1, 2]], 9)


def test_bytes(fed):
    again = Calibrator.from_bytes(fed.to_bytes())
    assert again.geometry == GEOMETRY and again.to_bytes() == fed.to_bytes()
    assert again.chanmix().to_json() == fed.chanmix().to_json()
    again.add_keys(0, samples(20, 10, 2))
    assert again.counts(0).keys == 310


@pytest.mark.parametrize('call, kind, sentence', [
    (lambda c: c.add_keys(0, samples(1, 3, 4)), lowkey.ArgumentError, r'keys have shape \[3, 4, 32\]'),
    (lambda c: c.add_keys(2, samples(1, 3, 2)), lowkey.ArgumentError, 'layer 2 of 2'),
    (lambda c: c.add_keys(0, samples(1, 3, 2) * np.float16(np.inf)), lowkey.DataError, 'layer 0'),
    (lambda c: c.add_probe(0, Probe(20), samples(1, 50, 4), samples(1, 49, 2)), lowkey.ArgumentError, '50 queries'),
    (lambda c: c.add_probe(0, Probe(1), samples(1, 50, 4), samples(1, 50, 2)), lowkey.ArgumentError, 'period_tokens'),
    (lambda c: c.channels(0, 0, 'key_median'), lowkey.ArgumentError, "'key_median'"),
    (lambda c: c.channels(5, 0, 'key_min'), lowkey.NotFoundError, '5'),
    (lambda c: c.classes(0, 9), lowkey.NotFoundError, '9'),
    (lambda c: c.chanmix(ChanMix(budget_bytes=1)), lowkey.BudgetError, 'bytes'),
    (lambda c: c.chanmix(ChanMix(scope='model')), lowkey.ArgumentError, "'model'"),
    (lambda c: Calibrator(GEOMETRY).chanmix(), lowkey.StateError, 'layer 0'),
    (lambda c: Calibrator.from_bytes(c.to_bytes()[:-1]), lowkey.CorruptError, '.'),
])
def test_refusals(fed, call, kind, sentence):
    before = fed.to_bytes()
    with pytest.raises(kind, match=sentence):
        call(fed)
    assert fed.to_bytes() == before


def test_use_after_close(fed):
    fed.close()
    for call in (fed.to_bytes, fed.chanmix, lambda: fed.add_keys(0, samples(1, 3, 2)), fed.__enter__):
        with pytest.raises(lowkey.ClosedError, match='the calibrator is closed'):
            call()
