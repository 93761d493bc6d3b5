# SPDX-License-Identifier: Apache-2.0
"""Texts for calibration: the user's or the package's, and those that are made to measure costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ArgumentError

Text = Any  # a str, or token ids: a list or a tensor
PAGE_TOKENS = 128
# The beginning of a probe, which goes on with sentences of the package's text until it has PROBE_TOKENS tokens.
_SENTENCE = ('The river runs slowly past the old mill, and on quiet mornings a thin mist lies over the green '
             'fields. ')
PROBE_TOKENS = 96
_LETTERS = 16  # of a token at most, so that a long file is not read to its end
_MASK = 2**64 - 1


def shipped_text() -> str:
    """The text of the package, for models without a text of their own."""
    return Path(__file__).with_name('calibration.txt').read_text(encoding='utf-8')


def ids_of(text: Text, tokenizer: Any) -> list[int]:
    """The token ids of a text."""
    if isinstance(text, str):
        if tokenizer is None:
            raise ArgumentError('texts are strings: give the tokenizer')
        text = tokenizer(text)['input_ids']
    return [int(token) for token in (text.tolist() if hasattr(text, 'tolist') else text)]


class Encoder:
    """A tokenizer with the tokens that begin a text (a BOS) apart from the others."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self.prefix: list[int] = []
        if tokenizer is not None:
            first, bos = ids_of('a', tokenizer)[:1], getattr(tokenizer, 'bos_token_id', None)
            self.prefix = first if bos is not None and first == [bos] else []

    def __call__(self, text: Text) -> list[int]:
        """Token ids without the prefix. Ids that are given pass as they are."""
        if not isinstance(text, str):
            return ids_of(text, None)
        if self._tokenizer is None:
            raise ArgumentError('texts are strings: give the tokenizer')
        try:
            found = self._tokenizer(text, add_special_tokens=False)
        except TypeError:  # a function of the user's
            found = self._tokenizer(text)
        ids = ids_of(found['input_ids'], None)
        n = len(self.prefix)
        return ids[n:] if n and ids[:n] == self.prefix else ids


class Documents(NamedTuple):
    """Texts as a model reads them, and how many of a document's first tokens are the prefix."""

    passes: list[list[int]]
    running: list[int]  # all tokens in a row, for costs
    words: str  # a text whose words made-up texts may use


def passes_of(ids: list[int], prefix: list[int], document_tokens: int) -> list[list[int]]:
    """Tokens in parts of at most document_tokens tokens, each after the prefix; none of a single token."""
    n = document_tokens - len(prefix)
    return [prefix + ids[at:at + n] for at in range(0, len(ids), n) if len(ids) - at > 1]


def read_texts(texts: Text | Iterable[Text] | None, encoder: Encoder, document_tokens: int,
               most_tokens: int) -> Documents:
    """Cut texts into documents of at most document_tokens tokens, the prefix included, and most_tokens in all.

    texts  a text, several texts, or None for the package's own"""
    chosen = _listed(shipped_text() if texts is None else texts)
    if document_tokens < 2 + len(encoder.prefix):
        raise ArgumentError(f'document_tokens is {document_tokens}, must be at least {2 + len(encoder.prefix)}')
    passes: list[list[int]] = []
    running: list[int] = []
    for text in chosen:
        left = most_tokens - len(running)
        ids = encoder(text[:_LETTERS * left] if isinstance(text, str) else text)[:left]
        passes += passes_of(ids, encoder.prefix, document_tokens)
        running += ids
    longest = max(map(len, passes), default=0)
    if longest < min(PAGE_TOKENS, document_tokens):
        raise ArgumentError(f'the longest text has {longest} tokens, a page has {PAGE_TOKENS}: give longer texts')
    return Documents(passes, running, ' '.join(text for text in chosen if isinstance(text, str)))


def _listed(texts: Text | Iterable[Text]) -> list[Text]:
    if isinstance(texts, str):
        return [texts]
    if hasattr(texts, 'tolist'):  # one tensor of ids, or a batch of them
        texts = texts.tolist()
    chosen = list(texts)
    return [chosen] if chosen and isinstance(chosen[0], int) else chosen


def probe_sentence(encoder: Encoder) -> list[int]:
    """About a hundred tokens of plain sentences."""
    ids, sentences = encoder(_SENTENCE), iter(re.findall(r'[A-Z][^.\n]*\. ', shipped_text()))
    while len(ids) < PROBE_TOKENS:
        ids = ids + encoder(next(sentences))
    return ids


