"""The library holds machine code for each GPU that it was built for and no other, and PTX of the last.

Arguments: cuobjdump, the library, compute capabilities as in 87 90."""
import re
import subprocess
import sys


def listed(cuobjdump, kind, library):
    out = subprocess.run([cuobjdump, f'--list-{kind}', library], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r'\.sm_(\w+)\.', out))


def main():
    cuobjdump, library, *wanted = sys.argv[1:]
    code, ptx = (listed(cuobjdump, kind, library) for kind in ('elf', 'ptx'))
    print('machine code for', *sorted(code), 'and PTX of', *sorted(ptx))
    return code != set(wanted) or ptx != {wanted[-1]}


if __name__ == '__main__':
    sys.exit(main())
