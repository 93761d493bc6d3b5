# SPDX-License-Identifier: Apache-2.0
"""Caches, sequences and steps as a program uses them."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import GEOMETRY, WHOLE, attention, run_step, tensors

import lowkey


def test_prefill_and_decode_are_attention(cache):
    """Both layers, the second with a sliding window, through a long prompt, a chunk and single tokens."""
    sequence = cache.add()
    past = [([], []), ([], [])]
    for seed, n_tokens in enumerate((130, 40, 1, 1, 1)):
        for number, (q, k, v, out) in enumerate(run_step(cache, sequence, seed, n_tokens)):
            past[number][0].append(k)
            past[number][1].append(v)
            want, _ = attention(q, *(np.concatenate(x) for x in past[number]), GEOMETRY.layers[number])
            assert np.abs(np.float64(out) - want).max() < 2e-3
    assert len(sequence) == 173 and cache.stats().n_tokens == 173


def test_batches(cache):
    """A ragged batch gives what its sequences give alone."""
    alone, together = [cache.add() for _ in range(3)], [cache.add() for _ in range(3)]
    counts = (5, 1, 70)
    layers = [[tensors(i * 7 + layer, n) for i, n in enumerate(counts)] for layer in range(2)]
    for i, n in enumerate(counts):
        with cache.step(alone[i], n) as step:
            outs = []
            for layer in range(2):
                q, k, v = layers[layer][i]
                step.append(layer, k, v)
                outs.append(step.attend(layer, q))
        layers[0][i].append(outs)
    with cache.step(together, counts) as step:
        for layer in range(2):
            q, k, v = (np.concatenate([given[j] for given in layers[layer]]) for j in range(3))
            step.append(layer, k, v)
            out = step.attend(layer, q)
            assert np.array_equal(out, np.concatenate([given[3][layer] for given in layers[0]]))
    assert [len(s) for s in together] == list(counts)


def test_a_layer_reads_the_keys_of_another(context):
    """Layer 2 attends to the keys and values of layer 0, with more query heads, and takes no bytes."""
    reader = lowkey.Layer(16, 2, 64, scale=0.25, kv_layer=0)
    geometry = lowkey.Geometry((*WHOLE.layers, reader))
    plan = lowkey.Plan.preset('fp16', geometry)
    assert lowkey.Plan.from_json(plan.to_json()).geometry == geometry
    with pytest.raises(lowkey.ArgumentError, match="reads the keys and values of layer 0: set that layer's"):
        plan.set_key(lowkey.KeyRule(4), 2)
    assert lowkey.Plan.build(geometry, plan.spec()).to_json() == plan.to_json()
    rules = [lowkey.LayerRule(), lowkey.LayerRule(), lowkey.LayerRule(lowkey.KeyRule(4))]
    with pytest.raises(lowkey.ArgumentError, match='layer 2 reads the keys and values of layer 0'):
        lowkey.Plan.build(geometry, lowkey.PlanSpec(layers=tuple(rules)))
    sizes = []
    for layers in (geometry, WHOLE):
        with lowkey.Cache(context, 'kivi2', '64MiB', geometry=layers) as cache:
            sequence, keys, values = cache.add(), [], []
            for seed, n_tokens in enumerate((30, 5, 1)):
                with cache.step(sequence, n_tokens) as step:
                    for number in range(2):
                        q, k, v = tensors(seed * 2 + number, n_tokens)
                        step.append(number, k, v)
                        step.attend(number, q)
                        if not number:
                            keys.append(k)
                            values.append(v)
                    if len(layers.layers) == 2:
                        continue
                    q = tensors(90 + seed, n_tokens, reader)[0]
                    with pytest.raises(lowkey.ArgumentError, match='append to that layer alone'):
                        step.append(2, k, v)
                    want, _ = attention(q, np.concatenate(keys), np.concatenate(values), reader)
                    assert np.abs(np.float64(step.attend(2, q)) - want).max() < 2e-3
            sizes.append(cache.stats().recent_bytes)
    assert sizes[0] == sizes[1] > 0


def test_values_have_a_dim_of_their_own(context):
    """Layer 0 has values of fewer channels, layer 1 is latent: values are the first channels of its keys."""
    narrow = lowkey.Layer(4, 2, 96, value_dim=64)
    latent = lowkey.Layer(16, 1, 288, value_dim=256, latent=True, scale=0.125)
    geometry = lowkey.Geometry((narrow, latent))
    plan = lowkey.Plan.preset('kivi4', geometry)
    assert lowkey.Plan.from_json(plan.to_json()).geometry == geometry
    assert lowkey.Plan.build(geometry, plan.spec()).to_json() == plan.to_json()
    assert lowkey.Plan.build(geometry, lowkey.PlanSpec(layers=lowkey.LayerRule(value=lowkey.ValueRule(8))))
    assert plan.value(0, 0).bits == 4 and plan.width(1, 0, 255, value=True).bits == 4
    with pytest.raises(lowkey.NotFoundError, match='layer is 1, a latent one'):
        plan.value(1, 0)
    rules = (lowkey.LayerRule(), lowkey.LayerRule(value=lowkey.ValueRule(4)))
    for refuse in (lambda: plan.set_value(lowkey.ValueRule(8), 1),
                   lambda: lowkey.Plan.build(geometry, lowkey.PlanSpec(layers=rules))):
        with pytest.raises(lowkey.ArgumentError, match='latent'):
            refuse()
    rng = np.random.default_rng(7)
    with lowkey.Cache(context, 'fp16', '64MiB', geometry=geometry) as cache:
        sequence, kept = cache.add(), [([], []), ([], [])]
        for n_tokens in (150, 70, 1):
            with cache.step(sequence, n_tokens) as step:
                for number, layer in enumerate(geometry.layers):
                    q = rng.standard_normal((n_tokens, layer.n_query_heads, layer.head_dim)).astype(np.float16)
                    k = rng.standard_normal((n_tokens, layer.n_kv_heads, layer.head_dim)).astype(np.float16)
                    v = rng.standard_normal((n_tokens, layer.n_kv_heads, 64)).astype(np.float16)
                    with pytest.raises(lowkey.ArgumentError, match='v is'):
                        step.append(number, k, k[:, :, :256] if layer.latent else None)
                    step.append(number, k, *(() if layer.latent else (v,)))
                    kept[number][0].append(k)
                    kept[number][1].append(k[:, :, :256] if layer.latent else v)
                    out = step.attend(number, q)
                    assert out.shape == (n_tokens, layer.n_query_heads, layer.output_dim)
                    want, _ = attention(q, *(np.concatenate(side) for side in kept[number]), layer)
                    assert np.abs(np.float64(out) - want).max() < 5e-3
    for capability in (dict(head_dim=96, value_dim=64), dict(head_dim=576, value_dim=512, is_latent=1)):
        assert context.supports(lowkey.Capability(**capability))


def test_packed_plans_use_fewer_bytes(context):
    sizes = {}
    for plan in ('fp16', 'int8', 'kitty-pro'):
        with lowkey.Cache(context, plan, '64MiB', geometry=GEOMETRY) as cache:
            sequence = cache.add()
            for seed in range(3):
                run_step(cache, sequence, seed, 500)
            run_step(cache, sequence, 9, 1)
            stats = cache.stats()
            assert (stats.pages_packed > 0) == (plan != 'fp16')
            sizes[plan] = stats.payload_bytes + stats.metadata_bytes + stats.recent_bytes
            assert cache.plan().name == plan
            assert stats.reserved_bytes <= stats.budget_bytes == 2**26
    assert sizes['fp16'] > sizes['int8'] > sizes['kitty-pro']


def test_step_discards_on_an_exception(cache):
    sequence = cache.add()
    run_step(cache, sequence, 1, 5)
    with pytest.raises(ZeroDivisionError), cache.step(sequence, 4) as step:
        q, k, v = tensors(2, 4)
        step.append(0, k, v)
        raise ZeroDivisionError
    assert len(sequence) == 5 and not step.open
    run_step(cache, sequence, 3, 1)
    assert len(sequence) == 6


def test_step_that_lacks_a_layer_is_refused_and_discarded(cache):
    sequence = cache.add()
    with pytest.raises(lowkey.StateError, match='layer 1'), cache.step(sequence, 2) as step:
        _, k, v = tensors(1, 2)
        step.append(0, k, v)
    assert len(sequence) == 0
    run_step(cache, sequence, 1, 1)


def test_commit_keeps_part(cache):
    first, second = cache.add(), cache.add()
    with cache.step((first, second), (4, 3)) as step:
        for layer in range(2):
            q, k, v = tensors(layer, 7)
            step.append(layer, k, v)
            step.attend(layer, q)
        step.commit(keep=(2, 0))
    assert (len(first), len(second)) == (2, 0)


def test_draft_trees(cache):
    """Token 2 is a second child of the last committed token: it does not see tokens 0 and 1."""
    sequence = cache.add()
    committed = run_step(cache, sequence, 1, 6)
    with cache.step(sequence, 3, parents=(-1, 0, -1)) as step:
        for layer in range(2):
            q, k, v = tensors(40 + layer, 3)
            step.append(layer, k, v)
            out = step.attend(layer, q)
            if layer == 0:
                keys, values = (np.concatenate((committed[0][i], (k, v)[i - 1][2:])) for i in (1, 2))
                assert np.abs(out[2:] - attention(q[2:], keys, values)[0]).max() < 2e-3
        step.discard()
    assert len(sequence) == 6
    with cache.step(sequence, 3, parents=(-1, 0, 0)) as step:
        for layer in range(2):
            q, k, v = tensors(40 + layer, 3)
            step.append(layer, k, v)
            step.attend(layer, q)
        for paths, sentence in (([], '0 paths'), ([[0, 1, 2]], 'no chain'), ([[1]], 'no chain'), ([[-1]], '-1')):
            with pytest.raises(lowkey.ArgumentError, match=sentence):
                step.commit_paths(paths)
        step.commit_paths([[0, 2]])
    assert len(sequence) == 8 and not step.open


def test_truncate(cache):
    sequence = cache.add()
    found = run_step(cache, sequence, 1, 50)
    sequence.truncate(20)
    assert len(sequence) == 20
    (q, k, v, out), _ = run_step(cache, sequence, 2, 3)
    keys, values = np.concatenate((found[0][1][:20], k)), np.concatenate((found[0][2][:20], v))
    assert np.abs(out - attention(q, keys, values)[0]).max() < 2e-3
    sequence.truncate(0)
    assert len(sequence) == 0 and sequence, 'an empty sequence is true all the same'


def test_kept_pages_come_back(context):
    """Of a layer with a window, with the bytes that the plan counts."""
    plan = lowkey.Plan.preset('kitty', GEOMETRY)
    sizes = [plan.bytes(1000, 1, 100, keep_windowed=keeps) for keeps in (False, True)]
    assert sizes[0].payload_bytes < sizes[1].payload_bytes
    for keeps, size in zip((False, True), sizes):
        with lowkey.Cache(context, plan, size.cache_bytes, max_step_tokens=100, keep_windowed=keeps) as cache:
            sequence = cache.add()
            for number in range(10):
                run_step(cache, sequence, number, 100)
            if keeps:
                sequence.truncate(333)
                assert len(sequence) == 333
            else:
                with pytest.raises(lowkey.UnsupportedError, match='window of 40'):
                    sequence.truncate(333)


def test_fork(cache):
    """Two continuations of one prompt, and one of its first tokens."""
    first = cache.add()
    found = run_step(cache, first, 1, 150)
    second, third = first.fork(), first.fork(40)
    assert [len(s) for s in (first, second, third)] == [150, 150, 40]
    assert cache.stats().shared_bytes > 0
    for seed, (sequence, kept) in enumerate(((second, 150), (third, 40), (first, 150)), 5):
        (q, k, v, out), _ = run_step(cache, sequence, seed, 3)
        keys, values = np.concatenate((found[0][1][:kept], k)), np.concatenate((found[0][2][:kept], v))
        assert np.abs(out - attention(q, keys, values)[0]).max() < 2e-3
    assert cache.stats().pages_copied > 0
    first.remove()
    assert len(second) == 153
    with pytest.raises(lowkey.NotFoundError):
        first.fork()
    for n in (154, -1):
        with pytest.raises(lowkey.ArgumentError, match=str(n)):
            second.fork(n)


def test_sequence_blocks_remove(cache):
    with cache.add() as sequence:
        run_step(cache, sequence, 1, 3)
    assert cache.stats().n_sequences == 0
    with cache.add():
        cache.close()


def test_devices_and_capabilities(context):
    cpu = lowkey.find_device('cpu')
    assert cpu in lowkey.devices() or cpu.memory_bytes > 0
    assert context.device.backend == 'cpu' and context.device.n_threads > 0
    assert context.supports(lowkey.Capability(128, 4, 2, 2))
    context.require(lowkey.Capability(64, 1, 3, 1))
    on_cuda = lowkey.Capability(memory='cuda')
    assert not context.supports(on_cuda)
    with pytest.raises(lowkey.UnsupportedError):
        context.require(on_cuda)
    with pytest.raises(lowkey.ArgumentError, match='5'):
        context.supports(lowkey.Capability(key_bits=5))
    with pytest.raises(lowkey.NotFoundError, match='no cpu device 9'):
        lowkey.find_device('cpu', 9)


def test_versions():
    assert lowkey.version().count('.') == 2 and lowkey.version() in lowkey.build_info()
