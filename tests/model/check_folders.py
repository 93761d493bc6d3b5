#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models in folders of transformers: logits, statistics and plans of small random ones against NumPy, and folders that
are refused.

usage: check_folders.py LOWKEY LOGITS_TOOL
"""

import json
import pathlib
import subprocess
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'cli'))
from folder_models import (  # noqa: E402
    MODELS, Forward, config_of, read_safetensors, windows, write_model, write_safetensors)
from harness import MODEL, TEXT, check, expect, run  # noqa: E402

TOOL = sys.argv[2]
N_TOKENS = 300  # windows are left, and a page is full
# Relative error of the logits, root of squares: float32 sums of a hundred terms over three layers, and keys and values
# whose rounding to FP16 differs by one unit, 5e-4 of a number, where such sums differ. Largest found: 1.4e-4. A forward
# pass without one of the features that the configs request is off by more than LEAST_EFFECT.
MOST_ERROR, LEAST_EFFECT = 1e-3, 1e-1
OTHERWISE = {  # configs in each of which a feature of the model is another one
    'llama': {'rope_scaling': None}, 'llama-plain': {'rope_theta': 500.0}, 'mistral': {'sliding_window': None},
    'qwen2': {'use_sliding_window': False}, 'qwen3': {'rope_parameters': None},
    'gemma2': {'attn_logit_softcapping': None, 'final_logit_softcapping': None, 'query_pre_attn_scalar': 4},
    'gemma3': {'attn_logit_softcapping': None, 'rope_local_base_freq': 1e4, 'rope_scaling': None,
               'sliding_window_pattern': 3},
    'gemma3-parts': {'rope_parameters': {'full_attention': {'rope_theta': 50.0},
                                         'sliding_attention': {'rope_theta': 100.0}}},
    'gpt-oss': {'sliding_window': None, 'swiglu_limit': 7.0, 'rope_parameters': {'rope_theta': 1e4}}}


def random_ids(n: int, seed: int, below: int = 256) -> list[int]:
    """A BOS and other tokens."""
    return [1, *map(int, np.random.default_rng(seed).integers(3, below, n - 1))]


def line_of(ids: list[int]) -> str:
    return ' '.join(map(str, ids)) + '\n'


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def logits(folder: pathlib.Path) -> None:
    """Each architecture gives NumPy's logits."""
    ids = random_ids(N_TOKENS, 1)
    (folder / 'logits.ids').write_text(line_of(ids))
    for name in MODELS:
        config, weights = write_model(folder / name, name)
        done = subprocess.run([TOOL, folder / name, folder / 'logits.ids', folder / 'logits'], capture_output=True,
                              text=True, timeout=300, check=False)
        expect(done.returncode == 0, f'{name} runs: {done.stderr}')
        got = np.fromfile(folder / 'logits', np.float32).reshape(N_TOKENS, -1)
        want = Forward(config, weights, ids).logits
        error = relative_error(got, want)
        print(f'{name}: relative error {error:.1e}')
        expect(error <= MOST_ERROR, f'{name} has NumPy\'s logits: {error}')
        without_sinks = {tensor: array for tensor, array in weights.items() if 'sinks' not in tensor}
        others = {field: Forward({**config, field: value}, weights, ids) for field, value in OTHERWISE[name].items()}
        if len(without_sinks) < len(weights):
            others['sinks'] = Forward(config, without_sinks, ids)
        for feature, other in others.items():
            effect = relative_error(other.logits, want)
            print(f'{name}: with another {feature} {effect:.1e}')
            expect(effect >= LEAST_EFFECT, f'{name} depends on {feature}: {effect}')


