# SPDX-License-Identifier: Apache-2.0
"""What rotation and widths do to packed caches without calibration: the tasks of evaluate.py under plans whose keys and values are Hadamard
rotated, keys divided by their norms, and groups given other levels than their minimum to maximum (docs/lab/results.md).

A rotation is orthogonal, so a cache that rotates what it stores, queries and outputs answers as one that rotates keys and values back,
which is what is done here. Each plan has its bits per value, ranges and minima included.
"""
from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import time

import torch
from torch import Tensor

import evaluate as E
import weights
from data import HERE, Corpus

UNIFORM = {1: 0.7979, 2: 1.4935, 3: 2.0510, 4: 2.5140}  # standard deviations from the mean to the last of 2^bits evenly spaced levels, best for normal values
LLOYD_MAX = {1: (0.7979,), 2: (0.4528, 1.5104), 3: (0.2451, 0.7560, 1.3439, 2.1519), 4: (0.1284, 0.3880, 0.6568, 0.9423, 1.2562, 1.6180, 2.0690, 2.7326)}
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # of its range that a group may keep
FP8 = [c for c in torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fnuz).float().tolist() if c == c]


def hadamard(x: Tensor, block: int) -> Tensor:
    """x times the orthogonal Hadamard matrix in blocks of channels; its own inverse."""
    matrix = torch.ones(1, 1, device=x.device)
    while len(matrix) < block:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return (x.unflatten(-1, (-1, block)) @ (matrix * block ** -0.5)).flatten(-2)


@functools.lru_cache
def fp8_table(device: torch.device) -> Tensor:
    return torch.tensor(sorted(FP8), device=device)


def fp8(x: Tensor, up: bool) -> Tensor:
    """The next e4m3fnuz number at or above x, or at or below it."""
    table = fp8_table(x.device)
    index = torch.searchsorted(table, x.contiguous(), right=not up) - (0 if up else 1)
    return table[index.clamp(0, len(table) - 1)]


def even(x: Tensor, low: Tensor, high: Tensor, top: Tensor | float, f8: bool) -> Tensor:
    minimum = fp8(low, False) if f8 else low.half().float()
    span = fp8(high - minimum, True) if f8 else (high - minimum).half().float()
    scale = (span / top).clamp_min(1e-8)
    codes = torch.minimum(((x - minimum) / scale + 0.5).floor().clamp_min(0), torch.as_tensor(top, device=x.device, dtype=x.dtype))
    return codes * scale + minimum


def packed(x: Tensor, bits: int, dim: int, levels: str, f8: bool, top: Tensor | float | None = None) -> Tensor:
    """x as groups along dim store it; `top` has the last code of each group where widths differ."""
    top = 2.0 ** bits - 1 if top is None else top
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    if levels == "range":
        return even(x, low, high, top, f8)
    if levels.startswith("clip"):
        cut = (high - low) * (1 - float(levels[4:])) / 2
        return even(x, low + cut, high - cut, top, f8)
    if levels == "search":
        best, least = None, None
        for share in SHARES:
            cut = (high - low) * (1 - share) / 2
            made = even(x, low + cut, high - cut, top, f8)
            error = (made - x).square().sum(dim, keepdim=True)
            best, least = (made, error) if best is None else (torch.where(error < least, made, best), torch.minimum(error, least))
        return best
    mean, deviation = x.mean(dim, keepdim=True), x.std(dim, keepdim=True, correction=0)
    if levels == "uniform":
        reach = torch.as_tensor([UNIFORM[2], UNIFORM[4]], device=x.device)[(top > 3).long()] if isinstance(top, Tensor) else UNIFORM[bits]
        return even(x, mean - reach * deviation, mean + reach * deviation, top, f8)
    half = torch.tensor(LLOYD_MAX[bits], device=x.device)
    steps = torch.cat((-half.flip(0), half))
    mean, deviation = mean.half().float(), deviation.half().float()
    codes = torch.bucketize((x - mean) / deviation.clamp_min(1e-8), (steps[1:] + steps[:-1]) / 2)
    return steps[codes] * deviation + mean


