# SPDX-License-Identifier: Apache-2.0
"""The states of recurrent layers and convolutions, in the cache of lowkey: their bytes, snapshots, rollback."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from families import CONVOLUTIONS, RECURRENT, RESTARTING, STATEFUL
from hf import (
    DEVICES,
    EXACT,
    assert_like_hosts,
    assert_within_rounding,
    chunks_of,
    feed,
    host_cache,
    make_model,
    tokens,
    torch,
)

import lowkey
from lowkey.transformers import LowkeyCache, geometry_of, states_of

# A delta rule, Mamba-1, Mamba-2 as the last layer, convolutions, states next to attention in one layer.
KINDS = ['qwen3.5', 'jamba', 'granite4-state-last', 'lfm2', 'zaya']


def store_of(model, context, plan='fp16', **options):
    """A cache of the caller's for a model."""
    options = dict(max_sequences=8, max_step_tokens=512, state_versions=1, state_interval=1) | options
    return lowkey.Cache(context, plan, '64MiB', geometry=geometry_of(model.config), states=states_of(model.config),
                        **options)


def states_in(store, sequence):
    """The bytes of a sequence's states."""
    with store.step(sequence, 1) as step:
        found = [bytes(step.read_state(0, i)) for i in range(len(store.states))]
        step.discard()
    return found


