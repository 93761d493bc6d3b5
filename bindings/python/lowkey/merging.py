# SPDX-License-Identifier: Apache-2.0
"""Merging attention over disjoint sets of keys."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from . import _abi
from ._library import check
from .arrays import Tensor, describe, empty_like
from .context import Context
from .errors import ArgumentError


def _tensor(array: Any, shape: tuple[int, int, int], what: str, stream: int, written: bool = False) -> Tensor:
    tensor = array if isinstance(array, Tensor) else Tensor(array, stream)
    if tensor.shape != shape:
        raise ArgumentError(f'{what} has shape {list(tensor.shape)}, the others need {list(shape)}')
    if written and not tensor.writable:
        raise ArgumentError(f'{what} is read-only')
    return tensor


def merge(context: Context, outs: Sequence[Any], lses: Sequence[Any], out: Any = None, lse: Any = None, *,
          stream: Any = None) -> Any:
    """Join attention of the same queries over sets of keys that share no key: each split weighs exp(its LSE).

    outs    1 to 16 outputs of Step.attend(), each [n_tokens, n_heads, head_dim]
    lses    their log-sum-exps, float32 [n_tokens, n_heads]
    out     [n_tokens, n_heads, head_dim] written by the call; default: a new array like the first output
    lse     None, True for a new array, or a float32 array [n_tokens, n_heads] for the LSEs over all splits
    stream  CUDA: as for Cache.step()

    Returns out, or (out, lse) when lse is given. Raises ArgumentError, UnsupportedError, DeviceError.
    """
    if not outs or len(outs) != len(lses):
        raise ArgumentError(f'{len(outs)} outputs and {len(lses)} log-sum-exps: each split has one of both')
    queue, handle = context._queue(stream)
    first = outs[0].shape if isinstance(outs[0], Tensor) else describe(outs[0], handle).shape
    if len(first) != 3:
        raise ArgumentError(f'outs[0] has shape {list(first)}: a tensor is [n_tokens, n_heads, head_dim]')
    shape = (first[0], first[1], first[2])
    lse_shape = (shape[0], shape[1], 1)
    if out is None:
        out = empty_like(outs[0], shape)
    if lse is True:
        lse = empty_like(outs[0], shape[:2], 'float32')
    splits = [_tensor(array, shape, f'outs[{i}]', handle) for i, array in enumerate(outs)]
    sums = [_tensor(array, lse_shape, f'lses[{i}]', handle) for i, array in enumerate(lses)]
    into = _tensor(out, shape, 'out', handle, written=True)
    total = None if lse is None else _tensor(lse, lse_shape, 'lse', handle, written=True)
    pointers = ctypes.POINTER(_abi.Tensor) * len(splits)
    with context._handle.read_lock:
        check(context._lk.lk_merge(context._handle.get(), queue, *shape, len(splits),
                                   pointers(*(ctypes.pointer(t.struct) for t in splits)),
                                   pointers(*(ctypes.pointer(t.struct) for t in sums)),
                                   into.reference, None if total is None else total.reference))
    return out if lse is None else (out, lse)
