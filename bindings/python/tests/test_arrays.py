# SPDX-License-Identifier: Apache-2.0
"""Arrays in and out: who makes them, how they lie, and what is refused."""

from __future__ import annotations

import array
import ctypes
import struct
import subprocess
import sys

import numpy as np
import pytest
from conftest import GEOMETRY, attention, tensors

import lowkey
from lowkey import arrays, dlpack, streams


def attend(cache, sequence, q, k, v, **options):
    with cache.step(sequence, (q.made if isinstance(q, Producer) else q).shape[0]) as step:
        step.append(0, k, v)
        out = step.attend(0, q, **options)
        step.append(1, k, v)
        step.attend(1, q)
    return out


@pytest.mark.parametrize('dtype', [np.float16, np.float32])
def test_numpy(cache, dtype):
    q, k, v = tensors(1, 21, dtype=dtype)
    out, lse = attend(cache, cache.add(), q, k, v, lse=True)
    want, want_lse = attention(q, np.float16(k), np.float16(v))
    assert out.dtype == dtype and lse.dtype == np.float32 and lse.shape == (21, 8)
    assert np.abs(out - want).max() < 2e-3 and np.abs(lse - want_lse).max() < 1e-3


def test_bfloat16(cache):
    bfloat16 = pytest.importorskip('ml_dtypes').bfloat16
    q, k, v = (x.astype(bfloat16) for x in tensors(2, 5))
    out = attend(cache, cache.add(), q, k, v)
    assert out.dtype == bfloat16
    assert np.abs(np.float64(out) - attention(q, k, v)[0]).max() < 2e-2


def test_results_are_written_in_place(cache):
    q, k, v = tensors(3, 6)
    out, lse = np.zeros((6, 8, 64), np.float32), np.zeros((6, 8, 1), np.float32)
    same, also = attend(cache, cache.add(), q, k, v, out=out, lse=lse)
    assert same is out and also is lse
    want, want_lse = attention(q, k, v)
    assert np.abs(out - want).max() < 2e-3 and np.abs(lse[..., 0] - want_lse).max() < 1e-3


def test_strides_are_passed_on(cache):
    """Head-major arrays, slices of wider ones, and one row for all tokens."""
    q, k, v = tensors(4, 12)
    plain = attend(cache, cache.add(), q, k, v)
    packed = np.zeros((12, 12, 70), np.float16)
    packed[:, :8, :64], packed[:, 8:10, :64], packed[:, 10:, :64] = q, k, v
    views = packed[:, :8, :64], packed[:, 8:10, :64], packed[:, 10:, :64]
    assert np.array_equal(attend(cache, cache.add(), *views), plain)
    head_major = [np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2) for x in (q, k, v)]
    out = np.zeros((8, 12, 64), np.float16).transpose(1, 0, 2)
    attend(cache, cache.add(), *head_major, out=out)
    assert np.array_equal(out, plain)
    repeated = np.broadcast_to(k[:1], k.shape)  # a token stride of 0, and read-only
    assert np.array_equal(attend(cache, cache.add(), q, repeated, v), attend(cache, cache.add(), q, repeated.copy(), v))


def test_channel_stride_is_refused(cache):
    q, k, v = tensors(5, 4)
    wide = np.zeros((4, 2, 128), np.float16)
    with pytest.raises(lowkey.ArgumentError, match='channel stride of k is 2 elements and must be 1'), \
            cache.step(cache.add(), 4) as step:
        step.append(0, wide[:, :, ::2], v)
    with pytest.raises(lowkey.ArgumentError, match='channel stride is 2'):
        lowkey.Tensor(wide[:, :, ::2])


def test_negative_stride_is_refused(cache):
    q, k, v = tensors(6, 4)
    with pytest.raises(lowkey.ArgumentError, match='stride'), cache.step(cache.add(), 4) as step:
        step.append(0, k[::-1], v)


