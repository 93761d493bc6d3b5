# SPDX-License-Identifier: Apache-2.0
"""What the tests share: a model's shape, seeded tensors, and attention in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import lowkey

GEOMETRY = lowkey.Geometry((lowkey.Layer(8, 2, 64), lowkey.Layer(8, 2, 64, window_tokens=40)))
# The same without sliding windows, which would free pages: for counts of bytes, and cuts at any token.
WHOLE = lowkey.Geometry((lowkey.Layer(8, 2, 64),) * 2)


def pytest_sessionstart(session):
    try:
        lowkey.version()
    except lowkey.LibraryError as error:
        pytest.exit(str(error), 1)


@pytest.fixture
def geometry() -> lowkey.Geometry:
    return GEOMETRY


@pytest.fixture
def context():
    with lowkey.Context(n_threads=2) as made:
        yield made


@pytest.fixture
def cache(context):
    with lowkey.Cache(context, 'fp16', '64MiB', geometry=GEOMETRY, max_sequences=8) as made:
        yield made


def tensors(seed: int, n_tokens: int, layer: lowkey.Layer = GEOMETRY.layers[0], dtype=np.float16):
    """q, k and v of one layer."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n_tokens, heads, layer.head_dim)).astype(dtype)
            for heads in (layer.n_query_heads, layer.n_kv_heads, layer.n_kv_heads)]


def attention(q, k, v, layer: lowkey.Layer = GEOMETRY.layers[0]):
    """Causal attention of the last tokens of k and v, in double precision: outputs and log-sum-exps."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group, past = layer.n_query_heads // layer.n_kv_heads, len(k) - len(q)
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    logits = np.einsum('qhd,khd->hqk', q, k) * (layer.scale or layer.head_dim ** -0.5)
    i, j = np.arange(len(q))[:, None] + past, np.arange(len(k))
    hidden = j > i
    if layer.window_tokens:
        hidden |= j <= i - layer.window_tokens
    logits = np.where(hidden, -np.inf, logits)
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - top)
    total = weights.sum(-1, keepdims=True)
    out = np.einsum('hqk,khd->qhd', weights / total, v)
    return out, (np.log(total) + top)[..., 0].T


def run_step(cache, sequence, seed: int, n_tokens: int):
    """A whole step of one sequence; q, k, v and output of each layer."""
    found = []
    with cache.step(sequence, n_tokens) as step:
        for number, layer in enumerate(cache.geometry.layers):
            q, k, v = tensors(seed * 31 + number, n_tokens, layer)
            step.append(number, k, v)
            found.append((q, k, v, step.attend(number, q)))
    return found
