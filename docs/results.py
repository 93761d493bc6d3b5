#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the tables of measured answers from what was recorded: python3 docs/results.py [--check].

docs/results/NAME.json is what `lowkey-lab` (a study), `lowkey demo`, `plan` or `bench` printed with --json. In README.md, docs/
and docs/lab/ the lines between <!-- drawn: NAME VIEW --> and <!-- end --> are made from it; NAMEs of results_models.py are all records of proving models.
--check changes nothing and fails when
a page differs."""
import json
import pathlib
import re
import sys

from results_models import MODEL_VIEWS, by_limit, limit_of, read_models, table

ROOT = pathlib.Path(__file__).resolve().parents[1]
DRAWN = re.compile(r'(<!-- drawn: (\S+) (\S+) -->\n).*?(<!-- end -->)', re.S)


def match(sums: dict) -> str:
    low, high = sums['interval_95_percent']
    return f'{sums["exact_match_percent"]:.1f} ({low:.0f}..{high:.0f})'


def suite_plans(record: dict) -> str:
    """Every plan of a suite at its limit."""
    tasks = list(record['plans'][0]['tasks'])
    header = ['at most', 'plan', 'bits/value', 'cache %', *tasks, '-log2 p', 'KL, bits', 'attention error %']
    rows = []
    for plan in by_limit(record):
        sums = plan['questions']
        rows.append([limit_of(plan), plan['family'], f'{plan["bits_per_value"]:.3f}',
                     f'{100 * plan["kv_bytes"] / plan["fp16_bytes"]:.1f}',
                     *(f'{t["bits_per_byte"]:.4f}' if name == 'text' else match(t)
                       for name, t in plan['tasks'].items()),
                     f'{sums["bits_per_byte"]:.4f}', f'{sums["divergence_bits"]:.4f}',
                     f'{100 * sums["output_error"]:.1f}'])
    return table(header, rows)


def suite_tasks(record: dict) -> str:
    """Every plan of a suite, task by task."""
    tasks = list(record['plans'][0]['tasks'])
    header = ['plan', 'bits/value', *(name for task in tasks for name in (f'{task} %', '-log2 p', 'attention error %'))]
    return table(header, [[plan['plan'], f'{plan["bits_per_value"]:.3f}',
                           *(cell for t in plan['tasks'].values()
                             for cell in (match(t), f'{t["bits_per_byte"]:.4f}', f'{100 * t["output_error"]:.1f}'))]
                          for plan in record['plans']])


def suite_paired(record: dict) -> str:
    """auto against each plan of its limit, document by document."""
    plans = {plan['plan']: plan for plan in record['plans']}

    def cell(test: dict, digits: int) -> list[str]:
        low, high = test['interval_95']
        p = '< 0.0001' if test['p'] < 1e-4 else f'{test["p"]:.4f}'
        return [f'{test["difference"]:+.{digits}f} ({low:+.{digits}f}..{high:+.{digits}f})', p]

    rows = [[limit_of(plans[t['plan']]), plans[t['against']]['family'], str(t['exact_match_points']['documents']),
             *cell(t['exact_match_points'], 1), *cell(t['bits_per_byte'], 4), *cell(t['divergence_bits'], 4)]
            for t in record['paired']]
    return table(['at most', 'auto against', 'documents', 'exact match, points', 'p', '-log2 p', 'p', 'KL, bits', 'p'], rows)


def effect(test: dict, digits: int) -> list[str]:
    return [f'{test["difference"]:+.{digits}f}', '< 0.0001' if test['p'] < 1e-4 else f'{test["p"]:.4f}']


def suite_ahead(record: dict) -> str:
    """Is auto ahead at up to 2.5 bits: more answers right and lower -log2 p, p < 0.05 each?"""
    plans = {plan['plan']: plan for plan in record['plans']}
    rows = []
    for test in record['paired']:
        limit, against = plans[test['plan']]['limit_bits'], plans[test['against']]
        if limit > 2.5 or not against['limit_bits']:
            continue
        match_test, bits_test = test['copies']['exact_match_points'], test['copies']['bits_per_byte']
        more = match_test['difference'] > 0 and match_test['p'] < 0.05
        lower = bits_test['difference'] < 0 and bits_test['p'] < 0.05
        rows.append([f'{limit:g}', against['family'], str(match_test['documents']), *effect(match_test, 1),
                     *effect(bits_test, 4), 'yes' if more and lower else '-log2 p' if lower else 'match' if more else 'no'])
    return table(['at most', 'against', 'documents', 'exact match, points', 'p', '-log2 p', 'p', 'ahead'], rows)


def suite_level(record: dict) -> str:
    """Is auto not worse above 2.5 bits: at most 0.5 points of exact match, one-sided, and lower KL?"""
    plans = {plan['plan']: plan for plan in record['plans']}
    rows = []
    for test in record['paired']:
        limit, against = plans[test['plan']]['limit_bits'], plans[test['against']]
        if limit <= 2.5 or not against['limit_bits']:
            continue
        match_test, kl_test = test['copies']['exact_match_points'], test['copies']['divergence_bits']
        least = match_test['one_sided_95'][0]
        rows.append([f'{limit:g}', against['family'], str(match_test['documents']), f'{match_test["difference"]:+.1f}',
                     f'{least:+.1f}', 'yes' if least >= -0.5 else 'no', *effect(kl_test, 4),
                     'yes' if kl_test['difference'] < 0 else 'no'])
    return table(['at most', 'against', 'documents', 'exact match, points', 'at least, one-sided 95 %', 'within 0.5',
                  'KL, bits', 'p', 'lower'], rows)


def suite_short(record: dict) -> str:
    """The FP16 cache and families by limits: exact match over all questions, and -log2 p of an answer byte."""
    limits = sorted({plan['limit_bits'] for plan in record['plans']} - {0})
    families = list(dict.fromkeys(plan['family'] for plan in record['plans'] if plan['limit_bits']))
    at = {(plan['family'], plan['limit_bits']): plan['questions'] for plan in record['plans']}
    rows = []
    for family in ['fp16', *families]:
        sums = [at.get((family, limit), at.get((family, 0))) for limit in limits]
        rows.append([family, *(f'{s["exact_match_percent"]:.1f} %, {s["bits_per_byte"]:.4f}' if s else '' for s in sums)])
    return table(['plan', *(f'at most {limit:g} bits' for limit in limits)], rows)


def task_headers(record: dict) -> list[str]:
    return [name for task in record['results'][0]['tasks'] for name in (f'{task["task"]} %', '-log2 p')]


def ablation_rows(record: dict) -> str:
    """One part of a method a row; the paper's size of the cache where it has one."""
    sizes = any('cache_percent' in result['published'] for result in record['results'])
    rows = []
    for result in record['results']:
        published = result['published']
        cells = [result['plan'], f'{result["bits_per_value"]:.3f}', f'{100 / result["compression"]:.1f}']
        for task in result['tasks']:
            cells += [match(task), f'{task["bits_per_byte"]:.4f}']
        cells.append(f'{published["score"]:.2f}' if 'score' in published else '-')
        rows.append(cells + ([f'{published.get("cache_percent", "-")}'] if sizes else []))
    return table(['plan', 'bits/value', 'cache %', *task_headers(record), 'paper', *(['its cache %'] * sizes)], rows)


