# SPDX-License-Identifier: Apache-2.0
"""One sequence whose pages are on several GPUs: each GPU attends to its share, and lowkey merges the splits.

    PYTHONPATH=bindings/python torchrun --nproc-per-node 2 examples/sharded/sharded.py --tokens 1048576

runs a process for each GPU, and torch.distributed exchanges splits with NCCL; without a GPU, with gloo. Without
torchrun all shares are contexts of the CPU in this process, which exchange nothing:

    PYTHONPATH=bindings/python python3 examples/sharded/sharded.py

Keys are rotated before lowkey gets them, so a share may begin at any token. The last share gets the new tokens.
A step attends to its own new token too, so every other share holds its last token back: each step appends it again,
attends to it, and is discarded. For each token and layer the shares exchange their outputs and log-sum-exps, whose
bytes do not depend on the length of the sequence.

The answer is compared with that of one cache which has all tokens. The exit status is 1 when they differ by more than
rounding explains; under a plan that packs, where each share has a first and a last page at 16 bits, when they differ by
more than packing changes the answer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

import numpy as np

import lowkey

N_QUERY_HEADS, N_KV_HEADS, HEAD_DIM, CHUNK_TOKENS = 32, 8, 128, 1024
N_VALUES = N_QUERY_HEADS * HEAD_DIM
SHARPNESS = 3  # of queries: a few tokens have much of the weight, so that a lost one is seen
ROUNDING = 2.0 ** -9  # of the largest value: weights are rounded to FP16 (2^-11) on both sides, and sums


class OneProcess:
    """All shares are here; NumPy's arrays."""

    rank, n_ranks, device, wire = 0, 1, 'cpu', 'none'
    wait = staticmethod(lambda: None)

    def now(self) -> Any:
        return time.perf_counter()

    def random(self, seed: int, *shape: int) -> Any:
        return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(np.float16)

    def empty(self, n: int) -> Any:
        return np.empty(n, np.float32)

    def gather(self, splits: list[Any]) -> list[Any]:
        return splits

    def seconds(self, begin: Any, end: Any) -> float:
        return end - begin


