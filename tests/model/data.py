# SPDX-License-Identifier: Apache-2.0
"""Generators of the proving tasks (TASKS.md) and of training batches.

A sequence is a list of (bytes, weight): the weight of a byte in the loss is 0 where it cannot be predicted, 5 in answers, else 1.
"""
from __future__ import annotations

import pathlib
import random
import zipfile
from typing import Iterator, NamedTuple

import numpy as np

HERE = pathlib.Path(__file__).parent
ANSWER = 5
Part = tuple[bytes, int]


class Question(NamedTuple):
    lead: bytes
    key: bytes
    tail: bytes
    answer: bytes

    @property
    def prompt(self) -> bytes:
        return self.lead + self.key + self.tail

    @property
    def parts(self) -> list[Part]:
        return [(self.lead, 1), (self.key, 0), (self.tail, 1), (self.answer, ANSWER)]


class Task(NamedTuple):
    context: list[Part]
    questions: list[Question]

    @property
    def context_bytes(self) -> bytes:
        return b"".join(p for p, _ in self.context)


class Recipe(NamedTuple):
    """Shares of tasks in sequences up to 513 bytes and in longer ones; of traces, the most hops, and the share of questions with the
    chain written out."""

    hops: tuple[int, ...]
    written: tuple[float, float]
    short: dict[str, float]
    long: dict[str, float]


class Corpus:
    """Running text by source; one instance per split."""

    def __init__(self, path: pathlib.Path, split: str) -> None:
        with zipfile.ZipFile(path) as archive:
            names = sorted(n for n in archive.namelist() if n.startswith(split + "/"))
            self.texts = [archive.read(n) for n in names]
        self.sizes = [len(t) for t in self.texts]
        self.words = (HERE / "words.txt").read_bytes().split()


class Source:
    """Random material of one sequence; letters and digits come from pools because single draws are slow."""

    POOL = 8192

    def __init__(self, corpus: Corpus, seed: list[int]) -> None:
        self.corpus = corpus
        self.bulk = np.random.default_rng(seed)
        self.rng = random.Random(int(self.bulk.integers(1 << 62)))
        self.pools: dict[int, tuple[bytes, int]] = {}

    def draw(self, low: int, high: int, n: int) -> bytes:
        pool, at = self.pools.get(low, (b"", 0))
        if at + n > len(pool):
            pool, at = self.bulk.integers(low, high, self.POOL, np.uint8).tobytes(), 0
        self.pools[low] = (pool, at + n)
        return pool[at:at + n]

    def digits(self) -> bytes:
        return self.draw(48, 58, 6)

    def letters(self, low: int, high: int) -> bytes:
        return self.draw(97, 123, self.rng.randint(low, high))

    def text(self, n: int) -> bytes:
        """n bytes of running text, sometimes two passages, sometimes lines of a log or a table."""
        kind = self.rng.random()
        if kind < 0.06:
            return self.log(n)
        if kind < 0.25 and n > 64:
            cut = self.rng.randrange(1, n)
            return self.passage(cut) + self.passage(n - cut)
        return self.passage(n)

    def passage(self, n: int) -> bytes:
        text = self.rng.choices(self.corpus.texts, self.corpus.sizes)[0]
        at = self.rng.randrange(len(text) - n)
        return text[at:at + n]

    def log(self, n: int) -> bytes:
        style, lines, size = self.rng.randrange(3), [], 0
        while size < n:
            word = self.rng.choice(self.corpus.words)
            if style == 0:
                line = b"%s = %s.\n" % (self.letters(4, 8), self.digits())
            elif style == 1:
                line = b"[%s] %s %s: %d\n" % (self.digits(), word, self.letters(2, 9), self.rng.randrange(1000))
            else:
                line = b"%s %s%s" % (word, self.letters(1, 7), b"\n" if self.rng.random() < 0.1 else b" ")
            lines.append(line)
            size += len(line)
        return b"".join(lines)[:n]

    def needle_words(self, n: int, listed: float) -> list[bytes]:
        words: set[bytes] = set()
        while len(words) < n:
            words.add(self.rng.choice(self.corpus.words) if self.rng.random() < listed else self.letters(2, 12))
        return self.rng.sample(sorted(words), n)


def insertion_points(text: bytes, n: int, rng: random.Random) -> list[int]:
    points = [0] + [i + 1 for i, b in enumerate(text) if b == 32 or b == 10]
    return sorted(rng.sample(points, min(n, len(points))))


def needle(src: Source, size: int, count: int, listed: float = 1.0) -> Task:
    words = src.needle_words(count, listed)
    codes = [src.digits() for _ in words]
    inserted = sum(len(w) + 24 for w in words)
    text = src.text(max(0, size - 1 - inserted))
    parts: list[Part] = [(b"\0", 0)]
    questions, last = [], 0
    for at, word, code in zip(insertion_points(text, count, src.rng), words, codes):
        after = text[at - 1:at] if at else b"\n"
        parts += [(text[last:at], 1), (b"The code of ", 1), (word, 0), (b" is ", 1), (code, 0), (b".", 1), (after, 1)]
        questions.append(Question(b"\nThe code of ", word, b" is ", code + b"."))
        last = at
    parts.append((text[last:], 1))
    src.rng.shuffle(questions)
    return Task(parts, questions)


