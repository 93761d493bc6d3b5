# SPDX-License-Identifier: Apache-2.0
"""Estimates of costs: the second order of the divergence, from gradients by keys and values."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from ..errors import DataError
from ..plan import Geometry
from .context import DocumentContext
from .journal import Place
from .progress import Progress
from .two_bits import PAGE_TOKENS, packed, packed_tokens


def estimate(context: DocumentContext, ids: list[int], geometry: Geometry, document: int, clips: tuple[float, ...],
             n_samples: int, seed: int, progress: Progress) -> Iterator[tuple[Place, float]]:
    """The estimated costs of all keys and values of a document, in bits.

    The divergence of predictions is half the error's square in the metric of their Fisher information. Tokens that are
    drawn from the predictions give it: the gradient g of their log-probability has the mean of g g^T. Of it the blocks
    of single pages are taken, so the cost is half the mean of the sum over pages of (g x error)^2."""
    span = packed_tokens(context.n_tokens)
    kept = [context.kept[layer] for layer in geometry.kv_layers]
    leaves = [x.detach().requires_grad_() for own in kept for x in (own.keys, own.values) if x is not None]
    for own, key, value in zip(kept, leaves[::2], leaves[1::2]):
        own.instead = key, value
    try:
        with torch.enable_grad():
            log_p = context.logits(ids)[0].float().log_softmax(-1)
            sums = _sample(log_p, leaves, span, clips, n_samples, seed, progress)
    finally:
        for own in kept:
            own.instead = None
    for number, layer in enumerate(geometry.kv_layers):
        for is_value in (False, True):
            for i, clip in enumerate(clips):
                for head in range(geometry.layers[layer].n_kv_heads):
                    cost = float(sums[2 * number + is_value][i, head]) / n_samples / 2 / math.log(2)
                    if not math.isfinite(cost):
                        raise DataError(f'the gradient by the {"values" if is_value else "keys"} of layer {layer}, KV '
                                        f'head {head}, has an infinity or a NaN')
                    yield Place(document, layer, head, is_value, clip), cost


def _sample(log_p: torch.Tensor, leaves: list[torch.Tensor], span: slice, clips: tuple[float, ...], n_samples: int,
            seed: int, progress: Progress) -> list[torch.Tensor]:
    """[clips, heads] sums over pages of (gradient x error)^2, of each leaf."""
    generator = torch.Generator(log_p.device).manual_seed(seed)
    sums = [torch.zeros(len(clips), leaf.shape[1], dtype=torch.float64, device=leaf.device) for leaf in leaves]
    p = log_p.detach().exp()
    for sample in range(n_samples):
        drawn = torch.multinomial(p, 1, generator=generator)
        gradients = torch.autograd.grad(log_p.gather(1, drawn).sum(), leaves, retain_graph=sample < n_samples - 1)
        for number, (leaf, gradient) in enumerate(zip(leaves, gradients)):
            exact, slope = leaf.detach()[0, :, span].float(), gradient[0, :, span].float()
            for i, clip in enumerate(clips):
                error = packed(exact, value=number % 2 == 1, clip=clip) - exact
                of_pages = (slope * error).sum(-1).double().unflatten(-1, (-1, PAGE_TOKENS)).sum(-1)
                sums[number][i] += of_pages.square().sum(-1)
        progress.add()
    return sums
