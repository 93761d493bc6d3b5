# SPDX-License-Identifier: Apache-2.0
"""One package for JetPack 6, which is Ubuntu 22.04 for arm64 with CUDA 12: cross-built, with kernels for sm_87.

The library is linked to the shared CUDA runtime of the device, whose build for Jetson differs from that for servers.
"""

from __future__ import annotations

import hashlib
import pathlib
import re
import shutil
import urllib.request
import zipfile

import debian
import kernels
from workspace import MIRROR, PACKAGING, ROOT, Refused, Workspace, emulator, run, run_emulated

NAME = 'lowkey-jetpack6'
LIBRARY = 'usr/lib/aarch64-linux-gnu'
ARCH = '87'
# The oldest compiler that Debian has for JetPack 6's major release of CUDA. Its headers and the runtime that the
# linker reads are in NVIDIA's wheels.
COMPILER = f'{MIRROR}/pool/non-free/n/nvidia-cuda-toolkit/nvidia-cuda-toolkit_12.4.131~12.4.1-2_amd64.deb'
COMPILER_SHA256 = 'cd5fe85aee38d108b315f408a688641478f2402622a10c677478eb7a6c4e5319'
WHEELS = ('nvidia-cuda-runtime-cu12==12.4.127', 'nvidia-cuda-nvcc-cu12==12.4.131', 'nvidia-cuda-cccl-cu12==12.4.127.post1')
PROFILE = """TOP = $(_HERE_)/..
CICC_PATH = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include"
"""
# The newest symbols of Ubuntu 22.04's libraries.
NEWEST = {'GLIBC': (2, 35), 'GLIBCXX': (3, 4, 30), 'CXXABI': (1, 3, 13), 'GCC': (12, 0, 0)}
# Packages of the CUDA runtime, libcudart.so.12, for JetPack 6.0 and its updates.
RUNTIMES = ' | '.join(f'cuda-cudart-12-{minor}' for minor in (6, 2, 4, 5, 8, 9))
CONTROL = """Package: {name}
Version: {version}
Architecture: arm64
Maintainer: {maintainer}
Installed-Size: {kilobytes}
Depends: libc6 (>= 2.35), libgcc-s1 (>= 12), libstdc++6 (>= 12), {runtimes}
Suggests: libvulkan1
Provides: {provided}
Conflicts: {replaced}
Replaces: {replaced}
Section: libs
Priority: optional
Description: low-bit key/value cache of language models - JetPack 6
 lowkey keeps the key/value cache of a language model in packed pages of 1 to
 16 bits and computes attention on the packed bytes, under the model of its
 host, on the CPU and the GPU of Jetson Orin.
 .
 This package has the shared library with CUDA kernels for sm_87, the headers
 and the command, for JetPack 6 with the CUDA 12 runtime of the device.
"""
REPLACED = ('liblowkey0', 'liblowkey0-cuda', 'liblowkey-dev', 'lowkey-tools', 'lowkey-tools-cuda', 'lowkey-data')


def build(work: Workspace) -> list[pathlib.Path]:
    stage = _stage(work)
    _describe(work, stage)
    path = work.out / f'{NAME}_{work.version}_arm64.deb'
    _settle(stage, work.epoch)
    run('dpkg-deb', '--root-owner-group', '-Zxz', '--build', stage, path)
    return [path]


def toolkit(work: Workspace) -> pathlib.Path:
    """A folder of CUDA 12.4 as nvcc expects it: the compiler for this machine, headers, libcudart.so for arm64."""
    folder = work.kept('cuda-12.4')
    if not (folder / 'whole').exists():
        loaded = work.scratch('cuda-12.4')
        _load_compiler(loaded, folder)
        run('python3', '-m', 'pip', 'download', '-q', '--no-deps', '--only-binary=:all:', '--platform',
            'manylinux2014_aarch64', '-d', loaded, *WHEELS)
        for wheel in loaded.glob('*.whl'):
            with zipfile.ZipFile(wheel) as files:
                files.extractall(loaded / 'wheels')
        for include in loaded.glob('wheels/nvidia/*/include'):
            shutil.copytree(include, folder / 'include', dirs_exist_ok=True)
        shutil.copytree(loaded / 'wheels/nvidia/cuda_runtime/lib', folder / 'lib', dirs_exist_ok=True)
        (folder / 'lib/libcudart.so').unlink(missing_ok=True)
        (folder / 'lib/libcudart.so').symlink_to('libcudart.so.12')
        (folder / 'whole').touch()
    return folder


