# SPDX-License-Identifier: Apache-2.0
"""Packing and unpacking as docs/FORMAT.md states them, in PyTorch, for the plans that the benchmark compares: the
numbers that a cache's codes stand for. Every float32 operation is rounded on its own."""

import torch

PAGE = 128
WINDOW = 128
SINKS = {'kitty': 32, 'kitty-pro': 32}
BITS = {'int8': 8, 'kivi4': 4, 'kivi2': 2, 'kitty': 2, 'kitty-pro': 2, 'uniform-2': 2}
F8_GROUP = {'uniform-2': 32}  # tokens of keys, channels of values; the other plans have FP16 and a page or a head
BOOST_SHARE = {'kitty': 8, 'kitty-pro': 4}
BOOST_BITS = 4


def round32(x: float) -> float:
    return torch.tensor(x, dtype=torch.float32).item()


def through_codes(x: torch.Tensor, low: torch.Tensor, span: torch.Tensor, bits: int) -> torch.Tensor:
    """Values of the codes of x, all float32; low and span are the stored minimum and range."""
    levels = 2**bits - 1
    half = round32(1 / (2 * levels))
    above = x - low
    code = torch.zeros_like(x)
    for k in range(1, levels + 1):
        code += above >= (2 * k - 1) * span * half
    code = torch.where(span == 0, torch.zeros_like(code), code)
    return low + code * (span * round32(1 / levels))


def stored(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Minimum and range of FP16 metadata over a dimension."""
    low = x.amin(dim, keepdim=True) + 0.0
    span = (x.amax(dim, keepdim=True) - low).half().float().clamp(max=65504)
    return low, span


def f8_numbers() -> torch.Tensor:
    """All values of e4m3fnuz, ascending."""
    magnitudes = [m * 2.0**-10 if e == 0 else 2.0**(e - 8) * (1 + m / 8) for e in range(16) for m in range(8)]
    return torch.tensor(sorted({sign * x for sign in (-1, 1) for x in magnitudes}), dtype=torch.float32)


def stored_f8(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Minimum and range of FP8 metadata over a dimension: rounded down, and up."""
    numbers = f8_numbers().to(x.device)
    lowest = x.amin(dim, keepdim=True) + 0.0
    low = numbers[(torch.searchsorted(numbers, lowest, right=True) - 1).clamp(min=0)]
    spread = (x.amax(dim, keepdim=True) - low).clamp(min=0)
    return low, numbers[torch.searchsorted(numbers, spread).clamp(max=len(numbers) - 1)]


def through_groups(x: torch.Tensor, dim: int, group: int, bits: int) -> torch.Tensor:
    groups = x.unflatten(dim, (-1, group))
    low, span = stored_f8(groups, dim)
    return through_codes(groups, low, span, bits).flatten(dim - 1, dim)


def boosted(keys: torch.Tensor, n_channels: int) -> torch.Tensor:
    """Which channels a page ranks first: sums of |K| in the order of tokens, ties to the lower channel."""
    score = torch.zeros_like(keys[..., 0, :])
    for token in range(keys.shape[-2]):
        score = score + keys[..., token, :].abs()
    order = torch.sort(score, dim=-1, descending=True, stable=True).indices[..., :n_channels]
    return torch.zeros_like(score, dtype=torch.bool).scatter(-1, order, True).unsqueeze(-2)


def packed_span(plan: str, n_tokens: int) -> tuple[int, int]:
    """The tokens of a committed sequence that are packed."""
    sinks = SINKS.get(plan, 0)
    n_pages = max(0, n_tokens - sinks - WINDOW) // PAGE if plan in BITS else 0
    return sinks, sinks + n_pages * PAGE


def unpacked_keys(plan: str, keys: torch.Tensor) -> torch.Tensor:
    """keys [..., page, token, channel] as float32."""
    if plan in F8_GROUP:
        return through_groups(keys, -2, F8_GROUP[plan], BITS[plan])
    low, span = stored(keys, -2)
    base = through_codes(keys, low, span, BITS[plan])
    if plan not in BOOST_SHARE:
        return base
    head_dim = keys.shape[-1]
    n_channels = -(-(-(-head_dim // BOOST_SHARE[plan])) // 16) * 16
    return torch.where(boosted(keys, n_channels), through_codes(keys, low, span, BOOST_BITS), base)


def unpacked_values(plan: str, values: torch.Tensor) -> torch.Tensor:
    if plan in F8_GROUP:
        return through_groups(values, -1, F8_GROUP[plan], BITS[plan])
    low, span = stored(values, -1)
    return through_codes(values, low, span, BITS[plan])


def what_a_cache_holds(plan: str, k: torch.Tensor, v: torch.Tensor, n_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v [heads, tokens, head_dim] in FP16 as float32, with the packed ones of the first n_tokens replaced."""
    keys, values = k.float(), v.float()
    first, last = packed_span(plan, n_tokens)
    if first < last:
        pages = (k.shape[0], -1, PAGE, k.shape[2])
        keys[:, first:last] = unpacked_keys(plan, keys[:, first:last].reshape(pages)).flatten(1, 2)
        values[:, first:last] = unpacked_values(plan, values[:, first:last].reshape(pages)).flatten(1, 2)
    return keys, values