def padding(left: int) -> list[Part]:
    return [(b"\0", 0)] + ([(b"#" * (left - 1) + b"\n", 0)] if left else [])


def easy_keys(src: Source) -> Iterator[bytes]:
    while True:
        yield src.letters(4, 8)


def family_keys(src: Source) -> Iterator[bytes]:
    while True:
        stem, family = bytearray(src.letters(6, 6)), set()
        while len(family) < 8:
            at = src.rng.randrange(6)
            letter = src.draw(97, 123, 1)
            if letter[0] != stem[at]:
                family.add(bytes(stem[:at]) + letter + bytes(stem[at + 1:]))
        yield from src.rng.sample(sorted(family), 8)


def key_value(src: Source, size: int, hard: bool) -> Task:
    keys, left = {}, size - 1
    for key in (family_keys if hard else easy_keys)(src):
        if key in keys:
            continue
        if len(key) + 11 > left:
            break
        keys[key] = src.digits()
        left -= len(key) + 11
    order = src.rng.sample(list(keys), len(keys))
    parts = padding(left)
    for key in order:
        parts += [(key, 0), (b" = ", 1), (keys[key], 0), (b".\n", 1)]
    order_of_questions = src.rng.sample(order, len(order))
    return Task(parts, [Question(b"\n? ", k, b" = ", keys[k] + b".") for k in order_of_questions])


class Chain(NamedTuple):
    names: list[bytes]
    code: bytes

    def lines(self) -> list[tuple[bytes, bytes]]:
        return list(zip(self.names, [self.code] + self.names[:-1]))

    def written(self, hop: int) -> Question:
        answer = b" := ".join(self.names[hop - 1::-1] + [self.code]) + b"."
        return Question(b"\n> ", self.names[hop], b" := ", answer)

    def direct(self, hop: int) -> Question:
        return Question(b"\n? ", self.names[hop], b" = ", self.code + b".")


def fresh_names(src: Source, count: int, shortest: int, seen: set[bytes]) -> list[bytes]:
    names: list[bytes] = []
    while len(names) < count:
        name = src.letters(shortest, 6)
        if name not in seen:
            seen.add(name)
            names.append(name)
    return names


def chains(src: Source, size: int, low: int, high: int, shortest: int = 4, resolved: float = 0.0) -> tuple[list[Part], list[Chain]]:
    """Lines of chains with low..high hops; a share `resolved` of the references is followed by its value, in training only."""
    found: list[Chain] = []
    seen: set[bytes] = set()
    left = size - 1
    while True:
        names = fresh_names(src, src.rng.randint(low, high) + 1, shortest, seen)
        chain = Chain(names, src.digits())
        need = sum(len(a) + len(b) + 6 for a, b in chain.lines())
        if need > left:
            break
        found.append(chain)
        left -= need
    places = [i for i, c in enumerate(found) for _ in c.names]
    src.rng.shuffle(places)
    pending = [iter(c.lines()) for c in found]
    parts = padding(left)
    for i in places:
        name, value = next(pending[i])
        parts += [(name, 0), (b" := ", 1), (value, 0), (b".", 1)]
        if name != found[i].names[0] and src.rng.random() < resolved:
            parts.append((found[i].code + b".", ANSWER))
        parts.append((b"\n", 1))
    return parts, found


def trace(src: Source, size: int) -> Task:
    """Every chain's last variable, with the chain written out."""
    parts, found = chains(src, size, 2, 6)
    src.rng.shuffle(found)
    return Task(parts, [c.written(len(c.names) - 1) for c in found])


def training_trace(src: Source, size: int, recipe: Recipe) -> Task:
    """Both forms. Direct questions are learnt only with help: short chains, short names, and values after some references."""
    rng = src.rng
    longest = rng.choice(recipe.hops)
    longest = min(longest, 3) if size < 256 else longest
    parts, found = chains(src, size, 1 if longest < 6 else 2, longest, rng.choice((1, 4, 4)), rng.choice((0.0, 0.0, 0.7)))
    rng.shuffle(found)
    written = rng.choice(recipe.written)
    return Task(parts, [asked_in_training(rng, c, written) for c in found])


def asked_in_training(rng: random.Random, chain: Chain, written: float) -> Question:
    last = len(chain.names) - 1
    if rng.random() < written:
        return chain.written(last if rng.random() < 0.7 else rng.randint(1, last))
    return chain.direct(0 if rng.random() < 0.07 else rng.randint(1, min(3, last)))


def trace_direct(src: Source, size: int, hop: int) -> Task:
    parts, found = chains(src, size, 2, 6)
    able = [c for c in found if len(c.names) > hop]
    return Task(parts, [c.direct(hop) for c in src.rng.sample(able, len(able))])


