# SPDX-License-Identifier: Apache-2.0
"""The model "lowkey" of lm-evaluation-harness: a model of transformers on a LowkeyCache."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm

from ..context import Context
from ..errors import ArgumentError
from ..plan import Plan, PlanSize, PlanSpec, as_plan
from ..transformers import LowkeyCache, geometry_of, layers_of, sink_logits_of
from ..transformers.capture import check_free, frozen
from ..transformers.scoring import scores
from ..transformers.state_shapes import states_size
from .contexts import MOST_KEPT, SharedContexts

_Request = tuple[Any, list[int], list[int]]  # what the harness calls it (or None), context, continuation


@register_model('lowkey')
class LowkeyLM(HFLM):
    """The harness's own model of transformers, "hf", with the tokens of every request in a LowkeyCache.

    pretrained    a model's directory, a name that transformers knows, or a loaded model, for which tokenizer is needed
    plan          a preset's name, the path of a plan's JSON, a Plan or a PlanSpec
    chunk_tokens  most tokens of a pass. A pass attends to its own tokens at 16 bits, so a pass longer than the recent
                  tokens of the plan hides what packing does
    budget        of the cache; default: what the plan takes for the longest request. A plan with ladders (PM-KVQ)
                  shrinks pages as a budget fills, so give it one
    batch_size    1, or "auto" for 1: requests run one after another

    More options are those of "hf". Prompts, truncation, rolling windows, chat templates and stop sequences are the
    harness's. A context is read in passes of chunk_tokens, and contexts that begin alike are read once and forked;
    with a budget of the caller's only equal ones are, so that pages shrink as they would for one conversation.

    Raises ArgumentError, NotFoundError, MismatchError (the plan), UnsupportedError (the model's layers).
    """

    def __init__(self, pretrained: Any, plan: str | os.PathLike[str] | Plan | PlanSpec = 'kitty-pro', *,
                 chunk_tokens: int = 128, budget: int | str | None = None, batch_size: int | str | None = 1,
                 **options: Any):
        if chunk_tokens < 1:
            raise ArgumentError(f'chunk_tokens is {chunk_tokens}, must be at least 1')
        if str(batch_size or 1) not in ('1', 'auto'):
            raise ArgumentError(f'batch_size is {batch_size}: requests run one after another, give 1')
        super().__init__(pretrained=pretrained, backend='causal', batch_size=1, **options)
        check_free(self.model)
        layers_of(self.model.config).check_pass(chunk_tokens, chunk_tokens, 'give chunk_tokens=1')
        self.chunk_tokens, self._budget = int(chunk_tokens), budget
        self._sinks = sink_logits_of(self.model)
        self.plan = as_plan(plan, geometry_of(self.model.config, sink_logits=self._sinks))
        self._context: Context | None = None
        self.n_tokens, self.longest_tokens, self.seconds = 0, 0, 0.0

    def size(self) -> PlanSize:
        """The bytes of a cache for the longest request so far, states included."""
        size = self.plan.bytes(max(self.longest_tokens, 1), 1, self.chunk_tokens)
        return dataclasses.replace(size, cache_bytes=size.cache_bytes + self._states_size(1))

    def _states_size(self, n_sequences: int) -> int:
        return states_size(self.model.config, n_sequences, self.model.dtype)

    def close(self) -> None:
        """Free what is kept between requests. Twice is fine; the next request takes it again."""
        if self._context is not None:
            self._context.close()
            self._context = None

    # Called by the harness.

    def _loglikelihood_tokens(self, requests: list[_Request], disable_tqdm: bool = False,
                              **_: Any) -> list[tuple[float, bool]]:
        inputs = [self._input(context, continuation) for _, context, continuation in requests]
        order = sorted(range(len(requests)), key=inputs.__getitem__)
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        longest = max((len(context) + len(scored) for context, scored in inputs), default=1)
        kept = 0 if self._budget is not None else MOST_KEPT
        groups = [list(equal) for _, equal in itertools.groupby(order, lambda i: inputs[i][0])]
        with self._cache(longest, kept + 2) as root, \
                tqdm(total=len(requests), disable=disable_tqdm or len(requests) < 2,
                     desc=f'log-likelihoods, {self.plan.name}') as bar:
            shared = SharedContexts(self.model, root, self.chunk_tokens, kept)
            with closing(shared.each([inputs[equal[0]][0] for equal in groups])) as caches:
                for cache, equal in zip(caches, groups):
                    for i in equal:
                        answers[i] = self._predict(cache, inputs[i][1], is_last=i == equal[-1])
                        if requests[i][0] is not None:
                            self.cache_hook.add_partial('loglikelihood', requests[i][0], answers[i])
                        bar.update()
            self.n_tokens += shared.n_read
        self.longest_tokens = max(self.longest_tokens, longest)
        return answers

    def _model_generate(self, context: torch.Tensor, max_length: int, stop: list[str], **options: Any) -> Any:
        n_beams = int(options.get('num_beams') or 1)
        with self._cache(max_length, n_beams if n_beams == 1 else 2 * n_beams, n_beams) as cache:
            found = super()._model_generate(context, max_length, stop, past_key_values=cache,
                                            prefill_chunk_size=self.chunk_tokens, **options)
        self.n_tokens += found.shape[-1]
        self.longest_tokens = max(self.longest_tokens, found.shape[-1])
        return found

    # Its parts.

    def _input(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """The tokens to read, and the tokens to score after them, the first of which is only the one before; cut on the
        left to the model's length, as "hf" does."""
        if not context or not continuation or len(continuation) > self.max_length:
            raise ArgumentError(f'a request has a context of {len(context)} tokens and a continuation of '
                                f'{len(continuation)}: each must have one, and the model reads {self.max_length}')
        ids = (context + continuation)[-(self.max_length + 1):]
        n = len(ids) - len(continuation) - 1
        return ids[:n], ids[n:]

    def _predict(self, cache: LowkeyCache, ids: list[int], *, is_last: bool) -> tuple[float, bool]:
        """Log-likelihood of all tokens but the first one, and whether they are the most likely ones. The cache keeps
        its tokens, unless it is used for the last time."""
        own = cache if is_last else copy.deepcopy(cache)
        try:
            found = list(scores(self.model, own, ids, self.chunk_tokens))
        finally:
            if own is not cache:
                own.close()
        self.n_tokens += len(ids) - 1
        return sum(one.log_prob for one in found), all(one.is_greedy for one in found)

    @contextmanager
    def _cache(self, n_tokens: int, n_sequences: int, batch: int = 1) -> Iterator[LowkeyCache]:
        """A cache for n_sequences sequences of n_tokens tokens, on which the model runs; its time counts."""
        if self._context is None:
            device = torch.device(self.model.device)
            threads = torch.get_num_threads() if device.type == 'cpu' else 0
            self._context = Context(device.type, device.index or 0, n_threads=threads)
        # One sequence more than there are: steps that are not of chunk_tokens take more bytes on their way.
        n_bytes = self.plan.bytes(n_tokens, n_sequences + 1, self.chunk_tokens).cache_bytes
        n_bytes += self._states_size(n_sequences)
        started = time.monotonic()
        with torch.no_grad(), frozen(self.model), \
                LowkeyCache(self.model.config, self.plan, self._budget or n_bytes, sink_logits=self._sinks,
                            max_sequences=n_sequences, max_step_tokens=batch * self.chunk_tokens,
                            context=self._context, state_versions=0) as cache:
            yield cache
        self.seconds += time.monotonic() - started
