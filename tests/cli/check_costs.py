#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lowkey calibrate --costs runs the proving model, and so does an example of the C interface.

usage: check_costs.py LOWKEY [LLAMA_COSTS]
"""

import json
import pathlib
import re
import subprocess
import sys

from harness import MODEL, ROOT, TEXT, check, expect, run

EXAMPLE = sys.argv[2] if len(sys.argv) > 2 else None
COSTS = ['--costs', '--costs-tokens', '320', '--costs-documents', '1']
BITS = '2.5'


def costs(folder: pathlib.Path) -> None:
    """What the keys and values of heads cost is kept with statistics, and moves bits of auto."""
    sentence, = re.findall(r'kSentence = "(.*)"', (ROOT / 'examples/llama/costs.cpp').read_text())
    common = ['--model', str(MODEL), '--text', str(TEXT), '--tokens', '64', '--attention-tokens', '0',
              '--sentence', sentence]
    plans = []
    for words in ([], COSTS):
        stats, plan = str(folder / 'costs.safetensors'), folder / 'costs.json'
        run('calibrate', *common, *words, '-o', stats)
        run('plan', 'auto', '--stats', stats, '--bits', BITS, '-o', str(plan))
        plans.append(json.loads(plan.read_text()))
    expect(plans[0]['layers'] != plans[1]['layers'], 'costs move bits of auto')
    expect('--model' in run('calibrate', stats, '--costs', code=2).stderr, 'costs need a model')
    if EXAMPLE:
        example(folder, plans[1])


def example(folder: pathlib.Path, want: dict) -> None:
    """The example gives the command's plan, also when it was interrupted, and refuses a journal of other texts."""
    journal = folder / 'journal'
    words = [EXAMPLE, '--model', str(MODEL), '--text', str(TEXT), '--tokens', '64', '--context', '320',
             '--documents', '1', '--bits', BITS, '--journal', str(journal)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not journal.exists():
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                pass
        process.kill()
    expect(journal.exists(), 'the example keeps what it has measured')
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    expect(done.returncode == 0, f'the example goes on: {done.stderr}')
    expect(json.loads(done.stdout) == want, 'the example gives the plan of the command')
    other = [*words[:-5], '2', *words[-4:]]
    done = subprocess.run(other, capture_output=True, text=True, timeout=600, check=False)
    expect(done.returncode == 1 and 'LK_E_MISMATCH' in done.stderr, f'a journal of other texts: {done.stderr}')


check(costs)
