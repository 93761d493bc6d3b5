# SPDX-License-Identifier: Apache-2.0
"""Chunks scored by embeddings: an encoder that counts letters in place of a model."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import lowkey
from lowkey import chunks
from lowkey.encoder import Encoder

TEXTS = ['aaab', 'bbba', 'cccc', 'abab']


class Letters:
    """Counts of the letters a, b and c; texts of other letters are vectors of zeros."""

    def __init__(self):
        self.batches = []

    def encode(self, texts, batch_size):
        self.batches.append(batch_size)
        return np.array([[text.count(letter) for letter in 'abc'] for text in texts], np.float32)


class OneShort(Letters):
    def encode(self, texts, batch_size):
        return super().encode(texts[1:], batch_size)


class WithKinds(Letters):
    """Documents and queries are encoded in two ways."""

    def encode_document(self, texts, batch_size):
        return self.encode([text.replace('a', 'c') for text in texts], batch_size)

    def encode_query(self, texts, batch_size):
        return self.encode(texts, batch_size)


def test_split_leaves_out_sinks_and_the_rest():
    assert chunks.split(range(10), 3, 2) == [[2, 3, 4], [5, 6, 7]]
    assert chunks.split(range(11), 3, 2)[-1] == [8, 9, 10]
    assert chunks.split(range(32)) == [] and len(chunks.split([7] * (32 + 12 * 32 + 31))) == 12
    for arguments in ((0, 2), (3, -1)):
        with pytest.raises(lowkey.ArgumentError):
            chunks.split(range(10), *arguments)


def test_scores_are_cosines():
    model = Letters()
    scores = Encoder(model, batch_size=3).scores(TEXTS, 'aab')
    counts, query = model.encode(TEXTS, 1), np.array([2, 1, 0])
    wanted = counts @ query / np.linalg.norm(counts, axis=1) / np.linalg.norm(query)
    assert np.allclose(scores, wanted, atol=1e-6) and model.batches[:2] == [3, 1]
    classes, _ = chunks.Quota(block_chunks=1, low_share=0.5, high_share=0.25).classes(scores)
    assert classes[int(np.argmax(wanted))] == 'high' and classes[2] == 'low'


def test_documents_and_queries_may_differ():
    assert Encoder(WithKinds()).scores(['aaa', 'bbb'], 'c')[0] == pytest.approx(1)


def test_misuse():
    with pytest.raises(lowkey.ArgumentError, match='batch_size is 0'):
        Encoder(Letters(), batch_size=0)
    for texts in ([], 'abc'):
        with pytest.raises(lowkey.ArgumentError, match='at least one string'):
            Encoder(Letters()).scores(texts, 'a')
    with pytest.raises(lowkey.DataError, match='3 embeddings of 4 texts'):
        Encoder(OneShort()).scores(TEXTS, 'a')
    with pytest.raises(lowkey.DataError):
        Encoder(Letters()).scores([*TEXTS, 'xyz'], 'a')


def test_names_are_loaded_by_sentence_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, 'sentence_transformers', None)
    with pytest.raises(lowkey.UnsupportedError, match=r'pip install lowkey\[encoder\]'):
        Encoder('a-model')
    loaded = []

    def load(name, device):
        loaded.append((name, device))
        if name == 'missing':
            raise OSError('no such model\nmore')
        return Letters()

    package = types.ModuleType('sentence_transformers')
    package.SentenceTransformer = load
    monkeypatch.setitem(sys.modules, 'sentence_transformers', package)
    assert Encoder('a-model', device='cpu').scores(['ab'], 'ab') == [pytest.approx(1)]
    with pytest.raises(lowkey.FileError, match='missing is no model .*: no such model$'):
        Encoder('missing')
    assert loaded == [('a-model', 'cpu'), ('missing', None)]
