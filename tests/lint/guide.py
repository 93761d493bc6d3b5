# SPDX-License-Identifier: Apache-2.0
"""The program in docs/guide.md is examples/hello.c, which is compiled; links of the docs lead to
files and to sections that are there."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def text_of(page):
    """A page without what it shows as it is."""
    return re.sub(r'^ *```.*?^ *```$', '', page.read_text(encoding='utf-8'), flags=re.M | re.S)


def sections(page):
    """Names of a page's headings in links: "What it runs" is what-it-runs."""
    for heading in re.findall(r'^#+ (.*)$', text_of(page), re.M):
        yield re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')


def broken_links(page):
    for target, section in re.findall(r'\]\(([^)#\s]*)(#[^)\s]*)?\)', text_of(page)):
        file = page.parent / target if target else page
        if '://' in target:
            continue
        if not file.exists():
            yield f'{page.relative_to(ROOT)}: {target} is not there'
        elif section and section[1:] not in sections(file):
            yield f'{page.relative_to(ROOT)}: {target} has no section {section}'


def main():
    program = (ROOT / 'examples/hello.c').read_text(encoding='utf-8')
    faults = []
    if f'```c\n{program}```' not in (ROOT / 'docs/guide.md').read_text(encoding='utf-8'):
        faults.append('docs/guide.md does not end with examples/hello.c as it is now')
    pages = [*ROOT.glob('*.md'), *ROOT.glob('docs/*.md'), *ROOT.glob('docs/lab/*.md')]
    for page in pages:
        faults += broken_links(page)
    print('\n'.join(faults + [f'{len(pages)} pages, {len(faults)} faults']))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
