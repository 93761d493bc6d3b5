"""An independent packer in NumPy: Kitty's ranking (mean |K|) and MixKVQ's (|Q| x range), the
quantizer of docs/FORMAT.md section 9 with both rules for 1 bit and clips, and PM-KVQ's shrink; compared with
the library code for code.

kitty.py TOOL GOLDEN    TOOL is the page-tool program, GOLDEN the folder of golden files
"""
# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import tempfile

import numpy as np

import decode

NORMAL, CONSTANT, WILD, ZEROS, TIES = range(5)
BY_KEY, BY_QUERY_RANGE = 1, 2
BY_DEVIATION = 1
F32 = np.float32


def lcg(seed, n):
    """The n numbers after seed of the generator of the golden inputs."""
    out = np.empty(n, np.uint32)
    for i in range(n):
        seed = (seed * 1664525 + 1013904223) % 2 ** 32
        out[i] = seed
    return out


def make_input(shape, kind, x):
    """FP16 [P][D] from generator numbers x [P][D]."""
    x = x.astype(np.int64)
    token, channel = np.indices(x.shape)
    if kind == NORMAL:
        n = sum((x >> s) % 64 for s in (8, 14, 20, 26)) - 126
        n += np.where(channel % 3 == 0, channel * 37 % 64 - 32, 0)
        exponent = channel * 5 % 4 + np.where(channel % 11 == 3, 4, 0) - 5
        return np.ldexp(n.astype(F32), exponent).astype(np.float16)
    if kind == CONSTANT:
        n = (channel if shape.axis == 1 else token) * 29 % 97 - 48
        return (n / 8).astype(np.float16)
    if kind == TIES:
        place = (token + channel) % 16
        n = np.where(place == 0, 0, np.where(place == 1, 30, (x >> 16) % 31))
        return (n / 4).astype(np.float16)
    bits = x >> 16
    if kind == WILD:
        bits = np.where(bits & 0x7C00 == 0x7C00, bits & 0xBFFF, bits)
    else:
        bits = bits & 0x8000 | x >> 20 & 3
    return bits.astype(np.uint16).view(np.float16)


def rank(scores, n_boosted):
    """Slot -> channel: the highest scores, the lower channel among equals."""
    order = sorted(range(len(scores)), key=lambda c: (-scores[c], c))
    boosted = order[:n_boosted]
    return np.array(sorted(boosted) + sorted(set(order) - set(boosted)))


def mean_key_scores(keys):
    """mean_t |K[t, c]|, the sum in float32 in token order; P is a power of two."""
    total = np.zeros(keys.shape[1], F32)
    for row in np.abs(keys.astype(F32)):
        total = (total + row).astype(F32)
    return total / F32(len(keys))


def query_range_scores(keys, query_stats):
    k = keys.astype(F32)
    return query_stats.astype(F32) * (k.max(axis=0) - k.min(axis=0))


FINITE = np.sort(decode.FP8[np.arange(256) != 0x80])


def fp8_down(x):
    return FINITE[np.maximum(np.searchsorted(FINITE, x, 'right') - 1, 0)]


def fp8_up(x):
    return FINITE[np.minimum(np.searchsorted(FINITE, x, 'left'), len(FINITE) - 1)]


def parameters(shape, low, high):
    """Range and minimum as float32. Section 9.3."""
    minimum = low.astype(np.float16).astype(F32) if shape.metadata == 1 else fp8_down(low)
    spread = np.maximum(high - minimum, F32(0))
    if shape.metadata == 2:
        return fp8_up(spread), minimum
    with np.errstate(over='ignore'):
        range_ = spread.astype(np.float16)
    range_[np.isinf(range_)] = 65504
    return range_.astype(F32), minimum


def mean(values):
    """The sum in float32 in order, by a power of two."""
    total = F32(0)
    for value in values:
        total = F32(total + value)
    return total / F32(len(values))


def deviation_levels(values):
    """The mean and its mean absolute deviation. Section 9.6."""
    x = values.astype(F32).ravel()
    middle = mean(x)
    return middle, mean(np.abs((x - middle).astype(F32)))


