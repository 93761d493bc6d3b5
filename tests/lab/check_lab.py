#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The laboratory: its command line, throughput, and whole evaluations.

usage: check_lab.py LOWKEY_LAB command|answers|suites|ablations
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'cli'))
from harness import MODEL, check, expect, png_size, run  # noqa: E402


def suites(folder: pathlib.Path) -> None:
    """A record grows by its missing cells, and is the same whether a run was cut or not."""
    texts = folder / 'text.txt'
    texts.write_text('A short text about nothing.\n' * 40)

    def suite(record: str, *words: str) -> dict:
        return json.loads(run('suite', '--model', str(MODEL), '--text', str(texts), '--contexts', '512',
                              '--questions', '2', '--calibrate-tokens', '512', '--record', str(folder / record),
                              '--json', *words).stdout)

    suite('a.json', '--tasks', 'needle', '--plans', 'fp16')
    said = suite('a.json', '--tasks', 'needle,text', '--plans', 'fp16,kivi2', '--limits', '2.5', '--png',
                 str(folder / 'suite.png'), '--markdown', str(folder / 'suite.md'))
    again = suite('b.json', '--tasks', 'needle,text', '--plans', 'fp16,kivi2', '--limits', '2.5', '--commit', 'abc')
    expect(again['commit'] == 'abc' and 'commit' not in said and again['device'], 'what was built, where it is given')
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
    narrow = suite('f.json', '--tasks', 'needle', '--plans', 'kivi2', '--limits', '1.25', '--families', 'auto')
    expect(1.2 < narrow['plans'][1]['bits_per_value'] <= 1.25, 'auto below 2 bits')
    few = suite('e.json', '--tasks', 'needle', '--limits', '2.5', '--families', 'kivi,kitty')
    expect({plan['plan'] for plan in few['plans']} == {'fp16', 'kivi@2.5', 'kitty@2.5'}, 'only these families')
    run('suite', '--model', str(MODEL), '--text', str(texts), '--contexts', '512', '--calibrate-tokens', '512',
        '--limits', '2.5', '--families', 'nothing', code=2)
    before = (folder / 'a.json').stat().st_mtime_ns
    suite('a.json', '--tasks', 'needle', '--plans', 'kivi2')
    expect((folder / 'a.json').stat().st_mtime_ns == before, 'no question comes twice')
    both = json.loads((folder / 'b.json').read_text())
    for name, task in (('c', 'needle'), ('d', 'text')):
        part = both | {'cells': [cell for cell in both['cells'] if cell['task'] == task]}
        (folder / f'{name}.json').write_text(json.dumps(part))
    tables = [json.loads(run('tables', '--json', '--record', ','.join(
        str(folder / f'{name}.json') for name in names)).stdout) for names in ('b', 'cd', 'bcd')]
    expect(tables[0]['plans'] == tables[1]['plans'] == tables[2]['plans'], 'records of runs side by side')
    (folder / 'd.json').write_text(json.dumps(both | {'origin': both['origin'] | {'per_document': 9}}))
    run('tables', '--record', f'{folder}/c.json,{folder}/d.json', code=1)
    texts.write_text('Another text about nothing.\n' * 40)
    run('suite', '--model', str(MODEL), '--text', str(texts), '--contexts', '512', '--record',
        str(folder / 'a.json'), code=1)
    said = json.loads(run('tables', '--record', str(folder / 'a.json'), '--json').stdout)
    expect(set(said['plans'][0]['tasks']) == {'needle', 'text'}, 'tables of all that a record holds')


def long_answers(folder: pathlib.Path) -> None:
    """Answers that are graded item by item, and recent tokens and budgets of layers next to each other."""
    texts = folder / 'text.txt'
    texts.write_text('A short text about nothing.\n' * 40)
    said = json.loads(run('suite', '--model', str(MODEL), '--text', str(texts), '--contexts', '1024', '--questions', '1',
                          '--calibrate-tokens', '512', '--tasks', 'recite-2048', '--plans', 'fp16', '--limits', '2.54',
                          '--sized-tokens', '3072', '--families', 'kitty-pro recent 0,pm-kvq-budgets', '--record',
                          str(folder / 'long.json'), '--json').stdout)
    items = {plan['family']: plan['tasks']['recite-2048']['items'] for plan in said['plans']}
    expect(set(items) == {'fp16', 'kitty-pro recent 0', 'pm-kvq-budgets'}, 'the plans of long answers')
    for family, graded in items.items():
        expect(len(graded['before_error']) == 1 and 300 < graded['items'] < 800, f'{family}: items of one answer')
        expect(graded['before_error'][0] <= graded['right_percent'] * graded['items'] / 100 + 1e-6,
               f'{family}: items before an error are right')
    expect(items['fp16']['right_percent'] > 90, 'an FP16 cache recites')
    again = json.loads(run('tables', '--record', str(folder / 'long.json'), '--json').stdout)
    expect(again['plans'] == said['plans'], 'a record keeps items')


def stressed() -> None:
    results = json.loads(run('stress', '--json').stdout)['results']
    shapes = {r['shape'] for r in results}
    expect(len(shapes) == 3, 'three shapes')
    for shape in shapes:
        naive = {r['scenario'] for r in results if r['shape'] == shape and r['plan'] == '4 bits a token' and r['fails']}
        expect({'bias', 'outliers', 'all'} <= naive, f'one range for a token fails on {shape}')
    for r in results:
        expect(not (r['is_default'] and r['fails']), f'{r["plan"]} holds on {r["scenario"]} of {r["shape"]}')


