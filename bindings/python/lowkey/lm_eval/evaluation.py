# SPDX-License-Identifier: Apache-2.0
"""Tasks of the harness under several plans, one after another."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

from ..errors import ArgumentError, FileError
from ..plan import Plan, PlanSpec, as_plan
from ..transformers import geometry_of, sink_logits_of
from ..transformers.planning import write_file
from .model import LowkeyLM

_NO_FILTER = 'none'  # the harness's name of it


@dataclass(frozen=True)
class Evaluation:
    """What a model answers under a plan, and what the plan takes.

    plan            as it was given, or the name of a Plan or PlanSpec
    bits_per_value  of a packed value, ranges and minima included
    cache_bytes     of a cache for the longest request
    longest_tokens  of that request
    n_tokens        that went through the model: contexts that requests share count once
    tokens_per_s    of them
    scores          by task, then by the harness's name of the metric, "metric,filter"
    record          all that the harness returned, with each request and answer
    """

    plan: str
    bits_per_value: float
    cache_bytes: int
    longest_tokens: int
    n_tokens: int
    tokens_per_s: float
    scores: dict[str, dict[str, float]]
    record: dict[str, Any] = field(repr=False)

    def summary(self) -> dict[str, Any]:
        """All fields but the record."""
        return {name: value for name, value in vars(self).items() if name != 'record'}


def evaluate(model: Any, tokenizer: Any, tasks: Iterable[str],
             plans: Iterable[str | os.PathLike[str] | Plan | PlanSpec] = ('fp16', 'kitty-pro'), *,
             include_path: str | os.PathLike[str] | None = None, limit: float | None = None,
             num_fewshot: int | None = None, chunk_tokens: int = 128, budget: int | str | None = None,
             max_length: int | None = None, apply_chat_template: bool = False,
             record: str | os.PathLike[str] | None = None) -> list[Evaluation]:
    """Run tasks of the harness on a model under plans.

    model, tokenizer     of transformers
    tasks                names of tasks or groups, or patterns ("mmlu_*")
    plans                preset's names, paths of plans' JSON, Plans or PlanSpecs
    include_path         a folder with task files of the caller's
    limit                most documents of a task, or below 1 their share; default: all
    num_fewshot          examples before each question; default: the task's
    chunk_tokens         most tokens of a pass: LowkeyLM
    budget               of each cache: LowkeyLM
    max_length           most tokens of a request; default: the model's
    apply_chat_template  whether prompts are messages of a chat
    record               a folder for one JSON file of each plan, with each request and answer, and table.json. A plan's
                         file is written when its tasks are done

    Raises ArgumentError (an unknown task), FileError (tasks that cannot be loaded, a record that cannot be written),
    and the errors of LowkeyLM, all of them before the first pass but those of writing."""
    chosen = list(plans)
    geometry = geometry_of(model.config, sink_logits=sink_logits_of(model))
    made = [as_plan(plan, geometry) for plan in chosen]
    manager = TaskManager(include_path=None if include_path is None else os.fspath(include_path))
    names = _load(manager, list(tasks))
    folder = None if record is None else _folder(record)
    found: list[Evaluation] = []
    for number, (given, plan) in enumerate(zip(chosen, made)):
        label = plan.name if isinstance(given, (Plan, PlanSpec)) else os.fspath(given)
        lm = LowkeyLM(model, plan, tokenizer=tokenizer, chunk_tokens=chunk_tokens, budget=budget,
                      max_length=max_length)
        try:
            results = lm_eval.simple_evaluate(lm, tasks=names, task_manager=manager, limit=limit,
                                              num_fewshot=num_fewshot, apply_chat_template=apply_chat_template)
        finally:
            lm.close()
        size = lm.size()
        found.append(Evaluation(label, size.bits_per_value, size.cache_bytes, lm.longest_tokens, lm.n_tokens,
                                lm.n_tokens / lm.seconds if lm.seconds else 0.0, _scores(results), results))
        if folder is not None:
            _write(folder / f'{number}-{re.sub("[^A-Za-z0-9._-]", "_", Path(label).stem)}.json', results)
            _write(folder / 'table.json', [one.summary() for one in found])
    return found


def _load(manager: Any, tasks: list[str]) -> list[str]:
    """The names of all tasks, which the harness can load."""
    for task in tasks:
        if not manager.match_tasks([task]):
            raise ArgumentError(f'task {task!r} is unknown to the harness: give a name that `lm_eval ls tasks` lists, '
                                'or --include-path with the folder of its file')
    if not tasks:
        raise ArgumentError('there are no tasks: give at least one')
    names = list(manager.match_tasks(tasks))
    try:
        manager.load(names)
    except Exception as error:  # of a task's own code, of its file, or of the download of its documents
        raise FileError(f'the harness cannot load {", ".join(names)}: {type(error).__name__}: '
                        f'{(str(error) or "no reason given").splitlines()[0]}') from error
    return names


def _scores(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The numbers of the harness's results."""
    return {task: {name: float(value) for name, value in metrics.items()
                   if ',' in name and isinstance(value, (int, float))} for task, metrics in results['results'].items()}


def _folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f'{folder} cannot be made: {error.strerror}') from None
    return folder


def _write(path: Path, record: Any) -> None:
    write_file(path, (json.dumps(record, indent=1, default=str) + '\n').encode())


def table(found: list[Evaluation]) -> str:
    """Plans as columns; bits, bytes, speed and scores as rows."""
    longest = max(one.longest_tokens for one in found)
    rows = [('', [Path(one.plan).name for one in found]),
            ('bits a value', [f'{one.bits_per_value:.3f}' for one in found]),
            (f'KV bytes, {longest} tokens', [str(one.cache_bytes) for one in found]),
            ('tokens/s', [f'{one.tokens_per_s:.0f}' for one in found])]
    for task, metrics in found[0].scores.items():
        for name in metrics:
            metric, _, kind = name.rpartition(',')
            if not metric.endswith('_stderr'):
                label = f'{task} {metric}' + ('' if kind == _NO_FILTER else f' ({kind})')
                rows.append((label, [_cell(one.scores[task], metric, kind) for one in found]))
    widths = [max(len(row[1][i]) for row in rows) for i in range(len(found))]
    first = max(len(label) for label, _ in rows)
    return '\n'.join(f'{label:{first}}' + ''.join(f'  {cell:>{width}}' for cell, width in zip(cells, widths))
                     for label, cells in rows)


def _cell(scores: dict[str, float], metric: str, kind: str) -> str:
    error = scores.get(f'{metric}_stderr,{kind}')
    return f'{scores[f"{metric},{kind}"]:.4f}' + ('' if error is None else f' +-{error:.4f}')