def cocktail_rows(record: dict) -> str:
    """Parts of Cocktail by the classes that chunks get."""
    rows = []
    for result in record['results']:
        published = result['published']
        cells = [result['name'], ' / '.join(f'{100 * share:.0f}' for share in result['low_middle_high']),
                 f'{result["cache_percent"]:.1f}']
        for task in result['tasks']:
            cells += [match(task), f'{task["bits_per_byte"]:.4f}']
        rows.append([*cells, f'{published["score"]:.2f}' if 'score' in published else '-'])
    return table(['part', 'low / middle / high %', 'cache %', *task_headers(record), 'paper'], rows)


def gib(n_bytes: int) -> str:
    """Three digits."""
    size = n_bytes / 2**30
    return f'{size:.{2 if size < 9.995 else 1 if size < 99.95 else 0}f} GiB'


def memory_rows(record: dict) -> str:
    """What `lowkey plan` prints of the models of Cocktail's paper."""
    rows = [[model['model'], gib(model['fp16_bytes']), gib(model['cocktail_bytes']),
             f'{model["cache_saved_percent"]:.1f} %', gib(model['weight_bytes']),
             f'{model["weights_and_cache_saved_percent"]:.1f} %'] for model in record['paper_models']]
    return table(['model', 'all at 16 bits', 'by chunks', 'cache saved', 'weights at 16 bits', 'of both saved'], rows)


