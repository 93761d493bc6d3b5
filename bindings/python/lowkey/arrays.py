# SPDX-License-Identifier: Apache-2.0
"""Arrays of other packages as tensors of lowkey, without copies.

Taken: NumPy arrays (float16, float32, and bfloat16 of ml_dtypes), PyTorch tensors, objects with
``__cuda_array_interface__`` (CuPy, Numba), objects with ``__dlpack__`` (JAX and others), and objects with
the buffer protocol. Shapes are [n_tokens, n_heads, head_dim]; the channel stride is 1, the other strides
are free.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _abi, dlpack, streams
from ._library import library
from .errors import ArgumentError, UnsupportedError

F16, BF16, F32 = 1, 2, 3
HOST, CUDA = 1, 2
DTYPES = {'float16': F16, 'bfloat16': BF16, 'float32': F32}
DTYPE_NAMES = {number: name for name, number in DTYPES.items()}
DTYPE_BYTES = {F16: 2, BF16: 2, F32: 4}
_LEGACY_STREAM = 1  # the legacy default stream in DLPack and the CUDA array interface


class Description(NamedTuple):
    """Where an array is. Strides are in elements."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: int
    memory: int
    writable: bool
    owner: Any  # must live as long as the pointer is used


def _dtype(name: str) -> int:
    try:
        return DTYPES[name]
    except KeyError:
        raise UnsupportedError(f'element type {name}: lowkey takes float16, bfloat16 and float32') from None


