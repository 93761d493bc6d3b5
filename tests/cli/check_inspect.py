#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lowkey inspect: plans, snapshots, pages and hostile files.

usage: check_inspect.py LOWKEY
"""

import json
import pathlib
import struct

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
    order = json.loads(run('inspect', 'page', '--plan', 'kivi2', '--layout', 'chanmix', '--json').stdout)
    expect(order['token_bytes'] * 4 == len(order['places']), 'ChanMix packs four channels of 2 bits in a byte')
    expect(order['places'][0] == {'channel': 0, 'bits': 2, 'byte': 0, 'shift': 6}, 'the first channel is highest')
    run('inspect', 'page', '--plan', 'kivi2', '--layout', 'chanmix')
    run('inspect', 'page', '--plan', 'fp16', '--layout', 'chanmix', code=1)


check(plans, pages, snapshots, hostile)