def throughput(folder: pathlib.Path) -> None:
    """Tokens per second follow from the times; what does not fit in the memory is reported, and left out of the picture."""
    picture = folder / 'throughput.png'
    words = ('throughput', '--tokens', '1056', '--kv-heads', '1', '--query-heads', '2', '--head-dim', '32', '--repeats', '3',
             '--threads', '1', '--batch', '1,2')
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
    run(*words, '--tokens', '64', code=2)
    run('throughput', code=2)


def speeds(folder: pathlib.Path) -> None:
    """Every record of llama.cpp has its picture, and another file is refused."""
    picture = folder / 'speeds.png'
    results = pathlib.Path(__file__).resolve().parents[2] / 'docs/results'
    for record in ('llama.json', 'llama-cuda.json', 'llama-vulkan.json'):
        n_models = len(json.loads((results / record).read_text())['models'])
        run('speeds', '--record', str(results / record), '--png', str(picture))
        expect(png_size(picture) == (1200, 160 + 300 * n_models), f'a row for each model of {record}')
    lone = {'device': 'none', 'weights': 'f16', 'models': [{'geometry': 'a', 'layers': 1, 'caches': [{'cache': 'kivi2', 'points': []}]}]}
    for text, words in (('{', 'is no record'), ('{"models": []}', 'is no record'), ('{"models": [1]}', 'has no such field'),
                        (json.dumps(lone), 'has no cache f16')):
        (folder / 'other.json').write_text(text)
        said = run('speeds', '--record', str(folder / 'other.json'), '--png', str(folder / 'none.png'), code=1)
        expect(words in said.stderr and not (folder / 'none.png').exists(), words)


def ablations(folder: pathlib.Path) -> None:
    """Each step of a method is a row, with the bits it takes and what the paper has."""
    texts = folder / 'text.txt'
    texts.write_text('A short text about nothing.\n' * 40)
    parts = json.loads(run('ablation', 'cocktail', '--model', str(MODEL), '--text', str(texts), '--tasks',
                           'needle', '--contexts', '512', '--questions', '1', '--json').stdout)['results']
    rows = {part['name']: part for part in parts}
    expect(len(rows) >= 16 and rows['fp16']['low_middle_high'] == [0, 0, 0], 'all parts of Cocktail, FP16 without classes')
    expect(rows['without search: all low']['low_middle_high'] == [1, 0, 0], 'without search all chunks are low')
    expect(all(part['cache_percent'] < 100 for name, part in rows.items() if name != 'fp16'), 'chunks save bytes')
    run('ablation', 'cocktail', '--model', str(MODEL), '--text', str(texts), '--tasks', 'text',
        '--contexts', '512', code=2)
    results = json.loads(run('ablation', 'chanmix', '--model', str(MODEL), '--text', str(texts), '--tasks',
                             'needle', '--contexts', '512', '--questions', '2', '--calibrate-tokens', '512',
                             '--json').stdout)['results']
    expect([r['plan'] for r in results] == ['fp16', '2-bit', '+R', '+O', '+R+O', '+R+O, matched'], 'rows of the ablation')
    expect(results[1]['bits_per_value'] == results[3]['bits_per_value'] == 2.5, 'outliers cost no bytes')
    shifts = json.loads(run('ablation', 'pm-kvq', '--model', str(MODEL), '--text', str(texts), '--tasks',
                            'needle', '--contexts', '512', '--questions', '2', '--calibrate-tokens', '256',
                            '--json').stdout)['results']
    expect([r['plan'] for r in shifts[:5]] == ['fp16', 'direct, 4', 'modified, 4', 'equivalent, 4', 'block-wise, 4'],
           'rows of the shifts')
    bits = {r['plan']: r['bits_per_value'] for r in shifts}
    expect({'block-wise, 3, positions x 4', 'block-wise, 3, positions x 16'} <= set(bits), 'widths by stretched texts')
    expect(shifts[1]['published'] == {'text': '12.08'}, 'what the paper has of a shift')
    expect(bits['alternating, 3'] == 3.25 and bits['block-wise, 3'] <= 3.25 and bits['direct, 2'] == 2.25,
           'widths by layer take as many bytes')
    results = json.loads(run('ablation', 'kitty', '--model', str(MODEL), '--text', str(texts), '--tasks',
                             'needle', '--contexts', '512', '--questions', '2', '--json').stdout)['results']
    expect({r['plan']: r['bits_per_value'] for r in results} ==
           {'fp16': 16, 'K2V2': 2.25, 'K2V2 + sinks': 2.25, '12.5 %': 2.40625, '25 %': 2.53125, '25 %, random': 2.5,
            '25 %, by queries': 2.53125}, 'rows of the ablation of Kitty and their bits')
    expect(results[1]['published'] == {'score': 61.39} and results[5]['published'] == {}, 'what the paper has')


def answers() -> None:
    """The tasks on plans of choice."""
    found = json.loads(run('eval', '--tasks', 'needle,text', '--contexts', '512', '--questions', '1', '--plans',
                           'fp16,kivi2', '--json').stdout)['results']
    expect([result['plan'] for result in found] == ['fp16', 'kivi2'], 'a row for each plan')
    expect(found[1]['bits_per_value'] == 2.25, 'and its bits')


def usage() -> None:
    for command in ('eval', 'ablation', 'suite', 'tables', 'stress', 'throughput', 'speeds'):
        expect(f'lowkey-lab {command}' in run(command, '--help').stdout, f'{command} --help has an example')
    run('tables', code=2)
    run('ablation', 'nonsense', code=2)
    expect('there is no command nonsense' in run('nonsense', code=2).stderr, 'an unknown command is named')


PARTS = {'command': [usage, throughput, speeds], 'answers': [stressed, answers], 'suites': [suites, long_answers], 'ablations': [ablations]}
check(*PARTS[sys.argv[2]])
