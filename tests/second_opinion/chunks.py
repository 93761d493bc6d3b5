# SPDX-License-Identifier: Apache-2.0
"""Scores and classes of chunks once more in NumPy, from the definitions in lowkey/chunks.h: all
elements at once in FP64, quotas by trying every split of the rows.

usage: chunks.py CHUNKS_TOOL
"""

import subprocess
import sys

import numpy as np

TOOL = sys.argv[1]
F16, BF16, F32 = 1, 2, 3
LOW, MIDDLE, HIGH = 1, 2, 3
checks = 0


def run_tool(command: str, *parts) -> list[str]:
    words = []
    for part in parts:
        words += [repr(x) for x in np.asarray(part).ravel().tolist()]
    done = subprocess.run([TOOL, command], input=' '.join(words).encode(), capture_output=True)
    if done.returncode:
        sys.exit(f'{command}: {done.stderr.decode()}')
    return done.stdout.decode().split()


def expect(condition, what: str) -> None:
    global checks
    checks += 1
    if not condition:
        sys.exit(f'not so: {what}')


def encode(x: np.ndarray, dtype: int) -> tuple[np.ndarray, np.ndarray]:
    """What is sent of x (bits for 16-bit types), and the exact values of that."""
    x = x.astype(np.float32)
    if dtype == F32:
        return x, x.astype(np.float64)
    if dtype == F16:
        halfs = x.astype(np.float16)
        return halfs.view(np.uint16), halfs.astype(np.float64)
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def check_cosine(random, dtype: int, n: int, d: int, pad: int, scale: float) -> None:
    q, q_exact = encode(random.normal(0, scale, d), dtype)
    c, c_exact = encode(random.normal(0, scale, (n, d + pad)), dtype)
    got = np.array(run_tool('cosine', [dtype, n, d, pad], q, c), float)
    c_exact = c_exact[:, :d]
    want = c_exact @ q_exact / np.sqrt((c_exact**2).sum(1) * (q_exact**2).sum())
    # Lanes of a block add 16 terms; each term and the query's elements are rounded, and |c_i q_i|
    # sums to at most |c| |q|.
    bound = (256 / 16 + 4) * 2.0**-24
    worst = np.abs(got - want).max()
    expect(worst <= bound, f'cosine of type {dtype}, {n} x {d}, scale {scale}: off by {worst}')


def cosines() -> None:
    random = np.random.default_rng(1)
    for dtype in (F16, BF16, F32):
        for n, d, pad in ((1, 1, 0), (3, 15, 1), (5, 17, 0), (7, 256, 3), (4, 257, 0), (64, 768, 8), (2, 4099, 0)):
            check_cosine(random, dtype, n, d, pad, 1)
        # Subnormals of FP16, and what squares out of FP32's range.
        check_cosine(random, dtype, 9, 100, 0, 1e-6 if dtype == F16 else 1e-30)
        check_cosine(random, dtype, 9, 100, 0, 1e4 if dtype == F16 else 1e30)


def okapi(tokens, starts, query, k1, b):
    chunks = [tokens[starts[i]:starts[i + 1]] for i in range(len(starts) - 1)]
    lengths = np.array([len(c) for c in chunks], float)
    scores = np.zeros(len(chunks))
    for t in query:
        f = np.array([np.count_nonzero(c == t) for c in chunks], float)
        n_t = np.count_nonzero(f)
        idf = np.log(1 + (len(chunks) - n_t + 0.5) / (n_t + 0.5))
        with np.errstate(invalid='ignore', divide='ignore'):
            part = idf * f * (k1 + 1) / (f + k1 * (1 - b + b * lengths / lengths.mean()))
        scores += np.where(f > 0, part, 0)
    return scores


