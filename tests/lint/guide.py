"""The program in docs/guide.md is examples/hello.c, which is compiled; links of the docs lead to
files."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def broken_links(page):
    for target in re.findall(r'\]\(([^)#\s]+)[^)]*\)', page.read_text(encoding='utf-8')):
        if '://' not in target and not (page.parent / target).exists():
            yield f'{page.relative_to(ROOT)}: {target} is not there'


def main():
    program = (ROOT / 'examples/hello.c').read_text(encoding='utf-8')
    faults = []
    if f'```c\n{program}```' not in (ROOT / 'docs/guide.md').read_text(encoding='utf-8'):
        faults.append('docs/guide.md does not end with examples/hello.c as it is now')
    pages = [*ROOT.glob('*.md'), *ROOT.glob('docs/*.md')]
    for page in pages:
        faults += broken_links(page)
    print('\n'.join(faults + [f'{len(pages)} pages, {len(faults)} faults']))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
