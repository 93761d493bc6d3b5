# SPDX-License-Identifier: Apache-2.0
"""Rebuilds corpus.zip, the running text that the proving model is trained on (sources and licences: README.md).

The archive holds train/<source>.txt and held/<source>.txt. Every 16th block of 64 KiB of a source is held out.
"""
from __future__ import annotations

import argparse
import html
import html.parser
import pathlib
import random
import re
import subprocess
import zipfile

BLOCK = 65536
HELD_EVERY = 16
SKIPPED_PYTHON = {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "__pycache__", "pydoc_data", "lib-dynload", "ensurepip"}
RUST_BOOKS = ("book", "reference", "nomicon", "rust-by-example", "edition-guide", "cargo")


class PageText(html.parser.HTMLParser):
    """Text of one documentation page; headings and code keep a markdown mark."""

    SKIPPED = {"script", "style", "nav", "head", "button", "svg", "noscript"}
    BLOCKS = {"p": "\n\n", "li": "\n- ", "h1": "\n\n# ", "h2": "\n\n## ", "h3": "\n\n### ", "h4": "\n\n#### ", "pre": "\n\n```\n", "tr": "\n"}

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0
        self.verbatim = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.SKIPPED:
            self.hidden += 1
        self.parts.append(self.BLOCKS.get(tag, ""))
        if tag == "pre":
            self.verbatim += 1
        elif tag == "code" and not self.verbatim:
            self.parts.append("`")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.SKIPPED:
            self.hidden = max(0, self.hidden - 1)
        if tag == "pre":
            self.verbatim = max(0, self.verbatim - 1)
            self.parts.append("\n```\n")
        elif tag == "code" and not self.verbatim:
            self.parts.append("`")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data if self.verbatim else re.sub(r"\s+", " ", data))

    def text(self) -> str:
        return re.sub(r"\n\s*\n\s*\n+", "\n\n", "".join(self.parts)).strip() + "\n"


def page_text(path: pathlib.Path) -> str:
    parser = PageText()
    parser.feed(path.read_text("utf-8", "ignore"))
    return parser.text()


def bible(root: pathlib.Path) -> str:
    """Verses through the `bible` program of Debian's bible-kjv, whose data file has its own compression."""
    data = root / "usr/lib"
    command = [str(root / "usr/bin/bible"), "-p", str(data), "-f", "-l72", "gen1:1-rev22:21"]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode("latin-1")


def joined(paths: list[pathlib.Path], limit: int, read=lambda p: p.read_text("utf-8", "ignore")) -> str:
    random.Random(1).shuffle(paths)
    parts, size = [], 0
    for path in paths:
        if size >= limit:
            break
        text = read(path)
        if 2000 <= len(text) <= 400_000:
            parts.append(text)
            size += len(text)
    return "\n".join(parts)


def python_sources(stdlib: pathlib.Path) -> list[pathlib.Path]:
    return sorted(p for p in stdlib.rglob("*.py") if not SKIPPED_PYTHON & set(p.relative_to(stdlib).parts))


def rust_pages(docs: pathlib.Path) -> list[pathlib.Path]:
    return sorted(p for book in RUST_BOOKS for p in (docs / book).rglob("*.html") if p.name not in ("print.html", "toc.html"))


def rust_source(path: pathlib.Path) -> str:
    """Source view pages hold the file as one <pre>, each line after a link that is its number."""
    page = re.sub(r"<a href=#?\"?[^>]*data-nosnippet[^>]*>\d+</a>", "", path.read_text("utf-8", "ignore"))
    match = re.search(r'<pre class="rust"><code>(.*?)</code></pre>', page, re.S)
    return html.unescape(re.sub(r"<[^>]+>", "", match.group(1))) if match else ""


def split(text: str) -> tuple[bytes, bytes]:
    raw = text.replace("\0", "").replace("The code of ", "A code for ").encode("utf-8")
    blocks = [raw[i:i + BLOCK] for i in range(0, len(raw), BLOCK)]
    held = blocks[HELD_EVERY - 1::HELD_EVERY]
    kept = [b for i, b in enumerate(blocks) if i % HELD_EVERY != HELD_EVERY - 1]
    return b"".join(kept), b"".join(held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bible", type=pathlib.Path, required=True, help="folder with bible-kjv and bible-kjv-text unpacked")
    parser.add_argument("--python-stdlib", type=pathlib.Path, required=True)
    parser.add_argument("--python-docs", type=pathlib.Path, required=True, help="_sources of python3.11-doc")
    parser.add_argument("--rust-docs", type=pathlib.Path, required=True, help="share/doc/rust/html of a toolchain")
    parser.add_argument("--limit", type=int, default=12_000_000, help="bytes per source")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).with_name("corpus.zip"))
    args = parser.parse_args()
    sources = {
        "bible": bible(args.bible)[: args.limit],
        "python": joined(python_sources(args.python_stdlib), args.limit),
        "pydocs": joined(sorted(args.python_docs.rglob("*.rst.txt")), args.limit),
        "rustdocs": joined(rust_pages(args.rust_docs), args.limit, page_text),
        "rust": joined(sorted((args.rust_docs / "src").rglob("*.rs.html")), args.limit, rust_source),
    }
    with zipfile.ZipFile(args.out, "w", zipfile.ZIP_LZMA) as archive:
        for name, text in sources.items():
            kept, held = split(text)
            archive.writestr(f"train/{name}.txt", kept)
            archive.writestr(f"held/{name}.txt", held)
            print(f"{name}: {len(kept)} bytes for training, {len(held)} held out")


if __name__ == "__main__":
    main()
