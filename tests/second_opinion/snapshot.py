"""A reader of snapshots written from docs/FORMAT.md, section 16, and docs/PLAN.md alone.

snapshot.py FILE...            what each file holds
snapshot.py --golden FILE...   the files are of tests/fuzz/make_snapshots.cpp: see that every key, value,
                               sum and state is what was appended, and that damaged copies are refused
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import struct
import sys

import numpy as np

from decode import Page, Refused, Shape, check_permutation, pair_index
from xxh3 import xxh3_64

HEADER = struct.Struct('<4sHHQQQQQIIIIIIIIQ32sQ')
CHUNK = struct.Struct('<4sIQQQ')
SHAPE = struct.Struct('<BBBBHHHH6HII')
SEQUENCE = struct.Struct('<QQIIIIII')
ROWS = {1: struct.Struct('<QQIIII'), 2: struct.Struct('<QQIIIIII')}
ABSENT = 65535


def need(condition, sentence):
    if not condition:
        raise Refused(sentence)


class FormattedPage(Page):
    """A page whose format is known."""

    def __init__(self, kind, payload, metadata):
        self.shape, self.permutation = kind
        if self.shape.permutes:
            self.permutation = check_permutation(self.shape, metadata[-self.shape.permutation_bytes:])
        self.decode(payload, metadata)


class Plan:
    """What a snapshot's order depends on."""

    def __init__(self, text):
        self.json = json.loads(text)
        self.page, self.sinks = self.json['page_tokens'], self.json['sink_tokens']
        layers = [layer for layer in self.json['geometry']['layers'] for _ in range(layer.get('count', 1))]
        rules = [layer for layer in self.json['layers'] for _ in range(layer.get('count', 1))]
        heads = [head for layer, own in zip(layers, rules) if 'kv_layer' not in layer
                 for head in own['heads'] for _ in range(head.get('count', 1))]
        self.entries = [(l, h, layer) for l, layer in enumerate(layers) if 'kv_layer' not in layer
                        for h in range(layer['kv_heads'])]
        self.keys = [head['key'] for head in heads]
        self.rotations = [own.get('key_rotation') == 'hadamard' for layer, own in zip(layers, rules)
                          if 'kv_layer' not in layer for _ in range(layer['kv_heads'])]
        chunks = self.json.get('chunks')
        self.chunk = chunks['tokens'] if chunks else 0
        self.reorders = bool(chunks and chunks['reorder'])
        state = struct.pack('<I', len(layers))
        for layer in layers:
            state += struct.pack('<5I2f', layer['query_heads'], layer['kv_heads'], layer['head_dim'],
                                 layer.get('window', 0), layer.get('window_sinks', 0),
                                 layer.get('scale', 0) + 0.0, layer.get('soft_cap', 0) + 0.0)
        for l, layer in enumerate(layers):
            state += struct.pack('<2I', l, layer['kv_layer']) if 'kv_layer' in layer else b''
        for l, layer in enumerate(layers):
            if 'value_dim' in layer or 'latent' in layer:
                state += struct.pack('<4I', 0xffffffff, l, layer.get('value_dim', layer['head_dim']),
                                     layer.get('latent', False))
        self.geometry_hash = xxh3_64(state)

    def block(self, index):
        """First token and tokens of a block of a sequence. FORMAT.md, section 14."""
        n_sinks = -(-self.sinks // self.page)
        first = index * self.page if index < n_sinks else self.sinks + (index - n_sinks) * self.page
        end = min(first + self.page, self.sinks) if index < n_sinks else first + self.page
        return first, end - first

    def n_blocks(self, n_tokens):
        n = 0
        while self.block(n)[0] < n_tokens:
            n += 1
        return n


class Block:
    def __init__(self, number, first, n_tokens):
        self.number, self.first, self.n_tokens = number, first, n_tokens
        self.positions = np.arange(first, first + n_tokens)
        self.pages = []  # (K page, V page) of each entry


class Sequence:
    def __init__(self):
        self.blocks, self.sums = [], []
        self.order, self.assigned = None, None  # of chunks that have classes

    def read_chunks(self, body, n, plan):
        """After the sums: by index the chunk, and by chunk its class."""
        order, assigned = np.frombuffer(body, '<u4', n), np.frombuffer(body, 'u1', n, 4 * n)
        need(plan.chunk and n * plan.chunk <= max(0, self.n_tokens - plan.sinks), 'chunks that are not there')
        need((np.sort(order) == np.arange(n)).all(), 'an order that is none')
        need(plan.reorders or (order == np.arange(n)).all(), 'another order where there is none')
        need(((assigned >= 1) & (assigned <= 3)).all(), 'a class of a chunk')
        self.order, self.assigned = order.astype(np.int64), assigned

    def positions(self, plan):
        """Of the tokens as they lie."""
        out = np.arange(self.n_tokens)
        for index, chunk in enumerate(self.order if self.order is not None else ()):
            at, first = (plan.sinks + i * plan.chunk for i in (index, chunk))
            out[at:at + plan.chunk] = np.arange(first, first + plan.chunk)
        return out


class Snapshot:
    def __init__(self, data, has_hashes=True):
        """has_hashes: of chunks; False where nothing can have damaged them, which is many times as fast."""
        self.data, self.at, self.n_chunks, self.has_hashes = data, HEADER.size, 0, has_hashes
        need(len(data) >= HEADER.size, 'shorter than a header')
        f = HEADER.unpack_from(data)
        need(f[0] == b'LKSN' and f[1] in (1, 2, 3) and f[2] == HEADER.size, 'another format or version')
        self.version = f[1]
        need(f[18] == xxh3_64(data[:120] + bytes(8)), 'header hash')
        need(f[17] == bytes(32) and not f[15] and f[3] == len(data), 'reserved bytes or length')
        n_states, n_versions = f[14], f[16]
        need(n_states <= 4096 and (n_states > 0) == (self.version > 2) and (n_states or not n_versions), 'states')
        self.n_tokens, self.n_blocks, n_sequences, n_formats, self.n_entries = f[6:11]
        need(f[13] <= 256, 'a long fingerprint')
        self.fingerprint = self.chunk(b'MODL', f[13])
        text = self.chunk(b'PLAN')
        need(xxh3_64(text) == f[5], 'plan hash')
        self.plan = plan = Plan(text)
        need(plan.geometry_hash == f[4], 'geometry hash')
        need((len(plan.entries), plan.page, plan.sinks) == (self.n_entries, f[11], f[12]),
             'a header that is not the plan\'s')
        self.formats = self.read_formats(self.chunk(b'CLSS'), n_formats)
        self.state_bytes = self.read_state_sizes(n_states) if n_states else []
        self.blocks, self.versions = [], []
        self.sequences = [self.read_sequence() for _ in range(n_sequences)]
        need(self.at == len(data) and len(self.blocks) == self.n_blocks, 'bytes or blocks left over')
        need(len(self.versions) == n_versions, 'versions left over')
        need(sum(s.n_tokens for s in self.sequences) == self.n_tokens, 'another number of tokens')

    def chunk(self, kind, wanted=None):
        need(len(self.data) - self.at >= CHUNK.size, 'ends in a chunk\'s header')
        name, reserved, number, size, digest = CHUNK.unpack_from(self.data, self.at)
        need(name == kind and not reserved and number == self.n_chunks, f'no chunk {kind} here')
        begin = self.at + CHUNK.size
        need(size <= len(self.data) - begin, 'a chunk after the end')
        need(wanted in (None, size), 'another length')
        body = self.data[begin:begin + size]
        need(not self.has_hashes or xxh3_64(body) == digest, 'hash of a chunk')
        self.at, self.n_chunks = begin + size, self.n_chunks + 1
        return body

    @staticmethod
    def read_formats(body, n):
        formats, at = [], 0
        for _ in range(n):
            need(len(body) - at >= SHAPE.size, 'ends in the table of formats')
            f = SHAPE.unpack_from(body, at)
            shape, at = Shape(f[:14]), at + SHAPE.size
            shape.check()
            need(f[14] in (0, 1) and not f[15] and not (f[14] and shape.permutes), 'flags of a format')
            fixed = None
            if f[14]:
                n_bytes = shape.permutation_bytes
                fixed, at = check_permutation(shape, body[at:at + n_bytes]), at + n_bytes
            formats.append((shape, fixed))
        need(at == len(body), 'bytes after the formats')
        return formats

    def read_state_sizes(self, n):
        sizes = np.frombuffer(self.chunk(b'STSZ', 8 * n), '<u8').tolist()
        need(all(size and size % 16 == 0 for size in sizes) and sum(sizes) <= 1 << 40, 'the size of a state')
        return sizes

    def read_versions(self, n_tokens):
        """(tokens, number) of a sequence's versions of its states, and the bytes of the new ones."""
        body = self.chunk(b'VERS')
        need(len(body) % 16 == 0 and len(body) <= 16 * 4097, 'length of the versions')
        versions = np.frombuffer(body, '<u8').reshape(-1, 2).tolist()
        tokens = [0] + [after for after, _ in versions]
        need(tokens[-1] == n_tokens and all(a < b for a, b in zip(tokens, tokens[1:])), 'order of versions')
        for after, number in versions:
            need(number <= len(self.versions), 'a version before it comes')
            if number == len(self.versions):
                self.versions.append((after, self.read_states(number)))
            need(self.versions[number][0] == after, 'a version after other tokens')
        return versions

    def read_states(self, number):
        out, total = b'', sum(self.state_bytes)
        while len(out) < total:
            body = self.chunk(b'STAT')
            need(16 < len(body) <= 1 << 20 and len(body) % 16 == 0, 'length of states')
            need(struct.unpack_from('<QQ', body) == (number, len(out)), 'bytes of another version')
            out += body[16:]
        need(len(out) == total, 'bytes after the states')
        return out

    def read_sequence(self):
        body = self.chunk(b'SEQN')
        need(len(body) >= SEQUENCE.size, 'a short sequence')
        out = Sequence()
        out.id, out.n_tokens, n_runs, n_channels, n_sums, flags, n_chunks, out.deferral = SEQUENCE.unpack_from(body)
        need(flags < (4 if self.version > 1 else 2), 'flags of a sequence')
        need(out.deferral <= (2 if self.version > 1 and self.plan.chunk else 0), 'a mode of deferral')
        need(flags & 2 or not n_chunks, 'chunks without a flag')
        need(len(body) == SEQUENCE.size + 16 * n_runs + 8 * n_channels + n_sums * (16 + 8 * n_channels)
             + 5 * n_chunks, 'length of a sequence')
        runs = np.frombuffer(body, '<u8', 2 * n_runs, SEQUENCE.size).reshape(n_runs, 2).tolist()
        at = SEQUENCE.size + 16 * n_runs
        out.base = np.frombuffer(body, '<u8', n_channels, at)
        at, last = at + 8 * n_channels, -1
        for _ in range(n_sums):
            block, is_gap = struct.unpack_from('<QQ', body, at)
            need(block > last and is_gap in (0, 1), 'order of sums')
            out.sums.append((block, is_gap, np.frombuffer(body, '<u8', n_channels, at + 16)))
            at, last = at + 16 + 8 * n_channels, block
        if flags & 2:
            out.read_chunks(body[at:], n_chunks, self.plan)
        out.versions = self.read_versions(out.n_tokens) if self.state_bytes else []
        positions = out.positions(self.plan)
        numbers = [first + i for first, n in runs for i in range(n)]
        need(len(numbers) == self.plan.n_blocks(out.n_tokens), 'blocks that are not the tokens\'')
        for index, number in enumerate(numbers):
            first, capacity = self.plan.block(index)
            n_tokens = min(capacity, out.n_tokens - first)
            if number == len(self.blocks):
                self.blocks.append(self.read_block(number, first, n_tokens))
                self.blocks[-1].positions = positions[first:first + n_tokens]
            need(number < len(self.blocks), 'a block before it comes')
            block = self.blocks[number]
            need(block.first == first and block.n_tokens == n_tokens, 'a block at another position')
            out.blocks.append(block)
        return out

    def read_block(self, number, first, n_tokens):
        block, record = Block(number, first, n_tokens), ROWS[min(self.version, 2)]
        while len(block.pages) < self.n_entries:
            body = self.chunk(b'ROWS')
            need(record.size <= len(body) <= 1 << 20, 'length of a run of entries')
            f = record.unpack_from(body) + (0, 0)[:2 * (self.version < 2)]
            need(f[:3] == (number, first, n_tokens) and f[3] == len(block.pages), 'entries of another block')
            if not block.pages:
                block.n_packed, block.chunk_class = f[5:7]
            need(f[5] == block.n_packed <= self.n_entries, 'packed entries')
            need(f[6] == block.chunk_class <= 3 and not f[7], 'a class of chunks')
            need(not f[6] or (self.plan.chunk and first >= self.plan.sinks), 'a class without chunks')
            need(0 < f[4] <= self.n_entries - f[3], 'number of entries')
            at = -(-(record.size + 4 * f[4]) // 16) * 16
            need(at <= len(body), 'a run of entries of its head alone')
            kinds = np.frombuffer(body, '<u2', 2 * f[4], record.size).reshape(-1, 2).tolist()
            need(not any(body[record.size + 4 * f[4]:at]), 'padding')
            for pair in kinds:
                pages = []
                is_latent = self.plan.entries[len(block.pages)][2].get('latent', False)
                need(not is_latent or pair[1] == ABSENT, 'a V page of a latent layer')
                for side, kind in enumerate(pair):
                    page, at = self.read_page(body, at, side, kind, n_tokens)
                    pages.append(page)
                block.pages.append(pages)
            need(at == len(body), 'bytes after the pages')
        return block

    def read_page(self, body, at, side, kind, n_tokens):
        if kind == ABSENT:
            return None, at
        need(kind < len(self.formats), 'no such format')
        shape = self.formats[kind][0]
        need(shape.side == side and n_tokens <= shape.page_tokens, 'a format of another page')
        middle = at + shape.payload_bytes
        end = middle + shape.metadata_bytes
        need(end <= len(body), 'a run of entries shorter than its pages')
        return FormattedPage(self.formats[kind], body[at:middle], body[middle:end]), end


def number(kind, layer, head, position, channel):
    """What make_snapshots appends: key 0, value 1, query 2."""
    mixed = (position * 2654435761 + channel * 40503 + head * 9176 + layer * 7919 + kind * 104729) % 2**32
    return (float(mixed * 2246822519 % 2**32 >> 21) - 1024) / 1024


def expected(kind, layer, head, positions, head_dim):
    return np.array([[number(kind, layer, head, int(t), c) for c in range(head_dim)]
                     for t in positions], np.float32)


def rotated(x):
    """Blocks of channels times Hadamard's matrix: FORMAT.md, 9.1. x is FP32."""
    n = x.shape[-1] & -x.shape[-1]
    blocks = x.reshape(-1, n)
    h = 1
    while h < n:
        pairs = blocks.reshape(-1, n // (2 * h), 2, h)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        blocks = np.stack([a + b, a - b], 2).reshape(-1, n)
        h *= 2
    return (blocks * np.float32(n ** -0.5)).reshape(x.shape)


def changed(x, key, rotation, is_query):
    """Keys before they are rounded, or queries before their sums."""
    if not is_query and 'centers' in key:
        x = x - np.array(key['centers'], np.float32)
    if rotation:
        x = np.clip(x, np.float32(-2 ** 31), np.float32(2 ** 31))
    if 'scales' in key:
        scales = np.array(key['scales'], np.float32)
        x = x * (scales if is_query else np.float32(1) / scales)
    return rotated(x) if rotation else x


def bound(page):
    """How far the values of a page may be from what was packed, by channel."""
    if page.shape.is_raw:
        return np.zeros(page.codes.shape)
    ranges = page.ranges[pair_index(page.shape)].astype(np.float64)
    top = (1 << page.shape.slot_bits()) - 1
    return page.by_channel(ranges / top * 0.502 + ranges * 2.0 ** -10)


def wrong_values(snapshot):
    """Sentences of keys and values that are not those that were appended."""
    for block in snapshot.blocks:
        for (layer, head, geometry), key, rotation, pages in zip(snapshot.plan.entries, snapshot.plan.keys,
                                                                 snapshot.plan.rotations, block.pages):
            for side, page in enumerate(pages):
                if page is None:
                    continue
                dims = geometry['head_dim'], geometry.get('value_dim', geometry['head_dim'])
                wanted = expected(side, layer, head, block.positions, dims[side])
                if not side:
                    wanted = changed(wanted, key, rotation, False)
                wanted = wanted.astype(np.float16).astype(np.float64)
                got = page.by_channel(page.values)[:block.n_tokens]
                wrong = np.abs(got - wanted) > bound(page)[:block.n_tokens]
                if wrong.any():
                    t, c = np.argwhere(wrong)[0]
                    yield (f'block {block.number}, layer {layer}, head {head}, side {side}: {wrong.sum()} values, '
                           f'first token {block.positions[t]} channel {c}: {got[t, c]}, not {wanted[t, c]}')


def wrong_sums(snapshot):
    """Sums of |Q| over all of a sequence's tokens."""
    ranked = [entry for entry in zip(snapshot.plan.entries, snapshot.plan.keys, snapshot.plan.rotations)
              if entry[1].get('boost', {}).get('score') == 'query-range']
    for sequence in snapshot.sequences:
        total = sequence.base + sum((s for _, _, s in sequence.sums), np.zeros_like(sequence.base))
        wanted = []
        for (layer, head, geometry), key, rotation in ranked:
            group = geometry['query_heads'] // geometry['kv_heads']
            queries = [expected(2, layer, head * group + g, range(sequence.n_tokens), geometry['head_dim'])
                       for g in range(group)]
            wanted += list(sum(np.abs(changed(q, key, rotation, True).astype(np.float16)).sum(0, np.float64)
                               for q in queries) * 2 ** 24)
        if len(wanted) != len(total) or (np.array(wanted) != total).any():
            yield f'sequence {sequence.id}: sums of queries'


def wrong_states(snapshot):
    """Versions of states that are not those that were written."""
    for number, (n_tokens, states) in enumerate(snapshot.versions):
        wanted = b''.join(bytes((n_tokens * 31 + s * 7 + b) & 255 for b in range(size))
                          for s, size in enumerate(snapshot.state_bytes))
        if states != wanted:
            yield f'version {number} after {n_tokens} tokens'


def undetected(data):
    """Damage that is not noticed."""
    ends = list(range(0, HEADER.size + CHUNK.size)) + list(range(HEADER.size, len(data), 2999))
    for i in ends:
        try:
            Snapshot(data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1:])
            yield f'byte {i} may be flipped'
        except Refused:
            pass
    for n in (0, 100, HEADER.size, HEADER.size + 31, len(data) // 2, len(data) - 1, len(data) + 1):
        try:
            Snapshot((data + b'\0')[:n])
            yield f'may be cut or filled to {n} bytes'
        except Refused:
            pass


def describe(path, snapshot):
    lines = [f'{path}: {snapshot.n_tokens} tokens in {len(snapshot.sequences)} sequences, '
             f'{snapshot.n_blocks} blocks, plan {snapshot.plan.json["name"]}']
    for s in snapshot.sequences:
        lines.append(f'  sequence {s.id}: {s.n_tokens} tokens, blocks {[block.number for block in s.blocks]}')
        if s.versions:
            lines.append(f'    versions after {[after for after, _ in s.versions]} tokens')
        if s.order is not None:
            lines.append(f'    chunks {s.order.tolist()} of classes {s.assigned.tolist()}')
    return '\n'.join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--golden', action='store_true')
    parser.add_argument('files', nargs='+')
    args = parser.parse_args()
    faults = []
    for path in args.files:
        with open(path, 'rb') as file:
            data = file.read()
        snapshot = Snapshot(data)
        print(describe(path, snapshot))
        if args.golden:
            faults += [f'{path}: {fault}' for fault in (*wrong_values(snapshot), *wrong_sums(snapshot),
                                                        *wrong_states(snapshot), *undetected(data))]
    print('\n'.join(faults + [f'{len(args.files)} files, {len(faults)} faults']))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
