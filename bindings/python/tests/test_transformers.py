# SPDX-License-Identifier: Apache-2.0
"""Models of transformers on a LowkeyCache."""

from __future__ import annotations

import copy
import gc
import warnings

import pytest
from hf import (
    COMMON,
    DEVICES,
    EXACT,
    MODEL_FOLDER,
    MODELS,
    assert_padded_prompts_decode,
    assert_within_rounding,
    host_cache,
    logits,
    make_model,
    own_model,
    plain_attention,
    tokens,
    torch,
    transformers,
)

import lowkey
from lowkey.transformers import LowkeyCache, geometry_of, sink_logits_of


def lowkey_cache(model, plan='fp16', budget='256MiB', **options):
    return LowkeyCache(model.config, plan, budget, sink_logits=sink_logits_of(model), **options)


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', MODELS)
def test_logits_equal_the_hosts_within_rounding(name, device):
    """Prefill, a chunk and single tokens, two prompts, well beyond the sliding windows."""
    model = make_model(name, device)
    ids = tokens(1, 2, 111, device=device)
    chunks = ids.split([80, 28, 1, 1, 1], 1)
    want, rounded = (logits(model, host_cache(model, kind), *chunks) for kind in EXACT)
    with lowkey_cache(model) as cache:
        got = logits(model, cache, *chunks)
        assert cache.lengths == [111, 111] and cache.get_seq_length() == 111
        assert cache.stats().n_tokens == 222
    assert model.config._attn_implementation == plain_attention(name)
    assert_within_rounding(got, want, rounded)


@pytest.mark.parametrize('name', ['llama', 'qwen3', 'mistral', 'gemma3'])
def test_generate_gives_the_same_tokens(name):
    model, ids = make_model(name), tokens(2, 1, 50)
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    want = model.generate(ids, **options)
    with lowkey_cache(model) as cache:
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), want)
        assert cache.lengths == [73]


@pytest.mark.parametrize('name', ['llama', 'gemma3'])
def test_left_padding(name):
    """Rows of a padded batch give what they give alone, and padding is not kept."""
    model, lengths, width = make_model(name), [60, 17, 41], 60
    rows = [tokens(10 + i, 1, n + 5) for i, n in enumerate(lengths)]
    ids, mask = torch.zeros(3, width + 5, dtype=torch.long), torch.zeros(3, width + 5, dtype=torch.long)
    for i, (row, n) in enumerate(zip(rows, lengths)):
        ids[i, width - n:], mask[i, width - n:] = row[0], 1
    positions = (mask.cumsum(1) - 1).clamp(0)
    with lowkey_cache(model) as cache, torch.no_grad():
        passes, begin = [], 0
        for end in (width, width + 1, width + 5):
            passes.append(model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache,
                               position_ids=positions[:, begin:end]).logits)
            begin = end
        assert cache.lengths == [n + 5 for n in lengths] and cache.n_columns == width + 5
        got = torch.cat(passes, 1)
    for i, (row, n) in enumerate(zip(rows, lengths)):
        want, rounded = (logits(model, host_cache(model, kind), row) for kind in EXACT)
        assert_within_rounding(got[i:i + 1, width - n:], want, rounded)


def test_generate_with_left_padding():
    assert_padded_prompts_decode(make_model('qwen2'), lowkey_cache, 12, [41, 28])


def test_prompt_lookup_rolls_back():
    """Drafts that the model refuses are cropped."""
    model = make_model('llama')
    ids = torch.cat([tokens(4, 1, 12)] * 4, 1)
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    want = model.generate(ids, **options)
    with lowkey_cache(model) as cache:
        got = model.generate(ids, past_key_values=cache, prompt_lookup_num_tokens=4, **options)
    assert torch.equal(got, want)


@pytest.mark.parametrize('name', ['llama', 'mistral'])
def test_beam_search(name):
    """Beams that branch are forks: they share the prompt's pages."""
    model, ids = make_model(name), tokens(12, 2, 40)
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=8, num_beams=3, do_sample=False)
    want = model.generate(ids, **options)
    with lowkey_cache(model) as cache:
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), want)
        assert cache.lengths == [47] * 6 and cache.stats().shared_bytes > 0


