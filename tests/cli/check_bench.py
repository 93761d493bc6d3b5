#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lowkey bench on this CPU, and on the devices of this machine.

usage: check_bench.py LOWKEY LIBRARY bench|bindings|devices
LIBRARY: how other programs can load the library: "shared", "sanitized" or "static" (they cannot)
"""

import json
import os
import sys
import tempfile

from harness import check, expect, run

LIBRARY = sys.argv[2]


def measured(*words: str) -> list[dict]:
    """The rows of a small bench, each with a time."""
    rows = json.loads(run('bench', '--tokens', '300', '--repeats', '3', '--json', *words).stdout)['rows']
    expect(all(row['median_s'] > 0 for row in rows), f'bench {" ".join(words)} takes time')
    return rows


def of_values(*words: str) -> None:
    """Layers whose values have another dim than their keys, and latent ones, which have no bytes of values."""
    shape = ('--kv-heads', '1', '--query-heads', '4', '--head-dim', '96', '--value-dim', '64', '--plans', 'fp16', *words)
    wide, latent = measured(*shape)[0], measured(*shape, '--latent')[0]
    expect(wide['cache_bytes'] * 96 == latent['cache_bytes'] * 160, 'keys and values, or keys alone')


def mixed(*words: str) -> None:
    """Chunks with classes next to such that are all low, with pages of one class together and without."""
    rows = json.loads(run('bench', '--tokens', '1056', '--kv-heads', '1', '--query-heads', '2', '--head-dim', '32',
                          '--repeats', '3', '--mix', '50,25,25', '--json', *words).stdout)['rows']
    expect([row['plan'] for row in rows] == ['fp16', 'low', 'mix', 'low, reorder=off', 'mix, reorder=off'], 'five rows')
    n = 32 * rows[0]['batch']
    for row, counts in zip(rows[1:], 2 * ((n, 0, 0), (n // 2, n // 4, n // 4))):
        expect(tuple(row['chunks'].values()) == counts, f'{row["plan"]} has the chunks of its mix')
        expect(abs(row['share_of_bound'] * row['bound_s'] - row['median_s']) < 1e-9, 'times stand next to their bound')
        expect(row['bytes_over_low'] == row['cache_bytes'] / rows[1]['cache_bytes'], 'bytes next to those of low')


def whole_plans() -> None:
    """Each distinct layer of a plan once, and the sum of all layers next to fp16's."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, 'plan.json')
        run('plan', 'kitty', '--layers', '3', '--kv-heads', '1', '--query-heads', '2', '--head-dim', '32', '-o', file)
        with open(file, encoding='utf-8') as saved:
            plan = json.load(saved)
        wide = json.loads(json.dumps(plan['layers'][0]))
        wide['heads'][0]['value']['bits'] = 4
        plan['layers'] = [plan['layers'][0] | {'count': 1}, wide | {'count': 1}, plan['layers'][0] | {'count': 1}]
        with open(file, 'w', encoding='utf-8') as saved:
            json.dump(plan, saved)
        words = ('bench', '--tokens', '1K', '--repeats', '3', '--threads', '1', '--plans', file)
        found = json.loads(run(*words, '--json').stdout)
        expect([row['plan'] for row in found['rows']] == ['fp16', f'{file} 0, 2', f'{file} 1'], 'fp16 and two kinds of layers')
        times = [row['median_s'] for row in found['rows']]
        total, = found['sums']
        expect((total['layers'], total['distinct_layers']) == (3, 2), 'three layers of two kinds')
        expect(abs(total['sum_s'] - 2 * times[1] - times[2]) < 1e-12, 'the sum of all layers')
        expect(abs(total['fp16_sum_s'] - 3 * times[0]) < 1e-12, 'and that of fp16')
        expect('all layers of a plan' in run(*words).stdout, 'the table has it')


def shrinking(*words: str) -> dict:
    """A layer goes down its ladder; then a small budget shrinks pages step by step."""
    # 512 tokens at 8 bits are 256 KiB, an extent, so that a cache at its budget has no bytes for them.
    found = json.loads(run('bench', '--shrink', '--tokens', '2048', '--kv-heads', '2', '--query-heads', '2', '--head-dim',
                           '64', '--repeats', '3', '--json', *words).stdout)
    expect([row['bits'] for row in found['rows']] == [8, 4, 2], 'a row for each rung')
    expect(all(row['median_s'] > 0 and row['bytes_read_and_written'] > 0 for row in found['rows']), 'rungs take time')
    expect(found['progressive']['pages_shrunk'] > 0, 'a full cache shrinks as it goes on')
    return found


def generating() -> None:
    """Pages shrink in a generation too."""
    found = shrinking('--generation', '8192')['generation']
    expect(found['pages_shrunk'] > 0 and found['begins_s'] > 0, 'a generation shrinks too')


def searching(*words: str) -> None:
    """Embeddings of both widths, and BM25."""
    found = json.loads(run('bench', '--search', '--chunks', '100', '--channels', '70', '--repeats', '3', '--json',
                           *words).stdout)
    expect([row['scores'] for row in found['rows']] == ['cosine f16', 'cosine f32', 'bm25'], 'a row for each score')
    expect(all(row['median_s'] > 0 and row['chunks'] == 100 for row in found['rows']), 'scores take time')
    run('bench', '--chunks', '100', code=2)


