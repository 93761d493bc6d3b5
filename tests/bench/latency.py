#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time of a decode step of whole models under transformers on one GPU: with transformers' dynamic cache, with its
static cache and a forward pass compiled by torch.compile(mode="reduce-overhead"), and with lowkey's cache, with and
without CUDA graphs. Weights are random and so are the tokens before the decode: neither changes times.

A step is a forward pass of one new token for each row and the choice of the next; the host waits for it, as generate()
does. Times are medians of wall time, warm. Cells that do not fit or fail are recorded as that.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time
import warnings

import torch
import transformers

import lowkey
from stores import HostStore, LowkeyRule, LowkeyStore
from systems import HOSTS, MODELS, Host, Machine, chosen, results, say

GRAPH = '+graph'
WARM_UPS, TIMED = 6, 24  # compilation and captures are in the first
N_DECODE = WARM_UPS + TIMED
SLAB_BYTES = 64 << 20
SPARE_BYTES = 1 << 30  # tables on the device, which the budget of a cache leaves out


class Cell:
    """A cache with rows of one length, and the pass that decodes over it."""

    def __init__(self, host: Host, cache: str, n_rows: int, length: int):
        self.host, model = host, host.model
        n_tokens = length - N_DECODE
        if cache in HOSTS:
            self.store = HostStore(HOSTS[cache], model, n_rows, length, n_tokens)
        else:
            rule = LowkeyRule(cache.removesuffix(GRAPH), host.config, SLAB_BYTES)
            free_bytes = rule.budget(length, n_rows) + SPARE_BYTES
            self.store = LowkeyStore(rule, model, n_rows, length, n_tokens, free_bytes, host.machine.synchronize,
                                     cache.endswith(GRAPH))
        self.forward = torch.compile(model.forward, mode='reduce-overhead') if cache == 'static' else model
        device = host.machine.device
        self.position = torch.full((n_rows, 1), n_tokens, device=device)
        self.ids = torch.randint(host.config.vocab_size, (n_rows, 1), device=device)

    def step(self) -> None:
        with torch.no_grad():
            out = self.forward(input_ids=self.ids, position_ids=self.position, past_key_values=self.store.cache,
                               use_cache=True, logits_to_keep=1)
        self.ids = out.logits[:, -1].argmax(-1, keepdim=True)
        self.position = self.position + 1

    def times(self) -> list[float]:
        found = []
        for i in range(N_DECODE):
            self.host.machine.synchronize()
            begin = time.perf_counter()
            self.step()
            self.host.machine.synchronize()
            if i >= WARM_UPS:
                found.append((time.perf_counter() - begin) * 1e3)
        return found


def measure(host: Host, cache: str, n_rows: int, length: int) -> dict:
    cell = {'cache': cache, 'batch': n_rows, 'length': length}
    made = None
    begin = time.perf_counter()
    try:
        made = Cell(host, cache, n_rows, length)
        with warnings.catch_warnings():
            if cache.endswith(GRAPH) and host.machine.is_gpu:
                warnings.simplefilter('error', UserWarning)  # of a pass without a graph
            times = made.times()
        cell |= {'step_ms': statistics.median(times), 'quartiles_ms': statistics.quantiles(times, n=4)[::2],
                 'bits_per_value': made.store.bits_per_value, 'cache_bytes': made.store.cache_bytes()}
        cell['tokens_per_s'] = n_rows / cell['step_ms'] * 1e3
        say(f'{host.name} {cache} batch {n_rows} length {length}: {cell["step_ms"]:.2f} ms')
    except Exception as error:  # a cell that fails is a result too, and the others are still to be had
        cell['error'] = f'{type(error).__name__}: {error}'.splitlines()[0]
        say(f'{host.name} {cache} batch {n_rows} length {length}: {cell["error"]}')
    finally:
        if made is not None:
            made.store.close()
        made = None
        torch.compiler.reset()
        host.machine.clean()
    cell['wall_s'] = time.perf_counter() - begin
    return cell


def shape(text: str) -> tuple[int, int]:
    batch, length = text.lower().split('x')
    return int(batch), int(length)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    caches = ['dynamic', 'static', 'fp16', 'fp16' + GRAPH, 'kitty-pro', 'kitty-pro' + GRAPH]
    parser.add_argument('--model', choices=list(MODELS), default='qwen3-8b')
    parser.add_argument('--caches', type=chosen(None), default=caches,
                        help=f'dynamic, static, a preset, or a preset with {GRAPH}; default: {",".join(caches)}')
    parser.add_argument('--shapes', type=chosen(None, shape), default=[(1, 8192), (1, 32768)],
                        help='BATCHxTOKENS, several with commas')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda')
    parser.add_argument('--record', type=pathlib.Path, help='write everything as JSON; cells of other models stay')
    options = parser.parse_args()
    machine = Machine(options.device, 1 << 62, SLAB_BYTES)
    record = {'device': machine.name, 'torch': torch.__version__, 'transformers': transformers.__version__,
              'build': lowkey.build_info(), 'models': {}}
    if options.record and options.record.exists():
        earlier = json.loads(options.record.read_text(encoding='utf-8'))
        if all(earlier.get(key) == value for key, value in record.items() if key != 'models'):
            record = earlier
    host = Host(options.model, machine)
    cells = record['models'].setdefault(options.model, [])
    for batch, length in options.shapes:
        for cache in options.caches:
            cells[:] = [cell for cell in cells if (cell['cache'], cell['batch'], cell['length']) != (cache, batch,
                                                                                                    length)]
            cells.append(measure(host, cache, batch, length))
            if options.record:
                options.record.write_text(json.dumps(record, indent=2) + '\n', encoding='utf-8')
    print(results.VIEWS['latency'](record))
    return 0


if __name__ == '__main__':
    sys.exit(main())
