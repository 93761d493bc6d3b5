# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of a release, compiled once for each processor and lent to every package by Meson's cuda-objects."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import zipfile

from workspace import ROOT, Refused, Workspace, run

# The newest of each list is there as PTX too, which newer devices compile. Only Arm boards have sm_87.
ARCHS = {'x86_64': '80,90', 'aarch64': '87,90'}


def nvcc() -> str:
    """The compiler's path, or Refused."""
    found = shutil.which('nvcc', path=os.environ['PATH'] + ':/usr/local/cuda/bin')
    if not found:
        raise Refused('no nvcc: kernels of a release need the CUDA toolkit 13')
    return found


def release(compiler: str) -> str:
    """The toolkit's version, for example 13.0."""
    return run(compiler, '--version', capture=True).split('release ')[1].split(',')[0]


def runtime(work: Workspace, processor: str) -> pathlib.Path:
    """The folder of libcudart_static.a for a processor, from NVIDIA's wheel of the toolkit's version."""
    version = release(nvcc())
    folder = work.kept(f'cuda-runtime-{version}-{processor}')
    if not (folder / 'libcudart_static.a').exists():
        run('python3', '-m', 'pip', 'download', '-q', '--no-deps', '--only-binary=:all:', '--platform',
            f'manylinux2014_{processor}', '-d', folder, f'nvidia-cuda-runtime=={version}.*')
        with zipfile.ZipFile(next(folder.glob('*.whl'))) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith('/libcudart_static.a'))
            (folder / 'libcudart_static.a').write_bytes(wheel.read(name))
    return folder


def options(work: Workspace, processor: str) -> list[str]:
    """The options of a Meson build that takes the compiled kernels, which are made where they are not there yet."""
    return compiled(work, processor, ARCHS[processor], nvcc(), [f'-Dcuda-runtime={runtime(work, processor)}'],
                    is_cross=processor == 'aarch64')


def compiled(work: Workspace, name: str, archs: str, compiler: str, linked: list[str], is_cross: bool) -> list[str]:
    """The same for any compiler and list of architectures; `linked` are the options that name the CUDA runtime."""
    found = ['-Dcuda=enabled', f'-Dcuda-archs={archs}', *linked]
    return [*found, f'-Dcuda-objects={objects(work, name, archs, compiler, found, is_cross)}']


def objects(work: Workspace, name: str, archs: str, compiler: str, found: list[str], is_cross: bool) -> pathlib.Path:
    """The folder of object files. It is kept for as long as no file of the kernels changes: they compile for minutes."""
    folder = work.compiled(f'kernels-{name}-{_state(archs, compiler)}')
    if not (folder / 'whole').exists():
        tree, build = work.tree(f'kernels-{name}'), work.scratch(f'kernels-{name}-build')
        cross = ['--cross-file', tree / 'tests/cross/aarch64-linux-gnu.ini'] if is_cross else []
        run('meson', 'setup', build, tree, *cross, *found, '-Dvulkan=disabled', '-Dcli=disabled', '-Dexamples=disabled',
            '-Dtests=disabled', env=first_in_path(compiler))
        targets = run('ninja', '-C', build, '-t', 'targets', 'all', capture=True).splitlines()
        names = sorted(line.split(':')[0] for line in targets if line.startswith('cuda/') and '.o:' in line)
        run('ninja', '-C', build, *names)
        for one in names:
            # The compiler names temporary files in symbols that only debuggers read.
            run('aarch64-linux-gnu-strip' if is_cross else 'strip', '--strip-unneeded', '-o',
                folder / pathlib.Path(one).name, build / one)
        (folder / 'whole').touch()
    return folder


def first_in_path(compiler: str) -> dict[str, str]:
    """The environment in which Meson finds this compiler."""
    return {'PATH': f'{pathlib.Path(compiler).parent}:{os.environ["PATH"]}'}


def _state(archs: str, compiler: str) -> str:
    """What the objects depend on: the kernels, the headers that they include, the build's rules, the compiler."""
    state = hashlib.sha256(f'{archs} {run(compiler, "--version", capture=True)}'.encode())
    for path in sorted([*ROOT.glob('cuda/**/*'), *ROOT.glob('src/format/*.h')]):
        if path.is_file():
            state.update(path.relative_to(ROOT).as_posix().encode() + b'\0' + path.read_bytes())
    return state.hexdigest()[:16]
