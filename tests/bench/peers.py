#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lowkey next to PyTorch's attention (cuDNN, FlashAttention-2) in one process on the same tensors of one GPU.

Every time is a median of samples between two events on one stream, L2 flushed by reading before each. Ratios are
over the better of cuDNN and FlashAttention-2 at FP16 with grouped heads in the same run. Exit code 1 when a target
is missed or the run is void.
"""

import argparse
import json
import pathlib
import sys

import torch

import binding
import held
import statement
from gpu import FILL_TOKENS, Gpu, Lowkey, causal_flash, random_tensors

PLANS = ('fp16', 'int8', 'kivi4', 'kivi2', 'kitty', 'kitty-pro')
# 2 bits and FP8 ranges of 32; the same bytes with a quarter of the channels at 3 and 1 bits; and 30 % of heads at 4 bits.
BY_CHANNEL = tuple(binding.BY_CHANNEL)
TWO_BIT = ('kivi2', 'kitty', 'kitty-pro')
# Sequences, query heads, KV heads, tokens; head_dim 128.
SHAPES = {'B1 T8192': (1, 32, 8, 8192), 'B1 T32768': (1, 32, 8, 32768), 'B1 T131072': (1, 32, 8, 131072),
          'B8 T32768': (8, 32, 8, 32768), 'B32 T8192': (32, 32, 8, 8192), 'MHA B1 T32768': (1, 32, 32, 32768)}
HEAD_DIM = 128
# What an H200 needed for the better of the two peers, in microseconds; a run beyond 10 % of it is void.
BASELINES_US = {'B1 T8192': 19.0, 'B1 T32768': 41.2, 'B1 T131072': 130.3, 'B8 T32768': 247.1, 'B32 T8192': 242.2,
                'MHA B1 T32768': 129.1}
BASELINE_SLACK = 0.10
LEAST_COPY_BYTES_PER_S = 4.0e12
# Least times as fast as FP16.
SPEEDUPS = {('fp16', 'B1 T32768'): 0.97, ('fp16', 'B1 T131072'): 0.97, ('fp16', 'B8 T32768'): 0.97,
            ('fp16', 'B32 T8192'): 0.97, ('kitty-pro', 'B1 T131072'): 4, ('kitty-pro', 'B8 T32768'): 4,
            ('kitty-pro', 'B32 T8192'): 4, ('kitty-pro', 'B1 T32768'): 2.7, ('kivi4', 'B1 T131072'): 2.8,
            ('kivi4', 'B8 T32768'): 2.8, ('int8', 'B1 T131072'): 1.7, ('chanmix-o', 'B1 T131072'): 4,
            ('chanmix-o', 'B8 T32768'): 4, ('chanmix-ro', 'B1 T131072'): 3, ('chanmix-ro', 'B8 T32768'): 3}
MIXED_OVER_UNIFORM = 1.25  # time of chanmix-o over that of uniform-2
MIXED_SHAPES = ('B1 T131072', 'B8 T32768')
CHUNK_MIX_OVER_BYTES = 1.15  # time of a mix of chunks, in multiples of what uniform low chunks of its bytes need
CHUNK_MIX_SPEEDUP = ('B1 T131072', 2.5)  # times cuDNN FP16
SHARE_OF_COPY = ('B8 T32768', 0.70)  # by the 2-bit plans
GQA_SHARE_OF_COPY = 0.60
GQA_BYTES = 500_000_000
GQA_SEQUENCES = 8
# Query heads, KV heads, head_dim: those of Qwen3.5 and of global layers of Gemma 4.
WIDE_HEADS = ((16, 4, 256), (8, 1, 512), (16, 1, 512))
WIDE_SHAPES = {'B1 T131072': (1, 131072), 'B8 T32768': (8, 32768)}
# Least times as fast as the plan fp16, by head_dim and shape.
WIDE_SPEEDUPS = {(256, 'B1 T131072'): 3.5, (256, 'B8 T32768'): 4, (512, 'B1 T131072'): 3, (512, 'B8 T32768'): 3.5}
PACK_BYTES_PER_S = 2e12
PACK_TOKENS = 131072
PREFILL_SPEEDUP = 0.8
PREFILL_HISTORY, PREFILL_TOKENS = 32768, 2048
ERROR_RATIO = 2.0
ERROR_TOKENS = (8192, 32768)
ERROR_MIXES = ('low', 'mix', 'mix, reorder=off')


class Report:
    """Tables on stdout, targets, and everything for the JSON."""

    def __init__(self, error_plans: list[str]):
        self.error_plans = error_plans  # of section error; all if empty
        self.sections = {}
        self.targets = []
        self.void = []

    def target(self, what: str, got: float, least: float | None = None, most: float | None = None) -> str:
        met = got >= least if least is not None else got <= most
        self.targets.append({'what': what, 'got': got, 'least': least, 'most': most, 'met': bool(met)})
        return 'met' if met else 'MISSED'

    def table(self, title: str, header: list[str], rows: list[list[str]]) -> None:
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        print(f'\n{title}\n')
        for row in (header, ['-' * w for w in widths], *rows):
            print('  '.join(cell.rjust(w) for cell, w in zip(row, widths)))
        sys.stdout.flush()

    def end(self) -> bool:
        print('\ntargets')
        for t in self.targets:
            bound = f'at least {t["least"]:g}' if t['least'] is not None else f'at most {t["most"]:g}'
            print(f'  {"met   " if t["met"] else "MISSED"}  {t["what"]}: {t["got"]:.2f}, {bound}')
        for reason in self.void:
            print(f'VOID: {reason}')
        return not self.void and all(t['met'] for t in self.targets)


def microseconds(result: dict) -> str:
    text = f'{result["us"]:.1f}'
    return text + f' ({result["graph_us"]:.1f})' if 'graph_us' in result else text


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One query token in double precision; q [query heads, head_dim], k and v [KV heads, tokens, head_dim]."""
    q = q.double().unflatten(0, (k.shape[0], -1))
    weights = torch.softmax(q @ k.double().mT / q.shape[-1]**0.5, -1)
    return (weights @ v.double()).flatten(0, 1)


