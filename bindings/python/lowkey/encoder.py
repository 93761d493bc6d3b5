# SPDX-License-Identifier: Apache-2.0
"""Scores of a context's chunks by embeddings of their text (Cocktail, arXiv 2503.23294), with sentence-transformers.

::

    from lowkey import chunks
    from lowkey.encoder import Encoder
    encoder = Encoder("sentence-transformers/all-MiniLM-L6-v2")
    texts = [tokenizer.decode(ids) for ids in chunks.split(context_ids)]
    scores = encoder.scores(texts, "Where is the white whale?")
    classes, _ = chunks.Quota().classes(scores)
    sequence.assign_chunks(n_context_tokens, classes, scores)

``pip install lowkey[encoder]`` gets sentence-transformers. An object of the caller's own with ``encode()`` needs no
package: ``Encoder(mine)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import chunks
from .errors import ArgumentError, DataError, FileError, UnsupportedError

DEFAULT = 'sentence-transformers/all-MiniLM-L6-v2'

__all__ = ['DEFAULT', 'Encoder']


class Encoder:
    """A model of sentence embeddings that scores texts by a question.

    The same model scores any number of contexts; it keeps nothing of them."""

    def __init__(self, model: Any = DEFAULT, *, device: str | None = None, batch_size: int = 32):
        """
        model       a name or folder of sentence-transformers, or an object whose encode(texts, batch_size=...) returns
                    embeddings [n_texts, n_channels] in host memory
        device      of a model that is loaded by name, for example "cuda"; None: chosen by sentence-transformers
        batch_size  texts that are encoded at once

        Raises UnsupportedError (sentence-transformers is missing), FileError (no such model), ArgumentError."""
        if batch_size < 1:
            raise ArgumentError(f'batch_size is {batch_size} and must be at least 1')
        self._model = _load(model, device) if isinstance(model, str) else model
        self._batch_size = batch_size

    def scores(self, texts: Sequence[str], query: str) -> list[float]:
        """The cosine of each text with the query, in the order of the texts.

        Raises ArgumentError (no texts), DataError (embeddings of another count, of zeros alone, or not finite)."""
        if isinstance(texts, str) or not texts:
            raise ArgumentError('texts must be a sequence of at least one string')
        # A query may have a prompt of its own; sentence-transformers names both kinds since 5.0.
        of_texts = getattr(self._model, 'encode_document', self._model.encode)
        of_query = getattr(self._model, 'encode_query', self._model.encode)
        embeddings = of_texts(list(texts), batch_size=self._batch_size)
        if len(embeddings) != len(texts):
            raise DataError(f'the encoder returned {len(embeddings)} embeddings of {len(texts)} texts')
        return chunks.cosine(embeddings, of_query([query], batch_size=1))


def _load(name: str, device: str | None) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise UnsupportedError('sentence-transformers is missing: `pip install lowkey[encoder]` gets it') from None
    try:
        return SentenceTransformer(name, device=device)
    except (OSError, ValueError) as error:
        raise FileError(f'{name} is no model that sentence-transformers loads: {str(error).splitlines()[0]}') from None
