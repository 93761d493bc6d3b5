# SPDX-License-Identifier: Apache-2.0
"""Callbacks whose exceptions are raised by the call that ran them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._library import InCallback, check


class Calls:
    """Callbacks that run inside calls of their own thread: the first exception is raised when the call ends."""

    def __init__(self) -> None:
        self.raised: BaseException | None = None

    def guard(self, function: Callable[..., int], failed: int) -> Callable[..., int]:
        """The function for the library, which gets ``failed`` when it raises."""
        def call(*arguments: Any) -> int:
            try:
                with InCallback():
                    return function(*arguments)
            except BaseException as error:
                self.raised = self.raised or error
                return failed
        return call

    def check(self, status: int) -> None:
        """Raise the exception of a callback during the call, or else that of the status."""
        raised, self.raised = self.raised, None
        if status and raised is not None:
            raise raised
        check(status)
