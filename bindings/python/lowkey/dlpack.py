# SPDX-License-Identifier: Apache-2.0
"""DLPack 1.0 through ctypes: reading capsules of other packages and making our own."""

from __future__ import annotations

import ctypes as c
from typing import Any

VERSION = (1, 0)
CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
FLOAT, BFLOAT = 2, 4
READ_ONLY = 1
LEGACY_NAME, VERSIONED_NAME = b'dltensor', b'dltensor_versioned'

Deleter = c.CFUNCTYPE(None, c.c_void_p)


class DLTensor(c.Structure):
    _fields_ = [('data', c.c_void_p), ('device_type', c.c_int32), ('device_id', c.c_int32), ('ndim', c.c_int32),
                ('code', c.c_uint8), ('bits', c.c_uint8), ('lanes', c.c_uint16),
                ('shape', c.POINTER(c.c_int64)), ('strides', c.POINTER(c.c_int64)), ('byte_offset', c.c_uint64)]


class Managed(c.Structure):
    _fields_ = [('tensor', DLTensor), ('context', c.c_void_p), ('deleter', Deleter)]


class ManagedVersioned(c.Structure):
    _fields_ = [('major', c.c_uint32), ('minor', c.c_uint32), ('context', c.c_void_p), ('deleter', Deleter),
                ('flags', c.c_uint64), ('tensor', DLTensor)]


_pointer_of = c.PYFUNCTYPE(c.c_void_p, c.py_object, c.c_char_p)(('PyCapsule_GetPointer', c.pythonapi))
_is_valid = c.PYFUNCTYPE(c.c_int, c.py_object, c.c_char_p)(('PyCapsule_IsValid', c.pythonapi))
_new = c.PYFUNCTYPE(c.py_object, c.c_void_p, c.c_char_p, c.c_void_p)(('PyCapsule_New', c.pythonapi))
# A capsule that is being destroyed has no references left: it may not become a Python object.
_raw_pointer_of = c.PYFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p)(('PyCapsule_GetPointer', c.pythonapi))
_raw_is_valid = c.PYFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p)(('PyCapsule_IsValid', c.pythonapi))


def request(producer: Any, stream: int | None) -> Any:
    """Request a capsule from a producer. ``stream`` is the protocol's number for its device, None on the host."""
    arguments = {} if stream is None else {'stream': stream}
    try:
        return producer.__dlpack__(max_version=VERSION, **arguments)
    except TypeError:  # older than DLPack 1.0
        return producer.__dlpack__(**arguments)


def read(capsule: Any) -> tuple[DLTensor, bool]:
    """The tensor of a capsule and whether it may be written. It is valid while the capsule lives.
    The capsule stays unconsumed, so it frees its tensor when it is destroyed."""
    if _is_valid(capsule, VERSIONED_NAME):
        managed = ManagedVersioned.from_address(_pointer_of(capsule, VERSIONED_NAME))
        if managed.major != VERSION[0]:
            raise BufferError(f'DLPack {managed.major}.{managed.minor} is not {VERSION[0]}.x')
        return managed.tensor, not managed.flags & READ_ONLY
    if _is_valid(capsule, LEGACY_NAME):
        return Managed.from_address(_pointer_of(capsule, LEGACY_NAME)).tensor, True
    raise BufferError(f'{capsule!r} is no capsule of DLPack')


def shape_of(tensor: DLTensor) -> tuple[int, ...]:
    return tuple(tensor.shape[:tensor.ndim])


def strides_of(tensor: DLTensor) -> tuple[int, ...]:
    """In elements; a tensor without strides is compact and row-major."""
    if tensor.strides:
        return tuple(tensor.strides[:tensor.ndim])
    strides, step = [], 1
    for n in reversed(shape_of(tensor)):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


# Exports that a consumer or a capsule still holds, by the address of their managed tensor.
_exports: dict[int, tuple[Any, ...]] = {}


def _forget(address: int) -> None:
    _exports.pop(address, None)


def _forget_unconsumed(capsule: int) -> None:
    for name in (VERSIONED_NAME, LEGACY_NAME):
        if _raw_is_valid(capsule, name):
            _exports.pop(_raw_pointer_of(capsule, name), None)


_delete, _capsule_ends = Deleter(_forget), Deleter(_forget_unconsumed)


def export(owner: Any, pointer: int, shape: tuple[int, ...], code: int, bits: int, versioned: bool) -> Any:
    """A capsule for compact host memory at ``pointer``, which lives as long as ``owner``."""
    dims = (c.c_int64 * len(shape))(*shape)
    tensor = DLTensor(pointer, CPU, 0, len(shape), code, bits, 1, dims, None, 0)
    strides = (c.c_int64 * len(shape))(*strides_of(tensor))
    tensor.strides = strides
    managed: Any
    if versioned:
        managed = ManagedVersioned(*VERSION, None, _delete, 0, tensor)
    else:
        managed = Managed(tensor, None, _delete)
    address = c.addressof(managed)
    _exports[address] = (managed, dims, strides, owner)
    name = VERSIONED_NAME if versioned else LEGACY_NAME
    return _new(address, name, c.cast(_capsule_ends, c.c_void_p))
