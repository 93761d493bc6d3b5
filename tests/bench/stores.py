# SPDX-License-Identifier: Apache-2.0
"""Caches of whole models with rows of one length: transformers' own at FP16, and lowkey's under its adapter."""

import dataclasses
import time
from typing import Callable

import torch
import transformers

import lowkey
from chanmix import SINKS, chanmix
from lowkey.transformers import LowkeyCache, geometry_of

FILL_TOKENS = 2048  # of one step that fills a row
ANSWER_TOKENS = 160  # after a context whose chunks have classes
PAGE = 128
DTYPE = torch.float16
LADDER = (8, 4, 2)


def random_rows(config, n_tokens: int, device: str) -> list[torch.Tensor]:
    """Keys and values [n_tokens, KV heads, head_dim]; a few key channels are larger, as in models."""
    shape = (n_tokens, config.num_key_value_heads, config.head_dim)
    k, v = (torch.randn(shape, device=device, dtype=DTYPE) for _ in range(2))
    k[..., 3::17] *= 4
    return [k, v]


class HostStore:
    """Rows in a cache of transformers, all of them the same random tokens."""

    def __init__(self, kind: type, model, n_rows: int, length: int, n_tokens: int):
        self.model, self.n_rows = model, n_rows
        options = {'max_cache_len': length} if kind is transformers.StaticCache else {}
        self.cache = kind(config=model.config, **options)
        self.shrinks: list[dict] = []
        self.bits_per_value = 16.0
        self.grow(n_tokens)

    def grow(self, n_tokens: int) -> None:
        """So many more tokens for each row."""
        config = self.model.config
        for layer in range(config.num_hidden_layers):
            k, v = random_rows(config, n_tokens, self.model.device)  # both caches copy them
            self.cache.update(*(x.transpose(0, 1)[None].expand(self.n_rows, -1, -1, -1) for x in (k, v)), layer)

    def cache_bytes(self) -> int:
        return sum(x.nbytes for layer in self.cache.layers for x in (layer.keys, layer.values))

    def close(self) -> None:
        del self.cache


def host_row_bytes(kind: type, config, length: int) -> int:
    """Bytes of a row: its keys and values, and the copies of one layer that the host makes. A dynamic cache is
    copied as it grows; a static one has a mask, so PyTorch's attention wants each KV head once for every query head."""
    layer_bytes = 2 * length * config.num_key_value_heads * config.head_dim * DTYPE.itemsize
    group = config.num_attention_heads // config.num_key_value_heads
    return layer_bytes * (config.num_hidden_layers + (1 if kind is transformers.DynamicCache else group))


