# SPDX-License-Identifier: Apache-2.0
"""Scores the proving model with full-precision and fake-quantized KV caches (tasks: TASKS.md, methods: README.md).

The context is prefilled in full precision with K and V stored as FP16; then a cache method replaces the pages that have left the window;
then the question and its answer are fed. All methods see the same items.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import time
from typing import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

import model as M
import weights
from data import HERE, Corpus, Question, Source, Task, key_value, needle, repeat, trace, trace_direct

PAGE = 128
WINDOW = 128
QUERIES = 512  # of one product with keys, so that scores need little memory
EVALUATION = 7_000_000
Cache = list[tuple[Tensor, Tensor]]


def affine(x: Tensor, levels: Tensor | float, dim: int) -> Tensor:
    """Min-max codes along dim; scale and minimum are used as FP16."""
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    scale = ((high - low) / levels).clamp_min(1e-6)
    codes = torch.minimum(((x - low) / scale + 0.5).floor(), torch.as_tensor(levels, device=x.device, dtype=x.dtype))
    return codes * scale.half().float() + low.half().float()


def boosted(pages: Tensor, share: float, narrow: float, wide: float) -> Tensor:
    """[..., channels] of one number a channel and page: wide for the share of channels whose mean absolute value is highest."""
    score = pages.abs().mean(3, keepdim=True)
    chosen = score.topk(round(share * pages.shape[-1]), -1).indices
    return torch.full_like(score, narrow).scatter(-1, chosen, wide)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Widths of K and V in the aged pages; a share `boost` of a K page's channels gets 4 bits; the first `sinks` tokens stay FP16."""

    name: str
    k_bits: int = 16
    v_bits: int = 16
    boost: float = 0.0
    sinks: int = 0

    def keys(self, k: Tensor) -> Tensor:
        """k [batch, heads, pages * PAGE, channels] as its pages store it, per channel and page."""
        pages = k.float().unflatten(2, (-1, PAGE))
        levels: Tensor | float = float(2 ** self.k_bits - 1)
        if self.boost:
            levels = boosted(pages, self.boost, levels, 15.0)
        return affine(pages, levels, 3).flatten(2, 3).half()

    def values(self, v: Tensor) -> Tensor:
        return affine(v.float(), 2.0 ** self.v_bits - 1, -1).half()

    def of_layer(self, layer: int) -> Plan:
        """The plan of one layer, where they differ."""
        return self


PLANS = (
    Plan("FP16"),
    Plan("KIVI-4 G128", 4, 4),
    Plan("KIVI-2 G128", 2, 2),
    Plan("KIVI-2 G128 + 32 sinks", 2, 2, sinks=32),
    Plan("Kitty 12.5 %", 2, 2, boost=0.125, sinks=32),
    Plan("Kitty 25 %", 2, 2, boost=0.25, sinks=32),
)


def packed_tokens(cache: Cache, plan: Plan) -> int:
    """Tokens after the sinks in whole pages older than the window."""
    return 0 if plan.k_bits == 16 else max(0, cache[0][0].shape[2] - plan.sinks - WINDOW) // PAGE * PAGE


def packed_pages(cache: Cache, plan: Plan, first: int, last: int) -> Cache:
    """Tokens first..last, whole pages, as the plan stores them."""
    own = [plan.of_layer(i) for i in range(len(cache))]
    return [(of.keys(k[:, :, first:last]), of.values(v[:, :, first:last])) for of, (k, v) in zip(own, cache)]


def joined(*parts: Cache) -> Cache:
    """The tokens of all parts, one after the other."""
    return [(torch.cat([k for k, _ in layer], 2), torch.cat([v for _, v in layer], 2)) for layer in zip(*parts)]


def cut(cache: Cache, first: int, last: int | None) -> Cache:
    return [(k[:, :, first:last], v[:, :, first:last]) for k, v in cache]


def aged_cache(cache: Cache, plan: Plan) -> Cache:
    """The cache as the plan stores it: whole pages older than the window are quantized from their FP16 originals."""
    last = plan.sinks + packed_tokens(cache, plan)
    if last == plan.sinks:
        return cache
    return joined(cut(cache, 0, plan.sinks), packed_pages(cache, plan, plan.sinks, last), cut(cache, last, None))


