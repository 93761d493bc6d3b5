#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A suite on a small random model with windows: each method has a plan, Cocktail one of pages in their order.

usage: check_windows.py LOWKEY_LAB
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'cli'))
from folder_models import write_model  # noqa: E402
from harness import check, expect, run  # noqa: E402

LIMIT = 3  # heads of 32 channels have their ranges of values from there on


def windows(folder: pathlib.Path) -> None:
    name, text = 'gemma3-parts', folder / 'text.txt'
    write_model(folder / name, name)
    text.write_text('A short text about nothing.\n' * 40)
    said = json.loads(run('suite', '--model', str(folder / name / 'model.safetensors'), '--text', str(text),
                          '--contexts', '512', '--tasks', 'needle', '--questions', '2', '--calibrate-tokens', '512',
                          '--limits', str(LIMIT), '--json').stdout)
    plans = {plan['family']: plan for plan in said['plans']}
    for family in ('kivi', 'kivi+sink', 'kitty', 'chanmix', 'chanmix G128', 'cocktail', 'pm-kvq', 'auto'):
        expect(family in plans and plans[family]['bits_per_value'] <= LIMIT, f'{family} within {LIMIT} bits')
        expect(plans[family]['questions']['output_error'] > 1e-3, f'{family} packs')


check(windows)
