# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the pages of a site: links that lead nowhere, and anything that a browser would fetch.

links.py FOLDER"""

from __future__ import annotations

import html.parser
import pathlib
import re
import sys
import urllib.parse
from typing import Iterator

# Attributes whose address a browser loads by itself.
LOADED = {('img', 'src'), ('script', 'src'), ('link', 'href'), ('iframe', 'src'), ('source', 'src')}


class Page(html.parser.HTMLParser):
    """The identifiers and addresses of one page."""

    def __init__(self, path: pathlib.Path):
        super().__init__()
        self.identifiers: set[str] = set()
        self.addresses: list[tuple[str, str, str]] = []
        self.feed(path.read_text(encoding='utf-8'))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ('id', 'name') and value:
                self.identifiers.add(value)
            elif name in ('href', 'src') and value is not None:
                self.addresses.append((tag, name, value))


def faults(folder: pathlib.Path) -> Iterator[str]:
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob('*.html'))}
    for path, page in pages.items():
        for tag, name, address in page.addresses:
            for fault in wrong(path, pages, tag, name, address):
                yield f'{path.relative_to(folder.resolve())}: {fault}'
    for style in sorted(folder.rglob('*.css')):
        text = style.read_text(encoding='utf-8')
        if re.search(r'@import|url\(["\']?(https?:)?//', text):
            yield f'{style.relative_to(folder)} loads a file of another place'


def wrong(path: pathlib.Path, pages: dict[pathlib.Path, Page], tag: str, name: str, address: str) -> Iterator[str]:
    parts = urllib.parse.urlsplit(address)
    if parts.scheme or parts.netloc:
        if (tag, name) in LOADED and parts.scheme != 'data':
            yield f'a browser would fetch {address}'
        return
    target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
    section = urllib.parse.unquote(parts.fragment)
    if not target.is_file():
        yield f'{address} is not there'
    elif section and target in pages and section not in pages[target].identifiers:
        yield f'{address} has no such section'


if __name__ == '__main__':
    found = list(faults(pathlib.Path(sys.argv[1])))
    print('\n'.join([*found, f'{len(found)} faults']))
    sys.exit(bool(found))
