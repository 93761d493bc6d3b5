# SPDX-License-Identifier: Apache-2.0
"""plan(): from a model of transformers to a plan, in one call."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import resource
import subprocess
import sys
import weakref

import pytest
from hf import cache_logits, is_as_before, make_model, torch, transformers
from letters import QUICK, TEXT, Letters, short_probe  # noqa: F401

import lowkey
from lowkey.transformers import LowkeyCache, geometry_of, perplexity, plan, sink_logits_of, token_ids
from lowkey.transformers.__main__ import main
from lowkey.transformers.capture import frozen
from lowkey.transformers.context import DocumentContext
from lowkey.transformers.costs import CostRequest, _Measurement, divergences, measure_costs
from lowkey.transformers.journal import Journal, Place
from lowkey.transformers.planning import write_file
from lowkey.transformers.progress import Progress
from lowkey.transformers.texts import PROBE_TOKENS, CostText, Encoder, Random, make_cost_texts, read_texts, shipped_text
from lowkey.transformers.two_bits import packed, packed_tokens


def request(n_texts=2, **options):
    ids = Encoder(Letters())(TEXT)
    return CostRequest([CostText('text', ids[i * 7:i * 7 + 400]) for i in range(n_texts)], [1], 320, **options)


@pytest.mark.parametrize('method, limits', [
    ('auto', dict(bits=2.5, costs='estimated')), ('auto', dict(budget='3MiB', tokens=2048, costs='none')),
    ('chanmix', {}), ('chanmix', dict(paper=True)), ('pm-kvq', dict(budget='3MiB', tokens=1024)),
    ('pm-kvq', dict(budget='3MiB', tokens=1024, paper=True)),
    ('pm-kvq', dict(budget='3MiB', tokens=1024, gradients=False)),
    ('kitty', dict(paper=True)), ('kitty-pro', dict(bits=3.2)), ('cocktail', {}),
    ('default', dict(bits=3.2, texts=None)), ('default', dict(bits=2.0, costs='none'))])
def test_methods(method, limits):
    model = make_model('llama')
    with plan(model, Letters(), method, **{**QUICK, **limits}) as made:
        if method == 'default':
            assert made.name == ('auto' if limits.get('texts', TEXT) else 'default')
        made.validate(geometry_of(model.config))
        size, spec = made.bytes(2048), made.spec()
        assert size.bits_per_value <= limits.get('bits', 16)
        if method == 'pm-kvq':
            assert spec.layers[0].rungs[0] == 16
            key = made.key(0, 0)
            assert (key.axis == 'token', bool(key.scales)) == (limits.get('paper', False),) * 2
            assert all(bool(layer.budget_bytes) == limits.get('paper', False) for layer in spec.layers)
            if limits.get('paper'):
                assert (spec.sink_tokens, spec.recent_tokens) == (16, 0)
        elif 'budget' in limits:
            assert size.cache_bytes <= 3 << 20
        if method == 'kitty':
            assert (spec.sink_tokens, spec.recent_tokens) == (32, 0)
    assert is_as_before(model)


@pytest.mark.parametrize('name', ['qwen3', 'gemma3', 'gpt-oss'])
def test_models(name):
    model = make_model(name)
    before = model.config._attn_implementation
    with plan(model, Letters(), bits=2.5, costs='estimated', **QUICK) as made, \
            LowkeyCache(model.config, made, '64MiB', sink_logits=sink_logits_of(model)) as cache, torch.no_grad():
        for chunk in torch.randint(2, 80, (1, 400)).split(100, 1):
            model(chunk, past_key_values=cache)
        assert cache.stats().pages_packed > 0
    assert is_as_before(model, before)


# Samples.


def test_statistics_have_the_texts_of_costs(tmp_path):
    """Four made-up texts of 320 tokens and the 80 that are predicted, in documents that each begin with the BOS."""
    counts = []
    for costs in ('none', 'estimated'):
        path = tmp_path / costs
        options = {**QUICK, 'costs': costs, 'cost_tokens': 320, 'cost_documents': 1, 'document_tokens': 256}
        plan(make_model('llama'), Letters(), bits=2.5, statistics=path, **options).close()
        with lowkey.Calibrator.from_bytes(path.read_bytes()) as found:
            counts.append(found.counts(0).keys)
    assert counts[1] - counts[0] == 4 * (400 + 2)


class _Living:
    """Counts the bytes of samples that are alive when a calibrator gets another one."""

    def __init__(self, monkeypatch):
        self.references, self.most = [], 0
        for name in ('add_keys', 'add_queries', 'add_gradients'):
            real = getattr(lowkey.Calibrator, name)

            def call(calibrator, layer, *samples, real=real, **options):
                self.references = [own for own in self.references if own() is not None]
                self.references += [weakref.ref(sample) for sample in samples]
                self.most = max(self.most, len(self.references))
                return real(calibrator, layer, *samples, **options)
            monkeypatch.setattr(lowkey.Calibrator, name, call)


def _resident():
    return int(pathlib.Path('/proc/self/statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE')


@pytest.mark.parametrize('method', ['chanmix', 'pm-kvq'])
def test_no_sample_outlives_its_call(method, monkeypatch):
    """Eight times the texts take the same memory: what is alive at once, and resident bytes."""
    model, most, grown = make_model('llama'), [], []
    ids = torch.randint(2, 80, (24, 256)).tolist()
    limits = dict(budget='3MiB', tokens=1024) if method == 'pm-kvq' else {}
    gc.disable()
    try:
        for n in (3, 3, 24):
            living, before = _Living(monkeypatch), _resident()
            plan(model, Letters(), method, texts=ids[:n], text_tokens=10**6, progress=False, **limits).close()
            most.append(living.most)
            grown.append(_resident() - before)
    finally:
        gc.enable()
    assert most[1] == most[2] <= 4, most
    # 24 texts have 24 x 256 tokens x 3 layers x (4 + 2 + 2) heads x 32 channels of 4 bytes = 18.9 MB of samples.
    assert grown[2] < 6 << 20, grown


def test_refusals(tmp_path):
    model, tokenizer = make_model('llama'), Letters()
    for arguments, options, error, sentence in (
            (('best',), {}, lowkey.ArgumentError, "method is 'best'"),
            (('auto',), dict(paper=True), lowkey.ArgumentError, 'no paper settings'),
            (('pm-kvq',), {}, lowkey.ArgumentError, 'give budget'),
            (('cocktail',), dict(bits=3), lowkey.ArgumentError, 'neither bits nor budget'),
            (('kitty-pro',), dict(bits=2.25), lowkey.BudgetError, 'the limit is 2.25'),
            (('kivi2',), {}, lowkey.ArgumentError, 'must be one of auto'),
            (('auto',), dict(costs='guessed'), lowkey.ArgumentError, "costs are 'guessed'"),
            (('auto',), dict(texts='too short'), lowkey.ArgumentError, 'has 10 tokens, a page has 128'),
            (('auto',), dict(cost_texts=[TEXT[:200]], cost_tokens=320), lowkey.ArgumentError, 'cost text 0 has 200'),
            (('chanmix',), dict(bits=1.5), lowkey.BudgetError, 'the limit is 1.5'),
            (('auto',), dict(bits=0.5, costs='none'), lowkey.BudgetError, 'bits'),
            (('kitty',), dict(out=tmp_path / 'no' / 'plan.json'), lowkey.FileError, 'no folder that can be written')):
        with pytest.raises(error, match=sentence):
            plan(model, tokenizer, *arguments, **{**QUICK, **options})
    with pytest.raises(lowkey.ArgumentError, match='give the tokenizer'):
        plan(model, None, **QUICK)
    with LowkeyCache(model.config, 'fp16', '64MiB'), pytest.raises(lowkey.ArgumentError, match='close it'):
        plan(model, tokenizer, **QUICK)
    assert is_as_before(model) and not list(tmp_path.iterdir())
    strange = make_model('llama')
    strange.config.kv_lora_rank = 8
    with pytest.raises(lowkey.UnsupportedError, match='latent keys'):
        plan(strange, tokenizer, **QUICK)


def test_a_plan_outlives_a_failed_write(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
        with pytest.raises(lowkey.FileError, match='plan.json cannot be written') as caught:
            plan(make_model('llama'), Letters(), 'kitty', out=tmp_path / 'plan.json')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.plan.name == 'kitty' and not list(tmp_path.iterdir())


def test_a_sample_with_a_nan():
    model = make_model('llama')
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[5, 3] = float('nan')
    with pytest.raises(lowkey.DataError, match=r'texts, pass 0: .*layer 1'):
        plan(model, Letters(), 'chanmix', **QUICK)
    assert is_as_before(model)


# Costs.


@pytest.mark.parametrize('head_dim', [64, 160])
@pytest.mark.parametrize('clip', [1.0, 0.7])
def test_two_bits_are_those_of_packed_pages(head_dim, clip):
    """Each packed token's key, by the logit of a query that finds it, and its value, by that query's output."""
    generator, n = torch.Generator().manual_seed(head_dim), 32 + 2 * 128 + 140
    key, value = (torch.randn(n, 1, head_dim, generator=generator).half() for _ in range(2))
    key *= torch.linspace(0.2, 3, head_dim).half()
    spec = lowkey.PlanSpec('two', sink_tokens=32, recent_tokens=128, layers=lowkey.LayerRule(
        lowkey.KeyRule(2, group=128, clip=clip), lowkey.ValueRule(2, group=min(128, head_dim), clip=clip)))
    geometry, span = lowkey.Geometry.uniform(1, 1, 1, head_dim), packed_tokens(n)
    assert (span.start, span.stop) == (32, 288)
    ours = [x[:, 0].float().clone() for x in (key, value)]
    for is_value, x in enumerate(ours):
        x[span] = packed(x[span], value=bool(is_value), clip=clip)
    with lowkey.Context(n_threads=1) as context, lowkey.Cache(
            context, lowkey.Plan.build(geometry, spec), '16MiB', geometry=geometry, max_step_tokens=n) as cache:
        sequence = cache.add()
        with cache.step(sequence, n) as step:
            step.append(0, key, value)
        for begin in range(span.start, span.stop, 64):
            # The tokens' own keys as queries: their logits are far above the others.
            query = (key[begin:begin + 64] * 40 / head_dim ** 0.5).half()
            new = torch.zeros(64, 1, head_dim).half()
            step = cache.step(sequence, 64)
            step.append(0, new, new)
            out, lse = step.attend(0, query, lse=True)
            step.discard()
            logits = query[:, 0].double() @ torch.cat([ours[0], new[:, 0].float()]).double().T / head_dim ** 0.5
            logits[:, n:] += torch.full((64, 64), -torch.inf).triu(1).double()
            wanted = logits.softmax(-1) @ torch.cat([ours[1], new[:, 0].float()]).double()
            assert (lse.double()[:, 0] - logits.logsumexp(-1)).abs().max() < 2e-3
            assert (out[:, 0].double() - wanted).abs().max() < 1e-2
        assert cache.stats().pages_packed == 4


@pytest.mark.parametrize('name', ['llama', 'gemma3'])
def test_predictions_are_those_of_a_cache(name):
    """Keys, or values, of one head at 2 bits: the predictions of a LowkeyCache of that plan."""
    model = make_model(name)
    geometry = geometry_of(model.config)
    ids = torch.randint(2, 80, (1, 500), generator=torch.Generator().manual_seed(3))
    layer, n = len(geometry.layers) - 1, 460
    exact = lowkey.LayerRule()
    for is_value in (False, True):
        two = lowkey.LayerRule((lowkey.KeyRule(),) + ((lowkey.KeyRule(2, group=128),) if not is_value else
                                                      (lowkey.KeyRule(),)),
                               (lowkey.ValueRule(),) + ((lowkey.ValueRule(2, group=32),) if is_value else
                                                        (lowkey.ValueRule(),)))
        spec = lowkey.PlanSpec('one', sink_tokens=32, layers=(exact,) * layer + (two,))
        wanted = cache_logits(model, spec, ids, n)
        with frozen(model), torch.no_grad():
            context = DocumentContext(model, geometry, ids[0, :n].tolist())
            plain = context.exact(ids[0, n:].tolist())
            own = context.kept[layer]
            sides = [x.clone() for x in (own.keys, own.values)]
            span = packed_tokens(n)
            sides[is_value][0, 1, span] = packed(sides[is_value][0, 1, span], value=is_value)
            with context.instead(layer, *sides):
                got = context.logits(ids[0, n:].tolist())
        assert (got - wanted).norm() < 0.02 * (wanted - plain).norm()


def test_costs_are_equal_whatever_is_skipped(monkeypatch):
    model = make_model('llama')
    geometry = geometry_of(model.config)
    runs = []
    model.model.layers[0].mlp.register_forward_hook(lambda *_: runs.append(0))
    with frozen(model), Progress(False) as bar:
        skipping = measure_costs(model, geometry, request(mode='measured'), bar)
        n_runs = len(runs)
        monkeypatch.setattr('lowkey.transformers.context.decoder_layers', lambda *_: [])
        whole = measure_costs(model, geometry, request(mode='measured'), bar)
    assert n_runs == 2 * (2 + 1) and len(runs) - n_runs == 2 * (2 + 3), 'of 2 texts, 3 layers a pass each'
    assert skipping.n_measured == skipping.n_all == 12
    assert torch.allclose(torch.tensor(skipping.values), torch.tensor(whole.values), rtol=1e-3, atol=1e-5)
    assert min(skipping.measured.values()) > -1e-6 and max(skipping.measured.values()) > 1e-3


def test_divergence_of_predictions():
    logits = torch.randn(3, 5, 11)
    p, q = logits[0].softmax(-1), logits[2].softmax(-1)
    assert divergences(logits)[1] == pytest.approx((p * (p / q).log2()).sum().item(), rel=1e-5)


def test_an_interrupted_measurement_goes_on(tmp_path, monkeypatch):
    model, journal = make_model('llama'), tmp_path / 'costs'
    geometry, real, calls = geometry_of(model.config), _Measurement._run, []

    def run(self, context, ids, batch):
        calls.append(batch)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, context, ids, batch)

    with frozen(model), Progress(False) as bar:
        whole = measure_costs(model, geometry, request(mode='measured'), bar)
        monkeypatch.setattr(_Measurement, '_run', run)
        with pytest.raises(KeyboardInterrupt):
            measure_costs(model, geometry, request(mode='measured', resume=journal), bar)
        with journal.open('a') as file:
            file.write('[[0, 1, 0, fal')  # what an interruption cuts
        n_done = sum(map(len, calls[:2]))
        again = measure_costs(model, geometry, request(mode='measured', resume=journal), bar)
        assert again.values == whole.values
        assert sum(map(len, calls[3:])) == len(whole.measured) - n_done, 'nothing is measured twice'
        with pytest.raises(lowkey.MismatchError, match='another model, other texts or other options'):
            measure_costs(model, geometry, request(n_texts=1, mode='measured', resume=journal), bar)
        journal.write_text('{"a": 1}\n')
        with pytest.raises(lowkey.CorruptError, match='no file of measured costs'):
            measure_costs(model, geometry, request(mode='measured', resume=journal), bar)


def test_a_full_disk_loses_nothing(tmp_path):
    journal, limits = Journal(tmp_path / 'costs', 'name'), resource.getrlimit(resource.RLIMIT_FSIZE)
    costs = {Place(0, layer, 1, True, 0.7): layer / 3 for layer in range(6)}
    first = dict(list(costs.items())[:2])
    journal.add(first)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(tmp_path / 'costs') + 20, limits[1]))
        with pytest.warns(RuntimeWarning, match='the measurement goes on'):
            journal.add(dict(list(costs.items())[2:4]))
        with pytest.raises(lowkey.FileError, match='plan.json cannot be written'):
            write_file(tmp_path / 'plan.json', b'x' * 10**6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert Journal(tmp_path / 'costs', 'name').costs == first, 'no line is there in part'
    assert not (tmp_path / 'plan.json').exists()
    journal.add(dict(list(costs.items())[4:]))
    assert Journal(tmp_path / 'costs', 'name').costs == costs


def test_the_largest_costs_are_measured(monkeypatch):
    """Where measuring everything takes too long, estimates choose what is measured, and give the rest."""
    model = make_model('llama')
    geometry = geometry_of(model.config)
    with frozen(model), Progress(False) as bar:
        measured, estimated, some = (measure_costs(model, geometry, request(mode=mode, samples=2, seconds=1e-9), bar)
                                     for mode in ('measured', 'estimated', 'auto'))
        assert estimated.n_measured == 0 and min(estimated.estimates.values()) > 0
        assert some.n_measured < 12
        monkeypatch.setattr(_Measurement, '_predict', lambda self: setattr(self, '_unit_seconds', 1) or 10**9)
        some = measure_costs(model, geometry, request(samples=2, seconds=60), bar)
        assert 0 < some.n_measured < 12
        flat = [[cost for layer in found.values for head in layer for side in head for cost in side]
                for found in (measured, some)]
        assert sum(a == pytest.approx(b, rel=1e-3, abs=1e-5) for a, b in zip(*flat)) >= 3 * some.n_measured


# Texts.


def test_texts():
    encoder = Encoder(Letters())
    assert encoder.prefix == [1] and 1 not in encoder('abc')
    found = read_texts(None, encoder, 1000, 5000)
    assert len(found.running) == 5000 and all(own[0] == 1 and len(own) <= 1000 for own in found.passes)
    assert 2000 < len(shipped_text().split()) < 4000
    texts = make_cost_texts(found, encoder, 400, 2, 1)
    assert [len(text.ids) for text in texts] == [400] * 8 and len({text.kind for text in texts}) == 4
    assert texts == make_cost_texts(found, encoder, 400, 2, 1) != make_cost_texts(found, encoder, 400, 2, 2)
    # The numbers of splitmix64 with seed 1.
    random = Random(1)
    assert [random.below(2**64) for _ in range(2)] == [0x910a2dec89025cc1, 0xbeeb8da1658eec67]


def test_token_ids():
    """Every line begins with the BOS, and documents for costs are those of plan()."""
    lines = token_ids(Letters(), [TEXT, TEXT[:200]], cost_tokens=320, cost_documents=2).splitlines()
    words = [line.split() for line in lines]
    texts, sentence, costs = words[:2], words[2], words[3:]
    assert texts == [[str(i) for i in Letters()(text)['input_ids']] for text in (TEXT, TEXT[:200])]
    assert sentence[:2] == ['sentence', '1'] and len(sentence) >= PROBE_TOKENS
    encoder = Encoder(Letters())
    found = read_texts([TEXT, TEXT[:200]], encoder, 2048, 16384)
    want = make_cost_texts(found, encoder, 400, 2, 1)
    assert [line[2:] for line in costs] == [[str(i) for i in text.ids] for text in want]
    assert all(line[:2] == ['cost', '1'] for line in costs)
    with pytest.raises(lowkey.ArgumentError, match='longer texts'):
        token_ids(Letters(), 'short')


# The command.


def save(model, folder):
    """A model and a tokenizer of bytes on disk."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {'<s>': 1, **{letter: 2 + i for i, letter in enumerate(letters)}}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=raw, bos_token='<s>').save_pretrained(folder)
    model.save_pretrained(folder)