def throughput_rows(record: dict) -> str:
    """Tokens per second by plan and batch, where the caches fit, and what a request takes beyond decoding."""
    served = record['throughput']['rows']
    batches = sorted({row['batch'] for row in served})
    rows = []
    for plan in dict.fromkeys(row['plan'] for row in served):
        own = {row['batch']: row for row in served if row['plan'] == plan}
        last = own[batches[-1]]
        rows.append([plan, *(f'{own[n]["tokens_per_s"]:.3g}' if own[n]['fits'] else '-' for n in batches),
                     f'{last["search_s"] * 1e3:.3f}' if last['search_s'] else '',
                     f'{last["assign_s"] * 1e3:.2f}' if last['assign_s'] else '',
                     gib(last['cache_bytes'] + last['prompt_bytes'])])
    return table(['plan', *(f'batch {n}' for n in batches), 'search, ms', 'classes of a layer, ms',
                  f'caches at batch {batches[-1]}'], rows)


def mix_rows(record: dict) -> str:
    """Decode of contexts with classes next to uniform low chunks, and the time that their bytes allow."""
    rows = []
    for row in record['rows']:
        if 'chunks' not in row:
            continue
        chunks = list(row['chunks'].values())
        rows.append([row['plan'], str(row['tokens']), str(row['batch']),
                     ' / '.join(f'{100 * n / sum(chunks):.1f}' for n in chunks), f'{row["cache_bytes"] / 2**20:.2f}',
                     f'{row["median_s"] * 1e6:.1f}', f'{row["bytes_over_low"]:.3f}', f'{row["time_over_low"]:.3f}',
                     f'{row["bound_s"] * 1e6:.1f}'])
    return table(['plan', 'tokens', 'batch', 'low / middle / high %', 'MiB', 'us', "of low's bytes", "of low's time",
                  'bound, us'], rows)


def shift_rows(record: dict) -> str:
    """Shifts of prompts: caches are at 16 bits, so their bytes say nothing."""
    rows = []
    for result in record['results']:
        cells = [result['plan'], f'{result["bits_per_value"]:.2f}']
        for task in result['tasks']:
            cells += [match(task), f'{task["bits_per_byte"]:.4f} +-{task["bits_per_byte_error_95"]:.4f}']
        rows.append([*cells, result['published']['text']])
    return table(['shift, bits', 'bits/value', *task_headers(record), 'paper'], rows)


def demo_rows(record: dict) -> str:
    """Caches of `lowkey demo` without their speeds, which are of a machine at a moment. What presets at
    16 bits become is for a budget or a question to say."""
    rows = []
    for result in record['results']:
        if result['plan'] != 'fp16' and result['bits_per_value'] == 16:
            continue
        rows.append([f'`{result["plan"]}`', f'{result["bits_per_value"]:.4g}', f'{result["kv_bytes"] / 2 ** 20:.1f} MiB',
                     *(f'{task["exact_match_percent"]:.1f} %' for task in result['tasks'])])
    names = [task['task'] for task in record['results'][0]['tasks']]
    return table(['cache', 'bits per value', 'KV bytes', *names], rows)


def stress_rows(record: dict) -> str:
    """Shapes and plans by scenarios; what fails is bold."""
    results = record['results']
    scenarios = list(dict.fromkeys(r['scenario'] for r in results))
    rows = []
    for shape, plan in dict.fromkeys((r['shape'], r['plan']) for r in results):
        own = [r for r in results if (r['shape'], r['plan']) == (shape, plan)]
        cells = [f'{100 * r["output_error"]:.1f}' for r in own]
        rows.append([shape, plan, f'{own[0]["bits_per_value"]:.3f}',
                     *(f'**{cell}**' if r['fails'] else cell for r, cell in zip(own, cells))])
    return table(['shape', 'plan', 'bits/value', *scenarios], rows)


def systems_rows(record: dict) -> str:
    """Models, caches and lengths of tests/bench/systems.py: what fits under the cap, and how fast it decodes."""
    rows = []
    for model, measured in record['models'].items():
        largest = {(c['cache'], c['length']): c for c in measured['cells'] if c['part'] == 'largest' and 'error' not in c}
        for cell in measured['cells']:
            start = [model, f'{cell["length"]}', cell['cache'], cell['part']]
            if 'error' in cell:
                rows.append([*start, *['-'] * 8, cell['error']])
                continue
            speeds = []
            for against in ('dynamic', 'static'):
                other = largest.get((against, cell['length']))
                speeds.append(f'{cell["tokens_per_s"] / other["tokens_per_s"]:.2f}' if other else '-')
            rows.append([*start, f'{cell["bits_per_value"]:.2f}', str(cell['batch']), f'{cell["tokens_per_s"]:.0f}', *speeds,
                         f'{cell["step_ms"]:.1f}', f'{cell["host_ms"]:.1f} ({cell["weights_host_ms"]:.1f})',
                         f'{cell["weights_gpu_ms"]:.1f}' if 'weights_gpu_ms' in cell else '-',
                         f'{100 * cell["cache_share"]:.0f} %, {cell["bound_by"]}' if 'bound_by' in cell else '-'])
    return table(['model', 'tokens', 'cache', 'part', 'bits', 'batch', 'tokens/s', 'x dynamic', 'x static', 'step, ms', 'host (of the model), ms',
                  'weights, ms', 'time in the cache, bound by'], rows)