def _load_compiler(loaded: pathlib.Path, folder: pathlib.Path) -> None:
    package = loaded / 'compiler.deb'
    with urllib.request.urlopen(COMPILER) as answer:
        package.write_bytes(answer.read())
    if hashlib.sha256(package.read_bytes()).hexdigest() != COMPILER_SHA256:
        raise Refused(f'{COMPILER} is not the file that was reviewed: its SHA-256 differs')
    run('dpkg', '-x', package, loaded / 'compiler')
    own = loaded / 'compiler/usr/lib/nvidia-cuda-toolkit'
    for name in ('bin', 'nvvm/bin'):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ('ptxas', 'cudafe++', 'fatbinary', 'nvlink', 'bin2c'):
        shutil.copy2(loaded / 'compiler/usr/bin' / name, folder / 'bin')
    shutil.copy2(own / 'bin/nvcc', folder / 'bin')
    shutil.copy2(own / 'bin/cicc', folder / 'nvvm/bin')
    shutil.copytree(own / 'bin/crt', folder / 'bin/crt', dirs_exist_ok=True)
    shutil.copytree(own / 'libdevice', folder / 'nvvm/libdevice', dirs_exist_ok=True)
    (folder / 'bin/nvcc.profile').write_text(PROFILE)


def _stage(work: Workspace) -> pathlib.Path:
    """What the package installs, below a scratch folder."""
    compiler = str(toolkit(work) / 'bin/nvcc')
    tree, build_folder, stage = work.tree('jetpack'), work.scratch('jetpack-build'), work.scratch('jetpack-stage')
    run('meson', 'setup', build_folder, tree, '--cross-file', tree / 'tests/cross/aarch64-linux-gnu.ini', '-Dprefix=/usr',
        '-Dlibdir=lib/aarch64-linux-gnu', '-Dtests=disabled', '-Dexamples=disabled', '-Dcli=enabled', '-Dvulkan=enabled',
        *_kernels(work), env=kernels.first_in_path(compiler))
    run('ninja', '-C', build_folder)
    run('meson', 'install', '-C', build_folder, '--no-rebuild', '--quiet', '--destdir', stage)
    for name in (f'{LIBRARY}/liblowkey.so.0', 'usr/bin/lowkey'):
        run('aarch64-linux-gnu-strip', '--strip-unneeded', stage / name)
        _forget(stage / name, toolkit(work) / 'lib')
    run('aarch64-linux-gnu-strip', '--strip-debug', '--enable-deterministic-archives', stage / LIBRARY / 'liblowkey.a')
    run('chrpath', '-d', stage / 'usr/bin/lowkey')
    _manual(work, stage, tree)
    return stage


def _kernels(work: Workspace) -> list[str]:
    cuda = toolkit(work)
    linked = [f'-Dcuda-runtime={cuda / "lib"}', '-Dcuda-shared=true']
    return kernels.compiled(work, 'jetpack', ARCH, str(cuda / 'bin/nvcc'), linked, is_cross=True)


def _forget(file: pathlib.Path, folder: pathlib.Path) -> None:
    """Meson removes the search path of the build, but its text stays in the table of names."""
    text = str(folder).encode()
    file.write_bytes(file.read_bytes().replace(text, bytes(len(text))))


def _manual(work: Workspace, stage: pathlib.Path, tree: pathlib.Path) -> None:
    """The man page is the help that the command prints, here under qemu."""
    command = work.scratch('jetpack-command') / 'lowkey'
    command.write_text(f'#!/bin/sh\nexec {" ".join(emulator(_libraries(work, stage)))} {stage}/usr/bin/lowkey "$@"\n')
    command.chmod(0o755)
    page = stage / 'usr/share/man/man1/lowkey.1'
    page.parent.mkdir(parents=True)
    run('python3', tree / 'src/cli/share/manual.py', command, work.version, page)
    run('gzip', '-9n', page)


