# SPDX-License-Identifier: Apache-2.0
"""No inline function that the rest of the library uses is emitted by a file with CPU flags of
its own: the linker keeps one copy, and a machine without that instruction set might get it.

Arguments: archives compiled with CPU flags, then '--', then archives without."""
import subprocess
import sys


def weak(archives):
    """Names of the weak definitions in archives."""
    out = subprocess.run(['nm', '-A', '--defined-only', *archives], check=True,
                         capture_output=True, text=True).stdout
    fields = (line.split() for line in out.splitlines())
    return {f[-1] for f in fields if len(f) >= 3 and f[-2] in 'WVu'}


def main():
    cut = sys.argv.index('--')
    simd = weak(sys.argv[1:cut])
    shared = sorted(simd & weak(sys.argv[cut + 1:]))
    print('\n'.join(shared))
    print(f'{len(simd)} weak symbols in files with CPU flags, {len(shared)} of them shared')
    return bool(shared)


if __name__ == '__main__':
    sys.exit(main())
