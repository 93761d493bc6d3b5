# SPDX-License-Identifier: Apache-2.0
"""Models with layers that read other layers' keys and values, and with layers that have states instead of keys."""

from __future__ import annotations

import copy
import gc

import pytest
from families import CONVOLUTIONS, FAMILIES, RECURRENT, RESTARTING, SHARING, STATEFUL
from hf import (
    DEVICES,
    EXACT,
    assert_like_hosts,
    assert_padded_prompts_decode,
    assert_within_rounding,
    chunks_of,
    feed,
    host_cache,
    make_model,
    tokens,
    torch,
)

import lowkey
from lowkey.transformers import LowkeyCache, geometry_of, layers_of


def lowkey_cache(model, plan='fp16', budget='64MiB', **options):
    return LowkeyCache(model.config, plan, budget, **options)


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', FAMILIES)
def test_logits_equal_the_hosts_within_rounding(name, device):
    """Prefill, a chunk and single tokens, two prompts, well beyond the sliding windows."""
    model, ids = make_model(name, device), tokens(1, 2, 70, device=device)
    chunks = chunks_of(name, ids, 50, 17, 1, 1, 1)
    with lowkey_cache(model) as cache:
        got = feed(model, cache, *chunks)
        assert cache.lengths == [70, 70] and cache.get_seq_length() == 70
        assert (cache.stats().state_bytes > 0) == (name in STATEFUL)
    assert model.config._attn_implementation == 'sdpa'
    assert_like_hosts(model, got, *chunks, n_last=70)


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', FAMILIES)
def test_generate_with_left_padding(name, device):
    assert_padded_prompts_decode(make_model(name, device), lowkey_cache, 8, [37, 24])


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', FAMILIES)
def test_rows_are_reordered_and_repeated(name, device):
    """As beam search does it: rows change places, and one is there twice."""
    model, ids = make_model(name, device), tokens(4, 3, 40, device=device)
    rows = torch.tensor([2, 0, 0], device=device)
    with lowkey_cache(model) as cache:
        feed(model, cache, ids[:, :36])
        cache.reorder_cache(rows)
        got = feed(model, cache, *ids[:, 36:].split(1, 1))
        assert cache.lengths == [40] * 3
    want, rounded = [], []
    for kind, found in zip(EXACT, (want, rounded)):
        for row, own in zip(rows.tolist(), ids[:, 36:]):
            found.append(feed(model, host_cache(model, kind), ids[row:row + 1, :36], *own[None].split(1, 1))[:, 36:])
    assert_within_rounding(got, torch.cat(want), torch.cat(rounded))


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', ['gemma4', 'lfm2', 'qwen3.5', 'falcon-h1'])
def test_beam_search(name, device):
    model, ids = make_model(name, device), tokens(12, 2, 20, device=device)
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=8, num_beams=3, do_sample=False)
    want = model.generate(ids, **options)
    with lowkey_cache(model) as cache:
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), want)


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', FAMILIES)
def test_a_copy_is_a_fork(name, device):
    """The states of a copy are its own."""
    model, ids = make_model(name, device), tokens(5, 2, 50, device=device)
    first, second = (chunks_of(name, torch.cat([ids[:, :30], more], 1), 30, 5, 1)
                     for more in (ids[:, 30:36], ids[:, 40:46]))
    with lowkey_cache(model) as cache:
        feed(model, cache, first[0])
        other = copy.deepcopy(cache)
        n_bytes = cache.stats().state_bytes
        assert other.stats().state_bytes == n_bytes and bool(n_bytes) == (name in STATEFUL)
        assert cache.stats().shared_bytes > 0
        found = feed(model, cache, *first[1:])
        assert other.get_seq_length() == 30 and (cache.stats().state_bytes > n_bytes) == (name in STATEFUL)
        of_other = feed(model, other, *second[1:])
        assert cache.lengths == other.lengths == [36, 36]
        other.close()
        del other
        gc.collect()
        more = feed(model, cache, ids[:, 46:47])
    assert_like_hosts(model, found, *first, n_last=6)
    assert_like_hosts(model, of_other, *second, n_last=6)
    assert_like_hosts(model, more, *first, ids[:, 46:47], n_last=1)


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', FAMILIES)
def test_crop(name, device):
    """The last pass, and everything, can be removed; parts of a pass only where there are no recurrent states."""
    model, ids = make_model(name, device), tokens(6, 2, 50, device=device)
    wider_ids = tokens(7, 3, 20, device=device)
    first, last = ids[:, :30], ids[:, 40:41]
    with lowkey_cache(model) as cache:
        feed(model, cache, first, ids[:, 30:31])
        cache.crop(-1)
        assert cache.lengths == [30, 30] and cache.get_seq_length() == 30
        got = feed(model, cache, last)
        if name in STATEFUL:
            with pytest.raises(lowkey.UnsupportedError, match='a crop to 29 columns: the newest states of .* that are '
                                                              'kept at or before them are those after 0 columns'):
                cache.crop(-2)
            assert cache.lengths == [31, 31]
        cache.crop(0)
        more = feed(model, cache, ids[:, 41:42])
        cache.crop(-100)
        assert cache.lengths == [0, 0] and cache.get_seq_length() == 0
        anew = feed(model, cache, first)
        cache.reset()
        wider = feed(model, cache, wider_ids)
        assert cache.lengths == [20] * 3
    assert_like_hosts(model, got, first, last, n_last=1)
    assert_like_hosts(model, more, first, last, ids[:, 41:42], n_last=1)
    assert_like_hosts(model, anew, first, n_last=30)
    assert_like_hosts(model, wider, wider_ids, n_last=20)


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', [*SHARING, *CONVOLUTIONS])
def test_prompt_lookup_rolls_back(name, device):
    """Drafts that the model refuses are cropped, in convolutions too: transformers records their inputs."""
    model = make_model(name, device)
    ids = torch.cat([tokens(4, 1, 12, device=device)] * 3, 1)
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    want = model.generate(ids, **options)
    with lowkey_cache(model) as cache:
        assert torch.equal(model.generate(ids, past_key_values=cache, prompt_lookup_num_tokens=4, **options), want)
        other, more = copy.deepcopy(cache), tokens(15, 1, 5, device=device)
        found = feed(model, other, more[:, :1], more)
        other.crop(-2)
        assert torch.equal(feed(model, cache, more[:, :1], more), found)
        assert cache.lengths[0] - other.lengths[0] == 2
        cache.crop(-2)
        last = more[:, 2:3]
        assert torch.equal(feed(model, cache, last), feed(model, other, last))
        other.close()


