# SPDX-License-Identifier: Apache-2.0
"""A progress bar with the time that is left, on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_CELLS = 24


def duration(seconds: float) -> str:
    """Seconds as people read them: "40 s", "6 min", "1.5 h"."""
    if seconds < 100:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 6000 else f'{seconds / 3600:.1f} h'


class Progress:
    """A line on standard error that names the work, its share that is done, and the time left.

    enabled  False = no line; a stream that is no terminal never gets one
    """

    def __init__(self, enabled: bool = True, stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._visible = enabled and self._stream.isatty()
        self._begin(' ', 0.0)

    def _begin(self, what: str, total: float) -> None:
        self.what, self.total, self.done, self._started = what, total, 0.0, time.monotonic()

    def start(self, what: str, total: float) -> None:
        """Begin work of ``total`` units, any unit."""
        self._begin(what, total)
        self._draw()

    def add(self, units: float = 1) -> None:
        """Count units as done."""
        self.done += units
        self._draw()

    @property
    def seconds_left(self) -> float | None:
        """The time that the rest takes at the speed so far; None before the first unit."""
        if self.done <= 0:
            return None
        return (time.monotonic() - self._started) * max(0.0, self.total - self.done) / self.done

    def note(self, sentence: str) -> None:
        """A line that stays."""
        if self._visible:
            self._stream.write(f'\r\033[K{sentence}\n')
            self._stream.flush()

    def _draw(self) -> None:
        if not self._visible:
            return
        full = min(_CELLS, int(_CELLS * self.done / self.total)) if self.total else 0
        left = self.seconds_left
        tail = '' if left is None else f', {duration(left)} left'
        self._stream.write(f'\r\033[K[{"#" * full}{"." * (_CELLS - full)}] {self.what}{tail}')
        self._stream.flush()

    def close(self) -> None:
        """Remove the line."""
        if self._visible:
            self._stream.write('\r\033[K')
            self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
