# SPDX-License-Identifier: Apache-2.0
"""Decode steps of a model from CUDA graphs: one launch in place of the calls of all layers."""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import Error, StateError

if TYPE_CHECKING:
    from .cache import LowkeyCache

Forward = Callable[..., Any]

_MOST_GRAPHS = 16  # the oldest goes
_PLAIN = (bool, int, float, str, torch.dtype)
_CACHE = object()  # stands for the cache in a captured output, which outlives the cache


class _Graph:
    """A captured pass. Its inputs and its output keep their addresses."""

    def __init__(self, inputs: dict[str, Any]):
        # Tensors that are made in inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            self.inputs = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
        self.graph = torch.cuda.CUDAGraph()
        self.output: Any = None
        self.is_verified = False

    def capture(self, cache: LowkeyCache, forward: Forward, stream: torch.cuda.Stream, pool: Any) -> None:
        with torch.cuda.graph(self.graph, pool=pool, stream=stream, capture_error_mode='thread_local'):
            output = forward(**self.inputs, past_key_values=cache)
        self.output = tree_map(lambda x: _CACHE if x is cache else x, output)

    def launch(self, cache: LowkeyCache, inputs: dict[str, Any]) -> Any:
        """Compute the open step's output, a copy that later launches leave alone."""
        for name, x in self.inputs.items():
            if isinstance(x, torch.Tensor):
                x.copy_(inputs[name])
        self.graph.replay()

        def copied(part: Any) -> Any:
            return part.clone() if isinstance(part, torch.Tensor) else cache if part is _CACHE else part
        return tree_map(copied, self.output)


