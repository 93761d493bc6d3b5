# SPDX-License-Identifier: Apache-2.0
"""Tasks of lm-evaluation-harness under plans: the project's own model on tasks of local files."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys

import pytest
from hf import MODEL_FOLDER, make_model, own_model, tokens, torch, transformers

os.environ.update(HF_HUB_OFFLINE='1', HF_DATASETS_OFFLINE='1')
if os.environ.get('LOWKEY_REQUIRE_TRANSFORMERS'):
    import lm_eval
else:
    lm_eval = pytest.importorskip('lm_eval')

from lm_eval.models.huggingface import HFLM

import lowkey
from lowkey.lm_eval import LowkeyLM, evaluate
from lowkey.lm_eval.__main__ import main
from lowkey.lm_eval.contexts import SharedContexts
from lowkey.transformers import LowkeyCache, geometry_of

CHOICE = '''
task: lowkey_choice
output_type: multiple_choice
doc_to_text: "{{context}}\\n\\n? {{key}} ="
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - metric: acc
'''
GENERATE = '''
task: lowkey_generate
output_type: generate_until
doc_to_text: "{{context}}\\n\\n? {{key}} ="
doc_to_target: "{{choices[answer][:6]}}"
generation_kwargs:
  until: ["."]
  max_gen_toks: 12
metric_list:
  - metric: exact_match
filter_list:
  - name: stripped
    filter:
      - function: remove_whitespace
      - function: take_first
'''
TEXT = '''
task: lowkey_text
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: bits_per_byte
'''


def make_tokenizer():
    """A token for each byte, and byte 0 before a text, as tests/model/TASKS.md has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    vocabulary = {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    begin = chr(256)
    raw.post_processor = processors.TemplateProcessing(single=f'{begin} $A', special_tokens=[(begin, 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=begin, eos_token=begin)


def make_documents():
    """Two contexts of lines `<key> = <digits>.`, two questions each, three answers to choose from."""
    generator = random.Random(5)
    documents = []
    for n_bytes in (700, 450):
        lines = {}
        while sum(len(key) + 11 for key in lines) < n_bytes:
            key = ''.join(generator.choices('abcdefghijklmnopqrstuvwxyz', k=generator.randint(4, 8)))
            lines[key] = ''.join(generator.choices('0123456789', k=6)) + '.'
        context = '#\n' + '\n'.join(f'{key} = {digits}' for key, digits in lines.items())
        for key in generator.sample(sorted(lines), 2):
            wrong = [digits for digits in lines.values() if digits != lines[key]]
            documents.append(dict(context=context, key=key, answer=1,
                                  choices=[wrong[0], lines[key], wrong[1]]))
    return documents


def write_task(folder, name, yaml, data):
    (folder / f'{name}.yaml').write_text(
        f'dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n{yaml}')


@pytest.fixture(scope='module')
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tasks')
    text = (MODEL_FOLDER / 'README.md').read_text()
    for name, yaml, documents in (('choice', CHOICE, make_documents()), ('generate', GENERATE, make_documents()),
                                  ('text', TEXT, [dict(text=text[:800]), dict(text=text[800:1100])])):
        data = folder / f'{name}.json'
        data.write_text('\n'.join(map(json.dumps, documents)))
        write_task(folder, name, yaml, data)
    return folder


@pytest.fixture(scope='module')
def manager(tasks):
    return lm_eval.tasks.TaskManager(include_path=str(tasks), include_defaults=False)


@pytest.fixture(scope='module', autouse=True)
def short_start():
    """The harness's own tasks, and the versions of all packages, take it long to list."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('lm_eval.evaluator.add_env_info', lambda _: None)
        patch.setattr('lowkey.lm_eval.evaluation.TaskManager',
                      functools.partial(lm_eval.tasks.TaskManager, include_defaults=False))
        yield


@pytest.fixture(scope='module')
def own():
    return own_model(), make_tokenizer()


def answers(lm, manager, name):
    """The scores of a task, and the harness's answers to all its requests."""
    found = lm_eval.simple_evaluate(lm, tasks=[name], task_manager=manager, bootstrap_iters=0)
    answered = [one for sample in found['samples'][name] for own in sample['resps'] for one in own]
    return found['results'][name], answered


@pytest.fixture(scope='module')
def wanted(own, manager):
    """The answers of the harness's own model."""
    lm = HFLM(pretrained=own[0], tokenizer=own[1], backend='causal')
    return {name: answers(lm, manager, name) for name in ('lowkey_choice', 'lowkey_generate', 'lowkey_text')}


def under(own, manager, name, plan, **options):
    lm = LowkeyLM(own[0], plan, tokenizer=own[1], **options)
    try:
        return answers(lm, manager, name)
    finally:
        lm.close()


@pytest.mark.parametrize('name', ['lowkey_choice', 'lowkey_text'])
def test_likelihoods_are_those_of_the_harness(own, manager, wanted, name):
    """The fp16 plan's differ from those of "hf" by the rounding of keys and values, those of packed plans by more."""
    def errors(plan):
        scores, found = under(own, manager, name, plan)
        exact = wanted[name][1]
        assert len(found) == len(exact) and own[0].config._attn_implementation == 'sdpa'
        if name == 'lowkey_text':
            return scores, [abs(a - b) for a, b in zip(found, exact)]
        assert plan != 'fp16' or [greedy for _, greedy in found] == [greedy for _, greedy in exact]
        return scores, [abs(a - b) for (a, _), (b, _) in zip(found, exact)]

    (scores, exact), (_, pro), (_, two) = map(errors, ('fp16', 'kitty-pro', 'kivi2'))
    assert max(exact) < 2e-2, 'nats of a whole continuation'
    assert 2 * max(exact) < max(pro) < max(two)
    for metric, value in wanted[name][0].items():
        if metric in ('acc,none', 'bits_per_byte,none'):
            assert scores[metric] == pytest.approx(value, abs=1e-3)


def test_generated_texts_are_those_of_the_harness(own, manager, wanted):
    scores, exact = wanted['lowkey_generate']
    assert scores['exact_match,stripped'] == 1
    for plan in ('fp16', 'kitty-pro'):
        assert under(own, manager, 'lowkey_generate', plan) == (scores, exact)


def test_long_passes_hide_what_packing_does(own, manager, wanted):
    exact = wanted['lowkey_text'][1]
    with pytest.warns(UserWarning, match='scores of such a pass look lossless'):
        _, whole = under(own, manager, 'lowkey_text', 'kivi2', chunk_tokens=4096)
    _, short = under(own, manager, 'lowkey_text', 'kivi2')
    assert abs(short[0] - exact[0]) > 10 * abs(whole[0] - exact[0])


# Shared contexts.


def contexts():
    """Sorted contexts with beginnings in common, of several lengths."""
    ids = tokens(31, 400).tolist()
    cut = [ids[:n] + [5] * more for n, more in ((0, 0), (40, 3), (150, 7), (150, 30), (300, 2), (300, 90), (390, 1))]
    return sorted([*cut, [], [88, 5]])


@pytest.mark.parametrize('name, plan', [
    ('llama', 'fp16'), ('llama', 'kitty-pro'), ('gemma4', 'kitty-pro'), ('qwen3.5', 'kitty-pro')])
def test_sharing_changes_no_answer(name, plan):
    model, chunk_tokens = make_model(name), 32
    predicted, n_read = [], []
    for most_kept in (0, 1, 4):
        with torch.no_grad(), LowkeyCache(model.config, plan, '64MiB', max_sequences=most_kept + 2) as root:
            shared = SharedContexts(model, root, chunk_tokens, most_kept)
            predicted.append([model(torch.tensor([[7, 8]]), past_key_values=cache).logits
                              for cache in shared.each(contexts())])
            n_read.append(shared.n_read)
            assert root.stats().n_sequences == 0
    assert n_read[0] == sum(map(len, contexts())) > n_read[1] > n_read[2]
    for other in predicted[1:]:
        assert all(torch.equal(a, b) for a, b in zip(predicted[0], other, strict=True))


def test_a_failed_pass_leaves_no_sequence(own):
    model, tokenizer = own
    lm = LowkeyLM(model, 'kitty-pro', tokenizer=tokenizer)
    requests = [(None, [65] * n, [66, 67]) for n in (300, 301, 302)]
    hook = model.model.layers[1].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lm._loglikelihood_tokens(requests, disable_tqdm=True)
    hook.remove()
    lm.close()
    assert model.config._attn_implementation == 'sdpa' and all(p.requires_grad for p in model.parameters())
    again = lm._loglikelihood_tokens(requests, disable_tqdm=True)
    lm.close()
    assert len(again) == 3 and all(value < 0 for value, _ in again)
    assert lm.longest_tokens == 304 and lm.n_tokens >= 302 + 3


def test_requests_are_cut_to_the_models_length(own):
    model, tokenizer = own
    lm = LowkeyLM(model, 'fp16', tokenizer=tokenizer, max_length=64)
    other = HFLM(pretrained=model, tokenizer=tokenizer, backend='causal', max_length=64)
    requests = [(None, list(range(40, 120)), [66, 67]), (None, [0], list(range(50, 114)))]
    found, exact = (one._loglikelihood_tokens(requests, disable_tqdm=True) for one in (lm, other))
    for (a, _), (b, _) in zip(found, exact):
        assert a == pytest.approx(b, abs=2e-2)
    with pytest.raises(lowkey.ArgumentError, match='continuation of 65: each must have one, and the model reads 64'):
        lm._loglikelihood_tokens([(None, [0], [65] * 65)])
    lm.close()


# The command.


@pytest.fixture(scope='module')
def folder(own, tmp_path_factory):
    path = tmp_path_factory.mktemp('model')
    for part in own:
        part.save_pretrained(path)
    return path


def test_command(own, tasks, folder, tmp_path, capsys):
    geometry, plan = geometry_of(own[0].config), tmp_path / 'plan.json'
    plan.write_text(lowkey.Plan.preset('kivi4', geometry).to_json())
    common = ['--model', str(folder), '--include-path', str(tasks), '--device', 'cpu']
    every = [*common, '--tasks', 'lowkey_choice,lowkey_generate', '--limit', '2', '--plans', f'fp16,{plan}']
    assert main([*every, '-o', str(tmp_path / 'out')]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ['fp16', 'plan.json'] and lines[1].split()[:3] == ['bits', 'a', 'value']
    assert main([*every, '--json']) == 0
    exact, narrow = json.loads(capsys.readouterr().out)
    assert (exact['plan'], narrow['plan']) == ('fp16', str(plan))
    assert exact['bits_per_value'] == 16 and 4 < narrow['bits_per_value'] < 5
    assert exact['cache_bytes'] > narrow['cache_bytes'] and exact['longest_tokens'] > 700
    assert exact['tokens_per_s'] > 0 and exact['scores']['lowkey_choice']['acc,none'] == 1
    assert sorted(path.name for path in (tmp_path / 'out').iterdir()) == ['0-fp16.json', '1-plan.json', 'table.json']
    record = json.loads((tmp_path / 'out/0-fp16.json').read_text())
    assert len(record['samples']['lowkey_choice']) == 2

    other = tmp_path / 'other.json'
    other.write_text(lowkey.Plan.preset('kivi4', geometry_of(make_model('qwen3').config)).to_json())
    write_task(tasks, 'broken', TEXT.replace('lowkey_text', 'lowkey_broken'), tmp_path / 'none.json')
    for arguments, sentence in ((['--tasks', 'lowkey_none'], "task 'lowkey_none' is unknown to the harness"),
                                (['--tasks', 'lowkey_broken'], 'the harness cannot load lowkey_broken: '),
                                (['--tasks', 'lowkey_text', '--plans', str(other)], 'other.json: '),
                                (['--tasks', 'lowkey_text', '--plans', 'kivi9'], "plan is 'kivi9', must be a preset"),
                                (['--tasks', 'lowkey_text', '--chunk-tokens', '0'], 'chunk_tokens is 0'),
                                (['--tasks', 'lowkey_text', '--model', str(tmp_path)], 'no model that transformers'),
                                (['--tasks', 'lowkey_text', '-o', str(plan)], 'plan.json cannot be made')):
        assert main([*common, *arguments]) == 1
        assert sentence in capsys.readouterr().err


def test_a_model_that_lowkey_does_not_serve(own, tasks):
    model = make_model('llama')
    model.config.kv_lora_rank = 8
    with pytest.raises(lowkey.UnsupportedError, match='latent keys'):
        evaluate(model, own[1], ['lowkey_text'], include_path=tasks)
    with pytest.raises(lowkey.UnsupportedError, match='begins its recurrent states anew.*: give chunk_tokens=1'):
        evaluate(make_model('jamba'), own[1], ['lowkey_text'], include_path=tasks)


def test_without_the_harness():
    program = ('import sys; sys.modules["lm_eval"] = None; from lowkey.lm_eval.__main__ import main; '
               'sys.exit(main(["--model", "m", "--tasks", "t"]))')
    done = subprocess.run([sys.executable, '-c', program], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith('error: lm_eval is not installed: install this package with its '
                                                   'extra lm-eval')
