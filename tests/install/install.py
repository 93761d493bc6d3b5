# SPDX-License-Identifier: Apache-2.0
"""Installs into an empty folder, moves it and uses what lies there: a C program through pkg-config
and through CMake, with the shared and the static library, a Python program through ctypes, the man
page, the completions and the command by itself. Arguments: build folder, C compiler command."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(*command, cwd=None, **env):
    print('+', *command)
    out = subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True)
    print(out.stdout + out.stderr, end='')
    if out.returncode:
        sys.exit(f'exit status {out.returncode}')
    return out.stdout


def program(temp):
    return str(pathlib.Path(temp, 'consumer'))


def expect_archive(file):
    """A program that has the library inside."""
    if 'liblowkey' in run('readelf', '-d', file):
        sys.exit(f'{file} needs the shared library')
    run(file)


def cmake_consumer(temp, root, compiler):
    """The same program by a CMake project that knows the prefix alone."""
    if shutil.which('cmake') is None:
        print('cmake is missing: its package is not tried')
        return
    source, build = pathlib.Path(temp, 'source'), pathlib.Path(temp, 'build')
    source.mkdir()
    (source / 'CMakeLists.txt').write_text(f'''cmake_minimum_required(VERSION 3.18)
project(consumer C)
find_package(lowkey 0.2 REQUIRED CONFIG)
foreach(name consumer consumer_static)
  add_executable(${{name}} {HERE / 'consumer.c'})
endforeach()
target_link_libraries(consumer lowkey::lowkey)
target_link_libraries(consumer_static lowkey::lowkey_static)
''')
    prefix = next(root.rglob('include/lowkey')).parents[1]
    run('cmake', '-G', 'Ninja', '-S', str(source), '-B', str(build), f'-DCMAKE_PREFIX_PATH={prefix}',
        CC=' '.join(compiler))
    run('cmake', '--build', str(build))
    run(str(build / 'consumer'))
    expect_archive(str(build / 'consumer_static'))


def bash_words(completion, words, env):
    line = ' '.join(shlex.quote(word) for word in words)
    return run('bash', '-c', f'. {completion}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _lowkey; '
               'printf "%s\\n" "${COMPREPLY[@]}"', **env).split()


def zsh_words(completion, words, env):
    """What the function offers; zsh itself keeps the words that begin like the last one."""
    line = ' '.join(shlex.quote(word) for word in words)
    offered = run('zsh', '-f', '-c', f'words=({line}); CURRENT={len(words)}; _files() {{ : }}; '
                  f'compadd() {{ shift; print -l -- $@ }}; complete_line() {{ . {completion} }}; complete_line', **env)
    return [word for word in offered.split() if word.startswith(words[-1])]


def fish_words(completion, words, env):
    lines = run('fish', '--no-config', '-c', f'source {completion}; complete -C {shlex.quote(" ".join(words))}', **env)
    return [line.split('\t')[0] for line in lines.splitlines()]


SHELLS = {
    'bash': ('bash-completion/completions/lowkey', bash_words),
    'zsh': ('zsh/site-functions/_lowkey', zsh_words),
    'fish': ('fish/vendor_completions.d/lowkey.fish', fish_words),
}


def shell_files(root):
    """Each command is in the man page, and the shells of this machine complete it, its methods and options."""
    commands = list(root.rglob('bin/lowkey'))
    if not commands:
        print('this build has no command')
        return
    command = commands[0]
    env = {}
    text = run(str(command), '--help')
    names = re.findall(r'^  ([a-z]+) ', text.split('Subcommands:')[1].split('\n\n')[0], re.M)
    page = next(root.rglob('man1/lowkey.1')).read_text()
    for name in names:
        if f'.SS lowkey {name}\n' not in page:
            sys.exit(f'the man page has no {name}')
    env['PATH'] = f'{command.parent}:{os.environ["PATH"]}'
    for shell, (file, completed) in SHELLS.items():
        completion = next(root.rglob(file))
        if shutil.which(shell) is None:
            print(f'{shell} is missing: its completion is not tried')
            continue
        for words, wanted, unwanted in ((['lowkey', ''], names, []), (['lowkey', 'pl'], ['plan'], []),
                                        (['lowkey', 'plan', 'kit'], ['kitty', 'kitty-pro'], []),
                                        (['lowkey', 'plan', 'kitty', ''], [], ['kivi2']),
                                        (['lowkey', 'plan', 'kitty', '--head'], ['--head-dim'], []),
                                        (['lowkey', 'bench', '--bind'], ['--bindings'], [])):
            found = set(completed(completion, words, env))
            if not set(wanted) <= found or set(unwanted) & found:
                sys.exit(f'{shell} completes {words} to {sorted(found)}, not to {wanted}')


def demo(root, temp):
    """The installed command finds its library, its model and its text from another folder."""
    for command in root.rglob('bin/lowkey'):
        run(str(command), 'demo', '--tokens', '256', '--questions', '1', '--plans', 'fp16', cwd=temp)


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
        archive = run('pkg-config', '--cflags', '--libs', 'lowkey-static', PKG_CONFIG_PATH=str(pc)).split()
        run(*strict, *archive)
        expect_archive(program(temp))
        cmake_consumer(temp, root, compiler)
        shell_files(root)
        demo(root, temp)
        run(sys.executable, str(HERE / 'consumer.py'), str(pc.parent / 'liblowkey.so'))
        headers = sorted(f.name for f in root.rglob('include/lowkey/*'))
        source = sorted(f.name for f in (HERE.parents[1] / 'include/lowkey').iterdir())
        if headers != source:
            sys.exit(f'installed headers {headers}, the source has {source}')


if __name__ == '__main__':
    main()
