# SPDX-License-Identifier: Apache-2.0
"""A tokenizer with a token for each letter, for the models of hf.py, and a text for it."""

from __future__ import annotations

from hf import COMMON


class Letters:
    """Ids are 2 and up; a BOS begins a text."""

    bos_token_id = COMMON['bos_token_id']

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        begin = [self.bos_token_id] if add_special_tokens else []
        return {'input_ids': begin + [2 + ord(letter) % (COMMON['vocab_size'] - 2) for letter in text]}


TEXT = ''.join(f'On day {i} the keeper wrote that {word} boats had passed and {word} of them came back. '
               for i, word in enumerate(('seven', 'nine', 'no', 'two', 'several', 'eleven') * 3))
