# SPDX-License-Identifier: Apache-2.0
"""A plan for a model of transformers in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..cache import parse_bytes
from ..calibrator import POSITION_SCALE, Auto, Calibrator, ChanMix, PmKvq
from ..errors import ArgumentError, BudgetError, FileError
from ..plan import Geometry, LayerRule, Plan
from .capture import capturing, check_free, frozen
from .costs import MODES, CostRequest, Costs, measure_costs
from .geometry import geometry_of, layers_of, sink_logits_of
from .progress import Progress
from .sampling import Sampler
from .state_shapes import states_size
from .texts import PAGE_TOKENS, CostText, Encoder, Text, make_cost_texts, passes_of, read_cost_texts, read_texts

METHODS = ('auto', 'chanmix', 'pm-kvq', 'kitty', 'kitty-pro', 'cocktail', 'default')
_PRESETS = ('kitty', 'kitty-pro', 'cocktail', 'default')
_BITS = 2.25
_DOCUMENT_TOKENS = 2048
_TEXT_TOKENS = 16384
_ATTENTION_TOKENS = 512  # of a text, for sensitivities by outputs and the search for key scales


def plan(model: Any, tokenizer: Any = None, method: str = 'auto', *, bits: float | None = None,
         budget: int | str | None = None, tokens: int = 8192, sequences: int = 1, step_tokens: int = 512,
         texts: Text | Iterable[Text] | None = None, text_tokens: int = _TEXT_TOKENS,
         document_tokens: int = _DOCUMENT_TOKENS, paper: bool = False, gradients: bool | None = None,
         costs: str = 'auto', cost_texts: Text | Iterable[Text] | None = None, cost_tokens: int = 2048,
         cost_documents: int = 2, cost_seconds: float = 300.0, cost_samples: int = 4, seed: int = 1,
         resume: str | os.PathLike[str] | None = None, statistics: str | os.PathLike[str] | None = None,
         out: str | os.PathLike[str] | None = None, progress: bool = True) -> Plan:
    """A plan for a model, made from the model itself, on its own device.

    model            a causal model of transformers with full or sliding-window attention
    tokenizer        callable: tokenizer(text)["input_ids"]; None where texts and cost_texts are token ids
    method           "auto", "chanmix", "pm-kvq"; or "kitty", "kitty-pro", "cocktail", which run no model; or "default":
                     "auto" where texts are given, else Plan.default(), which runs no model
    bits             most bits of a packed value, ranges and minima included; "auto" without bits and budget: 2.25
    budget           most bytes of a cache of ``sequences`` sequences of ``tokens`` tokens each, filled in steps of
                     step_tokens; "pm-kvq" needs it. The states of recurrent layers and convolutions are in it
    texts            a text or several, as strings or token ids, each read from its own beginning; default: the text of
                     the package. Texts like those of the model's users are better. With costs, the keys and queries of
                     their texts are in the statistics too
    text_tokens      most tokens that are read of them, in documents of document_tokens
    paper            the published settings of a method; "auto" has none
    gradients        "pm-kvq": sensitivities by gradients (default), or by outputs, which needs no backward pass
    costs            "auto" only: "measured", "estimated", "auto" (measured where that takes at most cost_seconds; else
                     the largest are measured and the others estimated) or "none"
    cost_texts       texts whose predictions are measured; default: made from the words of ``texts``
    cost_tokens      of each that are packed; a quarter as many are predicted after them
    cost_documents   of each kind of made-up text
    cost_samples     backward passes for the estimates of each document
    seed             of made-up texts and estimates
    resume           a file that keeps measured costs: an interrupted measurement goes on where it stopped
    statistics       write the statistics to this file, for ``lowkey plan``
    out              write the plan to this file as JSON
    progress         a bar with the time that is left on standard error, on a terminal

    The model's weights, mode and attention are as before when the call ends, also by an exception. Plans with limits
    raise BudgetError when even the narrowest widths do not fit.

    Raises ArgumentError (options; texts shorter than a page), UnsupportedError (a model that lowkey does not serve),
    DataError (a sample with a NaN), MismatchError (resume is of another measurement), BudgetError, FileError (the
    exception's ``plan`` is the plan where only a file could not be written)."""
    if method == 'default' and texts is not None:
        method = 'auto'
    if method not in METHODS:
        raise ArgumentError(f'method is {method!r}, must be one of {", ".join(METHODS)}')
    state_bytes = states_size(model.config, sequences, model.dtype, state_versions=1)
    limit = _Limit(bits, None if budget is None else parse_bytes(budget), state_bytes, tokens, sequences, step_tokens)
    geometry = geometry_of(model.config, sink_logits=sink_logits_of(model))
    _check(method, paper, limit, costs)
    for path in (out, statistics):
        _check_folder(path)
    if method in _PRESETS:
        return _done(_preset(method, geometry, paper, bits), limit, out)
    check_free(model)
    if method == 'auto' and costs != 'none':
        layers_of(model.config).check_pass(cost_tokens // 4, cost_tokens, 'give costs="none"')
    encoder, calibrator = Encoder(tokenizer), Calibrator(geometry)
    document_tokens = min(document_tokens, _positions(model))
    documents = read_texts(texts, encoder, document_tokens, text_tokens)
    made_up: list[CostText] = []
    if method == 'auto' and costs != 'none':
        n = cost_tokens + cost_tokens // 4
        made_up = (make_cost_texts(documents, encoder, n, cost_documents, seed) if cost_texts is None
                   else read_cost_texts(cost_texts, encoder, n))
    with Progress(progress) as bar, calibrator:
        with capturing(model) as capture:
            by_gradients = method == 'pm-kvq' and gradients is not False
            sampler = Sampler(model, capture, calibrator, bar, gradients=by_gradients,
                              attention_tokens=_ATTENTION_TOKENS if method == 'pm-kvq' and not by_gradients else 0,
                              position_scale=POSITION_SCALE if method == 'pm-kvq' and paper else 1)
            sampler.texts(documents.passes + [part for text in made_up
                                              for part in passes_of(text.ids, encoder.prefix, document_tokens)])
            if method == 'pm-kvq' and paper:
                sampler.key_scales(documents.passes, _ATTENTION_TOKENS)
            if method != 'pm-kvq':
                sampler.probe(encoder, _positions(model))
        if made_up:
            request = CostRequest(made_up, encoder.prefix, cost_tokens, costs, cost_seconds, cost_samples, seed, resume)
            _costs(model, geometry, request, bar).put(calibrator)
        made = _done(_decide(calibrator, method, limit, paper), limit, out)
        if statistics is not None:
            _write_of(made, statistics, calibrator.to_bytes())
        return made


def _costs(model: Any, geometry: Geometry, request: CostRequest, bar: Progress) -> Costs:
    with frozen(model):
        return measure_costs(model, geometry, request, bar)


class _Limit:
    """What a plan may take, and for which cache. A LowkeyCache has the states of the model's layers in its budget."""

    def __init__(self, bits: float | None, budget_bytes: int | None, state_bytes: int, n_tokens: int, n_sequences: int,
                 step_tokens: int):
        if budget_bytes is not None and state_bytes and budget_bytes <= state_bytes:
            raise BudgetError(f"the budget is {budget_bytes} bytes, and the states of the model's layers alone take "
                              f'{state_bytes} for {n_sequences} sequences')
        self.bits, self.budget_bytes = bits, None if budget_bytes is None else budget_bytes - state_bytes
        self.state_bytes = state_bytes
        self.n_tokens, self.n_sequences, self.step_tokens = n_tokens, n_sequences, step_tokens

    @property
    def fields(self) -> dict[str, Any]:
        """Of the options of a planner."""
        return {'budget_bytes': self.budget_bytes or 0, 'budget_tokens': self.n_tokens,
                'budget_sequences': self.n_sequences, 'budget_step_tokens': self.step_tokens}

    def check(self, made: Plan) -> None:
        """Refuse a plan that takes more."""
        size = made.bytes(self.n_tokens, self.n_sequences, self.step_tokens)
        if self.bits is not None and size.bits_per_value > self.bits:
            raise BudgetError(f'{made.name} takes {size.bits_per_value:.4g} bits a value, the limit is {self.bits:.4g}')
        if self.budget_bytes is not None and size.cache_bytes > self.budget_bytes:
            raise BudgetError(f'{made.name} takes {size.cache_bytes + self.state_bytes} bytes for {self.n_sequences} x '
                              f'{self.n_tokens} tokens, the budget is {self.budget_bytes + self.state_bytes}')


def _check(method: str, paper: bool, limit: _Limit, costs: str) -> None:
    if costs not in MODES:
        raise ArgumentError(f'costs are {costs!r}, must be one of {", ".join(MODES)}')
    if method in ('auto', 'default') and paper:
        raise ArgumentError(f'{method} is a planner of lowkey: nothing of it is published, so it has no paper settings')
    if method == 'pm-kvq' and (limit.budget_bytes is None or limit.bits is not None):
        raise ArgumentError('pm-kvq shrinks pages as a budget fills: give budget, and no bits')
    if method == 'cocktail' and (limit.budget_bytes is not None or limit.bits is not None):
        raise ArgumentError("cocktail's bytes follow from the classes that a question gives to chunks: give neither "
                            'bits nor budget')


def _preset(method: str, geometry: Geometry, paper: bool, bits: float | None) -> Plan:
    """A preset. Its published settings differ in the recent tokens of Kitty: those that fill no page."""
    if method == 'default':
        return Plan.default(geometry, bits or 0.0)
    made = Plan.preset(method, geometry)
    if paper and method.startswith('kitty'):
        made.set_recent(made.spec().sink_tokens, 0)
    if method == 'cocktail' and any(layer.window_tokens for layer in geometry.layers):
        rule = made.chunks()
        assert rule is not None
        made.set_chunks(replace(rule, reorder=False, chunk_tokens=PAGE_TOKENS))  # a window needs tokens in order
    return made


def _decide(calibrator: Calibrator, method: str, limit: _Limit, paper: bool) -> Plan:
    """The plan of the statistics. The published settings are those of ``lowkey plan --paper``, with key scales."""
    if method == 'auto':
        bits = _BITS if limit.bits is None and limit.budget_bytes is None else limit.bits or 0.0
        return calibrator.auto(Auto(bits_per_value=bits, **limit.fields))
    if method == 'chanmix':
        options = ChanMix(**limit.fields)
        if paper:
            options = replace(options, centers=False, one_bit='range', sink_tokens=0)
        return calibrator.chanmix(options)
    own = PmKvq(**limit.fields)
    if paper:
        own = replace(own, key_axis='token', group=128, sink_tokens=16, recent_tokens=0, key_scales=True,
                      layer_budgets=True)
    return calibrator.pm_kvq(own)


def _done(made: Plan, limit: _Limit, out: str | os.PathLike[str] | None) -> Plan:
    if not any(rule.rungs for rule in _rules(made)):  # a ladder ends within the budget, but begins above it
        limit.check(made)
    if out is not None:
        _write_of(made, out, made.to_json().encode())
    return made


def _write_of(made: Plan, path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file of a plan. The exception of a full disk has the plan."""
    try:
        write_file(path, data)
    except FileError as error:
        error.plan = made  # type: ignore[attr-defined]
        raise


def _check_folder(path: str | os.PathLike[str] | None) -> None:
    """Refuse a file that cannot be written before the model runs."""
    folder = os.path.dirname(os.path.abspath(path)) if path is not None else os.curdir
    if path is not None and not (os.path.isdir(folder) and os.access(folder, os.W_OK)):
        raise FileError(f'{os.fspath(path)} cannot be written: {folder} is no folder that can be written')


def _rules(made: Plan) -> tuple[LayerRule, ...]:
    layers = made.spec().layers
    return layers if isinstance(layers, tuple) else (layers,)


def _positions(model: Any) -> int:
    """The most tokens of a pass."""
    return int(getattr(model.config.get_text_config(decoder=True), 'max_position_embeddings', 0) or 2**31 - 1)


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file whole or not at all. Raises FileError."""
    name = os.fspath(path)
    part = f'{name}.{os.getpid()}.part'
    try:
        try:
            with open(part, 'wb') as file:
                file.write(data)
            os.replace(part, name)
        finally:
            if os.path.exists(part):
                os.remove(part)
    except OSError as error:
        raise FileError(f'{name} cannot be written: {error.strerror}') from None
