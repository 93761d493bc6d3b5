# SPDX-License-Identifier: Apache-2.0
"""What a call through Python costs.

    LOWKEY_LIBRARY=build/src/liblowkey.so python3 bindings/python/bench.py [--json]

Calls are made on an empty sequence of one head of 32 channels, where C's own work is next to nothing: the whole time
of a call bounds what Python adds to it. "ctypes alone" calls the library with tensors made before, without the
package. The exit status is 1 when a call of attend takes more than 20 us.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import lowkey
from lowkey.arrays import Tensor

LIMIT_US = 20.0
GEOMETRY = lowkey.Geometry.uniform(1, 1, 1, 32)


def one_step(cache: lowkey.Cache, sequence: lowkey.Sequence, append: Callable[[lowkey.Step], Any],
             attend: Callable[[lowkey.Step], Any]) -> tuple[float, float]:
    """Seconds of append and of attend of a step of one token, which is discarded."""
    step = cache.step(sequence, 1)
    begin = time.perf_counter()
    append(step)
    middle = time.perf_counter()
    attend(step)
    end = time.perf_counter()
    step.discard()
    return middle - begin, end - middle


def makers() -> dict[str, Callable[[], Any]]:
    """By the kind of array: makes one of [1 token, 1 head, 32 channels]."""
    found: dict[str, Callable[[], Any]] = {'lowkey.Tensor': lambda: Tensor(lowkey.Array((1, 1, 32), 'float32'))}
    try:
        import numpy
        found['numpy'] = lambda: numpy.zeros((1, 1, 32), numpy.float32)
    except ImportError:
        pass
    try:
        import torch
        found['torch'] = lambda: torch.zeros(1, 1, 32)
    except ImportError:
        pass
    return found


def measure(n: int) -> dict[str, dict[str, float]]:
    """Microseconds: medians of n steps."""
    rows: dict[str, dict[str, float]] = {}
    with lowkey.Context(n_threads=1) as context, \
            lowkey.Cache(context, 'fp16', '64MiB', geometry=GEOMETRY) as cache:
        sequence, lk = cache.add(), cache._lk
        tensors = [Tensor(lowkey.Array((1, 1, 32), 'float32')) for _ in range(4)]
        k, v, q, out = (tensor.reference for tensor in tensors)
        pointer = cache._handle.get()
        cases = {'ctypes alone': (lambda step: lk.lk_append(pointer, 0, k, v),
                                  lambda step: lk.lk_attend(pointer, 0, q, out, None))}
        for name, make in makers().items():
            ours = [make() for _ in range(4)]
            cases[name] = (lambda step, a=ours: step.append(0, a[0], a[1]),
                           lambda step, a=ours: step.attend(0, a[2], a[3]))
            cases[f'{name}, new out'] = (cases[name][0], lambda step, a=ours: step.attend(0, a[2]))
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for _ in range(n):  # in turn, so that all see the same machine
            for name, (append, attend) in cases.items():
                times[name].append(one_step(cache, sequence, append, attend))
        for name, pairs in times.items():
            append_us, attend_us = (statistics.median(column) * 1e6 for column in zip(*pairs))
            rows[name] = {'append_us': append_us, 'attend_us': attend_us}
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--json', action='store_true')
    parser.add_argument('--steps', type=int, default=2000)
    options = parser.parse_args()
    rows = measure(options.steps)
    if options.json:
        print(json.dumps({'limit_us': LIMIT_US, 'rows': rows}))
    else:
        print(f'{"arrays":24} {"append us":>10} {"attend us":>10}')
        for name, row in rows.items():
            print(f'{name:24} {row["append_us"]:10.2f} {row["attend_us"]:10.2f}')
    return int(max(row['attend_us'] for row in rows.values()) > LIMIT_US)


if __name__ == '__main__':
    sys.exit(main())
