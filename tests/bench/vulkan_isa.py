#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What RADV's compiler makes of the decode kernels, and the times that public rates of devices allow.

    python3 tests/bench/vulkan_isa.py PROGRAM OUT.json ICD.json [ICD.json ...]

PROGRAM is build/tests/vulkan/vulkan-statistics, each ICD.json names a version of Mesa's RADV, which starts without
hardware by RADV_FORCE_FAMILY; the last one's counts make the predicted times. Nothing is timed.

A page is 128 tokens of a KV head. Its count is of one subgroup's instructions: those of the loop over pages in the
assembly, with each inner loop as often as the page's form makes it run. Code that hides tokens or raises row_max is left
out; of conditions only those of widths and token groups are followed, every other branch counts as taken."""
import argparse
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

FAMILIES = {'Radeon 780M': ['phoenix', 'gfx1103_r1'], 'Radeon 680M': ['rembrandt']}  # by what versions of RADV know
LANES = 32  # of a team of decode, which takes a page
PAGE_TOKENS = 128
STRIP_CHANNELS = 16
MOST_GROUPS = 8  # of tokens in a page
KV_HEADS = 8
TOKENS = (8192, 32768)

# Lanes that start an FP32 instruction each cycle, GHz and GB/s, as the makers publish or commonly list them. variant:
# the form of the kernel that the device gets.
DEVICES = {
    'Radeon 780M': {'lanes': 768, 'ghz': 2.7, 'gb_per_s': 89.6, 'variant': 'no matrices'},
    'Arc 140V': {'lanes': 1024, 'ghz': 2.05, 'gb_per_s': 136.5, 'variant': 'no matrices'},
    'Adreno 750': {'lanes': 1536, 'ghz': 0.903, 'gb_per_s': 76.8, 'variant': 'no matrices'},
    'Mali-G720 MC7': {'lanes': 896, 'ghz': 1.3, 'gb_per_s': 68.3, 'variant': 'no subgroups'},
}
COUNTED = 'Radeon 780M'  # whose instructions stand for those of the other devices

CLASSES = [('wait', r's_(waitcnt|delay_alu|nop|clause|wait)'), ('branch', r's_c?branch'), ('scalar memory', r's_(load|buffer)'),
           ('scalar', r's_'), ('vector', r'v_'), ('shared memory', r'ds_'), ('scratch', r'scratch_'),
           ('load', r'(global|buffer|flat)_load'), ('store', r'(global|buffer|flat)_')]
OPERATION = re.compile(r'\s*(s|v|ds|scratch|global|buffer|flat)_')
MULTIPLY_ADD = re.compile(r'v_(dual_|pk_)?(fma|fmac|mad|mac)')


class Code:
    """Basic blocks of an assembly, their successors and their loops."""

    def __init__(self, text: str):
        self.blocks: dict[int, list[str]] = {}
        for line in text.splitlines():
            label = re.match(r'BB(\d+):', line)
            if label:
                block = self.blocks.setdefault(int(label[1]), [])
            elif self.blocks and OPERATION.match(line):
                block.append(line.split(';')[0].strip())
        self.counts = {b: self._count(operations) for b, operations in self.blocks.items()}
        self.conditional: dict[int, list[set[int]]] = {}  # parts() of a loop
        order = list(self.blocks)
        self.place = {b: i for i, b in enumerate(order)}
        self.next = {b: self._successors(b, order[i + 1:i + 2]) for i, b in enumerate(order)}
        self.previous: dict[int, set[int]] = {b: set() for b in order}
        for b, after in self.next.items():
            for s in after:
                self.previous[s].add(b)
        self.loops: dict[int, set[int]] = {}
        for b, after in self.next.items():
            for head in after:
                if self.place[head] <= self.place[b]:
                    self.loops.setdefault(head, {head}).update(self._body(head, b))

    def _successors(self, b: int, following: list[int]) -> set[int]:
        targets = [int(m[1]) for op in self.blocks[b] if (m := re.match(r's_c?branch\S*\s+BB(\d+)', op))]
        ends = any(op.startswith(('s_branch', 's_endpgm')) for op in self.blocks[b])
        return {*targets, *([] if ends else following)}

    def _body(self, head: int, last: int) -> set[int]:
        body, waiting = {head}, [last]
        while waiting:
            b = waiting.pop()
            if b not in body:
                body.add(b)
                waiting += self.previous[b]
        return body

    def children(self, parent: set[int] | None) -> list[int]:
        """Heads of the loops directly inside a loop, or outside of all, in the order of the code."""
        inside = [h for h, body in self.loops.items() if parent is None or body < parent]
        return sorted((h for h in inside if not any(self.loops[h] < self.loops[o] for o in inside)), key=self.place.get)

    def own(self, body: set[int]) -> set[int]:
        return body - set().union(*(self.loops[h] for h in self.children(body)))

    @staticmethod
    def _count(operations: list[str]) -> dict[str, int]:
        counts = dict.fromkeys([name for name, _ in CLASSES], 0)
        for operation in operations:
            counts[next(name for name, form in CLASSES if re.match(form, operation))] += 1
        return counts

    def count(self, blocks) -> dict[str, float]:
        return {name: sum(self.counts[b][name] for b in blocks) for name, _ in CLASSES}

    def n_like(self, blocks, form: re.Pattern) -> int:
        return sum(bool(form.match(op)) for b in blocks for op in self.blocks[b])

    def dominated(self, region: set[int], entry: int, first: int) -> set[int]:
        """Blocks of a region that its entry reaches through `first` alone."""
        reached, waiting = set(), [entry]
        while waiting:
            b = waiting.pop()
            if b in region and b != first and b not in reached:
                reached.add(b)
                waiting += [s for s in self.next[b] if s != entry]
        return region - reached

    def parts(self, body: set[int], entry: int) -> list[set[int]]:
        """What a loop runs on a condition, without its inner loops."""
        if entry not in self.conditional:
            own = self.own(body)
            found = [own & self.dominated(body, entry, s) for b in own if len(self.next[b]) > 1
                     for s in self.next[b] if s in own]
            self.conditional[entry] = [part for part in found if part and entry not in part]
        return self.conditional[entry]

    def smallest(self, parts: list[set[int]], fits) -> list[set[int]]:
        """The smallest parts that fit, in the order of the code."""
        fit = [part for part in parts if fits(part)]
        leaves = [part for part in fit if not any(other < part for other in fit)]
        unique = {min(part, key=self.place.get): part for part in leaves}
        return [unique[b] for b in sorted(unique, key=self.place.get)]

    def arms(self, parts: list[set[int]], fits) -> list[set[int]]:
        """The largest parts that hold one of the smallest that fit."""
        leaves = self.smallest(parts, fits)
        arms = []
        for leaf in leaves:
            others = set().union(*(other for other in leaves if other is not leaf))
            arms.append(max((part for part in parts if leaf <= part and not part & others), key=len))
        return arms


@functools.cache
def code_of(text: str) -> Code:
    return Code(text)


def add(total: dict[str, float], counts: dict[str, float], times: float = 1) -> None:
    for name, n in counts.items():
        total[name] += times * n


def loads(code: Code, blocks) -> int:
    return int(code.count(blocks)['load'])


SHUFFLE_BLOCKS = 60  # instructions of a loop over the distances of a shuffle, at most


def largest(code: Code, heads: list[int]) -> int:
    return max(heads, key=lambda h: sum(code.count(code.loops[h]).values()))


def add_shuffles(code: Code, head: int, times: float, total: dict[str, float]) -> None:
    """A loop over distances. Inside, a driver may go through the lanes one by one."""
    add(total, code.count(code.own(code.loops[head])), times)
    for inner in code.children(code.loops[head]):
        add(total, code.count(code.loops[inner]), times * LANES)


def is_shuffle(code: Code, head: int) -> bool:
    counts = code.count(code.loops[head])
    return not counts['load'] and counts['shared memory'] <= 3 and sum(counts.values()) <= SHUFFLE_BLOCKS


def strips_by_loop(head: dict) -> dict[str, int]:
    """Packed strips of keys, by the loop that multiplies them, in the order of the code."""
    strips_of = {bits: head['key_strips'][bits] for bits in ('8', '4', '2')}
    with_partners = -(-head['n_shared'] // STRIP_CHANNELS)
    return {'8': strips_of['8'], '4': strips_of['4'], 'with partners': with_partners, '2': strips_of['2'] - with_partners}


def key_loops(row: dict) -> list[str]:
    """The loops that the kernel of a layer has: one for each width of its heads, and one for strips with partners."""
    return [name for name in ('8', '4', 'with partners', '2')
            if any(strips_by_loop(head)[name] or head['key_strips'].get(name) for head in row['heads'])]


def add_key_strips(code: Code, block_head: int, head: dict, loops: list[str], total: dict[str, float]) -> None:
    """Eight strips, each width's in a loop. A token group begins at the first tile, and on a condition at each of the
    others."""
    body = code.loops[block_head]
    add(total, code.count(code.own(body)))
    counts = strips_by_loop(head)
    for times, strips in zip([counts[name] for name in loops], code.children(body), strict=True):
        inner = code.loops[strips]
        found = code.smallest(code.parts(inner, strips), lambda part: 2 <= loads(code, part) <= 6)
        groups = set().union(*found) if len(found) == MOST_GROUPS - 1 else set()
        add(total, code.count(inner - groups), times)
        add(total, code.count(groups), times * (head['key_groups'] - 1) / (MOST_GROUPS - 1))


def add_values(code: Code, entry: int, value_steps: int, head: dict, widths: list[int], total: dict[str, float]) -> None:
    """Pairs of strips: a branch for each width."""
    body = code.loops[entry]
    arms = code.arms(code.parts(body, entry), lambda part: code.n_like(part, MULTIPLY_ADD) >= 100)
    if len(arms) != len(widths):
        raise ValueError(f'the loop of the values has {len(arms)} widths')
    own = code.own(body)
    add(total, code.count(own - set().union(*arms)), value_steps)
    add(total, code.count(arms[widths.index(head['value_bits'])]), value_steps)
    for inner in code.children(body):
        add_shuffles(code, inner, 3 * value_steps, total)


def count_head(code: Code, row: dict, head: dict) -> dict[str, float]:
    """Instructions of decode for a page of a head."""
    outer = code.loops[largest(code, code.children(None))]
    page = code.loops[largest(code, code.children(outer))]
    total = code.count(code.own(page))
    heads = code.children(page)
    loops = key_loops(row)
    with_strips = [h for h in heads if loops and len(code.children(code.loops[h])) == len(loops)]
    blocks = max(with_strips, key=lambda h: code.n_like(code.loops[h], MULTIPLY_ADD), default=None)
    with_values = [h for h in heads if h != blocks and loads(code, code.loops[h]) >= STRIP_CHANNELS]
    if (loops and blocks is None) or not with_values:
        raise ValueError('the loop over pages has other loops inside than the shaders had')
    values = with_values[-1]
    n_shuffles = 0
    for h in heads:
        inside = code.loops[h]
        n_loads, n_shared = loads(code, inside), code.count(inside)['shared memory']
        if h == blocks:
            if not head['key_strips']['16']:
                add_key_strips(code, h, head, loops, total)
        elif h == values:
            add_values(code, h, row['value_steps'], head, sorted({16, *(of['value_bits'] for of in row['heads'])}), total)
        elif is_shuffle(code, h):
            add_shuffles(code, h, 3 if n_shuffles else 5, total)
            n_shuffles += 1
        elif n_loads in (8, 16):  # one or two strips of keys at 16 bits
            add(total, code.count(inside), head['key_strips']['16'] * 8 / n_loads)
        elif n_shared >= 16:  # a token group's products with the midpoints
            add(total, code.count(code.own(inside)), row['key_groups'])
            for inner in code.children(inside):
                add_shuffles(code, inner, 3 * row['key_groups'], total)
        elif n_loads == 2:  # the ranges of token groups
            add(total, code.count(inside), head['key_groups'] - 1)
        elif n_loads > 2:
            raise ValueError(f'loop BB{h} has {n_loads} loads')
        # What is left hides tokens or raises row_max.
    return total


def count_page(text: str, row: dict) -> dict[str, float] | None:
    """Of an average head of the layer; none where the code is so long that jumps have no labels."""
    code = code_of(text)
    if any(operation.startswith('s_setpc') for block in code.blocks.values() for operation in block):
        return None
    counts = dict.fromkeys([name for name, _ in CLASSES], 0.0)
    for head in row['heads']:
        add(counts, count_head(code, row, head), 1 / len(row['heads']))
    return {name: round(n) for name, n in counts.items() if name != 'wait'}


def run(program: str, icd: str, family: str) -> dict | None:
    """The program's record, with each row's instructions of a page; none where the driver does not know the family."""
    with tempfile.TemporaryDirectory() as folder:
        env = {'VK_ICD_FILENAMES': icd, 'VK_DRIVER_FILES': icd, 'RADV_FORCE_FAMILY': family}
        done = subprocess.run([program, '--json', '--texts', folder], capture_output=True, text=True, check=False,
                              env={**os.environ, **env})
        if done.returncode:
            print(f'{icd}, {family}: {done.stderr.strip()}', file=sys.stderr)
            return None
        record = json.loads(done.stdout)
        for row in record['rows']:
            file = pathlib.Path(folder) / f'{row["plan"]},{row["variant"]},{row["form"]},Assembly.txt'
            row['page'] = count_page(file.read_text(encoding='utf-8'), row)
            del row['heads']
            row['statistics'] = {name: n for name, n in row['statistics'].items() if 'ash' not in name}
    return record


def run_families(program: str, icd: str) -> list[dict]:
    records = []
    for gpu, names in FAMILIES.items():
        found = [record for name in names if (record := run(program, icd, name))]
        records += [{'gpu': gpu, **record} for record in found[:1]]
    return records


def predict(record: dict, device: str) -> list[dict]:
    """Microseconds by bytes, and by vector instructions at one for each lane and cycle."""
    rates = DEVICES[device]
    rows = []
    for row in record['rows']:
        if row['variant'] != rates['variant']:
            continue
        lane_steps = row['page']['vector'] * LANES
        times = {}
        for tokens in TOKENS:
            pages = tokens / PAGE_TOKENS
            times[str(tokens)] = {
                'bytes_us': round(pages * row['packed_bytes'] / rates['gb_per_s'] / 1e3, 1),
                'instructions_us': round(pages * KV_HEADS * lane_steps / (rates['lanes'] * rates['ghz']) / 1e3, 1)}
        rows.append({'plan': row['plan'], 'kernel': row['kernel'], 'times': times})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('program')
    parser.add_argument('out')
    parser.add_argument('icd', nargs='+', metavar='ICD.json')
    options = parser.parse_args()
    records = [record for icd in options.icd for record in run_families(options.program, icd)]
    counted = [record for record in records if record['gpu'] == COUNTED]
    if not counted:
        print(f'no driver compiles for {COUNTED}')
        return 1
    result = {'drivers': records, 'rates': DEVICES, 'predicted_from': counted[-1]['driver'],
              'predicted': {device: predict(counted[-1], device) for device in DEVICES}}
    lines = json.dumps(result).replace('{"plan"', '\n {"plan"').replace('{"gpu"', '\n{"gpu"')
    pathlib.Path(options.out).write_text(lines + '\n', encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
