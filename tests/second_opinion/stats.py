# SPDX-License-Identifier: Apache-2.0
"""Calibration once more in NumPy, from the papers' definitions: K-means of channel ranges, masked
attention of probes, statistics of channels and the file that holds them.

usage: calibrate.py CALIBRATE_TOOL
"""

import json
import struct
import subprocess
import sys

import numpy as np

TOOL = sys.argv[1]
checks = 0


def run_tool(command: str, *parts) -> bytes:
    words = []
    for part in parts:
        words += [repr(float(x)) for x in np.asarray(part, np.float64).ravel()]
    done = subprocess.run([TOOL, command], input=' '.join(words).encode(), capture_output=True)
    if done.returncode:
        sys.exit(f'{command}: {done.stderr.decode()}')
    return done.stdout


def expect(condition, what: str) -> None:
    global checks
    checks += 1
    if not condition:
        sys.exit(f'not so: {what}')


def halfs(x):
    return np.asarray(x, np.float32).astype(np.float16).astype(np.float64)


def k_means(ranges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """k = 3 from (min, median, max), all distances at once, until no channel changes its class."""
    centroids = np.array([ranges.min(), np.median(ranges), ranges.max()])
    if centroids[0] == centroids[2]:
        return np.full(len(ranges), 2), centroids
    labels = None
    while True:
        fresh = np.abs(ranges[:, None] - centroids[None]).argmin(1)
        if labels is not None and (fresh == labels).all():
            return labels + 1, centroids
        labels = fresh
        for c in range(3):
            if (labels == c).any():
                centroids[c] = ranges[labels == c].mean()


def check_clusters(ranges, name: str) -> None:
    ranges = halfs(ranges)
    out = run_tool('clusters', [len(ranges)], ranges).split()
    classes, centroids = k_means(ranges)
    got = np.array(out[:len(ranges)], int)
    expect((got == classes).all(), f'{name}: classes {got} are {classes}')
    expect(np.allclose(np.array(out[len(ranges):], float), centroids, rtol=1e-6), f'{name}: centroids')


def clusters() -> None:
    random = np.random.default_rng(5)
    check_clusters([1] * 10 + [4] * 12 + [9] * 5 + [30] * 5, 'four heaps')
    check_clusters(np.full(32, 2.5), 'equal ranges')
    check_clusters(np.zeros(64), 'constant channels')
    check_clusters([0] * 31 + [1], 'all but one constant')
    check_clusters([1] * 16 + [2] * 16, 'two values')
    for seed in range(40):
        d = int(random.choice([32, 48, 128, 256]))
        check_clusters(np.exp(random.normal(0, random.choice([0.2, 0.8, 1.5]), d)), f'log-normal {seed}')


def masked_scores(q, k, prefix, period, sinks, local, window, window_sinks, scale, cap, logits):
    """The definition with the whole matrix: softmax, mask, sum, mean over queries, max over the group."""
    n, hq, d = q.shape
    hkv = k.shape[1]
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    visible = j <= i
    if window:
        visible &= (i - j < window) | (j < window_sinks)
    mask = (j >= sinks) & (i - j >= local)
    scores = np.zeros(hq)
    for h in range(hq):
        z = q[:, h] @ k[:, h // (hq // hkv)].T * (scale or d ** -0.5)
        if cap:
            z = cap * np.tanh(z / cap)
        z = np.where(visible, z, -np.inf)
        top = z.max(1, keepdims=True)
        if logits is not None:
            top = np.maximum(top, logits[h])
        e = np.exp(z - top)
        total = e.sum(1, keepdims=True) + (np.exp(logits[h] - top) if logits is not None else 0)
        scores[h] = (e / total * mask)[prefix + period:].sum(1).mean()
    return scores.reshape(hkv, -1).max(1)


def probes() -> None:
    random = np.random.default_rng(6)
    cases = [  # hq hkv d n prefix period sinks local window window_sinks scale cap has_logits
        (2, 1, 32, 21, 1, 10, 2, 5, 0, 0, 0, 0, 0),
        (4, 2, 32, 70, 0, 33, 4, 8, 0, 0, 0.3, 0, 0),
        (2, 2, 48, 67, 3, 16, 4, 15, 0, 0, 0, 5.0, 1),
        (3, 1, 64, 65, 1, 32, 16, 31, 40, 4, 0.5, 0, 1),
        (2, 1, 32, 64, 0, 8, 0, 1, 16, 0, 2.0, 30.0, 0),
    ]
    for hq, hkv, d, n, prefix, period, sinks, local, window, window_sinks, scale, cap, has in cases:
        q = halfs(random.normal(0, 1, (n, hq, d)))
        k = halfs(random.normal(0, 1, (n, hkv, d)))
        k[prefix + period:] += 0.5 * k[prefix:n - period]  # copies, as a probe has them
        k = halfs(k)
        logits = np.float32(random.normal(0, 2, hq)).astype(float) if has else None
        scale, cap = float(np.float32(scale)), float(np.float32(cap))
        out = run_tool('probe', [hq, hkv, d, n, prefix, period, sinks, local, window, window_sinks, scale, cap, has],
                  logits if has else [], q, k)
        want = masked_scores(q, k, prefix, period, sinks, local, window, window_sinks, scale, cap, logits)
        got = np.array(out.split(), float)
        expect(np.allclose(got, want, rtol=2e-5, atol=1e-7), f'probe of {n} tokens: {got} is {want}')
    # By hand: equal keys, so that row i spreads 1 / (i + 1) over each column.
    n, period, sinks, local = 12, 4, 2, 3
    want = np.mean([max(0, i - local + 1 - sinks) / (i + 1) for i in range(period, n)])
    ones = np.ones(n * 32)
    got = float(run_tool('probe', [1, 1, 32, n, 0, period, sinks, local, 0, 0, 0, 0, 0], ones, ones))
    expect(abs(got - want) < 1e-6, f'equal keys score {got}, by hand {want}')


def read_safetensors(data: bytes) -> tuple[dict, dict]:
    length, = struct.unpack_from('<Q', data)
    header = json.loads(data[8:8 + length])
    types = {'F64': np.float64, 'F16': np.float16, 'I64': np.int64}
    meta = header.pop('__metadata__')
    body = data[8 + length:]
    expect(length % 8 == 0, 'tensors are aligned')
    return meta, {name: np.frombuffer(body[slice(*t['data_offsets'])], types[t['dtype']]).reshape(t['shape'])
                  for name, t in header.items()}


def statistics() -> None:
    random = np.random.default_rng(7)
    hq, hkv, d, n = 6, 2, 48, 75
    q, k = random.normal(0, 3, (n, hq, d)), random.normal(1, 2, (n, hkv, d))
    k[3, 1, 7], k[5, 0, 2] = 1e6, 3e-6  # beyond FP16, and subnormal there
    meta, got = read_safetensors(run_tool('stats', [hq, hkv, d, n], q, k))
    expect(meta == {'format': 'lowkey-statistics', 'version': '1'}, f'metadata {meta}')
    with np.errstate(over='ignore'):
        q, k = halfs(q), np.clip(halfs(k), -65504, 65504)
    expect(got['geometry'].tolist() == [[hq, hkv, d, 0, 0]] and got['counts'].tolist() == [[n, n, 0, 0, 0, 0]], 'geometry')
    expect((got['layer.0.key_min'] == k.min(0)).all() and (got['layer.0.key_max'] == k.max(0)).all(), 'extremes')
    expect((got['layer.0.key_sum'] == k.sum(0)).all(), 'sums are exact')
    expect((got['layer.0.key_abs_sum'] == np.abs(k).sum(0)).all(), 'sums of |K| are exact')
    groups = np.abs(q).sum(0).reshape(hkv, hq // hkv, d).sum(1)
    expect((got['layer.0.query_abs_sum'] == groups).all(), 'sums of |Q| are exact')


def quantized(x: np.ndarray, bits: int) -> np.ndarray:
    """Min-max over the channels of each (token, head), range in FP16, nearest code."""
    low = x.min(-1, keepdims=True)
    span = halfs(x.max(-1, keepdims=True) - low)
    levels = 2 ** bits - 1
    code = np.clip(np.floor((x - low) / np.where(span > 0, span, 1) * levels + 0.5), 0, levels)
    return low + np.where(span > 0, code * span / levels, 0)


def causal_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    n, hq, d = q.shape
    out = np.zeros(q.shape)
    for h in range(hq):
        kv = h // (hq // k.shape[1])
        z = np.where(np.tri(n, dtype=bool), q[:, h] @ k[:, kv].T * d ** -0.5, -np.inf)
        e = np.exp(z - z.max(1, keepdims=True))
        out[:, h] = e / e.sum(1, keepdims=True) @ v[:, kv]
    return out


def sensitivities() -> None:
    random = np.random.default_rng(8)
    for hq, hkv, d, n in ((4, 2, 32, 45), (1, 1, 64, 33), (3, 1, 128, 20)):
        q, k, v = (halfs(random.normal(0, 1, (n, h, d))) for h in (hq, hkv, hkv))
        gk, gv = (np.float32(random.normal(0, 1e-5, (n, hkv, d))).astype(float) for _ in range(2))
        got = np.array(run_tool('sensitivity', [hq, hkv, d, n], q, k, v, gk, gv).split(), float).reshape(hkv, 4, 3)
        exact = causal_attention(q, k, v)
        for w, bits in enumerate((8, 4, 2)):
            for part, (x, g) in enumerate(((k, gk), (v, gv))):
                want = np.abs(g * (x - quantized(x, bits))).sum((0, 2)) / n
                expect(np.allclose(got[:, part, w], want, rtol=1e-3), f'gradients at {bits} bits')
            for part, out in enumerate((causal_attention(q, quantized(k, bits), v),
                                        causal_attention(q, k, quantized(v, bits)))):
                error = ((out - exact) ** 2).sum((0, 2)).reshape(hkv, -1).sum(1)
                square = (exact ** 2).sum((0, 2)).reshape(hkv, -1).sum(1)
                expect(np.allclose(got[:, 2 + part, w], error / square, rtol=1e-3), f'outputs at {bits} bits')


def turned(x: np.ndarray, interleaved: bool, channels: int, base: float, scale: float) -> np.ndarray:
    """RoPE of token t at position t * scale on the first channels of a head, as complex numbers."""
    pairs = np.stack([x[..., 0:channels:2], x[..., 1:channels:2]]) if interleaved else \
        np.stack([x[..., :channels // 2], x[..., channels // 2:channels]])
    position = np.arange(len(x))[:, None] * scale
    z = (pairs[0] + 1j * pairs[1]) * np.exp(1j * position * base ** (-2 * np.arange(channels // 2) / channels))[:, None]
    out = x.copy()
    if interleaved:
        out[..., 0:channels:2], out[..., 1:channels:2] = z.real, z.imag
    else:
        out[..., :channels // 2], out[..., channels // 2:channels] = z.real, z.imag
    return out


def positions() -> None:
    random = np.random.default_rng(9)
    for interleaved, channels, base, h, d, n in ((0, 64, 10000, 2, 64, 33), (1, 64, 1e6, 1, 64, 20), (0, 32, 500, 3, 80, 9)):
        x = np.float32(random.normal(0, 1, (n, h, d))).astype(float)
        for scale in (1, 4):
            got = np.array(run_tool('rope', [interleaved, channels, base, scale, h, d, n], x).split(), float)
            want = turned(x, interleaved, channels, base, scale)
            expect(np.allclose(got[:x.size], want.ravel(), atol=1e-6), f'RoPE at scale {scale}')
            expect(np.allclose(got[x.size:], x.ravel(), atol=1e-6), 'and back')


def scale_searches() -> None:
    """PM-KVQ's search of representation scales, from its paper: lambda = max|K| of a RoPE pair to the exponent."""
    random = np.random.default_rng(10)
    for hq, hkv, d, n, key_bits, value_bits, step in ((4, 2, 32, 45, 4, 4, 1), (2, 1, 64, 30, 2, 2, 3), (3, 1, 128, 17, 4, 2, 4)):
        q, k, v = (random.normal(0, 1, (n, h, d)) for h in (hq, hkv, hkv))
        k[:, :, 3] *= 20
        q, k, v = halfs(q), halfs(k), halfs(v)
        largest = np.abs(k).max(0)
        largest = np.maximum(largest, np.roll(largest, d // 2, 1))
        rows = np.arange((n - 1) % step, n, step)
        exact = causal_attention(q, k, v)[rows]
        errors = []
        for exponent in [*(np.arange(20, 0, -1) / 20), 0]:
            scales = np.clip(np.float32(largest ** exponent), 1e-4, 1e4).astype(float)
            stored = quantized(halfs(np.float32(k) / np.float32(scales)), key_bits) * scales
            errors.append(((causal_attention(q, stored, quantized(v, value_bits))[rows] - exact) ** 2).sum())
        errors = np.array(errors)
        got = np.array(run_tool('scales', [hq, hkv, d, n, key_bits, value_bits, step], q, k, v).split(), float)
        expect(np.allclose(got[:21], errors / errors[20], rtol=5e-3), f'errors {got[:21]} are {errors / errors[20]}')
        best = np.argmin(got[:21])
        expect(got[21] == (20 - best) / 20, f'exponent {got[21]}')
        want = np.clip(largest ** got[21], 1e-4, 1e4)
        expect(np.allclose(got[22:], want.ravel(), rtol=1e-6), 'scales')


clusters()
probes()
statistics()
sensitivities()
positions()
scale_searches()
print(f'{checks} checks hold')
