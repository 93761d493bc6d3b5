#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lowkey inspect: plans, snapshots, pages and hostile files.

usage: check_inspect.py LOWKEY
"""

import json
import os
import pathlib
import struct
import time

from harness import ROOT, check, expect, png_size, run


def snapshots(folder: pathlib.Path) -> None:
    golden = ROOT / 'tests/fuzz/snapshot/case-0.lksnap'
    said = json.loads(run('inspect', 'snapshot', str(golden), '--json').stdout)
    expect(said['bytes'] == golden.stat().st_size and said['tokens'] == 232, 'the size of a snapshot')
    expect([s['tokens'] for s in said['sequences']] == [110, 115, 7], 'its sequences')
    expect(said['sequences'][1]['shared_blocks'] == 2, 'blocks that a fork shares')
    page_bytes = sum(c['code_bytes'] + c['metadata_bytes'] for c in said['classes'])
    expect(0.85 * said['bytes'] < page_bytes < said['bytes'], 'bytes by format are nearly all')
    expect(said['plan']['lowkey_plan'] == 1, 'its plan')
    text = run('inspect', str(golden), '--png', str(folder / 'snapshot.png')).stdout
    expect('232 tokens' in text and '4: 16, 2: 16' in text, 'a table of it')
    expect(png_size(folder / 'snapshot.png')[0] == 1180, 'its picture')
    (folder / 'cut.lksnap').write_bytes(golden.read_bytes()[:-1])
    expect('LK_E_CORRUPT' in run('inspect', str(folder / 'cut.lksnap'), code=1).stderr, 'a cut one')
    run('inspect', 'snapshot', code=2)
    run('inspect', 'page', str(golden), code=2)


def hostile(folder: pathlib.Path) -> None:
    for name, text in {'cut.json': '{"lowkey_plan": 1', 'other.json': '{"lowkey_plan": 99}', 'list.json': '[]',
                       'deep.json': '[' * 100000}.items():
        (folder / name).write_text(text)
        refused = run('plan', str(folder / name), code=1)
        expect(name in refused.stderr or 'LK_E' in refused.stderr, f'{name} is refused with a sentence')
    (folder / 'huge.safetensors').write_bytes(struct.pack('<Q', 1 << 62) + b'{}')
    run('inspect', str(folder / 'huge.safetensors'), code=1)
    for name in ('pipe', 'pipe.safetensors'):
        os.mkfifo(folder / name)
        for words in (['inspect'], ['inspect', 'snapshot'], ['plan']):
            refused = run(*words, str(folder / name), code=1)
            expect('pipe, not a file' in refused.stderr or 'LK_E_IO' in refused.stderr, f'{words} of a pipe: {refused.stderr}')


def safetensors(tensors: list[tuple[str, int, int]]) -> bytes:
    """A file of bytes U8, by name, begin and end; a name may come twice."""
    header = ','.join(f'{json.dumps(name)}:{{"dtype":"U8","shape":[{end - begin}],"data_offsets":[{begin},{end}]}}'
                      for name, begin, end in tensors).encode()
    header = b'{"__metadata__":{"a\\u001bb":"c\\u009bd"},' + header + b'}'
    return struct.pack('<Q', len(header)) + header + bytes(tensors[-1][2])


def names(folder: pathlib.Path) -> None:
    """A terminal obeys no name of a file."""
    path = folder / 'names.safetensors'
    path.write_bytes(safetensors([('red\x1b[31m\n\x7f\x9bx\u00fc', 0, 4), ('other', 4, 8)]))
    text = run('inspect', str(path)).stdout
    expect('red\\x1b[31m\\x0a\\x7f\\x9bx\u00fc' in text, 'control characters of a name are written as codes')
    expect('a\\x1bb: c\\x9bd' in text, 'and those of metadata')
    said = run('inspect', str(path), '--json').stdout
    expect(not any(c in text + said for c in '\x1b\x7f\x9b'), 'no control character is printed')
    expect(json.loads(said)['tensors'][0]['name'] == 'red\x1b[31m\n\x7f\x9bx\u00fc', 'JSON has the name itself')
    path.write_bytes(safetensors([('twice\x1b', 0, 4), ('once', 4, 8), ('twice\x1b', 8, 12)]))
    refused = run('inspect', str(path), code=1).stderr
    expect('"twice\\x1b" twice' in refused, 'a name that two tensors have is refused')


def large_plans(folder: pathlib.Path) -> None:
    """A million heads of one rule are one row."""
    path = folder / 'large.json'
    run('plan', 'kitty-pro', '--layers', '2', '--kv-heads', '3', '--query-heads', '3', '-o', str(path))
    text = path.read_text().replace('"count": 2', '"count": 1024').replace('"count": 3', '"count": 1024')
    path.write_text(text.replace('heads": 3', 'heads": 1024'))
    own = run('inspect', str(path), code=1).stderr.split('that of its layers is ')[1][:16]
    at = text.index('"hash": "') + 9
    path.write_text(path.read_text().replace(text[at:at + 16], own))
    begin = time.monotonic()
    lines = run('inspect', str(path)).stdout.splitlines()
    expect(len(lines) < 10 and time.monotonic() - begin < 20, 'and take little time')


def plans(folder: pathlib.Path) -> None:
    """A plan is counts of channels by width, a row or two for equal layers."""
    saved = str(folder / 'plan.json')
    run('plan', 'kitty-pro', '--layers', '32', '-o', saved)
    lines = run('inspect', saved).stdout.splitlines()
    expect(len(lines) < 10, 'equal layers share rows')
    keys = next(line.split() for line in lines if 'keys' in line)
    expect(keys == ['layers', '0..31', 'keys', str(8 * 96), str(8 * 32)], 'a quarter of the channels at 4 bits')


def pages() -> None:
    run('inspect', 'page', '--plan', 'kitty-pro')
    expect('--png' in run('inspect', 'page', '--png', 'page.png', code=2).stderr, 'a page has no picture, and says so')
    order = json.loads(run('inspect', 'page', '--plan', 'kivi2', '--layout', 'chanmix', '--json').stdout)
    expect(order['token_bytes'] * 4 == len(order['places']), 'ChanMix packs four channels of 2 bits in a byte')
    expect(order['places'][0] == {'channel': 0, 'bits': 2, 'byte': 0, 'shift': 6}, 'the first channel is highest')
    run('inspect', 'page', '--plan', 'kivi2', '--layout', 'chanmix')
    run('inspect', 'page', '--plan', 'fp16', '--layout', 'chanmix', code=1)


check(plans, large_plans, pages, snapshots, hostile, names)
