"""Checks the tree: file sizes, leftover markers, paths of one machine, top-level entries, tests of the core."""
import fnmatch
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOP = set('''
    .ci .clang-format .clang-tidy .editorconfig .gitattributes .gitignore CHANGELOG.md
    CONTRIBUTING.md LICENSE README.md bindings cuda dev docs examples include meson.build
    meson_options.txt shaders src subprojects tests'''.split())
CODE = {'.c', '.h', '.cpp', '.hpp', '.cu', '.cuh', '.comp', '.glsl', '.py', '.rs', '.go', '.build'}
KERNELS = ('cuda/', 'shaders/')
# Spelled in two pieces so that this file passes its own test.
MARKER = re.compile(r'\b(' + '|'.join(['TO' 'DO', 'FIX' 'ME', 'XX' 'X', 'HA' 'CK']) + r')\b')
MACHINE = re.compile(r'(?<![\w.~-])/(wo' 'rk|ro' 'ot|ho' r'me|Us' r'ers)/[A-Za-z]')
HEADER = 'SPDX-License-Identifier: Apache-2.0'
LICENSED = {'.c', '.h', '.cpp', '.hpp', '.cu', '.cuh', '.comp', '.glsl', '.py', '.rs', '.go'}
# A concept of the core is a header src/core/**/X.h, and its test is tests/core/test_X.cpp.
CORE, CORE_TESTS = 'src/core/', 'tests/core/'


def tracked():
    """Files that git would have, committed or not; without git, all but what it is to ignore."""
    try:
        out = subprocess.run(['git', 'ls-files', '-z', '-co', '--exclude-standard'], cwd=ROOT,
                             check=True, capture_output=True, text=True).stdout
        return sorted(name for name in out.split('\0') if name and (ROOT / name).is_file())
    except (OSError, subprocess.CalledProcessError):
        files = (f.relative_to(ROOT) for f in ROOT.rglob('*') if f.is_file())
        return sorted(f.as_posix() for f in files if not is_ignored(f))


def is_ignored(file):
    """By a pattern of .gitignore: of the root with a slash in front, of any folder without."""
    for pattern in ['/.git/', *(ROOT / '.gitignore').read_text(encoding='utf-8').split()]:
        parts = pattern.strip('/').split('/')
        first = range(1) if pattern.startswith('/') else range(len(file.parts))
        if any(all(map(fnmatch.fnmatch, file.parts[i:], parts)) for i in first if i + len(parts) <= len(file.parts)):
            return True
    return False


def line_limit(name):
    if name.startswith(KERNELS):
        return 500
    if name.startswith(CORE) and name.endswith('.h'):
        return 150
    return 800 if name.startswith('tests/') else 600


def check(name):
    """Yields one sentence for each rule that a file breaks."""
    path = pathlib.PurePosixPath(name)
    if path.parts[0] not in TOP:
        yield f'{name}: {path.parts[0]} is no top-level entry of this project'
    data = (ROOT / name).read_bytes()
    if b'\0' in data[:8192]:
        return
    try:
        lines = data.decode('utf-8').splitlines()
    except UnicodeDecodeError as error:
        yield f'{name}: not UTF-8 at byte {error.start}'
        return
    limit = line_limit(name)
    if path.suffix in CODE and len(lines) > limit:
        yield f'{name}: {len(lines)} lines, at most {limit}'
    if (path.suffix in LICENSED or path.name == 'meson.build') and not any(HEADER in line for line in lines[:24]):
        yield f'{name}: no line "{HEADER}" near the top'
    for number, line in enumerate(lines, 1):
        if MACHINE.search(line):
            yield f'{name}:{number}: a path of one machine'
        if path.suffix != '.md' and MARKER.search(line):
            yield f'{name}:{number}: unfinished work belongs into an issue'
        if path.suffix in CODE and line != line.rstrip():
            yield f'{name}:{number}: white space at the end'


def check_core(files):
    """Yields one sentence for each concept of the core without a test of its name that includes it first and is built."""
    built = set(re.findall(r"'(\w+)'", (ROOT / CORE_TESTS / 'meson.build').read_text(encoding='utf-8')))
    for name in files:
        if not (name.startswith(CORE) and name.endswith('.h')):
            continue
        concept = pathlib.PurePosixPath(name).stem
        test = f'{CORE_TESTS}test_{concept}.cpp'
        text = (ROOT / test).read_text(encoding='utf-8') if test in files else ''
        first = re.search(r'#include "(.*)"', text)
        if not text:
            yield f'{name}: has no test {test}'
        elif not first or f'src/{first[1]}' != name:
            yield f'{test}: does not include {name} first'
        elif concept not in built:
            yield f'{test}: {CORE_TESTS}meson.build does not name it'


def main():
    files = tracked()
    faults = [fault for name in files for fault in check(name)] + list(check_core(files))
    print('\n'.join(faults + [f'{len(files)} files, {len(faults)} faults']))
    return bool(faults) or not files


if __name__ == '__main__':
    sys.exit(main())
