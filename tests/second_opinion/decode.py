"""A reader of page files written from docs/FORMAT.md alone; section numbers are that document's.

decode.py FILE...                   what each file holds
decode.py --against TOOL FILE...    compare values and codes with the library's, bit for bit,
                                    and see that damaged copies are refused
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import functools
import struct
import subprocess
import sys

import numpy as np

from xxh3 import xxh3_64

PLANES = (16, 8, 4, 3, 2, 1)
HEADER = struct.Struct('<4sHHBBBBHHHH6HIIQQQQ')


class Refused(Exception):
    """The bytes are no page file of version 1 or 2."""


class Shape:
    """Section 2."""

    def __init__(self, fields):
        (self.side, self.axis, self.metadata, self.permutes, self.head_dim, self.page_tokens,
         self.group, self.n_shared) = fields[:8]
        self.strips = fields[8:14]

    @property
    def is_raw(self):
        return 16 * self.strips[0] == self.head_dim

    def check(self):
        """Raises Refused unless the shape is valid."""
        d, p, g = self.head_dim, self.page_tokens, self.group
        rules = [self.side in (0, 1), self.axis in (1, 2), self.metadata in (1, 2),
                 self.permutes in (0, 1), d % 16 == 0 and 32 <= d <= (512 if self.side else 576),
                 16 * sum(self.strips) == d]
        if self.is_raw:
            rules += [p % 16 == 0 and 16 <= p <= 1024, not self.permutes, not self.n_shared, g >= 1]
        else:
            rules += [p in (32, 64, 128), p >= 64 or not (self.strips[3] or self.strips[5]),
                      2 * self.n_shared <= 16 * self.strips[4], not (self.n_shared and self.side)]
            if self.axis == 1:
                rules += [self.side == 0, g in (16, 32, 64, 128) and g <= p]
            else:
                rules += [g % 16 == 0 and 16 <= g <= d]
        if not all(rules):
            raise Refused('invalid shape')

    @property
    def n_pairs(self):
        if self.axis == 1:
            return self.head_dim * (self.page_tokens // self.group)
        return self.page_tokens * -(-self.head_dim // self.group)

    @property
    def payload_bytes(self):
        return sum(n * 2 * self.page_tokens * bits for n, bits in zip(self.strips, PLANES))

    @property
    def metadata_bytes(self):
        if self.is_raw:
            return 0
        width = 2 if self.metadata == 1 else 1
        return 2 * self.n_pairs * width + (self.permutation_bytes if self.permutes else 0)

    @property
    def permutation_bytes(self):
        """Section 6."""
        return self.head_dim * (2 if self.head_dim > 256 else 1)

    def slot_planes(self):
        """Bits of the plane of every slot, and the slot's number in it. Section 3."""
        bits = np.repeat(PLANES, [16 * n for n in self.strips])
        number = np.concatenate([np.arange(16 * n) for n in self.strips])
        return bits, number

    def slot_bits(self):
        """Width of the code of every slot."""
        plane, number = self.slot_planes()
        two = plane == 2
        partner = two & (number < self.n_shared)
        outlier = two & (number >= self.n_shared) & (number < 2 * self.n_shared)
        return np.where(partner, 1, np.where(outlier, 3, plane))