class LowkeyRule:
    """A plan for a model, the bytes of its rows, and how rows are filled."""

    def __init__(self, name: str, config, slab_bytes: int):
        self.name, self.slab_bytes = name, slab_bytes
        self.geometry = geometry_of(config)
        self.plan = chanmix('chanmix-ro', self.geometry) if name == 'chanmix' else lowkey.Plan.preset(name, self.geometry)
        self.chunks = self.plan.chunks()
        self.shrinks = name == 'pm-kvq'
        self.packed = self.at_last_rung() if self.shrinks else self.plan

    def at_last_rung(self) -> lowkey.Plan:
        spec = self.plan.spec()
        layers = tuple(dataclasses.replace(rule, rung=LADDER[-1]) for rule in spec.layers)
        return lowkey.Plan.build(self.geometry, dataclasses.replace(spec, layers=layers))

    def n_chunks(self, length: int) -> int:
        return max(0, length - ANSWER_TOKENS - SINKS) // self.chunks.chunk_tokens

    def classes(self, length: int) -> list[str]:
        """Of the chunks of one row, by scores at random: as many of each class as the quota has it."""
        scores = torch.rand(self.n_chunks(length)).tolist()
        return lowkey.chunks.Quota(PAGE // self.chunks.chunk_tokens).classes(scores)[0]

    def size(self, length: int, n_rows: int) -> lowkey.PlanSize:
        """Of rows at their full length."""
        if self.chunks is not None:
            classes = self.classes(length)
            mix = [classes.count(name) for name in ('low', 'middle', 'high')]
            return self.plan.chunk_bytes(length, *mix, n_sequences=n_rows, step_tokens=1)
        return self.packed.bytes(length, n_rows, 1)

    def max_step_tokens(self, n_rows: int) -> int:
        return max(FILL_TOKENS, n_rows)

    def budget(self, length: int, n_rows: int) -> int:
        """Rows at their full length, the workspace of a step, and what the row that is being filled has at 16 bits."""
        workspace = self.plan.bytes(length, 1, self.max_step_tokens(n_rows)).table_bytes
        waiting = self.size(SINKS + (length if self.chunks is not None else FILL_TOKENS), 1).fp16_bytes
        return self.size(length, n_rows).cache_bytes + workspace + waiting + 2 * self.slab_bytes


class LowkeyStore:
    """Rows in lowkey's cache, filled one after the other, and the adapter's cache over them. All that the library has
    on the device stays below free_bytes."""

    def __init__(self, rule: LowkeyRule, model, n_rows: int, length: int, n_tokens: int, free_bytes: int,
                 synchronize: Callable[[], None], graph: bool = False):
        self.rule, self.length, self.synchronize = rule, length, synchronize
        self.shrinks: list[dict] = []
        self.n_filled = 0
        self.bits_per_value = rule.size(length, 1).bits_per_value
        self.tensors = random_rows(model.config, FILL_TOKENS, model.device)
        self.context = lowkey.Context(model.device.type, n_threads=1 if model.device.type == 'cpu' else 0)
        try:
            self.store = self.open(n_rows, free_bytes)
            device_bytes = self.store.stats().device_bytes
            if device_bytes:  # the budget does not count them
                self.store.close()
                self.store = self.open(n_rows, free_bytes - device_bytes)
            self.rows = [self.store.add() for _ in range(n_rows)]
            self.fill(n_tokens)
            self.cache = LowkeyCache.over(model, self.store, self.rows, graph=graph)
        except BaseException:
            self.context.__exit__()
            raise

    def open(self, n_rows: int, budget: int) -> lowkey.Cache:
        return lowkey.Cache(self.context, self.rule.plan, budget, geometry=self.rule.geometry, max_sequences=n_rows,
                            max_step_tokens=self.rule.max_step_tokens(n_rows), slab_bytes=self.rule.slab_bytes)

    def fill(self, n_tokens: int) -> None:
        if self.rule.shrinks:
            for i, bits in enumerate(LADDER):
                self.fill_to(self.length >> (len(LADDER) - i))
                self.shrink(bits)
        self.fill_to(n_tokens)

    def fill_to(self, n_tokens: int) -> None:
        for row in self.rows:
            if self.rule.chunks is not None:
                row.defer()
            for first in range(self.n_filled, n_tokens - 1, FILL_TOKENS):
                self.append(row, min(FILL_TOKENS, n_tokens - 1 - first))
            self.append(row, 1)  # what the last long step still saw at 16 bits is packed now
            if self.rule.chunks is not None:
                n_context = SINKS + self.rule.n_chunks(self.length) * self.rule.chunks.chunk_tokens
                row.assign_chunks(n_context, self.rule.classes(self.length))
        self.n_filled = n_tokens

    def append(self, row: lowkey.Sequence, n_tokens: int) -> None:
        k, v = (x[:n_tokens] for x in self.tensors)
        with self.store.step(row, n_tokens) as step:
            for layer in range(len(self.rule.geometry.layers)):
                step.append(layer, k, v)

    def grow(self, n_tokens: int) -> None:
        """So many more tokens for each row."""
        for row in self.rows:
            self.append(row, n_tokens)

    def cache_bytes(self) -> int:
        stats = self.store.stats()
        return stats.payload_bytes + stats.metadata_bytes + stats.recent_bytes

    def shrink(self, bits: int) -> None:
        """All pages down to a rung, as the cache does by itself when its budget is full."""
        self.synchronize()
        before, begin = self.store.stats().pages_shrunk, time.perf_counter()
        self.store.shrink(bits)
        self.synchronize()
        self.shrinks.append({'bits': bits, 'tokens': self.n_filled, 'ms': (time.perf_counter() - begin) * 1e3,
                             'pages': self.store.stats().pages_shrunk - before})

    def close(self) -> None:
        self.cache.close()
        self.store.close()
        self.context.close()
