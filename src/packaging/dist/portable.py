# SPDX-License-Identifier: Apache-2.0
"""A compiler for systems older than this one: zig's clang with the stubs of an old glibc and a C++ library of its own,
which is linked statically. What it makes needs glibc alone."""

from __future__ import annotations

import hashlib
import pathlib
import shutil

from workspace import Refused, Workspace, run

GLIBC = '2.28'
ZIG = 'ziglang==0.17.1'
MESON = ('meson==1.12.1', 'ninja==1.13.2')
# Debian's packages of headers, by the name that pkg-config knows, and what each has below /usr/include.
HEADERS = {
    'nlohmann_json': ('nlohmann-json3-dev', 'nlohmann'),
    'CLI11': ('libcli11-dev', 'CLI'),
    'stb': ('libstb-dev', 'stb'),
    'libxxhash': ('libxxhash-dev', 'xxhash.h'),
    'vulkan': ('libvulkan-dev', 'vulkan', 'vk_video'),
}
# The oldest processor; the files of each instruction set name it themselves.
BASELINE = {'x86_64': 'x86_64', 'aarch64': 'generic'}


class Toolchain:
    """Programs from PyPI in an environment of their own, and Meson's cross files."""

    def __init__(self, work: Workspace, *packages: str):
        """packages  more of PyPI, each with its version"""
        self.work = work
        self.folder = _environment(work, (ZIG, *MESON, *packages))
        self.python = self.folder / 'bin/python'
        self.env = {'PATH': f'{self.folder}/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/cuda/bin',
                    'ZIG_GLOBAL_CACHE_DIR': str(work.compiled('zig-cache'))}

    def run(self, *command: object, capture: bool = False, cwd: pathlib.Path | None = None) -> str:
        """Run a program of the environment, or another one with the environment's in PATH."""
        return run(*command, env=self.env, capture=capture, cwd=cwd)

    def cross_file(self, processor: str, sources: pathlib.Path) -> pathlib.Path:
        """Meson's description of a processor. The compiler writes no name of the folder `sources` into what it makes."""
        headers = _headers(self.work)
        zig = next(self.folder.glob('lib/python*/site-packages/ziglang/zig'))
        target = [f'--target={processor}-linux-gnu.{GLIBC}', f'-mcpu={BASELINE[processor]}']
        # zig's own default is debug information, which names folders.
        flags = ['-g0', '-isystem', str(headers / 'include'), f'-ffile-prefix-map={sources}=.']
        link = ['-Wl,-s', *_cpu_model(headers, processor)]
        path = headers / f'{processor}.ini'
        path.write_text(f'''[binaries]
c = {[str(zig), 'cc', *target]}
cpp = {[str(zig), 'c++', *target]}
ar = {[str(zig), 'ar']}
pkg-config = 'pkg-config'
[built-in options]
c_args = {flags}
cpp_args = {flags}
c_link_args = {link}
cpp_link_args = {link}
[properties]
pkg_config_libdir = '{headers}'
[host_machine]
system = 'linux'
cpu_family = '{processor}'
cpu = '{processor}'
endian = 'little'
''')
        return path

    def notices(self) -> str:
        """The licenses of what a package compiled here contains besides lowkey."""
        texts = {package: pathlib.Path('/usr/share/doc', package, 'copyright') for package, *_ in HEADERS.values()}
        texts['libgcc'] = pathlib.Path('/usr/share/doc/libgcc-s1/copyright')
        zig = next(self.folder.glob('lib/python*/site-packages/ziglang/lib'))
        texts.update({name: zig / name / 'LICENSE.TXT' for name in ('libcxx', 'libcxxabi', 'libunwind')})
        return '\n'.join(f'{"=" * 72}\n{name}\n{"=" * 72}\n{path.read_text(encoding="utf-8")}'
                         for name, path in texts.items() if path.exists())


def _environment(work: Workspace, packages: tuple[str, ...]) -> pathlib.Path:
    state = hashlib.sha256(' '.join(sorted(packages)).encode()).hexdigest()[:16]
    folder = work.kept(f'portable-{state}')
    if not (folder / 'whole').exists():
        run('python3', '-m', 'venv', folder)
        run(folder / 'bin/pip', 'install', '-q', '--disable-pip-version-check', '--only-binary=:all:', *packages)
        (folder / 'whole').touch()
    return folder


def _cpu_model(folder: pathlib.Path, processor: str) -> list[str]:
    """GCC's object that fills what __builtin_cpu_supports() reads. zig's own one reports no instruction set."""
    if processor != 'x86_64':
        return []
    run('ar', 'x', run('gcc', '-print-libgcc-file-name', capture=True).strip(), 'cpuinfo.o', cwd=folder)
    return [str(folder / 'cpuinfo.o')]


def _headers(work: Workspace) -> pathlib.Path:
    """Copies of the headers: /usr/include itself has those of this system's C library too."""
    folder = work.scratch('portable-headers')
    for name, (package, *entries) in HEADERS.items():
        for entry in entries:
            source, target = pathlib.Path('/usr/include', entry), folder / 'include' / entry
            if not source.exists():
                raise Refused(f'no {source}: `./dev dist` installs it with {package}')
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
        version = run('dpkg-query', '-W', '-f', '${Version}', package, capture=True)
        include = folder / 'include' / ('stb' if name == 'stb' else '')
        (folder / f'{name}.pc').write_text(f'Name: {name}\nDescription: {package}\nVersion: {version}\n'
                                           f'Cflags: -I{include}\n')
    return folder
