# SPDX-License-Identifier: Apache-2.0
"""The library holds machine code for each GPU that it was built for and no other, and PTX of the last.

Arguments: the library, compute capabilities as in 87 90. What nvcc embeds lies in the ELF section .nv_fatbin: blocks
of a header of 16 bytes (magic, version, header bytes, bytes after it) and entries (kind, header bytes, bytes after
it, at 28 the compute capability). The tools of NVIDIA that list them are not part of every toolkit."""
import collections
import pathlib
import struct
import sys

BLOCK, ENTRY = struct.Struct('<IHHQ'), struct.Struct('<HHIQ')
MAGIC, PTX, ELF = 0xba55ed50, 1, 2


def section(data, name):
    """Bytes of a section of a 64-bit ELF file."""
    start, = struct.unpack_from('<Q', data, 40)
    size, count, names = struct.unpack_from('<HHH', data, 58)
    headers = [struct.unpack_from('<IIQQQQ', data, start + i * size) for i in range(count)]
    labels = headers[names][4]
    for label, _, _, _, offset, length in headers:
        at = labels + label
        if data[at:data.index(b'\0', at)] == name:
            return data[offset:offset + length]
    return b''


def embedded(data):
    """The compute capabilities of what is embedded, by kind, each with the number of entries."""
    found, at = collections.defaultdict(collections.Counter), 0
    while at + BLOCK.size <= len(data):
        magic, _, header_bytes, n_bytes = BLOCK.unpack_from(data, at)
        if magic != MAGIC:  # blocks are aligned to 8 bytes
            if any(data[at:at + 8]):
                raise ValueError(f'no block at byte {at} of .nv_fatbin')
            at += 8
            continue
        at += header_bytes
        end = at + n_bytes
        while at < end:
            kind, _, header_bytes, n_bytes = ENTRY.unpack_from(data, at)
            found[kind][struct.unpack_from('<I', data, at + 28)[0]] += 1
            at += header_bytes + n_bytes
        at = end
    return found


def main():
    library, *wanted = sys.argv[1:]
    wanted = [int(one.rstrip('af')) for one in wanted]  # 90a is 90 with more instructions
    data = pathlib.Path(library).read_bytes()
    found = embedded(section(data, b'.nv_fatbin'))
    code, ptx = found[ELF], found[PTX]
    processor = {62: 'x86-64', 183: 'aarch64'}.get(struct.unpack_from('<H', data, 18)[0], 'another processor')
    print(f'{processor}; machine code:', *(f'sm_{one} x {n}' for one, n in sorted(code.items())), 'PTX:',
          *(f'compute_{one} x {n}' for one, n in sorted(ptx.items())))
    # Each file of kernels has an entry for each GPU.
    return set(code) != set(wanted) or len(set(code.values())) != 1 or set(ptx) != {wanted[-1]}


if __name__ == '__main__':
    sys.exit(main())
