# SPDX-License-Identifier: Apache-2.0
"""What keys and values are after packing at 2 bits, on the model's device: docs/FORMAT.md, sections 8 and 9."""

from __future__ import annotations

import torch

BITS, GROUP, PAGE_TOKENS = 2, 128, 128  # as lk_calibrator_set_costs() defines costs
SINK_TOKENS, RECENT_TOKENS = 32, 128
_FP16_MAX = 65504.0


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x as a cache keeps it at 16 bits: the nearest FP16 numbers, saturated, in the type of x."""
    return x.clamp(-_FP16_MAX, _FP16_MAX).half().to(x.dtype)


def packed_tokens(n_tokens: int) -> slice:
    """The tokens of a sequence of n_tokens that are packed: whole pages between sinks and recent tokens."""
    n_pages = max(0, n_tokens - RECENT_TOKENS - SINK_TOKENS) // PAGE_TOKENS
    return slice(SINK_TOKENS, SINK_TOKENS + n_pages * PAGE_TOKENS)


def _groups(x: torch.Tensor, dim: int, clip: float) -> torch.Tensor:
    """x, FP16 numbers as float32, packed at 2 bits with one range and one minimum along a dimension."""
    low, high = x.amin(dim, keepdim=True) + 0.0, x.amax(dim, keepdim=True)
    if clip < 1:
        one, share = torch.ones((), device=x.device), torch.tensor(clip, device=x.device)
        cut = (high - low) * ((one - share) / 2)
        low, high = low + cut, high - cut
    minimum = low.half().float() + 0.0
    span = (high - minimum).clamp(0, _FP16_MAX).half().float()
    distance = x - minimum
    half_step = torch.tensor(1 / 6, dtype=torch.float32, device=x.device)
    thresholds = [span * float(2 * k - 1) * half_step for k in (1, 2, 3)]
    code = torch.stack([distance >= threshold for threshold in thresholds]).sum(0).float() * (span > 0)
    return minimum + code * (span * torch.tensor(1 / 3, dtype=torch.float32, device=x.device))


def packed(x: torch.Tensor, *, value: bool, clip: float = 1.0) -> torch.Tensor:
    """Keys or values [..., n_tokens, head_dim] of whole pages after packing, as float32.

    Keys have a group for each channel of a page, values one for each token and 128 channels."""
    x = x.clamp(-_FP16_MAX, _FP16_MAX).half().float()
    if value:
        return torch.cat([_groups(part, -1, clip) for part in x.split(GROUP, -1)], -1)
    pages = x.unflatten(-2, (-1, PAGE_TOKENS))
    return _groups(pages, -2, clip).flatten(-3, -2)
