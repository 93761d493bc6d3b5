# SPDX-License-Identifier: Apache-2.0
"""Installs into an empty folder and runs the tests of bindings/python against what lies there.

Exit status 77 (skipped) where there is no pytest, or where the library has sanitizers whose runtime
cannot be preloaded. --log writes a line as Meson's log has it. Arguments after -- go to pytest."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / 'bindings/python'
SKIPPED = 77


def runtimes(sanitizers, compiler):
    """The shared runtimes of the sanitizers, or None when one is not there."""
    found = []
    for name in sanitizers.split(','):
        file = {'address': 'libasan.so', 'undefined': 'libubsan.so'}.get(name)
        path = file and subprocess.run([*compiler, f'-print-file-name={file}'], capture_output=True,
                                       text=True, check=False).stdout.strip()
        if not path or not os.path.isabs(path):
            return None
        found.append(os.path.realpath(path))
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('build')
    parser.add_argument('--sanitizers', default='none')
    parser.add_argument('--compiler', nargs='+', default=['cc'])
    parser.add_argument('--python', default=sys.executable)
    parser.add_argument('--log')
    at = sys.argv.index('--') if '--' in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:at])
    env = dict(os.environ, CC=' '.join(options.compiler), PYTHONDONTWRITEBYTECODE='1')
    if subprocess.run([options.python, '-c', 'import pytest'], capture_output=True, check=False).returncode:
        print('skipped: python3-pytest is missing')
        return SKIPPED
    if options.sanitizers != 'none':
        preload = runtimes(options.sanitizers, options.compiler)
        if preload is None:
            print(f'skipped: no runtime of {options.sanitizers} to preload into Python')
            return SKIPPED
        env['LD_PRELOAD'] = ' '.join(preload)
        # What the interpreter keeps until it ends is not ours.
        env['ASAN_OPTIONS'] = env.get('ASAN_OPTIONS', '') + ':detect_leaks=0'
    with tempfile.TemporaryDirectory() as temp:
        subprocess.run(['meson', 'install', '--quiet', '--no-rebuild', '-C', options.build, '--destdir', temp],
                       check=True, env=os.environ)
        env['LOWKEY_LIBRARY'] = str(next(pathlib.Path(temp).rglob('liblowkey.so')))
        env['LOWKEY_INCLUDE'] = str(next(pathlib.Path(temp).rglob('include/lowkey')).parent)
        lines = []
        with subprocess.Popen([options.python, '-B', '-m', 'pytest', '-q', *sys.argv[at + 1:]], cwd=PACKAGE, env=env,
                              stdout=subprocess.PIPE, text=True) as tests:
            for line in tests.stdout:
                lines.append(line)
                print(line, end='', flush=True)
    if options.log:
        result = 'FAIL' if tests.returncode else 'OK'
        pathlib.Path(options.log).write_text(json.dumps(
            {'name': 'python', 'result': result, 'stdout': ''.join(lines)}) + '\n', encoding='utf-8')
    return tests.returncode


if __name__ == '__main__':
    sys.exit(main())