def takes_deviation(shape, where):
    """Section 9.6: 1-bit codes alone, 2^n of them."""
    tokens, slots = where
    n = (tokens.stop - tokens.start) * (slots.stop - slots.start)
    if n & (n - 1):
        return False
    if shape.axis == 1:
        return shape.slot_bits()[slots.start] == 1
    return slots.start >= shape.head_dim - 16 * shape.strips[5]


def deviation_parameters(shape, values):
    """Range and minimum as float32. Section 9.6."""
    middle, deviation = deviation_levels(values)
    minimum, spread = F32(middle - deviation), F32(2) * deviation
    if shape.metadata == 2:
        return fp8_up(spread), fp8_down(minimum)
    with np.errstate(over='ignore'):
        pair = np.clip(np.array([spread, minimum]).astype(np.float16), -65504, 65504)
    return F32(pair[0]), F32(pair[1])


def quantize(x, range_, minimum, bits):
    """Section 9.4 by its definition: count the thresholds that d reaches."""
    top = (1 << bits) - 1
    d = (x.astype(F32) - minimum).astype(F32)
    h = F32(1.0 / (2 * top))
    codes = np.zeros(x.shape, np.int64)
    for k in range(1, top + 1):
        codes += d >= (F32(2 * k - 1) * range_).astype(F32) * h
    return np.where(range_ == 0, 0, codes)


def groups(shape):
    """(tokens, slots) of each group, as slices."""
    if shape.axis == 1:
        for t in range(0, shape.page_tokens, shape.group):
            for s in range(16 * shape.strips[0], shape.head_dim):
                yield slice(t, t + shape.group), slice(s, s + 1)
        return
    for t in range(shape.page_tokens):
        for s in range(0, shape.head_dim, shape.group):
            end = min(s + shape.group, shape.head_dim)
            if end > 16 * shape.strips[0]:
                yield slice(t, t + 1), slice(max(s, 16 * shape.strips[0]), end)


def takes_clip(shape, where):
    """Section 9.7: codes of 2 bits alone."""
    return (shape.slot_bits()[where[1]] == 2).all()


def clip_extremes(low, high, clip):
    """The float32 extremes that are left. Section 9.7."""
    low, high = low.astype(F32), high.astype(F32)
    cut = (high - low) * (F32(F32(1) - F32(clip)) / F32(2))
    return low + cut, high - cut


def pack(shape, values, permutation, one_bit, clip):
    """Codes, ranges and minima, each [P][D] by slot; 16-bit slots hold their FP16 bits."""
    x = values if permutation is None else values[:, permutation]
    bits = shape.slot_bits()
    low, high = np.zeros(x.shape, F32), np.zeros(x.shape, F32)
    for where in groups(shape):
        low[where], high[where] = x[where].min(), x[where].max()
        if takes_clip(shape, where):
            low[where], high[where] = clip_extremes(low[where], high[where], clip)
    range_, minimum = parameters(shape, low, high)
    for where in groups(shape) if one_bit == BY_DEVIATION else ():
        if takes_deviation(shape, where):
            range_[where], minimum[where] = deviation_parameters(shape, x[where])
    codes = np.zeros(x.shape, np.int64)
    for b in np.unique(bits):
        slots = bits == b
        codes[:, slots] = x[:, slots].view(np.uint16) if b == 16 else \
            quantize(x[:, slots], range_[:, slots], minimum[:, slots], int(b))
    return codes, range_, minimum


def compare(page, kind, seed, ranking, one_bit, clip):
    """Names of what differs between a page of the library and our own packing of its input."""
    shape = page.shape
    p, d = shape.page_tokens, shape.head_dim
    numbers = lcg(seed, p * d + d)
    values = make_input(shape, kind, numbers[:p * d].reshape(p, d))
    permutation = page.permutation
    if ranking:
        query_stats = numbers[p * d:].astype(np.uint64) << np.uint64(12) | np.arange(d, dtype=np.uint64)
        scores = mean_key_scores(values) if ranking == BY_KEY else \
            query_range_scores(values, query_stats)
        permutation = rank(scores, 16 * next(n for n in shape.strips if n))
        if (permutation != page.permutation).any():
            yield 'permutation'
    codes, range_, minimum = pack(shape, values, permutation, one_bit, clip)
    if (codes != page.codes).any():
        yield 'codes'
    if not shape.is_raw:
        # Along channels a 16-bit slot has zeros of its own; along tokens it has no say.
        first = 0 if shape.axis == 1 else 16 * shape.strips[0]
        pair = decode.pair_index(shape)[:, first:]
        if (range_[:, first:] != page.ranges[pair]).any():
            yield 'ranges'
        if (minimum[:, first:] != page.minima[pair]).any():
            yield 'minima'


