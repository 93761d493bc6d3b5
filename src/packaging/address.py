#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The public address of the repository, which packages state: Cargo's `repository`, Go's module path, the address of
the source archive. It is example.org/lowkey until the repository has one; this program replaces it in every file.

usage: src/packaging/address.py https://HOST/PATH
"""

from __future__ import annotations

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The file that the others are compared with, and the files that state the address.
HOME = 'bindings/rust/lowkey/Cargo.toml'
FOLDERS = ('bindings', 'examples', 'src/packaging', 'docs')
SUFFIXES = {'.toml', '.mod', '.go', '.py', '.json', '.in', '.md', '.cmake'}


def current(root: pathlib.Path = ROOT) -> str:
    """Host and path, for example example.org/lowkey."""
    return re.search(r'^repository = "https://([^"]+)"', (root / HOME).read_text(encoding='utf-8'), re.M)[1]


def replace(root: pathlib.Path, address: str) -> list[pathlib.Path]:
    """State another address; the files that changed."""
    old, changed = current(root), []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob('*')):
            if path.suffix not in SUFFIXES or not path.is_file() or 'target' in path.parts or path.name == 'address.py':
                continue
            text = path.read_text(encoding='utf-8')
            if old in text:
                path.write_text(text.replace(old, address), encoding='utf-8')
                changed.append(path)
    return changed


def main() -> int:
    match = re.fullmatch(r'https://([a-z0-9.-]+\.[a-z]+(?:/[\w.~-]+)+)', sys.argv[1] if len(sys.argv) == 2 else '')
    if not match:
        print(__doc__, file=sys.stderr)
        return 2
    for path in replace(ROOT, match[1]):
        print(path.relative_to(ROOT))
    return 0


if __name__ == '__main__':
    sys.exit(main())
