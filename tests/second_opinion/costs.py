# SPDX-License-Identifier: Apache-2.0
"""Divergences once more in NumPy: from logits, and the bytes of cost runs as docs/costs.md has them.

usage: costs.py STATS_TOOL FILE...
"""

import pathlib
import struct
import subprocess
import sys

import numpy as np
import xxh3

NOT_MEASURED = 0x7FF8000000000000
# Of the files: a layer of two query heads and one KV head of 64 channels, two kinds of text of one document.
GEOMETRY = struct.pack('<I5I2f', 1, 2, 1, 64, 0, 0, 0, 0)
OPTIONS = (1, 2, 1, 3, 32, 128)  # version, kinds, documents, ranges of a part, sinks, recent tokens
MEASURED = {'none': 0, 'some': 5, 'whole': 12}


def expect(condition, what: str) -> None:
    if not condition:
        sys.exit(f'not so: {what}')


def log_softmax(rows: np.ndarray) -> np.ndarray:
    rows = rows - rows.max(1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(1, keepdims=True))


def check_divergence(tool: str, random: np.random.Generator, n_rows: int, n: int, size: float) -> None:
    exact = (random.standard_normal((n_rows, n)) * size).astype(np.float32).astype(np.float64)
    other = (exact + random.standard_normal((n_rows, n))).astype(np.float32).astype(np.float64)
    p, q = log_softmax(exact), log_softmax(other)
    want = float((np.exp(p) * (p - q)).sum() / np.log(2))
    words = ' '.join(map(repr, [float(n_rows), float(n), *exact.ravel().tolist(), *other.ravel().tolist()]))
    found = float(subprocess.run([tool, 'divergence'], input=words.encode(), capture_output=True, check=True).stdout)
    expect(abs(found - want) <= 1e-12 * max(1.0, want) * n, f'{n_rows} x {n} logits: {found} and {want}')


def check_file(path: pathlib.Path) -> None:
    data = path.read_bytes()
    expect(data[:8] == b'LKCOSTS\0', f'{path.name} begins as divergences do')
    expect(struct.unpack_from('<6I', data, 8) == OPTIONS, f'{path.name} has its options')
    geometry, fingerprint, n = struct.unpack_from('<3Q', data, 32)
    expect(geometry == xxh3.xxh3_64(GEOMETRY), f'{path.name} has the hash of its geometry')
    expect((fingerprint, n, len(data)) == (0, 12, 56 + 8 * 12 + 8), f'{path.name} has 12 trials')
    expect(struct.unpack('<Q', data[-8:])[0] == xxh3.xxh3_64(data[:-8]), f'{path.name} has its hash')
    patterns = struct.unpack_from('<12Q', data, 56)
    divergences = [0.5 + i for i in range(MEASURED[path.stem])]
    want = [struct.unpack('<Q', struct.pack('<d', x))[0] for x in divergences]
    expect(list(patterns) == want + [NOT_MEASURED] * (12 - len(want)), f'{path.name} has its divergences')


def main() -> None:
    random = np.random.default_rng(1)
    for n_rows, n, size in ((1, 1, 1), (1, 2, 1), (3, 50, 1), (7, 500, 4), (2, 3000, 20)):
        check_divergence(sys.argv[1], random, n_rows, n, size)
    for name in sys.argv[2:]:
        check_file(pathlib.Path(name))
    print(f'5 divergences and {len(sys.argv) - 2} files agree')


main()
