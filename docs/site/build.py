# SPDX-License-Identifier: Apache-2.0
"""Makes the static site: README, the guides, the C interface of the headers, the Python package; one search over all.

build.py FOLDER  a folder for the pages, which is replaced. Status 1 after a warning or a link that leads nowhere. Runs
under a Python with the packages of requirements.txt. The pages need no network."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from interface import Interface
from links import faults

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGES = ('*.md', 'docs/*.md', 'docs/lab/*.md', 'tests/model/README.md')
LINK = re.compile(r'(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)')
# Where a link to a folder leads.
FOLDERS = {'include/lowkey': 'c/index.md'}
# The modules of the Python package, and what autodoc does not find in them: constants, and imports at first use.
PYTHON = {
    'lowkey': ('autodata:: lowkey.plan.ALL', 'autodata:: lowkey.calibrator.POSITION_SCALE',
               'autodata:: lowkey.calibrator.COST_CLIPS'),
    'lowkey.chunks': (),
    'lowkey.encoder': (),
    'lowkey.transformers': (),
    'lowkey.lm_eval': ('autofunction:: lowkey.lm_eval.evaluation.evaluate',
                       'autoclass:: lowkey.lm_eval.evaluation.Evaluation', 'autoclass:: lowkey.lm_eval.model.LowkeyLM'),
}
C_INDEX = """# C interface

One page for each header. `#include <lowkey/lowkey.h>` brings all but `vulkan.h`.

```{{toctree}}
{pages}
```
"""
PYTHON_INDEX = """# Python interface

[The guide to the Python package](../docs/python.md) has the way in; the calls are here.

```{{toctree}}
{pages}
```
"""


def collect(stage: pathlib.Path) -> None:
    """Copy the pages, with their places; links to other files of the project get copies of those."""
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        name = path.relative_to(ROOT)
        text = linked(path.read_text(encoding='utf-8'), path, stage)
        if str(name) == 'README.md':
            name, text = pathlib.Path('index.md'), text + (HERE / 'contents.md').read_text(encoding='utf-8')
        write(stage / name, text)
    for path in ROOT.glob('docs/results/*.png'):
        copy(path, stage)


def write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding='utf-8')


def copy(path: pathlib.Path, stage: pathlib.Path) -> None:
    target = stage / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def linked(text: str, page: pathlib.Path, stage: pathlib.Path) -> str:
    """A page whose links lead to pages and copies of the site; a link to a folder becomes text."""
    def replaced(match: re.Match) -> str:
        shown, target, section = match[1], match[2], match[3] or ''
        path = (page.parent / target).resolve()
        name = path.relative_to(ROOT).as_posix() if '://' not in target else ''
        if name == 'README.md' or name in FOLDERS:
            leads = FOLDERS.get(name, 'index.md')
        elif not name or path.suffix == '.md':
            return match[0]
        elif path.is_dir():
            return shown
        else:
            copy(path, stage)
            return match[0]
        up = os.path.relpath(stage / leads, (stage / page.relative_to(ROOT)).parent)
        return f'[{shown}]({up}{section})'

    # Every second part is a block that is shown as it is.
    parts = re.split(r'(^```.*?^```$)', text, flags=re.M | re.S)
    return ''.join(part if index % 2 else LINK.sub(replaced, part) for index, part in enumerate(parts))


def described(folder: pathlib.Path) -> Interface:
    """The C interface, by Doxygen."""
    subprocess.run(['doxygen', 'docs/Doxyfile'], cwd=ROOT, env={**os.environ, 'LOWKEY_DOCS': str(folder)}, check=True)
    return Interface(folder / 'xml')


def reference(stage: pathlib.Path, interface: Interface) -> None:
    """The pages of the C interface and of the Python package."""
    headers = sorted(interface.headers, key=lambda header: (header != 'lowkey.h', header))
    for header in headers:
        write(stage / 'c' / f'{pathlib.Path(header).stem}.rst', interface.page(header))
    write(stage / 'c/index.md', C_INDEX.format(pages='\n'.join(pathlib.Path(header).stem for header in headers)))
    for module, more in PYTHON.items():
        is_package = (ROOT / 'bindings/python' / module.replace('.', '/')).is_dir()
        # A package's names come from its files.
        names = '   :imported-members:\n' if is_package else ''
        text = f'{module}\n{"=" * len(module)}\n\n.. automodule:: {module}\n{names}'
        write(stage / 'python' / f'{module}.rst', '\n.. '.join([text, *more]) + '\n')
    write(stage / 'python/index.md', PYTHON_INDEX.format(pages='\n'.join(PYTHON)))


def version() -> str:
    return re.search(r"^ *version: '([^']+)'", (ROOT / 'meson.build').read_text(encoding='utf-8'), re.M)[1]


def make(folder: pathlib.Path) -> int:
    with tempfile.TemporaryDirectory() as name:
        temp = pathlib.Path(name)
        stage = temp / 'pages'
        collect(stage)
        reference(stage, described(temp))
        shutil.copytree(HERE / '_static', stage / '_static')
        shutil.copy(HERE / 'conf.py', stage)
        shutil.rmtree(folder, ignore_errors=True)
        env = {**os.environ, 'LOWKEY_SITE_VERSION': version(), 'LOWKEY_SITE_PYTHON': str(ROOT / 'bindings/python'),
               'PYTHONHASHSEED': '0', 'LC_ALL': 'C.UTF-8'}
        done = subprocess.run([sys.executable, '-m', 'sphinx', '-q', '-W', '--keep-going', '-b', 'html', '-d',
                               temp / 'trees', stage, folder], env=env, check=False)
    for leftover in ('.buildinfo', 'objects.inv'):
        (folder / leftover).unlink(missing_ok=True)
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=pathlib.Path)
    folder = parser.parse_args().folder
    if not shutil.which('doxygen'):
        sys.exit('doxygen is missing')
    status = make(folder)
    found = list(faults(folder))
    pages = len(list(folder.rglob('*.html')))
    print('\n'.join([*found, f'{pages} pages, {len(found)} faults']))
    return 1 if status or found or not pages else 0


if __name__ == '__main__':
    sys.exit(main())