class ManyProcesses(OneProcess):
    """A share for each; PyTorch's tensors."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist
        self.torch, self.dist = torch, dist
        self.wire = 'nccl' if torch.cuda.is_available() else 'gloo'
        if self.wire == 'nccl':
            self.device = f'cuda:{os.environ["LOCAL_RANK"]}'
            torch.cuda.set_device(self.device)
        dist.init_process_group(self.wire)
        self.rank, self.n_ranks, self.wait = dist.get_rank(), dist.get_world_size(), dist.barrier

    def random(self, seed: int, *shape: int) -> Any:
        generator = self.torch.Generator(self.device).manual_seed(seed)
        return self.torch.randn(shape, generator=generator, device=self.device).half()

    def empty(self, n: int) -> Any:
        return self.torch.empty(n, device=self.device)

    def gather(self, splits: list[Any]) -> list[Any]:
        whole = self.empty(self.n_ranks * len(splits[0]))
        self.dist.all_gather_into_tensor(whole, splits[0])
        return list(whole.split(len(splits[0])))

    def now(self) -> Any:
        if self.device == 'cpu':
            return super().now()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        if self.device == 'cpu':
            return end - begin
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


def keys(arrays: OneProcess, chunk: int, layer: int, n_tokens: int) -> list[Any]:
    """Keys and values of some tokens, as a model would compute them."""
    return [arrays.random(4 * (chunk * 64 + layer) + i, n_tokens, N_KV_HEADS, HEAD_DIM) for i in range(2)]


class Share:
    """The tokens of some chunks in a cache of their own."""

    def __init__(self, arrays: OneProcess, geometry: lowkey.Geometry, plan_name: str, chunks: range, grows: bool):
        self.grows, self.layers = grows, range(len(geometry.layers))
        kind, _, index = arrays.device.partition(':')
        plan = lowkey.Plan.preset(plan_name, geometry)
        size = plan.bytes((len(chunks) + 1) * CHUNK_TOKENS, step_tokens=CHUNK_TOKENS)  # with one chunk to decode
        self.context = lowkey.Context(kind, device_index=int(index or 0))
        self.cache = lowkey.Cache(self.context, plan, size.cache_bytes, max_step_tokens=CHUNK_TOKENS)
        self.sequence = self.cache.add()
        for chunk in chunks:
            n = CHUNK_TOKENS - (not grows and chunk == chunks[-1])  # all, or all but the one that is held back
            made = [keys(arrays, chunk, layer, CHUNK_TOKENS) for layer in self.layers]
            with self.cache.step(self.sequence, n) as step:
                for layer, (k, v) in enumerate(made):
                    step.append(layer, k[:n], v[:n])
        self.held = [(k[n:], v[n:]) for k, v in made]


def unpack(split: Any) -> tuple[Any, Any]:
    """Output and log-sum-exps of a token in an exchanged array."""
    return split[:N_VALUES].reshape(1, N_QUERY_HEADS, HEAD_DIM), split[N_VALUES:].reshape(1, N_QUERY_HEADS)


def decode(arrays: OneProcess, shares: list[Share], number: int, gather: Any) -> tuple[list[Any], list[float]]:
    """A token through all layers: its outputs, and seconds of attention alone and with the merge."""
    queries = [SHARPNESS * arrays.random(4 * (number * 64 + layer) + 2, 1, N_QUERY_HEADS, HEAD_DIM)
               for layer in shares[0].layers]
    new = [keys(arrays, number, layer, 1) for layer in shares[0].layers]
    steps, outs, points = [share.cache.step(share.sequence, 1) for share in shares], [], []
    for layer, q in enumerate(queries):
        points.append(arrays.now())
        splits = [arrays.empty(N_VALUES + N_QUERY_HEADS) for _ in shares]
        for share, step, split in zip(shares, steps, splits):
            step.append(layer, *(new if share.grows else share.held)[layer])
            step.attend(layer, q, *unpack(split))
        points.append(arrays.now())
        some, sums = zip(*map(unpack, gather(splits)))
        outs.append(lowkey.merge(shares[0].context, some, sums))
        points.append(arrays.now())
    for share, step in zip(shares, steps):
        step.commit() if share.grows else step.discard()
    return outs, [sum(map(arrays.seconds, points[::3], points[i::3])) for i in (1, 2)]


def run(arrays: OneProcess, shares: list[Share], n_chunks: int, n_steps: int, gather: Any) -> tuple[Any, list[float]]:
    """Outputs of some tokens, and medians of the times in microseconds without the first one's."""
    results = [decode(arrays, shares, n_chunks + i, gather) for i in range(n_steps)]
    outs = [np.asarray(getattr(out, 'cpu', lambda out=out: out)()) for layers, _ in results for out in layers]
    for share in shares:
        share.cache.close()
    return np.stack(outs), [statistics.median(column) * 1e6 for column in zip(*(times for _, times in results[1:]))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--tokens', type=int, default=8192)
    parser.add_argument('--layers', type=int, default=1)
    parser.add_argument('--plan', default='kitty-pro', help='a preset')
    parser.add_argument('--steps', type=int, default=12, help='decoded tokens; the first is not timed')
    parser.add_argument('--shares', type=int, default=2, help='without torchrun, which makes one of each process')
    options = parser.parse_args()
    arrays = ManyProcesses() if 'LOCAL_RANK' in os.environ else OneProcess()
    many = arrays.wire != 'none'
    n, n_chunks, n_steps = arrays.n_ranks if many else options.shares, options.tokens // CHUNK_TOKENS, options.steps
    if not 1 <= n <= 16 or n_chunks < 1 or options.tokens % (CHUNK_TOKENS * n) or not 2 <= n_steps <= CHUNK_TOKENS:
        parser.error(f'tokens are a multiple of {CHUNK_TOKENS} for each of 1 to 16 shares, steps 2 to {CHUNK_TOKENS}')
    geometry = lowkey.Geometry.uniform(options.layers, N_QUERY_HEADS, N_KV_HEADS, HEAD_DIM)
    shares = [Share(arrays, geometry, options.plan, range(i * n_chunks // n, (i + 1) * n_chunks // n), i == n - 1)
              for i in ([arrays.rank] if many else range(n))]
    outs, (attend_us, joined_us) = run(arrays, shares, n_chunks, n_steps, arrays.gather)
    status = 0
    if arrays.rank == 0:
        (one, (one_us, _)), (exact, _) = (
            run(arrays, [Share(arrays, geometry, plan, range(n_chunks), True)], n_chunks, n_steps, lambda one: one)
            for plan in (options.plan, 'fp16'))
        rms, packing = (float(np.sqrt(np.square(one - other).mean())) for other in (outs, exact))
        largest, rounding = float(np.abs(one - outs).max()), ROUNDING * float(np.abs(exact).max())
        status = int(not (largest <= rounding if packing == 0 else rms <= packing))
        part_bytes = 4 * (N_VALUES + N_QUERY_HEADS) * options.layers
        print(json.dumps({
            **vars(options), 'shares': n, 'device': arrays.device, 'wire': arrays.wire, 'one_us': one_us,
            'share_us': attend_us, 'joined_us': joined_us, 'sent_bytes': part_bytes * (n > 1),
            'received_bytes': part_bytes * (n - 1), 'largest_difference': largest, 'rounding': rounding,
            'rms_difference': rms, 'rms_packing': packing, 'rms_output': float(np.sqrt(np.square(exact).mean()))}))
    arrays.wait()
    return status


if __name__ == '__main__':
    sys.exit(main())
