# SPDX-License-Identifier: Apache-2.0
"""`./dev dist`: every package of a release below build-dist/out, each of them tried in a clean system by --check."""

from __future__ import annotations

import argparse
import importlib
import pathlib
import sys
import time

from workspace import ROOT, Refused, Workspace

# In the order in which they are made. A module has build(work), which returns its files below work.out, and
# check(work), which installs them into a clean environment, runs their hello and raises Refused.
PARTS = ('source', 'wheel', 'debian', 'jetpack', 'crates', 'go', 'meson', 'cmake', 'conan', 'vcpkg')


def main() -> int:
    parser = argparse.ArgumentParser(prog='./dev dist', description=__doc__)
    parser.add_argument('parts', nargs='*', metavar='PART', help=f'some of: {", ".join(PARTS)}; default: all')
    parser.add_argument('--check', action='store_true', help='install what was made into clean systems and run it')
    parser.add_argument('--out', type=pathlib.Path, default=ROOT / 'build-dist', metavar='DIR')
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f'no part is called {unknown[0]}: {", ".join(PARTS)}')
    work = Workspace(options.out)
    failed = []
    for part in options.parts or PARTS:
        module = importlib.import_module(part)
        started = time.monotonic()
        try:
            if options.check:
                module.check(work)
                files = []
            else:
                files = module.build(work)
        except Refused as refusal:
            print(f'{part}: {refusal}', file=sys.stderr)
            failed.append(part)
            continue
        seconds = time.monotonic() - started
        print(f'{part}: {"checked" if options.check else "made"} in {seconds:.0f} s', flush=True)
        for path in files:
            print(f'  {path.stat().st_size:>12}  {path.name}', flush=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
