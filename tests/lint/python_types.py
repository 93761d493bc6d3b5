# SPDX-License-Identifier: Apache-2.0
"""mypy finds no fault in the Python package, strictly. Exit status 77 (skipped) where there is no mypy."""
import importlib.util
import pathlib
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / 'bindings/python'
# A file that imports a package is checked where the package is, since mypy reads its types.
NEEDS = {'torch': ('_command.py', 'transformers/', 'lm_eval/'), 'transformers': ('transformers/', 'lm_eval/')}
SKIPPED = 77


def main():
    if importlib.util.find_spec('mypy') is None:
        print('skipped: mypy is missing; `pip install mypy` gets it')
        return SKIPPED
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    left_out = tuple(sorted({prefix for name in missing for prefix in NEEDS[name]}))
    files = [path for path in sorted((PACKAGE / 'lowkey').rglob('*.py'))
             if not path.relative_to(PACKAGE / 'lowkey').as_posix().startswith(left_out)]
    if left_out:
        print(f'not checked without {" and ".join(missing)}: {", ".join(left_out)}')
    return subprocess.run([sys.executable, '-m', 'mypy', '--cache-dir', '/dev/null', *files], cwd=PACKAGE,
                          check=False).returncode


if __name__ == '__main__':
    sys.exit(main())