def test_command(tmp_path, capsys):
    model = make_model('llama')
    model.resize_token_embeddings(300)
    save(model, tmp_path / 'model')
    text, out = tmp_path / 'text.txt', tmp_path / 'plan.json'
    text.write_text(TEXT)
    common = [str(tmp_path / 'model'), '--text', str(text)]
    assert main(['plan', *common, '--bits', '2.5', '-o', str(out), '--text-tokens', '400', '--cost-tokens', '320',
                 '--cost-documents', '1', '--costs', 'measured']) == 0
    said = capsys.readouterr().out
    assert 'bits a value' in said and json.loads(out.read_text())['name']
    assert not (tmp_path / 'plan.json.costs').exists()
    assert main(['perplexity', *common, '--plan', 'fp16', '--plan', str(out), '--json', '--chunk-tokens', '64']) == 0
    exact, narrow = json.loads(capsys.readouterr().out)
    assert exact['bits_per_value'] == 16 and narrow['bits_per_value'] <= 2.5
    assert exact['perplexity'] != narrow['perplexity'] and exact['n_tokens'] == len(TEXT.encode()) - 1
    ids = tmp_path / 'text.ids'
    assert main(['ids', str(tmp_path / 'model'), str(text), '-o', str(ids), '--cost-tokens', '320', '--cost-documents',
                 '1']) == 0
    found = [line.split() for line in ids.read_text().splitlines()]  # this tokenizer adds no BOS
    assert len(found[0]) == len(TEXT.encode()) and [line[0] for line in found[1:]] == ['sentence'] + ['cost'] * 4
    assert [len(line) for line in found[2:]] == [401] * 4
    for arguments, sentence in ((['plan', str(tmp_path / 'none'), '--text', str(text)], 'no model that transformers'),
                                (['ids', common[0], str(text), '-o', str(tmp_path / 'none/ids')], 'cannot be written'),
                                (['plan', common[0], '--text', str(tmp_path / 'none')], 'none cannot be read'),
                                (['perplexity', *common, '--plan', 'kivi9'], "plan is 'kivi9', must be a preset")):
        assert main(arguments) == 1
        assert sentence in capsys.readouterr().err
    with LowkeyCache(model.config, str(out), '64MiB') as cache, torch.no_grad():
        model(torch.randint(2, 80, (1, 400)), past_key_values=cache)
        assert cache.stats().pages_packed > 0
    with pytest.raises(lowkey.MismatchError, match=r'plan\.json: '):
        LowkeyCache(make_model('qwen3').config, str(out), '64MiB')


