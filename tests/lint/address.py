# SPDX-License-Identifier: Apache-2.0
"""Every file that states the repository's address states that of bindings/rust/lowkey/Cargo.toml, and
src/packaging/address.py replaces it in all of them."""
import pathlib
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'src/packaging'))
import address

STATED = {
    'bindings/rust/lowkey/Cargo.toml': r'^repository = "https://([^"]+)"',
    'bindings/rust/lowkey-sys/Cargo.toml': r'^repository = "https://([^"]+)"',
    'bindings/go/lowkey/go.mod': r'^module (\S+)/bindings/go/lowkey$',
    'bindings/go/lowkey/bench/main.go': r'"([^"]+)/bindings/go/lowkey"',
    'examples/go/chat/go.mod': r'([\w.-]+(?:/[\w.-]+)*)/bindings/go/lowkey v',
    'bindings/go/lowkey/example_test.go': r'"([^"]+)/bindings/go/lowkey"',
    'examples/go/chat/main.go': r'"([^"]+)/bindings/go/lowkey"',
    'src/packaging/conan/conanfile.py': r"^    (?:homepage|url) = 'https://([^']+)'",
    'src/packaging/vcpkg/vcpkg.json': r'"homepage": "https://([^"]+)"',
}


def differing(root, wanted):
    for name, pattern in STATED.items():
        found = re.findall(pattern, (root / name).read_text(encoding='utf-8'), re.M)
        if not found or set(found) != {wanted}:
            yield f'{name} states {", ".join(found) or "no address"}, {address.HOME} {wanted}'


def main():
    faults = list(differing(ROOT, address.current()))
    with tempfile.TemporaryDirectory() as temp:
        copy = pathlib.Path(temp)
        for folder in address.FOLDERS:
            shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns('target', 'build*', 'results'))
        address.replace(copy, 'host.example/team/cache')
        faults += [f'after address.py: {fault}' for fault in differing(copy, 'host.example/team/cache')]
    print('\n'.join(faults + [f'{len(STATED)} files, {len(faults)} faults']))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
