# SPDX-License-Identifier: Apache-2.0
"""The bill of materials as SPDX 2.3 JSON: each published file and what is compiled into it, with version and licence.

What a file holds is read from its machine code: a component is recognized by a text that it compiles to."""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import re
import subprocess
import tarfile
import time
import zipfile
from typing import Iterator, NamedTuple

import checksums
from workspace import Refused, Workspace, run, sha256

# It validates documents against the specification.
TOOLS = 'spdx-tools==0.8.5'
CODE = (b'\x7fELF', b'!<arch>\n')


class Component(NamedTuple):
    name: str
    supplier: str
    licence: str
    mark: bytes  # machine code with this text has it
    version: tuple[str, ...]  # a command that prints it, or the kept tool that has it: libc++ is zig's


COMPONENTS = (
    Component('nlohmann-json', 'Person: Niels Lohmann', 'MIT', b'[json.exception.',
              ('pkg-config', '--modversion', 'nlohmann_json')),
    # Both are read into the library, and of xxHash nothing remains that has a name.
    Component('xxHash', 'Person: Yann Collet', 'BSD-2-Clause', b'[json.exception.',
              ('pkg-config', '--modversion', 'libxxhash')),
    Component('CLI11', 'Organization: University of Cincinnati', 'BSD-3-Clause', b'N3CLI3AppE',
              ('pkg-config', '--modversion', 'CLI11')),
    # stb writes the pictures of the command, which is the one user of CLI11.
    Component('stb', 'Person: Sean Barrett', 'MIT', b'N3CLI3AppE',
              ('dpkg-query', '-W', '-f', r'${Version}\n', 'libstb-dev')),
    Component('CUDA runtime', 'Organization: NVIDIA Corporation', 'LicenseRef-NVIDIA-CUDA-EULA',
              b'CUDA driver version is insufficient for CUDA runtime version', ('nvcc',)),
    Component('libc++', 'Organization: LLVM', 'Apache-2.0 WITH LLVM-exception', b'NSt3__1', ('zig',)),
)
# Where tools of other places lie, and what states a version there. A release may hold runtimes of two toolkits.
KEPT = {
    'nvcc': ('kept/cuda-*', r'cuda-(?:runtime-)?(\d+\.\d+)', '{}'),
    'zig': ('kept/**/ziglang-*.dist-info', r'ziglang-([\d.]*\d)', 'that of zig {}'),
}
NVIDIA = {
    'licenseId': 'LicenseRef-NVIDIA-CUDA-EULA',
    'name': 'NVIDIA CUDA Toolkit End User License Agreement',
    'extractedText': 'The CUDA runtime is distributed under the End User License Agreement of the CUDA Toolkit, whose '
                     'attachment A lists libcudart_static.a as redistributable: https://docs.nvidia.com/cuda/eula/',
}


def members(name: str, data: bytes) -> Iterator[bytes]:
    """The files in a package, of packages in it too."""
    if name.endswith('.deb'):
        unpacked = subprocess.run(['dpkg-deb', '--fsys-tarfile', '/dev/stdin'], input=data, check=True,
                                  stdout=subprocess.PIPE)
        yield from members('data.tar', unpacked.stdout)
    elif name.endswith(('.whl', '.zip')):
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            for entry in package.namelist():
                yield from members(entry, package.read(entry))
    elif name.endswith(('.tar', '.tar.xz', '.tar.gz', '.tar.bz2', '.tgz', '.crate')):
        with tarfile.open(fileobj=io.BytesIO(data)) as package:
            for entry in package:
                if entry.isfile():
                    yield from members(entry.name, package.extractfile(entry).read())
    else:
        yield data


def held(path: pathlib.Path) -> list[Component]:
    """The components in the machine code of a published file."""
    found = set()
    for data in members(path.name, path.read_bytes()):
        if data.startswith(CODE):
            found.update(component for component in COMPONENTS if component.mark in data)
    return [component for component in COMPONENTS if component in found]


