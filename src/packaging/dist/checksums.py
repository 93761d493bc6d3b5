# SPDX-License-Identifier: Apache-2.0
"""SHA256SUMS over everything that is published, as `sha256sum --check` reads it."""

from __future__ import annotations

import pathlib

from workspace import Refused, Workspace, run, sha256

NAME = 'SHA256SUMS'


def published(work: Workspace) -> list[pathlib.Path]:
    return sorted(path for path in work.out.iterdir() if path.name != NAME and path.suffix != '.part')


def build(work: Workspace) -> list[pathlib.Path]:
    if not published(work):
        raise Refused(f'{work.out} is empty: make the other parts first')
    sums = work.out / NAME
    sums.write_text(''.join(f'{sha256(path)}  {path.name}\n' for path in published(work)))
    return [sums]


def check(work: Workspace) -> None:
    """Every file has its sum, and no file is without one."""
    sums = work.out / NAME
    if not sums.exists():
        raise Refused(f'{sums} is not there: make it first')
    run('sha256sum', '--check', '--strict', '--quiet', NAME, cwd=work.out)
    listed = {line.split('  ', 1)[1] for line in sums.read_text().splitlines()}
    unlisted = [path.name for path in published(work) if path.name not in listed]
    if unlisted:
        raise Refused(f'{NAME} does not list {", ".join(unlisted)}')
