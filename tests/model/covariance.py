# SPDX-License-Identifier: Apache-2.0
"""Bases of keys made from the covariance of queries (OSCAR), next to clips and centers at equal bytes: the tasks of layers.py under keys that are
multiplied by a matrix before they are packed and by its inverse afterwards (docs/lab/results.md).

Statistics come from running text of the training part, which resembles no task. A cache that multiplies queries by the inverse, transposed, answers so.
"""
from __future__ import annotations

import dataclasses
import time

import torch
from torch import Tensor

import evaluate as E
import layers as L
import model as M
import weights
from data import Corpus
from rotation import hadamard

TEXTS, TOKENS = 8, 2048  # of the statistics
DAMPING = 1e-3  # of the mean variance of queries, where a matrix is inverted


@dataclasses.dataclass(frozen=True)
class Moments:
    """Of one layer, [kv_heads, ...]: the mean of keys, the covariance of keys, the second moments of queries."""

    center: Tensor
    keys: Tensor
    queries: Tensor
    samples: Tensor  # keys without their mean


def moments(model: M.Prover, tokens: Tensor) -> list[Moments]:
    """A causal pass over tokens [rows, length]; keys and queries are after RoPE."""
    s = model.shape
    rows, length = tokens.shape
    positions, x, made = torch.arange(length, device=tokens.device).repeat(rows), model.embed(tokens.reshape(-1)), []
    for i, own in enumerate(model.layer_weights()):
        q, k, v = M.before_attention(s, x, own, *M.rope_table(positions, s, s.theta_of(i)), torch.float32)
        q, k, v = (t.view(rows, length, -1, s.head_dim).transpose(1, 2) for t in (q, k, v))
        heads = E.attention(s, q, k, v, s.window_of(i), own.get("self_attn.sinks"))
        flat = k.transpose(0, 1).flatten(1, 2)
        center = flat.mean(1, keepdim=True)
        grouped = q.unflatten(1, (s.kv_heads, -1)).transpose(0, 1).flatten(1, 3)
        made.append(Moments(center, (flat - center).mT @ (flat - center) / flat.shape[1], grouped.mT @ grouped / grouped.shape[1], flat - center))
        x = M.after_attention(s, x, heads.transpose(1, 2).reshape(-1, s.heads, s.head_dim), own)
    return made


def root(covariance: Tensor) -> Tensor:
    """The symmetric square root, damped."""
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp_min(0) + DAMPING * values.mean(-1, keepdim=True)
    return vectors * values.sqrt()[..., None, :] @ vectors.mT


def basis(kind: str, own: Moments) -> Tensor:
    """[kv_heads, D, D]: what rows of keys are multiplied by."""
    whole = torch.eye(own.keys.shape[-1], device=own.keys.device).expand_as(own.keys)
    if kind == "channels":
        return whole
    if kind == "Hadamard":
        return hadamard(whole, whole.shape[-1])
    if kind.startswith("queries"):
        made = torch.linalg.eigh(own.queries)[1]
    elif kind.startswith("whitened"):
        made = root(own.queries)
    else:  # both: the logits' variance falls on as few channels as can be
        half = root(own.queries)
        made = half @ torch.linalg.eigh(half @ own.keys @ half)[1]
    return hadamard(made, made.shape[-1]) if kind.endswith("Hadamard") else made


@dataclasses.dataclass(frozen=True, eq=False)
class Based(E.Plan):
    """Keys of one layer in a basis: the share `wide` of its channels at 4 bits, by their part in the error of a logit; values at 2 bits with a clip."""

    kind: str = "channels"
    wide: float = 0.0
    clip: float = 1.0
    token: bool = False
    centered: bool = True
    center: Tensor | None = None
    made: Tensor | None = None
    back: Tensor | None = None
    chosen: Tensor | None = None  # the channels at 4 bits

    def of(self, own: Moments) -> Based:
        made = basis(self.kind, own)
        back = torch.linalg.inv(made)
        keys = own.samples @ made
        weight = torch.diagonal(back @ own.queries @ back.mT, dim1=-2, dim2=-1) * (keys.amax(1) - keys.amin(1)).square()
        chosen = torch.zeros_like(weight).scatter(-1, weight.topk(round(self.wide * weight.shape[-1]), -1).indices, 1)[:, None, None, :] > 0
        return dataclasses.replace(self, center=own.center * self.centered, made=made, back=back, chosen=chosen)

    def keys(self, k: Tensor) -> Tensor:
        x = (k.float() - self.center) @ self.made
        if self.token:
            packed = L.narrowed(x, -1, 2, self.clip, True)
        else:
            pages = x.unflatten(2, (-1, E.PAGE))
            packed = L.narrowed(pages, 3, 2, self.clip, True)
            packed = torch.where(self.chosen, L.narrowed(pages, 3, 4, 1.0, True), packed).flatten(2, 3)
        return (packed @ self.back + self.center).half()

    def values(self, v: Tensor) -> Tensor:
        return L.narrowed(v.float(), -1, 2, 0.7, True).half()


@dataclasses.dataclass(frozen=True)
class Whole(E.Plan):
    layers: tuple[Based, ...] = ()
    wide: float = 0.0
    token: bool = False

    def of_layer(self, layer: int) -> Based:
        return self.layers[layer]

    def bits(self, channels: int) -> float:
        return (2 + 2 * self.wide + 16 / (channels if self.token else E.PAGE) + 2 + 16 / channels) / 2 if self.layers else 16


def plans(found: list[Moments]) -> list[Whole]:
    made = []
    for wide, share in ((0.0, ""), (0.25, " and 1/4 4"), (0.375, " and 3/8 4")):
        for clip in (1.0, 0.85):
            options = [("channels", False, False), ("channels", False, True), ("Hadamard", False, True), ("queries", False, True), ("queries, Hadamard", False, True),
                       ("both", False, True)]
            if not wide:
                options += [("Hadamard", True, True), ("queries, Hadamard", True, True), ("whitened, Hadamard", True, True)]
            for kind, token, centered in options:
                own = Based("", 2, 2, sinks=L.SINKS, kind=kind, wide=wide, clip=clip, token=token, centered=centered)
                name = f"K 2{share}{f', clip {clip}' if clip < 1 else ''}; {kind}{'' if centered else ', no centers'}{', per token' if token else ''}"
                made.append(Whole(name, 2, 2, sinks=L.SINKS, layers=tuple(own.of(one) for one in found), wide=wide, token=token))
    return made


def main() -> None:
    parser = L.study_arguments(__doc__, 1)
    parser.add_argument("--part", default="train", help="of the corpus, that the statistics are of")
    args = parser.parse_args()
    start, model = time.time(), weights.load(args.weights, args.device)
    texts = Corpus(args.corpus, args.part).texts
    rows = [b"\0" + texts[i % len(texts)][i * (TOKENS + 1):][:TOKENS - 1] for i in range(TEXTS)]
    with torch.inference_mode():
        made = plans(moments(model, E.tensor(rows, args.device)))
        bench = E.Bench(model, Corpus(args.corpus, "held"), args.device, args.size, args.items, [Whole("fp16"), *made])
        L.run_rounds(bench, args, "covariance", start)


if __name__ == "__main__":
    main()
