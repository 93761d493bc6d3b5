# SPDX-License-Identifier: Apache-2.0
"""The crates lowkey-sys, with the library's sources for its feature vendored, and lowkey, as crates.io takes them."""

from __future__ import annotations

import hashlib
import json
import pathlib
import shutil

from workspace import Refused, Workspace, run

MAX_BYTES = 10 << 20  # of a crate, by crates.io
CRATES = ('lowkey-sys', 'lowkey')
# What Meson reads and compiles. Programs, tests and documents stay out.
LIBRARY = ('LICENSE', 'meson.build', 'meson_options.txt', 'include', 'src', 'cuda', 'shaders', 'examples')

# Headers that the library includes: Debian's package, what it installs, Meson's names of the dependency.
HEADERS = {
    'nlohmann_json': ('nlohmann-json3-dev', 'nlohmann', 'nlohmann_json'),
    'xxhash': ('libxxhash-dev', 'xxhash.h', 'libxxhash'),
}
MESON = """project('{folder}', 'cpp', version: '{version}')
headers_dep = declare_dependency(include_directories: include_directories('include', is_system: true))
"""
WRAP = """[wrap-file]
directory = {folder}

[provide]
{dependency} = headers_dep
"""
HELLO = """use lowkey::*;

fn main() -> Result<()> {
    let context = Context::cpu()?;
    let geometry = Geometry::uniform(1, Layer::new(2, 1, 64));
    let plan = Plan::preset("kitty-pro", &geometry)?;
    let size = plan.bytes(64, 1, 64)?;
    let cache = Cache::new(&context, &geometry, &plan, CacheOptions::new(size.cache_bytes))?;
    println!("{} has a budget of {} bytes", build_info(), cache.stats()?.budget_bytes);
    Ok(())
}
"""


def build(work: Workspace) -> list[pathlib.Path]:
    stage, home = _stage(work), _Registry(work)
    made = []
    for name in CRATES:
        made.append(_package(work, stage, name, home.env))
        home.add(made[-1], work.version)
        if made[-1].stat().st_size > MAX_BYTES:
            raise Refused(f'{made[-1].name} has {made[-1].stat().st_size} bytes, crates.io takes {MAX_BYTES}')
    return made


def check(work: Workspace) -> None:
    """A program of a clean system builds with the feature vendored, offline, from the two files alone."""
    crates = [work.out / f'{name}-{work.version}.crate' for name in CRATES]
    if not all(path.exists() for path in crates):
        build(work)
    with work.chroot() as system:
        system.install('cargo', 'g++', 'meson', 'ninja-build')
        registry = system.root / 'srv/registry'
        for crate in crates:
            _place(registry, crate)
        _configure(system.root / 'srv/home', '/srv/registry')
        hello = system.root / 'srv/hello'
        (hello / 'src').mkdir(parents=True)
        (hello / 'src/main.rs').write_text(HELLO)
        (hello / 'Cargo.toml').write_text('[package]\nname = "hello"\nversion = "0.0.0"\nedition = "2021"\n\n'
                                          f'[dependencies.lowkey]\nversion = "{work.version}"\nfeatures = ["vendored"]\n')
        home, manifest = 'CARGO_HOME=/srv/home', ['--quiet', '--offline', '--manifest-path', '/srv/hello/Cargo.toml']
        said = system.run('env', home, 'cargo', 'run', *manifest, capture=True)
        if work.version not in said:
            raise Refused(f'hello says {said}')
        print(said, end='')
        # docs.rs has neither the library nor Meson.
        system.run('apt-get', '-q', '-y', 'purge', 'meson')
        system.run('env', home, 'DOCS_RS=1', 'CARGO_TARGET_DIR=/srv/docs', 'cargo', 'doc', *manifest)
        if not list((system.root / 'srv/docs/doc/lowkey').glob('struct.Cache.html')):
            raise Refused('the documentation has no page of Cache')


def _stage(work: Workspace) -> pathlib.Path:
    """The workspace that is published: bindings/rust, the license in each crate, the library in lowkey-sys."""
    tree, stage = work.tree('crates-source'), work.scratch('crates')
    shutil.copy2(tree / 'bindings/rust/Cargo.toml', stage)
    for name in CRATES:
        shutil.copytree(tree / 'bindings/rust' / name, stage / name)
        shutil.copy2(tree / 'LICENSE', stage / name)
    library = stage / 'lowkey-sys/library'
    for name in LIBRARY:
        target = library / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (tree / name).is_dir():
            shutil.copytree(tree / name, target)
        else:
            shutil.copy2(tree / name, target)
    for folder in (library / 'src/packaging').iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    for folder, (package, header, dependency) in HEADERS.items():
        _add_headers(library / 'subprojects', folder, package, header, dependency)
    return stage


