#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lowkey calibrate --costs runs the proving model.

usage: check_costs.py LOWKEY
"""

import json
import pathlib

from harness import MODEL, TEXT, check, expect, run


def costs(folder: pathlib.Path) -> None:
    """What the keys and values of heads cost is kept with statistics, and moves bits of auto."""
    common = ['--model', str(MODEL), '--text', str(TEXT),
              '--tokens', '64', '--attention-tokens', '0', '--repeats', '2']
    layers = []
    for words in ([], ['--costs', '--costs-tokens', '320', '--costs-documents', '1']):
        stats, plan = str(folder / 'costs.safetensors'), folder / 'costs.json'
        run('calibrate', *common, *words, '-o', stats)
        run('plan', 'auto', '--stats', stats, '--bits', '2.5', '-o', str(plan))
        layers.append(json.loads(plan.read_text())['layers'])
    expect(layers[0] != layers[1], 'costs move bits of auto')
    expect('--model' in run('calibrate', stats, '--costs', code=2).stderr, 'costs need a model')


check(costs)
