# SPDX-License-Identifier: Apache-2.0
"""Tables of the proving models, of which each has a record of its own, for results.py."""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ['---'] * len(header), *rows]
    return ''.join('| ' + ' | '.join(line) + ' |\n' for line in lines)


def limit_of(plan: dict) -> str:
    return f'{plan["limit_bits"]:g}' if plan['limit_bits'] else ''


def by_limit(record: dict) -> list[dict]:
    return sorted(record['plans'], key=lambda plan: plan['limit_bits'])


LEAST_FP16 = 90  # percent of a task's questions that a model answers from an FP16 cache


def models_tasks(record: dict) -> list[str]:
    """Tasks that a model answers at FP16."""
    exact = next(plan for plan in record['plans'] if plan['family'] == 'fp16')['tasks']
    return [task for task, sums in exact.items() if task != 'text' and sums['exact_match_percent'] >= LEAST_FP16]


def models_means(records: dict[str, dict]) -> dict[str, dict[tuple[str, float], float]]:
    """Of each model and plan, by family and limit: exact match in the mean of the model's tasks."""
    return {name: {(plan['family'], plan['limit_bits']): sum(plan['tasks'][task]['exact_match_percent'] for task in tasks) / len(tasks)
                   for plan in record['plans']} for name, record in records.items() for tasks in [models_tasks(record)]}


def models_text(records: dict[str, dict], key: tuple[str, float]) -> str:
    """Bits per byte of running text above FP16's, in the mean of the models."""
    more = []
    for record in records.values():
        text = {(plan['family'], plan['limit_bits']): plan['tasks']['text'] for plan in record['plans']
                if plan['tasks'].get('text', {}).get('questions')}
        if key not in text:
            continue
        more.append(text[key]['bits_per_byte'] - text[('fp16', 0)]['bits_per_byte'])
    return f'{round(sum(more) / len(more), 4) + 0:+.4f}' if more else '-'  # + 0 makes -0 positive


def models_rows(records: dict[str, dict], keys: list[tuple[str, float]], named: bool) -> str:
    """A row for each plan: the mean of each model's tasks, the mean of models, how far below FP16 it is, and text; of the models that have it."""
    means = models_means(records)
    bits = {key: sorted(plan['bits_per_value'] for record in records.values() for plan in record['plans']
                        if (plan['family'], plan['limit_bits']) == key) for key in keys}
    rows = []
    for key in keys:
        own = {name: one[key] for name, one in means.items() if key in one}
        below = [models_below(records[name], key)[0] for name in own]
        limit = [] if named else [f'{key[1]:g}']
        rows.append([*limit, f'`{key[0]}`', *(['..'.join(f'{end:.4g}' for end in dict.fromkeys((bits[key][0], bits[key][-1])))] if named else []), *(f'{own[name]:.1f}' if name in own else '-' for name in means),
                     f'{sum(own.values()) / len(own):.1f}', f'{sum(below) / len(below):.1f} ({min(below):.1f}..{max(below):.1f})', models_text(records, key)])
    head = ['plan', 'bits per value'] if named else ['at most', 'plan']
    return table([*head, *(f'`{name}`' for name in means), 'mean', 'below FP16', 'text, bits a byte'], rows)


def models_keys(records: dict[str, dict]) -> list[tuple[str, float]]:
    return list(dict.fromkeys((plan['family'], plan['limit_bits']) for record in records.values() for plan in record['plans']))


def models_limited(records: dict[str, dict], families: tuple[str, ...]) -> str:
    """Presets, and these families at each limit."""
    keys = models_keys(records)
    return (models_rows(records, [key for key in keys if not key[1]], True) + '\n' +
            models_rows(records, sorted((key for key in keys if key[0] in families and key[1]), key=lambda key: key[1]), False)) if records else ''


def models_methods(records: dict[str, dict]) -> str:
    """All methods at equal bytes, limit by limit, where more than `auto` reaches the limit."""
    keys = [key for key in models_keys(records) if key[1] and key[0] != 'default']
    limits = sorted({limit for family, limit in keys if family != 'auto'})
    return models_rows(records, [key for limit in limits for key in keys if key[1] == limit], False) if records else ''


def models_below(record: dict, key: tuple[str, float]) -> tuple[float, float]:
    """Points below FP16 on the same questions, in the mean of a model's tasks, and the square of the standard error over documents."""
    plan = next(plan for plan in record['plans'] if (plan['family'], plan['limit_bits']) == key)
    own = [plan['tasks'][task]['below_fp16'] for task in models_tasks(record)]
    return sum(one['points'] for one in own) / len(own), sum(one['standard_error']**2 for one in own) / len(own)**2


GOALS = (('default', 2.54, 1), ('default', 2.25, 3), ('auto', 2, 1), ('auto', 1.75, 3))  # points below FP16 at most


def models_goals(records: dict[str, dict]) -> str:
    """Points below FP16, in the mean of a model's tasks, with 95 % intervals over documents: each model and the mean of all."""
    rows = []
    for family, limit, most in GOALS:
        cells, found = [], []
        for record in records.values():
            if (family, limit) not in models_keys({'': record}):
                cells.append('-')
                continue
            found.append(models_below(record, (family, limit)))
            cells.append(interval(*found[-1]))
        rows.append([f'`{family}`', f'{limit:g}', f'{most}', *cells,
                     interval(sum(mean for mean, _ in found) / len(found), sum(square for _, square in found) / len(found)**2)])
    return table(['plan', 'at most', 'goal', *(f'`{name}`' for name in records), 'mean'], rows) if records else ''


