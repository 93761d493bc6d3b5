# SPDX-License-Identifier: Apache-2.0
"""What a long part does now: one line on a terminal, with the commands' output in a file. Elsewhere nothing changes."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import threading
import time


class Progress:
    """A context around one part. On a terminal the standard error goes to a file of the folder `logs`."""

    def __init__(self, logs: pathlib.Path, title: str):
        self.title = title
        self.log = logs / f'{title.split()[0]}.txt'
        self.is_terminal = sys.stderr.isatty()
        self.has_failed = False

    def __enter__(self) -> Progress:
        if self.is_terminal:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.terminal = os.fdopen(os.dup(2), 'w', buffering=1)
            with self.log.open('wb') as file:
                os.dup2(file.fileno(), 2)
            self.ended = threading.Event()
            self.painter = threading.Thread(target=self._paint, daemon=True)
            self.painter.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_terminal:
            self.ended.set()
            self.painter.join()
            sys.stderr.flush()
            os.dup2(self.terminal.fileno(), 2)
            self.terminal.write('\r\033[K')
            self.terminal.close()
            if self.has_failed:
                print(*self._lines()[-20:], f'the whole output: {self.log}', sep='\n', file=sys.stderr)

    def failed(self) -> None:
        """The end of the output is worth reading."""
        self.has_failed = True

    def _lines(self) -> list[str]:
        return self.log.read_text(errors='replace').splitlines()

    def _paint(self) -> None:
        started = time.monotonic()
        while not self.ended.wait(1):
            seconds = int(time.monotonic() - started)
            command = next((line for line in reversed(self._lines()) if line.startswith('+ ')), '')
            text = f'{self.title} {seconds // 60}:{seconds % 60:02} {command}'
            self.terminal.write('\r\033[K' + text[:shutil.get_terminal_size().columns - 1])
