# SPDX-License-Identifier: Apache-2.0
"""Costs of a model of transformers: how far its predictions move when keys or values of a head have 2 bits."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..calibrator import COST_CLIPS, Calibrator
from ..errors import ArgumentError, DataError
from ..plan import Geometry
from .context import DocumentContext, skips_layers
from .estimates import estimate
from .geometry import layers_of
from .journal import Journal, Place
from .progress import Progress, duration
from .texts import CostText
from .two_bits import packed, packed_tokens

CLIPS = (1.0, *COST_CLIPS)
MODES = ('auto', 'measured', 'estimated', 'none')
_MOST_ROWS = 16  # of one pass, the exact one included
_LOGIT_BYTES = 2**30  # of one pass
Part = tuple[int, int, bool]  # layer, KV head, is_value: the keys or the values of one head


@dataclass
class CostRequest:
    """What is measured, and how.

    texts           documents of context_tokens and a quarter as many tokens that are predicted after them
    prefix          tokens before each context (a BOS)
    mode            "measured": all; "estimated": none; "auto": all if that takes at most ``seconds``, else the largest
                    estimates as long as that lasts, and estimates of the others
    samples         backward passes of each document, for estimates
    """

    texts: list[CostText]
    prefix: list[int]
    context_tokens: int = 2048
    mode: str = 'auto'
    seconds: float = 300.0
    samples: int = 4
    seed: int = 1
    resume: str | os.PathLike[str] | None = None

    @property
    def scored_tokens(self) -> int:
        return self.context_tokens // 4


@dataclass
class Costs:
    """Costs [layer][kv_head][keys, values][clip], and how many of them were measured on how many documents."""

    values: list[list[list[list[float]]]]
    n_measured: int
    n_all: int
    seconds: float
    estimates: dict[Place, float] = field(default_factory=dict)
    measured: dict[Place, float] = field(default_factory=dict)

    def put(self, calibrator: Calibrator) -> None:
        """Give the costs to a calibrator."""
        for layer in calibrator.geometry.kv_layers:
            heads = self.values[layer]
            calibrator.set_costs(layer, [(keys[0], values[0]) for keys, values in heads])
            calibrator.set_clip_costs(layer, [(keys[1:], values[1:]) for keys, values in heads])


def measure_costs(model: Any, geometry: Geometry, request: CostRequest, progress: Progress) -> Costs:
    """The costs of all layers of a frozen model. Raises DataError (predictions that are not finite), FileError."""
    if request.mode not in MODES[:3]:
        raise ArgumentError(f'costs are {request.mode!r}, must be one of {", ".join(MODES)}')
    if request.context_tokens < 320:
        raise ArgumentError(f'cost_tokens is {request.context_tokens}, must be at least 320: sinks, a page and the '
                            'recent tokens')
    return _Measurement(model, geometry, request, progress).run()


def fingerprint(model: Any, geometry: Geometry, request: CostRequest) -> str:
    """Names the model's weights, the texts and the options that costs depend on."""
    digest = hashlib.sha256(repr((geometry, request.context_tokens, request.prefix,
                                  [text.ids for text in request.texts])).encode())
    for name, weight in model.named_parameters():
        digest.update(name.encode())
        digest.update(weight.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:32]


