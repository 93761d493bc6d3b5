# SPDX-License-Identifier: Apache-2.0
"""The proving models: decoders over bytes in the arithmetic of four families, with each layer split at attention.

Attention and MLP of a layer take a flat list of tokens, so that one compiled graph serves every sequence length.
"""
from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLAMP, ALPHA = 7.0, 1.702  # gpt-oss's activation


@dataclasses.dataclass(frozen=True)
class Shape:
    family: str = "qwen2"
    vocab: int = 256
    width: int = 256
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    hidden: int = 768
    eps: float = 1e-6
    theta: float = 1e5
    window_theta: float = 0.0  # of layers with a window, 0 = theta
    window: int = 0
    full_every: int = 1  # the last of so many layers has no window
    softcap: float = 0.0

    @property
    def biased(self) -> str:
        return {"qwen2": "qk", "gpt_oss": "qkvo"}.get(self.family, "")

    @property
    def qk_norm(self) -> bool:
        return self.family in ("qwen3", "gemma3_text")

    @property
    def gemma(self) -> bool:
        """Norms multiply by 1 + weight, branches end in a norm, embeddings are scaled and are the head too."""
        return self.family == "gemma3_text"

    @property
    def sinks(self) -> bool:
        return self.family == "gpt_oss"

    @property
    def scale(self) -> float:
        return self.head_dim ** -0.5

    def window_of(self, layer: int) -> int:
        return 0 if (layer + 1) % self.full_every == 0 else self.window

    def theta_of(self, layer: int) -> float:
        return self.window_theta if self.window_of(layer) and self.window_theta else self.theta


SHAPES = {
    "prover": Shape(),
    "gpt-oss": Shape("gpt_oss", heads=16, head_dim=64, hidden=512, eps=1e-5, window=512, full_every=2),
    "gemma": Shape("gemma3_text", layers=12, heads=2, kv_heads=1, head_dim=256, hidden=512, window_theta=1e4, window=512, full_every=6, softcap=50.0),
    "qwen3": Shape("qwen3", layers=16, kv_heads=1, hidden=384),
}


class Norm(nn.Module):
    def __init__(self, size: int, initial: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), initial))


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        inner, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.q_proj = nn.Linear(s.width, inner, bias="q" in s.biased)
        self.k_proj = nn.Linear(s.width, kv, bias="k" in s.biased)
        self.v_proj = nn.Linear(s.width, kv, bias="v" in s.biased)
        self.o_proj = nn.Linear(inner, s.width, bias="o" in s.biased)
        if s.qk_norm:
            self.q_norm = Norm(s.head_dim, 0.0 if s.gemma else 1.0)
            self.k_norm = Norm(s.head_dim, 0.0 if s.gemma else 1.0)
        if s.sinks:
            self.sinks = nn.Parameter(torch.zeros(s.heads))


class Mlp(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        bias = s.family == "gpt_oss"
        self.gate_proj = nn.Linear(s.width, s.hidden, bias=bias)
        self.up_proj = nn.Linear(s.width, s.hidden, bias=bias)
        self.down_proj = nn.Linear(s.hidden, s.width, bias=bias)


class Layer(nn.Module):
    """A branch of Gemma starts near a fifth of a norm's size, so that the sum over layers starts near 1."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        one = 0.0 if s.gemma else 1.0
        self.input_layernorm = Norm(s.width, one)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = Norm(s.width, -0.8 if s.gemma else 1.0)
        if s.gemma:
            self.pre_feedforward_layernorm = Norm(s.width, 0.0)
            self.post_feedforward_layernorm = Norm(s.width, -0.8)
        self.mlp = Mlp(s)


class Body(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab, s.width)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = Norm(s.width, 0.0 if s.gemma else 1.0)


class Prover(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.shape = s
        self.model = Body(s)
        if not s.gemma:
            self.lm_head = nn.Linear(s.width, s.vocab, bias=False)

    @property
    def head(self) -> Tensor:
        return self.model.embed_tokens.weight if self.shape.gemma else self.lm_head.weight

    def embed(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.model.embed_tokens.weight)
        return x * self.shape.width ** 0.5 if self.shape.gemma else x

    def layer_weights(self) -> list[dict[str, Tensor]]:
        return [dict(layer.named_parameters()) for layer in self.model.layers]


def initialise(model: Prover) -> None:
    """Norms and sinks start as constructed."""
    out_std = 0.04 / (2 * model.shape.layers) ** 0.5
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(p)
        elif p.ndim == 2:
            nn.init.normal_(p, std=out_std if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.04)


def rope_table(positions: Tensor, s: Shape, theta: float) -> tuple[Tensor, Tensor]:
    half = s.head_dim // 2
    frequency = theta ** (-torch.arange(half, device=positions.device, dtype=torch.float64) / half)
    angle = positions.to(torch.float64)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [tokens, heads, head_dim]; pairs are (i, i + head_dim / 2)."""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def norm(s: Shape, x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + s.eps) * (1 + weight if s.gemma else weight)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


Weights = dict[str, Tensor]


def project(w: Weights, name: str, x: Tensor) -> Tensor:
    return linear(x, w[name + ".weight"], w.get(name + ".bias"))


def before_attention(s: Shape, x: Tensor, w: Weights, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    y = norm(s, x, w["input_layernorm.weight"]).to(dtype)
    q, k, v = (project(w, f"self_attn.{part}_proj", y).view(len(x), -1, s.head_dim) for part in "qkv")
    if s.qk_norm:
        q, k = (norm(s, t.float(), w[f"self_attn.{part}_norm.weight"]).to(dtype) for part, t in (("q", q), ("k", k)))
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def activation(s: Shape, gate: Tensor, up: Tensor) -> Tensor:
    if s.family == "gpt_oss":
        gate = gate.clamp(max=CLAMP)
        return gate * torch.sigmoid(ALPHA * gate) * (up.clamp(-CLAMP, CLAMP) + 1)
    return (F.gelu(gate, approximate="tanh") if s.gemma else F.silu(gate)) * up


def after_attention(s: Shape, x: Tensor, heads: Tensor, w: Weights) -> Tensor:
    """heads [tokens, heads, head_dim]."""
    out = project(w, "self_attn.o_proj", heads.flatten(1)).float()
    after, before = ("post_attention_layernorm", "pre_feedforward_layernorm") if s.gemma else (None, "post_attention_layernorm")
    x = x + (norm(s, out, w[after + ".weight"]) if after else out)
    y = norm(s, x, w[before + ".weight"]).to(heads.dtype)
    out = project(w, "mlp.down_proj", activation(s, project(w, "mlp.gate_proj", y), project(w, "mlp.up_proj", y))).float()
    return x + (norm(s, out, w["post_feedforward_layernorm.weight"]) if s.gemma else out)


def logits(s: Shape, x: Tensor, ln: Tensor, head: Tensor, dtype: torch.dtype) -> Tensor:
    return linear(norm(s, x, ln).to(dtype), head)
