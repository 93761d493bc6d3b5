# SPDX-License-Identifier: Apache-2.0
"""The recipe of Conan 2 with its test package, as `conan create` and ConanCenter take it."""

from __future__ import annotations

import hashlib
import pathlib
import shutil

from workspace import PACKAGING, ROOT, Workspace, run

CONAN = '2.34.0'
# ConanCenter's packages that the system has, in its versions, which the recipe's ranges must contain.
PROFILE = """include(default)

[platform_requires]
nlohmann_json/{json}
xxhash/{xxhash}

[platform_tool_requires]
meson/{meson}
ninja/{ninja}
pkgconf/{pkgconf}
"""
VERSIONS = {
    'json': ('pkg-config', '--modversion', 'nlohmann_json'),
    'xxhash': ('pkg-config', '--modversion', 'libxxhash'),
    'meson': ('meson', '--version'),
    'ninja': ('ninja', '--version'),
    'pkgconf': ('pkg-config', '--version'),
}


def build(work: Workspace) -> list[pathlib.Path]:
    path = work.out / f'lowkey-conan-{work.version}.tgz'
    work.pack(_recipe(work), f'lowkey-conan-{work.version}', path)
    return [path]


def check(work: Workspace) -> None:
    """`conan create` of the packed recipe, static and shared, with an empty cache and no remote."""
    recipe = build(work)[0]
    folder = work.scratch('conan-check')
    run('tar', '-xzf', recipe, '-C', folder)
    run('python3', '-m', 'venv', folder / 'venv')
    run(folder / 'venv/bin/pip', 'install', '--quiet', f'conan=={CONAN}')
    home = folder / 'home'
    # Conan takes a source of the right sum from here and downloads nothing.
    backup = folder / 'sources/s' / _sum(work)
    backup.parent.mkdir(parents=True)
    shutil.copy2(work.archive(), backup)
    home.mkdir()
    (home / 'global.conf').write_text(f'core.sources:download_cache={folder / "sources"}\n')
    found = {name: run(*command, capture=True).strip() for name, command in VERSIONS.items()}
    (folder / 'profile').write_text(PROFILE.format(**found))
    conan = folder / 'venv/bin/conan'
    env = {'CONAN_HOME': str(home)}
    run(conan, 'profile', 'detect', env=env)
    for shared in (False, True):
        run(conan, 'create', folder / recipe.stem, '--no-remote', '--profile:all', folder / 'profile', '-o',
            f'&:shared={shared}', env=env)


def _sum(work: Workspace) -> str:
    return hashlib.sha256(work.archive().read_bytes()).hexdigest()


def _recipe(work: Workspace) -> pathlib.Path:
    """The recipe's folder with what is made: the source archive's address and sum, and the test package's program."""
    folder = work.scratch('conan') / 'recipe'
    shutil.copytree(PACKAGING / 'conan', folder, ignore=shutil.ignore_patterns('__pycache__', 'build'))
    shutil.copy2(ROOT / 'examples/hello.c', folder / 'test_package/test_package.c')
    (folder / 'conandata.yml').write_text(f'sources:\n  "{work.version}":\n    url: "{work.archive_url()}"\n'
                                          f'    sha256: "{_sum(work)}"\n')
    return folder
