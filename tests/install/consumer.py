# SPDX-License-Identifier: Apache-2.0
"""Calls the shared library through ctypes alone: version, devices, a plan and its bytes."""
import ctypes as c
import sys


class DeviceInfo(c.Structure):
    _fields_ = [('size', c.c_uint32), ('backend', c.c_uint32), ('index', c.c_uint32),
                ('n_threads', c.c_uint32), ('memory_bytes', c.c_uint64),
                ('free_bytes', c.c_uint64), ('name', c.c_char * 128), ('features', c.c_char * 128)]


class Layer(c.Structure):
    _fields_ = [('size', c.c_uint32), ('n_query_heads', c.c_uint32), ('n_kv_heads', c.c_uint32),
                ('head_dim', c.c_uint32), ('window_tokens', c.c_uint32),
                ('window_sink_tokens', c.c_uint32), ('scale', c.c_float), ('soft_cap', c.c_float),
                ('sink_logits', c.POINTER(c.c_float))]


class Geometry(c.Structure):
    _fields_ = [('size', c.c_uint32), ('n_layers', c.c_uint32), ('layers', c.POINTER(Layer))]


class PlanSize(c.Structure):
    _fields_ = [('size', c.c_uint32), ('n_blocks', c.c_uint32), ('bits_per_value', c.c_double),
                ('bytes_per_token', c.c_double), ('fp16_bytes', c.c_uint64),
                ('payload_bytes', c.c_uint64), ('metadata_bytes', c.c_uint64),
                ('recent_bytes', c.c_uint64), ('table_bytes', c.c_uint64),
                ('cache_bytes', c.c_uint64)]


def main():
    lk = c.CDLL(sys.argv[1])
    lk.lk_version.restype = c.c_char_p
    lk.lk_status_name.restype = c.c_char_p

    def check(status):
        if status != 0:
            sentence = c.create_string_buffer(512)
            lk.lk_last_error(sentence, c.c_size_t(512), None)
            sys.exit(f'{lk.lk_status_name(status).decode()}: {sentence.value.decode()}')

    def start(init, kind):
        value = kind()
        check(init(c.byref(value), c.c_size_t(c.sizeof(value))))
        return value

    print('version', lk.lk_version().decode())
    count = c.c_uint32()
    check(lk.lk_device_count(c.byref(count)))
    assert count.value >= 1, 'the CPU is a device'
    for ordinal in range(count.value):
        info = start(lk.lk_device_info_init, DeviceInfo)
        check(lk.lk_device_get(c.c_uint32(ordinal), c.byref(info)))
        print('device', ordinal, info.name.decode(), info.features.decode())
        assert info.memory_bytes > 0 and info.name

    layers = (Layer * 32)(*(start(lk.lk_layer_init, Layer) for _ in range(32)))
    for layer in layers:
        layer.n_query_heads, layer.n_kv_heads, layer.head_dim = 32, 8, 128
    geometry = start(lk.lk_geometry_init, Geometry)
    geometry.n_layers, geometry.layers = 32, layers
    plan = c.c_void_p()
    size = start(lk.lk_plan_size_init, PlanSize)
    for preset, bits in ((b'kivi2', 2.25), (b'kivi4', 4.25)):
        check(lk.lk_plan_preset(preset, c.byref(geometry), c.byref(plan)))
        check(lk.lk_plan_bytes(plan, c.c_uint64(131072), 1, 1, c.byref(size)))
        lk.lk_plan_destroy(c.byref(plan))
        print(preset.decode(), size.bits_per_value, 'bits,', size.cache_bytes, 'bytes')
        assert abs(size.bits_per_value - bits) < 1e-9
        assert size.payload_bytes < size.cache_bytes < size.fp16_bytes
    assert not plan, 'destroy sets the handle to NULL'


if __name__ == '__main__':
    main()
