# SPDX-License-Identifier: Apache-2.0
"""Attention of a training step: rows of one length, as [tokens, heads, head_dim].

Without windows, sinks and soft-cap PyTorch's fused kernel serves. Otherwise FlexAttention gets all rows as one sequence, so that one
compiled kernel serves every length; its block mask is written down from the blocks' distances.
"""
from __future__ import annotations

from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

import model as M

BLOCK = 128


def block_mask(tokens: int, length: int, window: int, device: str) -> BlockMask:
    """Causal within rows of `length` tokens, over the last `window` (0 = all)."""
    at = torch.arange(tokens // BLOCK, device=device, dtype=torch.int32)
    i, j = at[:, None], at[None, :]
    distance, reach = (i - j) * BLOCK, window or length
    seen = (i // (length // BLOCK) == j // (length // BLOCK)) & (distance >= 0) & (distance - BLOCK + 1 < reach)
    whole = seen & (distance > 0) & (distance + BLOCK - 1 < reach)

    def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
        order = chosen.to(torch.int8).argsort(dim=1, descending=True, stable=True).to(torch.int32)
        return chosen.sum(1, dtype=torch.int32)[None, None], order[None, None].contiguous()

    position = torch.arange(tokens, device=device, dtype=torch.int32)
    first = torch.maximum(position // length * length, position - reach + 1)

    def visible(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (kv <= q) & (kv >= first[q])

    return BlockMask.from_kv_blocks(*listed(seen & ~whole), *listed(whole), BLOCK_SIZE=BLOCK, mask_mod=visible)


class Attend:
    def __init__(self, s: M.Shape, compiled: bool, options: dict | None = None, window_share: float = 1.0) -> None:
        """`options` are kernel_options of FlexAttention; a window is at most `window_share` of a row."""
        self.shape, self.options, self.window_share, self.masks = s, options, window_share, {}
        self.flex = torch.compile(self.capped, dynamic=False) if compiled else self.capped
        cap = s.softcap
        self.score: Callable | None = (lambda score, b, h, q, kv: cap * torch.tanh(score / cap)) if cap else None

    def capped(self, q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, sinks: Tensor | None) -> Tensor:
        """A sink is one more key with the score sinks[head] and the value 0."""
        out, aux = flex_attention(q, k, v, score_mod=self.score, block_mask=mask, enable_gqa=True, kernel_options=self.options,
                                  return_aux=AuxRequest(lse=True))
        if sinks is None:
            return out
        return (out * torch.sigmoid(aux.lse - sinks[None, :, None])[..., None]).to(out.dtype)

    def __call__(self, layer: int, length: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        s = self.shape
        if not (s.window or s.sinks or s.softcap):
            rows = [t.view(-1, length, t.shape[1], s.head_dim).transpose(1, 2) for t in (q, k, v)]
            heads = F.scaled_dot_product_attention(*rows, is_causal=True, enable_gqa=True)
            return heads.transpose(1, 2).reshape(-1, s.heads, s.head_dim)
        heads = self.flex(*(t[None].transpose(1, 2) for t in (q, k, v)), self.mask(len(q), length, self.window(layer, length), q.device), sinks)
        return heads.transpose(1, 2)[0]

    def window(self, layer: int, length: int) -> int:
        return min(self.shape.window_of(layer), round(self.window_share * length))

    def mask(self, tokens: int, length: int, window: int, device: torch.device) -> BlockMask:
        """A window that reaches over whole rows is none."""
        key = (tokens, length, window if window < length else 0)
        if key not in self.masks:
            self.masks = {k: v for k, v in self.masks.items() if k[1] == length} | {key: block_mask(*key, device)}
        return self.masks[key]
