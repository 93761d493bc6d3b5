# SPDX-License-Identifier: Apache-2.0
"""Devices, contexts, what they can run, and their callbacks."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from . import _abi, streams
from ._fields import Fields, number_of
from ._handle import Handle
from ._library import InCallback, check, library
from .arrays import DTYPES
from .errors import ArgumentError, NotFoundError, UnsupportedError

BACKENDS = {'cpu': 1, 'cuda': 2, 'vulkan': 3}
BACKEND_NAMES = {number: name for name, number in BACKENDS.items()}
LOG_LEVELS = {'none': 0, 'error': 1, 'warning': 2, 'info': 3, 'debug': 4}
LOG_LEVEL_NAMES = {number: name for name, number in LOG_LEVELS.items()}
MEMORY_KINDS = {'host': 1, 'cuda': 2, 'vulkan': 3}

Log = Callable[[str, str], object]
Allocate = Callable[[int, int], int]
Release = Callable[[int, int, int], object]


@dataclass(frozen=True)
class Device:
    """One device that a context can be opened on.

    index         among the devices of its backend
    n_threads     CPU: hardware threads; else 0
    memory_bytes  total memory
    free_bytes    memory that is free now
    """

    backend: str
    index: int
    n_threads: int
    memory_bytes: int
    free_bytes: int
    name: str
    features: str


def _device(info: _abi.DeviceInfo) -> Device:
    return Device(BACKEND_NAMES.get(info.backend, str(info.backend)), info.index, info.n_threads, info.memory_bytes,
                  info.free_bytes, info.name.decode(errors='replace'), info.features.decode(errors='replace'))


def devices() -> list[Device]:
    """The devices of this machine that the library's build can use."""
    lk, count = library(), ctypes.c_uint32()
    check(lk.lk_device_count(_abi.byref(count)))
    found = []
    for ordinal in range(count.value):
        info = lk.start(_abi.DeviceInfo)
        check(lk.lk_device_get(ordinal, _abi.byref(info)))
        found.append(_device(info))
    return found


@dataclass(frozen=True)
class Vulkan:
    """How Vulkan opens a device of lowkey's own.

    mask            LK_VULKAN_NO_* bits: features of the device that are not used
    validation      open VK_LAYER_KHRONOS_validation; its messages go to the context's log
    pipeline_cache  bytes of Context.vulkan_pipeline_cache(), or none
    """

    mask: int = 0
    validation: bool = False
    pipeline_cache: bytes = field(default=b'', repr=False)


@dataclass(frozen=True)
class Capability(Fields):
    """A question to Context.supports(): pages of these widths, attended with tensors of this type.

    group_size  query heads per KV head
    memory      of the tensors: "host", "cuda" or "vulkan"
    dtype       of the tensors: "float16", "bfloat16" or "float32"
    value_dim   channels of a head's values; 0 = head_dim
    is_latent   1: a latent layer, whose values are channels of its keys
    """

    _struct = _abi.Capability
    _tables = {'memory': MEMORY_KINDS, 'dtype': DTYPES}

    head_dim: int = 128
    group_size: int = 1
    key_bits: int = 16
    value_bits: int = 16
    page_tokens: int = 128
    memory: str = 'host'
    dtype: str = 'float16'
    value_dim: int = 0
    is_latent: int = 0


