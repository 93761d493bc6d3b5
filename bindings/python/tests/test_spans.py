# SPDX-License-Identifier: Apache-2.0
"""Spans of new tokens that see each other both ways, against attention in NumPy, and misuse."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import WHOLE, tensors

import lowkey


def attention(q, k, v, reach):
    """Of all tokens; token i attends up to reach[i]. In double precision."""
    layer = WHOLE.layers[0]
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, layer.n_query_heads // layer.n_kv_heads, axis=1) for x in (k, v))
    logits = np.einsum('qhd,khd->hqk', q, k) * layer.head_dim ** -0.5
    logits = np.where(np.arange(len(k)) > np.asarray(reach)[:, None], -np.inf, logits)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum('hqk,khd->qhd', weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize('cuts', [(0, 150), (0, 10, 90, 150)])
def test_tokens_of_spans_see_each_other(context, cuts):
    spans = ((2, 9), (12, 80), (95, 96), (100, 150))
    reach = np.arange(150)
    for first, end in spans:
        reach[first:end] = end - 1
    q, k, v = tensors(0, 150)
    wanted = attention(q, k, v, reach)
    with lowkey.Cache(context, 'fp16', '64MiB', geometry=WHOLE) as cache:
        sequence = cache.add()
        for begin, end in zip(cuts, cuts[1:]):
            own = [(0, a - begin, b - begin) for a, b in spans if begin <= a < end]
            with cache.step(sequence, end - begin, spans=own) as step:
                for layer in range(2):
                    step.append(layer, k[begin:end], v[begin:end])
                    out = step.attend(layer, q[begin:end])
                    assert np.abs(np.float64(out) - wanted[begin:end]).max() < 2e-3


def test_wrong_spans_are_refused(cache):
    sequence = cache.add()
    for spans in ([(0, 2, 5)], [(1, 0, 2)], [(0, 2, 2)], [(0, 0, 3), (0, 2, 4)], [(0, 1)], [(0, -1, 2)]):
        with pytest.raises(lowkey.ArgumentError):
            cache.step(sequence, 4, spans=spans)
    with pytest.raises(lowkey.ArgumentError, match='not both'):
        cache.step(sequence, 2, spans=[(0, 0, 2)], parents=[-1, 0])
