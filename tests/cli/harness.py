# SPDX-License-Identifier: Apache-2.0
"""What the checks of the command share: running it, and sentences for what does not hold."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / 'tests/model/prover.safetensors'
TEXT = ROOT / 'tests/model/texts/demo.txt'
PROGRAM = sys.argv[1]
checks = 0


def run(*words: str, code: int | None = 0, **env: str) -> subprocess.CompletedProcess:
    """Run the command and hold it to an exit code; None: the caller looks at it."""
    global checks
    checks += 1
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=600, env={**os.environ, **env})
    if code is not None and done.returncode != code:
        sys.exit(f'{pathlib.Path(PROGRAM).name} {" ".join(words)}: exit {done.returncode}, not {code}\n{done.stdout}{done.stderr}')
    return done


def expect(condition: bool, what: str) -> None:
    global checks
    checks += 1
    if not condition:
        sys.exit(f'not so: {what}')


def png_size(path: pathlib.Path) -> tuple[int, int]:
    """Width and height of a PNG whose chunks all have the right checksum."""
    data = path.read_bytes()
    expect(data[:8] == b'\x89PNG\r\n\x1a\n', f'{path.name} is a PNG')
    at = 8
    while at < len(data):
        length, = struct.unpack_from('>I', data, at)
        body = data[at + 4:at + 8 + length]
        expect(zlib.crc32(body) == struct.unpack_from('>I', data, at + 8 + length)[0], 'chunk checksum')
        at += 12 + length
    return struct.unpack_from('>II', data, 16)


def png_rows(path: pathlib.Path) -> list[list[tuple[int, ...]]]:
    """The pixels of a PNG of 8 bits a channel, row by row."""
    data, at, body = path.read_bytes(), 8, b''
    width, height, _, kind = struct.unpack_from('>IIBB', data, 16)
    n = {2: 3, 6: 4}[kind]
    while at < len(data):
        length, = struct.unpack_from('>I', data, at)
        if data[at + 4:at + 8] == b'IDAT':
            body += data[at + 8:at + 8 + length]
        at += 12 + length
    raw, rows, above = zlib.decompress(body), [], [0] * width * n
    for y in range(height):
        begin = y * (width * n + 1)
        kind, line = raw[begin], list(raw[begin + 1:begin + 1 + width * n])
        for i in range(width * n):
            a, b, c = (line[i - n], above[i], above[i - n]) if i >= n else (0, above[i], 0)
            nearest = min((a, b, c), key=lambda value: abs(a + b - c - value))
            line[i] = (line[i] + (0, a, b, (a + b) // 2, nearest)[kind]) & 255
        rows.append([tuple(line[i:i + 3]) for i in range(0, width * n, n)])
        above = line
    return rows


def safetensors(path: pathlib.Path, tensors: dict, metadata: dict) -> str:
    """Write F32 tensors of name: (shape, values)."""
    header, body = {'__metadata__': metadata}, b''
    for name, (shape, values) in tensors.items():
        data = struct.pack(f'<{len(values)}f', *values)
        header[name] = {'dtype': 'F32', 'shape': shape, 'data_offsets': [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack('<Q', len(text)) + text + body)
    return str(path)


def check(*parts) -> None:
    """Run the parts in a folder of their own; one that takes an argument gets it."""
    with tempfile.TemporaryDirectory() as name:
        for part in parts:
            part(*[pathlib.Path(name)][:part.__code__.co_argcount])
    print(f'{checks} checks hold')
