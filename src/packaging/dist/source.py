# SPDX-License-Identifier: Apache-2.0
"""The source archive: every file of the repository, sorted, with the time of the commit."""

from __future__ import annotations

import pathlib

from workspace import Workspace


def build(work: Workspace) -> list[pathlib.Path]:
    return [work.archive()]


def check(work: Workspace) -> None:
    """The installed command of a bare system runs: the two commands that README names for it, without tests."""
    with work.chroot() as system:
        system.install('g++', 'meson', 'ninja-build', 'pkg-config', 'nlohmann-json3-dev', 'libcli11-dev', 'libstb-dev',
                       'libxxhash-dev', 'xz-utils')
        system.run('tar', '-xf', system.copy(work.archive()), '-C', '/srv')
        tree = f'/srv/lowkey-{work.version}'
        system.run(f'{tree}/dev', 'build', '--no-install', '-Dprefix=/usr', '-Dtests=disabled')
        system.run('meson', 'install', '-C', f'{tree}/build')
        system.run('cc', f'{tree}/examples/hello.c', '-o', '/srv/hello', '-llowkey')
        system.run('/srv/hello')
        system.run('lowkey', 'info')
