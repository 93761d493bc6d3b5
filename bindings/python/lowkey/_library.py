# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the shared library once, checks its version and turns statuses into exceptions."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from . import _abi
from .errors import BY_STATUS, Error, LibraryError, StateError, UnsupportedError

VARIABLE = 'LOWKEY_LIBRARY'
NATIVE = pathlib.Path(__file__).with_name('_native')  # what a wheel contains besides Python: bin, lib and share
S = TypeVar('S', bound=ctypes.Structure)


class _CallbackState(threading.local):
    depth = 0


_callback_state = _CallbackState()


def candidates() -> list[str]:
    """Names to try, in order. LOWKEY_LIBRARY, when it is set, is the only one; without it, the library of the wheel."""
    named = os.environ.get(VARIABLE)
    if named:
        return [named]
    packaged = NATIVE / f'lib/liblowkey.so.{_abi.ABI_MAJOR}'
    if packaged.exists():
        return [str(packaged)]
    found = ctypes.util.find_library('lowkey')
    return [name for name in (found, f'liblowkey.so.{_abi.ABI_MAJOR}', 'liblowkey.so', 'liblowkey.dylib') if name]


def _open() -> ctypes.CDLL:
    tried = []
    for name in candidates():
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            tried.append(f'{name}: {error}')
    raise LibraryError(f'no shared library of lowkey; the wheel of lowkey contains it, or set {VARIABLE} to its path '
                       f'({"; ".join(tried)})')


def _missing(name: str) -> Callable[..., int]:
    def call(*_: Any) -> int:
        raise UnsupportedError(f'{name}() is newer than the library that is loaded')
    return call


class Library:
    """The functions of the loaded library as attributes named as in C, with their argument types."""

    def __init__(self, handle: ctypes.CDLL):
        self.handle = handle
        try:
            version = handle.lk_abi_version
            version.restype = ctypes.c_uint32
        except AttributeError:
            raise LibraryError(f'{handle._name} has no lk_abi_version(): it is another library') from None
        self.abi_version: int = version()
        major, minor = self.abi_version >> 16, self.abi_version & 0xFFFF
        if major != _abi.ABI_MAJOR or minor < _abi.ABI_MINOR:
            raise LibraryError(f'{handle._name} has interface {major}.{minor}, this package needs '
                               f'{_abi.ABI_MAJOR}.{_abi.ABI_MINOR} or a later minor number')
        for name, (result, arguments) in _abi.FUNCTIONS.items():
            try:
                function = getattr(handle, name)
            except AttributeError:
                function = _missing(name)
            else:
                function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # for type checkers: attributes are set by the table

    def start(self, kind: type[S]) -> S:
        """A struct filled by its lk_*_init()."""
        value = kind()
        check(getattr(self, f'lk_{_abi.STRUCT_NAMES[kind]}_init')(_abi.byref(value), ctypes.sizeof(kind)))
        return value


_loaded: Library | None = None
_load_lock = threading.Lock()


def library() -> Library:
    """The library, loaded by the first call.

    Raises LibraryError, and StateError inside a callback of the library, which may not call it."""
    if _callback_state.depth:
        raise StateError('a callback of lowkey may not call lowkey')
    return _loaded if _loaded is not None else _load()


def _load() -> Library:
    global _loaded
    with _load_lock:
        if _loaded is None:
            _loaded = Library(_open())
        return _loaded


def check(status: int) -> None:
    """Raise the exception of a status, with the sentence of this thread's last failure."""
    if status != 0:
        raise failure(status)


def failure(status: int) -> Error:
    lk = _loaded
    assert lk is not None
    needed = ctypes.c_size_t()
    lk.lk_last_error(None, 0, _abi.byref(needed))
    text = ctypes.create_string_buffer(max(needed.value, 1))
    lk.lk_last_error(text, len(text), None)
    kind = BY_STATUS.get(status, Error)
    error = kind(text.value.decode(errors='replace') or lk.lk_status_text(status).decode())
    error.status = status
    return error


class InCallback:
    """Around Python code that the library calls."""

    def __enter__(self) -> None:
        _callback_state.depth += 1

    def __exit__(self, *_: object) -> None:
        _callback_state.depth -= 1


def version() -> str:
    """The release of the loaded library, "major.minor.patch"."""
    return str(library().lk_version(), 'ascii')


def build_info() -> str:
    """One line about the loaded library: compiler, backends, CPU paths and options."""
    return str(library().lk_build_info(), 'utf-8')