def test_rows_are_repeated():
    model, ids = make_model('llama'), tokens(13, 2, 30)
    with lowkey_cache(model, max_sequences=4) as cache, torch.no_grad():
        model(ids[:, :20], past_key_values=cache)
        cache.batch_repeat_interleave(2)
        got = model(ids[[0, 0, 1, 1], 20:], past_key_values=cache).logits
        with pytest.raises(lowkey.BudgetError, match='max_sequences of 4'):
            cache.batch_repeat_interleave(2)
    want, rounded = (logits(model, host_cache(model, kind), ids)[[0, 0, 1, 1], 20:] for kind in EXACT)
    assert_within_rounding(got, want, rounded)


@pytest.mark.parametrize('device', DEVICES)
def test_existing_sequences(device):
    """A batch continues a snapshot's sequences, the shorter ones as padded prompts."""
    model, lengths = make_model('llama', device), [40, 23]
    ids = tokens(14, 2, 48, device=device)
    mask = (torch.arange(48)[None] >= 40 - torch.tensor(lengths)[:, None]).long().to(device)
    positions = (mask.cumsum(1) - 1).clamp(0)

    def run(cache, begin, end):
        with torch.no_grad():
            return model(ids[:, begin:end], attention_mask=mask[:, :end], position_ids=positions[:, begin:end],
                         past_key_values=cache).logits

    with lowkey_cache(model) as whole:
        run(whole, 0, 40)
        want = torch.cat([run(whole, 40, 41), run(whole, 41, 48)], 1)
    options = dict(geometry=geometry_of(model.config), max_sequences=3, max_step_tokens=96)
    with lowkey.Context(device) as context, lowkey.Cache(context, 'fp16', '64MiB', **options) as first, \
            lowkey.Cache(context, 'fp16', '64MiB', **options) as second:
        with LowkeyCache.over(model.config, first, [first.add(), first.add()]) as cache:
            run(cache, 0, 40)
        assert model.config._attn_implementation == 'sdpa'
        loaded = second.load(first.save())
        with LowkeyCache.over(model.config, second, loaded) as cache:
            assert cache.lengths == lengths and cache.get_seq_length() == 40
            got = torch.cat([run(cache, 40, 41), run(cache, 41, 48)], 1)
            cache.crop(-30)
            assert cache.lengths == [18, 1] and cache.get_seq_length() == 18
        assert torch.equal(got, want)
        assert [len(sequence) for sequence in loaded] == [18, 1], 'sequences outlive the cache over them'
        with pytest.raises(lowkey.ArgumentError, match='at least one sequence, each once'):
            LowkeyCache.over(model.config, second, loaded[:1] * 2)
        with pytest.raises(lowkey.ArgumentError, match='belongs to another cache'):
            LowkeyCache.over(model.config, first, loaded)
        with pytest.raises(lowkey.ArgumentError, match='another geometry'):
            LowkeyCache.over(make_model('qwen2').config, second, loaded, scale=0.5)
        loaded[1].remove()
        with pytest.raises(lowkey.NotFoundError):
            LowkeyCache.over(model.config, second, loaded)
        assert model.config._attn_implementation == 'sdpa'


@pytest.mark.parametrize('device', DEVICES)
def test_chunks_of_a_prompt(device):
    """Cocktail: the prompt is deferred, its question scores the chunks, decode runs on their classes."""
    model, n_chunks, n_query = make_model('llama', device), 8, 6
    n_context = 32 + 32 * n_chunks
    ids = tokens(15, 1, n_context + n_query + 3, device=device)
    chunks = ids.split([n_context + n_query, 1, 1, 1], 1)
    with lowkey.Context(device) as context, \
            lowkey.Cache(context, 'cocktail', '64MiB', geometry=geometry_of(model.config)) as store:
        row = store.add()
        row.defer()
        row.score_attention(lowkey.chunks.Attention(n_query, n_chunks))
        with LowkeyCache.over(model.config, store, [row]) as cache:
            got = [logits(model, cache, chunks[0])]
            classes, _ = lowkey.chunks.Quota(low_share=0.5, high_share=0.5).classes(row.attention_scores(n_chunks))
            row.assign_chunks(n_context, classes)
            got.append(logits(model, cache, *chunks[1:]))
        kept = row.chunks()
        assert kept.assigned == classes and (kept.n_low, kept.n_high) == (4, 4)
        assert len(row) == ids.shape[1] and store.stats().payload_bytes > 0
    want, rounded = (logits(model, host_cache(model, kind), *chunks) for kind in EXACT)
    n_prompt = chunks[0].shape[1]
    assert_within_rounding(got[0], want[:, :n_prompt], rounded[:, :n_prompt])
    packed = (got[1] - want[:, n_prompt:]).norm() / want[:, n_prompt:].norm()
    assert 0 < packed < 0.3


