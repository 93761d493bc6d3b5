# SPDX-License-Identifier: Apache-2.0
"""What every package of `./dev dist` builds from and checks itself in: the sources of one release, folders, clean systems."""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import address  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGING = ROOT / 'src/packaging'
MIRROR = 'http://deb.debian.org/debian'
EMULATED_SECONDS = 600  # the longest run, a demo, takes 2 minutes of them


class Refused(RuntimeError):
    """A package that cannot be made or does not pass its check: one sentence that names it."""


def run(*command: object, cwd: pathlib.Path | None = None, env: dict[str, str] | None = None,
        capture: bool = False) -> str:
    """Run a command; its failure is Refused with its last lines. `env` is added to the environment."""
    words = [str(word) for word in command]
    print('+', *words, file=sys.stderr, flush=True)
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **(env or {})}, text=True, check=False,
                          stdout=subprocess.PIPE if capture else sys.stderr, stderr=subprocess.PIPE if capture else None)
    if done.returncode:
        said = ((done.stdout or '') + (done.stderr or '')).strip().splitlines()[-20:]
        raise Refused('\n'.join([f'{words[0]} ended with status {done.returncode}: {" ".join(words)}', *said]))
    return done.stdout or ''


def run_emulated(libraries: Sequence[pathlib.Path], *command: object, capture: bool = False,
                 cwd: pathlib.Path | None = None) -> str:
    """Run a program for aarch64 on this machine; it finds shared libraries in these folders and in Debian's for arm64."""
    return run(*emulator(libraries), *command, capture=capture, cwd=cwd)


def emulator(libraries: Sequence[pathlib.Path]) -> list[str]:
    """The beginning of such a command.

    The loader has to be the one of libc6:arm64, at -L /. The loader of Debian's cross toolchain may be of another
    revision than the libc.so.6 that it then finds in libc6:arm64: the two share private structures, and a program
    with such a pair spins in pthread_create() with its signals blocked, so that only SIGKILL ends it.
    """
    return ['timeout', '--signal=KILL', str(EMULATED_SECONDS), 'qemu-aarch64', '-L', '/',
            '-E', f'LD_LIBRARY_PATH={":".join(map(str, libraries))}']