def snapshot_speed() -> None:
    """Saves and loads, and the plain copies next to them; no file stays."""
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
    failed = run('bench', '--bindings=python,rust', '--repeats', '50', code=1, PATH='/nonexistent')
    expect('there is no python3' in failed.stderr and 'there is no cargo' in failed.stderr, 'tools are missed')
    if LIBRARY == 'shared':
        done = run('bench', '--bindings=python', '--repeats', '200', '--json', code=None)
        found = json.loads(done.stdout)
        first, *rows = found['rows']
        expect(first['binding'] == 'c' and first['attend_us'] > 0, 'the first row is of C')
        expect({'ctypes alone', 'lowkey.Tensor'} <= {row['arrays'] for row in rows}, 'rows of what Python passes')
        expect(all(abs(row['attend_us'] - first['attend_us'] - row['beyond_c_us']) < 1e-6 for row in rows),
               'each is compared with C')
        is_over = any(row['beyond_c_us'] >= row['limit_us'] for row in rows)
        expect(done.returncode == is_over, 'a row beyond its limit fails the command')
        # Microseconds are the machine's, and other tests run on it; what ctypes alone takes says how fast it is.
        alone, = (row['attend_us'] for row in rows if row['arrays'] == 'ctypes alone')
        expect(all(row['attend_us'] < 10 * alone for row in rows), 'the package takes less than ten times ctypes alone')


def long_steps(*words: str) -> None:
    """Several new tokens, prompts that are attended and prompts that are packed."""
    small = ('--kv-heads', '1', '--query-heads', '2', '--head-dim', '32', *words)
    rows = measured(*small, '--new-tokens', '1,16', '--plans', 'fp16,kivi2')
    expect([row['new_tokens'] for row in rows] == [1, 16, 1, 16], 'a row for each plan and count of new tokens')
    expect(all(row['flop_per_s'] > 0 for row in rows), 'and its arithmetic')
    prompts = measured(*small, '--prefill', '--plans', 'kitty-pro')
    expect({row['new_tokens'] for row in prompts} == {2048}, 'a prompt of 2048 tokens')
    packed = measured(*small, '--pack', '--plans', 'fp16,kitty-pro', '--batch', '2')
    expect({row['fp16_bytes'] for row in packed} == {2 * 2 * 300 * 2 * 32}, 'bytes of keys and values at 16 bits')
    expect('FP16 bytes' in run('bench', '--tokens', '300', '--repeats', '3', '--pack', '--plans', 'kivi2', *small).stdout,
           'the table names what is packed')


def on_cuda() -> None:
    expect(json.loads(run('verify', '--device', 'cuda', '--json').stdout)['ok'], 'CUDA agrees with the reference')
    rows = measured('--device', 'cuda', '--batch', '2', '--new-tokens', '1,16', '--graph')
    expect({row['new_tokens'] for row in rows} == {1, 16}, 'a row for each count of new tokens')
    expect(all(row['graph_median_s'] > 0 for row in rows), 'graphs are timed too')
    measured('--device', 'cuda', '--pack', '--plans', 'kivi2,int8')
    of_values('--device', 'cuda')
    mixed('--device', 'cuda', '--batch', '2')
    measured('--device', 'cuda', '--prefill', '--plans', 'fp16,kitty-pro')
    searching('--device', 'cuda')
    results = json.loads(run('demo', '--device', 'cuda', '--tokens', '1024', '--questions', '4', '--plans',
                             'fp16,kitty-pro', '--png', os.devnull, '--json').stdout)['results']
    expect(results[0]['tasks'][0]['right'] >= 3, 'the model finds needles through a cache in CUDA memory')


def on_vulkan() -> None:
    """Few rows of small layers: a driver on the CPU is slow."""
    small = ('--device', 'vulkan', '--kv-heads', '1', '--query-heads', '4', '--head-dim', '32')
    rows = measured(*small, '--batch', '2', '--new-tokens', '1,16', '--plans', 'kitty-pro')
    expect({row['new_tokens'] for row in rows} == {1, 16}, 'a row for each count of new tokens')
    measured(*small, '--pack', '--plans', 'kivi2')
    mixed('--device', 'vulkan', '--warm')
    searching('--device', 'vulkan')
    shrinking('--device', 'vulkan', '--warm')


def on_devices() -> None:
    """Checks of each device of this machine; that another has none is said by name."""
    backends = [d['backend'] for d in json.loads(run('info', '--json').stdout)['devices']]
    for backend, check_device in {'cuda': on_cuda, 'vulkan': on_vulkan}.items():
        if backend in backends:
            check_device()
        else:
            refused = run('bench', '--device', backend, code=1)
            expect('LK_E_UNSUPPORTED' in refused.stderr, f'that {backend} has no device is said by name')


def pinned() -> None:
    """A process that may use one CPU has no row of more threads."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        rows = measured('--plans', 'fp16')
    finally:
        os.sched_setaffinity(0, cpus)
    expect([row['threads'] for row in rows] == [1], 'one thread on one CPU')


def on_cpu() -> None:
    measured('--plans', 'fp16,kivi2')
    batches = measured('--plans', 'fp16', '--batch', '1,3', '--threads', '1')
    expect([row['batch'] for row in batches] == [1, 3], 'a row for each batch')
    long_steps('--threads', '1')
    of_values('--threads', '1')
    mixed('--batch', '2', '--threads', '1')
    run('bench', '--mix', '60,30,20', code=2)
    run('bench', '--mix', '60,30,10', '--shrink', code=2)
    run('bench', '--mix', '60,30,10', '--chunk', '8', code=2)
    expect('2048' in run('bench', '--shrink', '--tokens', '1024', code=2).stderr, 'few tokens have no pages to shrink')


PARTS = {'bench': [on_cpu, pinned, whole_plans, generating, searching, snapshot_speed], 'bindings': [through_bindings],
         'devices': [on_devices]}
check(*PARTS[sys.argv[3]])
