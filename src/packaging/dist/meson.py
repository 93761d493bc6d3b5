# SPDX-License-Identifier: Apache-2.0
"""The wrap file by which a Meson project gets the source archive as its subproject."""

from __future__ import annotations

import hashlib
import pathlib
import shutil

from workspace import ROOT, Refused, Workspace, run

OLDEST = '0.61.2'  # Ubuntu 22.04 and JetPack 6 have it
WRAP = """[wrap-file]
directory = lowkey-{version}
source_url = {url}
source_filename = {name}
source_hash = {sum}

[provide]
dependency_names = lowkey
"""


def build(work: Workspace) -> list[pathlib.Path]:
    archive = work.archive()
    path = work.out / 'lowkey.wrap'
    path.write_text(WRAP.format(version=work.version, url=work.archive_url(), name=archive.name,
                                sum=hashlib.sha256(archive.read_bytes()).hexdigest()))
    return [path]


def check(work: Workspace) -> None:
    """The oldest Meson builds examples/meson with the archive that the wrap file names, and its program runs."""
    folder = work.scratch('meson')
    # The example names hello.c in the folder above its own.
    host = folder / 'host'
    shutil.copytree(ROOT / 'examples/meson', host)
    shutil.copy2(ROOT / 'examples/hello.c', folder)
    shutil.copy2(build(work)[0], host / 'subprojects/lowkey.wrap')
    # Meson takes a file of the right sum from here and downloads nothing.
    (host / 'subprojects/packagecache').mkdir()
    shutil.copy2(work.archive(), host / 'subprojects/packagecache')
    run('python3', '-m', 'venv', folder / 'venv')
    run(folder / 'venv/bin/pip', 'install', '--quiet', f'meson=={OLDEST}')
    meson = folder / 'venv/bin/meson'
    run(meson, 'setup', '-Dlowkey:cuda=disabled', '-Dlowkey:vulkan=disabled', 'build', cwd=host)
    run('ninja', '-C', host / 'build', 'host')
    said = run(host / 'build/host', capture=True)
    if 'bytes packed' not in said:
        raise Refused(f'the program of examples/meson says {said}')
    print(said, end='')
