# SPDX-License-Identifier: Apache-2.0
"""Token ids of texts, for ``lowkey calibrate --token-ids``: that command runs a model and no tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .texts import Encoder, Text, make_cost_texts, probe_sentence, read_texts


def token_ids(tokenizer: Any, texts: Text | Iterable[Text] | None = None, *, text_tokens: int = 16384,
              cost_tokens: int = 2048, cost_documents: int = 2, seed: int = 1) -> str:
    """What a file for ``lowkey calibrate --token-ids`` holds: a line for each text, one for the sentence of the probe,
    and one for each document for costs, as plan() makes them.

    tokenizer       callable: tokenizer(text)["input_ids"]
    texts           a text or several; default: the text of the package
    text_tokens     most tokens of them
    cost_tokens     of each document for costs that are packed, ``--costs-tokens``; a quarter as many follow them
    cost_documents  of each kind of made-up text, ``--costs-documents``
    seed            of made-up texts

    Raises ArgumentError (texts shorter than a page)."""
    encoder = Encoder(tokenizer)
    documents = read_texts(texts, encoder, len(encoder.prefix) + text_tokens, text_tokens)
    costs = make_cost_texts(documents, encoder, cost_tokens + cost_tokens // 4, cost_documents, seed)
    lines = [('', ids) for ids in documents.passes]
    lines += [('sentence ', encoder.prefix + probe_sentence(encoder))]
    lines += [('cost ', encoder.prefix + text.ids) for text in costs]
    return ''.join(f'{word}{" ".join(map(str, ids))}\n' for word, ids in lines)
