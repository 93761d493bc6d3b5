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
    archs = ARCHS[processor]
    return ['-Dcuda=enabled', f'-Dcuda-archs={archs}', f'-Dcuda-objects={objects(work, processor)}',
            f'-Dcuda-runtime={runtime(work, processor)}']


def objects(work: Workspace, processor: str) -> pathlib.Path:
    """The folder of object files. It is kept for as long as no file of the kernels changes: they compile for minutes."""
    archs = ARCHS[processor]
    folder = work.kept(f'kernels-{processor}-{_state(archs)}')
    if not (folder / 'whole').exists():
        tree, build = work.tree(f'kernels-{processor}'), work.scratch(f'kernels-{processor}-build')
        cross = ['--cross-file', tree / 'tests/cross/aarch64-linux-gnu.ini'] if processor == 'aarch64' else []
        run('meson', 'setup', build, tree, *cross, '-Dcuda=enabled', f'-Dcuda-archs={archs}',
            f'-Dcuda-runtime={runtime(work, processor)}', '-Dvulkan=disabled', '-Dcli=disabled', '-Dexamples=disabled',
            '-Dtests=disabled')
        targets = run('ninja', '-C', build, '-t', 'targets', 'all', capture=True).splitlines()
        names = sorted(line.split(':')[0] for line in targets if line.startswith('cuda/') and '.o:' in line)
        run('ninja', '-C', build, *names)
        for name in names:
            # The compiler names temporary files in symbols that only debuggers read.
            run('strip' if processor == 'x86_64' else 'aarch64-linux-gnu-strip', '--strip-unneeded', '-o',
                folder / pathlib.Path(name).name, build / name)
        (folder / 'whole').touch()
    return folder


def _state(archs: str) -> str:
    """What the objects depend on: every header and kernel, the build's rules, the compiler."""
    state = hashlib.sha256(f'{archs} {run(nvcc(), "--version", capture=True)}'.encode())
    for path in sorted([*ROOT.glob('cuda/**/*'), *ROOT.glob('src/**/*.h'), *ROOT.glob('include/**/*.h')]):
        if path.is_file():
            state.update(path.relative_to(ROOT).as_posix().encode() + b'\0' + path.read_bytes())
    return state.hexdigest()[:16]
