# SPDX-License-Identifier: Apache-2.0
"""Decode steps from CUDA graphs."""

from __future__ import annotations

import copy
import gc
import inspect
import warnings

import pytest
from hf import make_model, tokens, torch, transformers

import lowkey
from lowkey.transformers import LowkeyCache, sink_logits_of

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU that torch runs on')
GREEDY = dict(do_sample=False, max_new_tokens=24)
names_shared_layers = pytest.mark.skipif(
    not hasattr(transformers.Gemma3nTextConfig(), 'kv_sharing_modes'),
    reason='this transformers does not name the layers that share keys and values')
NAMES = ['llama', 'llama-mha-64', 'qwen3', 'qwen2', 'mistral', 'gemma3', 'gemma2',
         pytest.param('gemma3n', marks=names_shared_layers)]
HYBRIDS = ['qwen3.5', 'granite4-state-last', 'falcon-h1', 'lfm2', 'lfm3', 'olmo-hybrid', 'zamba', 'zamba2']


def graph_cache(model, plan='kivi4', **options):
    return LowkeyCache(model, plan, '256MiB', sink_logits=sink_logits_of(model), graph=True, **options)


def plain_cache(model, plan='kivi4', **options):
    return LowkeyCache(model.config, plan, '256MiB', sink_logits=sink_logits_of(model), **options)


def graphs_of(cache):
    """The graphs of a cache that were found to give what passes without a graph give."""
    return [made for made in cache._graphs._graphs.values() if made is not None and made.is_verified]


def decode(model, cache, ids, n_prompt):
    """Logits of tokens that follow a prompt one by one."""
    with torch.no_grad():
        model(ids[:, :n_prompt], past_key_values=cache, logits_to_keep=1)
        return follow(model, cache, ids, n_prompt)


def follow(model, cache, ids, first):
    """Logits of the tokens from `first` on, one pass each."""
    return torch.cat([model(ids[:, i:i + 1], past_key_values=cache).logits for i in range(first, ids.shape[1])], 1)


# Without a GPU.


def test_a_graph_needs_the_model():
    with pytest.raises(lowkey.ArgumentError, match='give LowkeyCache the model'):
        LowkeyCache(make_model('llama').config, graph=True)


def test_the_cpu_has_no_graphs():
    """A warning has the reason, once, and the tokens are those without a graph."""
    model, ids = make_model('llama'), tokens(1, 1, 30)
    with plain_cache(model) as cache:
        want = model.generate(ids, past_key_values=cache, **GREEDY)
    with graph_cache(model) as cache, pytest.warns(UserWarning, match='on cpu, and graphs are of CUDA') as found:
        assert torch.equal(model.generate(ids, past_key_values=cache, **GREEDY), want)
    assert sum('without a graph' in str(one.message) for one in found) == 1


def test_padding_is_seen_before_the_device_is():
    """A batch that is padded on the left decodes as without a graph, and a hidden new token is no decode step."""
    model, ids, mask = make_model('llama'), tokens(7, 2, 30), torch.ones(2, 30, dtype=torch.long)
    mask[1, :13] = 0
    with plain_cache(model) as cache:
        want = model.generate(ids, attention_mask=mask, past_key_values=cache, **GREEDY)
    with graph_cache(model) as cache, pytest.warns(UserWarning, match='graphs are of CUDA'):
        assert torch.equal(model.generate(ids, attention_mask=mask, past_key_values=cache, **GREEDY), want)
    with graph_cache(model) as cache, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('error')
        model(ids, attention_mask=mask, past_key_values=cache, logits_to_keep=1)
        hidden = torch.cat([mask, torch.tensor([[1], [0]])], 1)
        model(ids[:, :1], attention_mask=hidden, past_key_values=cache)
        assert cache.lengths == [31, 17]


def test_the_forward_pass_is_restored():
    """By the last cache that has it, copies among them."""
    model = make_model('llama')
    names = list(inspect.signature(model.forward).parameters)
    one = graph_cache(model)
    assert 'forward' in vars(model) and list(inspect.signature(model.forward).parameters) == names
    other, fork = graph_cache(model), copy.deepcopy(one)
    for cache in (one, other):
        cache.close()
        assert 'forward' in vars(model)
    del fork
    gc.collect()
    assert 'forward' not in vars(model)


# On a GPU.


