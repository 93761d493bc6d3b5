# SPDX-License-Identifier: Apache-2.0
"""The programs of the guide and of examples/python run."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
PACKAGE = pathlib.Path(__file__).parents[1]
# Those about transformers need a model; test_transformers.py and test_lm_eval.py make the same calls.
PROGRAMS = [text for text in re.findall(r'```python\n(.*?)```', (ROOT / 'docs/python.md').read_text(), re.S)
            if 'lowkey.transformers' not in text and 'lowkey.lm_eval' not in text]


def run(*arguments, **options) -> str:
    return subprocess.run([sys.executable, *arguments], cwd=PACKAGE, check=True, timeout=120, capture_output=True,
                          text=True, **options).stdout


PRINTED = ('303 tokens', 'Width(bits=2', '12 chunks', '4 chunks wait')


@pytest.mark.parametrize(('program', 'printed'), list(zip(PROGRAMS, PRINTED)))
def test_guide(program, printed):
    assert printed in run('-c', program)


def test_guide_is_found():
    assert len(PROGRAMS) == len(PRINTED)


def test_hello():
    out = run(str(ROOT / 'examples/python/hello.py'), env={**os.environ, 'PYTHONPATH': str(PACKAGE)})
    assert re.search(r'301 tokens in [1-9]\d* bytes', out), out


def test_example():
    out = run('-c', f'import runpy; runpy.run_path({str(ROOT / "examples/python/agent.py")!r}, run_name="__main__")')
    assert 'the copy answers the same' in out and re.search(r'[1-9]\d* KiB of them shared', out), out
