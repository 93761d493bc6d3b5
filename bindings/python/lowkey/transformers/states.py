# SPDX-License-Identifier: Apache-2.0
"""The states of layers that keep no keys and values: recurrent layers and convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import UnsupportedError
from .geometry import ModelLayers

# A layer of transformers keeps its states, and whether they are there, in dicts by the number of a state.
_Saved = dict[str, dict[int, Any]]


def _dicts(layer: Any) -> _Saved:
    return {name: own for name, own in vars(layer).items() if isinstance(own, dict)}


def _saved(layer: Any) -> _Saved:
    return _mapped(layer, torch.Tensor.clone)


def _mapped(layer: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> _Saved:
    return {name: {i: change(x) if isinstance(x, torch.Tensor) else x for i, x in own.items()}
            for name, own in _dicts(layer).items()}


def _restore(layer: Any, saved: _Saved) -> None:
    for name, own in saved.items():
        setattr(layer, name, dict(own))


def _bytes(saved: _Saved) -> int:
    return sum(x.nbytes for own in saved.values() for x in own.values() if isinstance(x, torch.Tensor))


class States:
    """The states of a batch, in the layers of transformers.

    A pass changes states in place. Those before it are kept until the next pass, so that a failed pass, or a crop of
    all its columns, can go back to them.

    model   of the cache
    layers  of the cache, one for each of the model's
    """

    def __init__(self, model: ModelLayers, layers: list[Any]):
        self._model = model
        self._layers = {i: layers[i] for i in model.states}
        self._empty = {i: _saved(layer) for i, layer in self._layers.items()}
        self._before: dict[int, _Saved] = {}
        self._in_pass = False
        self._pass_columns = 0  # of the last pass, to whose beginning _before goes back

    @property
    def n_bytes(self) -> int:
        """Bytes of the states, and of those before the last pass."""
        return sum(map(_bytes, (*self._before.values(), *map(_dicts, self._layers.values()))))

    # Passes.

    def begin(self) -> None:
        """A pass begins. A pass before it that has not ended has failed."""
        self.undo()
        self._before, self._in_pass = {}, True

    def touch(self, layer: int) -> None:
        """The pass is about to change a layer's states."""
        if layer not in self._before:
            self._before[layer] = _saved(self._layers[layer])

    @property
    def all_touched(self) -> bool:
        """Whether the pass has come to every layer with states."""
        return len(self._before) == len(self._layers)

    def end(self, n_columns: int) -> None:
        """The pass of n_columns columns ends."""
        if not self._in_pass:  # it had no beginning, so that nothing is known of the states before it
            self._before = {}
        self._in_pass, self._pass_columns = False, n_columns

    def undo(self) -> None:
        """Go back to the states before a pass that has not ended."""
        if self._in_pass:
            self._go_back()
            self._in_pass = False

    def _go_back(self) -> None:
        for i, saved in self._before.items():
            _restore(self._layers[i], saved)
        self._before = {}

    # The whole batch.

    def check_crop(self, n: int, n_columns: int) -> None:
        """Refuse to remove the last n of n_columns columns where no state is kept for what is left."""
        if not self._layers or n in (0, n_columns) or self._goes_back(n) or self._is_recorded(n, n_columns):
            return
        raise UnsupportedError(f'a crop of {n} columns: the states of {self._model.kind} can go back before the last '
                               f'pass ({self._pass_columns} columns) or to the beginning, and to no token between '
                               'them; reset() the cache, or keep a copy.deepcopy() of it from before')

    def crop(self, n: int, n_columns: int) -> None:
        """Remove the last n of n_columns columns, which check_crop() allowed."""
        if n and n == n_columns:
            self.reset()
        elif self._is_recorded(n, n_columns):
            for layer in self._layers.values():
                layer.crop(-n)
            self._before = {}
        elif n:
            self._go_back()

    def _goes_back(self, n: int) -> bool:
        return n == self._pass_columns and self.all_touched

    def _is_recorded(self, n: int, n_columns: int) -> bool:
        """Whether all states are convolutions that recorded the inputs of the last n columns and of the kernel before
        them, or all inputs."""
        return bool(self._layers) and not self._model.recurrent and all(
            layer.record_past and x is not None and x.shape[-1] >= min(n + layer.conv_kernel_size[i], n_columns)
            for layer in self._layers.values() for i, x in layer.conv_states.items())

    def check_recording(self) -> None:
        """Refuse what removes parts of passes, before it begins."""
        if self._model.recurrent:
            raise UnsupportedError(f'assisted generation removes parts of passes, and the recurrent states of '
                                   f'{self._model.kind} cannot go back to a token within a pass: generate without '
                                   'assistant_model and prompt_lookup_num_tokens')

    def reset(self) -> None:
        """Remove all states."""
        for i, layer in self._layers.items():
            _restore(layer, self._empty[i])
            layer.record_past = False
        self._before, self._in_pass = {}, False

    def select(self, kept: list[int]) -> None:
        """Keep the states of these rows of the batch, in this order."""
        for layer in self._layers.values():
            _restore(layer, _mapped(layer, lambda x: x.index_select(0, torch.tensor(kept, device=x.device))))
        self._before = {}

    def copy_to(self, other: States) -> None:
        """Give another cache of the model copies of the states."""
        for i, layer in self._layers.items():
            _restore(other._layers[i], _saved(layer))
            for name in ('device', 'dtype', 'record_past'):
                setattr(other._layers[i], name, getattr(layer, name))