def systems_claims(record: dict) -> str:
    rows = [[c['system'], c['what'], model, f'{c["length"]}', c['published'], f'{c["got"]:.2f}', 'yes' if c['met'] else '**no**']
            for model, measured in record['models'].items() for c in measured['claims']]
    return table(['system', 'claim', 'model', 'tokens', 'published', 'here', 'met'], rows)


def decode_speed(point: dict) -> float:
    return point['decoded'] / point['decode_s']


def llama_cells(point: dict | None) -> tuple[str, str]:
    """Prefill, where it was measured, and decode."""
    if point is None:
        return '-', '-'
    return f'{point["tokens"] / point["prefill_s"]:.1f}' if point['prefill_s'] else '-', f'{decode_speed(point):.2f}'


def llama_rows(record: dict) -> str:
    """Tokens per second of each cache in llama.cpp, and its bytes for all tokens of the longest point."""
    lengths = sorted({point['tokens'] for model in record['models'] for cache in model['caches'] for point in cache['points']})
    has_bytes = all('kv_bytes' in cache for model in record['models'] for cache in model['caches'])
    has_names = len({model['geometry'] for model in record['models']}) > 1
    has_threads = any(model.get('threads', 1) > 1 for model in record['models'])
    rows = []
    for model in record['models']:
        name = [*([model['geometry']] if has_names else []), *([str(model.get('threads', 1))] if has_threads else [])]
        for cache in model['caches']:
            points = {point['tokens']: point for point in cache['points']}
            cells = [cell for length in lengths for cell in llama_cells(points.get(length))]
            rows.append([*name, f'`{cache["cache"]}`', *([f'{cache["kv_bytes"] / 2 ** 20:.1f} MiB'] if has_bytes else []), *cells])
    return table([*(['model'] if has_names else []), *(['threads'] if has_threads else []), 'cache', *(['KV bytes'] if has_bytes else []),
                  *(f'{part}, {length} tokens' for length in lengths for part in ('prefill', 'decode'))], rows)


def llama_answers(record: dict) -> str:
    """Answers of the proving model in llama.cpp, and its perplexity."""
    rows = record['answers']
    tasks = list(rows[0]['tasks'])
    return table(['cache', *(f'{task}, of {rows[0]["tasks"][task]["questions"]}' for task in tasks), 'perplexity'],
                 [[f'`{row["cache"]}`', *(str(row['tasks'][task]['right']) for task in tasks), f'{row["perplexity"]:.4f}'] for row in rows])


LLAMA_SHORT = ('f16', 'q8_0', 'q4_0', 'int8', 'kivi4', 'kitty-pro')


def llama_short(record: dict) -> str:
    """Decoded tokens per second at the longest point, on the CPU and by CUDA."""
    rows = []
    for where, model in (('CPU', record['models'][0]), ('CUDA', read('llama-cuda')['models'][-1])):
        device = record['device'] if where == 'CPU' else read('llama-cuda')['device']
        speeds = {cache['cache']: (cache['points'][-1]['tokens'], decode_speed(cache['points'][-1])) for cache in model['caches']}
        tokens = max(length for length, _ in speeds.values())
        cells = [f'{speeds[name][1]:.0f}' if name in speeds and speeds[name][0] == tokens else '-' for name in LLAMA_SHORT]
        layers = f', {model["layers"]} of its layers' if model['layers'] == 1 else ''
        rows.append([f'{device}, {where}', f'{model["geometry"]}{layers}', str(tokens), *cells])
    return table(['machine', 'model', 'tokens', *(f'`{name}`' for name in LLAMA_SHORT)], rows)


