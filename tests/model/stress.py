# SPDX-License-Identifier: Apache-2.0
"""Rotated keys on the keys of `lowkey-lab stress`, which training of a small model does not make: outliers, biases, constant channels and a massive
first token, in the shapes of three models. Errors of attention's output against an FP16 cache, in percent (docs/lab/results.md).
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib

import torch
from torch import Tensor

import covariance as C
import evaluate as E
import layers as L
from rotation import ALL, Rotated

CONTEXT, QUERIES, CALIBRATION = 1024, 16, 512  # tokens
DEVIATION, FOUND, SINK = 2.0, 9.0, 10.0  # of a logit, the logit of what a query looks for, the length of the first key
SHAPES = {"Qwen2.5-7B": (28, 4, 128, 1e6, False), "Llama-3.1-8B": (32, 8, 128, 5e5, False), "gpt-oss-20B": (64, 8, 64, 1.5e5, True)}


@dataclasses.dataclass(frozen=True)
class Scenario:
    outliers: bool = False
    bias: float = 0.0
    constants: bool = False
    sink: bool = False


SCENARIOS = {"plain": Scenario(), "outliers": Scenario(outliers=True), "bias": Scenario(bias=40.0), "constant": Scenario(constants=True),
             "sink": Scenario(sink=True), "all": Scenario(True, 40.0, True, True)}


def turned(x: Tensor, theta: float, positions: Tensor) -> Tensor:
    """RoPE of x [..., D] at positions, which lead x or are one for each row."""
    half = x.shape[-1] // 2
    angle = positions[..., None] * theta ** (-2.0 * torch.arange(half) / x.shape[-1])
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


class Layer:
    """Heads that are fixed by the generator's first numbers; make() draws tokens."""

    def __init__(self, shape: tuple[int, int, int, float, bool], kind: Scenario, random: torch.Generator) -> None:
        self.heads, self.kv_heads, self.dim, self.theta, _ = shape
        self.kind, self.random = kind, random
        pair = torch.arange(self.dim) % (self.dim // 2)
        size = (self.kv_heads, self.dim)
        self.mean, self.deviation, self.scale = torch.zeros(size), torch.ones(size), torch.ones(size)
        if kind.constants:
            where = (pair % 2 == 1) & (pair >= self.dim // 4)
            self.mean[:, where] = self.normal(size)[:, where] * 6
            self.deviation[:, where] = 0.02
        self.mean = self.mean + self.normal(size).sign() * kind.bias * (pair + self.dim // 16 >= self.dim // 2)
        if kind.outliers:
            where = pair % 16 == 3
            for own, factor in ((self.mean, 12.0), (self.deviation, 12.0), (self.scale, 1 / 12.0)):
                own[:, where] *= factor
        self.sink = self.normal(size) * kind.sink

    def normal(self, size: tuple[int, ...]) -> Tensor:
        return torch.randn(size, generator=self.random)

    def make(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """q [heads, n, D], k and v [kv_heads, n, D]; each query looks for one token before it."""
        at, size = torch.arange(n), (self.kv_heads, n, self.dim)
        noise, v = self.normal(size), self.normal(size)
        if self.kind.sink:
            noise[:, 0], v[:, 0] = SINK * self.sink, v[:, 0] * 0.01
        k = turned(self.mean[:, None] + self.deviation[:, None] * noise, self.theta, at)
        target = (torch.rand((self.heads, n), generator=self.random) * (at + 1)).long()
        group = torch.arange(self.heads) // (self.heads // self.kv_heads)
        wanted = (k[group[:, None], target] - turned(self.mean[group][:, None].expand(-1, n, -1), self.theta, target)) * self.scale[group][:, None]
        found = FOUND / self.dim ** 0.5 * torch.where((target == 0) & self.kind.sink, 0.0, 1.0)[..., None]
        q = DEVIATION * self.normal((self.heads, n, self.dim)) + found * wanted + FOUND / self.dim ** 0.5 / SINK * self.sink[group][:, None]
        return q * self.scale[group][:, None], k, v


def attended(q: Tensor, k: Tensor, v: Tensor, learned: bool) -> Tensor:
    """The last tokens' outputs; a learned sink is a logit of 1.5."""
    own = q.unflatten(0, (k.shape[0], -1))[:, :, -QUERIES:]
    score = own @ k[:, None].mT * q.shape[-1] ** -0.5
    later = torch.arange(k.shape[1]) > torch.arange(k.shape[1] - QUERIES, k.shape[1])[:, None]
    score = score.masked_fill(later, -torch.inf)
    if learned:
        return torch.cat((score, torch.full_like(score[..., :1], 1.5)), -1).softmax(-1)[..., :-1] @ v[:, None]
    return score.softmax(-1) @ v[:, None]


def plans(samples: tuple[Tensor, Tensor, Tensor]) -> dict[str, E.Plan]:
    sixteen = {"sinks": 32}
    made: dict[str, E.Plan] = {}
    for keys, own in (("K 2", {}), ("K 2 and 1/4 4", {"boost": 0.25})):
        for name, more in (("", {}), (", rotated", {"k_block": ALL}), (", rotated by 32", {"k_block": 32}), (", norms", {"norm": True}),
                           (", rotated, norms", {"k_block": ALL, "norm": True})):
            made[keys + name] = Rotated(keys + name, 2, 2, **(sixteen | own | more))  # type: ignore[arg-type]
    for name, more in (("", {}), (", rotated", {"k_block": ALL}), (", rotated, Lloyd-Max", {"k_block": ALL, "k_levels": "lloyd"})):
        made["K 2 per token" + name] = Rotated(name, 2, 2, token=True, **(sixteen | more))  # type: ignore[arg-type]
    q, k, _ = samples
    center = k.mean(1, keepdim=True)
    grouped, flat = q.unflatten(0, (k.shape[0], -1)).flatten(1, 2), k - center
    own = C.Moments(center, flat.mT @ flat / flat.shape[1], grouped.mT @ grouped / grouped.shape[1], flat)
    for kind in ("channels", "Hadamard", "queries", "both"):
        made[f"K 2 and 1/4 4 by statistics; {kind}"] = C.Based(kind, 2, 2, sinks=32, kind=kind, wide=0.25).of(own)
    return made


def errors(shape: tuple[int, int, int, float, bool], kind: Scenario, seed: int) -> dict[str, float]:
    layer = Layer(shape, kind, torch.Generator().manual_seed(seed))
    samples = layer.make(CALIBRATION)
    q, k, v = (x.half().float() for x in layer.make(CONTEXT + QUERIES))
    exact, found = attended(q, k, v, shape[4]), {}
    for name, plan in plans(samples).items():
        old, last = (k[None, :, :CONTEXT], v[None, :, :CONTEXT]), (k[None, :, CONTEXT:], v[None, :, CONTEXT:])
        (aged_k, aged_v), = E.aged_cache([old], plan)
        out = attended(q, torch.cat((aged_k.float(), last[0]), 2)[0], torch.cat((aged_v.float(), last[1]), 2)[0], shape[4])
        found[name] = 100 * float((out - exact).norm() / exact.norm())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, required=True)
    args = parser.parse_args()
    rows: dict[str, dict[str, list[float]]] = {}
    for shape in SHAPES.values():
        for name, kind in SCENARIOS.items():
            for plan, error in errors(shape, kind, args.seed).items():
                rows.setdefault(plan, {}).setdefault(name, []).append(error)
    made = [{"plan": plan, "error_percent": {name: sum(own) / len(own) for name, own in by.items()}} for plan, by in rows.items()]
    args.json.write_text(json.dumps({"study": "stress-rotation", "shapes": list(SHAPES), "seed": args.seed, "rows": made}, indent=1) + "\n")
    for row in made:
        print(f"{row['plan']:42s}", *(f"{name} {error:6.1f}" for name, error in row["error_percent"].items()))


if __name__ == "__main__":
    main()