@pytest.mark.parametrize('device', DEVICES)
def test_classes_come_before_the_prompt(device):
    model, n_chunks = make_model('llama', device), 8
    n_context, step = 32 + 32 * n_chunks, 64
    ids = tokens(16, 1, n_context + 3, device=device)
    steps = ids[:, :n_context].split(step, 1)
    classes = ['low', 'high'] * (n_chunks // 2)
    plan = lowkey.Plan.preset('cocktail', geometry_of(model.config))
    budget = plan.chunk_prefill_bytes(ids.shape[1], 4, 0, 4, step_tokens=step)
    with lowkey.Context(device) as context, \
            lowkey.Cache(context, plan, budget, max_sequences=1, max_step_tokens=step) as store:
        row = store.add()
        row.assign_chunks(n_context, classes)
        with LowkeyCache.over(model.config, store, [row]) as cache:
            got = logits(model, cache, *steps, *ids[:, n_context:].split(1, 1))
        kept = row.chunks()
        assert kept.stored == classes and kept.n_pending == 0
    want = logits(model, host_cache(model), *steps, *ids[:, n_context:].split(1, 1))
    packed = (got[:, n_context:] - want[:, n_context:]).norm() / want[:, n_context:].norm()
    assert 0 < packed < 0.3


def test_crop_and_rows():
    model, ids = make_model('llama'), tokens(5, 3, 40)
    mask = torch.ones_like(ids)
    mask[1, :36] = 0
    with lowkey_cache(model) as cache, torch.no_grad():
        model(ids[:, :38], attention_mask=mask[:, :38], past_key_values=cache)
        model(ids[:, 38:], attention_mask=mask, past_key_values=cache)
        assert cache.lengths == [40, 4, 40]
        cache.crop(-5)
        assert cache.lengths == [35, 0, 35] and cache.get_seq_length() == 35
        cache.crop(0)
        with pytest.raises(lowkey.ArgumentError, match='tokens_to_remove is 5'):
            cache.crop(5)
        cache.batch_select_indices(torch.tensor([2, 0]))
        assert cache.lengths == [35, 35] and cache.batch_size == 2
        again = model(ids[[2, 0], 35:], past_key_values=cache).logits
        cache.reset()
        assert cache.lengths == [] and cache.get_seq_length() == 0
        model(ids[:1], past_key_values=cache)
        assert cache.lengths == [40]
    whole, rounded = (logits(model, host_cache(model, kind), ids[[2, 0], :35], ids[[2, 0], 35:])[:, 35:]
                      for kind in EXACT)
    assert_within_rounding(again, whole, rounded)


def test_packed_plans():
    """Fewer bits are fewer bytes and larger errors; a PlanSpec and a Plan serve as well as a name."""
    model, ids = make_model('llama-mha-64'), tokens(6, 1, 400)
    want = logits(model, host_cache(model), *ids.split([399, 1], 1))
    spec = lowkey.PlanSpec('own', layers=lowkey.LayerRule(lowkey.KeyRule(8), lowkey.ValueRule(8)))
    errors, sizes = {}, {}
    for plan in ('fp16', 'kivi4', 'kivi2', spec, lowkey.Plan.preset('int8', geometry_of(model.config))):
        with lowkey_cache(model, plan) as cache:
            name = plan if isinstance(plan, str) else plan.name
            errors[name] = (logits(model, cache, *ids.split([399, 1], 1)) - want)[:, -1].abs().max().item()
            stats = cache.stats()
            sizes[name] = stats.payload_bytes + stats.metadata_bytes + stats.recent_bytes
    assert errors['fp16'] < errors['int8'] < errors['kivi4'] < errors['kivi2']
    assert sizes['fp16'] > sizes['int8'] > sizes['kivi4'] > sizes['kivi2']
    assert (errors['own'], sizes['own']) == (errors['int8'], sizes['int8'])


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_models_in_sixteen_bits(dtype):
    model = make_model('llama').to(getattr(torch, dtype))
    ids = tokens(7, 2, 70)
    want = logits(model, host_cache(model), *ids.split([60, 10], 1))
    exact = logits(make_model('llama'), host_cache(model), ids)
    with lowkey_cache(model) as cache:
        got = logits(model, cache, *ids.split([60, 10], 1))
    # Both round to the model's type after each operation: neither is nearer to the exact answer by much.
    assert (got - exact).abs().max() < 2 * (want - exact).abs().max()


def test_own_model():
    """The model that ships with the project, as the Qwen2 that it is."""
    model = own_model()
    text = (MODEL_FOLDER / 'README.md').read_bytes()[:700]
    ids = torch.tensor([[0, *text]])
    chunks = ids.split([600, 90, 11], 1)
    want, rounded = (logits(model, host_cache(model, kind), *chunks) for kind in EXACT)

    def loss(found):
        return torch.nn.functional.cross_entropy(found[0, :-1], ids[0, 1:]).item()

    with LowkeyCache(model.config, 'fp16', '64MiB') as cache:
        assert_within_rounding(logits(model, cache, *chunks), want, rounded)
    with LowkeyCache(model.config, 'kitty-pro', '64MiB') as cache:
        packed = loss(logits(model, cache, *chunks))
        assert cache.stats().pages_packed > 0
    assert loss(want) < 3 and abs(packed - loss(want)) < 0.05, 'nats per byte'


def test_a_failed_pass_is_dropped():
    model, ids = make_model('llama'), tokens(8, 1, 20)
    with lowkey_cache(model) as cache, torch.no_grad():
        logits(model, cache, ids[:, :12])
        hook = model.model.layers[1].mlp.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(ids[:, 12:], past_key_values=cache)
        hook.remove()
        assert cache.lengths == [12] and cache.get_seq_length() == 12
        got = logits(model, cache, ids[:, 12:])
    want, rounded = (logits(model, host_cache(model, kind), ids)[:, 12:] for kind in EXACT)
    assert_within_rounding(got, want, rounded)


def test_attention_is_set_back():
    model = make_model('llama')
    first, second = lowkey_cache(model), lowkey_cache(model)
    assert model.config._attn_implementation == 'lowkey'
    first.close()
    first.close()
    assert model.config._attn_implementation == 'lowkey'
    del second
    gc.collect()
    assert model.config._attn_implementation == 'sdpa'


def test_misuse():
    model, ids = make_model('llama'), tokens(9, 2, 10)
    with torch.no_grad():
        with lowkey_cache(model) as cache:
            with pytest.raises(lowkey.StateError, match='pass past_key_values=LowkeyCache'):
                model(ids)
            model(ids, past_key_values=cache)
            with pytest.raises(lowkey.ArgumentError, match='a batch of 1 prompts on a cache of 2'):
                model(ids[:1], past_key_values=cache)
            mask = torch.ones(2, 12, dtype=torch.long)
            mask[0, 3] = 0
            with pytest.raises(lowkey.ArgumentError, match=r'\[9, 10\] earlier tokens.*tokens cannot be hidden later'):
                model(ids[:, :2], attention_mask=mask, past_key_values=cache)
            with pytest.raises(lowkey.ArgumentError, match=r'has shape \[2, 2\], this pass needs \[2, 12\]'):
                model(ids[:, :2], attention_mask=mask[:, 2:4], past_key_values=cache)
            with pytest.raises(lowkey.UnsupportedError, match='causal by itself'):
                model(ids[:, :2], attention_mask=torch.ones(2, 1, 2, 12), past_key_values=cache)
            model(ids[:, :1], past_key_values=cache)  # all refusals left the cache as it was
            assert cache.lengths == [11, 11]
            with torch.enable_grad(), pytest.raises(lowkey.ArgumentError, match='requires a gradient'):
                model(ids[:, :1], past_key_values=cache)
        model.set_attn_implementation('lowkey')
        with pytest.raises(lowkey.ClosedError, match='the LowkeyCache is closed'):
            model(ids, past_key_values=cache)
        model.set_attn_implementation('sdpa')
        with lowkey_cache(model, budget='64KiB') as cache, pytest.raises(lowkey.BudgetError, match='bytes'):
            model(ids, past_key_values=cache)
        with lowkey_cache(model, max_step_tokens=16) as cache, pytest.raises(lowkey.ArgumentError, match='16'):
            model(ids, past_key_values=cache)


@pytest.mark.parametrize('kind, options, sentence', [
    ('deepseek_v3', {}, 'latent keys'),
    ('llama4_text', {}, 'chunked_attention'),
    ('gemma4_text', {'global_head_dim': 528}, r'layer 5 has a head_dim of 528: lowkey has multiples of 16 from 32 '
     'to 512'),
    ('mimo_v2_flash', {}, 'layer 0 has keys of 192 channels and values of 128'),
    ('kimi_linear', {}, 'latent keys'),
    ('qwen4_exp_text', {}, 'layer 3 is indexed_attention'),
    ('mamba2', {}, 'mamba2 has no attention over heads'),
    ('recurrent_gemma', {}, 'keeps its recurrent states in its modules'),
    ('minimax', {}, 'a cache class of its own'),
    ('inkling_text', {}, 'position bias'),
    ('t5', {}, 't5 has an encoder'),
])
def test_models_that_lowkey_does_not_serve(kind, options, sentence):
    config = transformers.AutoConfig.for_model(kind, **options)
    with pytest.raises(lowkey.UnsupportedError, match=sentence):
        LowkeyCache(config, 'fp16', '1GiB')


def test_wrong_scale_and_sinks():
    model, ids = make_model('gpt-oss'), tokens(11, 1, 4)
    with LowkeyCache(model.config, 'fp16', '64MiB') as cache, torch.no_grad(), \
            pytest.raises(lowkey.ArgumentError, match='sink_logits_of'):
        model(ids, past_key_values=cache)
    model = make_model('llama')
    with LowkeyCache(model.config, 'fp16', '64MiB', scale=0.5) as cache, torch.no_grad(), \
            pytest.raises(lowkey.ArgumentError, match='give scale'):
        model(ids, past_key_values=cache)
    assert COMMON['num_attention_heads'] == geometry_of(model.config).layers[0].n_query_heads


# What a program does around a cache.


def test_a_copy_is_a_fork():
    model, ids = make_model('llama'), tokens(20, 2, 60)
    with torch.no_grad(), lowkey_cache(model) as cache:
        model(ids[:, :40], past_key_values=cache)
        other = copy.deepcopy(cache)
        assert cache.stats().n_sequences == 4 and cache.stats().shared_bytes > 0
        first = model(ids[:, 40:50], past_key_values=cache).logits
        second = model(ids[:, 50:], past_key_values=other).logits
        assert other.lengths == cache.lengths == [50, 50]
        other.crop(-5)
        assert (other.lengths, cache.lengths) == ([45, 45], [50, 50])
        other.close()
        assert cache.stats().n_sequences == 2 and model.config._attn_implementation == 'lowkey'
        del other
        third = copy.deepcopy(cache)  # is collected, not closed
        del third
        gc.collect()
        model(ids[:, 50:51], past_key_values=cache)
        assert cache.stats().n_sequences == 2
        copied = copy.deepcopy(cache)
    assert copied.lengths == [51, 51], 'a copy outlives its original'
    copied.close()
    assert model.config._attn_implementation == 'sdpa'
    for got, more in ((first, ids[:, 40:50]), (second, ids[:, 50:])):
        want, rounded = (logits(model, host_cache(model, kind), ids[:, :40], more)[:, 40:]
                         for kind in EXACT)
        assert_within_rounding(got, want, rounded)
    with torch.no_grad(), lowkey_cache(model, max_sequences=2) as cache:
        model(ids, past_key_values=cache)
        with pytest.raises(lowkey.BudgetError, match='a copy forks 2 sequences.*larger max_sequences'):
            copy.deepcopy(cache)
        assert cache.stats().n_sequences == 2


def test_a_copy_over_existing_sequences():
    """The copy's forks are its own; the caller's sequences stay, whoever is closed or collected first."""
    model, ids = make_model('llama'), tokens(27, 1, 30)
    with lowkey.Context('cpu') as context, torch.no_grad(), \
            lowkey.Cache(context, 'fp16', '64MiB', geometry=geometry_of(model.config), max_sequences=2) as store:
        sequence = store.add()
        cache = LowkeyCache.over(model.config, store, [sequence])
        model(ids[:, :20], past_key_values=cache)
        other = copy.deepcopy(cache)
        del cache
        gc.collect()
        model(ids[:, 20:], past_key_values=other)
        assert (len(sequence), other.lengths) == (20, [30]) and store.stats().n_sequences == 2
        other.close()
        assert len(sequence) == 20 and store.stats().n_sequences == 1
    assert model.config._attn_implementation == 'sdpa'


def test_the_model_without_the_cache():
    model, ids = make_model('llama'), tokens(21, 1, 30)
    with torch.no_grad(), lowkey_cache(model) as cache:
        model(ids, past_key_values=cache)
        with pytest.raises(lowkey.StateError, match=r'with cache\.paused\(\)'):
            model(ids)
        with cache.paused():
            assert torch.equal(model(ids).logits, model(ids, past_key_values=host_cache(model)).logits)
        model(ids, past_key_values=cache)
        assert cache.lengths == [60]
        with cache.paused():
            cache.close()
        assert model.config._attn_implementation == 'sdpa'


def test_larger_batches_and_prompts():
    model = make_model('llama')
    with torch.no_grad(), lowkey_cache(model) as cache:
        for batch, n in ((2, 20), (9, 20), (1, 2500)):
            cache.reset()
            model(tokens(22, batch, n), past_key_values=cache)
            assert cache.lengths == [n] * batch
        with pytest.raises(lowkey.ArgumentError, match=r'a forward pass of 2600 tokens, the cache takes 2500: give '
                                                       r'LowkeyCache max_step_tokens=2600, or generate\(\) '
                                                       'prefill_chunk_size=2500'):
            model(tokens(23, 1, 2600), past_key_values=cache)
        assert cache.lengths == [2500]
    ids = tokens(24, 1, 60)
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)
    with lowkey_cache(model, max_step_tokens=16) as cache:
        assert torch.equal(model.generate(ids, past_key_values=cache, prefill_chunk_size=16, **options),
                           model_generate(model, cache, ids, options))
    with lowkey_cache(model, max_sequences=2) as cache, torch.no_grad(), \
            pytest.raises(lowkey.BudgetError, match='a batch of 3 prompts.*give LowkeyCache max_sequences'):
        model(tokens(25, 3, 10), past_key_values=cache)


def model_generate(model, cache, ids, options):
    """What the model generates with its own cache while a LowkeyCache is open."""
    with cache.paused():
        return model.generate(ids, **options)


def test_a_long_scored_pass_warns_once():
    model, ids = make_model('llama'), tokens(26, 1, 140)
    with torch.no_grad(), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        with lowkey_cache(model, 'kivi2') as cache:
            model(ids, past_key_values=cache, logits_to_keep=1)
            model.generate(torch.cat([ids, ids], 1), past_key_values=cache, max_new_tokens=2, do_sample=False)
            model(ids[:, :128], past_key_values=cache)
        with lowkey_cache(model, 'fp16') as cache:
            model(ids, past_key_values=cache)
        assert not [own for own in found if 'lossless' in str(own.message)]
        with lowkey_cache(model, 'kivi2') as cache:
            model(ids, past_key_values=cache)
            model(ids, past_key_values=cache)
        assert len([own for own in found if 'a pass of 140 tokens' in str(own.message)]) == 1
