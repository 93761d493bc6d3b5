"""Installs into an empty folder and uses what lies there: a C program through pkg-config, a
Python program through ctypes. Arguments: build folder, C compiler command."""
import os
import pathlib
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


def main():
    build, compiler = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as temp:
        root = pathlib.Path(temp, 'root')
        run('meson', 'install', '--no-rebuild', '-C', build, '--destdir', str(root))
        pc = next(root.rglob('lowkey.pc')).parent
        flags = run('pkg-config', '--cflags', '--libs', 'lowkey', PKG_CONFIG_PATH=str(pc),
                    PKG_CONFIG_SYSROOT_DIR=str(root)).split()
        program = str(pathlib.Path(temp, 'consumer'))
        run(*compiler, '-std=c11', '-Wall', '-Wextra', '-Werror', str(HERE / 'consumer.c'), '-o',
            program, *flags)
        run(program, LD_LIBRARY_PATH=str(pc.parent))
        run(sys.executable, str(HERE / 'consumer.py'), str(pc.parent / 'liblowkey.so'))
        headers = sorted(f.name for f in root.rglob('include/lowkey/*'))
        source = sorted(f.name for f in (HERE.parents[1] / 'include/lowkey').iterdir())
        if headers != source:
            sys.exit(f'installed headers {headers}, the source has {source}')


if __name__ == '__main__':
    main()
