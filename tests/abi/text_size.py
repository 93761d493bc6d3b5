# SPDX-License-Identifier: Apache-2.0
"""Holds the library's code, its CUDA kernels and its Vulkan shaders below limits.

Arguments: library, limits in bytes of each. Kernels and shaders have ELF sections of their own."""
import subprocess
import sys

SECTIONS = {'CUDA kernels': '.nv_fatbin', 'Vulkan shaders': '.lk_shaders'}


def size(*options):
    return subprocess.run(['size', *options, sys.argv[1]], check=True, capture_output=True,
                          text=True).stdout.splitlines()


def main():
    sections = {line.split()[0]: int(line.split()[1]) for line in size('-A') if line.startswith('.')}
    found = {'code': int(size()[1].split()[0])}
    for name, section in SECTIONS.items():
        found[name] = sections.get(section, 0)
        found['code'] -= found[name]
    limits = dict(zip(found, map(int, sys.argv[2:]), strict=True))
    for name, n_bytes in found.items():
        print(f'{name}: {n_bytes} bytes, limit {limits[name]}')
    return any(n_bytes > limits[name] for name, n_bytes in found.items())


if __name__ == '__main__':
    sys.exit(main())
