# SPDX-License-Identifier: Apache-2.0
"""Dataclasses as structs of the library, field by field."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar, TypeVar

from ._library import library
from .errors import ArgumentError

F = TypeVar('F', bound='Fields')


def number_of(table: dict[str, int], name: str | int, what: str) -> int:
    """The number of a name in a table. Numbers pass as they are."""
    if isinstance(name, int):
        return name
    if name not in table:
        raise ArgumentError(f'{what} is {name!r}, must be one of {", ".join(table)}')
    return table[name]


def name_of(table: dict[str, int], number: int) -> str:
    """The name of a number in a table."""
    return next(name for name, known in table.items() if known == number)


class Fields:
    """Base of dataclasses whose fields have the names of a struct's. Fields that only the dataclass has are its own
    to fill, and a field that is None stays as lk_*_init() set it."""

    _struct: ClassVar[type[ctypes.Structure]]
    _tables: ClassVar[dict[str, dict[str, int]]] = {}  # for fields that are names here and numbers in C
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def _kinds(cls) -> dict[str, Any]:
        return {field[0]: field[1] for field in cls._struct._fields_ if field[0] in cls.__dataclass_fields__}

    def raw(self) -> Any:
        """The struct. It keeps the memory that it points to alive."""
        raw = library().start(self._struct)
        for name, kind in self._kinds().items():
            value = getattr(self, name)
            if name in self._tables and value is not None:
                value = number_of(self._tables[name], value, name)
            elif hasattr(kind, 'contents'):  # a pointer to the elements of a sequence
                value = (kind._type_ * len(value))(*value) if value else None
            elif issubclass(kind, ctypes.Array):
                if len(value) > kind._length_:
                    raise ArgumentError(f'{len(value)} {name}, there are {kind._length_}')
                value = kind(*value)
            if value is not None:
                setattr(raw, name, value)
        return raw

    @classmethod
    def of(cls: type[F], raw: ctypes.Structure, **others: Any) -> F:
        """The dataclass of a struct; ``others`` has the fields that are not read from it."""
        for name in cls._kinds():
            value = getattr(raw, name)
            if name in cls._tables:
                value = name_of(cls._tables[name], value)
            elif isinstance(cls.__dataclass_fields__[name].default, bool):
                value = bool(value)
            elif isinstance(value, ctypes.Array):
                value = tuple(value)
            others.setdefault(name, value)
        return cls(**others)
