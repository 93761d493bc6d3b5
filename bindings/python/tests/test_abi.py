# SPDX-License-Identifier: Apache-2.0
"""The structs, constants and functions of _abi.py against the C headers, through a C compiler."""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

from lowkey import _abi
from lowkey._library import library

INCLUDE = pathlib.Path(os.environ.get('LOWKEY_INCLUDE', pathlib.Path(__file__).parents[3] / 'include'))


@pytest.fixture(scope='module')
def numbers(tmp_path_factory) -> dict[str, int]:
    """What the C compiler says each expression is."""
    expressions = {name: f'(long long){name}' for name in _abi.CONSTANTS}
    for name, kind in _abi.STRUCTS.items():
        expressions[f'sizeof {name}'] = f'(long long)sizeof(lk_{name})'
        for field in kind._fields_:
            member = f'((lk_{name} *)0)->{field[0]}'
            expressions[f'{name}.{field[0]}'] = f'(long long)offsetof(lk_{name}, {field[0]})'
            expressions[f'sizeof {name}.{field[0]}'] = f'(long long)sizeof({member})'
    folder = tmp_path_factory.mktemp('abi')
    source = folder / 'numbers.c'
    lines = ''.join(f'    printf("%s=%lld\\n", "{name}", {text});\n' for name, text in expressions.items())
    source.write_text(f'#include <lowkey/lowkey.h>\n#include <stdio.h>\nint main(void) {{\n{lines}    return 0;\n}}\n')
    compiler = shlex.split(os.environ.get('CC', '')) or [shutil.which('cc') or 'gcc']
    # A runtime of sanitizers that is preloaded into Python is nothing for a compiler.
    env = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}
    subprocess.run([*compiler, '-std=c11', '-I', INCLUDE, source, '-o', folder / 'numbers'], check=True, env=env)
    out = subprocess.run([folder / 'numbers'], check=True, capture_output=True, text=True, env=env).stdout
    return {name: int(value) for name, value in (line.split('=') for line in out.splitlines())}


def test_constants(numbers):
    assert {name: numbers[name] for name in _abi.CONSTANTS} == _abi.CONSTANTS


@pytest.mark.parametrize('name', _abi.STRUCTS)
def test_struct(numbers, name):
    kind = _abi.STRUCTS[name]
    for field, *_ in kind._fields_:
        ours = getattr(kind, field)
        assert (ours.offset, ours.size) == (numbers[f'{name}.{field}'], numbers[f'sizeof {name}.{field}']), field
    # The header may have gained fields at the end, which a shorter struct leaves at their defaults.
    assert ctypes.sizeof(kind) <= numbers[f'sizeof {name}']


def test_every_status_has_an_exception():
    from lowkey.errors import BY_STATUS
    statuses = {number for name, number in _abi.CONSTANTS.items() if name.startswith('LK_E_')}
    assert set(BY_STATUS) == statuses


def headers() -> str:
    text = '\n'.join(path.read_text() for path in sorted((INCLUDE / 'lowkey').glob('*.h')))
    return re.sub(r'/\*.*?\*/', '', text, flags=re.S)


def test_everything_in_the_headers_is_declared():
    text = headers()
    assert set(re.findall(r'^LK_API[^;(]*?(lk_\w+)\(', text, re.M)) == set(_abi.FUNCTIONS)
    assert set(re.findall(r'typedef struct lk_(\w+) \{', text)) == set(_abi.STRUCTS)
    enumerators = set(re.findall(r'^\s+(LK_\w+) =', text, re.M))
    assert len(enumerators) > 50 and enumerators <= set(_abi.CONSTANTS)


def test_functions_are_declared_as_in_the_headers():
    """Each function exists with as many arguments, and integers have the width of the declaration."""
    text = headers()
    found = {}
    for result, name, arguments in re.findall(r'LK_API\s+([\w\s*]+?)\b(lk_\w+)\(([^;]*)\);', text):
        plain = ' '.join(arguments.split())
        found[name] = (result.strip(), [] if plain == 'void' else plain.split(', '))
    widths = {'uint32_t': 4, 'uint64_t': 8, 'size_t': 8, 'int32_t': 4, 'double': 8}
    widths.update((name, widths[kind]) for kind, name in re.findall(r'typedef (u?int\d+_t) (lk_\w+);', text))
    for name, (result, ours) in _abi.FUNCTIONS.items():
        assert name in found, f'{name} is in no header'
        declared, theirs = found[name]
        assert len(ours) == len(theirs), name
        assert (result is None) == (declared == 'void'), name
        for our, their in zip(ours, theirs):
            width = 8 if '*' in their or '_fn ' in their else widths[their.removeprefix('const ').split()[0]]
            assert ctypes.sizeof(our) == width, (name, their)


def test_library_has_every_function():
    lk = library()
    for name in _abi.FUNCTIONS:
        assert hasattr(lk.handle, name), name


def test_missing_function_is_an_exception():
    from lowkey._library import _missing
    from lowkey.errors import UnsupportedError
    with pytest.raises(UnsupportedError, match=r'lk_new\(\) is newer'):
        _missing('lk_new')(1, 2)
