# SPDX-License-Identifier: Apache-2.0
"""Every function of the CUDA runtime that the objects call is in the checked-in list. The list
holds what CUDA 12.2 has, with the same arguments in later releases: a name that is added was
looked up there first.

Arguments: the list, then archives and objects."""
import re
import subprocess
import sys

CALL = re.compile(r'^ +U (cuda[A-Z]\w*?)(?:_v\d+|_ptsz|_ptds)*$', re.MULTILINE)


def main():
    with open(sys.argv[1], encoding='utf-8') as file:
        listed = file.read().split()
    out = subprocess.run(['nm', '--undefined-only', *sys.argv[2:]], check=True, capture_output=True,
                         text=True).stdout
    used = set(CALL.findall(out))
    unknown = sorted(used - set(listed))
    for name in unknown:
        print(name, 'is not in', sys.argv[1])
    if listed != sorted(set(listed)):
        print('the list is not sorted, or names a function twice')
        return 1
    print(f'{len(used)} functions of the runtime used, {len(unknown)} of them not listed')
    return bool(unknown) or not used


if __name__ == '__main__':
    sys.exit(main())
