# SPDX-License-Identifier: Apache-2.0
"""Passes that a model repeats, because a crop went back to states before them."""

from __future__ import annotations

import inspect
import weakref
from typing import TYPE_CHECKING, Any

import torch

from .capture import last_logits

if TYPE_CHECKING:
    from .cache import LowkeyCache

# Arguments of a forward pass that the result does not depend on, or that a repetition has of its own.
_OWN = ('input_ids', 'position_ids', 'attention_mask', 'past_key_values', 'cache_position', 'use_cache', 'labels',
        'logits_to_keep', 'return_dict', 'output_attentions', 'output_hidden_states')


class Repeats:
    """The tokens and positions of a cache's passes, for a model that was given with it.

    model  runs on the cache
    owner  the cache
    """

    def __init__(self, model: torch.nn.Module, owner: LowkeyCache):
        self.model = model
        self._owner = weakref.ref(owner)
        self._parameters = inspect.signature(model.forward)
        self._heard: tuple[torch.Tensor, torch.Tensor] | None = None  # of the forward pass that runs
        self._given: tuple[torch.Tensor, torch.Tensor] | None = None  # of the pass whose step is open
        self._first = 0  # the column that the next two begin at
        self._ids = self._positions = torch.zeros(0, 0, dtype=torch.long)
        self._most_tokens = 1  # of a pass
        self.end = weakref.finalize(owner, _remove, [
            model.register_forward_pre_hook(self._hear, with_kwargs=True),
            model.register_forward_hook(self._forget, always_call=True)])

    def _hear(self, _: torch.nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A forward pass of the model begins, over this cache or another."""
        given = self._parameters.bind_partial(*positional, **named).arguments
        given |= given.pop('kwargs', {})
        owner = self._owner()
        n_before = 0 if owner is None else owner.n_columns
        if owner is None or given.get('past_key_values') is not owner:
            return
        ids, positions = given.get('input_ids'), given.get('position_ids')
        if ids is None or any(isinstance(x, torch.Tensor) for name, x in given.items() if name not in _OWN):
            return
        if positions is None:
            positions = torch.arange(n_before, n_before + ids.shape[1])[None]
        if positions.ndim == 2:
            self._heard = ids.cpu(), positions.cpu().expand(*ids.shape)

    def _forget(self, *_: Any) -> None:
        """A forward pass of the model has ended."""
        self._heard = None

    def begin(self) -> None:
        """A step of the forward pass that runs begins."""
        self._given = self._heard

    def add(self, first: int, n_columns: int) -> None:
        """The first n_columns of the open step were committed, after so many others."""
        if self._given is None or len(self._given[0]) != len(self._ids) or first != self._first + self._ids.shape[1]:
            self._first = first
            self._ids = self._positions = torch.zeros(0 if self._given is None else len(self._given[0]), 0,
                                                      dtype=torch.long)
        if self._given is None:
            self._first += n_columns
            return
        (ids, positions), self._given = self._given, None
        self._most_tokens = max(self._most_tokens, ids.numel())
        self._ids, self._positions = (torch.cat([old, new[:, :n_columns]], 1)
                                      for old, new in ((self._ids, ids), (self._positions, positions)))

    def cut(self, n_columns: int) -> None:
        """Columns from this one on are removed."""
        n = max(n_columns - self._first, 0)
        self._ids, self._positions, self._first = self._ids[:, :n], self._positions[:, :n], min(self._first, n_columns)

    def select(self, rows: list[int]) -> None:
        """The batch has these prompts from now on."""
        if len(self._ids):
            self._ids, self._positions = self._ids[rows], self._positions[rows]

    def copy_to(self, other: Repeats) -> None:
        """A copy of the cache has the same tokens."""
        other._first, other._most_tokens = self._first, self._most_tokens
        other._ids, other._positions = self._ids, self._positions

    def has(self, first: int, end: int) -> bool:
        """Whether the columns can be repeated."""
        return self._first <= first and end <= self._first + self._ids.shape[1]

    def run(self, cache: LowkeyCache, real: torch.Tensor, first: int) -> None:
        """Compute columns again, from the first one on.

        real  [batch, n_columns] which columns are tokens, to the last one of them
        """
        device = next(self.model.parameters()).device
        ids, positions = (x[:, first - self._first:real.shape[1] - self._first].to(device)
                          for x in (self._ids, self._positions))
        most = max(self._most_tokens // len(real), 1)
        at = 0
        cache._cut(first)
        with torch.no_grad():
            while at < ids.shape[1]:
                n = 1 if cache.model_layers.restarts and first + at else most
                end = min(at + n, ids.shape[1])
                self.model(input_ids=ids[:, at:end], position_ids=positions[:, at:end],
                           attention_mask=real[:, :first + end].to(device).long(), past_key_values=cache,
                           use_cache=True, **last_logits(self.model))
                at = end
        cache.commit()


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()