def latency_rows(record: dict) -> str:
    """Decode steps of tests/bench/latency.py: milliseconds, and how many times as fast as the compiled static cache."""
    steps = {(model, cell['batch'], cell['length'], cell['cache']): cell.get('step_ms')
             for model, cells in record['models'].items() for cell in cells}
    caches = sorted({key[3] for key in steps}, key=lambda name: (name not in ('dynamic', 'static'), name))
    rows = []
    for shape in sorted({key[:3] for key in steps}):
        static, row = steps.get((*shape, 'static')), [*map(str, shape)]
        for cache in caches:
            step = steps.get((*shape, cache))
            times = f' ({static / step:.2f}x)' if step and static and cache != 'static' else ''
            row.append(f'{step:.1f}{times}' if step else '-')
        rows.append(row)
    return table(['model', 'batch', 'tokens', *(f'`{cache}`' for cache in caches)], rows)


def planning_rows(record: dict) -> str:
    """Plans of tests/bench/planning.py: seconds, and growth of the host's memory."""
    rows = [[row['model'], row['device'], row['method'], f'{row["documents"]} x {row["document_tokens"]}', f'{row["seconds"]:.0f}',
             f'{row["host_growth_bytes"] / 2**20:.0f}'] for row in record['rows']]
    return table(['model', 'device', 'plan', 'tokens of texts', 'seconds', 'host memory, MiB more'], rows)


def cost_rows(record: dict) -> str:
    """Plans of tests/lab/cost_study.py: exact match with its interval, and -log2 p, by what the statistics have."""
    rows, tasks = [], sorted(record['rows'][0]['plans'][0]['tasks'])
    exact = record['rows'][0]['plans'][0]
    for statistics, plan in [('', exact)] + [(row['statistics'], plan) for row in record['rows'] for plan in row['plans']
                                             if plan['limit_bits']]:
        cells = [f'{match(plan["tasks"][task])}' for task in tasks]
        rows.append([limit_of(plan), plan['family'], statistics, *cells, match(plan['questions']),
                     f'{plan["questions"]["bits_per_byte"]:.4f}'])
    rows.sort(key=lambda row: row[0])
    return table(['at most', 'plan', 'statistics', *(f'{task} %' for task in tasks), 'all %', '-log2 p'], rows)


def cost_short(record: dict) -> str:
    """The same over all tasks: a row for each family and statistics, a column for each limit."""
    limits = sorted({plan['limit_bits'] for row in record['rows'] for plan in row['plans'] if plan['limit_bits']})
    cells = {(plan['family'], row['statistics'], plan['limit_bits']):
             f'{plan["questions"]["exact_match_percent"]:.1f} %, {plan["questions"]["bits_per_byte"]:.4f}'
             for row in record['rows'] for plan in row['plans']}
    exact = next(cell for key, cell in cells.items() if key[0] == 'fp16')
    rows = [['`fp16`', '', *[exact] * len(limits)]]
    for family, statistics in sorted({key[:2] for key in cells if key[2]}):
        rows.append([f'`{family}`', statistics, *(cells.get((family, statistics, limit), '-') for limit in limits)])
    return table(['plan', 'statistics', *(f'at most {limit:g} bits' for limit in limits)], rows)


def rotation_rows(record: dict) -> str:
    """Plans of tests/model/rotation.py: of each model exact match over its tasks, and the mean of -log2 p over models and tasks."""
    models = {name: study['rows'] for name, study in record['models'].items()}
    plans = {row['plan'] for row in next(iter(models.values()))}.intersection(*({row['plan'] for row in rows} for rows in models.values()))
    models = {name: [row for row in rows if row['plan'] in plans] for name, rows in models.items()}
    rows = []
    for i, first in enumerate(next(iter(models.values()))):
        own = [rows_of_one[i] for rows_of_one in models.values()]
        matches = [sum(task['exact_match_percent'] for task in one['tasks']) / len(one['tasks']) for one in own]
        losses = [task['bits_per_byte'] for one in own for task in one['tasks']]
        bits = sorted({f'{one["bits_per_value"]:.3f}' for one in own})
        rows.append([first['plan'], '..'.join(bits if len(bits) < 2 else (bits[0], bits[-1])), *(f'{match:.1f}' for match in matches),
                     f'{sum(matches) / len(matches):.1f}', f'{sum(losses) / len(losses):.4f}'])
    return table(['plan', 'bits/value', *(f'{name} %' for name in models), 'mean %', '-log2 p'], rows)