def errors(got: torch.Tensor, want: torch.Tensor) -> dict:
    difference, want = got.double() - want, want.double()
    return {'relative': (difference.norm() / want.norm()).item(), 'largest': difference.abs().max().item()}


def time_peers(gpu: Gpu, report: Report, name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict:
    peers = {backend: gpu.time_sdpa(backend, q, k, v) for backend in ('cudnn', 'flash')}
    best = min(peer['us'] for peer in peers.values())
    if abs(best / BASELINES_US[name] - 1) > BASELINE_SLACK:
        report.void.append(f'FP16 at {name} took {best:.1f} us, not {BASELINES_US[name]} within 10 %')
    return peers


def decode(lowkey: Lowkey, gpu: Gpu, report: Report, copy: float) -> dict:
    results = {}
    for name, (n_sequences, n_query_heads, n_kv_heads, n_tokens) in SHAPES.items():
        q, k, v = random_tensors(n_sequences, (n_query_heads, n_kv_heads), n_tokens, HEAD_DIM)
        out = torch.empty_like(q)
        peers = time_peers(gpu, report, name, q, k, v)
        want = gpu.sdpa('cudnn', q, k, v)
        best = min(peer['us'] for peer in peers.values())
        best_graph = min(peer['graph_us'] for peer in peers.values())
        rows = [[backend, '16', microseconds(peer), *[''] * 5] for backend, peer in peers.items()]
        results[name] = dict(peers)
        shape = (n_query_heads, n_kv_heads, HEAD_DIM)
        recorded = tuple(binding.RECORDED) if shape == binding.RECORDED_SHAPE else ()
        for plan in PLANS + BY_CHANNEL + recorded:
            with lowkey.cache(plan, shape, n_sequences, n_tokens) as cache:
                lowkey.fill(cache, k, v, n_tokens - 1)
                result = lowkey.time_decode(cache, q, k[:, :, -1:], v[:, :, -1:], out)
            result |= {'speedup': best / result['us'], 'graph_speedup': best_graph / result['graph_us'],
                       'bytes_per_s': result['bytes'] / result['us'] * 1e6,
                       'difference': errors(out, want)['relative']}
            share = result['bytes_per_s'] / copy
            verdicts = []
            if (plan, name) in SPEEDUPS:
                verdicts.append(report.target(f'{plan} at {name}, times FP16', result['speedup'],
                                              SPEEDUPS[plan, name]))
            if plan in TWO_BIT and name == SHARE_OF_COPY[0]:
                verdicts.append(report.target(f'{plan} at {name}, share of copy', share, SHARE_OF_COPY[1]))
            if plan == 'chanmix-o' and name in MIXED_SHAPES:
                verdicts.append(report.target(f'chanmix-o at {name}, time over uniform-2',
                                              result['us'] / results[name]['uniform-2']['us'], most=MIXED_OVER_UNIFORM))
            rows.append([plan, f'{result["bits_per_value"]:.4g}', microseconds(result), f'{result["speedup"]:.2f}',
                         f'{result["graph_speedup"]:.2f}', f'{100 * share:.0f} %', f'{result["difference"]:.1e}',
                         ' '.join(verdicts)])
            results[name][plan] = result
        report.table(f'decode, {name}, head_dim {HEAD_DIM}: microseconds (inside a graph)',
                     ['', 'bits', 'us', 'x FP16', 'x in graph', 'of copy', 'difference', ''], rows)
    return results


def mixes(lowkey: Lowkey, gpu: Gpu, report: Report, copy: float) -> dict:
    """Contexts whose chunks have the classes of Cocktail's mix, next to low ones alone, and cuDNN at FP16."""
    results = {}
    for name in MIXED_SHAPES:
        n_sequences, n_query_heads, n_kv_heads, n_tokens = SHAPES[name]
        q, k, v = random_tensors(n_sequences, (n_query_heads, n_kv_heads), n_tokens, HEAD_DIM)
        out = torch.empty_like(q)
        results[name] = dict(time_peers(gpu, report, name, q, k, v))
        cudnn_us = results[name]['cudnn']['us']
        rows = [[peer, '', '', microseconds(result), *[''] * 5] for peer, result in results[name].items()]
        for plan in ('kivi2', *binding.MIXES):
            with lowkey.cache(plan, (n_query_heads, n_kv_heads, HEAD_DIM), n_sequences, n_tokens) as cache:
                lowkey.fill(cache, k, v, n_tokens - 1)
                result = lowkey.time_decode(cache, q, k[:, :, -1:], v[:, :, -1:], out)
                percents = cache.chunk_percents() if cache.mix else []
            result |= {'low_middle_high_percent': percents, 'over_cudnn': cudnn_us / result['us'],
                       'share_of_copy': result['bytes'] / result['us'] * 1e6 / copy}
            results[name][plan] = result
            cells, verdicts = ['', ''], []
            if cache.mix:
                low = results[name]['low']
                bytes_over_low = result['bytes'] / low['bytes']
                bound = CHUNK_MIX_OVER_BYTES * bytes_over_low * low['us']
                result |= {'bytes_over_low': bytes_over_low, 'bound_us': bound}
                cells = [f'{bytes_over_low:.3f}', f'{bound:.1f}']
            if plan == 'mix':
                verdicts.append(report.target(f'mix of chunks at {name}, us', result['us'], most=result['bound_us']))
            if plan == 'mix' and name == CHUNK_MIX_SPEEDUP[0]:
                verdicts.append(report.target(f'mix of chunks at {name}, times cuDNN FP16', result['over_cudnn'],
                                              CHUNK_MIX_SPEEDUP[1]))
            rows.append([plan, ' / '.join(f'{percent:.2f}' for percent in percents), str(result['bytes']),
                         microseconds(result), *cells, f'{result["over_cudnn"]:.2f}',
                         f'{100 * result["share_of_copy"]:.0f} %', ' '.join(verdicts)])
        report.table(f'decode of chunks with classes, {name}, head_dim {HEAD_DIM}: microseconds (inside a graph); the '
                     f'bound is {CHUNK_MIX_OVER_BYTES} x (bytes over those of low) x (time of low)',
                     ['', 'low / middle / high %', 'bytes', 'us', "x low's bytes", 'bound, us', 'x cuDNN', 'of copy', ''],
                     rows)
    return results


def gqa(lowkey: Lowkey, gpu: Gpu, report: Report, copy: float) -> list:
    rows, results = [], []
    for group_size, head_dim in ((1, 128), (4, 128), (8, 128), (16, 128), (4, 64), (4, 256)):
        n_kv_heads = 8 * 128 // head_dim
        heads = (group_size * n_kv_heads, n_kv_heads)
        q, k, v = random_tensors(GQA_SEQUENCES, heads, FILL_TOKENS, head_dim)
        for plan in ('kivi2', 'kitty-pro'):
            with lowkey.cache(plan, (*heads, head_dim), GQA_SEQUENCES, 1) as cache:
                bits = cache.bits_per_value
            n_tokens = int(GQA_BYTES / GQA_SEQUENCES / (bits / 8 * 2 * n_kv_heads * head_dim))
            with lowkey.cache(plan, (*heads, head_dim), GQA_SEQUENCES, n_tokens + 1) as cache:
                lowkey.fill(cache, k, v, n_tokens)
                result = lowkey.time_decode(cache, q, k[:, :, -1:], v[:, :, -1:], torch.empty_like(q))
            share = result['bytes'] / result['us'] * 1e6 / copy
            verdict = report.target(f'{plan}, group {group_size}, head_dim {head_dim}, share of copy', share,
                                    GQA_SHARE_OF_COPY)
            rows.append([plan, str(group_size), str(head_dim), str(n_tokens), microseconds(result),
                         f'{result["bytes"] / result["us"] * 1e-3:.0f}', f'{100 * share:.0f} %', verdict])
            results.append(result | {'plan': plan, 'group_size': group_size, 'head_dim': head_dim,
                                     'tokens': n_tokens, 'share_of_copy': share})
    report.table(f'decode of {GQA_BYTES / 1e9:g} GB, {GQA_SEQUENCES} sequences',
                 ['', 'group', 'head_dim', 'tokens', 'us', 'GB/s', 'of copy', ''], rows)
    return results


def wide(lowkey: Lowkey, gpu: Gpu, report: Report, copy: float) -> list:
    """Head dims above 128, over the plan fp16: not every backend of PyTorch takes them."""
    rows, results = [], []
    for n_query_heads, n_kv_heads, head_dim in WIDE_HEADS:
        heads = (n_query_heads, n_kv_heads)
        for name, (n_sequences, n_tokens) in WIDE_SHAPES.items():
            q, k, v = random_tensors(n_sequences, heads, n_tokens, head_dim)
            out = torch.empty_like(q)
            row = {'heads': f'{n_query_heads}/{n_kv_heads} x {head_dim}', 'shape': name}
            for backend in ('cudnn', 'flash'):
                try:
                    row[backend] = gpu.time_sdpa(backend, q, k, v)
                except RuntimeError:
                    row[backend] = None
            for plan in ('fp16', 'kivi4', 'kitty-pro'):
                with lowkey.cache(plan, (*heads, head_dim), n_sequences, n_tokens) as cache:
                    lowkey.fill(cache, k, v, n_tokens - 1)
                    row[plan] = lowkey.time_decode(cache, q, k[:, :, -1:], v[:, :, -1:], out)
                row[plan]['share_of_copy'] = row[plan]['bytes'] / row[plan]['us'] * 1e6 / copy
            row['speedup'] = row['fp16']['us'] / row['kitty-pro']['us']
            verdict = report.target(f'kitty-pro at {row["heads"]}, {name}, times fp16', row['speedup'],
                                    WIDE_SPEEDUPS[head_dim, name])
            peers = [microseconds(row[peer]) if row[peer] else '-' for peer in ('cudnn', 'flash')]
            rows.append([row['heads'], name, *peers,
                         *(f'{microseconds(row[plan])} {100 * row[plan]["share_of_copy"]:.0f} %'
                           for plan in ('fp16', 'kivi4', 'kitty-pro')), f'{row["speedup"]:.2f}', verdict])
            results.append(row)
    report.table('decode of wide heads: microseconds (inside a graph) and share of copy',
                 ['', '', 'cudnn', 'flash', 'fp16', 'kivi4', 'kitty-pro', 'x fp16', ''], rows)
    return results


def pack(lowkey: Lowkey, gpu: Gpu, report: Report, copy: float) -> dict:
    rows, results = [], {}
    _, k, v = random_tensors(1, (32, 8), PACK_TOKENS, HEAD_DIM)
    for plan in ('kivi2', 'kitty-pro', 'kivi4', 'int8'):
        with lowkey.cache(plan, (32, 8, HEAD_DIM), 1, 1, PACK_TOKENS) as cache:
            result = lowkey.time_pack(cache, k, v)
        result['fp16_bytes_per_s'] = 2 * k.nbytes / result['us'] * 1e6
        verdict = report.target(f'packing {plan}, TB/s of FP16', result['fp16_bytes_per_s'] * 1e-12,
                                PACK_BYTES_PER_S * 1e-12)
        rows.append([plan, microseconds(result), f'{result["fp16_bytes_per_s"] * 1e-12:.2f}', verdict])
        results[plan] = result
    report.table(f'append and pack {PACK_TOKENS} tokens, 8 KV heads', ['', 'us', 'TB/s in', ''], rows)
    return results


def prefill(lowkey: Lowkey, gpu: Gpu, report: Report, copy: float) -> dict:
    n_tokens = PREFILL_HISTORY + PREFILL_TOKENS
    q, k, v = random_tensors(1, (32, 8), n_tokens, HEAD_DIM, PREFILL_TOKENS)
    out = torch.empty_like(q)
    flash = gpu.time(lambda: causal_flash(q, k, v))
    results = {'flash': flash, 'cudnn': gpu.time_sdpa('cudnn', q, k, v)}
    want = causal_flash(q, k, v)
    rows = [['flash, causal', f'{flash["us"]:.0f}', '', '', ''],
            ['cudnn, all keys', f'{results["cudnn"]["us"]:.0f}', f'{flash["us"] / results["cudnn"]["us"]:.2f}', '', '']]
    for plan in PLANS:
        with lowkey.cache(plan, (32, 8, HEAD_DIM), 1, n_tokens) as cache:
            lowkey.fill(cache, k, v, PREFILL_HISTORY)
            result = lowkey.time_prompt(cache, q, k, v, out, PREFILL_HISTORY)
        result |= {'speedup': flash['us'] / result['us'], 'difference': errors(out, want)['relative']}
        verdict = '' if plan == 'fp16' else report.target(f'prefill over {plan}, times FlashAttention-2',
                                                          result['speedup'], PREFILL_SPEEDUP)
        rows.append([plan, f'{result["us"]:.0f}', f'{result["speedup"]:.2f}', f'{result["difference"]:.1e}', verdict])
        results[plan] = result
    report.table(f'prefill of {PREFILL_TOKENS} tokens over {PREFILL_HISTORY}',
                 ['', 'us', 'x flash', 'difference', ''], rows)
    return results


def error(lowkey: Lowkey, gpu: Gpu, report: Report, copy: float) -> list:
    """lowkey, and cuDNN on what the codes stand for at FP16, against double precision on what they stand for."""
    stated = PLANS + tuple(statement.F8_GROUP)
    others = tuple(plan for plan in BY_CHANNEL if plan not in stated) + tuple(binding.RECORDED) + ERROR_MIXES
    plans = [plan for plan in stated + others if not report.error_plans or plan in report.error_plans]
    rows, results = [], []
    for n_tokens in ERROR_TOKENS:
        q, k, v = random_tensors(1, (32, 8), n_tokens, HEAD_DIM)
        for plan in plans:
            out = torch.empty_like(q)
            with lowkey.cache(plan, (32, 8, HEAD_DIM), 1, n_tokens) as cache:
                lowkey.fill(cache, k, v, n_tokens - 2)
                # Packs the page that the last long step still read at 16 bits, for the snapshot to have it packed, too.
                cache.begin(1)
                cache.append(lowkey.batch(k[:, :, -2:-1]), lowkey.batch(v[:, :, -2:-1]))
                cache.commit()
                if plan in stated:
                    held_k, held_v = statement.what_a_cache_holds(plan, k[0], v[0], n_tokens - 1)
                else:
                    held_k, held_v = held.what_a_snapshot_holds(cache, k[0], v[0])
                want = attention(q[0, :, 0], held_k, held_v)
                cache.begin(1)
                cache.append(lowkey.batch(k[:, :, -1:]), lowkey.batch(v[:, :, -1:]))
                cache.attend(lowkey.batch(q), lowkey.batch(out))
                ours = errors(out[0, :, 0], want)
                cache.discard()
            theirs = errors(gpu.sdpa('cudnn', q, held_k.half()[None], held_v.half()[None])[0, :, 0], want)
            ratio = max(ours[key] / theirs[key] for key in ours)
            verdict = report.target(f'error of {plan} at {n_tokens} tokens, times cuDNN', ratio, most=ERROR_RATIO)
            rows.append([plan, str(n_tokens), f'{ours["relative"]:.2e}', f'{theirs["relative"]:.2e}',
                         f'{ours["largest"]:.2e}', f'{theirs["largest"]:.2e}', f'{ratio:.2f}', verdict])
            results.append({'plan': plan, 'tokens': n_tokens, 'lowkey': ours, 'cudnn': theirs, 'ratio': ratio})
    report.table('error of one decode step against double precision',
                 ['', 'tokens', 'relative', 'cuDNN', 'largest', 'cuDNN', 'ratio', ''], rows)
    return results


SECTIONS = {'decode': decode, 'mixes': mixes, 'gqa': gqa, 'wide': wide, 'pack': pack, 'prefill': prefill,
            'error': error}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--library', default='build/src/liblowkey.so', help='the shared library')
    parser.add_argument('--section', default=','.join(SECTIONS), help='any of them, separated by commas')
    parser.add_argument('--error-plans', default='', help='of section error, separated by semicolons; all without it')
    parser.add_argument('--samples', type=int, default=40, help='of each time')
    parser.add_argument('--out', type=pathlib.Path, help='write everything as JSON')
    options = parser.parse_args()
    chosen = options.section.split(',')
    if not set(chosen) <= set(SECTIONS):
        parser.error(f'--section takes {", ".join(SECTIONS)}')
    gpu, report = Gpu(options.samples), Report(options.error_plans.split(';') if options.error_plans else [])
    library = binding.Library(options.library, binding.CUDA)
    copy, empty = gpu.copy_bytes_per_s(), gpu.empty_us()
    print(f'{gpu.name}, PyTorch {torch.__version__}, {library.build_info()}\n'
          f'copy {copy * 1e-12:.2f} TB/s (read and written bytes), empty kernel {empty:.1f} us')
    if copy < LEAST_COPY_BYTES_PER_S:
        report.void.append(f'copy bandwidth is {copy * 1e-12:.2f} TB/s, not 4.0')
    for name in chosen:
        report.sections[name] = SECTIONS[name](Lowkey(library, gpu), gpu, report, copy)
    ok = report.end()
    if options.out:
        options.out.write_text(json.dumps({
            'device': gpu.name, 'torch': torch.__version__, 'build': library.build_info(),
            'copy_bytes_per_s': copy, 'empty_kernel_us': empty, 'samples': options.samples,
            'sections': report.sections, 'targets': report.targets, 'void': report.void}, indent=2) + '\n')
    return 0 if ok else 1


if __name__ == '__main__':
    sys.exit(main())
