# SPDX-License-Identifier: Apache-2.0
"""The host project examples/meson, which has lowkey as a subproject: the library alone, optimized and without assertions
although the host is a debug build; what the host's options name comes with it. Nothing is compiled. Argument: source
folder."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile


def targets(source, temp, name, *options):
    """The targets of lowkey by name, and the compile command of each of its files."""
    host = pathlib.Path(temp, name)
    shutil.copytree(pathlib.Path(source, 'examples/meson'), host)
    shutil.copy(pathlib.Path(source, 'examples/hello.c'), temp)
    (host / 'subprojects/lowkey').symlink_to(source)
    setup = subprocess.run(['meson', 'setup', 'build', '-Dlowkey:cuda=disabled', *options], cwd=host,
                           capture_output=True, text=True)
    if setup.returncode:
        sys.exit(setup.stdout + setup.stderr)
    introspected = json.loads((host / 'build/meson-info/intro-targets.json').read_text())
    commands = json.loads((host / 'build/compile_commands.json').read_text())
    return ({target['name'] for target in introspected if target['name'] != 'host'},
            [entry['command'] for entry in commands if entry['file'].startswith(('../subprojects/', 'subprojects/'))])


def main():
    with tempfile.TemporaryDirectory() as temp:
        alone, commands = targets(sys.argv[1], temp, 'alone')
        if 'lowkey' not in alone or any('test' in name or 'demo' in name for name in alone):
            sys.exit(f'a host gets the targets {sorted(alone)}')
        slow = [text for text in commands if text.rfind('-O3') < text.rfind('-O0') or '-DNDEBUG' not in text]
        if slow or not commands:
            sys.exit(f'{len(slow)} of {len(commands)} files are compiled as the debug build of the host')
        more, _ = targets(sys.argv[1], temp, 'more', '-Dlowkey:examples=enabled')
        if 'hello' not in more or not alone < more:
            sys.exit('examples that were requested are missing')


if __name__ == '__main__':
    main()
