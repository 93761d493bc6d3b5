# SPDX-License-Identifier: Apache-2.0
"""The states of layers that keep no keys and values: recurrent layers and convolutions."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from ..errors import ArgumentError, UnsupportedError
from ..step import StateMemory, Step
from .geometry import ModelLayers
from .state_shapes import StateTensor


class _Memory:
    """CUDA memory of lowkey, for torch.as_tensor()."""

    def __init__(self, place: StateMemory):
        self.__cuda_array_interface__ = {'shape': (place.n_bytes,), 'typestr': '|u1', 'data': (place.pointer, False),
                                         'version': 3}


def _view(place: StateMemory, state: StateTensor, device: torch.device) -> torch.Tensor:
    """The tensor of a state, in lowkey's memory."""
    with torch.inference_mode(False):  # else it could not be written outside of that mode
        if device.type == 'cuda':
            whole = torch.as_tensor(_Memory(place), device=device)
        else:
            whole = torch.frombuffer((ctypes.c_uint8 * place.n_bytes).from_address(place.pointer), dtype=torch.uint8)
        return whole[:state.n_bytes].view(state.dtype).view(state.shape)


class Places:
    """The tensors of the states of a step, in the memory of a cache of lowkey, where they stay for its life."""

    def __init__(self, device: torch.device):
        self._device = device
        self._views: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}
        self._copies: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}

    def view(self, step: Step, index: int, number: int, state: StateTensor) -> torch.Tensor:
        """The state of the sequence at an index of the step."""
        key = index, number, state.dtype
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = _view(step.state(index, number), state, self._device)
        return found.detach()  # a pass with gradients leaves no history in the other

    def copy(self, number: int, state: StateTensor, views: list[torch.Tensor], stays: bool) -> torch.Tensor:
        """A copy of a state of several prompts. One that stays has its memory for each size of a batch, for graphs."""
        if not stays:
            return torch.stack(views)
        key = len(views), number, state.dtype
        if key not in self._copies:
            with torch.inference_mode(False):
                self._copies[key] = torch.empty(len(views), *state.shape, dtype=state.dtype, device=self._device)
        found = self._copies[key].detach()
        for row, view in zip(found, views):
            row.copy_(view)
        return found


class States:
    """The states of a batch while a pass runs. Between passes they are in lowkey alone.

    In a pass of one prompt the layers of transformers have the memory of lowkey; in one of several they have copies,
    because a layer takes one tensor for all prompts.

    model   of the cache
    layers  of the cache, one for each of the model's
    """

    def __init__(self, model: ModelLayers, layers: list[Any]):
        self._model = model
        self._layers = {i: layers[i] for i in model.states}
        self._touched: set[int] = set()
        self._held: list[tuple[StateTensor, torch.Tensor, list[torch.Tensor | None]]] = []
        self.is_recording = False

    def __bool__(self) -> bool:
        """Whether the model has states."""
        return bool(self._layers)

    # Passes.

    def hold(self, step: Step, places: Places, states: list[StateTensor], indices: list[int | None],
             is_first: bool, stays: bool) -> None:
        """Give the layers the states before a pass.

        states    of a sequence
        indices   of each prompt in the step; None = it has no tokens in this pass
        is_first  whether no pass was before this one
        stays     whether graphs may hold the memory of the tensors
        """
        self.release()
        for number, state in enumerate(states):
            own = [None if i is None else places.view(step, i, number, state) for i in indices]
            first = next(view for view in own if view is not None)
            tensor = first[None] if len(own) == 1 else places.copy(
                number, state, [torch.zeros_like(first) if view is None else view for view in own], stays)
            self._held.append((state, tensor, own))
            self._layers[state.layer].hold(tensor, state.is_recurrent, not is_first)

    def touch(self, layer: int) -> None:
        """The pass has come to a layer."""
        self._touched.add(layer)

    def is_touched(self, layer: int) -> bool:
        """Whether the pass has come to a layer."""
        return layer in self._touched

    @property
    def all_touched(self) -> bool:
        """Whether the pass has come to every layer with states."""
        return len(self._touched) == len(self._layers)

    def is_last(self, layer: int, is_recurrent: bool) -> bool:
        """Whether a state is the last that a pass of several tokens updates."""
        return self.all_touched and layer == max(self._layers) and is_recurrent == self._held[-1][0].is_recurrent

    def check(self, layer: int, new: torch.Tensor, is_recurrent: bool) -> None:
        """Refuse new states of another shape or data type than the layer holds."""
        wanted = next(one for one, *_ in self._held if (one.layer, one.is_recurrent) == (layer, is_recurrent))
        shape = tuple(new.shape[1:] if is_recurrent else new.shape[1:-1])
        if shape != (wanted.shape if is_recurrent else wanted.shape[:-1]):
            raise UnsupportedError(f'layer {layer} of {self._model.kind} has a state of shape {list(new.shape[1:])}, '
                                   f'its configuration one of {list(wanted.shape)}')
        if new.dtype != wanted.dtype and not wanted.is_recurrent:
            raise ArgumentError(f'layer {layer} has a state in {new.dtype}, the cache was made for {wanted.dtype}: '
                                'give states_of() the data type that the model computes in')

    def store(self, n_removed: int) -> None:
        """Leave the states after the pass, without its last n_removed columns, in the memory of lowkey."""
        for state, tensor, own in self._held:
            after = self._layers[state.layer].after(state.is_recurrent, n_removed)
            if len(own) > 1 or after is not tensor:
                for view, row in zip(own, after.detach()):
                    if view is not None:
                        view.copy_(row)

    def release(self) -> None:
        """The layers have no states until the next pass."""
        for layer in self._layers.values():
            layer.release()
        self._held, self._touched = [], set()

    def record(self) -> None:
        """From now on convolutions keep all inputs of a pass until the next one, so that a part of it can be removed.
        Raises UnsupportedError (recurrent states)."""
        if self._model.recurrent:
            raise UnsupportedError(f'assisted generation removes parts of passes, and the recurrent states of '
                                   f'{self._model.kind} cannot go back to a token within a pass: generate without '
                                   'assistant_model and prompt_lookup_num_tokens')
        self.is_recording = bool(self._layers)

    def stop_recording(self) -> None:
        """Convolutions keep their last inputs alone."""
        self.is_recording = False
        for layer in self._layers.values():
            layer.record_past = False
