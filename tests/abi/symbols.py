# SPDX-License-Identifier: Apache-2.0
"""Compares what the shared library exports with the checked-in list, and that list with Debian's.

Arguments: the library, the list, the symbols file of Debian's package."""
import re
import subprocess
import sys


def exported(library):
    """Names of the defined dynamic symbols, version nodes left out."""
    out = subprocess.run(['nm', '-D', '--defined-only', library], check=True,
                         capture_output=True, text=True).stdout
    fields = (line.split() for line in out.splitlines())
    return {f[2].split('@')[0] for f in fields if len(f) == 3 and f[1] != 'A'}


def main():
    have = exported(sys.argv[1])
    with open(sys.argv[2], encoding='utf-8') as file:
        listed = file.read().split()
    want = set(listed)
    for name in sorted(want ^ have):
        print('lost  ' if name in want else 'leaked', name)
    if listed != sorted(want):
        print('the list is not sorted, or names a symbol twice')
        return 1
    # Each line of Debian's has the symbol, its version node and the first release that has it.
    with open(sys.argv[3], encoding='utf-8') as file:
        packaged = set(re.findall(r'^ (\w+)@Base \d+\.\d+\.\d+$', file.read(), re.M))
    for name in sorted(want ^ packaged):
        print(name, 'is in one of', *sys.argv[2:])
    print(f'{len(have)} symbols exported')
    return have != want or packaged != want


if __name__ == '__main__':
    sys.exit(main())
