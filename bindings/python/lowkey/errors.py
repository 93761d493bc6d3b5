# SPDX-License-Identifier: Apache-2.0
"""One exception for each status of the library, with the library's sentence."""

from __future__ import annotations

__all__ = ['ArgumentError', 'BudgetError', 'BusyError', 'ClosedError', 'CorruptError', 'DataError', 'DeviceError',
           'Error', 'FileError', 'InternalError', 'LibraryError', 'MismatchError', 'NotFoundError',
           'OutOfMemoryError', 'StateError', 'UnsupportedError']


class Error(Exception):
    """Any failure of lowkey. ``status`` is the number of the C interface, ``str(error)`` the sentence."""

    status: int = -13


class ArgumentError(Error, ValueError):
    """A stated precondition does not hold: a value out of range, an array of the wrong shape. Correct the call."""

    status = -1


class StateError(Error, RuntimeError):
    """The call came in the wrong order. Correct the order."""

    status = -2


class ClosedError(StateError):
    """The object was closed, or the one that it belongs to."""


class NotFoundError(Error, LookupError):
    """No such sequence, preset, layer or device."""

    status = -3


class UnsupportedError(Error, NotImplementedError):
    """A valid request that this build or device cannot run. Nothing falls back by itself."""

    status = -4


class OutOfMemoryError(Error, MemoryError):
    """Host or device memory is exhausted."""

    status = -5


class BudgetError(Error):
    """The cache's byte budget is too small for the call. Remove or truncate sequences, or use a smaller plan."""

    status = -6


class CorruptError(Error, ValueError):
    """Untrusted bytes fail validation."""

    status = -7


class MismatchError(Error, ValueError):
    """Valid bytes or objects, but made for another geometry or version."""

    status = -8


class DataError(Error, ArithmeticError):
    """Keys or values hold an infinity or a NaN. The open step is poisoned: discard it."""

    status = -9


class BusyError(Error, RuntimeError):
    """The object is in use: it has live children, or a step is open."""

    status = -10


class FileError(Error):
    """A file or callback could not be read or written."""

    status = -11


class DeviceError(Error, RuntimeError):
    """The device is lost. Close the caches of the context, then the context."""

    status = -12


class InternalError(Error, RuntimeError):
    """A defect of lowkey itself."""

    status = -13


class LibraryError(Error, ImportError):
    """The shared library is missing, or its interface is not the one that this package was written for."""

    status = -8


BY_STATUS: dict[int, type[Error]] = {kind.status: kind for kind in (
    ArgumentError, StateError, NotFoundError, UnsupportedError, OutOfMemoryError, BudgetError, CorruptError,
    MismatchError, DataError, BusyError, FileError, DeviceError, InternalError)}
