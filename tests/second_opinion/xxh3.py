"""XXH3-64 with seed 0 of no bytes and of more than 8: what page files and snapshots hash.

After the specification of xxHash (doc/xxhash_spec.md of its project).
"""
# SPDX-License-Identifier: Apache-2.0
import struct

MASK = (1 << 64) - 1
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
       0x27D4EB2F165667C5)
SECRET = bytes.fromhex('''
    b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f
    cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c
    3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8
    a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364
    eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e
    2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e''')
STRIPE, BLOCK = 64, 1024


def u64(data, at, n=1):
    return struct.unpack_from(f'<{n}Q', data, at)


def fold(a, b):
    """The upper and the lower 64 bits of a product, joined."""
    product = a * b
    return product & MASK ^ product >> 64


def avalanche(h):
    h = (h ^ h >> 37) * 0x165667919E3779F9 & MASK
    return h ^ h >> 32


def mix16(data, at, secret):
    low, high = u64(data, at, 2)
    s_low, s_high = u64(SECRET, secret, 2)
    return fold(low ^ s_low, high ^ s_high)


def short(data):
    n, keys = len(data), u64(SECRET, 24, 4)
    low, high = u64(data, 0)[0] ^ keys[0] ^ keys[1], u64(data, n - 8)[0] ^ keys[2] ^ keys[3]
    swapped = int.from_bytes(low.to_bytes(8, 'little'), 'big')
    return avalanche(n + swapped + high + fold(low, high) & MASK)


def medium(data):
    n = len(data)
    h = n * P64[0]
    for i in range((n - 1) // 32 + 1):
        h += mix16(data, 16 * i, 32 * i) + mix16(data, n - 16 * (i + 1), 32 * i + 16)
    return avalanche(h & MASK)


def large(data):
    n = len(data)
    h = n * P64[0]
    for i in range(8):
        h += mix16(data, 16 * i, 16 * i)
    h = avalanche(h & MASK)
    for i in range(8, n // 16):
        h += mix16(data, 16 * i, 16 * (i - 8) + 3)
    return avalanche(h + mix16(data, n - 16, 119) & MASK)


def accumulate(lanes, data, at, secret):
    for i, (value, key) in enumerate(zip(u64(data, at, 8), u64(SECRET, secret, 8))):
        key ^= value
        lanes[i ^ 1] = lanes[i ^ 1] + value & MASK
        lanes[i] = lanes[i] + (key & 0xFFFFFFFF) * (key >> 32) & MASK


def long(data):
    n = len(data)
    lanes = [P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0]]
    for at in range(0, n - STRIPE, STRIPE):
        accumulate(lanes, data, at, at % BLOCK // 8)
        if at % BLOCK == BLOCK - STRIPE:
            lanes = [(lane ^ lane >> 47 ^ key) * P32[0] & MASK
                     for lane, key in zip(lanes, u64(SECRET, 128, 8))]
    accumulate(lanes, data, n - STRIPE, 121)
    keys = u64(SECRET, 11, 8)
    pairs = [fold(lanes[i] ^ keys[i], lanes[i + 1] ^ keys[i + 1]) for i in (0, 2, 4, 6)]
    return avalanche(n * P64[0] + sum(pairs) & MASK)


def xxh3_64(data):
    n = len(data)
    assert not 0 < n <= 8
    if n <= 16:
        return short(data) if n else 0x2D06800538D394C2
    return medium(data) if n <= 128 else large(data) if n <= 240 else long(data)
