# SPDX-License-Identifier: Apache-2.0
"""Plans, costs, dumps and scores of models whose layers are not all attention with keys of its own."""

from __future__ import annotations

from functools import partial

import pytest
from families import RESTARTING
from hf import cache_logits, is_as_before, make_model, tokens, torch
from letters import QUICK, TEXT, Letters, short_probe  # noqa: F401

import lowkey
from lowkey.transformers import LowkeyCache, calibrate, geometry_of, layers_of, perplexity, plan
from lowkey.transformers.capture import frozen
from lowkey.transformers.context import DocumentContext
from lowkey.transformers.costs import CostRequest, measure_costs
from lowkey.transformers.progress import Progress
from lowkey.transformers.texts import CostText, Encoder
from lowkey.transformers.two_bits import packed, packed_tokens

FEW = ['gemma3n', 'gemma4', 'qwen3.5', 'lfm2', 'falcon-h1', 'nemotron-h', 'zaya']


@pytest.mark.parametrize('name', FEW)
@pytest.mark.parametrize('method, limits', [
    ('auto', dict(bits=2.5, costs='estimated')), ('pm-kvq', dict(budget='6MiB', tokens=1024)), ('kitty-pro', {})])
def test_methods(name, method, limits):
    model, ids = make_model(name), tokens(1, 1, 400)
    with plan(model, Letters(), method, **QUICK, **limits) as made:
        made.validate(geometry_of(model.config))
        rules = made.spec().layers
        if method != 'kitty-pro':
            assert all(rules[i] == rules[layer.kv_layer] for i, layer in enumerate(made.geometry.layers)
                       if layer.kv_layer is not None)
        with LowkeyCache(model.config, made, '64MiB') as cache, torch.no_grad():
            for chunk in ids.split(100, 1):
                model(chunk, past_key_values=cache, logits_to_keep=1)
            assert (cache.stats().pages_packed > 0) == (method != 'pm-kvq')
    assert is_as_before(model)


@pytest.mark.parametrize('name', FEW)
def test_predictions_are_those_of_a_cache(name):
    """Keys, or values, of one head at 2 bits: the predictions of a LowkeyCache of that plan."""
    model, ids = make_model(name), tokens(3, 1, 500)
    geometry, n = geometry_of(model.config), 460
    layer = geometry.kv_layers[-1]
    for is_value in (False, True):
        two = lowkey.LayerRule((lowkey.KeyRule(2, group=128), lowkey.KeyRule()), (lowkey.ValueRule(),) * 2) \
            if not is_value else lowkey.LayerRule((lowkey.KeyRule(),) * 2, (lowkey.ValueRule(2), lowkey.ValueRule()))
        spec = lowkey.PlanSpec('one', sink_tokens=32, layers=tuple(
            two if layer in (i, own.kv_layer) else lowkey.LayerRule() for i, own in enumerate(geometry.layers)))
        wanted = cache_logits(model, spec, ids, n)
        with frozen(model), torch.no_grad():
            context = DocumentContext(model, geometry, ids[0, :n].tolist())
            plain = context.exact(ids[0, n:].tolist())
            own = context.kept[layer]
            span = packed_tokens(n)
            sides = [x.expand(3, -1, -1, -1).clone() for x in (own.keys, own.values)]
            sides[is_value][1, 0, span] = packed(sides[is_value][1, 0, span], value=is_value)
            with context.instead(layer, *sides):
                got = context.logits(ids[0, n:].tolist(), 3)
        # Of nine tokens in ten, because sharp attention may turn from one token to another by rounding alone.
        moved, error, of_others = ((x - y).norm(dim=-1).quantile(0.9) for x, y in (
            (wanted, plain), (got[1], wanted[0]), (got[[0, 2]], plain)))
        assert 0 < error < 0.02 * moved and of_others < 0.02 * moved