def _compact(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * shape[i]
    return tuple(strides)


def _in_elements(strides: tuple[int, ...] | None, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    if strides is None:
        return _compact(shape)
    if any(stride % itemsize for stride in strides):
        raise ArgumentError(f'strides {strides} bytes are no multiples of the element, {itemsize} bytes')
    return tuple(stride // itemsize for stride in strides)


_numpy_dtypes: dict[Any, int] = {}


def _numpy(array: Any, stream: int) -> Description:
    dtype = _numpy_dtypes.get(array.dtype)
    if dtype is None:
        if not array.dtype.isnative:
            raise UnsupportedError(f'element type {array.dtype.str} has the bytes in foreign order')
        dtype = _numpy_dtypes[array.dtype] = _dtype(array.dtype.name)
    interface = array.__array_interface__
    pointer, read_only = interface['data']
    return Description(pointer, array.shape, _in_elements(interface['strides'], array.shape, DTYPE_BYTES[dtype]),
                       dtype, HOST, not read_only, array)


_torch_dtypes: dict[Any, int] = {}


def _torch(tensor: Any, stream: int) -> Description:
    dtype = _torch_dtypes.get(tensor.dtype)
    if dtype is None:
        dtype = _torch_dtypes[tensor.dtype] = _dtype(str(tensor.dtype).removeprefix('torch.'))
    if tensor.requires_grad:
        raise ArgumentError('the tensor requires a gradient and lowkey computes none: use torch.no_grad() or detach()')
    device = tensor.device.type
    if device == 'cpu':
        memory = HOST
    elif device == 'cuda':
        memory = CUDA
    else:
        raise UnsupportedError(f'tensors on {device}: lowkey takes those on cpu and cuda')
    return Description(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), dtype, memory, True, tensor)


def _cuda_interface(array: Any, stream: int) -> Description:
    interface = array.__cuda_array_interface__
    name = {'<f2': 'float16', '<f4': 'float32'}.get(interface['typestr'])
    if name is None:  # bfloat16 has no name in this protocol
        if hasattr(array, '__dlpack__'):
            return _dlpack(array, stream)
        raise UnsupportedError(f'element type {interface["typestr"]}: lowkey takes float16, bfloat16 and float32')
    if interface.get('mask') is not None:
        raise UnsupportedError('masked arrays')
    producer = interface.get('stream')
    if producer is not None:
        streams.order_after(stream, producer)
    dtype, shape = DTYPES[name], tuple(interface['shape'])
    pointer, read_only = interface['data']
    return Description(pointer or 0, shape, _in_elements(interface.get('strides'), shape, DTYPE_BYTES[dtype]),
                       dtype, CUDA, not read_only, array)


def _dlpack(array: Any, stream: int) -> Description:
    device, _ = array.__dlpack_device__()
    memory = {dlpack.CPU: HOST, dlpack.CUDA_HOST: HOST, dlpack.CUDA: CUDA, dlpack.CUDA_MANAGED: CUDA}.get(int(device))
    if memory is None:
        raise UnsupportedError(f'DLPack device {int(device)}: lowkey takes host and CUDA memory')
    capsule = dlpack.request(array, (stream or _LEGACY_STREAM) if memory == CUDA else None)
    tensor, writable = dlpack.read(capsule)
    dtype = {(dlpack.FLOAT, 16): F16, (dlpack.BFLOAT, 16): BF16, (dlpack.FLOAT, 32): F32}.get(
        (tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise UnsupportedError(f'DLPack type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes: '
                               'lowkey takes float16, bfloat16 and float32')
    return Description((tensor.data or 0) + tensor.byte_offset, dlpack.shape_of(tensor), dlpack.strides_of(tensor),
                       dtype, memory, writable, capsule)


def _buffer(array: Any, stream: int) -> Description:
    view = memoryview(array)
    dtype = {'e': F16, 'f': F32, '<e': F16, '<f': F32}.get(view.format)
    if dtype is None:
        raise UnsupportedError(f'buffer format {view.format}: lowkey takes e (float16) and f (float32)')
    buffer = _PyBuffer()
    _get_buffer(array, ctypes.byref(buffer), 0x18)  # PyBUF_STRIDES; view says the rest
    try:
        pointer = buffer.buf
    finally:
        _release_buffer(ctypes.byref(buffer))  # view keeps the memory where it is
    return Description(pointer or 0, view.shape or (), _in_elements(view.strides, view.shape or (), view.itemsize),
                       dtype, HOST, not view.readonly, view)


class _PyBuffer(ctypes.Structure):
    _fields_ = [('buf', ctypes.c_void_p), ('obj', ctypes.c_void_p), ('len', ctypes.c_ssize_t),
                ('itemsize', ctypes.c_ssize_t), ('readonly', ctypes.c_int), ('ndim', ctypes.c_int),
                ('format', ctypes.c_char_p), ('shape', ctypes.c_void_p), ('strides', ctypes.c_void_p),
                ('suboffsets', ctypes.c_void_p), ('internal', ctypes.c_void_p)]


_get_buffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)(
    ('PyObject_GetBuffer', ctypes.pythonapi))
_release_buffer = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(('PyBuffer_Release', ctypes.pythonapi))

Describer = Callable[[Any, int], Description]
_describers: dict[type, Describer] = {}


def _describer(array: Any) -> Describer:
    """The reader of arrays of this type. Types of other packages are looked up, never imported."""
    kind = type(array)
    found: Describer | None = None
    numpy, torch = sys.modules.get('numpy'), sys.modules.get('torch')
    if numpy is not None and isinstance(array, numpy.ndarray):
        found = _numpy
    elif torch is not None and isinstance(array, torch.Tensor):
        found = _torch
    elif hasattr(array, '__cuda_array_interface__'):
        return _cuda_interface  # not kept for the type: only some arrays of JAX's one type have it
    elif hasattr(array, '__dlpack__') and hasattr(array, '__dlpack_device__'):
        return _dlpack
    else:
        try:
            memoryview(array)
        except TypeError:
            raise ArgumentError(f'{kind.__name__} is no array: lowkey takes NumPy arrays, PyTorch tensors and objects '
                                'with __dlpack__, __cuda_array_interface__ or the buffer protocol') from None
        found = _buffer
    _describers[kind] = found
    return found


def describe(array: Any, stream: int = 0) -> Description:
    """Where an array is. On CUDA, later work of ``stream`` waits for the array's producer."""
    return (_describers.get(type(array)) or _describer(array))(array, stream)


class Tensor:
    """An array with its C struct, made once and passed to many calls.

    array   [n_tokens, n_heads, head_dim]; [n_tokens, n_heads] for log-sum-exps
    stream  CUDA: the handle of the stream whose work uses it

    It keeps the array alive. The memory must not move.
    """

    __slots__ = ('_owner', 'array', 'dtype', 'memory', 'reference', 'shape', 'struct', 'writable')

    def __init__(self, array: Any, stream: int = 0):
        found = describe(array, stream)
        self.shape, strides = found.shape, found.strides
        if len(self.shape) == 2:
            self.shape, strides = (*self.shape, 1), (*strides, 1)
        if len(self.shape) != 3:
            raise ArgumentError(f'an array of shape {found.shape}: a tensor is [n_tokens, n_heads, head_dim]')
        if self.shape[2] > 1 and strides[2] != 1:
            raise ArgumentError(f'the channel stride is {strides[2]} elements and must be 1')
        self.struct = library().start(_abi.Tensor)
        self.dtype, self.memory, self.writable = found.dtype, found.memory, found.writable
        raw = self.struct
        raw.data, raw.dtype, raw.memory = found.pointer, found.dtype, found.memory
        raw.token_stride = strides[0] if self.shape[0] > 1 else 0
        raw.head_stride = strides[1] if self.shape[1] > 1 else 0
        self.reference = _abi.byref(raw)
        self.array, self._owner = array, found.owner


class Scratch:
    """A tensor struct that every call fills anew, so that no call makes one."""

    __slots__ = ('owner', 'reference', 'struct')

    def __init__(self) -> None:
        self.struct = library().start(_abi.Tensor)
        self.reference = _abi.byref(self.struct)
        self.owner: Any = None

    def fill(self, array: Any, shape: tuple[int, int, int], what: str, stream: int, written: bool = False) -> Any:
        """Point the struct at an array of this shape and return its reference.

        what     the argument's name in sentences
        written  the call writes the array
        """
        if type(array) is Tensor:
            if array.shape != shape:
                raise _wrong_shape(what, array.shape, shape)
            if written and not array.writable:
                raise ArgumentError(f'{what} is read-only')
            self.owner = array
            return array.reference
        found = (_describers.get(type(array)) or _describer(array))(array, stream)
        strides = found.strides
        if found.shape != shape:
            if shape[2] != 1 or found.shape != shape[:2]:
                raise _wrong_shape(what, found.shape, shape)
            strides = (*strides, 1)
        if shape[2] > 1 and strides[2] != 1:
            raise ArgumentError(f'the channel stride of {what} is {strides[2]} elements and must be 1')
        if written and not found.writable:
            raise ArgumentError(f'{what} is read-only')
        raw = self.struct
        raw.data, raw.dtype, raw.memory = found.pointer, found.dtype, found.memory
        # Packages may set any stride for a dimension of 1.
        raw.token_stride = strides[0] if shape[0] > 1 else 0
        raw.head_stride = strides[1] if shape[1] > 1 else 0
        self.owner = found.owner
        return self.reference


def _wrong_shape(what: str, shape: tuple[int, ...], wanted: tuple[int, int, int]) -> ArgumentError:
    tokens, heads, width = wanted
    names = f'[{tokens} tokens, {heads} heads, {width} channels]' if width > 1 else f'[{tokens} tokens, {heads} heads]'
    return ArgumentError(f'{what} has shape {list(shape)}, this step and layer need {names}')


class Array:
    """Host memory of lowkey's own, for callers without NumPy: the result of a call whose query was of neither
    NumPy nor PyTorch. Other packages read it by ``__dlpack__``, ``__array_interface__`` or ``memoryview(array.data)``.

    shape  outermost dimension first; the memory is compact
    dtype  "float16", "bfloat16" or "float32"
    """

    def __init__(self, shape: tuple[int, ...], dtype: str):
        self.shape, self.dtype = tuple(shape), dtype
        code = _dtype(dtype)
        self.data = (ctypes.c_uint8 * (math.prod(self.shape) * DTYPE_BYTES[code]))()
        self.pointer = ctypes.addressof(self.data)
        # Made once, since every call with the array reads it; of the memory, for an array that holds itself lives on.
        self._description = Description(self.pointer, self.shape, _compact(self.shape), code, HOST, True, self.data)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.dtype == 'bfloat16':
            raise AttributeError('bfloat16 has no name in the array interface')
        return {'version': 3, 'shape': self.shape, 'data': (self.pointer, False), 'strides': None,
                'typestr': '<f2' if self.dtype == 'float16' else '<f4'}

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        if dl_device not in (None, (dlpack.CPU, 0)):
            raise BufferError(f'this array is on the host and not on DLPack device {dl_device}')
        if copy:
            raise BufferError('this array is not copied by __dlpack__()')
        code = dlpack.BFLOAT if self.dtype == 'bfloat16' else dlpack.FLOAT
        return dlpack.export(self, self.pointer, self.shape, code, 8 * DTYPE_BYTES[DTYPES[self.dtype]],
                             max_version is not None and max_version[0] >= 1)

    def tolist(self) -> list[float]:
        """The elements in the order of their memory."""
        if self.dtype == 'bfloat16':
            raise UnsupportedError('tolist() of bfloat16')
        letter, bytes_ = ('e', 2) if self.dtype == 'float16' else ('f', 4)
        return list(struct.unpack(f'={len(self.data) // bytes_}{letter}', self.data))


def _own(array: Array, stream: int) -> Description:
    return array._description


_describers[Array] = _own


def empty_like(array: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    """A new array of the package, the device and (without dtype) the element type of ``array``."""
    if isinstance(array, Tensor):
        array = array.array
    describer = _describers.get(type(array)) or _describer(array)
    if describer is _own:
        return Array(shape, dtype or array.dtype)
    if describer is _numpy:
        return sys.modules['numpy'].empty(shape, dtype or array.dtype)
    if describer is _torch:
        torch = sys.modules['torch']
        return torch.empty(shape, dtype=getattr(torch, dtype) if dtype else array.dtype, device=array.device)
    if type(array).__module__.split('.')[0] == 'cupy':
        return sys.modules['cupy'].empty(shape, dtype or array.dtype)
    found = describe(array)
    if found.memory != HOST:
        raise ArgumentError(f'lowkey makes no device memory for {type(array).__name__}: give out')
    return Array(shape, dtype or DTYPE_NAMES[found.dtype])