def interval(mean: float, square: float) -> str:
    """A mean and its 95 % interval, from the square of its standard error; 0 makes -0 positive."""
    low, high = (round(mean + sign * 1.96 * square**0.5, 1) + 0 for sign in (-1, 1))
    return f'{round(mean, 1) + 0:.1f} ({low:.1f}..{high:.1f})'


def models_each(records: dict[str, dict]) -> str:
    """Every plan of each model, task by task, with intervals over documents, and -log2 p over all questions."""
    out = ''
    for name, record in records.items():
        tasks, rows = models_tasks(record), []
        for plan in by_limit(record):
            cells = []
            for task in tasks:
                low, high = plan['tasks'][task]['document_interval_95_percent']
                cells.append(f'{plan["tasks"][task]["exact_match_percent"]:.1f} ({max(low, 0):.0f}..{min(high, 100):.0f})')
            rows.append([limit_of(plan), plan['family'], f'{plan["bits_per_value"]:.3f}', *cells,
                         f'{plan["questions"]["bits_per_byte"]:.4f}'])
        counts = ', '.join(f'{record["plans"][0]["tasks"][task]["questions"]} of {task}' for task in tasks)
        out += (f'\n`{name}`, {record["device"]}; questions: {counts}:\n\n' +
                table(['at most', 'plan', 'bits/value', *tasks, '-log2 p'], rows))
    return out


def long_rows(records: dict[str, dict]) -> str:
    """Long answers: items of an answer that are right, and items before the first wrong one, by model and plan."""
    rows = []
    for key in models_keys(records):
        cells, share = [], []
        for record in records.values():
            plan = next((plan for plan in record['plans'] if (plan['family'], plan['limit_bits']) == key), None)
            if plan is None:
                cells += ['-', '-']
                continue
            items = next(iter(plan['tasks'].values()))['items']
            cells += [f'{items["right_percent"]:.2f}', f'{sum(items["before_error"]) / len(items["before_error"]):.0f}']
            share.append(100 * plan['kv_bytes'] / plan['fp16_bytes'])
        name = key[0] if not key[1] else f'{key[0]}, at most {key[1]:g} bits'
        rows.append([name, f'{min(share):.0f}..{max(share):.0f}', *cells])
    heads = []
    for name, record in records.items():
        task = next(iter(record['plans'][0]['tasks'].values()))
        heads += [f'`{name}`: right, %', f'before an error, of {task["items"]["items"] // task["questions"]}']
    return table(['plan', 'cache at the end, %', *heads], rows) if records else ''


def layers_rows(records: dict[str, dict]) -> str:
    """Plans of tests/model/layers.py that all models have: of each model lists, and the mean of its other tasks; means over models."""
    models = {name: {row['plan']: row for row in study['rows']} for record in records.values() for name, study in record['models'].items()}
    if not models:
        return ''
    rows = []
    for plan in next(iter(models.values())):
        if not all(plan in own for own in models.values()):
            continue
        cells, losses, lists_of, others_of = [], [], [], []
        for own in models.values():
            tasks = {task['task']: task for task in own[plan]['tasks']}
            lists = tasks.pop('repeat 512')
            lists_of.append(lists['exact_match_percent'])
            others_of.append(sum(task['exact_match_percent'] for task in tasks.values()) / len(tasks))
            losses += [task['bits_per_byte'] for task in (lists, *tasks.values())]
            cells.append(f'{lists_of[-1]:.1f}, {others_of[-1]:.1f}')
        bits = sorted(own[plan]['bits_per_value'] for own in models.values())
        rows.append([plan, '..'.join(dict.fromkeys((f'{bits[0]:.3f}', f'{bits[-1]:.3f}'))), *cells,
                     f'{sum(lists_of) / len(lists_of):.1f}, {sum(others_of) / len(others_of):.1f}', f'{sum(losses) / len(losses):.4f}'])
    return table(['plan', 'bits/value', *(f'`{name}`' for name in models), 'mean', '-log2 p'], rows)


# By the model's name: models-NAME.json of the suite, first-NAME.json of the first one, default-NAME.json of an earlier default, layers-NAME.json
# and core-NAME.json of plans that differ by layer, covariance-NAME.json of bases of keys, long-NAME.json of long answers, longer-NAME.json of the
# default's, again-NAME.json of another training, share-NAME.json of one whose windows are at most a share of a row.
MODEL_VIEWS = {'models': {'short': lambda records: models_limited(records, ('auto', 'default')), 'methods': models_methods, 'goals': models_goals, 'each': models_each},
               'first': {'each': models_each}, 'default': {'each': models_each}, 'layers': {'rows': layers_rows}, 'core': {'rows': layers_rows}, 'covariance': {'rows': layers_rows},
               'again': {'each': models_each, 'goals': models_goals}, 'share': {'each': models_each, 'goals': models_goals},
               'long': {'items': long_rows}, 'longer': {'items': long_rows}}


def read_models(kind: str) -> dict[str, dict]:
    names = json.loads((ROOT / 'tests/model/models.json').read_text(encoding='utf-8'))
    paths = {name: ROOT / f'docs/results/{kind}-{name}.json' for name in names}
    return {name: json.loads(path.read_text(encoding='utf-8')) for name, path in paths.items() if path.exists()}