def version(component: Component, work: Workspace) -> str:
    """The version that this machine compiles with."""
    kept = KEPT.get(component.version[0])
    if kept:
        pattern, name, text = kept
        found = {match[1] for path in work.folder.glob(pattern) if (match := re.match(name, path.name))}
        return text.format(', '.join(sorted(found))) if found else 'NOASSERTION'
    return run(*component.version, capture=True).splitlines()[0]


def identifier(name: str) -> str:
    return 'SPDXRef-' + re.sub(r'[^A-Za-z0-9.-]', '-', name)


def package(name: str, release: str, licence: str, supplier: str, **more: object) -> dict:
    known = {'versionInfo': release} if release != 'NOASSERTION' else {}
    return {'SPDXID': identifier(name), 'name': name, **known, 'supplier': supplier, 'downloadLocation': 'NOASSERTION',
            'filesAnalyzed': False, 'licenseConcluded': licence, 'licenseDeclared': licence,
            'copyrightText': 'NOASSERTION', **more}


def relation(one: str, kind: str, other: str) -> dict:
    return {'spdxElementId': identifier(one), 'relationshipType': kind, 'relatedSpdxElement': identifier(other)}


def document(work: Workspace) -> dict:
    source = work.archive()
    files = [path for path in checksums.published(work) if path != target(work)]
    holding = {path: held(path) for path in files}
    packages = [package(path.name, work.version, 'Apache-2.0', 'Organization: lowkey', packageFileName=path.name,
                        checksums=[{'algorithm': 'SHA256', 'checksumValue': sha256(path)}]) for path in files]
    relations = [relation('DOCUMENT', 'DESCRIBES', path.name) for path in files]
    for path, components in holding.items():
        relations += [relation(path.name, 'GENERATED_FROM', source.name)] if path != source else []
        relations += [relation(path.name, 'STATIC_LINK', component.name) for component in components]
    used = [component for component in COMPONENTS if any(component in components for components in holding.values())]
    # What the sources need of others, also where no package has it yet: headers alone.
    needed = [component for component in COMPONENTS if component.version[0] in ('pkg-config', 'dpkg-query')]
    relations += [relation(component.name, 'BUILD_DEPENDENCY_OF', source.name) for component in needed]
    packages += [package(component.name, version(component, work), component.licence, component.supplier)
                 for component in COMPONENTS if component in used or component in needed]
    state = hashlib.sha256(json.dumps([packages, relations]).encode()).hexdigest()
    name = f'lowkey-{work.version}'
    return {
        'spdxVersion': 'SPDX-2.3', 'dataLicense': 'CC0-1.0', 'SPDXID': 'SPDXRef-DOCUMENT', 'name': name,
        'documentNamespace': f'https://spdx.org/spdxdocs/{name}-{state}',
        'creationInfo': {'created': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(work.epoch)),
                         'creators': ['Organization: lowkey', f'Tool: lowkey-dist-{work.version}']},
        'packages': packages, 'relationships': relations, 'hasExtractedLicensingInfos': [NVIDIA],
    }


def target(work: Workspace) -> pathlib.Path:
    return work.out / f'lowkey-{work.version}.spdx.json'


def build(work: Workspace) -> list[pathlib.Path]:
    path = target(work)
    path.write_text(json.dumps(document(work), indent=1) + '\n')
    return [path]


def check(work: Workspace) -> None:
    """The document is valid, and names every published file with its sum."""
    path = target(work)
    if not path.exists():
        raise Refused(f'{path} is not there: make it first')
    environment = work.kept('spdx')
    if not (environment / 'bin/pyspdxtools').exists():
        run('python3', '-m', 'venv', environment)
        run(environment / 'bin/pip', 'install', '-q', TOOLS)
    run(environment / 'bin/pyspdxtools', '--infile', path)
    stated = {entry.get('packageFileName'): entry['checksums'][0]['checksumValue']
              for entry in json.loads(path.read_text())['packages'] if 'checksums' in entry}
    for file in checksums.published(work):
        if file != path and stated.get(file.name) != sha256(file):
            raise Refused(f'{path.name} does not have {file.name} as it is now')
