# SPDX-License-Identifier: Apache-2.0
"""Filters a header of lowkey for doxygen: python3 docs/reference.py HEADER.

Its plain comments become doc comments, line by line, so that warnings name the header's own lines:

- the first comment is the file's; one before a declaration, or after it, belongs to that;
- "name  text" in a comment is a parameter of the function, so a name that is none is found;
- lines indented by three are shown as they are;
- an enum after `typedef ... name;` has the values of that name;
- lk_x_init() right after its struct gets the sentence that holds for all of them.
"""
import re
import sys

SPDX = 'SPDX-License-Identifier: Apache-2.0'
BEHIND = re.compile(r'^(?!struct )(\s*[^\s/*].*?[;,{\w]\s+)/\* ')
PARAMETER = re.compile(r'^ \* (\w+(?:, \w+)*)  +(\S.*)$')
NAME = re.compile(r'^typedef (?!struct|enum)[^(]* (\w+);')
INIT = re.compile(r'^LK_API lk_status lk_\w+_init\(')


def comment(lines):
    """A comment before a declaration. Blank lines around what is shown as it is take the commands."""
    out = [re.sub(r'/\* ?', '/** ', lines[0], count=1)]
    kind = 'text'
    for line in lines[1:]:
        parameter = PARAMETER.match(line)
        if line.rstrip() == ' *':
            out.append(' * \\endverbatim' if kind == 'shown' else line)
            kind = 'blank'
        elif kind == 'blank' and line.startswith(' *   '):
            out[-1] += ' \\verbatim'
            kind = 'shown'
            out.append(line)
        elif parameter and kind != 'shown':
            kind = 'parameter'
            out.append(f' * \\param {parameter[1].replace(", ", ",")} {parameter[2]}')
        else:
            kind = 'text' if kind == 'blank' else kind
            out.append(re.sub(r'^ \* (Errors[^:.]*:)', r' * <b>\1</b>', line))
    if kind == 'shown':
        out[-1] = out[-1].replace('*/', '\\endverbatim */')
    return out


def filtered(lines):
    out, name = [], ''
    while len(out) < len(lines):
        line = lines[len(out)]
        if line.startswith('/*'):
            end = next(i for i in range(len(out), len(lines)) if '*/' in lines[i])
            block = comment(lines[len(out):end + 1])
            out += block if out else [text.replace(SPDX, '\\file') for text in block]
            continue
        if name and line.startswith('enum {'):
            line = f'/** Values of {name}. */ {line}'
        elif INIT.match(line) and not out[-1].endswith('*/'):
            line = f'/** Fill a struct with its defaults and its size, as lk_tensor_init() does. */ {line}'
        name = NAME.match(line)[1] if NAME.match(line) else ''
        out.append(BEHIND.sub(r'\1/**< ', re.sub(r'^(\s+)/\* ', r'\1/** ', line)))
    return out


if __name__ == '__main__':
    with open(sys.argv[1], encoding='utf-8') as header:
        print('\n'.join(filtered(header.read().split('\n'))), end='')
