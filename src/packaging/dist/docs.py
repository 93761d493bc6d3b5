# SPDX-License-Identifier: Apache-2.0
"""The documents as a static site, which `./dev docs` makes too."""

from __future__ import annotations

import pathlib

from workspace import Refused, Workspace, run


def target(work: Workspace) -> pathlib.Path:
    return work.out / f'lowkey-docs-{work.version}.tar.xz'


def build(work: Workspace) -> list[pathlib.Path]:
    tree, pages = work.tree('docs'), work.scratch('docs-pages')
    wanted = (tree / 'docs/site/requirements.txt').read_text()
    environment = work.kept('docs')
    stamp = environment / 'requirements.txt'
    if not stamp.exists() or stamp.read_text() != wanted:
        run('python3', '-m', 'venv', '--clear', environment)
        run(environment / 'bin/pip', 'install', '-q', '-r', tree / 'docs/site/requirements.txt')
        stamp.write_text(wanted)
    run(environment / 'bin/python', '-B', tree / 'docs/site/build.py', pages)
    files = [path for path in pages.rglob('*') if path.is_file()]
    work.pack_xz([(path, f'lowkey-docs-{work.version}/{path.relative_to(pages)}') for path in files], target(work))
    return [target(work)]


def check(work: Workspace) -> None:
    """The unpacked pages need nothing else, every link leads somewhere, and the search knows the interface."""
    if not target(work).exists():
        raise Refused(f'{target(work)} is not there: make it first')
    folder = work.scratch('docs-check')
    run('tar', '-xf', target(work), '-C', folder)
    pages = folder / f'lowkey-docs-{work.version}'
    run('python3', '-B', work.tree('docs') / 'docs/site/links.py', pages)
    for name in ('index.html', 'docs/guide.html', 'c/step.html', 'python/lowkey.html'):
        if not (pages / name).is_file():
            raise Refused(f'{target(work).name} has no {name}')
    if 'lk_step_begin' not in (pages / 'searchindex.js').read_text(encoding='utf-8'):
        raise Refused(f'the search of {target(work).name} does not find lk_step_begin')
