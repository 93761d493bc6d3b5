# SPDX-License-Identifier: Apache-2.0
"""The crates lowkey-sys, with the sources of the library for its feature vendored, and lowkey, as crates.io takes them."""

from __future__ import annotations

import hashlib
import json
import pathlib
import shutil

from workspace import Refused, Workspace, run

MAX_BYTES = 10 << 20  # of a crate, by crates.io
CRATES = ('lowkey-sys', 'lowkey')
# What Meson reads and compiles. Programs, tests and documents stay out.
LIBRARY = ('LICENSE', 'meson.build', 'meson_options.txt', 'include', 'src', 'cuda', 'shaders',
           'examples/meson.build')

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
    stage = _stage(work)
    # lowkey's lock file names lowkey-sys of a registry: here that is the one that was just made.
    sys_crate = _package(work, stage, 'lowkey-sys', {})
    registry = work.scratch('crates-registry')
    _place(registry, sys_crate)
    replaced = {'CARGO_HOME': str(_cargo_home(work, registry))}
    made = [sys_crate, _package(work, stage, 'lowkey', replaced)]
    for path in made:
        if path.stat().st_size > MAX_BYTES:
            raise Refused(f'{path.name} has {path.stat().st_size} bytes, crates.io takes {MAX_BYTES}')
    return made


def check(work: Workspace) -> None:
    """A program of a clean system builds with the feature vendored, offline, from the two files alone."""
    build(work)
    with work.chroot() as system:
        system.install('cargo', 'g++', 'meson', 'ninja-build')
        registry = system.root / 'root/registry'
        for name in CRATES:
            _place(registry, work.out / f'{name}-{work.version}.crate')
        _configure(system.root / 'root/.cargo', '/root/registry')
        hello = system.root / 'root/hello'
        (hello / 'src').mkdir(parents=True)
        (hello / 'src/main.rs').write_text(HELLO)
        (hello / 'Cargo.toml').write_text(f'[package]\nname = "hello"\nversion = "0.0.0"\nedition = "2021"\n\n[dependencies]\n'
                                          f'lowkey = {{ version = "{work.version}", features = ["vendored"] }}\n')
        manifest = ['--offline', '--manifest-path', '/root/hello/Cargo.toml']
        said = system.run('cargo', 'run', '--quiet', *manifest, capture=True)
        if work.version not in said:
            raise Refused(f'hello says {said}')
        print(said, end='')
        # docs.rs has neither the library nor Meson.
        system.run('apt-get', '-q', '-y', 'purge', 'meson')
        system.run('env', 'DOCS_RS=1', 'CARGO_TARGET_DIR=/root/docs', 'cargo', 'doc', '--quiet', *manifest)


def _stage(work: Workspace) -> pathlib.Path:
    """The workspace that is published: bindings/rust, the license in each crate, and the library's sources in lowkey-sys."""
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
    shutil.rmtree(library / 'src/packaging/dist')
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


def _package(work: Workspace, stage: pathlib.Path, name: str, env: dict[str, str]) -> pathlib.Path:
    target = work.kept('cargo-target')
    run('cargo', 'package', '--quiet', '--offline', '--no-verify', '--allow-dirty', '--target-dir', target, '-p', name,
        cwd=stage, env=env)
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


def _cargo_home(work: Workspace, registry: pathlib.Path) -> pathlib.Path:
    home = work.scratch('cargo-home')
    _configure(home / 'home', str(registry))
    return home / 'home'
