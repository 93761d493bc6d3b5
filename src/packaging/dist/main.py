# SPDX-License-Identifier: Apache-2.0
"""`./dev dist`: every package of a release below build-dist/out, each of them tried in a clean system by --check."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from progress import Progress
from workspace import ROOT, Refused, Workspace, sha256

# In the order in which they are made. A module has build(work), which returns its files below work.out, and
# check(work), which installs them into a clean environment, runs their hello and raises Refused.
PARTS = ('source', 'wheel', 'debian', 'jetpack', 'crates', 'go', 'meson', 'cmake', 'conan', 'vcpkg', 'docs', 'sbom',
         'checksums')


def main() -> int:
    parser = argparse.ArgumentParser(prog='./dev dist', description=__doc__)
    parser.add_argument('parts', nargs='*', metavar='PART', help=f'some of: {", ".join(PARTS)}; default: all')
    parser.add_argument('--check', action='store_true', help='install what was made into clean systems and run it')
    parser.add_argument('--twice', action='store_true', help='make it twice, from nothing, and compare the bytes')
    parser.add_argument('--out', type=pathlib.Path, default=ROOT / 'build-dist', metavar='DIR')
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f'no part is called {unknown[0]}: {", ".join(PARTS)}')
    # In the order of PARTS: the last ones describe files of the others.
    parts = [part for part in PARTS if part in options.parts or not options.parts]
    work = Workspace(options.out, is_kept=options.check)
    if options.twice:
        done = make_twice(work, parts)
    else:
        done = run_parts(work, parts, 'checked' if options.check else 'made')
    report(work, done, 'check' if options.check else 'build')
    return 0 if all(record['result'] in ('checked', 'made', 'the same bytes twice') for record in done.values()) else 1


def run_parts(work: Workspace, parts: list[str], verb: str) -> dict[str, dict]:
    """Make or check parts. A part that fails does not keep the others from their turn."""
    done = {}
    for number, part in enumerate(parts):
        files: list[pathlib.Path] = []
        with Progress(work.folder / 'log', f'{part} ({number + 1} of {len(parts)})') as progress:
            started, result = time.monotonic(), verb
            try:
                module = importlib.import_module(part)
                if verb == 'checked':
                    module.check(work)
                else:
                    files = module.build(work)
            except (Refused, OSError, subprocess.CalledProcessError) as fault:
                result = f'{part}: {fault}'
                progress.failed()
        if result != verb:
            print(result, file=sys.stderr, flush=True)
        listed = [{'name': path.name, 'bytes': path.stat().st_size, 'sha256': sha256(path)} for path in files]
        done[part] = {'result': result, 'seconds': round(time.monotonic() - started, 1), 'files': listed}
    return done


def make_twice(work: Workspace, parts: list[str]) -> dict[str, dict]:
    """Make parts twice in the same empty folder, each file compiled anew. Files of other parts are set aside meanwhile."""
    os.environ['CCACHE_RECACHE'] = '1'
    aside = work.folder / 'aside'
    if not aside.exists():
        work.out.rename(aside)
    try:
        made = []
        for _ in range(2):
            shutil.rmtree(work.out, ignore_errors=True)
            for name in ('scratch', 'compiled'):
                shutil.rmtree(work.folder / name, ignore_errors=True)
            work.out.mkdir()
            made.append(run_parts(work, parts, 'made'))
        for path in work.out.iterdir():
            path.replace(aside / path.name)
    finally:
        shutil.rmtree(work.out, ignore_errors=True)
        aside.rename(work.out)
    first, second = made
    for part, record in second.items():
        if first[part]['result'] == record['result'] == 'made':
            record['result'] = compared(first[part]['files'], record['files'])
    return second


def compared(first: list[dict], second: list[dict]) -> str:
    """What two lists of files have to say about a part that was made twice."""
    hashes = [{file['name']: file['sha256'] for file in files} for files in (first, second)]
    differing = sorted(name for name in {**hashes[0], **hashes[1]} if hashes[0].get(name) != hashes[1].get(name))
    return f'differs when it is made twice: {", ".join(differing)}' if differing else 'the same bytes twice'


def report(work: Workspace, done: dict[str, dict], kind: str) -> None:
    """A table on the standard output, and dist.json with the last result of every part."""
    path = work.folder / 'dist.json'
    whole = json.loads(path.read_text()) if path.exists() else {}
    if whole.get('version') != work.version or whole.get('epoch') != work.epoch:
        whole = {'version': work.version, 'epoch': work.epoch, 'parts': {}}
    for part, record in done.items():
        whole['parts'].setdefault(part, {})[kind] = record
    path.write_text(json.dumps(whole, indent=2) + '\n')
    print(f'{"part":<12}{"bytes":>12}{"seconds":>9}  file or result')
    for part, record in done.items():
        print(f'{part:<12}{sum(file["bytes"] for file in record["files"]) or "":>12}{record["seconds"]:>9.1f}'
              f'  {record["result"].splitlines()[0]}')
        for file in record['files']:
            print(f'{"":<12}{file["bytes"]:>12}{"":>9}  {file["name"]}')


if __name__ == '__main__':
    sys.exit(main())