class _Measurement:
    def __init__(self, model: Any, geometry: Geometry, request: CostRequest, progress: Progress):
        self._model, self._geometry, self._request, self._progress = model, geometry, request, progress
        self._journal = Journal(request.resume, fingerprint(model, geometry, request))
        self._layers = layers_of(model.config)
        self._parts: list[Part] = [(layer, head, is_value) for layer in geometry.kv_layers
                                    for head in range(geometry.layers[layer].n_kv_heads) for is_value in (False, True)]
        self._estimates: dict[Place, float] = {}
        self._unit_seconds = 0.0  # of one row in one layer
        self._rows = 0

    def run(self) -> Costs:
        started, request = time.monotonic(), self._request
        chosen: list[Part] = []
        if request.mode == 'estimated':
            self._estimate()
        elif request.mode == 'measured':
            chosen = self._parts
        else:
            left = self._predict()
            chosen = self._parts
            self._progress.note(f'costs: measuring all of them takes about {duration(left)}')
            if left > request.seconds:
                self._estimate()
                chosen = self._worth(request.seconds)
                self._progress.note(f'costs: the largest {len(chosen)} of {len(self._parts)} estimates are measured '
                                    f'in about {duration(request.seconds)}')
        if chosen:
            self._progress.start('costs of keys and values', sum(
                self._weight(part[0]) * len(CLIPS) for part in chosen) * len(request.texts))
            for document in range(len(request.texts)):
                self._measure(document, chosen)
        return self._collect(time.monotonic() - started)

    # Documents.

    def _context(self, document: int) -> tuple[DocumentContext, list[int]]:
        """The context of a document, and the tokens after it whose predictions count."""
        ids, n = self._request.texts[document].ids, self._request.context_tokens
        return DocumentContext(self._model, self._geometry, self._request.prefix + ids[:n]), ids[n:-1]

    def _weight(self, layer: int) -> int:
        """The model's layers that a pass runs whose keys or values of a layer are other ones."""
        return self._layers.n_layers - (self._layers.attention[layer] if skips_layers(self._geometry) else 0)

    def _estimate(self) -> None:
        request = self._request
        self._progress.start('estimates of costs', len(request.texts) * request.samples)
        for document in range(len(request.texts)):
            context, ids = self._context(document)
            for place, cost in estimate(context, ids, self._geometry, document, CLIPS, request.samples,
                                        request.seed + document, self._progress):
                self._estimates[place] = cost

    def _measure(self, document: int, parts: Iterable[Part]) -> None:
        """Measure what the journal does not have, on one document."""
        places = [Place(document, *part, clip) for part in parts for clip in CLIPS]
        missing = [place for place in places if place not in self._journal.costs]
        self._progress.add(sum(self._weight(place.layer) for place in places if place in self._journal.costs))
        if not missing:
            return
        context, ids = self._context(document)
        self._rows = _rows_of(context.exact(ids))
        for batch in _batches(missing, self._rows - 1):
            self._journal.add(self._run(context, ids, batch))
            self._progress.add(len(batch) * self._weight(batch[0].layer))

    def _run(self, context: DocumentContext, ids: list[int], batch: list[Place]) -> dict[Place, float]:
        """The divergences of some places of one layer. Row 0 is exact, so that all rows are computed alike."""
        layer = batch[0].layer
        own = context.kept[layer]
        assert own.keys is not None and own.values is not None
        sides = [x.expand(len(batch) + 1, -1, -1, -1).clone() for x in (own.keys, own.values)]
        span = packed_tokens(context.n_tokens)
        for row, place in enumerate(batch, 1):
            view = sides[place.is_value][row, place.kv_head, span]
            view.copy_(packed(view, value=place.is_value, clip=place.clip))
        with torch.no_grad(), context.instead(layer, *sides):
            found = divergences(context.logits(ids, len(batch) + 1))
        if not all(map(_is_finite, found)):
            document = batch[0].document
            raise DataError(f'the predictions of cost text {document} ({self._request.texts[document].kind}) have an '
                            'infinity or a NaN')
        return dict(zip(batch, found))

    # Time.

    def _predict(self) -> float:
        """The seconds that measuring everything takes, by measuring the first places."""
        context, ids = self._context(0)
        self._rows = _rows_of(context.exact(ids))
        batch = [Place(0, *part, clip) for part in self._parts for clip in CLIPS if part[0] == 0][:self._rows - 1]
        started = time.monotonic()
        self._journal.add(self._run(context, ids, batch))
        self._unit_seconds = (time.monotonic() - started) / (len(batch) * self._weight(0))
        missing = sum(self._weight(part[0]) for document in range(len(self._request.texts)) for part in self._parts
                      for clip in CLIPS if Place(document, *part, clip) not in self._journal.costs)
        return missing * self._unit_seconds

    def _worth(self, seconds: float) -> list[Part]:
        """The parts of the largest estimates that are measured within the time, and those that are measured already."""
        def total(part: Part) -> float:
            return sum(self._estimates[Place(document, *part, 1.0)] for document in range(len(self._request.texts)))

        chosen, used = [], 0.0
        for part in sorted(self._parts, key=total, reverse=True):
            places = [Place(document, *part, clip) for document in range(len(self._request.texts)) for clip in CLIPS]
            missing = [place for place in places if place not in self._journal.costs]
            used += len(missing) * self._weight(part[0]) * self._unit_seconds
            if used > seconds:
                break
            chosen.append(part)
        return sorted(chosen)

    # Results.

    def _sum(self, costs: dict[Place, float], part: Part, clip: float) -> float | None:
        """The cost over all documents; None where one is missing. Documents of a kind may cancel rounding."""
        by_kind: dict[str, float] = {}
        for document, text in enumerate(self._request.texts):
            cost = costs.get(Place(document, *part, clip))
            if cost is None:
                return None
            by_kind[text.kind] = by_kind.get(text.kind, 0.0) + cost
        return sum(max(0.0, cost) for cost in by_kind.values())

    def _collect(self, seconds: float) -> Costs:
        measured = {(part, clip): self._sum(self._journal.costs, part, clip) for part in self._parts for clip in CLIPS}
        whole = [part for part in self._parts if all(measured[part, clip] is not None for clip in CLIPS)]
        scale = {side: self._scale([part for part in whole if part[2] == side], measured) for side in (False, True)}
        values: list[list[list[list[float]]]] = [[[[], []] for _ in range(own.n_kv_heads)]
                                                 for own in self._geometry.layers]
        known = set(whole)
        for part in self._parts:
            layer, head, is_value = part
            for clip in CLIPS:
                cost = measured[part, clip] if part in known else \
                    (self._sum(self._estimates, part, clip) or 0.0) * scale[is_value]
                values[layer][head][is_value].append(float(cost or 0.0))
        return Costs(values, len(whole), len(self._parts), seconds, self._estimates, dict(self._journal.costs))

    def _scale(self, parts: list[Part], measured: dict[Any, float | None]) -> float:
        """By how much estimates fall short of measurements, of the parts that have both."""
        estimates = [self._sum(self._estimates, part, 1.0) for part in parts]
        guessed = sum(cost for cost in estimates if cost is not None)
        real = sum(measured[part, 1.0] or 0.0 for part, cost in zip(parts, estimates) if cost is not None)
        return real / guessed if guessed > 0 and real > 0 else 1.0