def error_rows(record: dict) -> str:
    """Plans of tests/model/stress.py: errors of attention's output."""
    rows = [[row['plan'], *(f'{error:.1f}' for error in row['error_percent'].values())] for row in record['rows']]
    return table(['plan', *record['rows'][0]['error_percent']], rows)


def isa_code(record: dict) -> str:
    """Each kernel once for each GPU and compiler."""
    names = ('VGPRs', 'Spilled VGPRs', 'Scratch size', 'LDS size', 'Subgroups per SIMD', 'Instructions')
    rows = []
    for driver in record['drivers']:
        for row in driver['rows']:
            cells = [driver['gpu'], driver['driver'].split('Mesa ')[1].split('-')[0], f'`{row["kernel"]}`',
                     {'kitty-pro': 'plain', 'FP8 by 32': 'FP8 or groups'}.get(row['plan'], 'the same with pairs'),
                     str(row['subgroup_size']), *(f'{row["statistics"][name]:.0f}' for name in names)]
            if cells not in rows and row['plan'] in ('kitty-pro', 'FP8 by 32', 'ChanMix'):
                rows.append(cells)
    return table(['GPU', 'Mesa', 'kernel', 'formats', 'lanes', 'VGPRs', 'spilled VGPRs', 'scratch, bytes', 'shared memory, bytes',
                  'subgroups a SIMD', 'instructions'], rows)


def isa_counted(record: dict) -> dict:
    return [driver for driver in record['drivers'] if driver['driver'] == record['predicted_from']][0]


def isa_pages(record: dict) -> str:
    """Instructions that a page takes, of the compiler from which times are predicted."""
    rows = []
    for row in isa_counted(record)['rows']:
        page = row['page']
        if row['variant'] == 'no matrices':
            rows.append([row['plan'], f'`{row["kernel"]}`', str(page['vector']), str(page['scalar'] + page['branch']),
                         str(page['shared memory']), str(page['load']), str(page['scratch'])])
    return table(['plan', 'kernel', 'vector', 'scalar', 'shared memory', 'loads', 'scratch'], rows)


def isa_predicted(record: dict) -> str:
    """Microseconds by bytes and by instructions, the larger one bold."""
    devices = list(record['predicted'])
    rows = []
    for i, first in enumerate(record['predicted'][devices[0]]):
        cells = [first['plan']]
        for device in devices:
            times = record['predicted'][device][i]['times']['32768']
            both = [times['bytes_us'], times['instructions_us']]
            cells.append(' / '.join(f'**{t:.0f}**' if t == max(both) else f'{t:.0f}' for t in both))
        rows.append(cells)
    return table(['plan', *devices], rows)


VIEWS = {'rotation': rotation_rows, 'costs': cost_rows, 'costs-short': cost_short, 'planning': planning_rows, 'latency': latency_rows, 'code': isa_code, 'pages': isa_pages, 'predicted': isa_predicted, 'llama': llama_rows, 'llama-answers': llama_answers, 'llama-short': llama_short, 'systems': systems_rows, 'claims': systems_claims, 'plans': suite_plans, 'tasks': suite_tasks, 'paired': suite_paired, 'ahead': suite_ahead, 'level': suite_level,
         'short': suite_short, 'ablation': ablation_rows, 'cocktail': cocktail_rows, 'memory': memory_rows,
         'throughput': throughput_rows, 'mix': mix_rows, 'shifts': shift_rows,
         'demo': demo_rows, 'stress': stress_rows, 'errors': error_rows}


def read(name: str) -> dict:
    return json.loads((ROOT / 'docs/results' / f'{name}.json').read_text(encoding='utf-8'))


def redraw(text: str) -> str:
    def one(found: re.Match) -> str:
        views = MODEL_VIEWS.get(found[2])
        drawn = views[found[3]](read_models(found[2])) if views else VIEWS[found[3]](read(found[2]))
        return found[1] + drawn + found[4]
    return DRAWN.sub(one, text)


def main() -> int:
    stale = []
    for page in sorted([ROOT / 'README.md', *ROOT.glob('docs/*.md'), *ROOT.glob('docs/lab/*.md')]):
        text = page.read_text(encoding='utf-8')
        drawn = redraw(text)
        if drawn != text and '--check' in sys.argv:
            stale.append(f'{page.relative_to(ROOT)} is not as docs/results.py draws it')
        elif drawn != text:
            page.write_text(drawn, encoding='utf-8')
    print('\n'.join([*stale, f'{len(stale)} pages differ']))
    return bool(stale)


if __name__ == '__main__':
    sys.exit(main())