@needs_gpu
@pytest.mark.parametrize('name', [*NAMES, *HYBRIDS])
def test_graphs_give_the_same_logits(name):
    """Across pages and beyond sliding windows, for two prompts."""
    model, ids = make_model(name, 'cuda'), tokens(2, 2, 300, device='cuda')
    with plain_cache(model) as cache:
        want = decode(model, cache, ids, 100)
    with graph_cache(model) as cache, warnings.catch_warnings():
        warnings.simplefilter('error')
        got = decode(model, cache, ids, 100)
        assert len(graphs_of(cache)) == 1 and cache.lengths == [300, 300]
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3 * want.abs().max().item())


@needs_gpu
@pytest.mark.parametrize('name', ['llama', 'gemma3', 'qwen3.5', 'granite4-state-last', 'lfm2'])
def test_generate(name):
    """Greedy, a padded batch, beams, and another batch after reset(), each as without a graph."""
    model, ids, mask = make_model(name, 'cuda'), tokens(3, 2, 40, device='cuda'), torch.ones(2, 40, dtype=torch.long)
    mask[1, :13] = 0
    calls = [(ids[:1], dict(GREEDY)), (ids, dict(GREEDY, attention_mask=mask.cuda())),
             (ids[:1], dict(GREEDY, num_beams=3)), (ids.repeat(8, 1), dict(GREEDY))]
    with graph_cache(model) as cache, warnings.catch_warnings():
        warnings.simplefilter('error')
        for given, options in calls:
            with plain_cache(model) as plain:
                want = model.generate(given, past_key_values=plain, **options)
            assert torch.equal(model.generate(given, past_key_values=cache, **options), want)
            assert graphs_of(cache)
            cache.reset()


@needs_gpu
@pytest.mark.parametrize('name', ['qwen3', 'qwen3.5', 'granite4-state-last', 'lfm2'])
@pytest.mark.parametrize('batch', [1, 2])
def test_rollback_and_copies(name, batch):
    """crop() and deepcopy() between replays; a copy runs from the same graphs."""
    model, ids = make_model(name, 'cuda'), tokens(4, batch, 200, device='cuda')
    with plain_cache(model) as cache:
        want = decode(model, cache, ids, 150)
    with graph_cache(model) as cache:
        decode(model, cache, ids, 150)
        cache.crop(-40)
        with copy.deepcopy(cache) as fork, torch.no_grad():
            for each in (fork, cache):
                got = follow(model, each, ids, 160)
                torch.testing.assert_close(got, want[:, 10:], rtol=1e-3, atol=1e-3 * want.abs().max().item())
            assert len(graphs_of(fork)) == 1 and fork.lengths == cache.lengths == [200] * batch


@needs_gpu
def test_what_no_graph_holds():
    """A pass whose result depends on the number of tokens, and one that waits for the GPU: each goes on without."""
    model, ids = make_model('llama', 'cuda'), tokens(5, 1, 60, device='cuda')
    forward = model.forward

    def counting(input_ids=None, position_ids=None, past_key_values=None, **options):
        out = forward(input_ids=input_ids, position_ids=position_ids, past_key_values=past_key_values, **options)
        out.logits = out.logits + past_key_values.get_seq_length()
        return out

    def waiting(input_ids=None, position_ids=None, past_key_values=None, **options):
        out = forward(input_ids=input_ids, position_ids=position_ids, past_key_values=past_key_values, **options)
        out.logits = out.logits + out.logits.max().item()
        return out

    for own, sentence in ((counting, 'depends on the number of tokens'), (waiting, 'its capture failed')):
        model.forward = own
        with plain_cache(model) as cache:
            want = decode(model, cache, ids, 50)
        with graph_cache(model) as cache, pytest.warns(UserWarning, match=sentence):
            torch.testing.assert_close(decode(model, cache, ids, 50), want)
            assert cache.lengths == [60] and not graphs_of(cache)
        assert model.forward is own


@needs_gpu
def test_what_is_no_decode_step():
    """Passes of several tokens, with gradients, or that hide their token run without a graph and without a warning."""
    model, ids = make_model('llama', 'cuda'), tokens(6, 2, 64, device='cuda')
    mask = torch.ones(2, 64, dtype=torch.long, device='cuda')
    mask[1, 50:] = 0
    with graph_cache(model) as cache, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('error')
        model(ids[:, :50], attention_mask=mask[:, :50], past_key_values=cache)
        for i in range(50, 64):
            model(ids[:, i:i + 1], attention_mask=mask[:, :i + 1], past_key_values=cache)
        assert cache.lengths == [64, 50] and not cache._graphs._graphs