@dataclasses.dataclass(frozen=True)
class Rotated(E.Plan):
    """Blocks of 0 channels are not rotated. Groups of values, and of keys with `token`, are of so many channels; other keys have one a channel and page."""

    k_block: int = 0
    v_block: int = 0
    token: bool = False
    norm: bool = False
    group: int = 128
    k_levels: str = "range"
    v_levels: str = "range"
    f8: bool = False

    def keys(self, k: Tensor) -> Tensor:
        x = k.float()
        if self.k_block:
            x = hadamard(x, min(self.k_block, x.shape[-1]))
        size = x.norm(dim=-1, keepdim=True).half().float() if self.norm else 1.0
        x = x / size
        if self.token:
            x = packed(x.unflatten(-1, (-1, min(self.group, x.shape[-1]))), self.k_bits, -1, self.k_levels, self.f8).flatten(-2)
        else:
            pages = x.unflatten(2, (-1, E.PAGE))
            top = E.boosted(pages, self.boost, 2.0 ** self.k_bits - 1, 15.0) if self.boost else None
            x = packed(pages, self.k_bits, 3, self.k_levels, self.f8, top).flatten(2, 3)
        x = x * size
        return (hadamard(x, min(self.k_block, x.shape[-1])) if self.k_block else x).half()

    def values(self, v: Tensor) -> Tensor:
        x = v.float()
        if self.v_block:
            x = hadamard(x, min(self.v_block, x.shape[-1]))
        x = packed(x.unflatten(-1, (-1, min(self.group, x.shape[-1]))), self.v_bits, -1, self.v_levels, self.f8).flatten(-2)
        return (hadamard(x, min(self.v_block, x.shape[-1])) if self.v_block else x).half()

    def bits(self, channels: int) -> float:
        """Per value, mean of keys and values; a norm is FP16."""
        if self.k_bits == 16:
            return 16
        parameters = 16 if self.f8 else 32
        of_values = self.v_bits + parameters / min(self.group, channels)
        keys = self.k_bits + self.boost * (4 - self.k_bits) + (8 / E.PAGE if self.boost else 0)
        keys += parameters / (min(self.group, channels) if self.token else E.PAGE) + (16 / channels if self.norm else 0)
        return (keys + of_values) / 2


ALL = 1 << 30
Options = dict[str, dict[str, object]]
KEYS: Options = {  # under values of 2 bits
    "K 2": {}, "K 2, rotated": {"k_block": ALL}, "K 2, rotated by 32": {"k_block": 32}, "K 2, rotated, norms": {"k_block": ALL, "norm": True},
    "K 2, norms": {"norm": True}, "K 2, rotated, uniform": {"k_block": ALL, "k_levels": "uniform"}, "K 2, least error": {"k_levels": "search"},
    "K 2 and 1/8 4": {"boost": 0.125}, "K 2 and 1/4 4": {"boost": 0.25}, "K 2 and 1/4 4, rotated": {"boost": 0.25, "k_block": ALL},
    "K 2 and 1/4 4, rotated by 32": {"boost": 0.25, "k_block": 32},
    "K 2 per token": {"token": True}, "K 2 per token, rotated": {"token": True, "k_block": ALL},
    "K 2 per token, rotated, uniform": {"token": True, "k_block": ALL, "k_levels": "uniform"},
    "K 2 per token, rotated, Lloyd-Max": {"token": True, "k_block": ALL, "k_levels": "lloyd"},
}
VALUES: Options = {  # under the keys of KIVI and of kitty-pro
    "V 2, rotated": {"v_block": ALL}, "V 2, rotated, uniform": {"v_block": ALL, "v_levels": "uniform"},
    "V 2, rotated, Lloyd-Max": {"v_block": ALL, "v_levels": "lloyd"},
    "V 2, rotated, least error": {"v_block": ALL, "v_levels": "search"}, "V 2, uniform": {"v_levels": "uniform"}, "V 2, clip 0.7": {"v_levels": "clip0.7"},
    "V 2, least error": {"v_levels": "search"},
}
ONE_BIT: Options = {"V 1": {"v_bits": 1, "v_levels": "uniform"}, "V 1, rotated": {"v_bits": 1, "v_levels": "uniform", "v_block": ALL}}
NARROW: Options = {"K 2": {}, "K 2 and 1/8 4": {"boost": 0.125}, "K 2 and 1/4 4": {"boost": 0.25}, "K 2 and 1/2 4": {"boost": 0.5}, "K 3": {"k_bits": 3},
                   "K 4": {"k_bits": 4}}
ROTATED: Options = {"K 2, rotated": {"k_block": ALL}, "K 2 and 1/2 4, rotated": {"boost": 0.5, "k_block": ALL}, "K 3, rotated": {"k_bits": 3, "k_block": ALL},
                    "K 3, rotated by 32": {"k_bits": 3, "k_block": 32}}


def make(keys: str, values: str, options: dict[str, object]) -> Rotated:
    return Rotated(f"{keys}; {values}", **({"k_bits": 2, "v_bits": 2, "sinks": 32} | options))  # type: ignore[arg-type]