@pytest.mark.parametrize('bad, sentence', [
    (np.zeros((4, 3, 64), np.float16), r'k has shape \[4, 3, 64\].*4 tokens, 2 heads, 64 channels'),
    (np.zeros((3, 2, 64), np.float16), r'k has shape \[3, 2, 64\]'),
    (np.zeros((4, 128), np.float16), r'k has shape \[4, 128\]'),
    (np.zeros((4, 2, 64), np.int16), 'element type int16'),
    (np.zeros((4, 2, 64), np.float64), 'element type float64'),
    (np.zeros((4, 2, 64), '>f2'), 'foreign order'),
    ([1.0, 2.0], 'list is no array'),
    (None, 'NoneType is no array'),
])
def test_wrong_arrays_are_refused(cache, bad, sentence):
    q, k, v = tensors(7, 4)
    with pytest.raises(lowkey.Error, match=sentence), cache.step(cache.add(), 4) as step:
        step.append(0, bad, v)


def test_read_only_results_are_refused(cache):
    q, k, v = tensors(8, 4)
    out = np.zeros_like(q)
    out.flags.writeable = False
    for result in (out, lowkey.Tensor(out)):
        with pytest.raises(lowkey.ArgumentError, match='out is read-only'), cache.step(cache.add(), 4) as step:
            step.append(0, k, v)
            step.attend(0, q, result)


def test_tensor_is_made_once(cache):
    q, k, v = tensors(9, 3)
    out = np.zeros_like(q)
    made = [lowkey.Tensor(x) for x in (q, k, v, out)]
    assert attend(cache, cache.add(), *made[:3], out=made[3]) is made[3]
    assert np.array_equal(out, attend(cache, cache.add(), q, k, v))
    with pytest.raises(lowkey.ArgumentError, match=r'q has shape \[3, 2, 64\]'), cache.step(cache.add(), 3) as step:
        step.append(0, made[1], made[2])
        step.attend(0, made[1], out)


class Producer:
    """An array of a package that lowkey does not know: DLPack and nothing else."""

    def __init__(self, made, old: bool = False):
        self.made, self.old, self.requests = made, old, []

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        self.requests.append(options)
        if self.old and 'max_version' in options:
            raise TypeError('unexpected keyword argument')
        made = self.made
        return dlpack.export(made, made.ctypes.data, made.shape, dlpack.FLOAT, made.itemsize * 8, not self.old)


@pytest.mark.parametrize('old', [False, True], ids=['versioned', 'before-1.0'])
def test_dlpack_in(cache, old):
    q, k, v = tensors(10, 7, dtype=np.float32)
    producers = [Producer(x, old) for x in (q, k, v)]
    before = len(dlpack._exports)
    out = attend(cache, cache.add(), *producers)
    assert producers[0].requests[-1] == ({} if old else {'max_version': (1, 0)})
    assert isinstance(out, lowkey.Array) and out.shape == (7, 8, 64) and out.dtype == 'float32'
    assert np.array_equal(np.asarray(out), attend(cache, cache.add(), q, k, v))
    assert len(dlpack._exports) == before, 'capsules that nobody consumed free what they hold'


def test_dlpack_out():
    made = lowkey.Array((3, 5), 'float32')
    memoryview(made.data).cast('B')[:] = struct.pack('15f', *range(15))
    before = len(dlpack._exports)
    taken = np.from_dlpack(made)
    assert np.array_equal(taken, np.arange(15, dtype=np.float32).reshape(3, 5))
    pointer = made.pointer
    del made  # the consumer keeps the memory
    assert taken.ctypes.data == pointer and taken[2, 4] == 14
    del taken
    assert len(dlpack._exports) == before


def test_dlpack_out_to_torch():
    torch = pytest.importorskip('torch')
    for dtype in ('float16', 'bfloat16', 'float32'):
        made = lowkey.Array((2, 4), dtype)
        taken = torch.from_dlpack(made)
        assert taken.dtype == getattr(torch, dtype) and taken.data_ptr() == made.pointer


