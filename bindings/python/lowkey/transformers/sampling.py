# SPDX-License-Identifier: Apache-2.0
"""Statistics of a model of transformers: its samples go into a calibrator layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..calibrator import Calibrator, Probe, ScaleSearch
from ..errors import ArgumentError, DataError, UnsupportedError
from .capture import Capture, run
from .progress import Progress
from .texts import Encoder, probe_sentence

PROBE_REPEATS = 30
_LOCAL_TOKENS = 64
_QUERY_STEP = 8  # of the search for key scales


def on_host(x: torch.Tensor) -> torch.Tensor:
    """[1, heads, n_tokens, channels] as [n_tokens, heads, channels] in host memory: a view where x is there."""
    plain = x.detach()[0].transpose(0, 1)
    return (plain.float() if plain.dtype == torch.float64 else plain).cpu()


class Sampler:
    """Adds a model's passes to a calibrator. No sample outlives the call that adds it.

    gradients         also run the backward pass of each text's loss and add the gradients by K and V
    attention_tokens  first tokens of each text whose attention is added, for sensitivities by outputs; 0 = none
    """

    def __init__(self, model: Any, capture: Capture, calibrator: Calibrator, progress: Progress, *,
                 gradients: bool = False, attention_tokens: int = 0, position_scale: int = 1):
        self._model, self._capture, self._calibrator, self._progress = model, capture, calibrator, progress
        self._gradients, self._attention_tokens, self._position_scale = gradients, attention_tokens, position_scale
        self._n_gradients = 0

    def _passes(self, what: str, passes: list[list[int]], observer: Callable[..., None], gradients: bool = False,
                position_scale: int = 1) -> None:
        self._progress.start(what, sum(map(len, passes)))
        self._capture.observer = observer
        try:
            for number, ids in enumerate(passes):
                try:
                    run(self._model, ids, gradients=gradients, position_scale=position_scale)
                except DataError as error:
                    raise DataError(f'{what}, pass {number}: {error}') from None
                self._capture.check_pass()
                self._progress.add(len(ids))
        finally:
            self._capture.observer = None

    def texts(self, passes: list[list[int]]) -> None:
        """Keys and queries of documents, and what the options name."""
        self._n_gradients = 0
        self._passes('keys and queries of the texts', passes, self._add, self._gradients, self._position_scale)
        wanted = 2 * len(self._calibrator.geometry.kv_layers) * len(passes) if self._gradients else 0
        if self._n_gradients != wanted:
            raise UnsupportedError(f'the loss gave {self._n_gradients} gradients by keys and values, not {wanted}')

    def _add(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        queries, keys = on_host(query), on_host(key)
        self._calibrator.add_keys(layer, keys)
        self._calibrator.add_queries(layer, queries)
        n = self._attention_tokens
        if n:
            self._calibrator.add_attention(layer, queries[:n], keys[:n], on_host(value)[:n])
        if self._gradients:
            for tensor, is_value in ((key, False), (value, True)):
                if not tensor.requires_grad:
                    raise UnsupportedError(f'layer {layer} has no gradient by its {"values" if is_value else "keys"}')
                # The hook holds the samples without their graph, which holds the hook.
                tensor.register_hook(partial(self._add_gradient, layer, is_value, tensor.detach()))

    def _add_gradient(self, layer: int, is_value: bool, samples: torch.Tensor, gradient: torch.Tensor) -> None:
        self._calibrator.add_gradients(layer, on_host(samples), on_host(gradient), value=is_value)
        self._n_gradients += 1

    def key_scales(self, passes: list[list[int]], n_tokens: int) -> None:
        """The search for key scales on the first n_tokens of each text; after texts(), which found the maxima."""
        search = ScaleSearch(channels=_rotated_channels(self._model), query_step=_QUERY_STEP)

        def add(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
            q, k, v = (on_host(x)[:n_tokens] for x in (query, key, value))
            self._calibrator.add_scale_search(layer, q, k, v, search)

        self._passes('key scales', [ids[:n_tokens] for ids in passes], add, position_scale=self._position_scale)

    def probe(self, encoder: Encoder, max_tokens: int) -> None:
        """The retrieval scores of all heads, from one pass of a repeated sentence of at most max_tokens tokens."""
        sentence, prefix = probe_sentence(encoder), encoder.prefix
        repeats = min(PROBE_REPEATS, (max_tokens - len(prefix)) // len(sentence))
        if repeats < 2:
            raise ArgumentError(f'the model takes {max_tokens} tokens, the probe needs '
                                f'{len(prefix) + 2 * len(sentence)}')
        probe = Probe(len(sentence), len(prefix), local_tokens=min(_LOCAL_TOKENS, len(sentence) - 1))
        self._progress.start('attention of the probe', len(self._calibrator.geometry.kv_layers))
        self._capture.observer = partial(self._add_probe, probe)
        try:
            run(self._model, prefix + sentence * repeats)
        except DataError as error:
            raise DataError(f'the probe: {error}') from None
        finally:
            self._capture.observer = None
        self._capture.check_pass()

    def _add_probe(self, probe: Probe, layer: int, query: torch.Tensor, key: torch.Tensor, _: torch.Tensor) -> None:
        self._calibrator.add_probe(layer, probe, on_host(query), on_host(key))
        self._progress.add()


def _rotated_channels(model: Any) -> int:
    """The channels of a head that RoPE rotates; 0 = all."""
    config = model.config.get_text_config(decoder=True)
    parameters = getattr(config, 'rope_parameters', None) or {}
    share = getattr(config, 'partial_rotary_factor', None) or parameters.get('partial_rotary_factor') or 1.0
    if share >= 1:
        return 0
    head_dim = getattr(config, 'head_dim', None) or config.hidden_size // config.num_attention_heads
    return int(head_dim * share)