def sha256(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Workspace:
    """One release below a folder: `out` has what is published, everything else may be deleted.

    is_kept  a source archive that is there stays, also where the tree has changed since
    preset   how hard xz works, 0 to 9
    """

    def __init__(self, folder: pathlib.Path, is_kept: bool = False, preset: int = 9):
        self.is_kept, self.preset = is_kept, preset
        self.folder = folder.resolve()
        self.out = self.folder / 'out'
        self.out.mkdir(parents=True, exist_ok=True)
        self.version = re.search(r"^ *version: '([^']+)'", (ROOT / 'meson.build').read_text(), re.M)[1]
        # The second every file of a release is from: that of the commit.
        self.epoch = int(os.environ.get('SOURCE_DATE_EPOCH') or run(
            'git', '-C', ROOT, 'log', '-1', '--format=%ct', capture=True))
        os.environ.update(SOURCE_DATE_EPOCH=str(self.epoch), LC_ALL='C.UTF-8', TZ='UTC')

    def scratch(self, name: str) -> pathlib.Path:
        """An empty folder, always at the same path: compilers write paths into what they make."""
        folder = self.folder / 'scratch' / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def kept(self, name: str) -> pathlib.Path:
        """A folder for what costs minutes and does not depend on the sources: tools, clean systems."""
        folder = self.folder / 'kept' / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def compiled(self, name: str) -> pathlib.Path:
        """A folder for what is compiled from the sources, kept between runs; --twice begins each time without it."""
        folder = self.folder / 'compiled' / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def archive(self) -> pathlib.Path:
        """The source archive, which all packages are made from. It follows the tree."""
        path = self.out / f'lowkey-{self.version}.tar.xz'
        names = run('git', '-C', ROOT, 'ls-files', '-co', '--exclude-standard', capture=True).splitlines()
        files = [ROOT / name for name in names if (ROOT / name).is_file()]
        state, packed = self.folder / 'archive.state', self._state(files)
        if not path.exists() or not self.is_kept and (not state.exists() or state.read_text() != packed):
            self.pack_xz([(file, f'lowkey-{self.version}/{file.relative_to(ROOT)}') for file in files], path)
            state.write_text(packed)
        return path

    def pack_xz(self, entries: list[tuple[pathlib.Path, str]], path: pathlib.Path) -> None:
        """A .tar.xz of files under their names in it, of equal bytes for equal files."""
        part = path.with_suffix('.part')
        with tarfile.open(part, 'w:xz', preset=self.preset) as tar:
            for source, name in sorted(entries, key=lambda entry: entry[1]):
                tar.add(source, name, recursive=False, filter=self._plain)
        part.rename(path)

    def archive_url(self) -> str:
        """Where a release has its source archive."""
        return f'https://{address.current()}/releases/download/v{self.version}/{self.archive().name}'

    def _plain(self, info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = 'root'
        info.mtime = self.epoch
        info.mode = 0o755 if info.mode & 0o100 else 0o644
        return info

    def _state(self, files: list[pathlib.Path]) -> str:
        """Differs as soon as a file of the tree has changed."""
        stats = [(str(file), *(getattr(file.stat(), f'st_{name}') for name in ('mode', 'size', 'mtime_ns')))
                 for file in sorted(files)]
        return hashlib.sha256(repr((self.epoch, self.preset, stats)).encode()).hexdigest()

    def pack(self, folder: pathlib.Path, root: str, path: pathlib.Path) -> None:
        """A .tgz of a folder's files below `root`, of equal bytes for equal files."""
        with open(path, 'wb') as file, gzip.GzipFile('', 'wb', fileobj=file, mtime=self.epoch) as stream, \
                tarfile.open(fileobj=stream, mode='w') as tar:
            for source in sorted(source for source in folder.rglob('*') if source.is_file()):
                tar.add(source, f'{root}/{source.relative_to(folder).as_posix()}', filter=self._plain)

    def tree(self, name: str) -> pathlib.Path:
        """The sources as a user unpacks them, in a scratch folder of their own."""
        folder = self.scratch(name)
        run('tar', '-xf', self.archive(), '-C', folder)
        return folder / f'lowkey-{self.version}'

    def chroot(self, suite: str = 'bookworm') -> Chroot:
        """A clean Debian, as its installer leaves it: a fresh copy at each call."""
        return Chroot(self, suite)


class Chroot:
    """A clean Debian below the scratch folder; commands run in it as root. Use it as a context."""

    def __init__(self, work: Workspace, suite: str):
        self.work, self.suite = work, suite
        self.root = work.folder / 'scratch' / f'chroot-{suite}-{os.getpid()}'

    @functools.cached_property
    def _image(self) -> pathlib.Path:
        image = self.work.kept('chroots') / f'{self.suite}.tar'
        if not image.exists():
            part = image.with_suffix('.part')
            base = self.work.scratch(f'debootstrap-{self.suite}')
            run('debootstrap', '--variant=minbase', self.suite, base, MIRROR)
            run('tar', '--numeric-owner', '-C', base, '-cf', part, '.')
            part.rename(image)
            shutil.rmtree(base)
        return image

    def __enter__(self) -> Chroot:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        run('tar', '--numeric-owner', '-xf', self._image, '-C', self.root)
        for name in ('etc/resolv.conf', 'etc/hosts'):
            if pathlib.Path('/', name).exists():
                shutil.copyfile(pathlib.Path('/', name), self.root / name)
        run('mount', '-t', 'proc', 'proc', self.root / 'proc')
        return self

    def __exit__(self, *_: object) -> None:
        run('umount', self.root / 'proc')
        shutil.rmtree(self.root)

    def run(self, *command: object, capture: bool = False) -> str:
        """Run a command in the clean system."""
        return run('chroot', self.root, 'env', '-i', 'PATH=/usr/sbin:/usr/bin:/sbin:/bin', 'HOME=/root', 'LC_ALL=C.UTF-8',
                   'DEBIAN_FRONTEND=noninteractive', *command, capture=capture)

    def install(self, *packages: object) -> None:
        """Install packages of its distribution, or files of this folder's system by their path there."""
        self.run('apt-get', '-q', 'update')
        self.run('apt-get', '-q', '-y', '-o', 'Dpkg::Options::=--force-unsafe-io', 'install', '--no-install-recommends',
                 *packages)

    def copy(self, source: pathlib.Path, folder: str = '/root') -> str:
        """Copy a file or a folder into it; the answer is the path there."""
        target = self.root / folder.lstrip('/') / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
        return str(pathlib.PurePosixPath(folder) / source.name)

    def install_library(self, *options: object) -> None:
        """Build the library alone from the source archive, for CPUs, and install it below /usr."""
        self.run('tar', '-xf', self.copy(self.work.archive()), '-C', '/srv')
        # Without dpkg-dev, Meson does not know Debian's folder for libraries.
        self.run('meson', 'setup', '/srv/build', f'/srv/lowkey-{self.work.version}', '-Dprefix=/usr', '-Dlibdir=lib',
                 '-Dcuda=disabled', '-Dvulkan=disabled', '-Dcli=disabled', '-Dexamples=disabled', '-Dtests=disabled',
                 *options)
        self.run('meson', 'install', '--quiet', '-C', '/srv/build')
