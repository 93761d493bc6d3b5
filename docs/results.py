#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the tables of measured answers from what was recorded: python3 docs/results.py [--check].

docs/results/NAME.json is what `lowkey eval --json` printed. In docs/results.md and README.md the lines
between <!-- drawn: NAME VIEW --> and <!-- end --> are made from it. --check changes nothing and fails when
a page differs."""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DRAWN = re.compile(r'(<!-- drawn: (\S+) (\S+) -->\n).*?(<!-- end -->)', re.S)


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ['---'] * len(header), *rows]
    return ''.join('| ' + ' | '.join(line) + ' |\n' for line in lines)


def limit_of(plan: dict) -> str:
    return f'{plan["limit_bits"]:g}' if plan['limit_bits'] else ''


def match(sums: dict) -> str:
    low, high = sums['interval_95_percent']
    return f'{sums["exact_match_percent"]:.1f} ({low:.0f}..{high:.0f})'


def by_limit(record: dict) -> list[dict]:
    return sorted(record['plans'], key=lambda plan: plan['limit_bits'])


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


def suite_short(record: dict) -> str:
    """Families by limits: exact match over all questions, and -log2 p of an answer byte."""
    limits = sorted({plan['limit_bits'] for plan in record['plans']} - {0})
    families = list(dict.fromkeys(plan['family'] for plan in record['plans'] if plan['limit_bits']))
    at = {(plan['family'], plan['limit_bits']): plan['questions'] for plan in record['plans']}
    rows = []
    for family in families:
        sums = [at.get((family, limit)) for limit in limits]
        rows.append([family, *(f'{s["exact_match_percent"]:.1f} %, {s["bits_per_byte"]:.4f}' if s else '' for s in sums)])
    return table(['plan', *(f'at most {limit:g} bits' for limit in limits)], rows)


def ablation_rows(record: dict) -> str:
    rows = []
    for result in record['results']:
        published = result['published']
        cells = [result['plan'], f'{result["bits_per_value"]:.3f}', f'{100 / result["compression"]:.1f}']
        for task in result['tasks']:
            cells += [match(task), f'{task["bits_per_byte"]:.4f}']
        rows.append([*cells, f'{published["score"]:.2f}' if 'score' in published else '-'])
    tasks = [task['task'] for task in record['results'][0]['tasks']]
    header = ['plan', 'bits/value', 'cache %']
    for task in tasks:
        header += [f'{task} %', '-log2 p']
    return table([*header, 'paper'], rows)


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


VIEWS = {'plans': suite_plans, 'paired': suite_paired, 'short': suite_short, 'ablation': ablation_rows,
         'stress': stress_rows}


def redraw(text: str) -> str:
    def one(found: re.Match) -> str:
        record = json.loads((ROOT / 'docs/results' / f'{found[2]}.json').read_text(encoding='utf-8'))
        return found[1] + VIEWS[found[3]](record) + found[4]
    return DRAWN.sub(one, text)


def main() -> int:
    stale = []
    for page in (ROOT / 'docs/results.md', ROOT / 'README.md'):
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
