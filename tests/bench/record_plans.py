#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plan files for `lowkey bench --plans`, of one layer with 32 query heads, 8 KV heads and head_dim 128: what `auto` makes
of the statistics of the proving model (tests/model), whose 8 layers of 2 KV heads become two layers of 8, and ChanMix's
bytes without its calibration.

    build/lowkey calibrate --model tests/model/prover.safetensors --text tests/model/texts/suite-statistics.txt \\
        --tokens 8192 --scales --costs -o stats.safetensors
    PYTHONPATH=bindings/python python3 tests/bench/record_plans.py stats.safetensors tests/bench/plans
"""

import argparse
import dataclasses
import pathlib
import subprocess
import sys
import tempfile

import lowkey
from chanmix import chanmix

ROOT = pathlib.Path(__file__).resolve().parents[2]
GEOMETRY = lowkey.Geometry.uniform(1, 32, 8, 128)
N_KV_HEADS = GEOMETRY.layers[0].n_kv_heads
BITS = ('2.25', '2.54', '3')


def joined(layers: list[lowkey.LayerRule], n_heads: int) -> lowkey.LayerRule:
    """One layer of the heads of several, each of which has n_heads."""
    def rules(name: str) -> tuple:
        return tuple(rule for layer in layers for rule in each(getattr(layer, name)))

    def each(rule) -> tuple:
        return rule if isinstance(rule, tuple) else (rule,) * n_heads

    if len({layer.metadata for layer in layers}) != 1:
        raise SystemExit('the layers have parameters of different formats')
    return lowkey.LayerRule(rules('key'), rules('value'), layers[0].metadata)


def auto_plans(command: str, statistics: pathlib.Path, bits: str) -> dict[str, lowkey.Plan]:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'plan.json'
        subprocess.run([command, 'plan', 'auto', '--stats', statistics, '--bits', bits, '-o', path], check=True,
                       stdout=subprocess.DEVNULL)
        plan = lowkey.Plan.from_json(path.read_text(encoding='utf-8'))
    spec, n_heads = plan.spec(), plan.geometry.layers[0].n_kv_heads
    layers, n_joined, made = list(spec.layers), N_KV_HEADS // n_heads, {}
    if len(layers) == 1:
        layers *= len(plan.geometry.layers)
    for number in range(len(layers) // n_joined):
        name = f'auto-{bits}-{number + 1}'
        layer = joined(layers[number * n_joined:(number + 1) * n_joined], n_heads)
        made[name] = lowkey.Plan.build(GEOMETRY, dataclasses.replace(spec, name=name, layers=(layer,)))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('statistics', type=pathlib.Path)
    parser.add_argument('folder', type=pathlib.Path)
    parser.add_argument('--lowkey', default=str(ROOT / 'build/lowkey'), help='the command; default: %(default)s')
    options = parser.parse_args()
    plans = {name: chanmix(name, GEOMETRY) for name in ('chanmix-o', 'chanmix-ro')}
    for bits in BITS:
        plans |= auto_plans(options.lowkey, options.statistics, bits)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, plan in plans.items():
        (options.folder / f'{name}.json').write_text(plan.to_json() + '\n', encoding='utf-8')
        print(f'{name}: {plan.bytes(131072).bits_per_value:.3f} bits')
    return 0


if __name__ == '__main__':
    sys.exit(main())