def test_perplexity():
    """FP16 is the model's own; packed plans show in short passes alone."""
    model, ids = make_model('llama'), torch.randint(2, 80, (600,)).tolist()
    with torch.no_grad():
        own = model(torch.tensor([ids])).logits[0, :-1]
    wanted = torch.nn.functional.cross_entropy(own, torch.tensor(ids[1:])).exp().item()
    options = dict(progress=False, document_tokens=600)
    assert perplexity(model, None, ids, 'fp16', **options).perplexity == pytest.approx(wanted, rel=1e-3)
    with pytest.warns(UserWarning, match='scores of such a pass look lossless'):
        whole = perplexity(model, None, ids, 'kivi2', chunk_tokens=600, **options)
    short = perplexity(model, None, ids, 'kivi2', **options)
    assert abs(short.perplexity - wanted) > 10 * abs(whole.perplexity - wanted)
    with pytest.raises(lowkey.ArgumentError, match='there is none to predict'):
        perplexity(model, None, [5], **options)


def test_example():
    path = pathlib.Path(__file__).parents[3] / 'examples/python/own_model.py'
    out = subprocess.run([sys.executable, str(path)], check=True, timeout=300, capture_output=True, text=True,
                         env=dict(os.environ, PYTHONPATH=str(pathlib.Path(__file__).parents[1]),
                                  OMP_NUM_THREADS='1')).stdout
    assert len(out.splitlines()) == 1 + 4 * 6
