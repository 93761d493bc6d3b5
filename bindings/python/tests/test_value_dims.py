# SPDX-License-Identifier: Apache-2.0
"""Models whose values have another dim than keys, and models that keep latents (MLA)."""

from __future__ import annotations

import copy

import pytest
from families import VALUE_DIMS
from hf import (
    DEVICES,
    RoundedCache,
    assert_padded_prompts_decode,
    assert_within_rounding,
    make_model,
    tokens,
    torch,
    transformers,
)
from letters import TEXT, Letters

import lowkey
from lowkey.transformers import LowkeyCache, geometry_of, perplexity, plan, sink_logits_of

LATENT = [name for name in VALUE_DIMS if name != 'mimo-v2']


def open_cache(model, made='fp16', budget='64MiB', **options):
    return LowkeyCache(model, made, budget, sink_logits=sink_logits_of(model), **options)


def feed(model, cache, *chunks):
    with torch.no_grad():
        return torch.cat([model(chunk, past_key_values=cache).logits for chunk in chunks], 1).float()


def assert_like_hosts(model, got, *chunks):
    want, rounded = (feed(model, kind(config=model.config), *chunks)[:, -got.shape[1]:]
                     for kind in (transformers.DynamicCache, RoundedCache))
    assert_within_rounding(got, want, rounded)


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', VALUE_DIMS)
def test_logits_equal_the_hosts_within_rounding(name, device):
    """Prefill, a chunk and single tokens, two prompts."""
    model, ids = make_model(name, device), tokens(1, 2, 70, device=device)
    chunks = ids.split([50, 17, 1, 1, 1], 1)
    with open_cache(model) as cache:
        got = feed(model, cache, *chunks)
        assert cache.lengths == [70, 70]
    assert_like_hosts(model, got, *chunks)


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', VALUE_DIMS)
def test_generate_with_left_padding(name, device):
    assert_padded_prompts_decode(make_model(name, device), open_cache, 8, [37, 24])


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', ['mimo-v2', 'deepseek-v3'])
def test_beam_search_and_copies(name, device):
    model, ids = make_model(name, device), tokens(12, 2, 40, device=device)
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=8, num_beams=3, do_sample=False)
    want = model.generate(ids, **options)
    with open_cache(model) as cache:
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), want)
    with open_cache(model) as cache:
        feed(model, cache, ids[:, :30])
        other = copy.deepcopy(cache)
        first, second = feed(model, cache, ids[:, 30:36]), feed(model, other, ids[:, 34:40])
        cache.crop(-4)
        again = feed(model, cache, ids[:, 32:36])
        other.close()
    assert_like_hosts(model, first, ids[:, :30], ids[:, 30:36])
    assert_like_hosts(model, second, ids[:, :30], ids[:, 34:40])
    assert_like_hosts(model, again, ids[:, :32], ids[:, 32:36])


@pytest.mark.parametrize('name', VALUE_DIMS)
def test_geometry(name):
    model = make_model(name)
    geometry = geometry_of(model.config, sink_logits=sink_logits_of(model))
    if name == 'mimo-v2':
        assert [(one.n_kv_heads, one.head_dim, one.value_dim, one.latent) for one in geometry.layers] == [
            (2, 48, 32, False), (4, 48, 32, False), (4, 48, 32, False), (2, 48, 32, False)]
        assert [bool(one.sink_logits) for one in geometry.layers] == [False, True, True, False]
        return
    for layer in geometry.layers:
        assert (layer.n_query_heads, layer.n_kv_heads, layer.head_dim, layer.value_dim) == (4, 1, 80, 64)
        assert layer.latent and (layer.scale == pytest.approx(48 ** -0.5)) == (name != 'deepseek-v3')


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', LATENT)
def test_packed_latents_take_the_bytes_of_latents(name, device):
    """At 8 bits the logits stay close; a token takes its latent and its rotated channels, once for all heads."""
    model, ids = make_model(name, device), tokens(2, 1, 600, device=device)
    with open_cache(model) as exact, open_cache(model, 'int8') as cache:
        want, got = (feed(model, own, *ids.split(100, 1))[:, -1] for own in (exact, cache))
        stats = cache.stats()
        # 600 tokens: blocks of 128, the recent ones at 16 bits; the last block could hold 40 more.
        n_pages = len(cache.geometry.layers) * 5
        n_packed = stats.pages_packed
        assert 0 < n_packed < n_pages
        assert stats.payload_bytes == n_packed * 128 * 80
        assert stats.recent_bytes == (n_pages - n_packed) * 128 * 80 * 2
    assert (got - want).abs().max() < 0.05 * want.abs().max()


def test_perplexity_and_refusals():
    model = make_model('deepseek-v2')
    exact, packed = (perplexity(model, Letters(), TEXT, made, chunk_tokens=64, progress=False)
                     for made in ('fp16', 'kivi4'))
    assert exact.bits_per_value == 16 and packed.bits_per_value < 5
    assert packed.perplexity == pytest.approx(exact.perplexity, rel=0.05)
    with pytest.raises(lowkey.UnsupportedError, match='is latent'):
        plan(model, Letters(), 'auto', bits=4, texts=[TEXT], costs='none', progress=False)
    unknown = transformers.AutoConfig.for_model('deepseek_v32')
    with pytest.raises(lowkey.UnsupportedError, match='latent keys'):
        geometry_of(unknown)
    odd = copy.deepcopy(model.config)
    odd.kv_lora_rank = 72
    with pytest.raises(lowkey.UnsupportedError, match='head_dim of 88'):
        geometry_of(odd)
