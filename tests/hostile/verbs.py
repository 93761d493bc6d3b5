"""verbs.py INCLUDE VERBS: VERBS, verbs.c, has every call on a context or a cache that INCLUDE declares."""
# SPDX-License-Identifier: Apache-2.0
import pathlib
import re
import sys

# They return no status, or end what they name.
OTHERS = {'lk_context_open', 'lk_context_close', 'lk_cache_destroy', 'lk_cache_plan'}


def main():
    headers = ''.join(path.read_text() for path in sorted(pathlib.Path(sys.argv[1]).glob('*.h')))
    calls = re.findall(r'LK_API [^;(]*?(lk_\w+)\(\s*(?:const )?lk_(?:context|cache) \*', headers)
    listed = set(re.findall(r'X\((lk_\w+)', pathlib.Path(sys.argv[2]).read_text()))
    missing = sorted(set(calls) - OTHERS - listed)
    for name in missing:
        print(f'{name} is missing in verbs.c')
    return bool(missing) or not calls


if __name__ == '__main__':
    sys.exit(main())