def shrink(x, bits):
    """PM-KVQ's equivalent right shift, from codes of 2 bits to codes of bits."""
    b = bits
    return ((2 ** (2 * b) - 2 ** b + 1) * (x + 2 ** (b - 1))) >> 3 * b


def check_maps():
    """The maps against rounding, and chains against one step. No ties exist."""
    def nearest(x, divisor):
        return (2 * x + divisor) // (2 * divisor)
    x16, x8, x4 = (np.arange(2 ** b, dtype=np.int64) for b in (16, 8, 4))
    checks = {
        '4 to 2': shrink(x4, 2).tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3],
        '8 to 4': (shrink(x8, 4) == nearest(x8, 17)).all(),
        '16 to 8': (shrink(x16, 8) == nearest(x16, 257)).all(),
        '8 to 4 to 2': (shrink(shrink(x8, 4), 2) == nearest(x8, 85)).all(),
        '16 to 8 to 4': (shrink(shrink(x16, 8), 4) == nearest(x16, 4369)).all(),
        '16 to 8 to 4 to 2': (shrink(shrink(shrink(x16, 8), 4), 2) == nearest(x16, 21845)).all(),
    }
    return [f'map {name} is not rounding' for name, right in checks.items() if not right]


class Library:
    """The page-tool program."""

    def __init__(self, tool):
        self.tool = tool

    def run(self, *args):
        out = subprocess.run([self.tool, *map(str, args)], check=True, capture_output=True)
        return out.stdout

    def shrunk(self, data):
        """A page file whose only plane went one step down."""
        with tempfile.NamedTemporaryFile(suffix='.lkpage') as file:
            file.write(data)
            file.flush()
            return self.run('shrink', file.name)


def check_shrinks(library, name, seed, widths):
    """The library's word merges, step after step, against the map of every code."""
    data = library.run('pack', name, seed)
    page = decode.Page(data)
    codes = page.codes
    for bits in widths:
        data = library.shrunk(data)
        page = decode.Page(data)
        codes = shrink(codes, bits)
        if page.shape.slot_bits().max() != bits or (page.codes != codes).any():
            yield f'{name}, seed {seed}: shrunk to {bits} bits, codes differ'


def main():
    library, folder = Library(sys.argv[1]), sys.argv[2]
    faults = check_maps()
    n_pages = 0
    with open(os.path.join(folder, 'index.txt'), encoding='ascii') as index:
        rows = [line.split() for line in index][1:]
    for name, *numbers, clip in rows:
        kind, seed, ranking, one_bit = map(int, numbers)
        pages = [(seed, decode.load(os.path.join(folder, name + '.lkpage')))]
        for other in (seed + 1000, seed + 2000) if kind != CONSTANT else ():
            pages.append((other, decode.Page(library.run('pack', name, other))))
        n_pages += len(pages)
        faults += [f'{name}, seed {s}: {what} differ' for s, page in pages
                   for what in compare(page, kind, s, ranking, one_bit, float(clip))]
    for name, widths in {'key-16': [8, 4, 2], 'key-8': [4, 2], 'key-8-page128': [4, 2],
                         'value-8': [4, 2], 'value-8-wild-f8': [4, 2], 'key-4': [2],
                         'key-4-page32': [2], 'key-token-4': [2]}.items():
        for seed in (1, 2, 3):
            faults += check_shrinks(library, name, seed, widths)
    print('\n'.join(faults + [f'{n_pages} pages, {len(faults)} faults']))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
