#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole models under transformers on one GPU whose memory is capped: how many rows fit, and how fast they decode, with
transformers' dynamic and static caches at FP16 and with lowkey's. Weights are random and so are the tokens before the
decode: neither changes bytes or times. Rows decode near the end of their length, across the end of a page, and are then
filled up, so that all bytes that were counted have been in use.

The cap counts all that the device has in use: the CUDA context, PyTorch's reserved memory (its allocator is limited to
what the others leave), and lowkey's budget and fixed tables. A step is a forward pass of one new token for each row
and the choice of the next; the host waits for it, as generate() does. Three of its times show the bound:

    host     until the pass has returned, its work queued
    gpu      of the queued work alone, after a spin that keeps the GPU busy meanwhile
    weights  the same of a pass that has no cache: what the model costs by itself

Cells that do not fit or fail are recorded as that. Times are medians.
"""

import argparse
import gc
import json
import pathlib
import statistics
import sys
import time
from typing import Callable

import torch
import transformers

import lowkey
from stores import DTYPE, PAGE, SINKS, HostStore, LowkeyRule, LowkeyStore, host_row_bytes

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'docs'))
import results

COMMON = {'hidden_size': 4096, 'num_attention_heads': 32, 'num_key_value_heads': 8, 'head_dim': 128,
          'tie_word_embeddings': False}
TINY = {'hidden_size': 128, 'intermediate_size': 192, 'num_hidden_layers': 2, 'num_attention_heads': 4,
        'num_key_value_heads': 2, 'head_dim': 64, 'vocab_size': 89, 'tie_word_embeddings': False}
LLAMA_ROPE = {'rope_type': 'llama3', 'rope_theta': 500000.0, 'factor': 8.0, 'low_freq_factor': 1.0,
              'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192}
MODELS = {
    'qwen3-8b': ('qwen3', COMMON | {
        'num_hidden_layers': 36, 'intermediate_size': 12288, 'vocab_size': 151936, 'max_position_embeddings': 40960,
        'rms_norm_eps': 1e-6, 'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e6}}),
    'llama-3.1-8b': ('llama', COMMON | {
        'num_hidden_layers': 32, 'intermediate_size': 14336, 'vocab_size': 128256, 'max_position_embeddings': 131072,
        'rms_norm_eps': 1e-5, 'rope_parameters': LLAMA_ROPE}),
    'llama-3.2-1b': ('llama', {
        'hidden_size': 2048, 'num_attention_heads': 32, 'num_key_value_heads': 8, 'head_dim': 64, 'num_hidden_layers': 16,
        'intermediate_size': 8192, 'vocab_size': 128256, 'max_position_embeddings': 131072, 'rms_norm_eps': 1e-5,
        'tie_word_embeddings': True, 'rope_parameters': LLAMA_ROPE | {'factor': 32.0}}),
    'tiny-qwen3': ('qwen3', TINY),  # to try the script
    'tiny-llama': ('llama', TINY),
}
HOSTS = {'dynamic': transformers.DynamicCache, 'static': transformers.StaticCache}
PLANS = ('kitty-pro', 'chanmix', 'pm-kvq', 'cocktail')
PARTS = ('largest', 'equal', 'context')
WARM_UPS, TIMED, SPUN = 2, 12, 3
N_DECODE = WARM_UPS + TIMED + SPUN
SPIN_CYCLES_PER_MS = 2_000_000  # no GPU's clock is faster
PROBE_ROWS = 256
MARGIN_BYTES = 256 << 20  # of the cap, for what a CUDA context takes while it runs
SMALLER = 0.98  # the next batch to try when one does not fit
MOST_TRIES = 12
CONTEXT_PLANS, CONTEXT_STEP = ('chanmix',), 1024
OUT_OF_MEMORY = (torch.OutOfMemoryError, lowkey.BudgetError, lowkey.OutOfMemoryError)


def say(text: str) -> None:
    print(f'{time.strftime("%H:%M:%S", time.gmtime())} {text}', file=sys.stderr, flush=True)


class Machine:
    """A device, its memory and its clock. A CPU has no cap: what fits there is what the bytes say."""

    def __init__(self, device: str, cap_bytes: int, slab_bytes: int):
        self.device, self.cap_bytes, self.slab_bytes = device, cap_bytes, slab_bytes
        self.is_gpu = device == 'cuda'
        self.n_decoded = N_DECODE if self.is_gpu else N_DECODE - SPUN
        self.name = torch.cuda.get_device_name(0) if self.is_gpu else 'CPU'
        self.context_bytes = 0
        if self.is_gpu:
            torch.cuda.set_stream(torch.cuda.Stream())
        else:
            torch.set_num_threads(1)

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()

    def clean(self) -> None:
        gc.collect()
        if self.is_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def used_bytes(self) -> int:
        """Of the whole device, as its driver counts."""
        if not self.is_gpu:
            return 0
        free, total = torch.cuda.mem_get_info()
        return total - free

    def note_context(self) -> None:
        """Bytes in use other than PyTorch's, after every kernel has run once."""
        if self.is_gpu:
            self.context_bytes = self.used_bytes() - torch.cuda.memory_reserved()

    def free_bytes(self) -> int:
        """Bytes of the cap for PyTorch and lowkey together."""
        return self.cap_bytes - self.context_bytes - (MARGIN_BYTES if self.is_gpu else 0)

    def limit_torch(self, others_bytes: int) -> None:
        """PyTorch raises beyond what the others leave of the cap."""
        if self.is_gpu:
            total = torch.cuda.mem_get_info()[1]
            torch.cuda.set_per_process_memory_fraction(max(0, self.free_bytes() - others_bytes) / total)

    def peak_torch_bytes(self) -> int:
        return torch.cuda.max_memory_reserved() if self.is_gpu else 0

    def spun_ms(self, call, host_ms: float) -> float:
        """GPU time of a call whose work is all queued before the GPU comes to it."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(SPIN_CYCLES_PER_MS * (1.5 * host_ms + 1)))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)


def random_model(name: str, device: str, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """A model of MODELS."""
    kind, options = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **options, bos_token_id=None, eos_token_id=None)
    torch.manual_seed(1)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation='sdpa')
    return model.eval()


class Host:
    """A model under transformers on a machine, and its passes."""

    def __init__(self, name: str, machine: Machine):
        self.machine, self.name = machine, name
        self.model = random_model(name, machine.device, DTYPE)
        self.config = self.model.config
        self.weights_bytes = sum(x.nbytes for x in (*self.model.parameters(), *self.model.buffers()))
        self.without_cache: dict[int, dict] = {}
        machine.clean()
        self.time_without_cache(PROBE_ROWS if machine.is_gpu else 2)
        self.torch_bytes = machine.peak_torch_bytes()
        machine.clean()
        machine.note_context()

    def torch_bytes_of(self, n_rows: int) -> int:
        """Weights, and activations as far as they grow with rows."""
        if not self.machine.is_gpu:
            return self.weights_bytes
        return self.weights_bytes + int((self.torch_bytes - self.weights_bytes) * max(1, n_rows / PROBE_ROWS))

    def step(self, ids: torch.Tensor, cache) -> torch.Tensor:
        """One pass; the next token of each row."""
        with torch.no_grad():
            out = self.model(ids, past_key_values=cache, use_cache=cache is not None, logits_to_keep=1)
        return out.logits[:, -1].argmax(-1, keepdim=True)

    def time_steps(self, n_rows: int, cache) -> dict:
        ids = torch.randint(self.config.vocab_size, (n_rows, 1), device=self.machine.device)
        walls, hosts, spun = [], [], []
        for i in range(WARM_UPS + TIMED):
            self.machine.synchronize()
            begin = time.perf_counter()
            ids = self.step(ids, cache)
            queued = time.perf_counter()
            self.machine.synchronize()
            if i >= WARM_UPS:
                walls.append((time.perf_counter() - begin) * 1e3)
                hosts.append((queued - begin) * 1e3)
        result = {'step_ms': statistics.median(walls), 'quartiles_ms': statistics.quantiles(walls, n=4)[::2],
                  'slowest_ms': max(walls), 'host_ms': statistics.median(hosts)}
        if self.machine.is_gpu:
            for _ in range(SPUN):
                spun.append(self.machine.spun_ms(lambda: self.step(ids, cache), result['host_ms']))
            result['gpu_ms'] = statistics.median(spun)
        return result

    def time_without_cache(self, n_rows: int) -> dict:
        if n_rows not in self.without_cache:
            self.without_cache[n_rows] = self.time_steps(n_rows, None)
        return self.without_cache[n_rows]


def before_page_end(length: int) -> int:
    """Tokens of rows so that one step in the middle of the timed ones ends their last whole page."""
    ends = (length - SINKS - N_DECODE) // PAGE * PAGE + SINKS
    return ends - WARM_UPS - TIMED // 2


def largest(fits, most: int) -> int:
    """The largest number up to most that fits; 0 for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


