# SPDX-License-Identifier: Apache-2.0
"""Checks the words: no file uses one that tests/lint/retired_words.txt has retired."""
import pathlib
import re
import sys

import tree

RETIRED = pathlib.Path(__file__).with_name('retired_words.txt')
# Where old words stay: history, recorded results, data, and the list itself.
SKIPPED = ('CHANGELOG.md', 'LICENSE', 'docs/lab/', 'docs/results/', 'tests/model/words.txt', 'tests/model/texts/',
           'tests/lint/retired_words.txt', 'tests/lint/words.py', 'tests/fuzz/')
SUFFIXES = {'.c', '.h', '.cpp', '.hpp', '.cu', '.cuh', '.comp', '.glsl', '.py', '.rs', '.go', '.md', '.in', '.build',
            '.txt', '.sh', ''}


def whole_words(words):
    """A pattern of words that are no part of others."""
    return re.compile(rf'(?<![\w.])(?:{words})(?!\w)')


def retired():
    """The pattern of all retired words, and a list of (pattern, what to write instead)."""
    lines = RETIRED.read_text(encoding='utf-8').splitlines()
    rows = [line.split('\t') for line in lines if line and not line.startswith('#')]
    return whole_words('|'.join(words for words, _ in rows)), [(whole_words(words), instead) for words, instead in rows]


def check(name, any_word, rules):
    """Yields one sentence for each retired word of a file."""
    text = (tree.ROOT / name).read_bytes()
    if b'\0' in text[:8192]:
        return
    text = text.decode('utf-8')
    if not any_word.search(text):  # one pass takes a sixth of the time of all rules
        return
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, instead in rules:
            for match in pattern.finditer(line):
                yield f'{name}:{number}: "{match[0]}" is retired: {instead}'


def main():
    any_word, rules = retired()
    names = [name for name in tree.tracked()
             if not name.startswith(SKIPPED) and pathlib.PurePosixPath(name).suffix in SUFFIXES]
    faults = [fault for name in names for fault in check(name, any_word, rules)]
    print('\n'.join(faults + [f'{len(names)} files, {len(rules)} rules, {len(faults)} retired words']))
    return bool(faults) or not names or not rules


if __name__ == '__main__':
    sys.exit(main())
