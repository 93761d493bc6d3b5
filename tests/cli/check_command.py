#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line: help, refusals, what this build holds.

usage: check_command.py LOWKEY
"""

import ctypes
import json

from harness import check, expect, run


def usage() -> None:
    expect('Subcommands' in run('--help').stdout, 'help names the subcommands')
    for command in ('info', 'plan', 'calibrate', 'inspect', 'verify', 'bench', 'demo'):
        help_text = run(command, '--help').stdout
        expect(f'lowkey {command}' in help_text, f'{command} --help has an example')
    expect('there is no command nonsense' in run('nonsense', code=2).stderr, 'an unknown command is named')
    run('plan', 'kitty', '--layers', 'many', code=2)
    run('plan', 'no-such-plan', code=2)
    run('plan', 'chanmix', code=2)
    run('plan', code=2)
    run('plan', 'auto', code=2)
    run('calibrate', code=2)
    run('verify', '--device', 'cuda:first', code=2)
    run('bench', '--graph', code=2)
    run('bench', '--device', 'vulkan', '--graph', code=2)


def has_library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def info() -> None:
    said = json.loads(run('info', '--json').stdout)
    expect('cpu' in [d['backend'] for d in said['devices']], 'info lists the CPU')
    text = run('info').stdout
    for missing in said['missing']:
        expect(missing['why'] in text and missing['how'] in text, f'what is missing of {missing["backend"]} is said')
    expect({d['backend'] for d in said['devices']} | {m['backend'] for m in said['missing']} == {'cpu', 'cuda', 'vulkan'},
           'each backend has a device, or a reason to have none')
    why = {missing['backend']: missing['why'] for missing in said['missing']}.get('cuda', '')
    if why and 'left out' not in why and not has_library('libcuda.so.1'):
        sentence = 'there is no CUDA driver on this machine (libcuda.so.1)'
        expect(why.startswith(sentence), 'info says that the driver of CUDA is missing')
        for words in (['bench', '--tokens', '1K'], ['verify']):
            expect(sentence in run(*words, '--device', 'cuda', code=1).stderr, f'{words[0]} says it too')


check(usage, info)
