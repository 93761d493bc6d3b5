#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lowkey plan and calibrate: bytes, chunks, statistics, refusals.

usage: check_plan.py LOWKEY
"""

import json
import pathlib

from harness import ROOT, check, expect, png_rows, png_size, run, safetensors


def methods(folder: pathlib.Path) -> None:
    """Each method has its own help; an option of another one is refused by name."""
    for name in ('fp16', 'kitty', 'cocktail', 'pm-kvq', 'chanmix', 'auto', 'default'):
        expect(f'lowkey plan {name}' in run('plan', name, '--help').stdout, f'{name} --help has an example')
    expect('--bits' in run('plan', 'auto', '--help').stdout, 'auto takes bits')
    expect('--alpha' not in run('plan', 'kitty', '--help').stdout, 'kitty has no chunks')
    expect('--bits' in run('plan', 'kitty', '--bits', '3', code=2).stderr, 'kitty --bits')
    saved = str(folder / 'saved.json')
    run('plan', 'kitty', '-o', saved)
    expect('--layers' in run('plan', saved, '--layers', '99', code=2).stderr, 'a file has its own layers')
    refused = run('plan', 'auto', '--stats', saved, '--bits', '3', '--plot', 'x.png', code=2)
    expect('--plot' in refused.stderr and not refused.stdout, 'auto draws no plot, and says so first')
    expect('--tokens' in run('plan', '--tokens', '5', 'kitty', code=2).stderr, 'options come after a method')
    expect('--plot' in run('plan', saved, '--plot', 'x.png', code=2).stderr, 'nor do files without chunks')


def numbers() -> None:
    """Counts and bytes with units."""
    budget = {}
    for words in ('2GiB', '2G', '2048m', '2147483648'):
        said = json.loads(run('plan', 'kivi2', '--tokens', '128K', '--budget', words, '--json').stdout)
        expect(said['tokens'] == 131072, '128K are tokens')
        budget[words] = said['budget_bytes']
    expect(set(budget.values()) == {2 << 30}, 'bytes with units')
    for wrong in ('-1', '2Q', 'G', '1.5G', '99999999T'):
        expect(wrong in run('plan', 'kivi2', f'--budget={wrong}', code=2).stderr, f'{wrong} is refused by name')
    run('plan', 'kivi2', '--tokens', '4GiB', code=2)


def plans(folder: pathlib.Path) -> None:
    bits = {'fp16': 16, 'int8': 8.25, 'kivi4': 4.25, 'kivi2': 2.25, 'kitty': 2.40625, 'kitty-pro': 2.53125,
            'wide-keys': 2.03125, 'wide-keys-pro': 2.53125}
    for name, want in bits.items():
        got = json.loads(run('plan', name, '--layers', '32', '--kv-heads', '8', '--head-dim', '128',
                             '--tokens', '131072', '--json').stdout)
        expect(got['bits_per_value'] == want, f'{name} takes {want} bits per value')
        expect(got['bytes_per_token'] == want / 8 * 2 * 32 * 8 * 128, f'{name} bytes per token')
        expect(isinstance(got['bytes_total'], int) and got['bytes_total'] > 0, f'{name} bytes_total')
        saved = folder / f'{name}.json'
        run('plan', name, '--layers', '2', '--save', str(saved))
        again = json.loads(run('plan', str(saved), '--json').stdout)
        expect(again['bits_per_value'] == want, f'{name} reads back')
    wide = json.loads(run('plan', 'kitty-pro', '--layers', '1', '--head-dim', '512', '--json').stdout)
    expect(wide['bytes_per_token'] == 2.46875 / 8 * 2 * 8 * 512, 'the largest head dim')
    expect('528' in run('plan', 'kitty-pro', '--head-dim', '528', code=2).stderr, 'larger ones are refused by name')
    for limit, want in ((None, 8.25), ('2.54', 2.484375), ('2.25', 2.2265625), ('5', 4.25)):
        words = () if limit is None else ('--bits', limit)
        got = json.loads(run('plan', 'default', *words, '--json').stdout)
        expect(got['name'] == 'default' and got['bits_per_value'] == want, f'default within {limit}: {want}')
    expect('at least 1.625' in run('plan', 'default', '--bits', '1.5', code=1).stderr, 'no default of 1.5 bits')
    run('plan', 'kitty-pro', '--png', str(folder / 'plan.png'))
    width, height = png_size(folder / 'plan.png')
    expect(width >= 400 and height >= 300, 'the picture has a size to look at')
    runs, legend = [], png_rows(folder / 'plan.png')[38 * height // 800]
    for color in legend[int(0.7 * width):]:
        if runs and runs[-1][0] == color:
            runs[-1][1] += 1
        else:
            runs.append([color, 1])
    colors = [color for color, length in runs if 8 <= length and color != (255, 255, 255) and length <= 40]
    expect(len(colors) == 6, 'the legend has a colour for each width')
    apart = [sum((a - b) ** 2 for a, b in zip(x, y)) ** 0.5 for x, y in zip(colors, colors[1:])]
    expect(min(apart) > 80, 'neighbouring widths have colours that differ clearly')


def chunks(folder: pathlib.Path) -> None:
    """Plans with chunks: bytes of a mix, the paper's models, scores to classes, the table of widths."""
    got = json.loads(run('plan', 'cocktail', '--tokens', '131072', '--mix', '60,30,10', '--json').stdout)
    expect(3 * 0.6 + 5 * 0.3 + 16 * 0.1 > got['bits_per_value'] > 4, 'between the bits of the classes')
    layer_bytes = got['fp16_bytes'] / 32
    expect(got['bytes_total'] < got['prefill_bytes'] < 1.05 * got['bytes_total'] + layer_bytes, 'classes come first')
    models = {model['model']: model for model in got['paper_models']}
    expect(len(models) == 4 and models['Llama2-7B']['weight_bytes'] == 2 * 6738415616, 'four models, their weights')
    expect(models['Mistral-7B']['fp16_bytes'] < models['Llama2-7B']['fp16_bytes'] / 3, 'a quarter of the KV heads')
    for model in models.values():
        expect(60 < model['cache_saved_percent'] < 80, 'what chunks save of the cache')
        expect(model['weights_and_cache_saved_percent'] < model['cache_saved_percent'], 'and of a GPU')
    recorded = ROOT / 'docs' / 'results' / 'cocktail-memory.json'
    expect(json.loads(recorded.read_text())['paper_models'] == got['paper_models'], 'docs/lab/results.md has these bytes')
    low = json.loads(run('plan', 'cocktail', '--mix', '100,0,0', '--json').stdout)
    expect(low['bits_per_value'] < got['bits_per_value'], 'low chunks take least')
    scores = folder / 'scores.txt'
    scores.write_text(', '.join(str(i % 10) for i in range(200)))
    picture = folder / 'chunks.png'
    scored = json.loads(run('plan', 'cocktail', '--scores', str(scores), '--plot', str(picture), '--json').stdout)
    # Thresholds of 0 to 9: below 5.4 low, above 8.1 high.
    expect(scored['mix_percent'] == [60, 30, 10], 'classes by thresholds')
    expect(png_size(picture)[0] >= 1000, 'a picture of chunks')
    text = folder / 'whale.txt'
    text.write_text('call me ishmael some years ago ' * 40 + 'the white whale ' * 30)
    found = json.loads(run('plan', 'cocktail', '--text', str(text), '--query', 'white whale', '--json').stdout)
    expect(found['mix_percent'][2] > 0, 'the chunks that have the words are high')
    table = run('plan', 'cocktail', '--layers', '2', '--explain').stdout
    for part in ('no class', 'middle', '0..1', 'keys', 'values'):
        expect(part in table, f'the table of widths has {part}')
    for name in ('fp16', 'kitty-pro', 'pm-kvq'):
        expect('Bits of a channel by layer' in run('plan', name, '--explain').stdout, f'{name} has a table of widths')
    saved = folder / 'rotated.json'
    rotated = json.loads(run('plan', 'kivi2', '--rotate-keys', '--save', str(saved), '--json').stdout)
    plain = json.loads(run('plan', 'kivi2', '--json').stdout)
    expect(rotated['plan']['layers'][0]['key_rotation'] == 'hadamard', 'keys are rotated')
    expect(rotated['plan']['name'] == 'kivi2-rotated', 'under a name of its own')
    expect(rotated['bytes_total'] == plain['bytes_total'], 'without a byte more')
    expect('groups of the page, rotated\n' in run('plan', str(saved), '--explain').stdout, 'rules name the rotation')
    expect('rotated' not in run('plan', 'kivi2', '--explain').stdout, 'a preset rotates nothing')
    reading = str(ROOT / 'tests/fuzz/plan/reading-layers.json')
    table = run('plan', reading, '--explain', '--png', str(folder / 'reading.png')).stdout
    expect('layers 2\n  attend to the pages of layer 0\n' in table, 'layer 2 has no pages of its own')
    got = json.loads(run('plan', reading, '--json').stdout)
    expect(got['bytes_per_token'] == 2 * 2 * (2 * 64 + 32), 'pages that are read count once')
    run('plan', 'kitty', '--chunk', '32', code=2)
    run('plan', 'cocktail', '--mix', '60,30,20', code=2)
    run('plan', 'cocktail', '--plot', str(folder / 'none.png'), code=2)
    run('plan', 'cocktail', '--alpha', '0.6', '--beta', '0.4', code=1)
    scores.write_text('1 2 three')
    run('plan', 'cocktail', '--scores', str(scores), code=1)
    scores.write_text('1 nan 2')
    run('plan', 'cocktail', '--scores', str(scores), code=1)