def bm25() -> None:
    random = np.random.default_rng(2)
    for case in range(30):
        n = int(random.integers(1, 40))
        lengths = np.full(n, 32) if case % 3 == 0 else random.integers(0, 50, n)
        starts = np.concatenate([[0], np.cumsum(lengths)]) + (5 if case % 2 else 0)
        # Frequent and rare tokens, as text has them; ids to the end of 32 bits.
        vocabulary = random.integers(0, 2**32, 200, dtype=np.uint64)
        tokens = vocabulary[np.minimum(random.zipf(1.3, int(starts[-1]) + 7), 200) - 1]
        query = vocabulary[random.integers(0, 60, int(random.integers(0, 20)))]
        k1, b = random.choice([0.0, 1.2, 2.0]), random.choice([0.0, 0.75, 1.0])
        got = np.array(run_tool('bm25', [k1, b], [n], starts, [len(tokens)], tokens, [len(query)], query), float)
        want = okapi(tokens, starts, query, k1, b)
        expect(np.allclose(got, want, rtol=1e-6, atol=0), f'BM25 case {case}: {got} is {want}')


def thresholds() -> None:
    random = np.random.default_rng(3)
    for case in range(60):
        n = int(random.integers(1, 200))
        scores = random.normal(0, 1, n) if case % 2 else random.integers(-4, 5, n) / 4
        scores = scores.astype(np.float32).astype(np.float64)
        alpha, beta = random.choice([0, 0.25, 0.6]), random.choice([0, 0.1, 0.25])
        got = run_tool('thresholds', [alpha, beta], [n], scores)
        spread = scores.max() - scores.min()
        low, high = scores.min() + spread * alpha, scores.max() - spread * beta
        want = np.where(scores < low, LOW, np.where(scores > high, HIGH, MIDDLE))
        expect([float(x) for x in got[:2]] == [low, high], f'thresholds of case {case}')
        expect((np.array(got[2:], int) == want).all(), f'classes of case {case}')


def classes_of_rank(scores, n_low: int, n_middle: int):
    """By a stable sort of the reversed list, whose last is the best and the earliest of its equals."""
    worst_first = len(scores) - 1 - np.argsort(scores[::-1], kind='stable')
    classes = np.full(len(scores), HIGH)
    classes[worst_first[:n_low + n_middle]] = MIDDLE
    classes[worst_first[:n_low]] = LOW
    return classes


def split_for_budget(n: int, row: int, high_share: float, budget: int, price) -> tuple[int, int]:
    """The split of whole rows that the order of raises prefers, of all that the budget holds:
    high rows up to the share, then middle rows, then more high ones."""
    rows = n // row
    target = min(int(np.ceil(high_share * n / row - 0.5)), rows)
    if high_share > 0 and rows:
        target = max(target, 1)
    best = None
    for low in range(rows + 1):
        for middle in range(rows - low + 1):
            high = n - (low + middle) * row
            if low * row * price[0] + middle * row * price[1] + high * price[2] > budget:
                continue
            high_rows = rows - low - middle
            if high_rows > target and low:
                continue
            rank = (min(high_rows, target), middle + high_rows, high_rows)
            if best is None or rank > best[0]:
                best = (rank, low * row, middle * row)
    return best[1:]


def quotas() -> None:
    random = np.random.default_rng(4)
    for case in range(80):
        n, row = int(random.integers(1, 90)), int(random.choice([1, 2, 4]))
        scores = (random.normal(0, 1, n) if case % 2 else random.integers(0, 5, n)).astype(np.float32)
        low_share, high_share = random.choice([0, 0.3, 0.6]), random.choice([0, 0.1, 0.25])
        price = [3, 5, 16] if case % 3 else [40, 41, 43]
        least = n // row * row * price[0] + n % row * price[2]
        budget = 0
        if case % 4:
            budget = int(random.integers(least, n * price[2] + 10))
            n_low, n_middle = split_for_budget(n, row, high_share, budget, price)
        else:
            nearest = [min(max(0, int(np.ceil(x * n / row - 0.5))), n // row) for x in (low_share, 1 - high_share)]
            n_low, n_middle = nearest[0] * row, (nearest[1] - nearest[0]) * row
        got = run_tool('quota', [row], [low_share, high_share], [budget], price, [n], scores)
        want = classes_of_rank(scores, n_low, n_middle)
        bytes_taken = sum(price[c - 1] for c in want)
        expect((np.array(got[1:], int) == want).all(), f'quota case {case}: {got[1:]} is {want}')
        expect(int(got[0]) == bytes_taken and (not budget or bytes_taken <= budget), f'bytes of quota case {case}')


cosines()
bm25()
thresholds()
quotas()
print(f'{checks} checks passed')
