# SPDX-License-Identifier: Apache-2.0
"""Chunks: scores, classes, what a sequence keeps of each, and their misuse."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import WHOLE, attention, run_step

import lowkey
from lowkey import chunks

N_CHUNKS = 12
CONTEXT = 32 + N_CHUNKS * 32  # of the plan "cocktail": 32 sinks, then chunks of 32


@pytest.fixture
def cache(context):
    with lowkey.Cache(context, 'cocktail', '64MiB', geometry=WHOLE, max_sequences=8) as made:
        yield made


@pytest.fixture
def prompt(cache):
    """A sequence of a context that waits for classes."""
    sequence = cache.add()
    sequence.defer()
    run_step(cache, sequence, 1, CONTEXT)
    return sequence


def test_attention_scores_chunks_and_classes_keep_them(cache):
    sequence = cache.add()
    sequence.defer('pack')
    sequence.score_attention(chunks.Attention(n_query_tokens=4, n_chunks=N_CHUNKS, layers=(0, 1)))
    with pytest.raises(lowkey.StateError):
        sequence.attention_scores(N_CHUNKS)
    whole = run_step(cache, sequence, 1, CONTEXT + 4)
    scores = sequence.attention_scores(N_CHUNKS)
    wanted = np.zeros(N_CHUNKS)
    for q, k, _, _ in whole:  # the softmax over the context's tokens alone, computed here
        logits = np.einsum('qhd,khd->hqk', q[-4:].astype(float), np.repeat(k.astype(float), 4, 1)[32:CONTEXT]) / 8
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        wanted += weights.reshape(*weights.shape[:2], N_CHUNKS, 32).sum(-1).mean((0, 1)) / 2
    assert np.allclose(scores, wanted, atol=1e-3) and abs(sum(scores) - 1) < 1e-3
    classes, _ = chunks.Quota().classes(scores)
    before = sequence.chunks()
    assert not before.is_assigned and before.deferral == 'pack' and set(before.assigned) == {'none'}
    sequence.assign_chunks(CONTEXT, classes, scores)
    kept = sequence.chunks()
    assert kept.is_assigned and kept.deferral == 'off' and kept.assigned == classes
    assert (kept.chunk_tokens, kept.first_token, kept.n_narrower) == (32, 32, 0)
    assert sorted(kept.order) == list(range(N_CHUNKS))
    rank = ['low', 'middle', 'high'].index
    assert all(rank(stored) >= rank(assigned) for stored, assigned in zip(kept.stored, classes))
    assert (kept.n_low, kept.n_middle, kept.n_high) == tuple(map(kept.stored.count, ('low', 'middle', 'high')))
    sequence.score_attention(None)
    run_step(cache, sequence, 2, 1)


@pytest.mark.parametrize('budget', [0, '16MiB'])
def test_originals_give_chunks_their_width_back(cache, budget):
    sequence = cache.add()
    sequence.defer()
    first = run_step(cache, sequence, 1, CONTEXT)
    sequence.retain_originals(budget)
    sequence.assign_chunks(CONTEXT, ['low'] * N_CHUNKS)
    sequence.assign_chunks(CONTEXT, ['high'] * N_CHUNKS)
    kept = sequence.chunks()
    assert kept.n_narrower == (0 if budget else N_CHUNKS) and (kept.retained_bytes > 0) == bool(budget)
    far = 0.0
    for (_, k, v, _), (q, new_k, new_v, out) in zip(first, run_step(cache, sequence, 2, 1)):
        wanted, _ = attention(q, np.concatenate([k, new_k]), np.concatenate([v, new_v]), WHOLE.layers[0])
        far = max(far, np.abs(wanted - out).max())
    assert (far < 4e-3) == bool(budget), far


def test_classes_come_before_the_context(context):
    plan = lowkey.Plan.preset('cocktail', WHOLE)
    classes = ['low'] * 6 + ['high', 'middle'] * 2 + ['low'] * 2
    budget = plan.chunk_prefill_bytes(CONTEXT + 1, 8, 2, 2, step_tokens=100)
    assert budget > plan.chunk_bytes(CONTEXT + 1, 8, 2, 2, step_tokens=100).cache_bytes
    with lowkey.Cache(context, plan, budget, max_sequences=1, max_step_tokens=100) as cache:
        sequence = cache.add()
        sequence.assign_chunks(CONTEXT, classes)
        before = sequence.chunks()
        assert before.is_assigned and (before.n_pending, before.n_chunks) == (N_CHUNKS, 0)
        n_pending = []
        for first in range(0, CONTEXT, 100):
            run_step(cache, sequence, first + 1, min(100, CONTEXT - first))
            n_pending.append(sequence.chunks().n_pending)
        run_step(cache, sequence, 9, 1)
        kept = sequence.chunks()
        assert n_pending == sorted(n_pending, reverse=True) and N_CHUNKS > n_pending[-1] > kept.n_pending == 0
        assert kept.assigned == classes and kept.n_low == 8


def test_plan_without_chunks(context):
    with lowkey.Cache(context, 'fp16', '32MiB', geometry=WHOLE) as cache:
        sequence = cache.add()
        for call in (sequence.defer, sequence.chunks, lambda: sequence.retain_originals(1),
                     lambda: sequence.assign_chunks(0, [])):
            with pytest.raises(lowkey.UnsupportedError, match='chunks'):
                call()


@pytest.mark.parametrize('call, kind, sentence', [
    (lambda s: s.defer('later'), lowkey.ArgumentError, "mode is 'later', must be one of off, refuse, pack"),
    (lambda s: s.assign_chunks(CONTEXT, ['low'] * 12, [1.0]), lowkey.ArgumentError, '1 scores for 12 chunks'),
    (lambda s: s.assign_chunks(CONTEXT, ['best'] * 12), lowkey.ArgumentError, "'best'"),
    (lambda s: s.assign_chunks(CONTEXT, ['none'] * 12), lowkey.ArgumentError, None),
    (lambda s: s.assign_chunks(CONTEXT + 32, ['low'] * 12), lowkey.ArgumentError, str(CONTEXT + 32)),
    (lambda s: s.assign_chunks(-1, ['low'] * 12), lowkey.ArgumentError, '-1'),
    (lambda s: s.assign_chunks(CONTEXT, ['low'] * 12, [float('nan')] * 12), lowkey.DataError, None),
    (lambda s: s.score_attention(chunks.Attention(1, 1, layers=(9,))), lowkey.NotFoundError, '9'),
    (lambda s: s.score_attention(chunks.Attention(0, 1)), lowkey.ArgumentError, None),
    (lambda s: s.attention_scores(-1), lowkey.ArgumentError, '-1'),
    (lambda s: s.retain_originals('some'), lowkey.ArgumentError, "'some'"),
])
def test_misuse_changes_nothing(prompt, call, kind, sentence):
    with pytest.raises(kind, match=sentence):
        call(prompt)
    kept = prompt.chunks()
    assert not kept.is_assigned and kept.deferral == 'refuse'


def test_chunks_of_open_steps_and_closed_caches(cache, prompt):
    with cache.step(prompt, 1) as step:
        for call in (prompt.defer, lambda: prompt.assign_chunks(CONTEXT, ['low'] * N_CHUNKS),
                     lambda: prompt.score_attention(None), lambda: prompt.retain_originals(0)):
            with pytest.raises(lowkey.BusyError):
                call()
        step.discard()
    cache.close()
    for call in (prompt.defer, prompt.chunks, lambda: prompt.attention_scores(1), lambda: prompt.score_attention(None)):
        with pytest.raises(lowkey.ClosedError):
            call()


@pytest.mark.parametrize('dtype', [np.float16, np.float32])
def test_cosines(context, dtype):
    embeddings = np.array([[1, 0], [0, 2], [3, 3]], dtype)
    wanted = [1, 0, 0.5 ** 0.5]
    assert np.allclose(chunks.cosine(embeddings, dtype([5, 0])), wanted, atol=1e-6)
    strided = np.repeat(embeddings, 2, 0)[::2, None]
    assert np.allclose(chunks.cosine(strided, dtype([[5, 0]])), wanted, atol=1e-6)
    assert chunks.cosine(np.zeros((0, 2), dtype), dtype([5, 0])) == []
    scores = chunks.score_cosine(context, embeddings, dtype([5, 0]))
    assert scores.dtype == np.float32 and np.allclose(scores, wanted, atol=1e-6)
    query, given = dtype([5, 0]), np.zeros(3, np.float32)
    assert chunks.score_cosine(context, embeddings, dtype([5, 0]), given) is given and np.array_equal(given, scores)
    for call, kind, sentence in (
            (lambda: chunks.cosine(embeddings, dtype([0, 0])), lowkey.DataError, None),
            (lambda: chunks.cosine(embeddings, dtype([1, 2, 3])), lowkey.ArgumentError, 'query has shape'),
            (lambda: chunks.cosine(embeddings[:, ::-1], dtype([1, 2])), lowkey.ArgumentError, 'channel stride'),
            (lambda: chunks.cosine(embeddings[None, None], dtype([1, 2])), lowkey.ArgumentError, 'embeddings'),
            (lambda: chunks.score_cosine(context, embeddings, query, given[:2]), lowkey.ArgumentError, 'scores'),
            (lambda: chunks.score_cosine(context, embeddings, query, stream=1), lowkey.ArgumentError, 'stream')):
        with pytest.raises(kind, match=sentence):
            call()


def test_scores_of_tokens():
    first, second = chunks.Bm25().scores([1, 2, 3, 3], [3], starts=[0, 2, 4])
    assert first == 0 < second
    assert chunks.Bm25(chunk_tokens=3).scores([1] * 8, []) == [0, 0]
    for starts in ([0, 5], [0, 3, 2], [], [-1, 2]):
        with pytest.raises(lowkey.ArgumentError):
            chunks.Bm25().scores([1, 2, 3, 4], [3], starts=starts)
    with pytest.raises(lowkey.ArgumentError, match='32 bits'):
        chunks.Bm25().scores([-1], [3])
    with pytest.raises(lowkey.ArgumentError, match='chunk_tokens'):
        chunks.Bm25(chunk_tokens=0).scores([1], [3])


def test_classes_of_scores():
    assert chunks.by_thresholds([0, 0.5, 1], 0.25, 0.25) == (['low', 'middle', 'high'], 0.25, 0.75)
    quota = chunks.Quota(block_chunks=1, budget_bytes=12, low_bytes=2, middle_bytes=4, high_bytes=8)
    assert quota.classes([0, 1, 0.5]) == (['low', 'high', 'low'], 12)
    with pytest.raises(lowkey.BudgetError, match='bytes'):
        quota.classes([0] * 9)
    with pytest.raises(lowkey.DataError, match='chunk 1'):
        chunks.by_thresholds([0, float('inf')])


def test_bytes_and_widths():
    plan = lowkey.Plan.preset('cocktail', WHOLE)
    assert plan.chunks() == lowkey.ChunkRule(alpha=float(np.float32(0.6)), beta=float(np.float32(0.1)))
    assert [plan.width(0, 0, 5, chunk_class=name).bits for name in ('low', 'middle', 'high')] == [2, 4, 16]
    with pytest.raises(lowkey.ArgumentError, match='chunk_class'):
        plan.width(0, 0, 5, chunk_class='lowest')
    low = plan.chunk_bytes(CONTEXT, n_low=12)
    high = plan.chunk_bytes(CONTEXT, n_high=12)
    assert (low.n_blocks, high.n_blocks) == (3, 0)
    assert low.payload_bytes + low.metadata_bytes + low.recent_bytes < high.recent_bytes
    with pytest.raises(lowkey.ArgumentError, match='416 tokens of chunks'):
        plan.chunk_bytes(CONTEXT, n_low=13)
