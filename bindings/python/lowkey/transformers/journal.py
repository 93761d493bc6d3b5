# SPDX-License-Identifier: Apache-2.0
"""Measured costs in a file, so that an interrupted measurement goes on where it stopped."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from ..errors import CorruptError, FileError, MismatchError

_VERSION = 1


class Place(NamedTuple):
    """Keys or values of a KV head with a clip, and the document that they were measured on."""

    document: int
    layer: int
    kv_head: int
    is_value: bool
    clip: float


class Journal:
    """Costs by place. Each add() appends one line to the file, if there is one.

    path         the file; None = memory alone
    fingerprint  names the model, its texts and options; a file of others is refused

    A line that an interruption cut is left out. Raises FileError, CorruptError, MismatchError."""

    def __init__(self, path: str | os.PathLike[str] | None, fingerprint: str):
        self.path = None if path is None else os.fspath(path)
        self.costs: dict[Place, float] = {}
        self._waiting: list[str] = []
        self._warned = False
        if self.path is None:
            return
        try:
            self._read(fingerprint)
        except OSError as error:
            raise FileError(f'{self.path} cannot be read or written: {error.strerror}') from None

    def _read(self, fingerprint: str) -> None:
        assert self.path is not None
        head = json.dumps({'lowkey-costs': _VERSION, 'fingerprint': fingerprint})
        data = b''
        if os.path.exists(self.path):
            with open(self.path, 'rb') as file:
                data = file.read()
        whole = data[:data.rfind(b'\n') + 1]
        lines = whole.splitlines()
        if lines:
            self._check(lines[0], fingerprint)
            for number, line in enumerate(lines[1:], 2):
                self._take(line, number)
        with open(self.path, 'r+b' if data else 'wb') as file:
            file.truncate(len(whole))
            file.seek(len(whole))
            if not lines:
                file.write(head.encode() + b'\n')

    def _check(self, line: bytes, fingerprint: str) -> None:
        try:
            head = json.loads(line)
            version, found = head['lowkey-costs'], head['fingerprint']
        except (ValueError, KeyError, TypeError):
            raise CorruptError(f'{self.path} is no file of measured costs') from None
        if version != _VERSION or found != fingerprint:
            raise MismatchError(f'{self.path} has costs of another model, other texts or other options: remove it, or '
                                'name another file')

    def _take(self, line: bytes, number: int) -> None:
        try:
            for document, layer, kv_head, is_value, clip, cost in json.loads(line):
                self.costs[Place(int(document), int(layer), int(kv_head), bool(is_value), float(clip))] = float(cost)
        except (ValueError, TypeError):
            raise CorruptError(f'{self.path}, line {number}: no costs') from None

    def add(self, costs: Mapping[Place, float]) -> None:
        """Keep costs, and write them. Where the file cannot grow, warn once and write them with the next ones."""
        self.costs.update(costs)
        if self.path is None:
            return
        self._waiting.append(json.dumps([[*place, cost] for place, cost in costs.items()]) + '\n')
        try:
            self._write(''.join(self._waiting).encode())
            self._waiting = []
        except OSError as error:
            if not self._warned:
                warnings.warn(f'{self.path} cannot be written ({error.strerror}): the measurement goes on, and its '
                              'costs are written as soon as there is space', RuntimeWarning, stacklevel=2)
            self._warned = True

    def _write(self, data: bytes) -> None:
        assert self.path is not None
        with open(self.path, 'r+b', buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(end)  # no line is there in part
                raise

    def remove(self) -> None:
        """Delete the file."""
        if self.path is not None and os.path.exists(self.path):
            os.remove(self.path)
