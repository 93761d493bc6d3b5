# SPDX-License-Identifier: Apache-2.0
"""Texts through a LowkeyCache in passes as short as those of a conversation, and the model's predictions of them.

A pass attends to its own tokens at 16 bits, so one pass over a whole text would look lossless under any plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .cache import LowkeyCache
from .capture import last_logits


class Score(NamedTuple):
    """How well a model predicted the tokens of a pass.

    log_prob   the sum of their log-probabilities, natural logarithm
    is_greedy  whether each was the most likely token
    n_tokens   tokens that were predicted
    """

    log_prob: float
    is_greedy: bool
    n_tokens: int


def read(model: Any, cache: LowkeyCache, ids: list[int], chunk_tokens: int) -> None:
    """Append tokens to a cache of one sequence, in passes of at most chunk_tokens, without their predictions."""
    for at in range(0, len(ids), chunk_tokens):
        model(torch.tensor([ids[at:at + chunk_tokens]], device=model.device), past_key_values=cache,
              **last_logits(model))


def scores(model: Any, cache: LowkeyCache, ids: list[int], chunk_tokens: int) -> Iterator[Score]:
    """Predict all tokens but the first one, in passes of at most chunk_tokens; all but the last one are appended."""
    for at in range(0, len(ids) - 1, chunk_tokens):
        yield _score(model, cache, ids[at:at + chunk_tokens + 1])


def _score(model: Any, cache: LowkeyCache, ids: list[int]) -> Score:
    """One pass."""
    tokens = torch.tensor([ids], device=model.device)
    found = model(tokens[:, :-1], past_key_values=cache).logits[0].float()
    wanted = tokens[0, 1:].to(found.device)
    loss = torch.nn.functional.cross_entropy(found, wanted, reduction='sum')
    return Score(-float(loss), bool((found.argmax(-1) == wanted).all()), len(ids) - 1)
