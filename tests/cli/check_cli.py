#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command as a user meets it: exit codes, JSON fields, pictures, sentences.

usage: check_cli.py LOWKEY LIBRARY
LIBRARY: how other programs can load the library: "shared", "sanitized" or "static" (they cannot)
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

LOWKEY, LIBRARY = sys.argv[1:]
checks = 0


def run(*words: str, code: int = 0, **env: str) -> subprocess.CompletedProcess:
    """Run the command and hold it to an exit code."""
    global checks
    checks += 1
    done = subprocess.run([LOWKEY, *words], capture_output=True, text=True, timeout=600, env={**os.environ, **env})
    if done.returncode != code:
        sys.exit(f'lowkey {" ".join(words)}: exit {done.returncode}, not {code}\n{done.stdout}{done.stderr}')
    return done


def expect(condition: bool, what: str) -> None:
    global checks
    checks += 1
    if not condition:
        sys.exit(f'not so: {what}')


def png_size(path: pathlib.Path) -> tuple[int, int]:
    """Width and height of a PNG whose chunks all have the right checksum."""
    data = path.read_bytes()
    expect(data[:8] == b'\x89PNG\r\n\x1a\n', f'{path.name} is a PNG')
    at = 8
    while at < len(data):
        length, = struct.unpack_from('>I', data, at)
        body = data[at + 4:at + 8 + length]
        expect(zlib.crc32(body) == struct.unpack_from('>I', data, at + 8 + length)[0], 'chunk checksum')
        at += 12 + length
    return struct.unpack_from('>II', data, 16)


def usage() -> None:
    expect('Subcommands' in run('--help').stdout, 'help names the subcommands')
    for command in ('info', 'plan', 'calibrate', 'inspect', 'verify', 'bench', 'eval'):
        help_text = run(command, '--help').stdout
        expect(f'lowkey {command}' in help_text, f'{command} --help has an example')
    run('nonsense', code=2)
    run('plan', 'kitty', '--layers', 'many', code=2)
    run('plan', 'no-such-plan', code=2)
    run('plan', 'chanmix', code=2)
    run('plan', 'auto', code=2)
    run('eval', '--suite', '--tables', code=2)
    run('calibrate', code=2)
    run('verify', '--device', 'cuda:first', code=2)
    run('bench', '--graph', code=2)
    run('bench', '--device', 'vulkan', '--graph', code=2)


def plans(folder: pathlib.Path) -> None:
    bits = {'fp16': 16, 'int8': 8.25, 'kivi4': 4.25, 'kivi2': 2.25, 'kitty': 2.40625, 'kitty-pro': 2.53125}
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
    run('plan', 'kitty-pro', '--png', str(folder / 'plan.png'))
    width, height = png_size(folder / 'plan.png')
    expect(width >= 400 and height >= 300, 'the picture has a size to look at')


def chunks(folder: pathlib.Path) -> None:
    """Plans with chunks: bytes of a mix, the paper's models, scores to classes, the table of widths."""
    got = json.loads(run('plan', 'cocktail', '--tokens', '131072', '--mix', '60,30,10', '--json').stdout)
    expect(3 * 0.6 + 5 * 0.3 + 16 * 0.1 > got['bits_per_value'] > 4, 'between the bits of the classes')
    models = {model['model']: model for model in got['paper_models']}
    expect(len(models) == 4 and models['Llama2-7B']['weight_bytes'] == 2 * 6738415616, 'four models, their weights')
    expect(models['Mistral-7B']['fp16_bytes'] < models['Llama2-7B']['fp16_bytes'] / 3, 'a quarter of the KV heads')
    for model in models.values():
        expect(60 < model['cache_saved_percent'] < 80, 'what chunks save of the cache')
        expect(model['weights_and_cache_saved_percent'] < model['cache_saved_percent'], 'and of a GPU')
    recorded = pathlib.Path(__file__).parents[2] / 'docs' / 'results' / 'cocktail-memory.json'
    expect(json.loads(recorded.read_text())['paper_models'] == got['paper_models'], 'docs/results.md has these bytes')
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
    run('plan', 'kitty', '--chunk', '32', code=2)
    run('plan', 'cocktail', '--mix', '60,30,20', code=2)
    run('plan', 'cocktail', '--plot', str(folder / 'none.png'), code=2)
    run('plan', 'cocktail', '--alpha', '0.6', '--beta', '0.4', code=1)
    scores.write_text('1 2 three')
    run('plan', 'cocktail', '--scores', str(scores), code=1)
    scores.write_text('1 nan 2')
    run('plan', 'cocktail', '--scores', str(scores), code=1)