@pytest.mark.parametrize('name', RECURRENT)
def test_assisted_generation_is_refused(name):
    model, ids = make_model(name), tokens(8, 1, 20)
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)
    with lowkey_cache(model) as cache:
        with pytest.raises(ValueError, match='assisted generation is not supported'):  # by transformers
            model.generate(ids, past_key_values=cache, prompt_lookup_num_tokens=4, **options)
        with pytest.raises(lowkey.UnsupportedError, match='assisted generation removes parts of passes'):
            cache.activate_past_recording()
        assert cache.lengths == [] and cache.stats() is None
        with cache.paused():
            want = model.generate(ids, **options)
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), want)


@pytest.mark.parametrize('name, failing', [
    ('gemma3n', 4), ('lfm2', 2), ('qwen3.5', 1), ('qwen3.5', 3), ('falcon-h1', 1), ('granite4', 2)])
def test_a_failed_pass_is_dropped(name, failing):
    """Also one that fails after all attention and before the last state (layer 3 of qwen3.5)."""
    model, ids = make_model(name), tokens(9, 2, 30)
    with lowkey_cache(model) as cache:
        feed(model, cache, ids[:, :20])
        layer = model.get_decoder().layers[failing]
        for act in (lambda: feed(model, cache, ids[:, 20:]), lambda: cache.crop(0),
                    lambda: copy.deepcopy(cache).close()):
            hook = layer.register_forward_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                feed(model, cache, ids[:, 10:15])
            hook.remove()
            assert cache.lengths == [20, 20] and cache.get_seq_length() == 20
            act()
            if cache.get_seq_length() > 20:
                cache.crop(-10)
        got = feed(model, cache, ids[:, 20:])
    assert_like_hosts(model, got, ids[:, :20], ids[:, 20:], n_last=10)


@pytest.mark.parametrize('name', RESTARTING)
def test_passes_that_a_model_computes_wrongly(name):
    model, ids = make_model(name), tokens(10, 1, 30)
    with lowkey_cache(model) as cache:
        feed(model, cache, ids[:, :20])
        with pytest.raises(lowkey.UnsupportedError, match='begins its recurrent states anew.*a pass of 5 tokens cannot '
                                                          'follow 20 earlier ones'):
            feed(model, cache, ids[:, 20:25])
        assert cache.lengths == [20]
        got = feed(model, cache, ids[:, 20:21])
    assert_like_hosts(model, got, ids[:, :20], ids[:, 20:21], n_last=1)


@pytest.mark.parametrize('name', ['qwen3.5', 'falcon-h1', 'lfm2', 'gemma4'])
def test_another_batch_is_refused(name):
    model, ids = make_model(name), tokens(14, 2, 30)
    with lowkey_cache(model) as cache:
        feed(model, cache, ids[:, :20])
        with pytest.raises(lowkey.ArgumentError, match='a batch of 1 prompts on a cache of 2 sequences'):
            feed(model, cache, ids[:1, 20:25])
        got = feed(model, cache, ids[:, 20:])
    assert_like_hosts(model, got, ids[:, :20], ids[:, 20:], n_last=10)


def test_layers_of_a_model():
    model = layers_of(make_model('nemotron-h').config)
    assert (model.n_layers, model.attention, model.states, model.recurrent) == (6, (2, 5), {0: 1, 4: 1}, True)
    model = layers_of(make_model('lfm3').config)
    assert (model.attention, list(model.states), model.recurrent) == ((1, 2, 3), [0, 4], False)
    config = make_model('gemma4').config
    assert layers_of(config).attention == tuple(range(6)) and not layers_of(config).states
    geometry = geometry_of(config)
    assert [layer.kv_layer for layer in geometry.layers] == [None] * 4 + [2, 3]
    assert [layer.head_dim for layer in geometry.layers] == [32, 64] * 3
    assert [layer.window_tokens for layer in geometry.layers] == [24, 0] * 3
    assert [layer.scale for layer in geometry_of(make_model('zamba2').config).layers] == [32 ** -0.5] * 2


def test_reading_layers_take_no_bytes():
    model, ids = make_model('gemma4'), tokens(13, 1, 500)
    owning = lowkey.Geometry(geometry_of(model.config).layers[:4])
    with lowkey_cache(model, 'kivi2') as cache:
        feed(model, cache, *ids.split(100, 1))
        bytes_of = [lowkey.Plan.preset('kivi2', geometry).bytes(500).payload_bytes
                    for geometry in (cache.geometry, owning)]
        assert bytes_of[0] == bytes_of[1] and cache.stats().pages_packed > 0