def rotations() -> list[Rotated]:
    made = [make(keys, "V 2", own) for keys, own in KEYS.items()]
    made += [make(keys, values, KEYS[keys] | own) for keys in ("K 2", "K 2 and 1/4 4") for values, own in VALUES.items()]
    made += [make(keys, values, wide | own) for keys, wide in NARROW.items() for values, own in ONE_BIT.items()]
    made += [make(keys, "V 1, rotated", own | ONE_BIT["V 1, rotated"]) for keys, own in ROTATED.items()]
    both = {"k_block": ALL, "v_block": ALL}
    made += [make("K 2", "V 2, FP8", {"f8": True}), make("K 2", "V 2, rotated, uniform, FP8", VALUES["V 2, rotated, uniform"] | {"f8": True}),
             make("K 2 and 1/2 4", "V 1, FP8", {"boost": 0.5, "f8": True} | ONE_BIT["V 1"]),
             make("K 2 and 1/2 4", "V 1, rotated, FP8", {"boost": 0.5, "f8": True} | ONE_BIT["V 1, rotated"])]
    made += [make("K 2, rotated", "V 2, rotated", both), make("K 2, rotated, norms", "V 2, rotated", both | {"norm": True}),
             make("K 2 per token, rotated, uniform", "V 2, rotated, uniform", both | {"token": True, "k_levels": "uniform", "v_levels": "uniform"})]
    return made


def widths() -> list[Rotated]:
    """Without rotation: shares of channels at 4 bits under values of 1 and 2 bits, groups of values, FP16 and FP8 numbers."""
    eighths = {eighth: ("K 2" if not eighth else f"K 2 and {eighth}/8 4", {"boost": eighth / 8}) for eighth in range(7)}
    one, by_64, by_32 = ONE_BIT["V 1"], {"group": 64}, {"group": 32}
    made = [make(keys, "V 1", own | one) for eighth, (keys, own) in eighths.items() if eighth > 1]
    made += [make(keys, "V 2", own) for eighth, (keys, own) in eighths.items() if eighth < 4]
    made += [make(eighths[eighth][0], "V 1, FP8", eighths[eighth][1] | one | {"f8": True}) for eighth in (3, 4, 6)]
    made += [make(eighths[4][0], "V 1 by 64, FP8", eighths[4][1] | one | by_64 | {"f8": True}),
             make(eighths[4][0], "V 1 by 32, FP8", eighths[4][1] | one | by_32 | {"f8": True}),
             make(eighths[4][0], "V 1 by 64", eighths[4][1] | one | by_64)]
    made += [make(eighths[eighth][0], "V 2, FP8", eighths[eighth][1] | {"f8": True}) for eighth in (2, 3)]
    return [*made, make("K 3", "V 1", {"k_bits": 3} | one)]


SETS = {"rotation": rotations, "widths": widths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=pathlib.Path, nargs="+")
    parser.add_argument("--corpus", type=pathlib.Path, default=HERE / "corpus.zip")
    parser.add_argument("--size", type=int, default=4096, help="context in tokens")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of items")
    parser.add_argument("--items", type=int, default=0, help="another number draws other items")
    parser.add_argument("--plans", choices=SETS, default="rotation")
    parser.add_argument("--only", nargs="*", default=["needle", "kv hard", "trace, written"], help="names of cells")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=pathlib.Path, required=True)
    args = parser.parse_args()
    device = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    record: dict = {"study": args.plans, "models": {}}
    for path in args.weights:
        start = time.time()
        model = weights.load(path, args.device)
        bench = E.Bench(model, Corpus(args.corpus, "held"), args.device, args.size, args.items, [Rotated("fp16"), *SETS[args.plans]()])
        made: dict = {"device": f"{device}, PyTorch {torch.__version__}", "size": args.size, "items": args.items,
                      "rows": [{"plan": plan.name, "bits_per_value": plan.bits(model.shape.head_dim), "tasks": []} for plan in bench.plans]}
        record["models"][path.stem] = made
        for task in args.only:
            with torch.inference_mode():
                scores = E.cells(bench, args.scale)[task]()
            for row in made["rows"]:
                score = scores[row["plan"]].report()
                row["tasks"].append({"task": task, "questions": score["items"], "exact_match_percent": score["percent"], "bits_per_byte": score["bits_per_byte"]})
            args.json.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{path.stem}: {time.time() - start:.1f} s", flush=True)
        for row in made["rows"]:
            print(f"  {row['plan']:50s} {row['bits_per_value']:.3f}", *(f"{t['exact_match_percent']:6.1f} {t['bits_per_byte']:.4f}" for t in row["tasks"]))


if __name__ == "__main__":
    main()
