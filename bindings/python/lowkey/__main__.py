# SPDX-License-Identifier: Apache-2.0
"""``python -m lowkey``: the command ``lowkey``, which the wheel contains and an installed C library has in PATH."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import NoReturn

from ._library import NATIVE


def command() -> pathlib.Path | None:
    """The path of the command: the one in the package, else the first in PATH; None where there is none."""
    packaged = NATIVE / 'bin/lowkey'
    folders = os.environ.get('PATH', os.defpath).split(os.pathsep)
    found = (pathlib.Path(folder, 'lowkey') for folder in folders if folder)
    return next((path for path in (packaged, *found) if _is_program(path)), None)


def _is_program(path: pathlib.Path) -> bool:
    """Whether a file is an executable and no script: the scripts of that name that pip installs call this module."""
    try:
        with path.open('rb') as file:
            return file.read(2) != b'#!' and os.access(path, os.X_OK)
    except OSError:
        return False


def main() -> NoReturn:
    """Become the command, with the arguments of this process. Without one the process ends with a sentence."""
    path = command()
    if path is None:
        sys.exit('lowkey: the command is missing; `pip install lowkey` brings it as part of the wheel, or '
                 '`meson install` of the C library puts it into PATH')
    os.execv(path, [str(path), *sys.argv[1:]])


if __name__ == '__main__':
    main()