def host_states(cache):
    """The states of transformers' own cache, in the order of lowkey's: [batch, ...] each."""
    found = []
    for layer in cache.layers:
        for states in (getattr(layer, 'conv_states', {}), getattr(layer, 'recurrent_states', {})):
            found += [x for x in states.values() if x is not None]
    return found


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize('name', STATEFUL)
def test_states_are_those_of_the_host(name, dtype, device):
    """Their sizes, and those before the first attention bit by bit, after a pass of several tokens and one of one."""
    model, ids = make_model(name, device).to(dtype), tokens(31, 2, 12, device=device)
    model.config.dtype = dtype
    chunks, host = chunks_of(name, ids, 11, 1), host_cache(model)
    feed(model, host, *chunks)
    wanted = host_states(host)
    with lowkey.Context(device) as context, store_of(model, context) as store:
        sequences = [store.add() for _ in range(2)]
        with LowkeyCache.over(model.config, store, sequences) as cache:
            feed(model, cache, *chunks)
        assert store.states == tuple(-(-x[0].nbytes // 16) * 16 for x in wanted)
        n_exact = 2 if name in RECURRENT else 1
        for row, sequence in enumerate(sequences):
            for own, x in list(zip(states_in(store, sequence), wanted))[:n_exact]:
                assert own[:x[row].nbytes] == x[row].contiguous().view(torch.uint8).cpu().numpy().tobytes()


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', STATEFUL)
def test_a_session_is_saved_and_loaded(name, device):
    """Two prompts, one padded, go on in another cache with the same bits."""
    model, ids = make_model(name, device), tokens(32, 2, 40, device=device)
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    more = ids[:, 30:].split(1, 1)
    with lowkey.Context(device) as context:
        with store_of(model, context, 'kivi4') as store:
            sequences = [store.add() for _ in range(2)]
            with LowkeyCache.over(model.config, store, sequences) as cache:
                feed(model, cache, ids[:, :30], mask=mask)
                cache.commit()
                saved = store.save(sequences=sequences)
                wanted = feed(model, cache, *more, mask=mask)
                assert cache.lengths == [40, 31]
        with store_of(model, context, 'kivi4') as store, \
                LowkeyCache.over(model.config, store, store.load(saved)) as cache:
            assert cache.lengths == [30, 21]
            assert torch.equal(feed(model, cache, *more, mask=mask), wanted)
            assert cache.stats().state_bytes > 0
        with store_of(model, context, 'kivi4', max_sequences=2) as store:
            other = make_model('granite4' if name == 'lfm2' else 'lfm2')
            with store_of(other, context, 'kivi4') as wrong, pytest.raises(lowkey.MismatchError):
                wrong.load(saved)


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', STATEFUL)
def test_crop_goes_anywhere_with_the_model(name, device):
    """Columns after the newest states are computed again; of padded prompts too."""
    model, ids = make_model(name, device), tokens(33, 2, 50, device=device)
    mask = torch.ones_like(ids)
    mask[1, :13] = 0
    chunks = chunks_of(name, ids, 30, 6, 4)
    with LowkeyCache(model, 'fp16', '64MiB') as cache:
        feed(model, cache, *chunks, mask=mask)
        for n_removed, n_left in ((3, 37), (4, 33), (8, 25)):
            cache.crop(-n_removed)
            assert cache.lengths == [n_left, n_left - 13] and cache.get_seq_length() == n_left
        other = copy.deepcopy(cache)
        got = feed(model, cache, *ids[:, 25:28].split(1, 1), mask=mask)
        other.crop(-2)
        of_other = feed(model, other, ids[:, 23:24], mask=mask)
        cache.batch_select_indices(torch.tensor([1, 0, 1]))
        cache.crop(-6)
        rows = [1, 0, 1]
        of_rows = feed(model, cache, ids[rows, 22:23], mask=mask[rows])
        other.close()
    for found, first, last in ((got, 25, 28), (of_other, 23, 24)):
        want, rounded = (feed(model, host_cache(model, kind), ids[:, :first], *ids[:, first:last].split(1, 1),
                              mask=mask)[:, first:] for kind in EXACT)
        assert_within_rounding(found, want, rounded)
    want, rounded = (feed(model, host_cache(model, kind), ids[:, :22], ids[:, 22:23], mask=mask)[rows, 22:]
                     for kind in EXACT)
    assert_within_rounding(of_rows, want, rounded)


@pytest.mark.parametrize('name', RECURRENT)
def test_crop_without_the_model_names_where_it_can_go(name):
    model, ids = make_model(name), tokens(34, 1, 50)
    with LowkeyCache(model.config, 'fp16', '64MiB', state_versions=2, state_interval=4) as cache:
        feed(model, cache, ids[:, :20], *ids[:, 20:30].split(1, 1))
        with pytest.raises(lowkey.UnsupportedError, match=r'a crop to 27 columns: the newest states of \w+ that are '
                                                          'kept at or before them are those after 24 columns'):
            cache.crop(-3)
        assert cache.lengths == [30]
        assert cache.rollback(27) == 24 and cache.lengths == [24] and cache.n_columns == 24
        got = feed(model, cache, *ids[:, 24:27].split(1, 1))
        assert cache.rollback(26) == 24 and cache.rollback(24) == 24 and cache.rollback(23) == 0
        assert cache.lengths == [0] and cache.get_seq_length() == 0
        anew = feed(model, cache, ids[:, :20])
        with pytest.raises(lowkey.ArgumentError):
            cache.rollback(-1)
    assert_like_hosts(model, got, ids[:, :20], *ids[:, 20:27].split(1, 1), n_last=3)
    assert_like_hosts(model, anew, ids[:, :20], n_last=20)


@pytest.mark.parametrize('name', KINDS)
def test_crop_after_generate(name):
    """The answer to a padded batch is cut, and another one generated."""
    model, ids = make_model(name), tokens(42, 2, 30)
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    options = dict(max_new_tokens=8, do_sample=False)
    with LowkeyCache(model, 'fp16', '64MiB') as cache:
        first = model.generate(ids, attention_mask=mask, past_key_values=cache, **options)
        assert cache.lengths == [30, 37]
        cache.crop(-5)
        assert cache.lengths == [25, 32]
        longer = torch.cat([mask, mask.new_ones(2, 3)], 1)
        second = model.generate(first[:, :33], attention_mask=longer, past_key_values=cache, **options)
    assert torch.equal(second[:, :38], first)
    assert torch.equal(second, model.generate(ids, attention_mask=mask, max_new_tokens=11, do_sample=False))


def test_inputs_that_are_no_tokens_are_not_repeated():
    model, ids = make_model('qwen3.5'), tokens(35, 1, 30)
    with LowkeyCache(model, 'fp16', '64MiB') as cache, torch.no_grad():
        model(inputs_embeds=model.get_input_embeddings()(ids[:, :20]), past_key_values=cache)
        feed(model, cache, ids[:, 20:30])
        cache.crop(-4)
        assert cache.lengths == [26]
        got = feed(model, cache, ids[:, 26:27])
        with pytest.raises(lowkey.UnsupportedError, match='a crop to 15 columns'):
            cache.crop(-12)
        assert cache.lengths == [27]
    assert_like_hosts(model, got, ids[:, :26], ids[:, 26:27], n_last=1)


@pytest.mark.parametrize('name', CONVOLUTIONS)
def test_recorded_convolutions_lose_a_part_of_a_pass(name):
    """Of padded prompts too; and no pass is recorded after reset()."""
    model, ids = make_model(name), tokens(36, 2, 40)
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    with LowkeyCache(model.config, 'fp16', '64MiB') as cache:
        feed(model, cache, ids[:, :20], mask=mask)
        cache.activate_past_recording()
        feed(model, cache, ids[:, 20:28], mask=mask)
        assert cache.lengths == [28, 17] and cache.stats().n_tokens == 29
        cache.crop(-5)
        assert cache.lengths == [23, 12] and cache.stats().n_tokens == 35
        got = feed(model, cache, ids[:, 23:24], ids[:, 24:26], mask=mask)
        cache.crop(-1)
        cache.crop(-1)
        assert cache.lengths == [24, 13]
        more = feed(model, cache, ids[:, 24:25], mask=mask)
        cache.reset()
        feed(model, cache, ids[:, :20])
        assert cache.stats().n_tokens == 40
        with pytest.raises(lowkey.UnsupportedError, match='a crop to 18 columns'):
            cache.crop(-2)
    for found, first, last in ((got, 23, 26), (more, 24, 25)):
        want, rounded = (feed(model, host_cache(model, kind), ids[:, :first], *ids[:, first:last].split(1, 1),
                              mask=mask)[:, first:] for kind in EXACT)
        assert_within_rounding(found, want, rounded)


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', KINDS)
def test_the_budget_holds_the_states(name, device):
    model, ids = make_model(name, device), tokens(37, 2, 60, device=device)
    most = lowkey.state_bytes(states_of(model.config), 2, state_versions=1, state_interval=1)
    with LowkeyCache(model.config, 'fp16', '64MiB') as cache:
        for chunk in chunks_of(name, ids, 30, 1, 1, 1, 20):
            feed(model, cache, chunk)
            found = cache.stats()
            assert 0 < found.state_bytes <= min(most, found.reserved_bytes)
        need = found.reserved_bytes
    with LowkeyCache(model.config, 'fp16', need - found.state_bytes, max_sequences=2) as cache:
        for _ in range(2):
            with pytest.raises(lowkey.BudgetError):
                feed(model, cache, ids)
            assert cache.get_seq_length() == 0


@pytest.mark.parametrize('name', KINDS)
def test_a_hidden_token_changes_no_state(name):
    """A prompt that has no token in a pass keeps its states."""
    model, ids = make_model(name), tokens(38, 2, 30)
    mask = torch.ones_like(ids)
    mask[1, 20] = 0
    with lowkey.Context('cpu') as context, store_of(model, context) as store:
        sequences = [store.add() for _ in range(2)]
        with LowkeyCache.over(model.config, store, sequences) as cache:
            feed(model, cache, ids[:, :20], mask=mask)
            cache.commit()
            before = [states_in(store, sequence) for sequence in sequences]
            feed(model, cache, ids[:, 20:21], mask=mask)
            cache.commit()
            after = [states_in(store, sequence) for sequence in sequences]
            assert cache.lengths == [21, 20] and before[0] != after[0] and before[1] == after[1]


def test_a_pass_whose_last_layer_has_a_state_ends_with_the_next_one():
    model, ids = make_model('granite4-state-last'), tokens(39, 1, 30)
    with lowkey.Context('cpu') as context, store_of(model, context) as store:
        sequence = store.add()
        with LowkeyCache.over(model.config, store, [sequence]) as cache:
            feed(model, cache, ids[:, :20])
            assert len(sequence) == 20
            feed(model, cache, ids[:, 20:21])
            assert cache.lengths == [21] and cache.get_seq_length() == 21 and len(sequence) == 20
            with pytest.raises(lowkey.BusyError):
                sequence.fork()
            cache.commit()
            assert len(sequence) == 21 and cache.lengths == [21]
            cache.commit()
            got = feed(model, cache, ids[:, 21:22])
            cache.crop(-1)
            assert len(sequence) == 21
            again = feed(model, cache, ids[:, 21:22])
            feed(model, cache, ids[:, 22:23])
        assert len(sequence) == 23, 'close() commits the pass'
    assert torch.equal(got, again)


@pytest.mark.parametrize('name', ['qwen3.5', 'lfm2'])
def test_passes_in_inference_mode_and_outside(name):
    model, ids = make_model(name), tokens(40, 2, 30)
    found = []
    for mode in (torch.inference_mode, torch.no_grad):
        with LowkeyCache(model.config, 'fp16', '64MiB') as cache:
            with mode():
                found.append(feed(model, cache, ids[:, :20], ids[:, 20:21]))
            found.append(feed(model, cache, ids[:, 21:22], ids[:, 22:25]))
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])


