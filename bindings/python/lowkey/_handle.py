# SPDX-License-Identifier: Apache-2.0
"""Pointers of the library and when they end."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from ._library import _callback_state
from .errors import ClosedError, StateError


class Handle:
    """A pointer of the library that is destroyed once, and not before its children.

    The garbage collector ends the members of a cycle in any order; a parent that is to end before
    a child is ended by its last child. ``lock`` is held by calls that need the object alone,
    ``watch`` by those that may run beside them; whoever closes the object holds both.
    """

    __slots__ = ('_abandoned', '_destroy', '_parent', 'box', 'children', 'lock', 'watch', 'what')

    def __init__(self, what: str, box: ctypes.c_void_p, destroy: Callable[[ctypes.c_void_p], object],
                 parent: Handle | None = None):
        self.what, self.box, self._destroy, self._parent = what, box, destroy, parent
        self.lock, self.watch = threading.Lock(), threading.Lock()
        self.children: dict[int, Handle] = {}
        self._abandoned = False
        if parent is not None:
            parent.children[id(self)] = self

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
        with self.lock, self.watch:
            self.destroy()

    def destroy(self) -> None:
        """What the garbage collector calls: nobody uses the object any more."""
        if self.children:
            self._abandoned = True
        elif self.box:
            self._destroy(self.box)
            self.forget()

    def forget(self) -> None:
        """The pointer is gone."""
        self.box.value = None
        parent = self._parent
        if parent is not None:
            parent.children.pop(id(self), None)
            if parent._abandoned and not parent.children:
                parent.destroy()
