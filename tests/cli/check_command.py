#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line: help, refusals, what this build holds.

usage: check_command.py LOWKEY
"""

import ctypes
import json
import pathlib
import subprocess

from harness import MODEL, PROGRAM, TEXT, check, expect, run


def usage() -> None:
    expect('Subcommands' in run('--help').stdout, 'help names the subcommands')
    for command in ('info', 'plan', 'calibrate', 'inspect', 'verify', 'bench', 'demo'):
        help_text = run(command, '--help').stdout
        expect(f'lowkey {command}' in help_text, f'{command} --help has an example')
    expect('there is no command nonsense' in run('nonsense', code=2).stderr, 'an unknown command is named')
    run('plan', 'kitty', '--layers', 'many', code=2)
    expect('plan kitty does not take --bits 3; see lowkey plan kitty --help' in
           run('plan', 'kitty', '--bits', '3', code=2).stderr, 'an option of another method is named, and its command')
    run('plan', 'no-such-plan', code=2)
    run('plan', 'chanmix', code=2)
    run('plan', code=2)
    run('plan', 'auto', code=2)
    run('calibrate', code=2)
    run('verify', '--device', 'cuda:first', code=2)
    run('bench', '--graph', code=2)
    run('bench', '--device', 'vulkan', '--graph', code=2)


def outputs(folder: pathlib.Path) -> None:
    """What cannot be written is refused before the work; an older file stays whole."""
    missing = folder / 'no-folder' / 'file'
    reason = f'cannot write {missing}: No such file or directory'
    for words in (['plan', 'kitty', '-o'], ['plan', 'kitty', '--png'], ['demo', '--png'],
                  ['calibrate', '--model', str(MODEL), '--text', str(TEXT), '-o']):
        done = run(*words, str(missing), code=1)
        expect(reason in done.stderr and done.stdout == '', f'{words} names the file and the reason, and does nothing')
    expect('Is a directory' in run('plan', 'kitty', '-o', str(folder), code=1).stderr, 'a folder is no file')
    plan = folder / 'plan.json'
    run('plan', 'kitty', '-o', str(plan))
    kitty = plan.read_bytes()
    plan.chmod(0o600)
    pathlib.Path(f'{plan}.partial').mkdir()
    run('plan', 'kivi2', '-o', str(plan), code=1)
    expect(plan.read_bytes() == kitty, 'a failure leaves the older file')
    pathlib.Path(f'{plan}.partial').rmdir()
    run('plan', 'kivi2', '-o', str(plan))
    expect(plan.read_bytes() != kitty and plan.stat().st_mode & 0o777 == 0o600, 'a new file has the mode of the older one')
    (folder / 'link').symlink_to(plan)
    run('plan', 'kitty', '-o', str(folder / 'link'))
    expect((folder / 'link').is_symlink() and plan.read_bytes() == kitty, 'a link is followed')
    expect({p.name for p in folder.iterdir()} == {'plan.json', 'link'}, 'nothing else is left')
    for words in (['plan', 'kitty'], ['--help']):
        with open('/dev/full', 'wb') as full:
            done = subprocess.run([PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, text=True)
        expect(done.returncode == 1 and 'No space left on device' in done.stderr, 'a full stdout is a failure')


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


check(usage, outputs, info)