def calibration(folder: pathlib.Path) -> None:
    """Dumps to statistics to a plan and its picture; wrong dumps leave no files."""
    layers, tokens, d = 2, 40, 32
    k = [((t * 7 + c * 3) % 11 - 5) * (8 if c < 3 else 1 if c < 24 else 0.1) for t in range(tokens)
         for _ in range(2) for c in range(d)]
    q = [((t * 5 + h + c) % 7 - 3) * 0.1 for t in range(tokens) for h in range(4) for c in range(d)]
    dump = {}
    for n in range(layers):
        dump[f'layer.{n}.k'] = dump[f'layer.{n}.probe_k'] = ([tokens, 2, d], k)
        dump[f'layer.{n}.q'] = dump[f'layer.{n}.probe_q'] = ([tokens, 4, d], q)
    metadata = {'probe_period': '10', 'probe_local': '9'}
    path = safetensors(folder / 'dump.safetensors', dump, metadata)
    stats = str(folder / 'stats.safetensors')
    said = json.loads(run('calibrate', path, '-o', stats, '--json').stdout)
    expect([layer['outliers'] for layer in said['layers']] == [6, 6], 'three outliers in each KV head')
    run('calibrate', path, '--onto', stats, '-o', stats)
    plan = json.loads(run('plan', 'chanmix', '--stats', stats, '--share', '0.25', '--plot', str(folder / 'mix.png'),
                          '-o', str(folder / 'mix.json'), '--json').stdout)
    expect(png_size(folder / 'mix.png')[0] == 1600, 'the picture is 1600 pixels wide')
    expect(plan['at_fp16_bytes']['batch_gain'] > 2, 'batch and context at one budget')
    expect(json.loads(run('plan', str(folder / 'mix.json'), '--json').stdout)['plan'] == plan['plan'], 'reads back')
    classes = [head['key'].get('classes') for head in plan['plan']['layers'][-1]['heads']]
    expect(any(c and c.count(1) == c.count(3) == 3 for c in classes), 'as many 1-bit as 3-bit channels')
    expect('LK_E_BUDGET' in run('plan', 'chanmix', '--stats', stats, '--budget', '1K', code=1).stderr, 'a budget')
    auto = json.loads(run('plan', 'auto', '--stats', stats, '--bits', '3', '--json').stdout)
    expect(2.8 < auto['bits_per_value'] <= 3, 'auto fills its limit')
    small = json.loads(run('plan', 'auto', '--stats', stats, '--budget', str(auto['bytes_total']), '--json').stdout)
    expect(small['bytes_total'] <= auto['bytes_total'], 'auto keeps a budget')
    run('plan', 'auto', '--stats', stats, code=2)
    expect('LK_E_BUDGET' in run('plan', 'auto', '--stats', stats, '--bits', '1', code=1).stderr, 'a limit')
    own = json.loads(run('plan', 'default', '--stats', stats, '--json').stdout)
    expect(own['name'] == 'auto' and own['bits_per_value'] <= 2.25, 'with statistics the default is auto')
    run('plan', 'default', '--stats', stats, '--layers', '2', code=2)
    none = folder / 'none.safetensors'
    for name, wrong, part in [('layer.1.k', ([tokens, 2, d], [float('nan')] + k[1:]), 'layer 1, head 0, channel 0, token 0'),
                              ('layer.1.k', ([tokens * 2, 1, d], k), 'layer.1.probe_k'),
                              ('layer.0.probe_q', ([tokens * 4, d], q), 'layer.0.probe_q')]:
        path = safetensors(folder / 'wrong.safetensors', {**dump, name: wrong}, metadata)
        expect(part in run('calibrate', path, '-o', str(none), code=1).stderr and not none.exists(), f'{part} is named')
    run('plan', 'chanmix', '--stats', path, code=1)