class DecodeGraphs:
    """The graphs of a cache's decode steps, one for each shape of inputs.

    The first pass of a shape sets up what no capture may contain; the second is captured; the third is launched from
    the graph and its output compared, since a forward pass that depends on the number of tokens in another way than by
    its positions would repeat the number of the capture. Until then outputs are of passes without a graph. Where a pass
    cannot be captured, a warning has the reason, and all passes run without a graph."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self._graphs: dict[Any, _Graph | None] = {}  # None: the shape has run once
        self._pool: Any = None

    def clear(self) -> None:
        """Drop all graphs: the cache of lowkey that they write to ends."""
        self._graphs.clear()
        self._pool = None

    def run(self, cache: LowkeyCache, forward: Forward, given: dict[str, Any], takes_positions: bool) -> Any:
        """A forward pass over the cache.

        given            its arguments by name
        takes_positions  whether position_ids may be among them"""
        inputs = self._inputs_of(cache, given, takes_positions)
        if inputs is None:
            return forward(**given)
        key = _key_of(inputs)
        made = self._graphs.get(key)
        if made is not None and made.is_verified:
            try:
                return self._launch(cache, made, inputs)
            except StateError:  # a step whose chunks are scored is in no graph
                cache._drop_step()
                return forward(**given)
        if made is not None:
            return self._verify(cache, made, forward, given, inputs)
        if key not in self._graphs:
            if len(self._graphs) == _MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[key] = None
            return forward(**given)
        try:
            self._graphs[key] = self._capture(cache, forward, inputs)
        except (RuntimeError, Error) as error:  # torch and lowkey
            cache._drop_step()
            self._refuse(f'its capture failed: {str(error.__context__ or error).splitlines()[0]}')
        return forward(**given)

    def _refuse(self, reason: str) -> None:
        self.clear()
        self.refusal = reason
        warnings.warn(f'LowkeyCache decodes without a graph: {reason}', UserWarning, stacklevel=2)

    def _inputs_of(self, cache: LowkeyCache, given: dict[str, Any], takes_positions: bool) -> dict[str, Any] | None:
        """The inputs of a graph of this pass; None: it runs without one."""
        ids = next((x for x in map(given.get, ('input_ids', 'inputs_embeds')) if isinstance(x, torch.Tensor)), None)
        if self.refusal is not None or ids is None or ids.shape[1] != 1 or len(cache.sequences) != len(ids):
            return None
        if torch.is_grad_enabled() or not _shows_all(cache, given.get('attention_mask'), len(ids)):
            return None
        if cache._states and (cache._states.is_recording or not cache.n_columns):
            return None  # states that are recorded, or begin, are no longer the same tensors
        inputs = {name: x for name, x in given.items()
                  if x is not None and name not in ('attention_mask', 'past_key_values')}
        reason = None
        if ids.device.type != 'cuda':
            reason = f'the model is on {ids.device}, and graphs are of CUDA'
        elif not takes_positions:
            reason = "the model's forward() takes no position_ids"
        for name, x in inputs.items():
            if not isinstance(x, (torch.Tensor, *_PLAIN)):
                reason = f"the argument {name} of the model's forward() is of {type(x).__name__}"
        if reason is not None:
            self._refuse(reason)
            return None
        if 'position_ids' not in inputs:
            inputs['position_ids'] = torch.full((len(ids), 1), cache.n_columns, device=ids.device)
        return inputs

    def _capture(self, cache: LowkeyCache, forward: Forward, inputs: dict[str, Any]) -> _Graph:
        """Capture the pass, in a step that is discarded."""
        made = _Graph(inputs)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        device = made.inputs['position_ids'].device
        stream, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream), cache._graph_step(keep=False):
            made.capture(cache, forward, stream, self._pool)
            made.graph.replay()  # as lk_step_replay() has it: once in the step of the capture too
        current.wait_stream(stream)
        return made

    def _launch(self, cache: LowkeyCache, made: _Graph, inputs: dict[str, Any]) -> Any:
        with cache._graph_step() as step:
            step.replay()
            return made.launch(cache, inputs)

    def _verify(self, cache: LowkeyCache, made: _Graph, forward: Forward, given: dict[str, Any],
                inputs: dict[str, Any]) -> Any:
        """The pass without a graph, after one from the graph whose step is discarded."""
        with cache._graph_step(keep=False) as step:
            step.replay()
            found = made.launch(cache, inputs)
        wanted = forward(**given)
        if _are_equal(found, wanted):
            made.is_verified = True
        else:
            self._refuse('from a graph the model gives other outputs for the second token than without: its forward() '
                         'depends on the number of tokens in another way than by position_ids')
        return wanted


def _key_of(inputs: dict[str, Any]) -> Any:
    return tuple(sorted((name, (tuple(x.shape), str(x.dtype), str(x.device)) if isinstance(x, torch.Tensor) else (x,))
                        for name, x in inputs.items()))


def _shows_all(cache: LowkeyCache, mask: Any, batch: int) -> bool:
    """Whether the new token of each prompt is one that the cache keeps, after the tokens that it holds."""
    if mask is None:
        return True
    if not isinstance(mask, torch.Tensor):
        return False
    return bool(mask.all()) or cache._new_tokens(mask, batch, 1) is None


def _are_equal(found: Any, wanted: Any) -> bool:
    """Whether outputs are equal but for rounding, which libraries may do in another order on another stream."""
    pairs = [(x, y) for x, y in zip(tree_leaves(found), tree_leaves(wanted))
             if isinstance(x, torch.Tensor) and x.is_floating_point()]
    return all(bool((x - y).abs().max() <= 4 * torch.finfo(x.dtype).eps * y.abs().max()) for x, y in pairs)


# Models whose forward passes go through graphs, by id: the model, forward() before, or None where it is the class's,
# and the number of open caches.
_switched: dict[int, list[Any]] = {}


def switch(model: torch.nn.Module, owner: LowkeyCache) -> Any:
    """Let passes of the model over a cache with graphs go through these, until the returned finalizer is called or the
    owner is collected, for the last owner."""
    entry = _switched.get(id(model))
    if entry is None:
        entry = _switched[id(model)] = [model, vars(model).get('forward'), 0]
        model.forward = _through_graphs(model.forward)
    entry[2] += 1
    return weakref.finalize(owner, _undo, id(model))


def _undo(key: int) -> None:
    entry = _switched[key]
    entry[2] -= 1
    if entry[2]:
        return
    model, before, _ = _switched.pop(key)
    if before is None:
        del model.forward
    else:
        model.forward = before


def _through_graphs(forward: Forward) -> Forward:
    names = tuple(inspect.signature(forward).parameters)
    takes_positions = 'position_ids' in names

    @functools.wraps(forward)
    def run(*positional: Any, **named: Any) -> Any:
        given = dict(zip(names, positional), **named)
        cache: Any = given.get('past_key_values')
        graphs: DecodeGraphs | None = getattr(cache, '_graphs', None)
        return forward(**given) if graphs is None else graphs.run(cache, forward, given, takes_positions)

    return run
