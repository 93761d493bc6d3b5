# SPDX-License-Identifier: Apache-2.0
"""Perplexity of a text under a plan, in passes as short as those of a conversation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ArgumentError
from ..plan import Plan, PlanSpec, as_plan
from .cache import LowkeyCache
from .capture import frozen
from .geometry import geometry_of, layers_of, sink_logits_of
from .progress import Progress
from .scoring import scores
from .state_shapes import states_size
from .texts import Encoder, Text


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text under a plan.

    plan            its name
    perplexity      exp of the mean negative log-probability of a token
    n_tokens        tokens that were predicted
    bits_per_value  of a packed value, ranges and minima included
    cache_bytes     of a cache for one document, states included
    """

    plan: str
    perplexity: float
    n_tokens: int
    bits_per_value: float
    cache_bytes: int


def perplexity(model: Any, tokenizer: Any, text: Text, plan: str | Plan | PlanSpec = 'kitty-pro', *,
               chunk_tokens: int = 128, document_tokens: int = 4096, max_tokens: int | None = None,
               budget: int | str | None = None, progress: bool = True) -> Perplexity:
    """Score a text under a plan.

    text             a string, or token ids
    plan             a preset's name, the path of a plan's JSON, a Plan or a PlanSpec; "fp16" is the baseline
    chunk_tokens     tokens of a pass. A pass attends to its own tokens at 16 bits, so a chunk longer than the recent
                     tokens of the plan hides what packing does
    document_tokens  the text is read in documents of this length, each from its own beginning
    max_tokens       most tokens of the text; default: all
    budget           of the cache; default: what the plan takes for a document. A plan with ladders (PM-KVQ) shrinks
                     pages as a budget fills, so give it one
    progress         a bar on standard error, on a terminal

    Tokens of a document's first chunk count too, but for the very first."""
    encoder = Encoder(tokenizer)
    ids = encoder(text)[:max_tokens]
    n = document_tokens - len(encoder.prefix)
    if chunk_tokens < 1 or n < 2:
        raise ArgumentError(f'chunk_tokens is {chunk_tokens} and document_tokens {document_tokens}: there must be a '
                            'token to predict')
    documents = [encoder.prefix + ids[at:at + n] for at in range(0, len(ids), n)]
    documents = [own for own in documents if len(own) > 1]
    if not documents:
        raise ArgumentError(f'the text has {len(ids)} tokens: there is none to predict')
    if max(map(len, documents)) > chunk_tokens:
        layers_of(model.config).check_pass(chunk_tokens, chunk_tokens, 'give chunk_tokens=1')
    geometry = geometry_of(model.config, sink_logits=sink_logits_of(model))
    made = as_plan(plan, geometry)
    size = made.bytes(max(map(len, documents)), 1, chunk_tokens)
    cache_bytes = size.cache_bytes + states_size(model.config, 1, model.dtype)
    total = 0.0
    with Progress(progress) as bar, torch.no_grad(), frozen(model), \
            LowkeyCache(model.config, made, budget or cache_bytes, sink_logits=sink_logits_of(model),
                        max_sequences=1, max_step_tokens=chunk_tokens, state_versions=0) as cache:
        bar.start(f'perplexity under {made.name}', sum(map(len, documents)))
        for own in documents:
            cache.reset()
            for found in scores(model, cache, own, chunk_tokens):
                total -= found.log_prob
                bar.add(found.n_tokens)
    n_scored = sum(map(len, documents)) - len(documents)
    return Perplexity(made.name, math.exp(total / n_scored), n_scored, size.bits_per_value, cache_bytes)
