# SPDX-License-Identifier: Apache-2.0
"""The cache of lowkey that a LowkeyCache and its copies share."""

from __future__ import annotations

import sys
import warnings
import weakref
from typing import TYPE_CHECKING

from ..cache import Cache, Sequence
from ..context import Context
from ..errors import ArgumentError
from ..plan import Geometry, Plan
from ..step import Step
from .graph import DecodeGraphs
from .state_shapes import StateTensor
from .states import Places

if TYPE_CHECKING:
    import torch

    from .cache import LowkeyCache

_LEAST_SEQUENCES, _LEAST_STEP_TOKENS = 8, 2048


def _computes_all_logits() -> bool:
    """Whether the pass that is running was begun by a model's forward() that returns logits of all tokens."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == 'forward' and 'logits_to_keep' in frame.f_locals:
            kept = frame.f_locals['logits_to_keep']
            return isinstance(kept, int) and kept == 0
        frame = frame.f_back  # type: ignore[assignment]
    return False


class Store:
    """The cache of lowkey that a LowkeyCache and its copies share. The last of them to close ends it.

    max_sequences    given by the user; None = at least _LEAST_SEQUENCES, and twice the first batch
    max_step_tokens  given by the user; None = at least _LEAST_STEP_TOKENS, and those of the first pass
    state_versions   of lowkey.Cache
    state_interval   of lowkey.Cache
    """

    def __init__(self, plan: Plan, budget: int | str, geometry: Geometry, max_sequences: int | None,
                 max_step_tokens: int | None, state_versions: int, state_interval: int):
        self.plan, self.budget, self.geometry = plan, budget, geometry
        self.given_sequences, self.given_step_tokens = max_sequences, max_step_tokens
        self.max_sequences = self.max_step_tokens = 0
        self.state_versions, self.state_interval = state_versions, state_interval
        self.states: list[StateTensor] = []  # of a sequence
        self.places: Places | None = None
        self.context: Context | None = None
        self.cache: Cache | None = None
        self.own_context = self.own_cache = True
        self.n_users = 1
        self.step: Step | None = None
        self.in_pass: weakref.ref[LowkeyCache] | None = None  # whose pass the step is
        self.graphs: DecodeGraphs | None = None
        self.abandoned: list[Sequence] = []  # of copies that nobody closed
        packs = plan.bytes(2**14).bits_per_value < 16  # not by classes of chunks, which the host assigns
        self.recent_tokens = plan.recent_tokens if packs else 2**63
        self._warned = False

    def open(self, batch: int, n_tokens: int, states: list[StateTensor]) -> Cache:
        """The cache, opened for the first pass; opened anew for a larger one while it holds no sequence."""
        if self.cache is not None and self.own_cache and not self.cache.stats().n_sequences and (
                batch > self.max_sequences or n_tokens > self.max_step_tokens or states != self.states):
            self._drop_graphs()
            self.cache.close()
            self.cache = None
        if self.cache is None:
            assert self.context is not None
            self.max_sequences = self.given_sequences or max(_LEAST_SEQUENCES, 2 * batch)
            self.max_step_tokens = self.given_step_tokens or max(_LEAST_STEP_TOKENS, n_tokens)
            self.cache = Cache(self.context, self.plan, self.budget, geometry=self.geometry,
                               max_sequences=self.max_sequences, max_step_tokens=self.max_step_tokens,
                               states=[state.slot_bytes for state in states], state_versions=self.state_versions,
                               state_interval=self.state_interval)
            self.states, self.places = states, None
        if self.own_cache and n_tokens > self.max_step_tokens:
            raise ArgumentError(f'a forward pass of {n_tokens} tokens, the cache takes {self.max_step_tokens}: give '
                                f'LowkeyCache max_step_tokens={n_tokens}, or generate() '
                                f'prefill_chunk_size={self.max_step_tokens // batch or 1}')
        return self.cache

    def _drop_graphs(self) -> None:
        """Before the cache ends that they write to."""
        if self.graphs is not None:
            self.graphs.clear()

    def begin(self, owner: LowkeyCache, step: Step) -> None:
        """A step begins, of a pass of the owner."""
        self.step, self.in_pass = step, weakref.ref(owner)

    def places_on(self, device: torch.device) -> Places:
        """The places of the states of the open cache, on its device."""
        if self.places is None:
            self.places = Places(device)
        return self.places

    def drop_step(self) -> None:
        """End the pass that is open, and remove what copies left."""
        owner = None if self.in_pass is None else self.in_pass()
        if owner is not None:
            owner._settle()
        elif self.step is not None and self.step.open:
            self.step.discard()
        self.step = self.in_pass = None
        while self.abandoned:
            self._remove(self.abandoned.pop())

    def warn_of_scores(self, n_tokens: int) -> None:
        """Warn once of a long pass that computes the logits of all its tokens: scores of it show no packing."""
        if self._warned or n_tokens <= self.recent_tokens or not _computes_all_logits():
            return
        self._warned = True
        warnings.warn(f'a pass of {n_tokens} tokens computes the logits of all of them, but attends to its own tokens '
                      f'at 16 bits, and the plan packs after {self.recent_tokens}: scores of such a pass look lossless '
                      'under any plan. Score in shorter passes, as lowkey.transformers.perplexity() does, or give a '
                      'prompt logits_to_keep=1', UserWarning, stacklevel=2)

    def _remove(self, sequence: Sequence) -> None:
        if self.cache is not None and not self.cache.closed:
            sequence.remove()

    def abandon(self, sequences: list[Sequence]) -> None:
        """Remember the sequences of a collected copy. The garbage collector may run within any call."""
        self.n_users -= 1
        self.abandoned += sequences

    def leave(self, sequences: list[Sequence]) -> None:
        """End one user, whose sequences these are, and the cache with the last one."""
        try:
            self.drop_step()
        finally:
            self._leave(sequences)

    def _leave(self, sequences: list[Sequence]) -> None:
        self.n_users -= 1
        if not self.n_users:
            self._drop_graphs()
        if self.n_users or not self.own_cache:
            for sequence in sequences:
                self._remove(sequence)
        elif self.cache is not None:
            self.cache.close()
        if not self.n_users and self.own_context and self.context is not None:
            self.context.close()