@pytest.mark.parametrize('name', ['gemma3n', 'qwen3.5', 'falcon-h1', 'zaya'])
def test_costs(name, monkeypatch):
    """Layers below a changed one are skipped where that changes nothing; reading layers have no costs."""
    model = make_model(name)
    geometry, ids = geometry_of(model.config), Encoder(Letters())(TEXT)
    request = CostRequest([CostText('text', ids[:400])], [1], 320, mode='measured')
    runs = []
    inner = list(model.get_decoder().layers[0].children())[-1]
    inner.register_forward_hook(lambda *_: runs.append(0))
    with frozen(model), Progress(False) as bar:
        found = measure_costs(model, geometry, request, bar)
        n_runs = len(runs)
        monkeypatch.setattr('lowkey.transformers.context.decoder_layers', lambda *_: [])
        whole = measure_costs(model, geometry, request, bar)
    assert (n_runs < len(runs) - n_runs) == (name != 'gemma3n')
    assert found.n_measured == found.n_all == sum(4 for _ in geometry.kv_layers)
    assert [bool(heads[0][0]) for heads in found.values] == [layer.kv_layer is None for layer in geometry.layers]
    for layer in geometry.kv_layers:
        assert torch.allclose(*map(torch.tensor, (found.values[layer], whole.values[layer])), rtol=1e-3, atol=1e-5)
    assert max(found.measured.values()) > 1e-6


@pytest.mark.parametrize('name', ['gemma3n', 'gemma4', 'qwen3.5', 'bamba', 'zamba2'])
def test_perplexity(name):
    model, ids = make_model(name), tokens(5, 300).tolist()
    with torch.no_grad():
        own = model(torch.tensor([ids]), use_cache=False).logits[0, :-1]
    wanted = torch.nn.functional.cross_entropy(own, torch.tensor(ids[1:])).exp().item()
    found = partial(perplexity, model, None, ids, progress=False)
    assert found('fp16', chunk_tokens=64).perplexity == pytest.approx(wanted, rel=1e-3)
    assert abs(found('kivi2', chunk_tokens=64).perplexity - wanted) > 1e-6 * wanted


def test_dumps(tmp_path):
    """The layers of a dump are those of the geometry; a dump has no place for reading layers."""
    model, path = make_model('nemotron-h'), tmp_path / 'dump.safetensors'
    shapes = calibrate(model, [tokens(6, 40)], out=path)
    assert layers_of(model.config).attention == (2, 5)
    assert shapes == {f'layer.{i}.{side}': [40, 4 if side == 'q' else 2, 32] for i in range(2) for side in 'kqv'}
    with pytest.raises(lowkey.UnsupportedError, match='layer 4 reads the keys and values of layer 2.*make the plan '
                                                      r'with lowkey\.transformers\.plan'):
        calibrate(make_model('gemma4'), [tokens(6, 40)], out=path)


@pytest.mark.parametrize('name', RESTARTING)
def test_models_that_begin_anew(name):
    """What needs several tokens after others is refused before anything runs; single tokens serve."""
    model, ids = make_model(name), tokens(7, 12).tolist()
    runs = []
    model.register_forward_hook(lambda *_: runs.append(0))
    with pytest.raises(lowkey.UnsupportedError, match='begins its recurrent states anew.*: give costs="none"'):
        plan(model, Letters(), **QUICK)
    with pytest.raises(lowkey.UnsupportedError, match='begins its recurrent states anew.*: give chunk_tokens=1'):
        perplexity(model, None, ids, chunk_tokens=8, progress=False)
    assert not runs
    with torch.no_grad():
        own = model(torch.tensor([ids]), use_cache=False).logits[0, :-1]
    wanted = torch.nn.functional.cross_entropy(own, torch.tensor(ids[1:])).exp().item()
    assert perplexity(model, None, ids, 'fp16', chunk_tokens=1, progress=False).perplexity == \
        pytest.approx(wanted, rel=1e-3)


def test_an_attention_module_of_several_layers():
    model = make_model('zamba2')
    with pytest.raises(lowkey.UnsupportedError, match='a module of Zamba2Attention is the attention of several layers'):
        plan(model, Letters(), **QUICK)
    assert model.config._attn_implementation == 'sdpa'
    plan(model, Letters(), 'kitty-pro', **QUICK).close()
