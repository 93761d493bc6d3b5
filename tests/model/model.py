"""The proving model: a Qwen2-form decoder over bytes, with the layer split at attention.

Attention and MLP of a layer take a flat list of tokens, so that one compiled graph serves every sequence length.
"""
from __future__ import annotations

import dataclasses
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Shape:
    vocab: int = 256
    width: int = 256
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    hidden: int = 768
    eps: float = 1e-6
    theta: float = 1e5


SHAPE = Shape()


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.q_proj = nn.Linear(s.width, s.heads * s.head_dim, bias=True)
        self.k_proj = nn.Linear(s.width, s.kv_heads * s.head_dim, bias=True)
        self.v_proj = nn.Linear(s.width, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.width, bias=False)


class Mlp(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(s.width, s.hidden, bias=False)
        self.up_proj = nn.Linear(s.width, s.hidden, bias=False)
        self.down_proj = nn.Linear(s.hidden, s.width, bias=False)


class Layer(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(s.width, s.eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = nn.RMSNorm(s.width, s.eps)
        self.mlp = Mlp(s)


class Body(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab, s.width)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.width, s.eps)


class Prover(nn.Module):
    """Module names give the tensor names of the weight file."""

    def __init__(self, s: Shape = SHAPE) -> None:
        super().__init__()
        self.shape = s
        self.model = Body(s)
        self.lm_head = nn.Linear(s.width, s.vocab, bias=False)


def initialise(model: Prover) -> None:
    out_std = 0.04 / (2 * model.shape.layers) ** 0.5
    for name, p in model.named_parameters():
        if name.endswith("norm.weight"):
            nn.init.ones_(p)
        elif name.endswith("bias"):
            nn.init.zeros_(p)
        else:
            nn.init.normal_(p, std=out_std if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.04)


def rope_table(positions: Tensor, s: Shape = SHAPE) -> tuple[Tensor, Tensor]:
    half = s.head_dim // 2
    frequency = s.theta ** (-torch.arange(half, device=positions.device, dtype=torch.float64) / half)
    angle = positions.to(torch.float64)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [tokens, heads, head_dim]; pairs are (i, i + head_dim / 2)."""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + SHAPE.eps) * weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def before_attention(x: Tensor, ln: Tensor, wq: Tensor, bq: Tensor, wk: Tensor, bk: Tensor, wv: Tensor, cos: Tensor, sin: Tensor,
                     dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    d = SHAPE.head_dim
    y = norm(x, ln).to(dtype)
    q = rotate(linear(y, wq, bq).view(-1, SHAPE.heads, d), cos, sin)
    k = rotate(linear(y, wk, bk).view(-1, SHAPE.kv_heads, d), cos, sin)
    return q, k, linear(y, wv).view(-1, SHAPE.kv_heads, d)


def after_attention(x: Tensor, heads: Tensor, keep: Tensor | None, wo: Tensor, ln: Tensor, wg: Tensor, wu: Tensor, wd: Tensor) -> Tensor:
    """heads [tokens, heads, head_dim]; keep [tokens, kv_heads] scales each group of query heads."""
    if keep is not None:
        heads = heads * keep.repeat_interleave(SHAPE.heads // SHAPE.kv_heads, 1)[:, :, None]
    x = x + linear(heads.flatten(1), wo).float()
    y = norm(x, ln).to(heads.dtype)
    return x + linear(F.silu(linear(y, wg)) * linear(y, wu), wd).float()


def attention_weights(layer: Layer) -> tuple[Tensor, ...]:
    a = layer.self_attn
    return layer.input_layernorm.weight, a.q_proj.weight, a.q_proj.bias, a.k_proj.weight, a.k_proj.bias, a.v_proj.weight


def mlp_weights(layer: Layer) -> tuple[Tensor, ...]:
    m = layer.mlp
    return layer.self_attn.o_proj.weight, layer.post_attention_layernorm.weight, m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight


def logits(x: Tensor, ln: Tensor, head: Tensor, dtype: torch.dtype) -> Tensor:
    return linear(norm(x, ln).to(dtype), head)


def save(model: Prover, path: pathlib.Path, seed: int, training: str, max_positions: int) -> None:
    s = model.shape
    metadata = {
        "format": "pt", "architecture": "qwen2", "vocab_size": s.vocab, "hidden_size": s.width, "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "intermediate_size": s.hidden,
        "rms_norm_eps": s.eps, "rope_theta": s.theta, "max_position_embeddings": max_positions, "seed": seed, "training": training,
    }
    tensors = {k: v.detach().to(torch.float16).cpu().contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, path, {k: str(v) for k, v in metadata.items()})


def load(path: pathlib.Path, device: str) -> Prover:
    """Float32 copies of the F16 weights."""
    model = Prover()
    model.load_state_dict({k: v.float() for k, v in load_file(path).items()})
    return model.to(device).eval().requires_grad_(False)
