# SPDX-License-Identifier: Apache-2.0
"""Recurrent states: what steps, forks, rollbacks and snapshots make of them, and misuse."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from conftest import WHOLE, tensors

import lowkey

STATES = {'states': (16, 48), 'state_versions': 2, 'state_interval': 4}


@pytest.fixture
def hybrid(context):
    with lowkey.Cache(context, 'kivi2', '64MiB', geometry=WHOLE, max_sequences=4, **STATES) as made:
        yield made


def take(sequence: lowkey.Sequence, n_tokens: int, before: int, after: int) -> None:
    """A step that finds `before` in the second state and leaves `after`."""
    with sequence.cache.step(sequence, n_tokens) as step:
        assert step.read_state(0, 1) == bytes([before]) * 48
        for layer in range(2):
            q, k, v = tensors(layer, n_tokens)
            step.append(layer, k, v)
            step.attend(layer, q)
        step.write_state(0, 1, bytes([after]) * 48)


def test_states_follow_their_sequences(hybrid):
    sequence = hybrid.add()
    for i in range(4):
        take(sequence, 4, i, i + 1)
    fork = sequence.fork(8)
    take(fork, 1, 2, 50)
    assert sequence.find_state() == 16 and sequence.find_state(11) == 8
    with pytest.raises(lowkey.UnsupportedError, match='the newest one before is after 8'):
        sequence.truncate(11)
    with pytest.raises(lowkey.UnsupportedError):
        sequence.fork(11)
    assert sequence.rollback(11) == 8 and len(sequence) == 8
    take(sequence, 1, 2, 3)
    saved = hybrid.save(sequences=[sequence])
    [loaded] = hybrid.load(saved)
    take(loaded, 1, 3, 4)
    info = lowkey.inspect(saved)
    assert (info.version, info.n_states, info.version_bytes) == (3, 2, 64)
    assert hybrid.stats().state_bytes > 0


def test_a_place_is_memory_of_the_state(hybrid):
    with hybrid.step(hybrid.add(), 1) as step:
        place = step.state(0, 1)
        assert place.n_bytes == 48 and not place.buffer
        np.frombuffer((ctypes.c_uint8 * 48).from_address(place.pointer), np.uint8)[:] = 5
        assert step.read_state(0, 1) == b'\5' * 48
        step.write_state(0, 0, np.arange(4, dtype=np.float32))
        assert np.frombuffer(step.read_state(0, 0), np.float32).tolist() == [0, 1, 2, 3]
        for call in (lambda: step.state(1, 0), lambda: step.read_state(0, 2), lambda: step.read_state(0, -1),
                     lambda: step.write_state(0, 0, b'short')):
            with pytest.raises(lowkey.ArgumentError):
                call()
        step.discard()
    with pytest.raises(lowkey.StateError):
        step.state(0, 0)


def test_the_budget_counts_them(context):
    one = lowkey.state_bytes((16, 48), state_versions=2)
    assert lowkey.state_bytes((16, 48), 3, state_versions=2) == 3 * one > 0 == lowkey.state_bytes(())
    with pytest.raises(lowkey.ArgumentError, match='not a multiple of 16'):
        lowkey.state_bytes((20,))
    for wrong in ({'states': (-16,)}, {'states': (16,), 'state_interval': 0}, {'states': (16,), 'state_versions': 4097}):
        with pytest.raises(lowkey.ArgumentError):
            lowkey.Cache(context, 'kivi2', '64MiB', geometry=WHOLE, **wrong)


def test_a_cache_without_states_goes_anywhere(context):
    with lowkey.Cache(context, 'kivi2', '64MiB', geometry=WHOLE) as cache:
        sequence = cache.add()
        with cache.step(sequence, 40) as step:
            for layer in range(2):
                q, k, v = tensors(layer, 40)
                step.append(layer, k, v)
                step.attend(layer, q)
        assert sequence.find_state(33) == 33
        assert sequence.rollback(17) == 17 == len(sequence)
        with pytest.raises(lowkey.ArgumentError):
            sequence.rollback(-1)
