# SPDX-License-Identifier: Apache-2.0
"""The vcpkg port, a folder for --overlay-ports or for vcpkg's own ports."""

from __future__ import annotations

import hashlib
import json
import pathlib
import shutil

from workspace import PACKAGING, ROOT, Refused, Workspace, run


def build(work: Workspace) -> list[pathlib.Path]:
    archive, port = work.archive(), work.scratch('vcpkg') / 'lowkey'
    shutil.copytree(PACKAGING / 'vcpkg', port)
    template = port / 'portfile.cmake.in'
    text = template.read_text()
    for name, value in {'URL': work.archive_url(), 'FILENAME': archive.name,
                        'SHA512': hashlib.sha512(archive.read_bytes()).hexdigest()}.items():
        text = text.replace(f'@{name}@', value)
    template.with_suffix('').write_text(text)
    template.unlink()
    path = work.out / f'lowkey-vcpkg-{work.version}.tgz'
    work.pack(port, 'lowkey', path)
    return [path]


def check(work: Workspace) -> None:
    """The port's steps by a stand-in for vcpkg's functions, static and dynamic, and Conan's test program in CMake."""
    folder = work.scratch('vcpkg-check')
    run('tar', '-xzf', build(work)[0], '-C', folder)
    port = folder / 'lowkey'
    manifest = json.loads((port / 'vcpkg.json').read_text())
    if manifest['version'] != work.version:
        raise Refused(f'vcpkg.json states version {manifest["version"]}')
    shutil.copytree(PACKAGING / 'conan/test_package', folder / 'test')
    shutil.copy2(ROOT / 'examples/hello.c', folder / 'test/test_package.c')
    for linkage in ('static', 'dynamic'):
        place = folder / linkage
        run('cmake', f'-DPORT_DIR={port}', f'-DDISTFILES={work.out}', f'-DWORK={place}', f'-DLINKAGE={linkage}', '-P',
            PACKAGING / 'dist/vcpkg_stand_in.cmake')
        packages = place / 'packages'
        for name in ('copyright', 'usage', 'lowkey-config.cmake', 'lowkey-config-version.cmake'):
            if not (packages / 'share/lowkey' / name).exists():
                raise Refused(f'the {linkage} package has no share/lowkey/{name}')
        found = {path.name for path in (packages / 'lib').iterdir() if path.is_file() and not path.is_symlink()}
        if found != ({'liblowkey.a'} if linkage == 'static' else {'liblowkey.so.0'}):
            raise Refused(f'the {linkage} package has the libraries {sorted(found)}')
        run('cmake', '-S', folder / 'test', '-B', place / 'test', f'-DCMAKE_PREFIX_PATH={packages}')
        run('cmake', '--build', place / 'test')
        run(place / 'test/test_package')
