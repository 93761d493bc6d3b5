#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lowkey demo: rows for every cache, a table for the first questions and one for all, a picture.

usage: check_demo.py LOWKEY
"""

import json
import pathlib

from harness import check, expect, png_size, run


def demo(folder: pathlib.Path) -> None:
    picture = folder / 'demo.png'
    words = ('demo', '--tokens', '512', '--plans', 'fp16,kivi2', '--png', str(picture))
    said = run(*words, '--questions', '25').stdout
    expect('25 of 25 questions' in said, 'a table at the end')
    expect(len([line for line in said.splitlines() if line.startswith('kivi2')]) == 2, 'a row in each')
    expect(png_size(picture)[0] > 400, 'a picture')
    found = json.loads(run(*words, '--questions', '1', '--json').stdout)
    expect([result['plan'] for result in found['results']] == ['fp16', 'kivi2'], 'the same as JSON')
    expect(found['text'].endswith('texts/demo.txt'), 'the text that nobody edits')
    run('demo', '--text', '/nonexistent', code=1)


check(demo)