def attention(s: M.Shape, q: Tensor, k: Tensor, v: Tensor, window: int, sinks: Tensor | None) -> Tensor:
    """The queries are the last tokens of k. A sink is one more score per head, without a value."""
    length, total = q.shape[2], k.shape[2]
    outputs = []
    for start in range(0, length, QUERIES):
        rows = q[:, :, start:start + QUERIES].unflatten(1, (s.kv_heads, -1))
        at = torch.arange(total - length + start, total - length + start + rows.shape[3], device=q.device)[:, None]
        first, last = max(0, int(at[0]) - window + 1) if window else 0, int(at[-1]) + 1
        score = rows @ k[:, :, None, first:last].transpose(3, 4) * s.scale
        if s.softcap:
            score = s.softcap * torch.tanh(score / s.softcap)
        key = torch.arange(first, last, device=q.device)
        score = score.masked_fill((key > at) | (key <= at - window if window else key < 0), -torch.inf)
        if sinks is not None:
            one = sinks.view(1, s.kv_heads, -1, 1, 1).expand(*score.shape[:-1], 1)
            score = torch.cat((score, one), -1).softmax(-1)[..., :-1]
        else:
            score = score.softmax(-1)
        outputs.append((score @ v[:, :, None, first:last]).flatten(1, 2))
    return torch.cat(outputs, 2)


def forward(model: M.Prover, tokens: Tensor, cache: Cache | None = None, need_logits: bool = True) -> tuple[Tensor | None, Cache]:
    """Float32 pass over tokens [rows, length] after the cache; returns logits and the tokens' own FP16 K and V."""
    s = model.shape
    rows, length = tokens.shape
    past = cache[0][0].shape[2] if cache else 0
    positions = torch.arange(past, past + length, device=tokens.device).repeat(rows)
    x = model.embed(tokens.reshape(-1))
    made: Cache = []
    for i, own in enumerate(model.layer_weights()):
        q, k, v = M.before_attention(s, x, own, *M.rope_table(positions, s, s.theta_of(i)), torch.float32)
        q, k, v = (t.view(rows, length, -1, s.head_dim).transpose(1, 2) for t in (q, k, v))
        k, v = k.half(), v.half()
        made.append((k, v))
        if cache:
            k, v = torch.cat((cache[i][0], k), 2), torch.cat((cache[i][1], v), 2)
        heads = attention(s, q, k.float(), v.float(), s.window_of(i), own.get("self_attn.sinks"))
        x = M.after_attention(s, x, heads.transpose(1, 2).reshape(-1, s.heads, s.head_dim), own)
    if not need_logits:
        return None, made
    return M.logits(s, x, model.model.norm.weight, model.head, torch.float32).view(rows, length, -1), made


def prefill(model: M.Prover, tokens: Tensor, rows: int = 16) -> Cache:
    parts = [forward(model, part, need_logits=False)[1] for part in tokens.split(rows)]
    return [(torch.cat([p[i][0] for p in parts]), torch.cat([p[i][1] for p in parts])) for i in range(model.shape.layers)]


def stream(model: M.Prover, originals: Cache, tokens: Tensor, plan: Plan) -> Tensor:
    """Logits of tokens fed page by page; after each step the pages that left the window are quantized."""
    outputs, aged, last = [], cut(originals, 0, plan.sinks), plan.sinks
    for part in tokens.split(PAGE, 1):
        due = plan.sinks + packed_tokens(originals, plan)
        if due > last:
            aged, last = joined(aged, packed_pages(originals, plan, last, due)), due
        out, made = forward(model, part, joined(aged, cut(originals, last, None)))
        outputs.append(out)
        originals = joined(originals, made)
    return torch.cat(outputs, 1)