class Context:
    """An open device. It may be used from any threads.

    backend       "cpu", "cuda" or "vulkan"
    device_index  among the devices of the backend
    n_threads     CPU: worker threads, the caller's one included; 0 = all CPUs that the process may use
    cpu_mask      LK_CPU_* bits: instruction sets that are not used
    log           called with (level, message), from any thread that calls lowkey; it may not call lowkey
    log_level     messages up to this level are sent: "error", "warning", "info" or "debug"
    allocator     (allocate, release): host memory. allocate(bytes, alignment) gives an address or 0,
                  release(address, bytes, alignment) takes it back. From any thread
    vulkan        how to open Vulkan

    An exception in a callback cannot pass through the library: it goes to sys.unraisablehook, and an
    allocation that raises has failed. The end of a ``with`` block also closes the context's caches;
    ``close()`` refuses while one is open.

    Raises NotFoundError, UnsupportedError, OutOfMemoryError, DeviceError.
    """

    def __init__(self, backend: str = 'cpu', device_index: int = 0, *, n_threads: int = 0, cpu_mask: int = 0,
                 log: Log | None = None, log_level: str = 'warning',
                 allocator: tuple[Allocate, Release] | None = None, vulkan: Vulkan | None = None):
        lk = self._lk = library()
        desc = lk.start(_abi.ContextDesc)
        desc.backend = number_of(BACKENDS, backend, 'backend')
        desc.device_index, desc.n_threads, desc.cpu_mask = device_index, n_threads, cpu_mask
        self.backend = BACKEND_NAMES.get(desc.backend, str(desc.backend))
        self.device_index = device_index
        callbacks: list[Any] = []  # they live as long as the handle's destroyer
        if log is not None:
            desc.log, desc.log_level = _log_callback(log), number_of(LOG_LEVELS, log_level, 'log_level')
            callbacks.append(desc.log)
        if allocator is not None:
            desc.alloc, desc.free = _allocator_callbacks(*allocator)
            callbacks += [desc.alloc, desc.free]
        keep: Any = None
        if vulkan is not None:
            keep = _vulkan_desc(vulkan)
            desc.vulkan = ctypes.pointer(keep)
        box = ctypes.c_void_p()
        check(lk.lk_context_open(_abi.byref(desc), _abi.ABI_VERSION, _abi.byref(box)))

        def end(pointer: ctypes.c_void_p, callbacks: list[Any] = callbacks) -> None:
            lk.lk_context_close(_abi.byref(pointer))

        self._handle = Handle('context', box, end)
        weakref.finalize(self, self._handle.destroy)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return not self._handle.box

    def close(self) -> None:
        """Close the context. Closing twice is fine. Raises BusyError while a cache of it is open."""
        handle = self._handle
        if self.closed:
            return
        with handle.lock, handle.read_lock:
            check(self._lk.lk_context_close(_abi.byref(handle.get())))
            handle.forget()

    def __enter__(self) -> Context:
        self._handle.get()
        return self

    def __exit__(self, *_: object) -> None:
        for child in list(self._handle.children.values()):
            child.close()
        self.close()

    @property
    def device(self) -> Device:
        """The device that the context was opened on."""
        info = self._lk.start(_abi.DeviceInfo)
        with self._handle.read_lock:
            check(self._lk.lk_context_device(self._handle.get(), _abi.byref(info)))
        return _device(info)

    def supports(self, capability: Capability) -> bool:
        """Can the context pack and attend such pages? ``require()`` raises the reason.

        Raises ArgumentError (no such width, head dim or page)."""
        try:
            self.require(capability)
        except UnsupportedError:
            return False
        return True

    def require(self, capability: Capability) -> None:
        """Raise the refusal that a cache would give: the sentence of UnsupportedError names the missing feature."""
        raw = capability.raw()
        with self._handle.read_lock:
            check(self._lk.lk_context_supports(self._handle.get(), _abi.byref(raw)))

    def _queue(self, stream: Any) -> tuple[Any, int]:
        """The queue of a call and its stream's handle; None and 0 for backends other than CUDA."""
        if self.backend != 'cuda':
            if stream is not None:
                raise ArgumentError(f'a context on {self.backend} takes no stream')
            return None, 0
        queue = self._lk.start(_abi.Queue)
        queue.kind = _abi.CONSTANTS['LK_QUEUE_CUDA_STREAM']
        queue.handle = streams.current(self.device_index) if stream is None else streams.handle_of(stream)
        return _abi.byref(queue), queue.handle or 0

    def vulkan_pipeline_cache(self) -> bytes:
        """The pipelines that the driver compiled for this context so far, for Vulkan.pipeline_cache of a later one."""
        needed = ctypes.c_uint64()
        with self._handle.read_lock:
            pointer = self._handle.get()
            check(self._lk.lk_vulkan_pipeline_cache(pointer, None, 0, _abi.byref(needed)))
            buffer = (ctypes.c_uint8 * needed.value)()
            check(self._lk.lk_vulkan_pipeline_cache(pointer, buffer, needed.value, _abi.byref(needed)))
        return bytes(buffer)[:needed.value]


def find_device(backend: str, index: int = 0) -> Device:
    """The device of a backend. Raises NotFoundError."""
    for device in devices():
        if (device.backend, device.index) == (backend, index):
            return device
    raise NotFoundError(f'this machine and build have no {backend} device {index}')


def report(function: Any) -> None:
    """Give the exception that is being handled to sys.unraisablehook: it was raised in a callback."""
    kind, value, trace = sys.exc_info()
    note = _Unraisable(kind, value, trace, 'Exception ignored in a callback of lowkey', function)
    sys.unraisablehook(cast(Any, note))


@dataclass
class _Unraisable:
    exc_type: Any
    exc_value: Any
    exc_traceback: Any
    err_msg: str
    object: Any


def _log_callback(log: Log) -> Any:
    def send(_: int, level: int, message: bytes) -> None:
        try:
            with InCallback():
                log(LOG_LEVEL_NAMES.get(level, str(level)), message.decode(errors='replace'))
        except BaseException:
            report(log)
    return _abi.LogFn(send)


def _allocator_callbacks(allocate: Allocate, release: Release) -> tuple[Any, Any]:
    def alloc(_: int, n_bytes: int, alignment: int) -> int | None:
        try:
            with InCallback():
                return allocate(n_bytes, alignment) or None
        except BaseException:
            report(allocate)
            return None

    def free(_: int, pointer: int, n_bytes: int, alignment: int) -> None:
        try:
            with InCallback():
                release(pointer, n_bytes, alignment)
        except BaseException:
            report(release)
    return _abi.AllocFn(alloc), _abi.FreeFn(free)


def _vulkan_desc(options: Vulkan) -> _abi.VulkanDesc:
    desc = library().start(_abi.VulkanDesc)
    desc.mask, desc.validation = options.mask, int(options.validation)
    if options.pipeline_cache:
        text = ctypes.create_string_buffer(options.pipeline_cache, len(options.pipeline_cache))
        desc.pipeline_cache, desc.pipeline_cache_bytes = ctypes.cast(text, ctypes.c_void_p), len(text)
        desc.keep = text  # an attribute, not a field: it lives as long as the struct
    return desc