def statistics(folder: pathlib.Path) -> None:
    """Ranges of keys are those of NumPy's passes over the document and the costs' texts; plans are made of them, and of
    costs."""
    document, context = random_ids(N_TOKENS, 2), 320
    texts = [random_ids(1 + context * 5 // 4, seed) for seed in range(3, 5)]
    read = [document, *texts]
    ids, stats, plan = folder / 'text.ids', folder / 'stats.safetensors', folder / 'plan.json'
    ids.write_text(line_of(document) + '\n' + 'sentence ' + line_of(random_ids(24, 9)[1:]) +
                   ''.join('cost ' + line_of(one) for one in texts))
    common = ['--token-ids', str(ids), '--attention-tokens', '64', '--repeats', '6', '-o', str(stats)]
    for name in ('mistral', 'qwen3', 'gemma2', 'gemma3', 'gpt-oss'):
        measure = ['--costs', '--costs-tokens', str(context), '--costs-documents', '1', '--costs-resume',
                   str(folder / f'{name}.journal')]
        said = json.loads(run('calibrate', '--model', str(folder / name), *common, *measure, '--json').stdout)
        expect([layer['keys'] for layer in said['layers']] == [sum(map(len, read))] * 3, 'all tokens are read')
        expect(all(layer['probe_rows'] == 5 * 23 for layer in said['layers']), 'the probe has the sentence of the file')
        found = read_safetensors(stats)
        weights = stored_weights(folder / name)
        keys = [Forward(config_of(name), weights, one).keys for one in read]
        same_ranges(name, found, [np.concatenate(of_layer) for of_layer in zip(*keys, strict=True)])
        # In a window below the recent tokens no packed page is visible.
        own = np.array(windows(config_of(name)))
        costs = np.stack([found[f'layer.{i}.cost'] for i in range(3)])
        is_free = np.broadcast_to((own > 0)[:, None, None], (3, 2, 2))
        expect(np.array_equal(costs < 1e-5, is_free), f'{name}: costs {costs}')
        expect(found['geometry'][:, 3].tolist() == own.tolist(), f'{name}: the windows of layers')
        for i in range(3 if name == 'gpt-oss' else 0):
            sinks = weights[f'model.layers.{i}.self_attn.sinks']
            expect(np.array_equal(found[f'layer.{i}.sink_logits'], sinks), f'{name}: the learned sinks of layer {i}')
        run('plan', 'auto', '--stats', str(stats), '--bits', '3', '-o', str(plan))
        expect(len(json.loads(plan.read_text())['layers']) > 0, f'{name} gets a plan')
    # The journal names the weights.
    other = ['calibrate', '--model', str(folder / 'qwen2'), *common, '--costs', '--costs-tokens', str(context),
             '--costs-documents', '1', '--costs-resume', str(folder / 'qwen3.journal')]
    expect('remove the file' in run(*other, code=1).stderr, 'measured costs of another model are refused')


def same_ranges(name: str, found: dict[str, np.ndarray], keys: list[np.ndarray]) -> None:
    for i, own in enumerate(keys):
        scale = np.abs(own).max()
        for what, want in (('min', own.min(0)), ('max', own.max(0))):
            error = np.abs(found[f'layer.{i}.key_{what}'].astype(np.float64) - want).max() / scale
            expect(error <= 2e-3, f'{name}, layer {i}: key_{what} is off by {error}')


def files(folder: pathlib.Path) -> None:
    """A model of bytes in one file, whose metadata has the config."""
    name, stats = 'gemma3-parts', folder / 'file.stats'
    ids = random_ids(N_TOKENS, 7)
    (folder / 'file.ids').write_text(line_of(ids) + 'sentence ' + line_of(random_ids(24, 9)[1:]))
    common = ['--token-ids', str(folder / 'file.ids'), '--attention-tokens', '64', '--repeats', '6']
    run('calibrate', '--model', str(folder / name / 'model.safetensors'), *common, '-o', str(stats))
    same_ranges(name, read_safetensors(stats), Forward(config_of(name), stored_weights(folder / name), ids).keys)
    other = folder / 'gemma3' / 'model.safetensors'
    said = run('calibrate', '--model', str(other), *common, '-o', str(folder / 'never'), code=1).stderr
    expect('vocabulary is not the 256 bytes' in said, f'a file of other tokens: {said}')


def stored_weights(folder: pathlib.Path) -> dict[str, np.ndarray]:
    return {name: array for path in folder.glob('*.safetensors') for name, array in read_safetensors(path).items()}


def refused_configs(folder: pathlib.Path) -> None:
    """Fields that no model here has are refused by name, before weights are read."""
    model, ids = folder / 'refused', folder / 'refused.ids'
    model.mkdir()  # without weights
    ids.write_text(line_of(random_ids(100, 5)))
    scaling = {'rope_type': 'yarn', 'factor': 4.0}
    for name, change, words in (
            ('llama', {'architectures': ['GemmaForCausalLM']}, ['architectures', 'Gemma', 'Qwen3ForCausalLM']),
            ('llama', {'architectures': None}, ['no architectures']),
            ('llama', {'quantization_config': {'bits': 4}}, ['quantization_config', 'bits']),
            ('llama', {'sliding_window': 128}, ['sliding_window 128']),
            ('llama', {'mlp_bias': True}, ['mlp_bias true']),
            ('llama', {'some_new_thing': 'x'}, ['some_new_thing']),
            ('llama', {'hidden_act': 'gelu'}, ['hidden_act "gelu"', 'silu']),
            ('llama', {'num_key_value_heads': 3}, ['num_key_value_heads 3', 'divide']),
            ('llama', {'vocab_size': 0}, ['vocab_size 0']), ('llama', {'hidden_size': 96.0}, ['hidden_size 96.0']),
            ('llama', {'rms_norm_eps': 'small'}, ['rms_norm_eps']), ('llama', {'rope_theta': 1.0}, ['rope_theta']),
            ('llama', {'head_dim': 31}, ['head_dim', 'odd']),
            ('llama', {'rope_scaling': {'rope_type': 'dynamic', 'factor': 2.0}}, ['rope_scaling.rope_type "dynamic"']),
            ('llama', {'rope_scaling': {'type': 'longrope', 'short_factor': [1]}}, ['rope_scaling.type "longrope"']),
            ('llama', {'rope_scaling': {'rope_type': 'linear'}}, ['no rope_scaling.factor']),
            ('llama', {'rope_scaling': {**scaling, 'finetuned': True}}, ['rope_scaling.finetuned']),
            ('llama', {'rope_parameters': scaling}, ['rope_parameters too']),
            ('llama', {'partial_rotary_factor': 0.5}, ['partial_rotary_factor']),
            ('qwen2', {'layer_types': ['full_attention'] * 2}, ['layer_types', '3 layers']),
            ('qwen3', {'layer_types': ['chunked_attention'] * 3}, ['layer_types']),
            ('mistral', {'use_sliding_window': True}, ['use_sliding_window']),
            ('gemma2', {'hidden_activation': 'gelu'}, ['hidden_activation "gelu"']),
            ('gemma2', {'attn_logit_softcapping': 0}, ['attn_logit_softcapping 0']),
            ('gemma3', {'use_bidirectional_attention': True}, ['use_bidirectional_attention']),
            ('gemma3', {'rope_scaling': None, 'rope_parameters': {'rope_theta': 1e4}}, ['rope_parameters.rope_theta']),
            ('gemma3', {'rope_local_base_freq': 1.0}, ['rope_local_base_freq 1.0']),
            ('gemma3', {'head_dim': 1 << 17}, ['head_dim 131072']),
            ('gpt-oss', {'num_local_experts': 4}, ['num_local_experts 4', 'not routed']),
            ('gpt-oss', {'num_experts_per_tok': None}, ['no num_experts_per_tok']),
            ('gpt-oss', {'rope_parameters': None}, ['rope_parameters', 'must state']),
            ('gpt-oss', {'sliding_window': None, 'layer_types': ['sliding_attention'] * 3}, ['needs a sliding_window']),
            ('llama', {}, ['neither model.safetensors nor model.safetensors.index.json'])):
        (model / 'config.json').write_text(json.dumps({**config_of(name), **change}))
        refuse(model, ids, words)
    for text, words in (('{"a": 1, "a": 2}', ['twice']), ('[]', ['object']), ('{', ['no JSON']),
                        ('[' * 100, ['nested']), (' ' * (5 << 20), ['bytes'])):
        (model / 'config.json').write_text(text)
        refuse(model, ids, words)
    (model / 'config.json').unlink()
    refuse(model, ids, ['cannot open', 'config.json'])


def refuse(model: pathlib.Path, ids: pathlib.Path, words: list[str]) -> None:
    """The command ends with a sentence that has the words, and writes nothing."""
    out = model.parent / 'never'
    said = run('calibrate', '--model', str(model), '--token-ids', str(ids), '-o', str(out), code=1).stderr
    expect(all(word in said for word in words) and len(said.splitlines()) == 1, f'a sentence with {words}: {said}')
    expect(not out.exists(), 'a refusal writes nothing')


def refused_weights(folder: pathlib.Path) -> None:
    """Shards that are missing, or do not hold what the index or the config states."""
    model, ids = folder / 'llama', folder / 'text.ids'
    path = model / 'model.safetensors.index.json'
    kept, config = path.read_text(), (model / 'config.json').read_text()
    index = json.loads(kept)['weight_map']
    norm, shards = 'model.norm.weight', sorted(set(index.values()))
    other = next(shard for shard in shards if shard != index[norm])
    for change, words in (({norm: 'model-00009-of-00003.safetensors'}, ['model-00009', 'not there']),
                          ({norm: other}, [norm, other, 'does not have it']),
                          ({norm: '../x'}, ['no file of the folder']),
                          ({norm: 7}, [norm]), ({'another': shards[0]}, ['another', 'does not have it'])):
        path.write_text(json.dumps({'weight_map': {**index, **change}}))
        refuse(model, ids, words)
    path.write_text(json.dumps({'weight_map': {name: shard for name, shard in index.items() if shard != other}}))
    refuse(model, ids, ['no tensor'])
    path.write_text(kept.replace('"weight_map"', '"other"'))
    refuse(model, ids, ['weight_map'])
    path.write_text(kept)
    for change, words in (({'vocab_size': 301}, ['embed_tokens', '[300][96]', '[301][96]']),
                          ({'attention_bias': True}, ['q_proj.bias'])):
        (model / 'config.json').write_text(json.dumps({**json.loads(config), **change}))
        refuse(model, ids, words)
    (model / 'config.json').write_text(config)
    shard = (model / other).read_bytes()
    (model / other).write_bytes(shard[:-1])
    refuse(model, ids, ['outside the file'])
    write_safetensors(model / other, {norm: ('BF16', (96,), bytes(192))})
    path.write_text(json.dumps({'weight_map': {**{n: s for n, s in index.items() if s != other}, norm: other}}))
    refuse(model, ids, [norm, 'and in'])
    write_safetensors(model / other, {'model.embed_tokens.weight': ('I8', (300, 96), bytes(300 * 96))})
    path.write_text(json.dumps({'weight_map': {'model.embed_tokens.weight': other}}))
    refuse(model, ids, ['I8', 'BF16'])


def refused_ids(folder: pathlib.Path) -> None:
    """Files of token ids, and options that do not go together."""
    model, ids = folder / 'qwen3', folder / 'bad.ids'
    document = line_of(random_ids(50, 6, 300))
    for text, words in (('', ['no document']), ('sentence 5 6\n', ['no document']),
                        (document + '5 300\n', ['line 2', '300']),
                        (document + '5 -6\n', ['line 2', '-6']), (document + '5,6\n', ['5,6']),
                        (document + 'sentence 5 6\nsentence 7 8\n', ['line 3', 'second sentence']),
                        ('1 5\n', ['at least 2']),
                        (document + '99999999999\n', ['no token id'])):
        ids.write_text(text)
        refuse(model, ids, words)
    ids.write_text(document)
    words = ['calibrate', '--model', str(model), '--token-ids', str(ids), '-o', str(folder / 'never')]
    expect('documents for costs' in run(*words, '--costs', code=1).stderr, 'costs need documents')
    ids.write_text(document + 'cost ' + document)
    said = run(*words, '--costs', '--costs-documents', '1', code=1).stderr
    expect('has 49 tokens' in said and '2560' in said, f'a short document for costs: {said}')
    config = json.loads((model / 'config.json').read_text())
    (model / 'config.json').write_text(json.dumps({**config, 'max_position_embeddings': 40}))
    refuse(model, ids, ['40 positions', 'at most 19 tokens'])
    (model / 'config.json').write_text(json.dumps({**config, 'max_position_embeddings': 2048}))
    said = run(*words, '--costs', '--costs-documents', '1', code=1).stderr
    expect('needs 2561 positions, the model has 2048' in said, f'a document for costs beyond the positions: {said}')
    run(*words, '--sentence', 'x', code=2)
    run(*words, '--text', str(TEXT), code=2)
    said = run('calibrate', '--model', str(model), '--text', str(TEXT), code=2).stderr
    expect('transformers.AutoTokenizer' in said and '--token-ids' in said, f'how ids are made: {said}')
    expect('folder' in run('demo', '--model', str(model), code=1).stderr, 'the demo runs files alone')
    # The shipped model takes ids too.
    said = run('calibrate', '--model', str(MODEL), '--token-ids', str(ids), '-o', str(folder / 'bytes'), code=1).stderr
    expect('256' in said, f'tokens beyond bytes: {said}')


check(logits, statistics, files, refused_configs, refused_weights, refused_ids)
