# SPDX-License-Identifier: Apache-2.0
"""What calls through the package take: `lowkey bench --bindings` runs this with a number of steps.

Each step has one token of one head of 32 channels in an empty sequence, where the library has next to nothing to do.
"ctypes alone" calls it with tensors made before, without the package.
"""

from __future__ import annotations

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


if __name__ == '__main__':
    print(json.dumps({'rows': measure(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)}))