def random_list(src: Source, n: int) -> bytes:
    items = b" ".join(src.letters(2, 6) for _ in range(n // 3 + 1))[:n]
    return items[:-1] + b"x" if items.endswith(b" ") else items


def repeat(src: Source, size: int, n: int) -> Task:
    items = random_list(src, n)
    left = size - 1 - n - 9
    front = src.rng.randint(0, left)
    parts = [(b"\0", 0), (src.text(front), 1), (b"\nList: ", 1), (items, 0), (b".\n", 1), (src.text(left - front), 1)]
    return Task(parts, [Question(b"\nList: ", b"", b"", items + b".")])


def scattered_needles(src: Source, size: int) -> list[Part]:
    """Sentences and questions mixed into running text, so that questions come after any text and at any depth."""
    count = max(1, size // src.rng.randint(160, 500))
    words = src.needle_words(count, 0.5)
    text = src.text(size)
    points = insertion_points(text, count, src.rng)
    question_points = sorted(src.rng.randrange(len(text)) for _ in range(2 * count))
    events = sorted([(at, 0) for at in points] + [(at, 1) for at in question_points])
    parts: list[Part] = [(b"\0", 0)]
    known: list[tuple[bytes, bytes]] = []
    last = 0
    for at, is_question in events:
        parts.append((text[last:at], 1))
        last = at
        if not is_question and words:
            word, code = words.pop(), src.digits()
            known.append((word, code))
            parts += [(b"The code of ", 1), (word, 0), (b" is ", 1), (code, 0), (b".", 1), (text[at - 1:at] if at else b"\n", 1)]
        elif is_question and known:
            word, code = src.rng.choice(known)
            parts += Question(b"\nThe code of ", word, b" is ", code + b".").parts
    parts.append((text[last:], 1))
    return parts


def row(task: Task, src: Source, size: int) -> list[Part]:
    """Context, then questions one after the other, then text up to the size."""
    parts = list(task.context)
    left = size - sum(len(p) for p, _ in parts)
    for question in task.questions:
        if left <= 0:
            break
        parts += question.parts
        left -= len(question.prompt) + len(question.answer)
    if left > 0:
        parts.append((b"\n" + src.text(left), 1))
    return parts


def training_parts(src: Source, size: int, kind: str, recipe: Recipe) -> list[Part]:
    rng = src.rng
    share = int(size * rng.uniform(0.5, 0.9))
    if kind == "needle":
        count = rng.randint(1, max(1, size // 120))
        return row(needle(src, max(64, size - 42 * rng.randint(1, count) - rng.randrange(32)), min(count, size // 120), 0.5), src, size)
    if kind == "scattered":
        return scattered_needles(src, size)
    if kind in ("easy", "hard"):
        return row(key_value(src, share, kind == "hard"), src, size)
    if kind == "trace":
        return row(training_trace(src, share, recipe), src, size)
    if kind == "repeat":
        n = rng.randint(max(16, size // 32), min(1024, int(size * 0.36)))
        slack = rng.choice((0, 0, rng.randint(0, size // 8)))
        return row(repeat(src, size - n - 9 - slack, n), src, size)
    return [(b"\0", 0), (src.text(size), 1)]


MIX = {"needle": 0.12, "scattered": 0.11, "easy": 0.08, "hard": 0.20, "trace": 0.28, "repeat": 0.12, "text": 0.09}
SHORT_MIX = {"needle": 0.09, "scattered": 0.09, "easy": 0.10, "hard": 0.15, "trace": 0.43, "repeat": 0.08, "text": 0.06}
RECIPES = {"direct": Recipe((1, 2, 3, 6), (0.1, 0.4), SHORT_MIX, MIX), "written": Recipe((2, 4, 6, 6), (0.6, 0.9), MIX, MIX)}


def sequence(corpus: Corpus, size: int, seed: list[int], recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    src = Source(corpus, seed)
    mix = recipe.short if size <= 513 else recipe.long
    kind = src.rng.choices(list(mix), list(mix.values()))[0]
    parts = training_parts(src, size, kind, recipe)
    joined = np.frombuffer(b"".join(p for p, _ in parts), np.uint8)
    weights = np.repeat(np.array([w for _, w in parts], np.uint8), [len(p) for p, _ in parts])
    assert len(joined) >= size, kind
    return joined[:size], weights[:size]


class Batches:
    """Batches number steps[i] as (bytes [n, length + 1], weights of the same shape); the same for any number of workers."""

    def __init__(self, corpus: Corpus, seed: int, length: int, tokens: int, steps: range, recipe: Recipe) -> None:
        self.corpus, self.seed, self.length, self.tokens, self.steps, self.recipe = corpus, seed, length, tokens, steps, recipe

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        step = self.steps[index]
        made = [sequence(self.corpus, self.length + 1, [self.seed, step, i], self.recipe) for i in range(self.tokens // self.length)]
        return np.stack([b for b, _ in made]), np.stack([w for _, w in made])
