# SPDX-License-Identifier: Apache-2.0
"""Contexts and caches in processes that multiprocessing makes by fork."""

from __future__ import annotations

import multiprocessing
import threading

import numpy as np
from conftest import WHOLE, run_step

import lowkey

SECONDS = 60


def run_child(work, *arguments):
    """Run work in a forked process, which must end in time, and get what it returns."""
    forked = multiprocessing.get_context('fork')
    ours, its = forked.Pipe(duplex=False)
    child = forked.Process(target=lambda: its.send(work(*arguments)))
    child.start()
    its.close()
    try:
        assert ours.poll(SECONDS), 'the child hangs'
        found = ours.recv()
        child.join(SECONDS)
        assert child.exitcode == 0
        return found
    finally:
        child.kill()


def next_output(cache, sequence):
    return run_step(cache, sequence, 99, 1)[-1][-1]


def make(context):
    return lowkey.Cache(context, 'kivi2', '64MiB', geometry=WHOLE, max_sequences=4)


def test_a_child_goes_on(context):
    with make(context) as cache:
        sequence = cache.add()
        run_step(cache, sequence, 1, 300)

        def work():
            out = next_output(cache, sequence)
            sequence.truncate(200)
            run_step(cache, sequence, 2, 40)
            cache.close()
            context.close()
            return out

        found = run_child(work)
        np.testing.assert_array_equal(found, next_output(cache, sequence))


def test_another_thread_is_in_a_call(context):
    """Locks that the other thread held are free in the child; its cache is whole or refused."""
    stop = threading.Event()
    with make(context) as busy, make(context) as idle:
        sequence = idle.add()
        run_step(idle, sequence, 1, 300)
        other = busy.add()

        def steps():
            while not stop.is_set():
                run_step(busy, other, 3, 60)
                other.truncate(0)

        def work():
            try:
                busy.stats()
                state = 'whole'
            except lowkey.DeviceError:
                state = 'refused'
            out = next_output(idle, sequence)
            busy.close()
            idle.close()
            context.close()
            return state, out

        thread = threading.Thread(target=steps)
        thread.start()
        try:
            found = [run_child(work) for _ in range(10)]
        finally:
            stop.set()
            thread.join()
        expected = next_output(idle, sequence)
        for _, out in found:
            np.testing.assert_array_equal(out, expected)
        assert {state for state, _ in found} <= {'whole', 'refused'}