class Cells:
    """One model: measures (cache, length, part) one after the other, and keeps the cells of earlier runs."""

    def __init__(self, host: Host, cells: list[dict], save: Callable[[], None]):
        self.host, self.machine, self.cells, self.save = host, host.machine, cells, save

    def found(self, cache: str, length: int, part: str = 'largest') -> dict | None:
        """A cell, where it was measured and fitted."""
        for cell in self.cells:
            if (cell['cache'], cell['of_length'], cell['part']) == (cache, length, part) and 'error' not in cell:
                return cell
        return None

    def free_bytes(self, n_rows: int) -> int:
        """Bytes that the cap leaves to a cache."""
        return self.machine.free_bytes() - self.host.torch_bytes_of(n_rows)

    def open(self, cache: str, n_rows: int, length: int, n_tokens: int):
        """A store of rows that have n_tokens tokens and can grow to length."""
        if cache in HOSTS:
            self.machine.limit_torch(0)
            return HostStore(HOSTS[cache], self.host.model, n_rows, length, n_tokens)
        free_bytes = self.free_bytes(n_rows)
        self.machine.limit_torch(free_bytes)
        rule = LowkeyRule(cache, self.host.config, self.machine.slab_bytes)
        return LowkeyStore(rule, self.host.model, n_rows, length, n_tokens, free_bytes, self.machine.synchronize)

    def attempt(self, cell: dict) -> str | None:
        """Fill the rows of a cell and decode; what did not fit, or None."""
        store = None
        self.machine.clean()
        begin = time.perf_counter()
        try:
            n_tokens = before_page_end(cell['length'])
            store = self.open(cell['cache'], cell['batch'], cell['length'], n_tokens)
            self.machine.synchronize()
            cell['fill_s'] = time.perf_counter() - begin
            cell |= self.host.time_steps(cell['batch'], store.cache)
            store.grow(cell['length'] - n_tokens - self.machine.n_decoded)
            self.machine.synchronize()
            cell['used_bytes'] = self.machine.used_bytes()
            if cell['used_bytes'] > self.machine.cap_bytes:
                return f'{cell["used_bytes"]} bytes in use are more than the cap'
            cell |= {'bits_per_value': store.bits_per_value, 'cache_bytes': store.cache_bytes()}
            if isinstance(store, LowkeyStore):
                stats = store.store.stats()
                cell |= {'budget_bytes': stats.budget_bytes, 'device_bytes': stats.device_bytes}
            if store.shrinks:
                cell['shrinks'] = store.shrinks
            return None
        except OUT_OF_MEMORY as error:
            return str(error).splitlines()[0]
        finally:
            if store is not None:
                store.close()
            store = None
            self.machine.clean()

    def measure(self, cache: str, of_length: int, part: str, n_rows: int, length: int = 0) -> None:
        """A cell, which replaces an earlier one. For the largest batch smaller ones are tried until one fits."""
        cell = {'cache': cache, 'of_length': of_length, 'part': part, 'length': length or of_length, 'batch': n_rows,
                'misses': []}
        key = [cache, of_length, part]
        self.cells[:] = [other for other in self.cells if [other['cache'], other['of_length'], other['part']] != key]
        self.cells.append(cell)
        try:
            for _ in range(MOST_TRIES if part == 'largest' else 1):
                if cell['batch'] < 1:
                    raise MemoryError('not one row fits')
                say(f'{self.host.name} {cache} {cell["length"]} {part}: batch {cell["batch"]}')
                miss = self.attempt(cell)
                if miss is None:
                    break
                cell['misses'].append({'batch': cell['batch'], 'why': miss})
                cell['batch'] = min(int(cell['batch'] * SMALLER), cell['batch'] - 1)
            else:
                raise MemoryError(cell['misses'][-1]['why'])
            self.finish(cell)
        except Exception as error:  # a cell that fails is a result too, and the others are still to be had
            cell['error'] = f'{type(error).__name__}: {error}'.splitlines()[0]
            say(cell['error'])
        self.save()

    def finish(self, cell: dict) -> None:
        """What a model without cache needs at this batch, and what follows from both."""
        self.machine.limit_torch(0)
        bare = self.host.time_without_cache(cell['batch'])
        cell |= {f'weights_{name}': bare[name] for name in ('step_ms', 'host_ms', 'gpu_ms') if name in bare}
        # Every row ends a page in the slowest step, and in no other: its time counts once for the page.
        more_ms = 0 if cell['cache'] in HOSTS else (cell['slowest_ms'] - cell['step_ms']) / PAGE
        cell['tokens_per_s'] = cell['batch'] / (cell['step_ms'] + more_ms) * 1e3
        if 'gpu_ms' in cell:
            in_cache_ms = max(0.0, cell['gpu_ms'] - bare['gpu_ms'])
            cell['cache_share'] = in_cache_ms / cell['gpu_ms']
            cell['bound_by'] = 'host' if cell['host_ms'] > cell['gpu_ms'] else \
                'cache' if in_cache_ms > bare['gpu_ms'] else 'weights'
        if 'shrinks' in cell:
            first = cell['shrinks'][0]['tokens']
            decode_ms = (cell['length'] - first) * cell['step_ms']
            cell['shrink_percent'] = 100 * sum(shrink['ms'] for shrink in cell['shrinks']) / decode_ms
        say(f'  batch {cell["batch"]}: {cell["step_ms"]:.1f} ms a step, {cell["tokens_per_s"]:.0f} tokens/s')

    def measure_largest(self, cache: str, length: int) -> None:
        if cache in HOSTS:
            row_bytes = host_row_bytes(HOSTS[cache], self.host.config, length)
            most = largest(lambda n: n * row_bytes <= self.free_bytes(n), 65536)
        else:
            rule = LowkeyRule(cache, self.host.config, self.machine.slab_bytes)
            most = largest(lambda n: rule.budget(length, n) <= self.free_bytes(n), 4096)
        self.measure(cache, length, 'largest', most)

    def measure_equal(self, cache: str, length: int) -> None:
        """At the largest batch of the dynamic cache."""
        dynamic = self.found('dynamic', length)
        if cache in HOSTS or dynamic is None:
            return
        self.measure(cache, length, 'equal', dynamic['batch'])

    def measure_context(self, cache: str, length: int) -> None:
        """The longest rows that fit, as many as of the dynamic cache at this length."""
        dynamic = self.found('dynamic', length)
        if cache not in CONTEXT_PLANS or dynamic is None:
            return
        rule, n_rows = LowkeyRule(cache, self.host.config, self.machine.slab_bytes), dynamic['batch']
        steps = largest(lambda n: rule.budget(length + n * CONTEXT_STEP, n_rows) <= self.free_bytes(n_rows), 4096)
        self.measure(cache, length, 'context', n_rows, length + steps * CONTEXT_STEP)

    def claims(self) -> list[dict]:
        """The published sizes next to ours, for each length."""
        made = []

        def claim(system: str, what: str, length: int, got: float | None, published: str, least: float | None = None,
                  most: float | None = None) -> None:
            if got is not None:
                met = got >= least if least is not None else got <= most
                made.append({'system': system, 'what': what, 'length': length, 'got': got, 'published': published,
                             'least': least, 'most': most, 'met': bool(met)})

        def ratio(cell: dict | None, other: dict | None, name: str) -> float | None:
            return cell[name] / other[name] if cell and other else None

        for length in sorted({cell['of_length'] for cell in self.cells}):
            kitty, dynamic = self.found('kitty-pro', length), self.found('dynamic', length)
            for against, least in (('dynamic', 8), ('static', 5)):
                other = self.found(against, length)
                claim('Kitty', f'batch, times {against}', length, ratio(kitty, other, 'batch'), f'{least}', least=least)
                powers = [cell and {'batch': 1 << cell['batch'].bit_length() - 1} for cell in (kitty, other)]
                claim('Kitty', f'batch in powers of two, times {against}', length, ratio(*powers, 'batch'), f'{least}',
                      least=least)
                claim('Kitty', f'tokens/s, times {against}', length, ratio(kitty, other, 'tokens_per_s'), '2.1-4.1',
                      least=2.1)
            claim('ChanMix', 'batch, times dynamic', length, ratio(self.found('chanmix', length), dynamic, 'batch'),
                  '2.3', least=2.3)
            claim('ChanMix', 'context, times dynamic', length,
                  ratio(self.found('chanmix', length, 'context'), dynamic, 'length'), '1.5', least=1.5)
            equal = ratio(self.found('cocktail', length, 'equal'), dynamic, 'step_ms')
            claim('Cocktail', 'less time per token, %', length, equal and 100 * (1 - equal), '32-52', least=32)
            shrinking = self.found('pm-kvq', length)
            claim('PM-KVQ', 'time of shrinking, %', length, shrinking and shrinking['shrink_percent'], '< 3', most=3)
        return made