@dataclasses.dataclass
class Score:
    right: int = 0
    items: int = 0
    bytes_right: int = 0
    bits: float = 0.0
    size: int = 0

    def add(self, out: Tensor, target: Tensor, scored: Tensor) -> None:
        """out [rows, length, 256] predicts target; only scored bytes count."""
        hits = (out.argmax(-1) == target) | ~scored
        losses = F.cross_entropy(out.transpose(1, 2), target, reduction="none") * scored
        self.right += int(hits.all(1).sum())
        self.items += len(target)
        self.bytes_right += int((hits & scored).sum())
        self.bits += float(losses.sum()) / math.log(2)
        self.size += int(scored.sum())

    def report(self) -> dict[str, float]:
        return {"right": self.right, "items": self.items, "percent": 100 * self.right / self.items,
                "bytes_percent": 100 * self.bytes_right / self.size, "bits_per_byte": self.bits / self.size}


def tensor(rows: list[bytes], device: str) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([list(r.ljust(width, b"\0")) for r in rows], device=device)


def question_tensors(questions: list[Question], device: str) -> tuple[Tensor, Tensor, Tensor]:
    whole = tensor([q.prompt + q.answer for q in questions], device)
    at = torch.arange(1, whole.shape[1], device=device)
    start = torch.tensor([[len(q.prompt)] for q in questions], device=device)
    end = torch.tensor([[len(q.prompt) + len(q.answer)] for q in questions], device=device)
    return whole[:, :-1], whole[:, 1:], (at >= start) & (at < end)


class Bench:
    def __init__(self, model: M.Prover, corpus: Corpus, device: str, size: int, items: int, plans: Sequence[Plan] = PLANS) -> None:
        self.model, self.corpus, self.device, self.size, self.items, self.plans = model, corpus, device, size, items, plans

    def tasks(self, make: Callable[[Source], Task], count: int, salt: int) -> list[Task]:
        return [make(Source(self.corpus, [EVALUATION + self.items, salt, i])) for i in range(count)]

    def alone(self, tasks: list[Task], each: int, group: int = 4) -> dict[str, Score]:
        """Every question directly after its context; `each` questions share one prefilled context."""
        scores = {p.name: Score() for p in self.plans}
        for at in range(0, len(tasks), group):
            part = tasks[at:at + group]
            cache = prefill(self.model, tensor([t.context_bytes for t in part], self.device))
            questions = [t.questions[:each] for t in part]
            fed, target, scored = question_tensors([q for qs in questions for q in qs], self.device)
            owner = torch.tensor([i for i, qs in enumerate(questions) for _ in qs], device=self.device)
            for plan in self.plans:
                kept = [(k[owner], v[owner]) for k, v in aged_cache(cache, plan)]
                scores[plan.name].add(forward(self.model, fed, kept)[0], target, scored)
        return scores

    def in_a_row(self, tasks: list[Task], each: int, group: int = 16) -> dict[str, Score]:
        """All questions of a context one after the other; scored per question."""
        scores = {p.name: Score() for p in self.plans}
        for at in range(0, len(tasks), group):
            part = tasks[at:at + group]
            cache = prefill(self.model, tensor([t.context_bytes for t in part], self.device))
            rows = [b"".join(q.prompt + q.answer for q in t.questions[:each]) for t in part]
            whole = tensor(rows, self.device)
            for plan in self.plans:
                out = stream(self.model, cache, whole[:, :-1], plan)
                for i, t in enumerate(part):
                    start = 0
                    for q in t.questions[:each]:
                        first, last = start + len(q.prompt), start + len(q.prompt) + len(q.answer)
                        target = whole[i:i + 1, first:last]
                        scores[plan.name].add(out[i:i + 1, first - 1:last - 1], target, torch.ones_like(target, dtype=torch.bool))
                        start = last
        return scores

    def lists(self, tasks: list[Task], group: int = 25) -> dict[str, Score]:
        scores = {p.name: Score() for p in self.plans}
        for at in range(0, len(tasks), group):
            part = tasks[at:at + group]
            cache = prefill(self.model, tensor([t.context_bytes for t in part], self.device))
            fed, target, scored = question_tensors([t.questions[0] for t in part], self.device)
            for plan in self.plans:
                scores[plan.name].add(stream(self.model, cache, fed, plan), target, scored)
        return scores

    def text(self, count: int) -> dict[str, Score]:
        scores = {p.name: Score() for p in self.plans}
        for index, source in enumerate(self.corpus.texts):
            step = (len(source) - self.size) // count
            rows = tensor([b"\0" + source[i * step:i * step + self.size - 1] for i in range(count)], self.device)
            half = self.size // 2
            cache = prefill(self.model, rows[:, :half])
            target = rows[:, half + 1:]
            for plan in self.plans:
                out = stream(self.model, cache, rows[:, half:-1], plan)
                scores[plan.name].add(out, target, torch.ones_like(target, dtype=torch.bool))
        return scores


