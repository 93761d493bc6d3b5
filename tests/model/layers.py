# SPDX-License-Identifier: Apache-2.0
"""Plans without calibration whose widths differ from layer to layer or head to head: the tasks of evaluate.py, and lists, under plans in lowkey's
own arithmetic (FP8 ranges and minima, 1-bit levels by mean absolute deviation; docs/lab/results.md).

A page is written K<strips of sixteen at 4 bits> V<bits>, each with c<share> where groups at 2 bits keep that share of their range.
"""
from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import re
import time
from typing import Callable

import torch
from torch import Tensor

import evaluate as E
import model as M
import weights
from data import HERE, Corpus, key_value, repeat, trace, trace_direct
from rotation import even, fp8

STRIP = 16
SINKS = 32
Widths = Callable[[M.Shape, int, int], str]  # of a layer and KV head


def by_deviation(x: Tensor, dim: int, f8: bool) -> Tensor:
    """Two levels, one mean absolute deviation below and above the mean."""
    mean = x.mean(dim, keepdim=True)
    deviation = (x - mean).abs().mean(dim, keepdim=True)
    low, span = (fp8(mean - deviation, False), fp8(2 * deviation, True)) if f8 else ((mean - deviation).half().float(), (2 * deviation).half().float())
    return torch.where(x - low >= span / 2, low + span, low)


def narrowed(x: Tensor, dim: int, bits: int, clip: float, f8: bool) -> Tensor:
    """Groups along dim at so many bits; those at 2 bits keep a share of their range."""
    if bits == 16:
        return x
    if bits == 1:
        return by_deviation(x, dim, f8)
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    cut = (high - low) * ((1 - clip) / 2 if bits == 2 else 0)
    return even(x, low + cut, high - cut, 2.0 ** bits - 1, f8)


def ranked(pages: Tensor, n: int) -> Tensor:
    """The n channels of each page [..., tokens, channels] whose mean magnitude is largest."""
    chosen = torch.zeros_like(pages[..., :1, :], dtype=torch.bool)
    return chosen.scatter_(-1, pages.abs().mean(-2, keepdim=True).topk(n, -1).indices, True)


