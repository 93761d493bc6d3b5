# SPDX-License-Identifier: Apache-2.0
"""Snapshots: sequences of a cache as bytes, in memory, in a file or through a callback."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Union

from . import _abi
from ._calls import Calls
from ._library import check, library
from .errors import ArgumentError

if TYPE_CHECKING:
    from .cache import Cache, Sequence


class Writer(Protocol):
    """An object that save() writes to, for example a binary file."""

    def write(self, data: bytes, /) -> Any:
        """Write all of the bytes, or raise."""
        ...


class Reader(Protocol):
    """An object that load() reads from, for example a binary file."""

    def read(self, n_bytes: int, /) -> bytes:
        """At most n_bytes of what follows; no bytes at the end."""
        ...


Path = Union[str, os.PathLike]  # type: ignore[type-arg]
Target = Union[Path, Writer, None]
Source = Union[Path, bytes, bytearray, memoryview, Reader]
Progress = Callable[[int, int], object]


def _desc(calls: Calls, fingerprint: bytes, progress: Progress | None) -> _abi.SnapshotDesc:
    desc = library().start(_abi.SnapshotDesc)
    desc.keep = ctypes.create_string_buffer(fingerprint, max(len(fingerprint), 1))
    desc.fingerprint_bytes = len(fingerprint)
    if fingerprint:
        desc.fingerprint = ctypes.cast(desc.keep, ctypes.c_void_p)
    if progress is not None:
        report = progress

        def call(_: int, done: int, total: int) -> int:
            report(done, total)
            return 0
        desc.progress = _abi.ProgressFn(calls.guard(call, 1))
    return desc


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def save(cache: Cache, target: Target, sequences: Iterable[Sequence] | None, fingerprint: bytes,
         progress: Progress | None) -> bytes | None:
    """Cache.save()."""
    chosen = None if sequences is None else tuple(sequences)
    if chosen == ():
        raise ArgumentError('no sequences to save')
    for sequence in chosen or ():
        if sequence.cache is not cache:
            raise ArgumentError(f'{sequence!r} belongs to another cache')
    n = 0 if chosen is None else len(chosen)
    ids = None if chosen is None else (ctypes.c_uint64 * n)(*(sequence.id for sequence in chosen))
    lk, calls = cache._lk, Calls()
    desc = _desc(calls, fingerprint, progress)
    with cache._handle.lock:
        common = (cache._handle.get(), n, ids, _abi.byref(desc))
        if _is_path(target):
            calls.check(lk.lk_snapshot_save_file(*common, os.fsencode(target)))  # type: ignore[arg-type]
            return None
        written: list[bytes] = []
        take = written.append if target is None else target.write  # type: ignore[union-attr]

        def write(_: int, data: int, n_bytes: int) -> int:
            take(ctypes.string_at(data, n_bytes))
            return 0
        calls.check(lk.lk_snapshot_save(*common, _abi.WriteFn(calls.guard(write, 1)), None))
    return b''.join(written) if target is None else None


def _bytes_of(source: Any) -> tuple[Any, int]:
    """The memory and the size of bytes, which are not copied, or of another buffer, which is."""
    if isinstance(source, bytes):
        return source, len(source)
    view = memoryview(source).cast('B')
    return view.tobytes(), len(view)


def load(cache: Cache, source: Source, fingerprint: bytes, progress: Progress | None) -> list[int]:
    """Cache.load(): the ids of the new sequences."""
    lk, calls = cache._lk, Calls()
    desc, count = _desc(calls, fingerprint, progress), ctypes.c_uint32()
    ids = (ctypes.c_uint64 * cache._max_sequences)()
    out = len(ids), ids, _abi.byref(count)
    with cache._handle.lock:
        common = cache._handle.get(), _abi.byref(desc)
        if _is_path(source):
            calls.check(lk.lk_snapshot_load_file(*common, os.fsencode(source), *out))  # type: ignore[arg-type]
        elif hasattr(source, 'read'):
            give = source.read

            def read(_: int, address: int, n_bytes: int) -> int:
                given = give(n_bytes)
                if len(given) > n_bytes:
                    raise ArgumentError(f'read({n_bytes}) gave {len(given)} bytes')
                ctypes.memmove(address, given, len(given))
                return len(given)
            calls.check(lk.lk_snapshot_load(*common, _abi.ReadFn(calls.guard(read, -1)), None, *out))
        else:
            data, n = _bytes_of(source)
            calls.check(lk.lk_snapshot_load_memory(*common, data, n, *out))
    return list(ids[:count.value])


@dataclass(frozen=True)
class SnapshotSequence:
    """A sequence of a snapshot.

    id               the sequence's id in the cache that saved it
    n_blocks         length of its block table
    n_shared_blocks  how many of these an earlier sequence of the snapshot has too
    """

    id: int
    n_tokens: int
    n_blocks: int
    n_shared_blocks: int


@dataclass(frozen=True)
class SnapshotInfo:
    """The contents of a snapshot."""

    version: int
    total_bytes: int
    n_tokens: int
    n_blocks: int
    geometry_hash: int
    plan_hash: int
    fingerprint: bytes
    plan_json: str
    sequences: tuple[SnapshotSequence, ...]
    n_states: int = 0  # recurrent states of a sequence
    n_state_versions: int = 0
    version_bytes: int = 0


def inspect(source: Path | bytes) -> SnapshotInfo:
    """Read a whole snapshot and check it like Cache.load(), without the plan of a cache.

    source  a path or bytes

    Raises CorruptError, MismatchError (another version), FileError, OutOfMemoryError."""
    lk, box = library(), ctypes.c_void_p()
    if _is_path(source):
        check(lk.lk_snapshot_open_file(os.fsencode(source), _abi.byref(box)))
    else:
        data, n = _bytes_of(source)
        check(lk.lk_snapshot_open_memory(data, n, _abi.byref(box)))
    try:
        info = lk.start(_abi.SnapshotInfo)
        check(lk.lk_snapshot_get_info(box, _abi.byref(info)))
        sequences = []
        for i in range(info.n_sequences):
            one = lk.start(_abi.SnapshotSequence)
            check(lk.lk_snapshot_get_sequence(box, i, _abi.byref(one)))
            sequences.append(SnapshotSequence(one.id, one.n_tokens, one.n_blocks, one.n_shared_blocks))
        plan, needed = lk.lk_snapshot_plan(box), ctypes.c_size_t()
        check(lk.lk_plan_to_json(plan, None, 0, _abi.byref(needed)))
        text = ctypes.create_string_buffer(needed.value)
        check(lk.lk_plan_to_json(plan, text, len(text), _abi.byref(needed)))
        return SnapshotInfo(info.version, info.total_bytes, info.n_tokens, info.n_blocks, info.geometry_hash,
                            info.plan_hash, bytes(info.fingerprint[:info.fingerprint_bytes]), text.value.decode(),
                            tuple(sequences), info.n_states, info.n_state_versions, info.version_bytes)
    finally:
        lk.lk_snapshot_close(_abi.byref(box))


