# SPDX-License-Identifier: Apache-2.0
"""Sequences to bytes and back."""

from __future__ import annotations

import io

import numpy as np
import pytest
from conftest import GEOMETRY, run_step

import lowkey


@pytest.fixture
def cache(context):
    with lowkey.Cache(context, 'kitty', '64MiB', geometry=GEOMETRY, max_sequences=8) as made:
        yield made


def filled(cache):
    first, second = cache.add(), cache.add()
    run_step(cache, first, 1, 400)
    run_step(cache, second, 2, 70)
    return first, second, first.fork(300)


@pytest.mark.parametrize('way', ['bytes', 'file', 'stream'])
def test_round_trip(context, cache, way, tmp_path):
    """A cache that loads a snapshot answers as the one that saved it."""
    sequences, path = filled(cache), tmp_path / 'chat.lksnap'
    done = []
    options = dict(fingerprint=b'model 1', progress=lambda *amount: done.append(amount))
    if way == 'bytes':
        source = cache.save(**options)
        again = source
    elif way == 'file':
        assert cache.save(path, **options) is None
        source = again = path
    else:
        with path.open('wb') as file:
            cache.save(file, **options)
        source, again = path.open('rb'), path
    assert done[-1][0] == done[-1][1] > 0
    info = lowkey.inspect(again)
    assert info.fingerprint == b'model 1' and info.n_tokens == 770
    assert [(s.id, s.n_tokens) for s in info.sequences] == [(s.id, len(s)) for s in sequences]
    assert info.sequences[2].n_shared_blocks > 0
    assert lowkey.Plan.from_json(info.plan_json).name == 'kitty'
    with lowkey.Cache(context, 'kitty', '64MiB', geometry=GEOMETRY, max_sequences=4) as other:
        loaded = other.load(source, fingerprint=b'model 1')
        assert [len(s) for s in loaded] == [400, 70, 300]
        for mine, theirs in zip(sequences, loaded):
            for ours, other_s in zip(run_step(cache, mine, 9, 2), run_step(other, theirs, 9, 2)):
                assert np.array_equal(ours[3], other_s[3])
    if way == 'stream':
        source.close()


def test_some_sequences(cache):
    first, second, _ = filled(cache)
    assert [s.id for s in lowkey.inspect(cache.save(sequences=[second, first])).sequences] == [second.id, first.id]
    with pytest.raises(lowkey.ArgumentError, match='no sequences'):
        cache.save(sequences=[])
    second.remove()
    with pytest.raises(lowkey.NotFoundError):
        cache.save(sequences=[second])


def test_refusals(context, cache, tmp_path):
    filled(cache)
    whole = cache.save(fingerprint=b'a')
    with lowkey.Cache(context, 'kitty', '64MiB', geometry=GEOMETRY, max_sequences=4) as other:
        for bad, kind in ((whole[:-1], lowkey.CorruptError), (b'', lowkey.CorruptError),
                          (whole[:500] + bytes([whole[500] ^ 1]) + whole[501:], lowkey.CorruptError),
                          (tmp_path / 'none', lowkey.FileError)):
            with pytest.raises(kind):
                other.load(bad, fingerprint=b'a')
        with pytest.raises(lowkey.MismatchError, match='fingerprint'):
            other.load(whole, fingerprint=b'b')
        assert other.stats().n_sequences == 0
        assert len(other.load(bytearray(whole), fingerprint=b'a')) == 3
        with pytest.raises(lowkey.BudgetError):
            other.load(whole, fingerprint=b'a')  # max_sequences
    with lowkey.Cache(context, 'kivi2', '64MiB', geometry=GEOMETRY, max_sequences=4) as other, \
            pytest.raises(lowkey.MismatchError, match='plan'):
        other.load(whole, fingerprint=b'a')
    with pytest.raises(lowkey.ArgumentError, match='257|256'):
        cache.save(fingerprint=bytes(257))
    with pytest.raises(lowkey.FileError):
        cache.save(tmp_path / 'no' / 'folder')


class Broken(io.BytesIO):
    """A stream that fails, or that calls the cache."""

    def __init__(self, action):
        super().__init__()
        self.action = action

    def write(self, data):
        return self.action()

    def read(self, n_bytes=-1):
        return self.action()


def test_exceptions_of_callbacks_are_raised(cache):
    """What a callback raises ends the call and comes out of it."""
    filled(cache)
    whole = cache.save()
    for call in (lambda: cache.save(Broken(lambda: 1 / 0)), lambda: cache.load(Broken(lambda: 1 / 0)),
                 lambda: cache.save(progress=lambda *_: 1 / 0), lambda: cache.load(whole, progress=lambda *_: 1 / 0)):
        with pytest.raises(ZeroDivisionError):
            call()
    with pytest.raises(lowkey.ArgumentError, match=r'read\(\d+\) gave'):
        cache.load(Broken(lambda: bytes(2**21)))
    with pytest.raises(lowkey.StateError, match='callback'):
        cache.save(Broken(cache.stats))
    assert cache.stats().n_sequences == 3 and cache.save() == whole