def cells(bench: Bench, scale: float) -> dict[str, Callable[[], dict[str, Score]]]:
    n, size = (lambda count: max(1, round(count * scale))), bench.size
    count = max(1, size // 170)
    return {
        "needle": lambda: bench.alone(bench.tasks(lambda s: needle(s, size, count), n(40), 1), 8),
        "needle, in a row": lambda: bench.in_a_row(bench.tasks(lambda s: needle(s, size, count), n(16), 2), count),
        "kv easy": lambda: bench.alone(bench.tasks(lambda s: key_value(s, size, False), n(40), 3), 8),
        "kv hard": lambda: bench.alone(bench.tasks(lambda s: key_value(s, size, True), n(80), 4), 8),
        "trace, written": lambda: bench.alone(bench.tasks(lambda s: trace(s, size), n(40), 5), 8),
        "trace, direct 1": lambda: bench.alone(bench.tasks(lambda s: trace_direct(s, size, 1), n(40), 6), 8),
        "trace, direct 2": lambda: bench.alone(bench.tasks(lambda s: trace_direct(s, size, 2), n(40), 7), 8),
        "trace, direct 3": lambda: bench.alone(bench.tasks(lambda s: trace_direct(s, size, 3), n(40), 8), 8),
        "repeat 512": lambda: bench.lists(bench.tasks(lambda s: repeat(s, size, 512), n(200), 9)),
        "repeat 1024": lambda: bench.lists(bench.tasks(lambda s: repeat(s, size, 1024), n(100), 10)),
        "text": lambda: bench.text(n(8)),
    }


def evaluate(bench: Bench, scale: float, only: list[str] | None) -> dict[str, dict[str, dict[str, float]]]:
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name, run in cells(bench, scale).items():
        if only and name not in only:
            continue
        start = time.time()
        results[name] = {plan: score.report() for plan, score in run().items()}
        print(f"{name} ({time.time() - start:.1f} s, {results[name]['FP16']['items']} items)", flush=True)
        for plan, r in results[name].items():
            print(f"  {plan:24s} {r['percent']:6.1f} %  bytes {r['bytes_percent']:6.2f} %  {r['bits_per_byte']:.4f} bits/byte", flush=True)
    return results


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Markdown: exact match in percent; text in bits per byte."""
    shown: Callable[[str, dict[str, float]], str] = lambda name, r: f"{r['bits_per_byte']:.3f}" if name == "text" else f"{r['percent']:.1f}"
    lines = ["| cache | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    for plan in PLANS:
        lines.append(f"| {plan.name} | " + " | ".join(shown(n, r[plan.name]) for n, r in results.items()) + " |")
    lines.append("| items | " + " | ".join(str(r["FP16"]["items"]) for r in results.values()) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=pathlib.Path, default=HERE / "prover.safetensors")
    parser.add_argument("--corpus", type=pathlib.Path, default=HERE / "corpus.zip")
    parser.add_argument("--size", type=int, default=4096, help="context in tokens")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of items")
    parser.add_argument("--items", type=int, default=0, help="another number draws other items (text stays the same)")
    parser.add_argument("--only", nargs="*", help="names of cells")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    bench = Bench(weights.load(args.weights, args.device), Corpus(args.corpus, "held"), args.device, args.size, args.items)
    with torch.inference_mode():
        results = evaluate(bench, args.scale, args.only)
    print(table(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
