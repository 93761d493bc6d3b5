# SPDX-License-Identifier: Apache-2.0
"""Pointers of the library and their lifetimes."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable

from ._library import _callback_state
from .errors import ClosedError, StateError

_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def _enter_child() -> None:
    """In a process that os.fork() made: a thread that is not here may have held a lock."""
    for handle in list(_handles):
        handle.renew_locks()


os.register_at_fork(after_in_child=_enter_child)


class Handle:
    """A pointer of the library that is destroyed once, and not before its children.

    The garbage collector destroys the members of a cycle in any order, so a parent that it destroys before
    a child is destroyed with its last child. Calls that need the object alone hold ``lock``, calls that may
    run at the same time as those hold ``read_lock``, and close() holds both.
    """

    __slots__ = ('__weakref__', '_abandoned', '_destroy', '_parent', 'box', 'children', 'lock', 'read_lock', 'what')

    def __init__(self, what: str, box: ctypes.c_void_p, destroy: Callable[[ctypes.c_void_p], object],
                 parent: Handle | None = None):
        self.what, self.box, self._destroy, self._parent = what, box, destroy, parent
        self.renew_locks()
        _handles.add(self)
        self.children: dict[int, Handle] = {}
        self._abandoned = False
        if parent is not None:
            parent.children[id(self)] = self

    def renew_locks(self) -> None:
        """Make locks that nobody holds."""
        self.lock, self.read_lock = threading.Lock(), threading.Lock()

    def get(self) -> ctypes.c_void_p:
        """The pointer. Raises ClosedError, and StateError inside a callback of the library."""
        if _callback_state.depth:
            raise StateError('a callback of lowkey may not call lowkey')
        if not self.box:
            raise ClosedError(f'the {self.what} is closed')
        return self.box

    def close(self) -> None:
        """Destroy the object now, after the calls that use it."""
        if _callback_state.depth:
            raise StateError('a callback of lowkey may not call lowkey')
        with self.lock, self.read_lock:
            self.destroy()

    def destroy(self) -> None:
        """Destroy the object for the garbage collector: nothing else uses it."""
        if self.children:
            self._abandoned = True
        elif self.box:
            self._destroy(self.box)
            self.forget()

    def forget(self) -> None:
        """Drop the pointer, which was destroyed, and an abandoned parent without other children."""
        self.box.value = None
        parent = self._parent
        if parent is not None:
            parent.children.pop(id(self), None)
            if parent._abandoned and not parent.children:
                parent.destroy()