def run(name: str, machine: Machine, options, measured: dict, save: Callable[[], None]) -> None:
    """All cells of a model into what is known of it, saved cell by cell."""
    say(f'{name}: weights')
    host = Host(name, machine)
    say(f'{name}: {host.weights_bytes / 1e9:.2f} GB of weights, {machine.context_bytes / 1e9:.2f} GB outside PyTorch')
    measured |= {'weights_bytes': host.weights_bytes, 'context_bytes': machine.context_bytes}
    cells = Cells(host, measured.setdefault('cells', []), save)
    for length in options.lengths:
        for cache in options.caches:
            for part in options.parts:
                if part != 'context' or length == options.lengths[0]:
                    getattr(cells, f'measure_{part}')(cache, length)
    measured['claims'] = cells.claims()


def chosen(known, kind=str):
    def parse(text: str) -> list:
        values = [kind(value) for value in text.split(',')]
        if known is not None and not set(values) <= set(known):
            raise argparse.ArgumentTypeError(f'takes {", ".join(known)}')
        return values
    return parse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    both, caches = [name for name in MODELS if not name.startswith('tiny')], [*HOSTS, *PLANS]
    parser.add_argument('--model', type=chosen(MODELS), default=both, help=f'any of {", ".join(MODELS)}')
    parser.add_argument('--caches', type=chosen(caches), default=caches, help=f'any of {", ".join(caches)}')
    parser.add_argument('--lengths', type=chosen(None, int), default=[8192, 32768], help='total tokens of a row')
    parser.add_argument('--parts', type=chosen(PARTS), default=list(PARTS),
                        help='largest batch, the batch of the dynamic cache, longest context')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda')
    parser.add_argument('--cap', type=lowkey.parse_bytes, default='80GB', help='bytes of the device')
    parser.add_argument('--slab', type=lowkey.parse_bytes, default='64MiB', help='bytes of the blocks that lowkey takes')
    parser.add_argument('--record', type=pathlib.Path,
                        help='write everything as JSON; cells of the same device, cap and versions in it stay')
    options = parser.parse_args()
    machine = Machine(options.device, options.cap, options.slab)
    record = {'device': machine.name, 'cap_bytes': options.cap, 'torch': torch.__version__,
              'transformers': transformers.__version__, 'build': lowkey.build_info(), 'models': {}}

    def save() -> None:
        if options.record:
            options.record.write_text(json.dumps(record, indent=2) + '\n', encoding='utf-8')

    if options.record and options.record.exists():
        earlier = json.loads(options.record.read_text(encoding='utf-8'))
        if all(earlier.get(key) == value for key, value in record.items() if key != 'models'):
            record = earlier
    for name in options.model:
        begin = time.perf_counter()
        run(name, machine, options, record['models'].setdefault(name, {}), save)
        machine.clean()
        save()
        say(f'{name}: {time.perf_counter() - begin:.0f} s')
    for view in ('systems', 'claims'):
        print(results.VIEWS[view](record))
    return 0


if __name__ == '__main__':
    sys.exit(main())
