"""Holds the library's code and its kernels below limits. Arguments: library, limit of the code in
bytes, limit of the kernels (CUDA's, and Vulkan's shaders) in bytes."""
import subprocess
import sys

KERNELS = ('.nv_fatbin', '.lk_shaders')  # their sections


def size(*options):
    return subprocess.run(['size', *options, sys.argv[1]], check=True, capture_output=True,
                          text=True).stdout.splitlines()


def main():
    sections = [line.split() for line in size('-A')]
    kernels = sum(int(s[1]) for s in sections if s and s[0] in KERNELS)
    code = int(size()[1].split()[0]) - kernels
    limits = [int(limit) for limit in sys.argv[2:]]
    print(f'code {code} bytes, limit {limits[0]}; kernels {kernels} bytes, limit {limits[1]}')
    return code >= limits[0] or kernels > limits[1]


if __name__ == '__main__':
    sys.exit(main())
