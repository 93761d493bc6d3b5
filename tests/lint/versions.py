# SPDX-License-Identifier: Apache-2.0
"""Every file that states lowkey's version states the one of include/lowkey/base.h, and it is the newest one of CHANGELOG.md."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A file and the pattern of each version in it; a minor release before 1.0 may change the interface, so those who
# link against lowkey require its major and minor numbers.
WHOLE = {
    'meson.build': r"^  version: '([^']+)'",
    'CHANGELOG.md': r'\A# Changelog\n[\s\S]*?^## \[(\d+\.\d+\.\d+)\]',
    'bindings/python/pyproject.toml': r'^version = "([^"]+)"',
    'bindings/rust/lowkey/Cargo.toml': r'(?<!-)version = "([^"]+)"',
    'bindings/rust/lowkey-sys/Cargo.toml': r'^version = "([^"]+)"',
    'src/packaging/conan/conanfile.py': r"^    version = '([^']+)'",
    'src/packaging/vcpkg/vcpkg.json': r'"version": "([^"]+)"',
}
SHORT = {
    'bindings/rust/lowkey/README.md': r'version = "([\d.]+)"',
    'bindings/rust/lowkey-sys/build.rs': r'lowkey(?:-static)? >= ([\d.]+)',
    'tests/install/install.py': r'find_package\(lowkey ([\d.]+)',
}


def header_version():
    header = (ROOT / 'include/lowkey/base.h').read_text(encoding='utf-8')
    return [re.search(rf'LK_VERSION_{part} (\d+)', header)[1] for part in ('MAJOR', 'MINOR', 'PATCH')]


def differing(patterns, version):
    for name, pattern in patterns.items():
        found = re.findall(pattern, (ROOT / name).read_text(encoding='utf-8'), re.M)
        if not found or set(found) != {version}:
            yield f'{name} states {", ".join(found) or "no version"}, include/lowkey/base.h {version}'


def main():
    version = header_version()
    faults = [*differing(WHOLE, '.'.join(version)), *differing(SHORT, '.'.join(version[:2]))]
    print('\n'.join(faults + [f'{len(WHOLE) + len(SHORT)} files, {len(faults)} faults']))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
