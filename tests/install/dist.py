# SPDX-License-Identifier: Apache-2.0
"""The driver of ./dev dist on a tree of three files: an archive's bytes depend on the files alone, a part that fails or
differs gives status 1, files are summed and described. Exit status 77 (skipped) without git."""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'src/packaging/dist'))
sys.dont_write_bytecode = True
import main as driver  # noqa: E402
import sbom  # noqa: E402
import workspace  # noqa: E402

SKIPPED = 77
FILES = {'meson.build': "project('lowkey',\n  version: '1.2.3')\n", 'b/run': '#!/bin/sh\n', 'a.c': 'int a;\n'}


def tree(folder, names, umask, moment):
    """A repository of FILES, written in another order, with other rights and times."""
    folder.mkdir()
    subprocess.run(['git', 'init', '-q', folder], check=True)
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(FILES[name])
        path.chmod((0o777 if name == 'b/run' else 0o666) & ~umask)
        os.utime(path, (moment, moment))
    return folder


def call(*words):
    """The driver's status and what it printed."""
    sys.argv = ['dist', *map(str, words)]
    with tempfile.TemporaryFile('w+') as said:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                status = driver.main()
            except SystemExit as ended:
                status = ended.code
        said.seek(0)
        return status, said.read()


def part(name, build):
    """A part of the driver that this test has made."""
    sys.modules[name] = types.SimpleNamespace(build=build, check=build)
    driver.PARTS = (*driver.PARTS, name)


def archives(temp):
    made = []
    for name, names, umask, moment in (('one', list(FILES), 0o022, 1e9), ('two', reversed(FILES), 0o077, 1.5e9)):
        workspace.ROOT = tree(temp / name, names, umask, moment)
        work = workspace.Workspace(temp / f'{name}-dist', preset=0)
        made.append(work.archive())
    if made[0].read_bytes() != made[1].read_bytes():
        yield 'two archives of the same files differ'
    before = made[1].read_bytes()
    (temp / 'two/a.c').write_text('int b;\n')
    if workspace.Workspace(temp / 'two-dist', is_kept=True, preset=0).archive().read_bytes() != before:
        yield 'a check changes the archive'
    if work.archive().read_bytes() == before:
        yield 'an archive does not follow the tree'


def parts(temp):
    def fail(work):
        raise workspace.Refused('no such tool')

    def count(work):
        path = work.out / 'count'
        objects = work.compiled('objects') / 'a.o'
        reused.append(objects.exists())
        objects.touch()
        (work.folder / 'calls').open('a').write('x')
        path.write_text((work.folder / 'calls').read_text())
        return [path]

    reused = []
    part('fails', fail)
    part('counts', count)
    out = ('--out', temp / 'dist')
    status, said = call(*out, 'nonsense')
    if status != 2 or 'no part is called nonsense' not in said:
        yield f'an unknown part gives status {status}: {said}'
    status, said = call(*out, 'fails', 'source', 'sbom', 'checksums')
    if status != 1 or 'fails: no such tool' not in said or 'lowkey-1.2.3.tar.xz' not in said:
        yield f'a part that fails gives status {status}: {said}'
    status, said = call(*out, '--check', 'checksums')
    if status:
        yield f'checksums of a whole release are refused: {said}'
    record = json.loads((temp / 'dist/dist.json').read_text())['parts']
    if record['checksums']['check']['result'] != 'checked' or not record['source']['build']['files'][0]['bytes']:
        yield f'dist.json is {record}'
    status, said = call(*out, '--twice', 'source', 'counts')
    if status != 1 or 'differs when it is made twice: count' not in said or said.count('the same bytes twice') != 1:
        yield f'a part that differs gives status {status}: {said}'
    call(*out, 'counts')
    if reused != [False, False, True]:
        yield f'what was compiled before is used: {reused}'
    if not (temp / 'dist/out/SHA256SUMS').exists():
        yield 'making a part twice loses the files of others'
    (temp / 'dist/out/lowkey-1.2.3.tar.xz').write_bytes(b'forged')
    status, said = call(*out, '--check', 'checksums')
    if status != 1:
        yield f'a forged archive passes: {said}'


def components(temp):
    code = b'\x7fELF ' + b'[json.exception. N3CLI3AppE'
    (temp / 'lowkey').write_bytes(code)
    (temp / 'text').write_bytes(code[4:])
    shutil.make_archive(str(temp / 'package'), 'gztar', temp, 'lowkey')
    for name, wanted in (('package.tar.gz', ['nlohmann-json', 'xxHash', 'CLI11', 'stb']), ('text', [])):
        found = [component.name for component in sbom.held(temp / name)]
        if found != wanted:
            yield f'{name} holds {found}'


def main():
    if not shutil.which('git'):
        print('skipped: git is missing')
        return SKIPPED
    os.environ['SOURCE_DATE_EPOCH'] = '1700000000'
    with tempfile.TemporaryDirectory() as name:
        temp = pathlib.Path(name)
        faults = [*archives(temp), *parts(temp), *components(temp)]
    print('\n'.join([*faults, f'{len(faults)} faults']))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
