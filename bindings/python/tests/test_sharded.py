# SPDX-License-Identifier: Apache-2.0
"""examples/sharded: shares of a sequence answer as the whole, in one process and in several."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import lowkey

PACKAGE = pathlib.Path(__file__).parents[1]
PROGRAM = PACKAGE.parents[1] / 'examples/sharded/sharded.py'


def run(*arguments, launcher=(), **env) -> dict:
    done = subprocess.run([sys.executable, *launcher, str(PROGRAM), *arguments], timeout=280, capture_output=True,
                          env={**os.environ, 'PYTHONPATH': str(PACKAGE), **env}, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{')))


@pytest.mark.parametrize(('plan', 'shares'), [('fp16', 3), ('kitty-pro', 2)])
def test_one_process(plan, shares):
    found = run('--tokens', str(2048 * shares), '--plan', plan, '--shares', str(shares), '--layers', '2',
                '--steps', '3')
    assert found['shares'] == shares and found['received_bytes'] == 2 * (shares - 1) * 4 * 32 * 129
    assert (found['rms_packing'] > 0) == (plan != 'fp16')


def test_a_lost_share_is_seen():
    spec = importlib.util.spec_from_file_location('sharded', PROGRAM)
    sharded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sharded)
    arrays, geometry = sharded.OneProcess(), lowkey.Geometry.uniform(1, 32, 8, 128)

    def outs(gather):
        shares = [sharded.Share(arrays, geometry, 'fp16', range(i, i + 1), i == 1) for i in range(2)]
        return sharded.run(arrays, shares, 2, 2, gather)[0]

    whole = outs(arrays.gather)
    for lost in range(2):
        change = np.abs(whole - outs(lambda splits, lost=lost: [splits[1 - lost]])).max()
        assert change > 20 * sharded.ROUNDING * np.abs(whole).max()


def gpus() -> int:
    torch = pytest.importorskip('torch')
    return torch.cuda.device_count()


@pytest.mark.parametrize('wire', ['gloo', 'nccl'])
def test_two_processes(wire):
    if gpus() < 2 and wire == 'nccl':
        pytest.skip('NCCL needs two GPUs')
    found = run('--tokens', '4096', '--plan', 'fp16', '--layers', '2', '--steps', '3',
                launcher=('-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2'),
                OMP_NUM_THREADS='1', **({'CUDA_VISIBLE_DEVICES': ''} if wire == 'gloo' else {}))
    assert found['wire'] == wire and found['device'] == ('cpu' if wire == 'gloo' else 'cuda:0')


def test_usage():
    done = subprocess.run([sys.executable, str(PROGRAM), '--tokens', '1000'], capture_output=True, text=True,
                          check=False, env={**os.environ, 'PYTHONPATH': str(PACKAGE)})
    assert done.returncode == 2 and 'multiple of 1024' in done.stderr
