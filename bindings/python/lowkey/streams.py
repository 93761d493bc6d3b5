# SPDX-License-Identifier: Apache-2.0
"""CUDA streams of other packages: which stream is current, and how one waits for another."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from .errors import ArgumentError, DeviceError, UnsupportedError


def handle_of(stream: Any) -> int:
    """The cudaStream_t of an integer or of a stream object of PyTorch, CuPy, Numba or cuda.core."""
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, '__cuda_stream__', None)
    if protocol is not None:
        pair = protocol() if callable(protocol) else protocol
        return int(pair[1])
    for name in ('cuda_stream', 'ptr', 'handle'):
        value = getattr(stream, name, None)
        if value is not None:
            return int(getattr(value, 'value', value) or 0)
    raise ArgumentError(f'{type(stream).__name__} is no CUDA stream: give an integer or a stream of a CUDA package')


def current(device_index: int) -> int:
    """The stream that is current on a device: PyTorch's where it uses CUDA, else CuPy's, else the legacy default."""
    torch = sys.modules.get('torch')
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.current_stream(device_index).cuda_stream)
    cupy = sys.modules.get('cupy')
    if cupy is not None:
        return int(cupy.cuda.get_current_stream().ptr)
    return 0


_driver: Any = None


def _cuda_driver() -> Any:
    global _driver
    if _driver is None:
        try:
            driver = ctypes.CDLL('libcuda.so.1')
        except OSError as error:
            raise UnsupportedError(f'an array names the stream that made it, and there is no CUDA driver: {error}') \
                from None
        pointer = ctypes.c_void_p
        for name, arguments in (('cuEventCreate', [pointer, ctypes.c_uint]), ('cuEventRecord', [pointer, pointer]),
                                ('cuStreamWaitEvent', [pointer, pointer, ctypes.c_uint]),
                                ('cuEventDestroy_v2', [pointer])):
            getattr(driver, name).argtypes = arguments
        _driver = driver
    return _driver


def order_after(consumer: int, producer: int) -> None:
    """Let stream ``consumer`` wait for the work that ``producer`` has now. 0 and 1 are the legacy default stream."""
    if (consumer or 1) == (producer or 1):
        return
    driver, event = _cuda_driver(), ctypes.c_void_p()

    def must(status: int) -> None:
        if status:
            raise DeviceError(f'ordering stream {consumer:#x} after {producer:#x} failed with CUresult {status}')

    must(driver.cuEventCreate(ctypes.byref(event), 2))  # CU_EVENT_DISABLE_TIMING
    try:
        must(driver.cuEventRecord(event, producer))
        must(driver.cuStreamWaitEvent(consumer, event, 0))
    finally:
        driver.cuEventDestroy_v2(event)