def safetensors(path: pathlib.Path, tensors: dict, metadata: dict) -> str:
    """Write F32 tensors of name: (shape, values)."""
    header, body = {'__metadata__': metadata}, b''
    for name, (shape, values) in tensors.items():
        data = struct.pack(f'<{len(values)}f', *values)
        header[name] = {'dtype': 'F32', 'shape': shape, 'data_offsets': [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack('<Q', len(text)) + text + body)
    return str(path)


def calibration(folder: pathlib.Path) -> None:
    """Dumps to statistics to a plan and its picture; wrong dumps leave nothing behind."""
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
    none = folder / 'none.safetensors'
    for name, wrong, part in [('layer.1.k', ([tokens, 2, d], [float('nan')] + k[1:]), 'layer 1, head 0, channel 0, token 0'),
                              ('layer.1.k', ([tokens * 2, 1, d], k), 'layer.1.probe_k'),
                              ('layer.0.probe_q', ([tokens * 4, d], q), 'layer.0.probe_q')]:
        path = safetensors(folder / 'wrong.safetensors', {**dump, name: wrong}, metadata)
        expect(part in run('calibrate', path, '-o', str(none), code=1).stderr and not none.exists(), f'{part} is named')
    run('plan', 'chanmix', '--stats', path, code=1)
    texts = folder / 'text.txt'
    texts.write_text('A short text about nothing.\n' * 40)
    model = pathlib.Path(__file__).parents[1] / 'model/prover.safetensors'
    parts = json.loads(run('eval', '--ablation', 'cocktail', '--model', str(model), '--text', str(texts), '--tasks',
                           'needle', '--contexts', '512', '--questions', '1', '--json').stdout)['results']
    rows = {part['name']: part for part in parts}
    expect(len(rows) >= 16 and rows['fp16']['low_middle_high'] == [0, 0, 0], 'all parts of Cocktail, FP16 without classes')
    expect(rows['without search: all low']['low_middle_high'] == [1, 0, 0], 'without search all chunks are low')
    expect(all(part['cache_percent'] < 100 for name, part in rows.items() if name != 'fp16'), 'chunks save bytes')
    run('eval', '--ablation', 'cocktail', '--model', str(model), '--text', str(texts), '--tasks', 'text',
        '--contexts', '512', code=2)
    results = json.loads(run('eval', '--ablation', 'chanmix', '--model', str(model), '--text', str(texts), '--tasks',
                             'needle', '--contexts', '512', '--questions', '2', '--calibrate-tokens', '512',
                             '--json').stdout)['results']
    expect([r['plan'] for r in results] == ['fp16', '2-bit', '+R', '+O', '+R+O', '+R+O, matched'], 'rows of the ablation')
    expect(results[1]['bits_per_value'] == results[3]['bits_per_value'] == 2.5, 'outliers cost no bytes')
    shifts = json.loads(run('eval', '--ablation', 'pm-kvq', '--model', str(model), '--text', str(texts), '--tasks',
                            'needle', '--contexts', '512', '--questions', '2', '--calibrate-tokens', '256',
                            '--json').stdout)['results']
    expect([r['plan'] for r in shifts[:5]] == ['fp16', 'direct, 4', 'modified, 4', 'equivalent, 4', 'block-wise, 4'],
           'rows of the shifts')
    bits = {r['plan']: r['bits_per_value'] for r in shifts}
    expect({'block-wise, 3, positions x 4', 'block-wise, 3, positions x 16'} <= set(bits), 'widths by stretched texts')
    expect(shifts[1]['published'] == {'text': '12.08'}, 'what the paper has of a shift')
    expect(bits['alternating, 3'] == 3.25 and bits['block-wise, 3'] <= 3.25 and bits['direct, 2'] == 2.25,
           'widths by layer take as many bytes')
    results = json.loads(run('eval', '--ablation', 'kitty', '--model', str(model), '--text', str(texts), '--tasks',
                             'needle', '--contexts', '512', '--questions', '2', '--json').stdout)['results']
    expect({r['plan']: r['bits_per_value'] for r in results} ==
           {'fp16': 16, 'K2V2': 2.25, 'K2V2 + sinks': 2.25, '12.5 %': 2.40625, '25 %': 2.53125, '25 %, random': 2.5,
            '25 %, by queries': 2.53125}, 'rows of the ablation of Kitty and their bits')
    expect(results[1]['published'] == {'score': 61.39} and results[5]['published'] == {}, 'what the paper has')


def costs(folder: pathlib.Path) -> None:
    """What halves of heads cost is kept with statistics, and moves bits of auto."""
    root = pathlib.Path(__file__).parents[2]
    common = ['--model', str(root / 'tests/model/prover.safetensors'), '--text', str(root / 'docs/FORMAT.md'),
              '--tokens', '64', '--attention-tokens', '0', '--repeats', '2']
    layers = []
    for words in ([], ['--costs', '--costs-tokens', '320', '--costs-documents', '1']):
        stats, plan = str(folder / 'costs.safetensors'), folder / 'costs.json'
        run('calibrate', *common, *words, '-o', stats)
        run('plan', 'auto', '--stats', stats, '--bits', '2.5', '-o', str(plan))
        layers.append(json.loads(plan.read_text())['layers'])
    expect(layers[0] != layers[1], 'costs move bits of auto')
    expect('--model' in run('calibrate', stats, '--costs', code=2).stderr, 'costs need a model')


def suites(folder: pathlib.Path) -> None:
    """A record grows by what it lacks, and is the same whether a run was cut or not."""
    model = pathlib.Path(__file__).parents[1] / 'model/prover.safetensors'
    texts = folder / 'text.txt'
    texts.write_text('A short text about nothing.\n' * 40)

    def suite(record: str, *words: str) -> dict:
        return json.loads(run('eval', '--suite', '--model', str(model), '--text', str(texts), '--contexts', '512',
                              '--questions', '2', '--calibrate-tokens', '512', '--record', str(folder / record),
                              '--json', *words).stdout)

    suite('a.json', '--tasks', 'needle', '--plans', 'fp16')
    said = suite('a.json', '--tasks', 'needle,text', '--plans', 'fp16,kivi2', '--limits', '2.5', '--png',
                 str(folder / 'suite.png'), '--markdown', str(folder / 'suite.md'))
    again = suite('b.json', '--tasks', 'needle,text', '--plans', 'fp16,kivi2', '--limits', '2.5', '--commit', 'abc')
    expect(again['commit'] == 'abc' and 'commit' not in said and again['device'], 'what was built, where it is told')
    cells = [sorted(json.loads((folder / name).read_text())['cells'], key=lambda c: (c['task'], c['plan']))
             for name in ('a.json', 'b.json')]
    expect(cells[0] == cells[1] and len(cells[0]) == 2 * len(said['plans']), 'a record that was gone on with')
    plans = {plan['plan']: plan for plan in said['plans']}
    expect(plans['fp16']['questions']['divergence_bits'] == plans['fp16']['questions']['output_error'] == 0,
           'an FP16 cache does not differ from one')
    expect(plans['kivi2']['questions']['output_error'] > 0.01, 'a packed one does')
    for name in ('kivi', 'kivi+sink', 'kitty', 'chanmix', 'cocktail', 'pm-kvq', 'pm-kvq-paper', 'auto'):
        plan = plans[f'{name}@2.5']
        expect(2.2 < plan['bits_per_value'] <= 2.5, f'{name} keeps the limit')
        expect(plan['questions']['output_error'] > 0.01, f'{name} packs the context')
    expect({test['against'] for test in said['paired']} >= {'fp16', 'kitty@2.5'}, 'auto is compared with the others')
    expect(all(test['copies']['bits_per_byte']['documents'] == 0 for test in said['paired']),
           'needles and texts are no repetition or direct tracking')
    expect(png_size(folder / 'suite.png')[0] == 1200, 'the picture')
    expect('| auto |' in (folder / 'suite.md').read_text(), 'the table')
    before = (folder / 'a.json').stat().st_mtime_ns
    suite('a.json', '--tasks', 'needle', '--plans', 'kivi2')
    expect((folder / 'a.json').stat().st_mtime_ns == before, 'nothing is asked twice')
    both = json.loads((folder / 'b.json').read_text())
    for name, task in (('c', 'needle'), ('d', 'text')):
        part = both | {'cells': [cell for cell in both['cells'] if cell['task'] == task]}
        (folder / f'{name}.json').write_text(json.dumps(part))
    tables = [json.loads(run('eval', '--suite', '--tables', '--json', '--record', ','.join(
        str(folder / f'{name}.json') for name in names)).stdout) for names in ('b', 'cd', 'bcd')]
    expect(tables[0]['plans'] == tables[1]['plans'] == tables[2]['plans'], 'records of runs side by side')
    (folder / 'd.json').write_text(json.dumps(both | {'origin': both['origin'] | {'per_document': 9}}))
    run('eval', '--suite', '--tables', '--record', f'{folder}/c.json,{folder}/d.json', code=1)
    texts.write_text('Another text about nothing.\n' * 40)
    run('eval', '--suite', '--model', str(model), '--text', str(texts), '--contexts', '512', '--record',
        str(folder / 'a.json'), code=1)
    said = json.loads(run('eval', '--suite', '--tables', '--record', str(folder / 'a.json'), '--json').stdout)
    expect(set(said['plans'][0]['tasks']) == {'needle', 'text'}, 'tables of all that a record holds')


def stressed() -> None:
    results = json.loads(run('eval', '--stress', '--json').stdout)['results']
    shapes = {r['shape'] for r in results}
    expect(len(shapes) == 3, 'three shapes')
    for shape in shapes:
        naive = {r['scenario'] for r in results if r['shape'] == shape and r['plan'] == '4 bits a token' and r['fails']}
        expect({'bias', 'outliers', 'all'} <= naive, f'one range for a token fails on {shape}')
    for r in results:
        expect(not (r['is_default'] and r['fails']), f'{r["plan"]} holds on {r["scenario"]} of {r["shape"]}')


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
    run(*plan[:4], code=2)
    run(*plan, '16M', '--widths', '5', code=2)
    expect('no attention' in run(*plan, '16M', '--sensitivity', 'output', code=1).stderr, 'of another kind')
    run('calibrate', forward, '--scales', '--position-scale', '4', '-o', stats)
    expect('outputs' in run(*plan, '16M', '--paper', '--scales', '-o', str(saved)).stdout, 'by outputs')
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


def snapshots(folder: pathlib.Path) -> None:
    golden = pathlib.Path(__file__).parents[1] / 'fuzz/snapshot/case-0.lksnap'
    said = json.loads(run('inspect', 'snapshot', str(golden), '--json').stdout)
    expect(said['bytes'] == golden.stat().st_size and said['tokens'] == 232, 'the size of a snapshot')
    expect([s['tokens'] for s in said['sequences']] == [110, 115, 7], 'its sequences')
    expect(said['sequences'][1]['shared_rows'] == 2, 'rows that a fork shares')
    halves = sum(c['code_bytes'] + c['metadata_bytes'] for c in said['classes'])
    expect(0.85 * said['bytes'] < halves < said['bytes'], 'bytes by class are nearly all')
    expect(said['plan']['lowkey_plan'] == 1, 'its plan')
    text = run('inspect', str(golden), '--png', str(folder / 'snapshot.png')).stdout
    expect('232 tokens' in text and '4: 16, 2: 16' in text, 'a table of it')
    expect(png_size(folder / 'snapshot.png')[0] == 1180, 'its picture')
    (folder / 'cut.lksnap').write_bytes(golden.read_bytes()[:-1])
    expect('LK_E_CORRUPT' in run('inspect', str(folder / 'cut.lksnap'), code=1).stderr, 'a cut one')
    run('inspect', 'snapshot', code=2)
    run('inspect', 'page', str(golden), code=2)


def hostile(folder: pathlib.Path) -> None:
    for name, text in {'cut.json': '{"lowkey_plan": 1', 'other.json': '{"lowkey_plan": 99}', 'list.json': '[]',
                       'deep.json': '[' * 100000}.items():
        (folder / name).write_text(text)
        refused = run('plan', str(folder / name), code=1)
        expect(name in refused.stderr or 'LK_E' in refused.stderr, f'{name} is refused with a sentence')
    (folder / 'huge.safetensors').write_bytes(struct.pack('<Q', 1 << 62) + b'{}')
    run('inspect', str(folder / 'huge.safetensors'), code=1)


def inspected() -> list[str]:
    """The backends that have a device here."""
    info = json.loads(run('info', '--json').stdout)
    backends = [d['backend'] for d in info['devices']]
    expect('cpu' in backends, 'info lists the CPU')
    run('inspect', 'page', '--plan', 'kitty-pro')
    order = json.loads(run('inspect', 'page', '--plan', 'kivi2', '--layout', 'chanmix', '--json').stdout)
    expect(order['token_bytes'] * 4 == len(order['places']), 'ChanMix packs four channels of 2 bits in a byte')
    expect(order['places'][0] == {'channel': 0, 'bits': 2, 'byte': 0, 'shift': 6}, 'the first channel is highest')
    run('inspect', 'page', '--plan', 'kivi2', '--layout', 'chanmix')
    run('inspect', 'page', '--plan', 'fp16', '--layout', 'chanmix', code=1)
    return backends


def measured(*words: str) -> list[dict]:
    """The rows of a small bench, each with a time."""
    rows = json.loads(run('bench', '--tokens', '300', '--repeats', '3', '--json', *words).stdout)['rows']
    expect(all(row['median_s'] > 0 for row in rows), f'bench {" ".join(words)} takes time')
    return rows


def mixed(*words: str) -> None:
    """Chunks with classes beside such that are all low, with pages of one class together and without."""
    rows = json.loads(run('bench', '--tokens', '1056', '--kv-heads', '1', '--query-heads', '2', '--head-dim', '32',
                          '--repeats', '3', '--mix', '50,25,25', '--json', *words).stdout)['rows']
    expect([row['plan'] for row in rows] == ['fp16', 'low', 'mix', 'low, reorder=off', 'mix, reorder=off'], 'five rows')
    n = 32 * rows[0]['batch']
    for row, counts in zip(rows[1:], 2 * ((n, 0, 0), (n // 2, n // 4, n // 4))):
        expect(tuple(row['chunks'].values()) == counts, f'{row["plan"]} has the chunks of its mix')
        expect(abs(row['share_of_bound'] * row['bound_s'] - row['median_s']) < 1e-9, 'times stand beside their bound')
        expect(row['bytes_over_low'] == row['cache_bytes'] / rows[1]['cache_bytes'], 'bytes beside those of low')


def throughput(folder: pathlib.Path) -> None:
    """Tokens per second follow from the times; what does not fit in the memory is told, and left out of the picture."""
    picture = folder / 'throughput.png'
    words = ('bench', '--tokens', '1056', '--kv-heads', '1', '--query-heads', '2', '--head-dim', '32', '--repeats', '3',
             '--threads', '1', '--batch', '1,2', '--throughput')
    found = json.loads(run(*words, '--mix', '50,25,25', '--plans', 'fp16,kivi2', '--layers', '3', '--generated', '5',
                           '--memory', '900K', '--plot', str(picture), '--json').stdout)['throughput']
    for row in found['rows']:
        request = row['search_s'] + 3 * row['assign_s']
        seconds = row['batch'] * request + 5 * 3 * row['attend_s']
        expect(abs(row['tokens_per_s'] * seconds / (5 * row['batch']) - 1) < 1e-9, 'throughput is tokens over time')
        expect((request > 0) == (row['prompt_bytes'] > 0) == row['plan'].startswith(('low', 'mix')), 'classes take time')
        expect(row['fits'] == (row['cache_bytes'] + row['prompt_bytes'] <= 900 * 1024), 'bytes decide what fits')
    fits = {(row['plan'], row['batch']): row['fits'] for row in found['rows']}
    expect(fits['fp16', 1] and not fits['fp16', 2], 'the memory holds some of them')
    expect(picture.read_bytes().startswith(b'\x89PNG'), 'the picture is a PNG')
    expect('does not fit' in run(*words, '--plans', 'fp16', '--memory', '1M').stdout, 'the table tells it')
    run(*words, '--pack', code=2)
    run(*words, '--tokens', '64', code=2)
    run('bench', '--throughput', code=2)
    run('bench', '--plot', 'x.png', code=2)


def shrinking() -> None:
    """A layer goes down its ladder; then a small budget shrinks pages step by step."""
    found = json.loads(run('bench', '--shrink', '--tokens', '2048', '--kv-heads', '1', '--query-heads', '1', '--head-dim',
                           '32', '--repeats', '3', '--generation', '16384', '--json').stdout)
    expect([row['bits'] for row in found['rows']] == [8, 4, 2], 'a row for each rung')
    expect(all(row['median_s'] > 0 and row['bytes_read_and_written'] > 0 for row in found['rows']), 'rungs take time')
    expect(found['progressive']['pages_shrunk'] > 0, 'a full cache shrinks as it goes on')
    expect(found['generation']['pages_shrunk'] > 0 and found['generation']['begins_s'] > 0, 'a generation shrinks too')


def searching(*words: str) -> None:
    """Embeddings of both widths, and BM25."""
    found = json.loads(run('bench', '--search', '--chunks', '100', '--channels', '70', '--repeats', '3', '--json',
                           *words).stdout)
    expect([row['scores'] for row in found['rows']] == ['cosine f16', 'cosine f32', 'bm25'], 'a row for each score')
    expect(all(row['median_s'] > 0 and row['chunks'] == 100 for row in found['rows']), 'scores take time')
    run('bench', '--chunks', '100', code=2)


def snapshot_speed() -> None:
    """Saves and loads, and the plain copies beside them; no file stays."""
    with tempfile.TemporaryDirectory() as folder:
        found = json.loads(run('bench', '--snapshot', folder, '--tokens', '2048', '--kv-heads', '1', '--query-heads', '1',
                               '--head-dim', '32', '--plans', 'fp16,kivi2', '--repeats', '3', '--json').stdout)
        expect([row['what'] for row in found['rows']] == 2 * ['save to memory', 'load from memory', 'save to a file',
                                                              'load from a file'], 'four rows for each plan')
        expect(all(row['median_s'] > 0 and row['peer_median_s'] > 0 for row in found['rows']), 'they take time')
        expect(not os.listdir(folder), 'files go again')
    run('bench', '--snapshot', '/nonexistent', code=2)


def through_bindings() -> None:
    """Python alone: what the other languages need may not be installed."""
    run('bench', '--bindings=perl', code=2)
    if LIBRARY == 'static':
        expect('shared library' in run('bench', '--bindings', code=1).stderr, 'the bindings need a shared library')
        return
    lacking = run('bench', '--bindings=python,rust', '--repeats', '50', code=1, PATH='/nonexistent')
    expect('there is no python3' in lacking.stderr and 'there is no cargo' in lacking.stderr, 'tools are missed')
    if LIBRARY == 'shared':
        found = json.loads(run('bench', '--bindings=python', '--repeats', '200', '--json').stdout)
        first, *rows = found['rows']
        expect(first['binding'] == 'c' and first['attend_us'] > 0, 'the first row is of C')
        expect({'ctypes alone', 'lowkey.Tensor'} <= {row['arrays'] for row in rows}, 'rows of what Python passes')
        expect(all(abs(row['attend_us'] - first['attend_us'] - row['beyond_c_us']) < 1e-6 for row in rows),
               'each is compared with C')


def on_cuda() -> None:
    expect(json.loads(run('verify', '--device', 'cuda', '--json').stdout)['ok'], 'CUDA agrees with the reference')
    rows = measured('--device', 'cuda', '--batch', '2', '--new-tokens', '1,16', '--graph')
    expect({row['new_tokens'] for row in rows} == {1, 16}, 'a row for each count of new tokens')
    expect(all(row['graph_median_s'] > 0 for row in rows), 'graphs are timed too')
    measured('--device', 'cuda', '--pack', '--plans', 'kivi2,int8')
    mixed('--device', 'cuda', '--batch', '2')
    measured('--device', 'cuda', '--prefill', '--plans', 'fp16,kitty-pro')
    searching('--device', 'cuda')
    results = json.loads(run('eval', '--device', 'cuda', '--tasks', 'needle', '--contexts', '1024', '--questions', '4',
                             '--plans', 'fp16,kitty-pro', '--json').stdout)['results']
    expect(results[0]['tasks'][0]['right'] >= 3, 'the model finds needles through a cache in CUDA memory')


def on_vulkan() -> None:
    """Few rows: a driver on the CPU is slow."""
    rows = measured('--device', 'vulkan', '--batch', '2', '--new-tokens', '1,16', '--plans', 'kitty-pro')
    expect({row['new_tokens'] for row in rows} == {1, 16}, 'a row for each count of new tokens')
    measured('--device', 'vulkan', '--pack', '--plans', 'kivi2')
    mixed('--device', 'vulkan', '--warm')
    searching('--device', 'vulkan')


def on_devices(backends: list[str]) -> None:
    for backend, check in {'cuda': on_cuda, 'vulkan': on_vulkan}.items():
        if backend in backends:
            check()
        else:
            refused = run('bench', '--device', backend, code=1)
            expect('LK_E_UNSUPPORTED' in refused.stderr, f'that {backend} has no device is said by name')


with tempfile.TemporaryDirectory() as name:
    usage()
    plans(pathlib.Path(name))
    chunks(pathlib.Path(name))
    calibration(pathlib.Path(name))
    pm_kvq(pathlib.Path(name))
    if LIBRARY != 'sanitized':  # slow there, and made of calls that are made elsewhere too
        costs(pathlib.Path(name))
    suites(pathlib.Path(name))
    stressed()
    snapshots(pathlib.Path(name))
    hostile(pathlib.Path(name))
    measured('--plans', 'fp16,kivi2')
    batches = measured('--plans', 'fp16', '--batch', '1,3', '--threads', '1')
    expect([row['batch'] for row in batches] == [1, 3], 'a row for each batch')
    mixed('--batch', '2', '--threads', '1')
    throughput(pathlib.Path(name))
    run('bench', '--mix', '60,30,20', code=2)
    run('bench', '--mix', '60,30,10', '--shrink', code=2)
    run('bench', '--mix', '60,30,10', '--chunk', '8', code=2)
    shrinking()
    searching()
    snapshot_speed()
    through_bindings()
    on_devices(inspected())
print(f'{checks} checks hold')
