# SPDX-License-Identifier: Apache-2.0
"""A tokenizer with a token for each letter, for the models of hf.py, a text, and how tests make plans of both."""

from __future__ import annotations

import pytest
from hf import COMMON


class Letters:
    """Ids are 2 and up; a BOS begins a text."""

    bos_token_id = COMMON['bos_token_id']

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        begin = [self.bos_token_id] if add_special_tokens else []
        return {'input_ids': begin + [2 + ord(letter) % (COMMON['vocab_size'] - 2) for letter in text]}


TEXT = ''.join(f'On day {i} the keeper wrote that {word} boats had passed and {word} of them came back. '
               for i, word in enumerate(('seven', 'nine', 'no', 'two', 'several', 'eleven') * 3))
QUICK = dict(texts=TEXT, text_tokens=400, cost_tokens=320, cost_documents=1, cost_samples=1, progress=False)


@pytest.fixture(autouse=True)
def short_probe(monkeypatch):
    """The time of a probe grows with the square of its length. A file that imports this has it in all tests."""
    monkeypatch.setattr('lowkey.transformers.sampling.PROBE_REPEATS', 4)
