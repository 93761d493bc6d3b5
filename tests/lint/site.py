# SPDX-License-Identifier: Apache-2.0
"""What makes the site, without Sphinx: links that lead nowhere are found, pages link to copies of files, and each
exported function has a declaration on a page of the C interface (left out without doxygen)."""
import pathlib
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'docs/site'))
sys.dont_write_bytecode = True
import build  # noqa: E402
import links  # noqa: E402

GOOD = '<h1 id="top">x</h1><a href="sub/other.html#there">x</a><a href="#top">x</a><a href="https://example.org">x</a>'
# A page and the fault that it has.
BAD = (('<a href="gone.html">', 'gone.html is not there'), ('<a href="#gone">', '#gone has no such section'),
       ('<a href="sub/other.html#gone">', '#gone has no such section'),
       ('<script src="https://example.org/x.js">', 'a browser would fetch'),
       ('<img src="x.png">', 'x.png is not there'))


def checked_links(temp):
    (temp / 'sub').mkdir()
    (temp / 'sub/other.html').write_text('<p id="there">')
    for text, fault in ((GOOD, ''), *BAD):
        (temp / 'index.html').write_text(text)
        found = list(links.faults(temp))
        if len(found) != (1 if fault else 0) or fault not in ''.join(found):
            yield f'{text} gives {found}'
    (temp / 'index.html').unlink()
    (temp / 'x.css').write_text('@import url(/far.css);')
    if not list(links.faults(temp)):
        yield 'a style that loads a file of another place passes'


def rewritten_links(temp):
    page = ROOT / 'docs/guide.md'
    for text, wanted in (('[a](../examples/hello.c)', '[a](../examples/hello.c)'), ('[a](../examples/demo)', 'a'),
                         ('[a](../README.md#use-it)', '[a](../index.md#use-it)'), ('[a](PLAN.md#x)', '[a](PLAN.md#x)'),
                         ('[a](../include/lowkey)', '[a](../c/index.md)'),
                         ('[a](https://x.org/)', '[a](https://x.org/)'),
                         ('```\n[a](../examples/demo)\n```', '```\n[a](../examples/demo)\n```')):
        made = build.linked(text, page, temp)
        if made != wanted:
            yield f'{text} becomes {made}'
    if not (temp / 'examples/hello.c').exists():
        yield 'no copy of a linked file'


def declared(temp):
    made = build.described(temp)
    pages = ''.join(made.page(header) for header in made.headers)
    found = set(re.findall(r'^\.\. c:function:: .*?(lk_\w+)\(', pages, re.M))
    for name in (ROOT / 'tests/abi/symbols.txt').read_text(encoding='utf-8').split():
        if name not in found:
            yield f'{name} is on no page'
    for wanted in ('.. c:enumerator:: LK_E_STATE = -2', '   .. c:member:: int64_t token_stride', ':param queue: ',
                   '.. c:macro:: LK_DRAFT_TOKENS\n\n   ``64``', ':c:data:`lk_tensor <lk_tensor>`'):
        if wanted not in pages:
            yield f'no page has {wanted!r}'


def main():
    with tempfile.TemporaryDirectory() as name:
        temp = pathlib.Path(name)
        for part in ('links', 'pages', 'doxygen'):
            (temp / part).mkdir()
        faults = [*checked_links(temp / 'links'), *rewritten_links(temp / 'pages')]
        if shutil.which('doxygen'):
            faults += declared(temp / 'doxygen')
    print('\n'.join([*faults, f'{len(faults)} faults']))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