@dataclasses.dataclass(frozen=True)
class Page:
    """K and V pages of one head: sixteenths of the key channels at 4 bits over `k_bits`, in whole strips."""

    sixteenths: int
    v_bits: int
    clip: float = 1.0
    k_bits: int = 2
    k_clip: float = 1.0
    group: int = 0  # channels of a group of values, 0 = all
    f8: bool = True

    def boosted(self, channels: int) -> int:
        if not self.sixteenths:
            return 0
        whole = channels if self.sixteenths == 16 else channels - STRIP
        return min(-(-channels * self.sixteenths // 16 // STRIP) * STRIP, whole)

    def keys(self, k: Tensor) -> Tensor:
        pages = k.float().unflatten(2, (-1, E.PAGE))
        boosted = narrowed(pages, 3, 4, 1.0, self.f8)
        return torch.where(ranked(pages, self.boosted(k.shape[-1])), boosted, narrowed(pages, 3, self.k_bits, self.k_clip, self.f8)).flatten(2, 3).half()

    def values(self, v: Tensor) -> Tensor:
        x = v.float().unflatten(-1, (-1, self.group or v.shape[-1]))
        return narrowed(x, -1, self.v_bits, self.clip, self.f8).flatten(-2).half()

    def bits(self, channels: int) -> float:
        parameters, n = 16 if self.f8 else 32, self.boosted(channels)
        keys = self.k_bits + n / channels * (4 - self.k_bits) + parameters / E.PAGE + (8 / E.PAGE if 0 < n < channels else 0)
        return (keys + self.v_bits + parameters / (self.group or channels)) / 2


@dataclasses.dataclass(frozen=True, eq=False)
class Written:
    """K and V pages of one head as a plan's JSON has them, keys per channel."""

    widths: Tensor | None  # of the key channels; none where each page ranks them
    key: dict
    value: dict
    f8: bool

    def keys(self, k: Tensor) -> Tensor:
        x, key = k.float(), self.key
        centers = torch.tensor(key.get("centers", 0.0), device=k.device)
        pages = (x - centers).unflatten(2, (-1, key["group"] or E.PAGE))
        if self.widths is None:
            chosen = ranked(pages, key["boost"]["channels"])
            parts = [(key["bits"], ~chosen), (key["boost"]["bits"], chosen)]
        else:
            widths = self.widths.to(k.device)
            parts = [(int(bits), widths == bits) for bits in widths.unique()]
        made = pages
        for bits, where in parts:
            made = torch.where(where, narrowed(pages, 3, bits, key.get("clip", 1.0), self.f8), made)
        return (made.flatten(2, 3) + centers).half()

    def values(self, v: Tensor) -> Tensor:
        x = v.float().unflatten(-1, (-1, self.value["group"] or v.shape[-1]))
        return narrowed(x, -1, self.value["bits"], self.value.get("clip", 1.0), self.f8).flatten(-2).half()

    def bits(self, channels: int) -> float:
        key, value, parameters = self.key, self.value, 16 if self.f8 else 32
        if self.widths is None:
            boost = key["boost"]
            of_keys = key["bits"] + boost["channels"] / channels * (boost["bits"] - key["bits"]) + 8 / E.PAGE
        else:
            of_keys = float(self.widths.float().mean())
        of_keys += parameters / (key["group"] or E.PAGE) if key["bits"] < 16 else 0
        return (of_keys + value["bits"] + (parameters / (value["group"] or channels) if value["bits"] < 16 else 0)) / 2


def written(path: pathlib.Path) -> Layered:
    """A plan's file, as `lowkey plan ... -o` writes it."""
    plan, layers = json.loads(path.read_text()), []
    for layer in plan["layers"]:
        pages: list[Written] = []
        for head in layer["heads"]:
            key = head["key"]
            widths = None if key.get("boost") else torch.tensor(key.get("classes") or [key["bits"]])
            pages += [Written(widths, key, head["value"], layer["metadata"] == "f8")] * head.get("count", 1)
        layers += [Heads(path.stem, 2, 2, pages=tuple(pages))] * layer.get("count", 1)
    return Layered(path.stem, 2, 2, sinks=plan["sink_tokens"], layers=tuple(layers))


@functools.lru_cache
def page(text: str) -> Page | Written:
    if text.startswith("{"):  # rules as in a plan's file
        own = json.loads(text)
        return Written(None if own["key"].get("boost") else torch.tensor([own["key"]["bits"]]), own["key"], own["value"], own.get("f8", True))
    found = re.fullmatch(r"K(\d+)(b1)?(?:c([\d.]+))? V(\d)(?:c([\d.]+))?(?:g(\d+))?(h)?", text)
    assert found, text
    strips, one, k_clip, bits, clip, group, half = found.groups()
    return Page(int(strips), int(bits), float(clip or 1), 1 if one else 2, float(k_clip or 1), int(group or 0), not half)


@dataclasses.dataclass(frozen=True)
class Heads(E.Plan):
    """The pages of a layer's heads."""

    pages: tuple[Page | Written, ...] = ()

    def each(self, x: Tensor, part: Callable[[Page | Written, Tensor], Tensor]) -> Tensor:
        if len(set(self.pages)) == 1:
            return part(self.pages[0], x)
        return torch.cat([part(own, x[:, i:i + 1]) for i, own in enumerate(self.pages)], 1)

    def keys(self, k: Tensor) -> Tensor:
        return self.each(k, lambda own, x: own.keys(x))

    def values(self, v: Tensor) -> Tensor:
        return self.each(v, lambda own, x: own.values(x))


@dataclasses.dataclass(frozen=True)
class Layered(E.Plan):
    layers: tuple[Heads, ...] = ()

    def of_layer(self, layer: int) -> Heads:
        return self.layers[layer]

    def bits(self, channels: int) -> float:
        every = [own.bits(channels) for heads in self.layers for own in heads.pages]
        return sum(every) / len(every) if every else 16


def layered(name: str, shape: M.Shape, widths: Widths) -> Layered:
    layers = tuple(Heads(name, 2, 2, pages=tuple(page(widths(shape, i, h)) for h in range(shape.kv_heads))) for i in range(shape.layers))
    return Layered(name, 2, 2, sinks=SINKS, layers=layers)


def everywhere(text: str) -> Widths:
    return lambda s, layer, head: text


def by_window(full: str, windowed: str) -> Widths:
    return lambda s, layer, head: windowed if s.window_of(layer) else full


def spread(share: float, most: str, rest: str, order: str = "spread") -> Widths:
    """`most` in that share of the layers: spread evenly, the first ones or the last ones."""
    def chosen(s: M.Shape, layer: int, head: int) -> str:
        n = max(int(share * s.layers + 0.5), 1)
        inside = {"spread": (layer + 1) * n // s.layers > layer * n // s.layers, "first": layer < n, "last": layer >= s.layers - n,
                  "middle": (s.layers - n + 1) // 2 <= layer < (s.layers - n + 1) // 2 + n}[order]
        return most if inside else rest
    return chosen


def middle(s: M.Shape, sixteenths: int) -> range:
    """The middle layers, as lk_plan_default() has them."""
    n = max((s.layers * sixteenths + 8) // 16, 1)
    first = (s.layers - n + 1) // 2
    return range(first, first + n)


def banded(*bands: tuple[int, bool, str]) -> Widths:
    """Of each layer the pages of the first band that it is in: sixteenths of the layers, the middle ones; of these only those without a window; pages."""
    def widths(s: M.Shape, layer: int, head: int) -> str:
        return next(text for sixteenths, full, text in bands if layer in middle(s, sixteenths) and not (full and s.window_of(layer)))
    return widths


TAPERED = {  # sixteenths of the layers in the middle, their pages, those of the others: the rows of lk_plan_default()
    "K12, V2 in 12": (12, "K12 V2", "K12 V1"), "K10, V2 in 12": (12, "K10 V2", "K10 V1"), "K10, V2 in 8": (8, "K10 V2", "K10 V1"),
    "K8, V2 in 10": (10, "K8 V2", "K8 V1"), "K8, V2 in 8": (8, "K8 V2", "K8 V1"), "K8 and V2 in 8, K6": (8, "K8 V2", "K6 V1"),
    "K6, V2 in 8": (8, "K6 V2", "K6 V1"), "K6, V2 in 6": (6, "K6 V2", "K6 V1"), "K8 and V2 in 6, K4": (6, "K8 V2", "K4 V1"),
    "K6 and V2 in 6, K4": (6, "K6 V2", "K4 V1"), "K6 and V2 in 4, K4": (4, "K6 V2", "K4 V1"), "K6 and V2 in 4, K2": (4, "K6 V2", "K2 V1"),
    "K4 and V2 in 4, K2": (4, "K4 V2", "K2 V1"), "K4 and V2 in 6, K0": (6, "K4 V2", "K0 V1"),
}


def clipped(text: str) -> str:
    """The clips of lk_plan_default()."""
    keys, values = text.split()
    return keys + ("c0.9" if int(keys[1:]) >= 4 else "") + " " + values + ("c0.7" if values == "V2" else "")


def candidates(s: M.Shape) -> dict[str, Widths]:
    texts = ["K4 V2", "K4c0.9 V2c0.7", "K6 V2", "K6 V2c0.7", "K6c0.9 V2", "K6c0.9 V2c0.7", "K6c0.8 V2c0.7", "K12c0.9 V2c0.7", "K6 V1", "K10 V1", "K16 V1", "K8b1 V2c0.7"]
    made = {text: everywhere(text) for text in texts}
    for order in ("first", "middle", "last", "spread"):
        made[f"K6c0.9; V2c0.7 in 0.375 {order}, else V1"] = spread(0.375, "K6c0.9 V2c0.7", "K6c0.9 V1", order)
    made["K8 in 0.5 first, else K4; V2c0.7"] = spread(0.5, "K8 V2c0.7", "K4 V2c0.7", "first")
    made["K8 in 0.5 last, else K4; V2c0.7"] = spread(0.5, "K8 V2c0.7", "K4 V2c0.7", "last")
    made |= {f"{name}": spread(share / 16, clipped(most), clipped(rest), "middle") for name, (share, most, rest) in TAPERED.items()}
    if s.window:
        pairs = (("K8c0.9 V2c0.7", "K8c0.9 V1"), ("K8c0.9 V2c0.7", "K4c0.9 V1"), ("K8c0.9 V2c0.7", "K0 V1"), ("K16 V2c0.7", "K0 V1"), ("K8c0.9 V1", "K8c0.9 V2c0.7"))
        made |= {f"full {full}, windowed {windowed}": by_window(full, windowed) for full, windowed in pairs}
    return made


def cores(s: M.Shape) -> dict[str, Widths]:
    """Plans whose middle layers without a window have keys at 4 bits, some channels at 8, next to the plans that they replaced."""
    def core(value_bits: int, sixteenths: int = 2) -> str:
        wide = -(-s.head_dim * sixteenths // 16 // STRIP) * STRIP
        return json.dumps({"key": {"bits": 4, "group": 0, "boost": {"channels": wide, "bits": 8}},
                           "value": {"bits": value_bits, "group": 0, "clip": 0.7 if value_bits == 2 else 1.0}})

    made: dict[str, Widths] = {}
    for n in (2, 3, 4):
        for bits, strips, share in ((2, 4, 0), (2, 4, 6), (2, 6, 4), (2, 6, 8), (2, 8, 6), (2, 8, 8), (4, 8, 0), (4, 6, 8)):
            own = [(n, True, core(bits))] + ([(share, False, clipped(f"K{strips} V2"))] if share else []) + [(16, False, clipped(f"K{strips} V1"))]
            made[f"core {n} 5V{bits}; K{strips}, V2 in {share}" if share else f"core {n} 5V{bits}; K{strips} V1"] = banded(*own)
    made |= {f"core 3 5V{bits}; K8, V2 in 16": banded((3, True, core(bits)), (16, False, clipped("K8 V2"))) for bits in (2, 4)}
    made["core 3 5wV2; K6, V2 in 8"] = banded((3, True, core(2, 4)), (8, False, clipped("K6 V2")), (16, False, clipped("K6 V1")))
    made["core 3 K6 V2 in 4; K4"] = banded((3, True, core(2)), (4, False, clipped("K6 V2")), (16, False, clipped("K4 V1")))
    made["old K12 V2 all"] = everywhere(clipped("K12 V2"))
    for strips, share, outer in ((10, 8, 10), (8, 8, 8), (8, 6, 4), (6, 6, 6)):
        name = f"old K{strips}, V2 in {share}" if strips == outer else f"old K{strips} V2 in {share}, K{outer}"
        made[name] = banded((share, False, clipped(f"K{strips} V2")), (16, False, clipped(f"K{outer} V1")))
    return made


def tasks(bench: E.Bench, name: str) -> dict[str, Callable[[int], dict[str, E.Score]]]:
    """One round of each task; a round has items of its own."""
    size = bench.size

    def numbered(salt: int, n: int, i: int, make: Callable) -> list:
        return bench.tasks(make, n * (i + 1), salt)[n * i:]

    made = {"repeat 512": lambda i: bench.lists(numbered(9, 8, i, lambda s: repeat(s, size, 512)), 8),
            "trace, written": lambda i: bench.alone(numbered(5, 4, i, lambda s: trace(s, size)), 8),
            "kv hard": lambda i: bench.alone(numbered(4, 4, i, lambda s: key_value(s, size, True)), 8)}
    if name == "prover":
        made["trace, direct 2"] = lambda i: bench.alone(numbered(7, 4, i, lambda s: trace_direct(s, size, 2)), 8)
    return made


def added(sums: dict[str, E.Score], more: dict[str, E.Score]) -> None:
    for plan, score in more.items():
        own = sums.setdefault(plan, E.Score())
        for field in dataclasses.fields(score):
            setattr(own, field.name, getattr(own, field.name) + getattr(score, field.name))


def run_rounds(bench: E.Bench, args: argparse.Namespace, study: str, start: float) -> None:
    """Rounds of all tasks, until their seconds are over; the record is written after each task."""
    name, channels = args.weights.stem, bench.model.shape.head_dim
    device = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    sums: dict[str, dict[str, E.Score]] = {}
    rows: list[dict] = []
    with torch.inference_mode():
        for i in range(args.rounds):
            for task, run in tasks(bench, name).items():
                if time.time() - start > args.seconds:
                    continue
                began = time.time()
                added(sums.setdefault(task, {}), run(i))
                rows = [{"plan": plan.name, "bits_per_value": plan.bits(channels),
                         "tasks": [{"task": task, "questions": scores[plan.name].items, "exact_match_percent": scores[plan.name].report()["percent"],
                                    "bits_per_byte": scores[plan.name].report()["bits_per_byte"]} for task, scores in sums.items()]} for plan in bench.plans]
                made = {"device": f"{device}, PyTorch {torch.__version__}", "size": args.size, "items": args.items, "rows": rows}
                args.json.write_text(json.dumps({"study": study, "models": {name: made}}, indent=1) + "\n")
                print(f"{name}: round {i}, {task}: {time.time() - began:.1f} s, {time.time() - start:.0f} s in all", flush=True)
    for row in rows:
        print(f"  {row['plan']:44s} {row['bits_per_value']:.3f}", *(f"{t['exact_match_percent']:6.1f} {t['bits_per_byte']:.4f}" for t in row["tasks"]))


def study_arguments(about: str | None, rounds: int) -> argparse.ArgumentParser:
    """What run_rounds() and those who call it take."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("weights", type=pathlib.Path)
    parser.add_argument("--corpus", type=pathlib.Path, default=HERE / "corpus.zip")
    parser.add_argument("--size", type=int, default=4096, help="context in tokens")
    parser.add_argument("--items", type=int, default=0, help="another number draws other items")
    parser.add_argument("--rounds", type=int, default=rounds, help="8 lists, and 32 questions of each other task, a round")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no task after so many")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    return parser


def main() -> None:
    parser = study_arguments(__doc__, 4)
    parser.add_argument("--only", nargs="*", help="names of plans")
    parser.add_argument("--plans", nargs="*", type=pathlib.Path, help="plan files, instead of the plans here")
    parser.add_argument("--cores", action="store_true", help="the plans of cores(), instead of the plans here")
    args = parser.parse_args()
    start = time.time()
    model = weights.load(args.weights, args.device)
    made = cores(model.shape) if args.cores else {} if args.plans else candidates(model.shape)
    plans = [*map(written, args.plans or []), *(layered(name, model.shape, widths) for name, widths in made.items())]
    plans = [plan for plan in plans if not args.only or plan.name in args.only]
    bench = E.Bench(model, Corpus(args.corpus, "held"), args.device, args.size, args.items, [Layered("fp16"), *plans])
    run_rounds(bench, args, "layers", start)


if __name__ == "__main__":
    main()