def test_dlpack_refuses_what_it_cannot():
    made = lowkey.Array((2, 2), 'float16')
    with pytest.raises(BufferError):
        made.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError):
        made.__dlpack__(copy=True)
    with pytest.raises(BufferError, match='no capsule'):
        dlpack.read(object())
    foreign = Producer(np.zeros((2, 2), np.float32))
    foreign.__class__ = type('Vulkan', (Producer,), {'__dlpack_device__': lambda self: (7, 0)})
    with pytest.raises(lowkey.UnsupportedError, match='DLPack device 7'):
        lowkey.Tensor(foreign)


def test_torch(cache):
    torch = pytest.importorskip('torch')
    q, k, v = (torch.from_numpy(x) for x in tensors(11, 9))
    out, lse = attend(cache, cache.add(), q, k, v, lse=True)
    assert isinstance(out, torch.Tensor) and out.dtype == torch.float16 and lse.dtype == torch.float32
    assert np.array_equal(out.numpy(), attend(cache, cache.add(), q.numpy(), k.numpy(), v.numpy()))
    with pytest.raises(lowkey.ArgumentError, match='requires a gradient'), cache.step(cache.add(), 9) as step:
        step.append(0, k.clone().requires_grad_(), v)
    with pytest.raises(lowkey.UnsupportedError, match='tensors on meta'), cache.step(cache.add(), 9) as step:
        step.append(0, k.to('meta'), v)


class CudaArray:
    """What CuPy shows of an array, over made-up addresses."""

    def __init__(self, shape, typestr='<f2', strides=None, stream=None, read_only=False):
        self.__cuda_array_interface__ = {'shape': shape, 'typestr': typestr, 'data': (0x1000, read_only), 'version': 3,
                                         'strides': strides, 'stream': stream}


def test_cuda_array_interface():
    tensor = lowkey.Tensor(CudaArray((4, 2, 64), strides=(512, 256, 2), read_only=True))
    assert (tensor.struct.data, tensor.struct.memory, tensor.struct.dtype) == (0x1000, 2, 1)
    assert (tensor.struct.token_stride, tensor.struct.head_stride, tensor.writable) == (256, 128, False)
    with pytest.raises(lowkey.UnsupportedError, match='<f8'):
        lowkey.Tensor(CudaArray((4, 2, 64), '<f8'))


def test_cuda_memory_on_a_cpu_context_is_refused(cache):
    with pytest.raises(lowkey.UnsupportedError, match='memory|host'), cache.step(cache.add(), 4) as step:
        step.append(0, CudaArray((4, 2, 64)), CudaArray((4, 2, 64)))


class Driver:
    """Stands for libcuda: keeps the arguments of its calls."""

    def __init__(self, status=0):
        self.calls, self.status = [], status

    def cuEventCreate(self, event, flags):
        event._obj.value = 0xE
        self.calls.append(('create', flags))
        return 0

    def cuEventRecord(self, event, stream):
        self.calls.append(('record', event.value, stream))
        return self.status

    def cuStreamWaitEvent(self, stream, event, flags):
        self.calls.append(('wait', stream, event.value))
        return 0

    def cuEventDestroy_v2(self, event):
        self.calls.append(('destroy', event.value))
        return 0