class CostText(NamedTuple):
    """A document for costs, and the kind of its text."""

    kind: str
    ids: list[int]


class Random:
    """The generator of `lowkey calibrate` (splitmix64), so that equal words and seeds give equal texts."""

    def __init__(self, seed: int):
        self._state = seed

    def below(self, n: int) -> int:
        self._state = z = (self._state + 0x9e3779b97f4a7c15) & _MASK
        z = ((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & _MASK
        return (z ^ (z >> 31)) % n

    def shuffle(self, items: list[Any]) -> None:
        for i in range(len(items), 1, -1):
            j = self.below(i)
            items[i - 1], items[j] = items[j], items[i - 1]

    def digits(self) -> str:
        return ''.join(chr(ord('0') + self.below(10)) for _ in range(6))


_LIST_WORDS, _COPIES, _KEYS, _CHAINS, _CHAIN_WORDS = 60, 4, 40, 20, 3


def words_of(text: str) -> list[str]:
    """Distinct lower-case words of 3 to 8 letters, as they come."""
    return list(dict.fromkeys(word for word in re.findall(r'[a-z]+', text) if 3 <= len(word) <= 8))


def _sample(words: list[str], n: int, random: Random) -> list[str]:
    every = list(words)
    random.shuffle(every)
    return every[:n]


def _repeated_list(words: list[str], random: Random) -> str:
    return (' '.join(words[random.below(len(words))] for _ in range(_LIST_WORDS)) + '. ') * _COPIES


def _repeated_values(words: list[str], random: Random) -> str:
    lines = [f'{key}: {random.digits()}.\n' for key in _sample(words, _KEYS, random)]
    out = ''
    for _ in range(_COPIES):
        random.shuffle(lines)
        out += ''.join(lines)
    return out


def _assignments(words: list[str], random: Random) -> str:
    """Chains of words that refer to the word before, mixed; then the value of each word."""
    names = _sample(words, _CHAINS * _CHAIN_WORDS, random)
    chains, values, order = [], [], []
    for c in range(_CHAINS):
        number, own = random.digits(), names[c * _CHAIN_WORDS:(c + 1) * _CHAIN_WORDS]
        chains.append([f'{name} := {before}.\n' for name, before in zip(own, [number, *own])])
        values += [f'{name} = {number}.\n' for name in own]
        order += [c] * _CHAIN_WORDS
    random.shuffle(order)
    random.shuffle(values)
    return ''.join([chains[c].pop(0) for c in order] + values)


def make_cost_texts(documents: Documents, encoder: Encoder, n_tokens: int, n_documents: int,
                    seed: int) -> list[CostText]:
    """The four kinds of texts of docs/costs.md, n_documents of n_tokens tokens of each."""
    words, random = words_of(documents.words), Random(seed)
    if len(words) < _CHAINS * _CHAIN_WORDS:  # a text of few words, of another script or of ids
        words = words_of(documents.words + shipped_text())
    kinds: list[tuple[str, Callable[[], list[int]]]] = [
        ('running text', lambda: documents.running * -(-n_tokens // len(documents.running))),
        ('repeated words', lambda: encoder(_repeated_list(words, random))),
        ('values of words', lambda: encoder(_repeated_values(words, random))),
        ('assignments', lambda: encoder(_assignments(words, random)))]
    out = []
    for kind, make in kinds:
        for _ in range(n_documents):
            ids: list[int] = []
            while len(ids) < n_tokens:
                ids = ids + make()
            begin = random.below(len(ids) - n_tokens + 1)  # not every document begins with a list
            out.append(CostText(kind, ids[begin:begin + n_tokens]))
    return out


def read_cost_texts(texts: Text | Iterable[Text], encoder: Encoder, n_tokens: int) -> list[CostText]:
    """The caller's texts, cut to n_tokens tokens. Raises ArgumentError when one is shorter."""
    out = []
    for i, text in enumerate(_listed(texts)):
        ids = encoder(text)
        if len(ids) < n_tokens:
            raise ArgumentError(f'cost text {i} has {len(ids)} tokens, a document of costs needs {n_tokens}: give a '
                                'longer one, or fewer cost_tokens')
        out.append(CostText('given text', ids[:n_tokens]))
    if not out:
        raise ArgumentError('cost_texts is empty')
    return out
