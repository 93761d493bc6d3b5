# SPDX-License-Identifier: Apache-2.0
"""Does vulkan-statistics list a kernel of every plan and variant, with statistics where the driver has any?
python3 statistics_test.py PROGRAM"""
import json
import subprocess
import sys

SKIPPED = 77  # of Meson
PLANS = {'fp16', 'int8', 'kivi4', 'kivi2', 'kitty-pro', 'FP8 by 32', 'ChanMix', 'auto 1.74', 'auto 2.76', 'auto 2.05',
         'auto 3.53'}
VARIANTS = ('no matrices', 'FP32', 'no subgroups')


def main() -> int:
    done = subprocess.run([sys.argv[1], '--json'], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr)
        return SKIPPED if 'no Vulkan' in done.stderr else 1
    record = json.loads(done.stdout)
    rows = record['rows']
    for variant in VARIANTS:
        own = {row['plan']: row for row in rows if row['variant'] == variant}
        assert set(own) == PLANS, f'{variant}: {sorted(PLANS ^ set(own))} are on one side alone'
        for plan, row in own.items():
            assert row['kernel'].startswith('attend_decode'), f'{plan}, {variant}: {row["kernel"]}'
            assert row['packed_bytes'] > 0 and row['threads'] >= 32
    with_statistics = [row for row in rows if row['statistics']]
    assert len(with_statistics) in (0, len(rows)), 'some kernels have no statistics'
    print(f'{record["device"]}: {len(rows)} kernels, {len(with_statistics)} with statistics')
    return 0


if __name__ == '__main__':
    sys.exit(main())
