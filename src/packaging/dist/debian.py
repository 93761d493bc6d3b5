# SPDX-License-Identifier: Apache-2.0
"""Packages for Debian 12: source and binary packages from src/packaging/debian, those with CUDA kernels among them."""

from __future__ import annotations

import email.utils
import os
import pathlib
import re
import shutil

import kernels
from workspace import PACKAGING, Chroot, Refused, Workspace, run

# Below that of a package which Debian itself may make of the release one day.
REVISION = '0lowkey1'
# Packages of one system, and those that take their place on a machine with an NVIDIA GPU.
PLAIN = ('liblowkey0', 'liblowkey-dev', 'lowkey-tools', 'lowkey-data', 'python3-lowkey')
CUDA = ('liblowkey0-cuda', 'lowkey-tools-cuda')
PUBLISHED = ('*.deb', '*.dsc', '*.tar.xz')
CHANGELOG = """lowkey ({version}-{revision}) bookworm; urgency=medium

  * Release {version}; /usr/share/doc/{package}/changelog.gz has its changes.

 -- {maintainer}  {date}
"""


def build(work: Workspace) -> list[pathlib.Path]:
    """Source and binary packages; `./dev dist --twice` compares the bytes of two builds, as of every part."""
    tree = _debianized(work)
    # No symbols for debuggers: a release has no packages of them.
    env = {'DEB_BUILD_OPTIONS': f'noautodbgsym parallel={os.cpu_count()}',
           'DEB_CFLAGS_STRIP': '-g', 'DEB_CXXFLAGS_STRIP': '-g',
           'LOWKEY_CUDA_OPTIONS': ' '.join(kernels.options(work, 'x86_64'))}
    if shutil.which('ccache'):
        # A package build has a home of its own.
        env['CCACHE_DIR'] = run('ccache', '--get-config', 'cache_dir', capture=True).strip()
    run('dpkg-buildpackage', '--build=full', '--no-sign', '--build-profiles=pkg.lowkey.cuda', cwd=tree, env=env)
    run('lintian', '--fail-on', 'error', '--info', *tree.parent.glob('*.changes'))
    made = sorted(path for pattern in PUBLISHED for path in tree.parent.glob(pattern))
    return [pathlib.Path(shutil.copy2(path, work.out)) for path in made]


def _debianized(work: Workspace) -> pathlib.Path:
    """The sources with a folder debian/, next to their archive under the name that Debian's tools require."""
    tree = work.tree('debian')
    shutil.copy2(work.archive(), tree.parent / f'lowkey_{work.version}.orig.tar.xz')
    shutil.copytree(tree / 'src/packaging/debian', tree / 'debian')
    named = maintainer()
    control = tree / 'debian/control'
    control.write_text(control.read_text().replace(_maintainer_of(control), named))
    (tree / 'debian/changelog').write_text(changelog(work, 'liblowkey0'))
    return tree


def maintainer() -> str:
    """Who publishes the packages: DEBFULLNAME and DEBEMAIL, as Debian's own tools have it, or the control file's."""
    if 'DEBFULLNAME' in os.environ and 'DEBEMAIL' in os.environ:
        return f'{os.environ["DEBFULLNAME"]} <{os.environ["DEBEMAIL"]}>'
    return _maintainer_of(PACKAGING / 'debian/control')


def _maintainer_of(control: pathlib.Path) -> str:
    return re.search(r'^Maintainer: (.*)$', control.read_text(), re.M)[1]


def changelog(work: Workspace, package: str) -> str:
    """Debian's changelog has one entry, which names the package that has the project's own."""
    return CHANGELOG.format(version=work.version, revision=REVISION, package=package, maintainer=maintainer(),
                            date=email.utils.formatdate(work.epoch))


def check(work: Workspace) -> None:
    """The packages' tests pass in a clean Debian 12, once more with CUDA's packages, and nothing stays of them."""
    made = _made(work)
    with work.chroot() as system:
        system.install('autopkgtest', 'dpkg-dev')
        files = {name: system.copy(path) for name, path in made.items()}
        source = [system.copy(path) for pattern in PUBLISHED[1:] for path in work.out.glob(f'lowkey_{pattern}')]
        system.install(*(files[name] for name in PLAIN))
        _tests(system, source)
        system.install(*(files[name] for name in CUDA))
        _tests(system, source)
        if 'cuda: no' in system.run('lowkey', 'info', capture=True):
            raise Refused('the packages with CUDA have none')
        system.run('apt-get', '-q', '-y', 'purge', *files)
        left = [str(path) for folder in ('etc', 'usr', 'var/lib/dpkg') for path in (system.root / folder).rglob('*lowkey*')]
        if left:
            raise Refused(f'purged packages leave {", ".join(left)}')


def _made(work: Workspace) -> dict[str, pathlib.Path]:
    made = {}
    for name in PLAIN + CUDA:
        for path in work.out.glob(f'{name}_{work.version}-{REVISION}_*.deb'):
            made[name] = path
        if name not in made:
            raise Refused(f'{work.out} has no package {name} of {work.version}: build it first')
    return made


def _tests(system: Chroot, source: list[str]) -> None:
    """The tests of debian/tests on what is installed."""
    dsc = next(path for path in source if path.endswith('.dsc'))
    system.run('dpkg-source', '--no-check', '-x', dsc, '/srv/source')
    system.run('autopkgtest', '--no-built-binaries', '/srv/source', '--', 'null')
    system.run('rm', '-r', '/srv/source')