def _add_headers(subprojects: pathlib.Path, folder: str, package: str, header: str, dependency: str) -> None:
    """A subproject of Meson with the headers and the license of a Debian package."""
    source, target = pathlib.Path('/usr/include', header), subprojects / folder
    (target / 'include').mkdir(parents=True)
    version = run('dpkg-query', '-W', '-f', '${source:Upstream-Version}', package, capture=True)
    (shutil.copytree if source.is_dir() else shutil.copy2)(source, target / 'include' / header)
    shutil.copy2(pathlib.Path('/usr/share/doc', package, 'copyright'), target / 'LICENSE')
    (target / 'meson.build').write_text(MESON.format(folder=folder, version=version))
    (subprojects / f'{folder}.wrap').write_text(WRAP.format(folder=folder, dependency=dependency))


class _Registry:
    """A registry's index in a folder, which stands for crates.io: Cargo finds the first crate there for the second."""

    def __init__(self, work: Workspace):
        self.index, home = work.scratch('crates-index'), work.scratch('crates-home')
        self.env = {'CARGO_HOME': str(home)}
        place = f'"file://{self.index}"'
        (home / 'config.toml').write_text(f'[registries.made]\nindex = {place}\n\n[source.crates-io]\n'
                                          f'replace-with = "made"\n\n[source.made]\nregistry = {place}\n')
        (self.index / 'config.json').write_text('{"dl": "https://example.org/dl", "api": "https://example.org"}')
        run('git', '-C', self.index, 'init', '--quiet')
        self._commit()

    def add(self, crate: pathlib.Path, version: str) -> None:
        name = crate.stem[:-len(version) - 1]
        entry = {'name': name, 'vers': version, 'deps': [], 'cksum': hashlib.sha256(crate.read_bytes()).hexdigest(),
                 'features': {'vendored': []}, 'yanked': False}
        place = self.index / name[:2] / name[2:4] / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(entry) + '\n')
        self._commit()

    def _commit(self) -> None:
        run('git', '-C', self.index, 'add', '.')
        run('git', '-C', self.index, '-c', 'user.name=dist', '-c', 'user.email=dist@example.org', 'commit', '--quiet',
            '--message', 'index')


def _package(work: Workspace, stage: pathlib.Path, name: str, env: dict[str, str]) -> pathlib.Path:
    """The file that `cargo publish` would upload; a warning of its dry run is a fault."""
    target = work.compiled('cargo-target')
    said = run('sh', '-c', 'exec "$@" 2>&1', 'sh', 'cargo', 'publish', '--dry-run', '--no-verify', '--allow-dirty',
               '--registry', 'made', '--target-dir', target, '-p', name, cwd=stage, env=env, capture=True)
    warnings = [line for line in said.splitlines() if line.startswith('warning:') and 'due to dry run' not in line]
    if warnings:
        raise Refused(f'cargo publish of {name}: {" ".join(warnings)}')
    run('cargo', 'package', '--quiet', '--no-verify', '--allow-dirty', '--target-dir', target, '-p', name, cwd=stage,
        env=env)
    path = work.out / f'{name}-{work.version}.crate'
    shutil.copyfile(target / 'package' / path.name, path)
    return path


def _place(registry: pathlib.Path, crate: pathlib.Path) -> None:
    """Unpack a crate into a folder that stands for crates.io: Cargo's directory source."""
    registry.mkdir(parents=True, exist_ok=True)
    run('tar', '-xzf', crate, '-C', registry)
    sums = {'files': {}, 'package': hashlib.sha256(crate.read_bytes()).hexdigest()}
    (registry / crate.stem / '.cargo-checksum.json').write_text(json.dumps(sums))


def _configure(home: pathlib.Path, registry: str) -> None:
    home.mkdir(parents=True)
    (home / 'config.toml').write_text('[source.crates-io]\nreplace-with = "made"\n\n'
                                      f'[source.made]\ndirectory = "{registry}"\n')
