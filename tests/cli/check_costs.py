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

from harness import MODEL, PROGRAM, ROOT, TEXT, check, expect, run

EXAMPLE = sys.argv[2] if len(sys.argv) > 2 else None
BITS = '2.5'


def interrupt(words: list[str], journal: pathlib.Path) -> None:
    """Run a measurement until it has kept something, then end it."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not journal.exists():
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                pass
        process.kill()
    expect(journal.exists() and process.returncode != 0, 'a measurement is interrupted and keeps what it has')


def costs(folder: pathlib.Path) -> None:
    """What the keys and values of heads cost is kept with statistics, and moves bits of auto."""
    sentence, = re.findall(r'kSentence = "(.*)"', (ROOT / 'examples/llama/costs.cpp').read_text())
    stats, plan, journal = str(folder / 'costs.safetensors'), folder / 'costs.json', folder / 'journal'
    common = ['calibrate', '--model', str(MODEL), '--text', str(TEXT), '--tokens', '64', '--attention-tokens', '0',
              '--sentence', sentence, '-o', stats]
    measured = [*common, '--costs', '--costs-tokens', '320', '--costs-documents', '1', '--costs-resume', str(journal)]
    interrupt([PROGRAM, *measured], journal)
    kept = journal.read_bytes()
    refusals(measured, journal, kept)
    (folder / 'journal.partial').mkdir()  # nothing can be written there
    plans, n_keys = [], []
    for words in (common, measured):
        done = run(*words, '--json')
        n_keys.append(json.loads(done.stdout)['layers'][0]['keys'])
        run('plan', 'auto', '--stats', stats, '--bits', BITS, '-o', str(plan))
        plans.append(json.loads(plan.read_text()))
    expect(done.stderr.count('the measurement goes on') == 1 and journal.read_bytes() == kept,
           'a file that cannot be written ends no measurement')
    expect(plans[0]['layers'] != plans[1]['layers'], 'costs move bits of auto')
    expect(n_keys[1] - n_keys[0] == 4 * (320 + 80 + 1), 'keys of the four texts are in the statistics, each after a BOS')
    if EXAMPLE:
        example(folder, plans[1])


def refusals(measured: list[str], journal: pathlib.Path, kept: bytes) -> None:
    """Files that no measurement goes on from."""
    expect('--model' in run('calibrate', str(TEXT), '--costs', code=2).stderr, 'costs need a model')
    said = run(*measured, '--costs-seed', '2', code=1).stderr
    expect('journal: the divergences are of a run with fingerprint' in said and 'remove the file' in said,
           'texts of another seed are others')
    journal.write_bytes(kept[:-1])
    expect('hash' in run(*measured, code=1).stderr, 'a file that was cut is refused')
    journal.write_bytes(kept)


def example(folder: pathlib.Path, want: dict) -> None:
    """The example gives the command's plan, and refuses a journal of other texts."""
    words = [EXAMPLE, '--model', str(MODEL), '--text', str(TEXT), '--tokens', '64', '--context', '320', '--bits', BITS,
             '--journal', str(folder / 'example'), '--documents']
    for again in range(2):  # the second time with everything measured
        done = subprocess.run([*words, '1'], capture_output=True, text=True, timeout=600, check=False)
        expect(done.returncode == 0, f'the example runs: {done.stderr}')
        expect(json.loads(done.stdout) == want, f'the example gives the plan of the command, run {again}')
    done = subprocess.run([*words, '2'], capture_output=True, text=True, timeout=600, check=False)
    expect(done.returncode == 1 and 'LK_E_MISMATCH' in done.stderr, f'a journal of other texts: {done.stderr}')


check(costs)