def test_streams_are_ordered(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(streams, '_driver', driver)
    arrays.describe(CudaArray((4, 2, 64), stream=0x77), 0x55)
    assert driver.calls == [('create', 2), ('record', 0xE, 0x77), ('wait', 0x55, 0xE), ('destroy', 0xE)]
    for ours, theirs in ((0x77, 0x77), (0, 1), (5, None)):  # one stream, the default one, none named
        driver.calls.clear()
        arrays.describe(CudaArray((4, 2, 64), stream=theirs), ours)
        assert not driver.calls
    monkeypatch.setattr(streams, '_driver', Driver(status=201))
    with pytest.raises(lowkey.DeviceError, match='CUresult 201'):
        arrays.describe(CudaArray((4, 2, 64), stream=0x77), 0x55)


def test_stream_handles():
    class Torch:
        cuda_stream = 11

    class Cupy:
        ptr = 12

    class Core:
        def __cuda_stream__(self):
            return 0, 13

    assert [streams.handle_of(x) for x in (10, Torch(), Cupy(), Core())] == [10, 11, 12, 13]
    with pytest.raises(lowkey.ArgumentError, match='str is no CUDA stream'):
        streams.handle_of('0')


def test_buffer_protocol(cache):
    q, k, v = tensors(12, 2, dtype=np.float32)
    shaped = [memoryview(array.array('f', x.ravel())).cast('B').cast('f', x.shape) for x in (q, k, v)]
    out = attend(cache, cache.add(), *shaped)
    assert np.array_equal(np.asarray(out), attend(cache, cache.add(), q, k, v))
    with pytest.raises(lowkey.UnsupportedError, match='buffer format d'):
        lowkey.Tensor(memoryview(array.array('d', range(8))).cast('B').cast('d', (2, 2, 2)))


WITHOUT_NUMPY = '''
import array, sys
sys.modules['numpy'] = None  # an import of it fails
import lowkey
geometry = lowkey.Geometry.uniform(1, 2, 1, 32)
def tensor(heads):
    return memoryview(array.array('f', [0.5] * heads * 32)).cast('B').cast('f', (1, heads, 32))
with lowkey.Context() as context, lowkey.Cache(context, 'kivi2', '32MiB', geometry=geometry) as cache:
    sequence = cache.add()
    with cache.step(sequence, 1) as step:
        step.append(0, tensor(1), tensor(1))
        out, lse = step.attend(0, tensor(2), lse=True)
    assert out.tolist() == [0.5] * 64 and abs(lse.tolist()[0] - 0.25 * 32 ** 0.5) < 1e-5, lse.tolist()
    assert len(sequence) == 1
'''


def test_standard_library_is_enough():
    subprocess.run([sys.executable, '-c', WITHOUT_NUMPY], check=True, timeout=60)


def test_merge(context, cache):
    """Two caches that share a sequence's keys give what one with all of them gives."""
    q, k, v = tensors(13, 16)
    whole, whole_lse = attention(q[-1:], k, v)
    splits = []
    for keys, values in ((k[:10], v[:10]), (k[10:], v[10:])):
        sequence = cache.add()
        if len(keys) > 1:
            attend(cache, sequence, q[:len(keys) - 1], keys[:-1], values[:-1])
        splits.append(attend(cache, sequence, np.float32(q[-1:]), keys[-1:], values[-1:], lse=True))
    outs, lses = zip(*splits)
    out, lse = lowkey.merge(context, outs, lses, lse=True)
    assert np.abs(out - whole).max() < 1e-4 and np.abs(lse - whole_lse).max() < 1e-4
    into = np.zeros((1, 8, 64), np.float16)
    assert lowkey.merge(context, outs, lses, into) is into
    assert np.abs(into - whole).max() < 2e-3
    with pytest.raises(lowkey.ArgumentError, match='each split has one of both'):
        lowkey.merge(context, outs, lses[:1])
    with pytest.raises(lowkey.ArgumentError, match=r'lses\[1\] has shape \[1, 1, 1\]'):
        lowkey.merge(context, outs, (lses[0], np.zeros((1, 1), np.float32)))
    with pytest.raises(lowkey.ArgumentError):
        lowkey.merge(context, outs * 9, lses * 9)


def test_pointer_types_are_the_ones_of_the_platform():
    assert ctypes.sizeof(ctypes.c_void_p) == 8 and GEOMETRY.layers[0].head_dim == 64