@functools.lru_cache
def places(shape, bits):
    """Word index and bit of (token, slot of a strip), two arrays [P][16]. Section 4."""
    t, c = np.meshgrid(np.arange(shape.page_tokens), np.arange(16), indexing='ij')
    row, k = (t % 16, c) if shape.side == 0 else (c, t % 16)
    lane = 4 * (row % 8) + (k % 8) // 2
    word = 4 * (t // 16) + row // 8 + 2 * (k // 8)
    field = np.zeros_like(word)
    width = 16
    while width > bits:
        word, field, width = word >> 1, 2 * field + (word & 1), width // 2
    n = shape.page_tokens * bits // 64
    index = lane * n + word if n < 4 else (word // 4 * 32 + lane) * 4 + word % 4
    return index, 16 * (k % 2) + bits * field


def read_strips(shape, payload, offset, n_strips, bits):
    """Codes [P][16 n_strips] of strips that lie one after the other."""
    index, bit = places(shape, bits)
    size = 2 * shape.page_tokens * bits
    columns = []
    for i in range(n_strips):
        words = np.frombuffer(payload, '<u4', size // 4, offset + i * size)
        columns.append(words[index] >> bit.astype(np.uint32) & np.uint32((1 << bits) - 1))
    return np.concatenate(columns, axis=1).astype(np.int64)


def read_codes(shape, payload):
    """Codes [P][D] by slot. Section 5."""
    planes, offset = [], 0
    for n, bits in zip(shape.strips, PLANES):
        if not n:
            continue
        if bits == 3:
            low = read_strips(shape, payload, offset, n, 2)
            high = read_strips(shape, payload, offset + 4 * shape.page_tokens * n, n, 1)
            codes = low | high << 2
        else:
            codes = read_strips(shape, payload, offset, n, bits)
        if bits == 2 and shape.n_shared:
            pairs = shape.n_shared
            partner = codes[:, :pairs].copy()
            codes[:, :pairs] = partner & 1
            codes[:, pairs:2 * pairs] |= (partner >> 1) << 2
        planes.append(codes)
        offset += 2 * shape.page_tokens * bits * n
    return np.concatenate(planes, axis=1)


def fp8_table():
    """Section 7.3."""
    values = np.zeros(256, np.float32)
    for v in range(256):
        e, m = v >> 3 & 15, v & 7
        size = 2.0 ** (e - 8) * (1 + m / 8) if e else m * 2.0 ** -10
        values[v] = -size if v & 0x80 else size
    values[0x80] = np.nan
    return values


FP8 = fp8_table()


@functools.lru_cache
def pair_index(shape):
    """Index of the pair of (token, slot), [P][D]. Sections 7.1 and 7.2."""
    t, s = np.meshgrid(np.arange(shape.page_tokens), np.arange(shape.head_dim), indexing='ij')

    def k_order(k):
        return 4 * (k % 8 // 2) + 2 * (k // 8) + k % 2
    if shape.axis == 1:
        groups = shape.page_tokens // shape.group
        return (s // 16 * groups + t // shape.group) * 16 + k_order(s % 16)
    order = k_order(t % 16) if shape.side else 2 * (t % 16 % 8) + t % 16 // 8
    return s // shape.group * shape.page_tokens + t // 16 * 16 + order


def read_pairs(shape, metadata):
    """The ranges and minima arrays as float32 [E]."""
    n = shape.n_pairs
    stored = np.frombuffer(metadata, '<u2' if shape.metadata == 1 else 'u1', 2 * n)
    if shape.metadata == 1:
        numbers = stored.view(np.float16).astype(np.float32)
        minus_zero = stored == 0x8000
    else:
        numbers = FP8[stored]
        minus_zero = stored == 0x80
    if not np.isfinite(numbers).all() or minus_zero.any() or (numbers[:n] < 0).any():
        raise Refused('a range or minimum that is never stored')
    return numbers[:n], numbers[n:]


def check_permutation(shape, data):
    permutation = np.frombuffer(data, '<u2' if shape.head_dim > 256 else 'u1')
    if sorted(permutation) != list(range(shape.head_dim)):
        raise Refused('not a permutation')
    return permutation


class Page:
    """A decoded page: codes and values [P][D] by stored channel, permutation or None."""

    def __init__(self, data):
        self.shape = shape = self.read_header(data)
        payload = data[HEADER.size:HEADER.size + shape.payload_bytes]
        metadata = data[HEADER.size + shape.payload_bytes:][:shape.metadata_bytes]
        self.permutation = self.read_permutation(data)
        self.decode(payload, metadata)

    def decode(self, payload, metadata):
        """Codes and values of the page's arrays."""
        shape = self.shape
        self.payload = payload
        self.codes = read_codes(shape, payload)
        raw = self.codes[:, :16 * shape.strips[0]].astype(np.uint16).view(np.float16)
        if not np.isfinite(raw).all():
            raise Refused('a 16-bit value is not finite')
        self.values = np.zeros(self.codes.shape, np.float32)
        self.values[:, :raw.shape[1]] = raw
        self.ranges = self.minima = None
        if not shape.is_raw:
            self.ranges, self.minima = read_pairs(shape, metadata)
            self.dequantize(raw.shape[1])

    def read_header(self, data):
        if len(data) < HEADER.size:
            raise Refused('shorter than a header')
        fields = HEADER.unpack_from(data)
        if fields[0] != b'LKPG' or fields[1] not in (1, 2) or fields[2] != HEADER.size:
            raise Refused('another format or version')
        if fields[22] != xxh3_64(data[:64] + bytes(8)):
            raise Refused('header hash')
        shape = Shape(fields[3:17])
        shape.check()
        if fields[1] != (2 if shape.head_dim > 256 else 1):
            raise Refused('a head_dim of another version')
        self.flags, reserved, payload_bytes, metadata_bytes = fields[17:21]
        if self.flags > 1 or reserved or (self.flags and shape.permutes):
            raise Refused('flags or reserved bytes')
        if (payload_bytes, metadata_bytes) != (shape.payload_bytes, shape.metadata_bytes):
            raise Refused('byte counts that are not the shape\'s')
        body = payload_bytes + metadata_bytes + (shape.permutation_bytes if self.flags else 0)
        if len(data) != HEADER.size + body:
            raise Refused('too short or too long')
        if fields[21] != xxh3_64(data[HEADER.size:]):
            raise Refused('body hash')
        return shape

    def read_permutation(self, data):
        if not (self.flags or self.shape.permutes):
            return None
        return check_permutation(self.shape, data[-self.shape.permutation_bytes:])

    def dequantize(self, first):
        """Section 8, for slots first .. D."""
        shape = self.shape
        pair = pair_index(shape)[:, first:]
        top = (1 << shape.slot_bits()[first:]) - 1
        c = (1.0 / top).astype(np.float32)
        step = (self.ranges[pair] * c).astype(np.float32)
        offset = (self.codes[:, first:].astype(np.float32) * step).astype(np.float32)
        self.values[:, first:] = (self.minima[pair] + offset).astype(np.float32)

    def by_channel(self, array):
        """An array [P][D] by slot, in the order of channels."""
        if self.permutation is None:
            return array
        out = np.empty_like(array)
        out[:, self.permutation] = array
        return out


def load(path):
    with open(path, 'rb') as file:
        return Page(file.read())


def compare(tool, path):
    """Faults of one file: values and codes of the library against ours."""
    page = load(path)
    out = subprocess.run([tool, 'values', path], check=True, capture_output=True).stdout
    n = page.codes.size
    values = np.frombuffer(out, '<u4', n).reshape(page.codes.shape)
    codes = np.frombuffer(out, '<u4', n, 4 * n).reshape(page.codes.shape)
    if len(out) != 8 * n:
        yield f'{path}: {len(out)} bytes from the library, not {8 * n}'
    wrong = page.by_channel(page.values).view(np.uint32) != values
    if wrong.any():
        t, c = np.argwhere(wrong)[0]
        yield f'{path}: {wrong.sum()} values differ, first token {t} channel {c}'
    wrong = page.by_channel(page.codes) != codes
    if wrong.any():
        t, c = np.argwhere(wrong)[0]
        yield f'{path}: {wrong.sum()} codes differ, first token {t} channel {c}'


def accepts(data):
    try:
        Page(data)
    except Refused:
        return False
    return True


def damage(path):
    """Faults of one file: damage that is not noticed."""
    with open(path, 'rb') as file:
        data = file.read()
    for i in range(HEADER.size):
        flipped = data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1:]
        if accepts(flipped):
            yield f'{path}: header byte {i} may be flipped'
    for n in (0, 3, HEADER.size - 1, HEADER.size, len(data) - 1):
        if accepts(data[:n]):
            yield f'{path}: may be cut to {n} bytes'
    if accepts(data + b'\0'):
        yield f'{path}: may be followed by a byte'


def describe(path):
    shape = load(path).shape
    planes = ', '.join(f'{bits}: {16 * n}' for n, bits in zip(shape.strips, PLANES) if n)
    total = shape.payload_bytes + shape.metadata_bytes
    return (f'{path}: {("keys", "values")[shape.side]}, D {shape.head_dim}, P {shape.page_tokens}, '
            f'{{{planes}}}, group {shape.group}, {8 * total / shape.head_dim / shape.page_tokens:.4f} '
            'bits per value')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--against', metavar='TOOL')
    parser.add_argument('files', nargs='+')
    args = parser.parse_args()
    if not args.against:
        for path in args.files:
            print(describe(path))
        return 0
    faults = [fault for path in args.files for fault in (*compare(args.against, path), *damage(path))]
    print('\n'.join(faults + [f'{len(args.files)} files, {len(faults)} faults']))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