def divergences(logits: torch.Tensor) -> list[float]:
    """KL of the predictions of row 0 from those of each other row, summed over tokens, in bits."""
    sums = torch.zeros(logits.shape[0] - 1, dtype=torch.float64)
    step = max(1, 2**22 // logits.shape[2])
    for at in range(0, logits.shape[1], step):
        exact = logits[0, at:at + step].double().log_softmax(-1)
        for row in range(1, logits.shape[0]):
            other = logits[row, at:at + step].double().log_softmax(-1)
            sums[row - 1] += (exact.exp() * (exact - other)).sum().cpu()
    return [float(x) for x in sums / torch.log(torch.tensor(2.0, dtype=torch.float64))]


def _is_finite(x: float) -> bool:
    return x - x == 0


def _rows_of(logits: torch.Tensor) -> int:
    """The rows of a pass whose logits are of a bounded size, at least 2."""
    bytes_of_row = logits.shape[1] * logits.shape[2] * logits.element_size()
    return max(2, min(_MOST_ROWS, _LOGIT_BYTES // bytes_of_row))


def _batches(places: list[Place], n: int) -> Iterator[list[Place]]:
    """Runs of at most n places of one layer."""
    batch: list[Place] = []
    for place in sorted(places):
        if batch and (len(batch) == n or place.layer != batch[0].layer):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