def _libraries(work: Workspace, stage: pathlib.Path) -> list[pathlib.Path]:
    """Where a program of the package finds its libraries on this machine."""
    return [stage / LIBRARY, toolkit(work) / 'lib']


def _describe(work: Workspace, stage: pathlib.Path) -> None:
    """Everything of a package but its contents: control file, sums, copyright, and the loader's cache renewed."""
    documents = stage / 'usr/share/doc' / NAME
    documents.mkdir(parents=True)
    shutil.copyfile(PACKAGING / 'debian/copyright', documents / 'copyright')
    (documents / 'changelog.Debian').write_text(debian.changelog(work, NAME))
    shutil.copyfile(ROOT / 'CHANGELOG.md', documents / 'changelog')
    run('gzip', '-9n', documents / 'changelog', documents / 'changelog.Debian')
    files = sorted(path for path in stage.rglob('*') if path.is_file() and not path.is_symlink())
    kilobytes = sum(path.stat().st_size // 1024 + 1 for path in files)
    about = stage / 'DEBIAN'
    about.mkdir()
    (about / 'control').write_text(CONTROL.format(
        name=NAME, version=work.version, maintainer=debian.maintainer(), kilobytes=kilobytes,
        runtimes=RUNTIMES, provided=', '.join(f'{name} (= {work.version})' for name in REPLACED),
        replaced=', '.join(REPLACED)))
    (about / 'md5sums').write_text(''.join(
        f'{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(stage)}\n' for path in files))
    (about / 'triggers').write_text('activate-noawait ldconfig\n')


def _settle(stage: pathlib.Path, epoch: int) -> None:
    """The modes that Debian's packages have, and no time after that of the commit."""
    run('chmod', '-R', 'u=rwX,go=rX', stage)
    run('find', stage, '-exec', 'touch', '--no-dereference', f'--date=@{epoch}', '{}', '+')


def check(work: Workspace) -> None:
    """What a machine without a Jetson can try: contents, symbols, targets of the kernels, and programs under qemu."""
    path = work.out / f'{NAME}_{work.version}_arm64.deb'
    stage = work.scratch('jetpack-unpacked')
    run('dpkg-deb', '--info', path)
    run('dpkg', '-x', path, stage)
    library = stage / LIBRARY / 'liblowkey.so.0'
    for file in (library, stage / 'usr/bin/lowkey'):
        _check_program(file)
    run('python3', ROOT / 'tests/abi/sass_targets.py', library, ARCH)
    run('python3', ROOT / 'tests/abi/symbols.py', library, ROOT / 'tests/abi/symbols.txt',
        PACKAGING / 'debian/liblowkey0.symbols')
    run('python3', ROOT / 'tests/abi/cuda_symbols.py', ROOT / 'tests/abi/cuda_runtime.txt', stage / LIBRARY / 'liblowkey.a')
    hello = work.scratch('jetpack-hello') / 'hello'
    run('aarch64-linux-gnu-gcc', ROOT / 'examples/hello.c', '-o', hello, f'-I{stage / "usr/include"}',
        f'-L{stage / LIBRARY}', f'-Wl,-rpath-link,{toolkit(work) / "lib"}', '-llowkey')
    libraries = _libraries(work, stage)
    run_emulated(libraries, hello)
    command = stage / 'usr/bin/lowkey'
    if f'sm_{ARCH}' not in run_emulated(libraries, command, 'info', capture=True):
        raise Refused(f'the command does not name sm_{ARCH}')
    # qemu takes a minute for it.
    run_emulated(libraries, command, 'demo', '--tokens', '256', '--questions', '1', '--plans', 'kitty-pro',
                 cwd=hello.parent)


def _check_program(file: pathlib.Path) -> None:
    """No symbol is newer than Ubuntu 22.04, and no path is of the machine that built it."""
    if str(ROOT).encode() in file.read_bytes():
        raise Refused(f'{file.name} has a path of the build, {ROOT}')
    text = run('aarch64-linux-gnu-objdump', '-p', file, capture=True)
    for name, version in re.findall(r' (GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)$', text, re.M):
        if tuple(map(int, version.split('.'))) > NEWEST[name]:
            raise Refused(f'{file.name} needs {name}_{version}, which Ubuntu 22.04 does not have')
