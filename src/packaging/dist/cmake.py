# SPDX-License-Identifier: Apache-2.0
"""CMake projects build lowkey by ExternalProject, as examples/cmake does; nothing is published for them."""

from __future__ import annotations

import pathlib

from workspace import ROOT, Refused, Workspace


def build(_: Workspace) -> list[pathlib.Path]:
    return []


def check(work: Workspace) -> None:
    """The example builds in a clean system from the source archive, twice without a change, and its program runs."""
    with work.chroot() as system:
        system.install('cmake', 'g++', 'meson', 'ninja-build', 'pkg-config', 'nlohmann-json3-dev', 'libxxhash-dev',
                       'xz-utils')
        source = system.copy(ROOT / 'examples/cmake')
        system.copy(ROOT / 'examples/hello.c')
        system.run('cmake', '-S', source, '-B', '/srv/build', '-G', 'Ninja',
                   f'-DLOWKEY_SOURCE={system.copy(work.archive())}')
        system.run('cmake', '--build', '/srv/build')
        again = system.run('cmake', '--build', '/srv/build', capture=True)
        if 'no work to do' not in again:
            raise Refused(f'a second build does work again: {again}')
        said = system.run('/srv/build/host', capture=True)
        if 'bytes packed' not in said:
            raise Refused(f'the program of examples/cmake says {said}')
        print(said, end='')
