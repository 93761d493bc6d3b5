# SPDX-License-Identifier: Apache-2.0
"""How a cache reclaims bytes: shrinking, eviction, the pressure callback."""

from __future__ import annotations

import pytest
from conftest import GEOMETRY, WHOLE, run_step

import lowkey


def fill(cache, sequence, n_steps: int) -> None:
    for seed in range(n_steps):
        run_step(cache, sequence, seed, 64)


def test_shrink_and_budget(context):
    with lowkey.Cache(context, 'pm-kvq', '32MiB', geometry=GEOMETRY, slab_bytes=2**18, max_budget='40MiB') as cache:
        fill(cache, cache.add(), 10)
        before = cache.stats()
        cache.shrink(4)
        after = cache.stats()
        assert after.plane_bytes[2] > 0 and after.pages_shrunk > before.pages_shrunk
        assert sum(after.plane_bytes) < sum(before.plane_bytes)
        with pytest.raises(lowkey.ArgumentError, match='3'):
            cache.shrink(3)
        cache.budget = '40MiB'
        assert cache.budget == 40 * 2**20 == cache.stats().budget_bytes
        with pytest.raises(lowkey.ArgumentError):
            cache.budget = '41MiB'
        with pytest.raises(lowkey.BudgetError, match='bytes'):
            cache.budget = 1000
        assert cache.budget == 40 * 2**20


def small(context, **options):
    return lowkey.Cache(context, 'fp16', '3MiB', geometry=WHOLE, slab_bytes=2**18, max_sequences=3, **options)


def test_eviction(context):
    with small(context, evict=True) as cache:
        first, second = cache.add(), cache.add()
        fill(cache, first, 8)
        fill(cache, second, 38)
        assert cache.stats().sequences_evicted == 1 and len(second) == 38 * 64
        with pytest.raises(lowkey.NotFoundError):
            len(first)


def test_pressure(context):
    """A callback removes a sequence, then raises the budget, then refuses."""
    calls = []

    def pressure(question):
        calls.append(question)
        return [[victim], question.budget_bytes + 2**20, None][min(len(calls), 3) - 1]

    with small(context, max_budget='4MiB', pressure=pressure) as cache:
        victim, kept = cache.add(), cache.add()
        fill(cache, victim, 8)
        with pytest.raises(lowkey.BudgetError):
            fill(cache, kept, 500)
        assert len(calls) >= 3 and cache.budget == 4 * 2**20
        assert calls[0].shortfall_bytes > 0 and calls[0].budget_bytes == 3 * 2**20
        with pytest.raises(lowkey.NotFoundError):
            len(victim)


@pytest.mark.parametrize('answer, kind', [(lambda cache: 1 / 0, ZeroDivisionError),
                                          (lambda cache: cache.stats(), lowkey.StateError),
                                          (lambda cache: 'all', AttributeError)])
def test_exceptions_of_pressure_come_out_of_the_step(context, answer, kind):
    with small(context, pressure=lambda _: answer(cache)) as cache:
        sequence = cache.add()
        with pytest.raises(kind):
            fill(cache, sequence, 500)
        held = len(sequence)
        sequence.truncate(64)
        run_step(cache, sequence, 1, 64)
        assert held > 64 and len(sequence) == 128


def test_limit_of_a_sequence(context):
    with small(context, sequence_limit='1MiB') as cache, pytest.raises(lowkey.BudgetError, match='1048576'):
        fill(cache, cache.add(), 500)
