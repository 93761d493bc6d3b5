# SPDX-License-Identifier: Apache-2.0
"""Where the package finds its library and its command: in the wheel, and outside of it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import lowkey
import lowkey.__main__ as package_main
from lowkey import _library

ECHO = pathlib.Path('/bin/echo')


@pytest.fixture
def native(tmp_path, monkeypatch):
    """An empty folder in place of the one that a wheel has."""
    folder = tmp_path / '_native'
    monkeypatch.setattr(_library, 'NATIVE', folder)
    monkeypatch.setattr(package_main, 'NATIVE', folder)
    monkeypatch.delenv(_library.VARIABLE, raising=False)
    return folder


def place(path: pathlib.Path, content: bytes = b'\x7fELF', mode: int = 0o755) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_the_variable_is_before_the_wheel(native, monkeypatch):
    place(native / 'lib/liblowkey.so.0')
    monkeypatch.setenv(_library.VARIABLE, '/a/liblowkey.so')
    assert _library.candidates() == ['/a/liblowkey.so']


def test_the_wheel_is_before_the_system(native):
    packaged = place(native / 'lib/liblowkey.so.0')
    assert _library.candidates() == [str(packaged)]


def test_the_system_is_last(native):
    assert 'liblowkey.so.0' in _library.candidates()
    assert not [name for name in _library.candidates() if str(native) in name]


def test_a_broken_library_of_the_wheel_is_reported(native):
    packaged = place(native / 'lib/liblowkey.so.0', b'no library')
    with pytest.raises(lowkey.LibraryError, match=f'the wheel of lowkey contains it.*{packaged}: '):
        _library._open()


def test_the_command_of_the_wheel_is_before_that_in_path(native, tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', str(place(tmp_path / 'bin/lowkey').parent))
    packaged = place(native / 'bin/lowkey')
    assert package_main.command() == packaged


def test_the_command_in_path_is_no_script_and_no_data(native, tmp_path, monkeypatch):
    """The script that pip makes of the entry point would start this module again."""
    found = [place(tmp_path / 'script/lowkey', b'#!/usr/bin/python3\n'), place(tmp_path / 'data/lowkey', mode=0o644),
             place(tmp_path / 'empty/other'), place(tmp_path / 'program/lowkey')]
    monkeypatch.setenv('PATH', os.pathsep.join(['', *(str(path.parent) for path in found)]))
    assert package_main.command() == found[-1]


def run_module(monkeypatch, path: str, *arguments: str):
    monkeypatch.setenv('PATH', path)
    monkeypatch.setenv('PYTHONPATH', str(pathlib.Path(lowkey.__file__).parents[1]))
    return subprocess.run([sys.executable, '-m', 'lowkey', *arguments], capture_output=True, text=True, check=False)


@pytest.mark.skipif(_library.NATIVE.exists(), reason='the package has a command of its own')
def test_the_module_is_the_command(tmp_path, monkeypatch):
    (tmp_path / 'lowkey').symlink_to(ECHO)
    done = run_module(monkeypatch, str(tmp_path), 'plan', '--tokens', '1 K')
    assert (done.returncode, done.stdout) == (0, 'plan --tokens 1 K\n')


@pytest.mark.skipif(_library.NATIVE.exists(), reason='the package has a command of its own')
def test_the_module_without_a_command_says_where_it_comes_from(tmp_path, monkeypatch):
    done = run_module(monkeypatch, str(tmp_path), 'info')
    assert (done.returncode, done.stdout) == (1, '')
    assert done.stderr == ('lowkey: the command is missing; `pip install lowkey` brings it as part of the wheel, or '
                           '`meson install` of the C library puts it into PATH\n')
