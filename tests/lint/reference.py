# SPDX-License-Identifier: Apache-2.0
"""Doxygen makes the reference of the C interface without a warning: all that the headers declare has a
comment, and the parameters that comments name are there. Exit status 77 (skipped) without doxygen. The pages that are
made of it are the subject of site.py."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77


def make(folder, source=ROOT):
    """Doxygen's warnings about the headers below source."""
    run = subprocess.run(['doxygen', 'docs/Doxyfile'], cwd=source, env=dict(os.environ, LOWKEY_DOCS=str(folder)),
                         capture_output=True, text=True, check=False)
    if run.returncode and 'error' not in run.stderr:
        return [f'doxygen ended with status {run.returncode}', run.stderr]
    return [line.replace(f'{source}/', '') for line in run.stderr.splitlines() if ': error:' in line or
            ': warning:' in line]


def unnoticed(folder):
    """Faults of a header that doxygen does not find."""
    for change, fault in ((('/* Open a step:', '/* */ /*'), 'lk_step_begin'),
                          ((' * layer  the one', ' * level  the one'), 'level'),
                          (('#define LK_DRAFT_TOKENS 64', '#define LK_DRAFT_TOKENS 64\n#define LK_NEW 1'), 'LK_NEW')):
        shutil.rmtree(folder, ignore_errors=True)
        for part in ('docs', 'include'):
            shutil.copytree(ROOT / part, folder / part)
        header = folder / 'include/lowkey/step.h'
        text = header.read_text(encoding='utf-8')
        if change[0] not in text:
            yield f'step.h has no "{change[0]}" to change'
        header.write_text(text.replace(*change), encoding='utf-8')
        if not any(fault in warning for warning in make(folder, folder)):
            yield f'no warning about {fault} in a header with {change[1]!r}'


def main():
    if not shutil.which('doxygen'):
        print('skipped: doxygen is missing')
        return SKIPPED
    with tempfile.TemporaryDirectory() as temp:
        folder = pathlib.Path(temp).resolve()
        faults = make(folder)
        faults += unnoticed(folder / 'changed')
    print('\n'.join([*faults, f'{len(faults)} faults']))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
