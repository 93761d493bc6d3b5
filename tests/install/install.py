"""Installs into an empty folder, moves it and uses what lies there: a C program through pkg-config
and through CMake, with the shared and the static library, a Python program through ctypes, the man
page and the completions. Arguments: build folder, C compiler command."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(*command, **env):
    print('+', *command)
    out = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
    print(out.stdout + out.stderr, end='')
    if out.returncode:
        sys.exit(f'exit status {out.returncode}')
    return out.stdout


def program(temp):
    return str(pathlib.Path(temp, 'consumer'))


def cmake_consumer(temp, root, compiler):
    """The same program by a CMake project that knows the prefix alone."""
    if shutil.which('cmake') is None:
        print('cmake is missing: its package is not tried')
        return
    source, build = pathlib.Path(temp, 'source'), pathlib.Path(temp, 'build')
    source.mkdir()
    (source / 'CMakeLists.txt').write_text(f'''cmake_minimum_required(VERSION 3.18)
project(consumer C)
find_package(lowkey 0.1 REQUIRED CONFIG)
add_executable(consumer {HERE / 'consumer.c'})
target_link_libraries(consumer lowkey::lowkey)
''')
    prefix = next(root.rglob('include/lowkey')).parents[1]
    run('cmake', '-S', str(source), '-B', str(build), f'-DCMAKE_PREFIX_PATH={prefix}', CC=' '.join(compiler))
    run('cmake', '--build', str(build))
    run(str(build / 'consumer'))


def shell_files(root):
    """Each command is in the man page, and bash completes it and its options."""
    commands = list(root.rglob('bin/lowkey'))
    if not commands:
        print('this build has no command')
        return
    command = commands[0]
    env = {'LD_LIBRARY_PATH': str(next(root.rglob('lowkey.pc')).parents[1])}
    text = run(str(command), '--help', **env)
    names = re.findall(r'^  ([a-z]+) ', text.split('Subcommands:')[1].split('\n\n')[0], re.M)
    page = next(root.rglob('man1/lowkey.1')).read_text()
    completion = next(root.rglob('bash-completion/completions/lowkey'))
    for words, wanted in ((['lowkey', ''], names), (['lowkey', 'pl'], ['plan']),
                          (['lowkey', 'plan', 'kit'], ['kitty', 'kitty-pro']),
                          (['lowkey', 'plan', 'kitty', '--head'], ['--head-dim'])):
        line = ' '.join(shlex.quote(word) for word in words)
        script = (f'PATH={command.parent}:$PATH; . {completion}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; '
                  '_lowkey; printf "%s\\n" "${COMPREPLY[@]}"')
        found = run('bash', '-c', script, **env).split()
        if not set(wanted) <= set(found):
            sys.exit(f'{words} completes to {found}, not to {wanted}')
    for name in names:
        if f'.SS lowkey {name}\n' not in page:
            sys.exit(f'the man page has no {name}')
    for file in ('zsh/site-functions/_lowkey', 'fish/vendor_completions.d/lowkey.fish'):
        if not list(root.rglob(file)):
            sys.exit(f'{file} is not installed')


def main():
    build, compiler = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as temp:
        root = pathlib.Path(temp, 'root')
        run('meson', 'install', '--no-rebuild', '-C', build, '--destdir', str(root))
        # A package is built under one root and used under another.
        root = root.rename(pathlib.Path(temp, 'moved'))
        pc = next(root.rglob('lowkey.pc')).parent
        flags = run('pkg-config', '--cflags', '--libs', 'lowkey', PKG_CONFIG_PATH=str(pc)).split()
        strict = [*compiler, '-std=c11', '-Wall', '-Wextra', '-Werror', str(HERE / 'consumer.c'), '-o', program(temp)]
        run(*strict, *flags)
        run(program(temp), LD_LIBRARY_PATH=str(pc.parent))
        private = run('pkg-config', '--static', '--libs', 'lowkey', PKG_CONFIG_PATH=str(pc)).split()
        run(*strict, *(flag for flag in flags if flag.startswith('-I')), str(pc.parent / 'liblowkey.a'),
            *(flag for flag in private if flag != '-llowkey'))
        run(program(temp))
        cmake_consumer(temp, root, compiler)
        shell_files(root)
        run(sys.executable, str(HERE / 'consumer.py'), str(pc.parent / 'liblowkey.so'))
        headers = sorted(f.name for f in root.rglob('include/lowkey/*'))
        source = sorted(f.name for f in (HERE.parents[1] / 'include/lowkey').iterdir())
        if headers != source:
            sys.exit(f'installed headers {headers}, the source has {source}')


if __name__ == '__main__':
    main()
