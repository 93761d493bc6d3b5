# SPDX-License-Identifier: Apache-2.0
"""What a program may do wrong is an exception with a sentence, never a crash."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import GEOMETRY, WHOLE, run_step, tensors

import lowkey


def test_use_after_close(context, cache):
    sequence = cache.add()
    step = cache.step(sequence, 1)
    q, k, v = tensors(1, 1)
    cache.close()
    cache.close()
    assert cache.closed and not step.open
    for call in (cache.add, cache.stats, cache.poll, cache.plan, sequence.remove, lambda: len(sequence),
                 lambda: sequence.truncate(0), lambda: cache.step(sequence, 1), lambda: step.append(0, k, v),
                 lambda: step.attend(0, q), step.commit, step.discard, step.replay, cache.__enter__):
        with pytest.raises(lowkey.ClosedError, match='the cache is closed'):
            call()
    context.close()
    context.close()
    for call in (lambda: context.device, lambda: context.supports(lowkey.Capability()), context.__enter__,
                 lambda: lowkey.Cache(context, 'fp16', '32MiB', geometry=GEOMETRY),
                 lambda: lowkey.merge(context, [q], [np.zeros((1, 8), np.float32)])):
        with pytest.raises(lowkey.ClosedError, match='the context is closed'):
            call()


def test_context_with_caches_is_busy():
    context = lowkey.Context()
    cache = lowkey.Cache(context, 'fp16', '32MiB', geometry=GEOMETRY)
    with pytest.raises(lowkey.BusyError, match='1 live cache'):
        context.close()
    sequence = cache.add()
    run_step(cache, sequence, 1, 2)  # nothing changed
    cache.close()
    context.close()
    assert context.closed


def test_end_of_a_context_block_ends_its_caches():
    with lowkey.Context() as context:
        cache = lowkey.Cache(context, 'fp16', '32MiB', geometry=GEOMETRY)
    assert context.closed and cache.closed
    with pytest.raises(lowkey.ClosedError, match='the cache is closed'):
        cache.add()


def test_garbage_in_any_order():
    """The collector ends cycles in any order; a context waits for its caches."""
    for _ in range(4):
        context = lowkey.Context(n_threads=1)
        cache = lowkey.Cache(context, 'fp16', '32MiB', geometry=GEOMETRY)
        context.cycle = cache.cycle = [context, cache]
        handles = context._handle, cache._handle
        del context, cache
        gc.collect()
        assert not handles[0].box and not handles[1].box


def test_exit_without_close():
    program = '''
import lowkey
context = lowkey.Context(log=print, log_level="debug")
cache = lowkey.Cache(context, "fp16", "32MiB", geometry=lowkey.Geometry.uniform(1, 2, 1, 32))
step = cache.step(cache.add(), 1)
'''
    subprocess.run([sys.executable, '-c', program], check=True, timeout=60)


def test_steps_out_of_order(cache):
    sequence = cache.add()
    q, k, v = tensors(1, 2)
    step = cache.step(sequence, 2)
    for call, kind in ((lambda: cache.step(sequence, 1), lowkey.StateError), (cache.add, lowkey.BusyError),
                       (sequence.remove, lowkey.BusyError), (lambda: sequence.truncate(0), lowkey.BusyError),
                       (lambda: step.attend(0, q), lowkey.StateError), (step.commit, lowkey.StateError)):
        with pytest.raises(kind):
            call()
    step.append(0, k, v)
    with pytest.raises(lowkey.StateError, match='layer 0'):
        step.append(0, k, v)
    step.attend(0, q)
    with pytest.raises(lowkey.StateError):
        step.attend(0, q)
    with pytest.raises(lowkey.ArgumentError, match='layer 2 of 2'):
        step.append(2, k, v)
    with pytest.raises(lowkey.ArgumentError, match='layer -1 of 2'):
        step.attend(-1, q)
    step.discard()
    for call in (step.discard, step.commit, lambda: step.append(0, k, v), lambda: step.attend(0, q), step.replay):
        with pytest.raises(lowkey.StateError, match='the step is closed'):
            call()


def test_a_stale_step_does_not_touch_the_next(cache):
    sequence = cache.add()
    stale = cache.step(sequence, 1)
    stale.discard()
    with cache.step(sequence, 1) as step:
        with pytest.raises(lowkey.StateError, match='the step is closed'):
            stale.commit()
        for layer in range(2):
            q, k, v = tensors(layer, 1)
            step.append(layer, k, v)
            step.attend(layer, q)
    assert len(sequence) == 1


@pytest.mark.parametrize('arguments, options, sentence', [
    (((), ()), {}, '0'),
    (('both', (1,)), {}, '1 counts of tokens for 2 sequences'),
    (('one', 0), {}, 'at least 1'),
    (('one', -1), {}, 'at least 1'),
    (('one', 10**6), {}, '1000000'),
    (('twice', 1), {}, 'twice|distinct|sequence'),
    (('foreign', 1), {}, 'belongs to another cache'),
    (('one', 3), {'parents': (-1, 0)}, '2 parents for 3 new tokens'),
    (('one', 2), {'parents': (-1, 1)}, 'parent'),
    (('one', 1), {'stream': 5}, 'takes no stream'),
])
def test_steps_that_make_no_sense(context, cache, arguments, options, sentence):
    first, second = cache.add(), cache.add()
    other = lowkey.Cache(context, 'fp16', '32MiB', geometry=GEOMETRY)
    named = {'both': (first, second), 'one': first, 'twice': (first, first), 'foreign': other.add(), (): ()}
    with pytest.raises(lowkey.ArgumentError, match=sentence):
        cache.step(named[arguments[0]], arguments[1], **options)
    run_step(cache, first, 1, 1)
    other.close()


def test_sequences_that_are_gone(cache):
    sequence = cache.add()
    sequence.remove()
    for call in (sequence.remove, lambda: len(sequence), lambda: sequence.truncate(0), lambda: cache.step(sequence, 1)):
        with pytest.raises(lowkey.NotFoundError, match='1'):
            call()
    kept = cache.add()
    with pytest.raises(lowkey.ArgumentError, match='5'):
        kept.truncate(5)
    with pytest.raises(lowkey.ArgumentError, match='-1'):
        kept.truncate(-1)


def test_keep_that_makes_no_sense(cache):
    sequence = cache.add()
    with cache.step(sequence, 2) as step:
        for layer in range(2):
            q, k, v = tensors(layer, 2)
            step.append(layer, k, v)
            step.attend(layer, q)
        for keep, sentence in (((3,), '3'), ((1, 1), '2 counts to keep for 1'), ((-1,), r'\[-1\]')):
            with pytest.raises(lowkey.ArgumentError, match=sentence):
                step.commit(keep)
        step.commit((1,))
    assert len(sequence) == 1


@pytest.mark.parametrize('bad', [np.inf, np.nan])
def test_numbers_that_are_not_finite(cache, bad):
    sequence = cache.add()
    q, k, v = tensors(1, 3)
    k[1, 1, 5] = bad
    with pytest.raises(lowkey.DataError, match=r'layer 0.*head 1'), cache.step(sequence, 3) as step:
        step.append(0, k, v)
    assert len(sequence) == 0
    cache.poll()
    run_step(cache, sequence, 1, 2)


def test_budgets():
    with lowkey.Context() as context:
        with pytest.raises(lowkey.BudgetError, match='bytes'):
            lowkey.Cache(context, 'fp16', 4096, geometry=GEOMETRY)
        with lowkey.Cache(context, 'fp16', '2MiB', geometry=WHOLE, slab_bytes=2**18) as cache:
            sequence = cache.add()
            with pytest.raises(lowkey.BudgetError, match='bytes') as caught:
                for seed in range(1000):
                    run_step(cache, sequence, seed, 64)
            assert caught.value.status == -6
            held = len(sequence)
            assert 64 <= held < 64000
            sequence.truncate(64)
            run_step(cache, sequence, 1, 64)
        with lowkey.Cache(context, 'fp16', '32MiB', geometry=GEOMETRY, max_sequences=1) as cache:
            cache.add()
            with pytest.raises(lowkey.BudgetError, match='1'):
                cache.add()


@pytest.mark.parametrize('make, kind, sentence', [
    (lambda c: lowkey.Context('rocm'), lowkey.ArgumentError, "'rocm', must be one of cpu, cuda, vulkan"),
    (lambda c: lowkey.Context(device_index=3), lowkey.NotFoundError, '3'),
    (lambda c: lowkey.Context(log=print, log_level='loud'), lowkey.ArgumentError, "'loud'"),
    (lambda c: lowkey.Cache(c, 'fp16', '1GiB'), lowkey.ArgumentError, 'needs a geometry'),
    (lambda c: lowkey.Cache(c, 'q4', '1GiB', geometry=GEOMETRY), lowkey.NotFoundError, 'q4'),
    (lambda c: lowkey.Cache(c, 'fp16', '1GiB', geometry=GEOMETRY, max_sequences=0), lowkey.ArgumentError,
     'max_sequences'),
    (lambda c: lowkey.Cache(c, lowkey.Plan.preset('fp16', GEOMETRY), '1GiB',
                            geometry=lowkey.Geometry.uniform(2, 8, 2, 32)), lowkey.MismatchError, 'head_dim'),
])
def test_things_that_cannot_be_made(context, make, kind, sentence):
    with pytest.raises(kind, match=sentence):
        make(context)


def test_log_callback():
    lines = []
    with lowkey.Context(log=lambda *line: lines.append(line), log_level='debug') as context, \
            lowkey.Cache(context, 'kivi2', '32MiB', geometry=GEOMETRY) as cache:
        gc.collect()  # the callback has no other owner
        run_step(cache, cache.add(), 1, 300)
    assert lines and all(level in ('error', 'warning', 'info', 'debug') and text for level, text in lines)


def test_exceptions_in_callbacks_are_reported(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, 'unraisablehook', seen.append)

    def log(level, text):
        raise ZeroDivisionError(text)

    with lowkey.Context(log=log, log_level='debug') as context, \
            lowkey.Cache(context, 'kivi2', '32MiB', geometry=GEOMETRY) as cache:
        run_step(cache, cache.add(), 1, 300)
    assert seen and all(x.exc_type is ZeroDivisionError and x.object is log for x in seen)


def test_callbacks_may_not_call_the_library(monkeypatch):
    seen, caches = [], []
    monkeypatch.setattr(sys, 'unraisablehook', seen.append)

    def log(level, text):
        for cache in caches:
            cache.stats()
        lowkey.devices()

    with lowkey.Context(log=log, log_level='debug') as context, \
            lowkey.Cache(context, 'kivi2', '32MiB', geometry=GEOMETRY) as cache:
        caches.append(cache)
        run_step(cache, cache.add(), 1, 300)
    assert seen and all(isinstance(x.exc_value, lowkey.StateError) and 'callback' in str(x.exc_value) for x in seen)


class Memory:
    """An allocator over NumPy that can run out."""

    def __init__(self):
        self.held, self.fail = {}, None

    def allocate(self, n_bytes, alignment):
        if self.fail:
            raise self.fail
        block = np.empty(n_bytes + alignment, np.uint8)
        pointer = -(-block.ctypes.data // alignment) * alignment
        self.held[pointer] = (block, n_bytes, alignment)
        return pointer

    def release(self, pointer, n_bytes, alignment):
        _, *was = self.held.pop(pointer)
        assert was == [n_bytes, alignment]


def test_allocator(monkeypatch):
    memory, seen = Memory(), []
    monkeypatch.setattr(sys, 'unraisablehook', seen.append)
    with lowkey.Context(allocator=(memory.allocate, memory.release)) as context:
        with lowkey.Cache(context, 'kivi2', '32MiB', geometry=GEOMETRY) as cache:
            run_step(cache, cache.add(), 1, 200)
            assert memory.held
        memory.fail = MemoryError('no more')
        with pytest.raises(lowkey.OutOfMemoryError):
            lowkey.Cache(context, 'kivi2', '32MiB', geometry=GEOMETRY)
        assert seen and seen[0].exc_value is memory.fail
    assert not memory.held


def test_threads_wait_for_each_other(cache):
    """Calls of several threads on one cache run one after the other; each ends well or with a sentence."""
    sequences, faults, done = [cache.add() for _ in range(4)], [], []

    def work(sequence, seed):
        for i in range(30):
            try:
                run_step(cache, sequence, seed * 100 + i, 2)
                done.append(seed)
            except lowkey.StateError:  # another thread's step is open
                pass
            except BaseException as fault:
                faults.append(fault)
            cache.stats()
            cache.poll()

    threads = [threading.Thread(target=work, args=(s, i)) for i, s in enumerate(sequences)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults and done
    assert sum(len(s) for s in sequences) == 2 * len(done)


def test_close_beside_calls(context):
    """A thread that closes a cache under another one gives that one an exception."""
    for _ in range(5):
        cache = lowkey.Cache(context, 'fp16', '32MiB', geometry=GEOMETRY)
        sequence, faults = cache.add(), []

        def work(cache=cache, sequence=sequence, faults=faults):
            try:
                for i in range(10**6):
                    run_step(cache, sequence, i, 8)
            except lowkey.Error as fault:
                faults.append(fault)

        thread = threading.Thread(target=work)
        thread.start()
        while not cache.stats().n_tokens:
            pass
        cache.close()
        thread.join(30)
        assert isinstance(faults[0], lowkey.ClosedError)


LOADER = '''
import lowkey
try:
    lowkey.version()
except lowkey.LibraryError as error:
    print(error)
'''


@pytest.mark.parametrize('library, sentence', [('/nonexistent/liblowkey.so', 'no shared library of lowkey; the wheel of lowkey contains it, or set LOWKEY'),
                                              ('libm.so.6', 'it is another library')])
def test_wrong_library(library, sentence, monkeypatch):
    monkeypatch.setenv('LOWKEY_LIBRARY', library)
    out = subprocess.run([sys.executable, '-c', LOADER], check=True, timeout=60, capture_output=True, text=True).stdout
    assert sentence in out


def test_wrong_version(monkeypatch):
    from lowkey import _abi, _library
    handle = _library.library().handle
    for major, minor in ((1, 0), (_abi.ABI_MAJOR, _abi.ABI_MINOR + 100)):
        monkeypatch.setattr(_abi, 'ABI_MAJOR', major)
        monkeypatch.setattr(_abi, 'ABI_MINOR', minor)
        with pytest.raises(lowkey.LibraryError, match=rf'this package needs {major}\.{minor}'):
            _library.Library(handle)


@pytest.mark.parametrize('name, number', [('max_step_tokens', 2**32 + 5), ('max_sequences', -1)])
def test_numbers_that_a_field_cannot_hold(context, geometry, name, number):
    """ctypes would keep the lower 32 bits."""
    with pytest.raises(lowkey.ArgumentError, match=f'{name} is {number}, which does not fit'):
        lowkey.Cache(context, 'kivi2', '64MiB', geometry=geometry, **{name: number})
