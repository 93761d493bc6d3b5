# SPDX-License-Identifier: Apache-2.0
"""Writes the man page of lowkey from what the command says of itself.

Arguments: the command, its version, the file to write."""
import os
import pathlib
import re
import subprocess
import sys


def help_of(*command):
    return subprocess.run([*command, '--help'], check=True, capture_output=True, text=True).stdout.rstrip()


def quote(text):
    """Text as roff shows it unchanged."""
    lines = text.replace('\\', '\\e').replace('-', '\\-').splitlines()
    return '\n'.join('\\&' + line if line[:1] in ('.', "'") else line for line in lines)


def main():
    command, version, target = sys.argv[1:]
    command = os.path.abspath(command)  # without a folder it would be looked for in PATH
    text = help_of(command)
    about, _, rest = text.partition('\nUsage:')
    names = re.findall(r'^  ([a-z]+) ', re.search(r'^Subcommands:\n(.*?)\n\n', rest + '\n\n', re.S | re.M)[1], re.M)
    page = [f'.TH LOWKEY 1 "" "lowkey {version}" "User Commands"', '.SH NAME',
            'lowkey \\- look into low\\-bit key/value caches of language models', '.SH SYNOPSIS',
            '.B lowkey\n.I command\n[\\fIoptions\\fR]', '.SH DESCRIPTION', quote(about), '.SH COMMANDS']
    for name in names:
        own = help_of(command, name)
        page += [f'.SS lowkey {name}', '.nf', quote(own), '.fi']
        methods = re.search(r'^Subcommands:\n(.*?)\n\n', own + '\n\n', re.S | re.M)
        for method in re.findall(r'^  (\S+) ', methods[1], re.M) if methods else []:
            page += [f'.SS lowkey {name} {method}', '.nf', quote(help_of(command, name, method)), '.fi']
    page += ['.SH EXIT STATUS', '0 done, 1 failed, 2 usage.']
    pathlib.Path(target).write_text('\n'.join(page) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
