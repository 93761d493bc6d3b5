# SPDX-License-Identifier: Apache-2.0
"""On a GPU: PyTorch's memory and streams, DLPack, the CUDA array interface, and a step from a graph."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import GEOMETRY, attention, tensors

import lowkey

torch = pytest.importorskip('torch')
if not torch.cuda.is_available() or not any(device.backend == 'cuda' for device in lowkey.devices()):
    pytest.skip('no GPU that torch and lowkey both run on', allow_module_level=True)


@pytest.fixture
def cache():
    with lowkey.Context('cuda') as context, \
            lowkey.Cache(context, 'fp16', '256MiB', geometry=GEOMETRY, max_sequences=4) as made:
        yield made


def on_gpu(seed: int, n_tokens: int):
    return [torch.from_numpy(x).cuda() for x in tensors(seed, n_tokens)]


def run(cache, sequence, q, k, v, **options):
    """A step whose layers all get these; the first layer's output."""
    outs = []
    with cache.step(sequence, len(q), **options) as step:
        for layer in range(2):
            step.append(layer, k, v)
            outs.append(step.attend(layer, q))
    return outs[0]


def test_on_the_current_stream(cache):
    """No wait but torch's own on its stream between making the tensors and reading the result."""
    with torch.cuda.stream(torch.cuda.Stream()):
        q, k, v = on_gpu(1, 70)
        out = run(cache, cache.add(), q, k, v)
        want = attention(*(x.cpu().numpy() for x in (q, k, v)))[0]
        assert out.is_cuda and np.abs(out.cpu().numpy() - want).max() < 5e-3


def test_on_a_named_stream(cache):
    stream = torch.cuda.Stream()
    q, k, v = on_gpu(2, 5)
    stream.wait_stream(torch.cuda.current_stream())
    for named in (stream, stream.cuda_stream):
        out = run(cache, cache.add(), q, k, v, stream=named)
        stream.synchronize()
        assert np.abs(out.cpu().numpy() - attention(*(x.cpu().numpy() for x in (q, k, v)))[0]).max() < 5e-3


class Interface:
    """An array of a package that has the CUDA array interface alone."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.__cuda_array_interface__ = dict(tensor.__cuda_array_interface__, version=3,
                                             stream=torch.cuda.current_stream().cuda_stream or 1)


class Capsule:
    """An array of a package that has DLPack alone."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)


@pytest.mark.parametrize('kind', [Interface, Capsule])
def test_other_producers(cache, kind):
    q, k, v = on_gpu(3, 9)
    want = run(cache, cache.add(), q, k, v)
    out = torch.empty_like(q)
    with cache.step(cache.add(), 9) as step:
        for layer in range(2):
            step.append(layer, kind(k), kind(v))
            step.attend(layer, kind(q), out if layer == 0 else torch.empty_like(q))
    assert torch.equal(out, want)
    with pytest.raises(lowkey.ArgumentError, match='give out'), cache.step(cache.add(), 9) as step:
        step.append(0, kind(k), kind(v))
        step.attend(0, kind(q))


def test_host_memory_is_refused(cache):
    with pytest.raises(lowkey.Error, match='host|memory'), cache.step(cache.add(), 4) as step:
        _, k, v = tensors(4, 4)
        step.append(0, k, v)


def test_graph_replay(cache):
    """Append and attend of all layers, captured once, serve later steps of the shape."""
    captured, plain = cache.add(), cache.add()
    q, k, v = on_gpu(5, 1)
    out = [torch.empty_like(q) for _ in range(2)]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for number in range(4):
            for x, made in zip((q, k, v), on_gpu(10 + number, 1)):
                x.copy_(made)
            with cache.step(captured, 1) as step:
                if number:
                    step.replay()
                else:
                    graph.capture_begin()
                    for layer in range(2):
                        step.append(layer, k, v)
                        step.attend(layer, q, out[layer])
                    graph.capture_end()
                graph.replay()
            want = run(cache, plain, q, k, v)
            assert torch.equal(out[0], want)
    stream.synchronize()
    assert len(captured) == len(plain) == 4
