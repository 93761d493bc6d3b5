# SPDX-License-Identifier: Apache-2.0
"""The benches of whole models run, on a small one."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from hf import DEVICES

ROOT = pathlib.Path(__file__).parents[3]
PACKAGE = pathlib.Path(__file__).parents[1]
CAPS = {'cpu': ['--cap', '12MB'], 'cuda': ['--cap', '2GB', '--caches', 'dynamic,static,chanmix,pm-kvq,cocktail']}


@pytest.mark.parametrize('device', DEVICES)
def test_every_cache_fits_and_decodes(device, tmp_path):
    record = tmp_path / 'systems.json'
    subprocess.run([sys.executable, '-B', ROOT / 'tests/bench/systems.py', '--device', device, '--model', 'tiny-llama',
                    '--lengths', '1024', '--slab', '256KiB', '--record', record, *CAPS[device]],
                   env=dict(os.environ, PYTHONPATH=str(PACKAGE)), check=True, timeout=300)
    measured = json.loads(record.read_text())['models']['tiny-llama']
    cells = {(cell['cache'], cell['part']): cell for cell in measured['cells']}
    assert not [cell for cell in cells.values() if 'error' in cell]
    dynamic = cells['dynamic', 'largest']
    for cache in ('chanmix', 'pm-kvq', 'cocktail'):
        assert cells[cache, 'largest']['batch'] > 1.5 * dynamic['batch']
        assert cells[cache, 'equal']['batch'] == dynamic['batch']
        assert 0 < cells[cache, 'equal']['cache_bytes'] < 0.6 * dynamic['cache_bytes']
    assert cells['chanmix', 'context']['length'] > 1024
    assert [step['bits'] for step in cells['pm-kvq', 'largest']['shrinks']] == [8, 4, 2]
    assert sum(step['pages'] for step in cells['pm-kvq', 'largest']['shrinks']) > 0


def test_every_cache_has_a_decode_time(tmp_path):
    """On the CPU, whose steps have no graph."""
    record = tmp_path / 'latency.json'
    command = [sys.executable, '-B', ROOT / 'tests/bench/latency.py', '--device', 'cpu', '--model', 'tiny-qwen3', '--caches',
               'dynamic,fp16,kitty-pro+graph', '--shapes', '1x512,2x300', '--record', record]
    printed = subprocess.run(command, env=dict(os.environ, PYTHONPATH=str(PACKAGE)), check=True, timeout=300, text=True,
                             stdout=subprocess.PIPE).stdout
    cells = json.loads(record.read_text())['models']['tiny-qwen3']
    assert len(cells) == 6 and all(cell['step_ms'] > 0 for cell in cells)
    assert '| tiny-qwen3 | 2 | 300 |' in printed
