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
        _pass(model, cache, torch.tensor([ids[at:at + chunk_tokens]], device=model.device), **last_logits(model))


def _pass(model: Any, cache: LowkeyCache, tokens: torch.Tensor, **options: Any) -> Any:
    """One pass. It names the positions, because Bamba would begin at 0 in each pass."""
    first = cache.get_seq_length()
    positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)[None]
    return model(tokens, position_ids=positions, past_key_values=cache, **options)


def scores(model: Any, cache: LowkeyCache, ids: list[int], chunk_tokens: int) -> Iterator[Score]:
    """Predict all tokens but the first one, in passes of at most chunk_tokens; all but the last one are appended."""
    for at in range(0, len(ids) - 1, chunk_tokens):
        yield _score(model, cache, ids[at:at + chunk_tokens + 1])


def _score(model: Any, cache: LowkeyCache, ids: list[int]) -> Score:
    """One pass."""
    tokens = torch.tensor([ids], device=model.device)
    found = _pass(model, cache, tokens[:, :-1]).logits[0].float()
    wanted = tokens[0, 1:].to(found.device)
    loss = torch.nn.functional.cross_entropy(found, wanted, reduction='sum')
    return Score(-float(loss), bool((found.argmax(-1) == wanted).all()), len(ids) - 1)