def test_what_does_not_fit_is_refused():
    model, ids = make_model('qwen3.5'), tokens(41, 1, 20)
    with lowkey.Context('cpu') as context:
        for states in ((), states_of(model.config)[:-1]):
            with lowkey.Cache(context, 'fp16', '64MiB', geometry=geometry_of(model.config), states=states) as store, \
                    pytest.raises(lowkey.ArgumentError, match='qwen3_5_text keeps states of .* make it with states='):
                LowkeyCache.over(model.config, store, [store.add()])
        with store_of(model, context) as store, LowkeyCache.over(model.config, store, [store.add()]) as cache:
            model.to(torch.bfloat16)
            with pytest.raises(lowkey.ArgumentError, match='a state in torch.bfloat16, the cache was made for torch'):
                feed(model, cache, ids)
            assert cache.lengths == [0]
            model.to(torch.float32)
            with pytest.raises(lowkey.UnsupportedError, match='give it a padding mask'), torch.no_grad():
                model(ids, attention_mask=torch.zeros(1, 1, 20, 20), past_key_values=cache)
            got = feed(model, cache, ids)
    assert_like_hosts(model, got, ids, n_last=20)
    model.config.linear_num_value_heads = 8
    with LowkeyCache(model.config, 'fp16', '64MiB') as cache, \
            pytest.raises(lowkey.UnsupportedError, match=r'layer 0 of qwen3_5_text has a state of shape \[128, 20\]'):
        feed(model, cache, ids)


def test_the_states_of_models():
    config = make_model('qwen3.5').config
    conv, recurrent = (2 * 32 + 64) * 4, 4 * 16 * 16
    assert states_of(config) == (conv * 4, recurrent * 4) * 3
    assert states_of(config, torch.float16) == (conv * 2, recurrent * 4) * 3
    assert states_of(make_model('llama').config) == ()
    assert all(math.isfinite(np.float32(n)) and n % 16 == 0 for name in STATEFUL for n in
               states_of(make_model(name).config))
    assert set(RESTARTING) < set(RECURRENT)