def pm_kvq(folder: pathlib.Path) -> None:
    """Values and gradients of a dump to sensitivities, widths within a budget, scales; positions; refusals."""
    layers, tokens, d = 3, 48, 32
    wave = [((t * 7 + c * 3) % 11 - 5) * (8 if c == 5 else 1) * 0.5 for t in range(tokens) for _ in range(2) for c in range(d)]
    q = [((t * 5 + h + c) % 7 - 3) * 0.1 for t in range(tokens) for h in range(4) for c in range(d)]
    dump = {}
    for n in range(layers):
        dump[f'layer.{n}.k'] = dump[f'layer.{n}.v'] = ([tokens, 2, d], wave)
        dump[f'layer.{n}.q'] = ([tokens, 4, d], q)
    metadata = {'passes': '30,18', 'rope_base': '10000'}
    forward = safetensors(folder / 'forward.safetensors', dump, metadata)
    for n in range(layers):
        slope = [(4 - n) * 1e-3 * (i % 5 - 2) for i in range(len(wave))]
        dump[f'layer.{n}.k_grad'] = dump[f'layer.{n}.v_grad'] = ([tokens, 2, d], slope)
    stats, saved = str(folder / 'pm.safetensors'), folder / 'pm.json'
    plan = ('plan', 'pm-kvq', '--stats', stats, '--max-tokens', '20000', '--budget')
    run('calibrate', safetensors(folder / 'slopes.safetensors', dump, metadata), '-o', stats)
    need = run(*plan, '1M', code=1).stderr
    expect('LK_E_BUDGET' in need and ' need ' in need, 'too small a budget')
    least = int(need.split(' need ')[1].split()[0])
    said = json.loads(run(*plan, str(least + (1 << 20)), '--plot', str(folder / 'pm.png'), '-o', str(saved), '--json').stdout)
    expect(png_size(folder / 'pm.png')[0] == 1400, 'the picture')
    expect(said['pm_kvq']['bytes_when_full'] <= least + (1 << 20), 'the budget holds')
    ends = [layer['ladder'][-1] for layer in said['plan']['layers']]
    expect(ends[0] == 4 and ends[-1] == 2, f'the most sensitive layers end at more bits, here {ends}')
    expect(said['plan']['layers'][0]['shrink_order'] == 2, 'and shrink last')
    lengths = [step['tokens'] for step in said['pm_kvq']['descents']]
    expect(len(lengths) >= 6 and lengths == sorted(lengths), 'layers go down as the cache grows')
    expect(json.loads(run('plan', str(saved), '--json').stdout)['plan'] == said['plan'], 'reads back')
    expect('gradients' in run(*plan, '16M', '--widths', '8,4,2', '--split', '--by-head').stdout, 'by gradients')
    budget = str(least + (1 << 20))
    expect(all('budget_bytes' not in layer for layer in said['plan']['layers']), 'no budgets of layers unless they are given')
    own = json.loads(run(*plan, budget, '--layer-budgets', '--plot', str(folder / 'own.png'), '-o', str(saved), '--json').stdout)
    expect([layer['ladder'] for layer in own['plan']['layers']] == [layer['ladder'] for layer in said['plan']['layers']],
           'the same final widths')
    shares = [layer['budget_bytes'] for layer in own['plan']['layers'] for _ in range(layer.get('count', 1))]
    expect(shares[0] > 1.5 * shares[-1] and sum(shares) <= int(budget), f'budgets of layers, here {shares}')
    first = {step['layer']: step['tokens'] for step in reversed(own['pm_kvq']['descents'])}
    expect(first[0] > 1.5 * first[2], 'the most sensitive layer goes down last')
    lengths = [step['tokens'] for step in own['pm_kvq']['descents']]
    expect(lengths == sorted(lengths) and png_size(folder / 'own.png')[0] == 1400, 'when layers go down')
    expect(json.loads(run('plan', str(saved), '--json').stdout)['plan'] == own['plan'], 'reads back')
    run(*plan[:4], code=2)
    run(*plan, '16M', '--widths', '5', code=2)
    expect('no attention' in run(*plan, '16M', '--sensitivity', 'output', code=1).stderr, 'of another kind')
    run('calibrate', forward, '--scales', '--position-scale', '4', '-o', stats)
    expect('outputs' in run(*plan, '16M', '--paper', '--scales', '-o', str(saved)).stdout, 'by outputs')
    expect('budget_bytes' in saved.read_text(), 'the paper has budgets of layers')
    heads = [h for layer in json.loads(saved.read_text())['layers'] for h in layer['heads']]
    scales = [h['key']['scales'] for h in heads]
    expect(all(s[5] == s[21] > s[4] for s in scales), 'the large channel and its partner have the largest scale')
    fold = folder / 'scales.safetensors'
    run(*plan, '16M', '--paper', '--fold', str(fold), '-o', str(saved))
    expect('scales' not in saved.read_text() and fold.stat().st_size > layers * 2 * d * 4, 'scales to be folded')
    for wrong, text, part in [({'layer.1.k_grad': ([tokens * 2, 1, d], wave)}, metadata, 'layer.1.k_grad'),
                              ({'layer.1.v_grad': ([tokens // 2, 2, d], wave[:len(wave) // 2])}, metadata, 'different lengths'),
                              ({'layer.1.k_grad': ([tokens, 2, d], [float('nan')] + wave[1:])}, metadata, 'the gradient of K'),
                              ({}, {'passes': '30,19'}, 'passes of 49')]:
        path = safetensors(folder / 'wrong.safetensors', {**dump, **wrong}, text)
        words = ('--scales',) if not wrong else ()
        expect(part in run('calibrate', path, *words, '-o', stats, code=1).stderr, f'{part} is named')
    expect('gradients' in run('calibrate', str(folder / 'slopes.safetensors'), '--position-scale', '4', '-o', stats,
                              code=1).stderr, 'gradients are of their own positions')
    plain = safetensors(folder / 'plain.safetensors', {k: v for k, v in dump.items() if 'grad' not in k}, {})
    expect('rope_base' in run('calibrate', plain, '--position-scale', '4', '-o', stats, code=1).stderr, 'RoPE is needed')


check(methods, numbers, plans, chunks, calibration, pm_kvq)
