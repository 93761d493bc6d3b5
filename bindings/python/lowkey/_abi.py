# SPDX-License-Identifier: Apache-2.0
"""The C interface for ctypes: structs, constants and the table of functions.

This is the only file that repeats include/lowkey/*.h; tests/test_abi.py compares it with the
headers through a C compiler. A new field goes to the end of its struct, a new constant into CONSTANTS,
a new function into FUNCTIONS.
"""

from __future__ import annotations

import ctypes as c
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from .errors import ArgumentError

ABI_MAJOR = 0
ABI_MINOR = 2
ABI_VERSION = ABI_MAJOR << 16 | ABI_MINOR

LogFn = CFUNCTYPE(None, c_void_p, c_uint32, c_char_p)
AllocFn = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)
FreeFn = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_size_t)
ParallelForFn = CFUNCTYPE(None, c_void_p, c_uint32, c_void_p, c_void_p)
WriteFn = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t)
ReadFn = CFUNCTYPE(c_int64, c_void_p, c_void_p, c_size_t)
PressureFn = CFUNCTYPE(c_uint32, c_void_p, c_void_p)
ProgressFn = CFUNCTYPE(c_int32, c_void_p, c_uint64, c_uint64)


class Struct(Structure):
    """A struct whose fields refuse numbers of which ctypes would keep the lower bits."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, int) and (getattr(self, name) or 0) != value:
            raise ArgumentError(f'{name} is {value}, which does not fit into its field')


class Tensor(Structure):  # set for each call, by arrays alone
    _fields_ = [('size', c_uint32), ('dtype', c_uint32), ('memory', c_uint32), ('flags', c_uint32),
                ('data', c_void_p), ('buffer', c_uint64), ('offset_bytes', c_uint64),
                ('token_stride', c_int64), ('head_stride', c_int64)]


class Queue(Struct):
    _fields_ = [('size', c_uint32), ('kind', c_uint32), ('handle', c_void_p),
                ('wait_semaphore', c_uint64), ('wait_value', c_uint64),
                ('signal_semaphore', c_uint64), ('signal_value', c_uint64)]


class DeviceInfo(Struct):
    _fields_ = [('size', c_uint32), ('backend', c_uint32), ('index', c_uint32), ('n_threads', c_uint32),
                ('memory_bytes', c_uint64), ('free_bytes', c_uint64),
                ('name', c_char * 128), ('features', c_char * 128)]


class VulkanDesc(Struct):
    _fields_ = [('size', c_uint32), ('mask', c_uint32), ('validation', c_uint32), ('api_version', c_uint32),
                ('get_instance_proc_addr', c_void_p), ('instance', c_void_p), ('physical_device', c_void_p),
                ('device', c_void_p), ('queue', c_void_p), ('queue_family', c_uint32),
                ('n_extensions', c_uint32), ('extensions', c_void_p), ('features', c_void_p),
                ('lock_queue', c_void_p), ('unlock_queue', c_void_p), ('lock_user', c_void_p),
                ('pipeline_cache', c_void_p), ('pipeline_cache_bytes', c_uint64)]


class ContextDesc(Struct):
    _fields_ = [('size', c_uint32), ('backend', c_uint32), ('device_index', c_uint32), ('n_threads', c_uint32),
                ('cpu_mask', c_uint32), ('log_level', c_uint32), ('log', LogFn), ('log_user', c_void_p),
                ('alloc', AllocFn), ('free', FreeFn), ('alloc_user', c_void_p), ('vulkan', POINTER(VulkanDesc)),
                ('parallel_for', ParallelForFn), ('parallel_for_user', c_void_p)]


class Capability(Struct):
    _fields_ = [('size', c_uint32), ('head_dim', c_uint32), ('group_size', c_uint32), ('key_bits', c_uint32),
                ('value_bits', c_uint32), ('page_tokens', c_uint32), ('memory', c_uint32), ('dtype', c_uint32),
                ('queue', c_uint32), ('value_dim', c_uint32), ('is_latent', c_uint32)]


class Layer(Struct):
    _fields_ = [('size', c_uint32), ('n_query_heads', c_uint32), ('n_kv_heads', c_uint32), ('head_dim', c_uint32),
                ('window_tokens', c_uint32), ('window_sink_tokens', c_uint32), ('scale', c_float),
                ('soft_cap', c_float), ('sink_logits', POINTER(c_float)), ('kv_layer', c_uint32),
                ('reserved', c_uint32), ('value_dim', c_uint32), ('flags', c_uint32)]


class Geometry(Struct):
    _fields_ = [('size', c_uint32), ('n_layers', c_uint32), ('layers', POINTER(Layer))]


class ChunkRule(Struct):
    _fields_ = [('size', c_uint32), ('chunk_tokens', c_uint32), ('low_bits', c_uint32), ('middle_bits', c_uint32),
                ('high_bits', c_uint32), ('alpha', c_float), ('beta', c_float), ('reorder', c_uint32),
                ('hold', c_uint32)]


class ChunkMix(Struct):
    _fields_ = [('size', c_uint32), ('n_low', c_uint32), ('n_middle', c_uint32), ('n_high', c_uint32)]


class Bm25(Struct):
    _fields_ = [('size', c_uint32), ('chunk_tokens', c_uint32), ('k1', c_double), ('b', c_double)]


class ChunkQuota(Struct):
    _fields_ = [('size', c_uint32), ('block_chunks', c_uint32), ('low_share', c_double), ('high_share', c_double),
                ('budget_bytes', c_uint64), ('low_bytes', c_uint64), ('middle_bytes', c_uint64),
                ('high_bytes', c_uint64)]


class ChunkAttention(Struct):
    _fields_ = [('size', c_uint32), ('n_query_tokens', c_uint32), ('chunk_tokens', c_uint32), ('n_chunks', c_uint32),
                ('n_layers', c_uint32), ('reserved', c_uint32), ('layers', POINTER(c_uint32))]


class ChunksInfo(Struct):
    _fields_ = [('size', c_uint32), ('n_chunks', c_uint32), ('chunk_tokens', c_uint32), ('is_assigned', c_uint32),
                ('deferral', c_uint32), ('n_low', c_uint32), ('n_middle', c_uint32), ('n_high', c_uint32),
                ('n_wider', c_uint32), ('n_narrower', c_uint32), ('first_token', c_uint64),
                ('retained_bytes', c_uint64), ('n_pending', c_uint32), ('reserved', c_uint32)]


class ChanMixLayout(Struct):
    _fields_ = [('size', c_uint32), ('head_dim', c_uint32), ('token_bytes', c_uint32), ('reserved', c_uint32),
                ('channel', c_uint8 * 256), ('bits', c_uint8 * 256), ('byte', c_uint8 * 256),
                ('shift', c_uint8 * 256)]


class KeyRule(Struct):
    _fields_ = [('size', c_uint32), ('bits', c_uint32), ('axis', c_uint32), ('group', c_uint32),
                ('boost_channels', c_uint32), ('boost_bits', c_uint32), ('boost_ranking', c_uint32),
                ('channel_bits', POINTER(c_uint8)), ('one_bit', c_uint32), ('clip', c_float)]


class ValueRule(Struct):
    _fields_ = [('size', c_uint32), ('bits', c_uint32), ('group', c_uint32), ('one_bit', c_uint32),
                ('clip', c_float)]


class PlanSize(Struct):
    _fields_ = [('size', c_uint32), ('n_blocks', c_uint32), ('bits_per_value', c_double),
                ('bytes_per_token', c_double), ('fp16_bytes', c_uint64), ('payload_bytes', c_uint64),
                ('metadata_bytes', c_uint64), ('recent_bytes', c_uint64), ('table_bytes', c_uint64),
                ('cache_bytes', c_uint64)]


class CacheDesc(Struct):
    _fields_ = [('size', c_uint32), ('max_sequences', c_uint32), ('max_step_tokens', c_uint32), ('flags', c_uint32),
                ('budget_bytes', c_uint64), ('slab_bytes', c_uint64), ('max_budget_bytes', c_uint64),
                ('sequence_limit_bytes', c_uint64), ('pressure', PressureFn), ('pressure_user', c_void_p),
                ('state_bytes', POINTER(c_uint64)), ('n_states', c_uint32), ('state_versions', c_uint32),
                ('state_interval_tokens', c_uint32), ('reserved', c_uint32)]


class Pressure(Struct):
    _fields_ = [('size', c_uint32), ('capacity', c_uint32), ('shortfall_bytes', c_uint64), ('reserved_bytes', c_uint64),
                ('budget_bytes', c_uint64), ('ids', POINTER(c_uint64)), ('n_ids', c_uint32), ('reserved', c_uint32)]


class CacheStats(Struct):
    _fields_ = [('size', c_uint32), ('n_sequences', c_uint32), ('n_tokens', c_uint64), ('budget_bytes', c_uint64),
                ('reserved_bytes', c_uint64), ('payload_bytes', c_uint64), ('metadata_bytes', c_uint64),
                ('recent_bytes', c_uint64), ('table_bytes', c_uint64), ('workspace_bytes', c_uint64),
                ('free_bytes', c_uint64), ('pages_packed', c_uint64), ('pages_dequantized', c_uint64),
                ('values_saturated', c_uint64), ('device_bytes', c_uint64), ('shared_bytes', c_uint64),
                ('pages_copied', c_uint64), ('pages_shrunk', c_uint64), ('sequences_evicted', c_uint64),
                ('fragmented_bytes', c_uint64), ('plane_bytes', c_uint64 * 6), ('state_bytes', c_uint64)]


class SnapshotDesc(Struct):
    _fields_ = [('size', c_uint32), ('fingerprint_bytes', c_uint32), ('fingerprint', c_void_p),
                ('progress', ProgressFn), ('progress_user', c_void_p)]


class SnapshotInfo(Struct):
    _fields_ = [('size', c_uint32), ('version', c_uint32), ('n_sequences', c_uint32), ('n_formats', c_uint32),
                ('total_bytes', c_uint64), ('n_tokens', c_uint64), ('n_blocks', c_uint64), ('geometry_hash', c_uint64),
                ('plan_hash', c_uint64), ('fingerprint_bytes', c_uint32), ('fingerprint', c_uint8 * 256),
                ('reserved', c_uint32), ('n_state_versions', c_uint64), ('version_bytes', c_uint64),
                ('n_states', c_uint32), ('reserved2', c_uint32)]


class State(Struct):
    _fields_ = [('size', c_uint32), ('memory', c_uint32), ('data', c_void_p), ('buffer', c_uint64),
                ('offset_bytes', c_uint64), ('bytes', c_uint64)]


class SnapshotSequence(Struct):
    _fields_ = [('size', c_uint32), ('flags', c_uint32), ('id', c_uint64), ('n_tokens', c_uint64),
                ('n_blocks', c_uint64), ('n_shared_blocks', c_uint64)]


class SnapshotFormat(Struct):
    _fields_ = [('size', c_uint32), ('is_value', c_uint32), ('head_dim', c_uint32), ('page_tokens', c_uint32),
                ('channels', c_uint32 * 6), ('n_pages', c_uint64), ('payload_bytes', c_uint64),
                ('metadata_bytes', c_uint64)]


class Probe(Struct):
    _fields_ = [('size', c_uint32), ('prefix_tokens', c_uint32), ('period_tokens', c_uint32),
                ('sink_tokens', c_uint32), ('local_tokens', c_uint32)]


class ChanMix(Struct):
    _fields_ = [('size', c_uint32), ('retrieval', c_uint32), ('scope', c_uint32), ('outliers', c_uint32),
                ('centers', c_uint32), ('metadata', c_uint32), ('group', c_uint32), ('sink_tokens', c_uint32),
                ('recent_tokens', c_uint32), ('retrieval_share', c_double), ('budget_bytes', c_uint64),
                ('budget_tokens', c_uint64), ('budget_sequences', c_uint32), ('budget_step_tokens', c_uint32),
                ('one_bit', c_uint32), ('reserved', c_uint32)]


class Rope(Struct):
    _fields_ = [('size', c_uint32), ('pairing', c_uint32), ('channels', c_uint32), ('reserved', c_uint32),
                ('base', c_double), ('frequencies', POINTER(c_double))]


class ScaleSearch(Struct):
    _fields_ = [('size', c_uint32), ('pairing', c_uint32), ('channels', c_uint32), ('key_bits', c_uint32),
                ('value_bits', c_uint32), ('query_step', c_uint32)]


class PmKvq(Struct):
    _fields_ = [('size', c_uint32), ('n_widths', c_uint32), ('widths', c_uint32 * 4), ('sensitivity', c_uint32),
                ('scope', c_uint32), ('separate_values', c_uint32), ('key_axis', c_uint32), ('group', c_uint32),
                ('key_scales', c_uint32), ('sink_tokens', c_uint32), ('recent_tokens', c_uint32),
                ('budget_bytes', c_uint64), ('budget_tokens', c_uint64), ('budget_sequences', c_uint32),
                ('budget_step_tokens', c_uint32), ('layer_budgets', c_uint32), ('reserved', c_uint32)]


class Auto(Struct):
    _fields_ = [('size', c_uint32), ('centers', c_uint32), ('sink_tokens', c_uint32), ('recent_tokens', c_uint32),
                ('bits_per_value', c_double), ('budget_bytes', c_uint64), ('budget_tokens', c_uint64),
                ('budget_sequences', c_uint32), ('budget_step_tokens', c_uint32)]


# Each struct by the word between lk_ and _init in the name of its initializer.
class CostOptions(Struct):
    _fields_ = [('size', c_uint32), ('n_kinds', c_uint32), ('n_documents', c_uint32), ('clips', c_uint32),
                ('sink_tokens', c_uint32), ('recent_tokens', c_uint32), ('fingerprint', c_uint64)]


class CostTrial(Struct):
    _fields_ = [('size', c_uint32), ('document', c_uint32), ('layer', c_uint32), ('kv_head', c_uint32),
                ('is_value', c_uint32), ('clip', c_float)]


STRUCTS: dict[str, type[Structure]] = {
    'tensor': Tensor, 'queue': Queue, 'device_info': DeviceInfo, 'vulkan_desc': VulkanDesc,
    'context_desc': ContextDesc, 'capability': Capability, 'layer': Layer, 'geometry': Geometry,
    'chunk_rule': ChunkRule, 'chunk_mix': ChunkMix, 'key_rule': KeyRule, 'value_rule': ValueRule,
    'plan_size': PlanSize, 'cache_desc': CacheDesc,
    'cache_stats': CacheStats, 'snapshot_desc': SnapshotDesc, 'snapshot_info': SnapshotInfo,
    'state': State, 'snapshot_sequence': SnapshotSequence, 'snapshot_format': SnapshotFormat,
    'probe': Probe, 'chanmix': ChanMix, 'auto': Auto, 'pressure': Pressure, 'bm25': Bm25, 'chunk_quota': ChunkQuota,
    'chunk_attention': ChunkAttention, 'chunks_info': ChunksInfo, 'chanmix_layout': ChanMixLayout,
    'rope': Rope, 'scale_search': ScaleSearch, 'pmkvq': PmKvq, 'cost_options': CostOptions, 'cost_trial': CostTrial,
}
WITHOUT_INIT = {'pressure'}  # the library fills it
STRUCT_NAMES = {kind: name for name, kind in STRUCTS.items()}

# Numbers of the headers, by their C names.
CONSTANTS: dict[str, int] = {
    'LK_ABI_MAJOR': ABI_MAJOR, 'LK_OK': 0,
    'LK_E_ARGUMENT': -1, 'LK_E_STATE': -2, 'LK_E_NOT_FOUND': -3, 'LK_E_UNSUPPORTED': -4, 'LK_E_NOMEM': -5,
    'LK_E_BUDGET': -6, 'LK_E_CORRUPT': -7, 'LK_E_MISMATCH': -8, 'LK_E_DATA': -9, 'LK_E_BUSY': -10,
    'LK_E_IO': -11, 'LK_E_DEVICE': -12, 'LK_E_INTERNAL': -13,
    'LK_SPANS_WINDOWED': 1,
    'LK_F16': 1, 'LK_BF16': 2, 'LK_F32': 3,
    'LK_MEMORY_HOST': 1, 'LK_MEMORY_CUDA': 2, 'LK_MEMORY_VULKAN': 3,
    'LK_QUEUE_CUDA_STREAM': 1, 'LK_QUEUE_VULKAN_SUBMIT': 2, 'LK_QUEUE_VULKAN_RECORD': 3,
    'LK_BACKEND_CPU': 1, 'LK_BACKEND_CUDA': 2, 'LK_BACKEND_VULKAN': 3,
    'LK_LOG_ERROR': 1, 'LK_LOG_WARNING': 2, 'LK_LOG_INFO': 3, 'LK_LOG_DEBUG': 4,
    'LK_CPU_REFERENCE_ONLY': 1, 'LK_CPU_NO_AVX2': 2, 'LK_CPU_NO_AVX512': 4, 'LK_CPU_NO_NEON': 8,
    'LK_VULKAN_NO_FLOAT16': 1, 'LK_VULKAN_NO_SUBGROUP': 2, 'LK_VULKAN_NO_INTEGER_DOT': 4,
    'LK_VULKAN_NO_COOPERATIVE_MATRIX': 8, 'LK_VULKAN_NO_TIMELINE': 16,
    'LK_ALL': 0xFFFFFFFF, 'LK_OWN_KV': 0xFFFFFFFF, 'LK_LAYER_LATENT': 1, 'LK_AXIS_CHANNEL': 1, 'LK_AXIS_TOKEN': 2,
    'LK_RANKING_KEY': 1, 'LK_RANKING_QUERY_RANGE': 2, 'LK_ONE_BIT_DEVIATION': 1, 'LK_ONE_BIT_RANGE': 2,
    'LK_CHUNK_NONE': 0, 'LK_CHUNK_LOW': 1, 'LK_CHUNK_MIDDLE': 2, 'LK_CHUNK_HIGH': 3,
    'LK_DEFER_OFF': 0, 'LK_DEFER_REFUSE': 1, 'LK_DEFER_PACK': 2,
    'LK_METADATA_F16': 1, 'LK_METADATA_F8': 2, 'LK_ROTATION_NONE': 0, 'LK_ROTATION_HADAMARD': 1,
    'LK_PRESSURE_REFUSE': 0, 'LK_PRESSURE_BUDGET': 1, 'LK_PRESSURE_REMOVE': 2, 'LK_CACHE_EVICT': 1,
    'LK_CACHE_KEEP_WINDOWED': 2,
    'LK_SENSITIVITY_GRADIENT': 1, 'LK_SENSITIVITY_OUTPUT': 2,
    'LK_ROPE_HALVES': 1, 'LK_ROPE_INTERLEAVED': 2, 'LK_POSITION_SCALE': 4, 'LK_SCALE_EXPONENTS': 21, 'LK_COST_CLIPS': 2,
    'LK_COST_TEXTS': 4, 'LK_COST_REFERENCE': 0xFFFFFFFF,
    'LK_DRAFT_TOKENS': 64, 'LK_MERGE_SPLITS': 16,
    'LK_FINGERPRINT_BYTES': 256, 'LK_MAX_STRUCT_BYTES': 4096,
    'LK_STATISTIC_KEY_MIN': 1, 'LK_STATISTIC_KEY_MAX': 2, 'LK_STATISTIC_KEY_RANGE': 3, 'LK_STATISTIC_KEY_MEAN': 4,
    'LK_STATISTIC_KEY_MAGNITUDE': 5, 'LK_STATISTIC_QUERY_MAGNITUDE': 6, 'LK_SCOPE_HEAD': 1, 'LK_SCOPE_LAYER': 2,
    'LK_CHANNEL_SUBNORMAL': 1, 'LK_CHANNEL_NORMAL': 2, 'LK_CHANNEL_OUTLIER': 3,
    'LK_RETRIEVAL_NONE': 1, 'LK_RETRIEVAL_KEY': 2, 'LK_RETRIEVAL_KEY_VALUE': 3,
}

_status = c_int32
_u32 = c_uint32
_u64 = c_uint64
_f64 = c_double
_p = c_void_p
_size = c_size_t

# name: (result, arguments). Handles, structs and arrays are all void pointers; integers have the
# widths that C declares.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    'lk_status_name': (c_char_p, [_status]),
    'lk_status_text': (c_char_p, [_status]),
    'lk_last_error': (_status, [c_char_p, _size, _p]),
    'lk_version': (c_char_p, []),
    'lk_abi_version': (_u32, []),
    'lk_build_info': (c_char_p, []),
    'lk_device_count': (_status, [_p]),
    'lk_device_get': (_status, [_u32, _p]),
    'lk_context_open': (_status, [_p, _u32, _p]),
    'lk_context_close': (_status, [_p]),
    'lk_context_device': (_status, [_p, _p]),
    'lk_context_supports': (_status, [_p, _p]),
    'lk_plan_preset_name': (c_char_p, [_u32]),
    'lk_plan_preset': (_status, [c_char_p, _p, _p]),
    'lk_plan_default': (_status, [_p, c_double, _p]),
    'lk_plan_copy': (_status, [_p, _p]),
    'lk_plan_destroy': (None, [_p]),
    'lk_plan_set_name': (_status, [_p, c_char_p]),
    'lk_plan_set_key': (_status, [_p, _u32, _u32, _p]),
    'lk_plan_set_value': (_status, [_p, _u32, _u32, _p]),
    'lk_plan_set_metadata': (_status, [_p, _u32, _u32]),
    'lk_plan_chunk_bytes': (_status, [_p, _u64, _u32, _u32, _p, _p]),
    'lk_plan_chunk_prefill_bytes': (_status, [_p, _u64, _u32, _u32, _p, _p]),
    'lk_plan_set_pages': (_status, [_p, _u32]),
    'lk_plan_set_chunks': (_status, [_p, _p]),
    'lk_plan_get_chunks': (_status, [_p, _p]),
    'lk_plan_set_recent': (_status, [_p, _u32, _u32]),
    'lk_plan_set_ladder': (_status, [_p, _u32, _p, _u32, _u32]),
    'lk_plan_set_shrink_order': (_status, [_p, _u32, _u32]),
    'lk_plan_set_layer_budget': (_status, [_p, _u32, _u64]),
    'lk_plan_get_layer_budget': (_status, [_p, _u32, _p]),
    'lk_plan_rung': (_status, [_p, _u32, _u64, _u32, _u32, _p]),
    'lk_plan_get_key': (_status, [_p, _u32, _u32, _p]),
    'lk_plan_get_value': (_status, [_p, _u32, _u32, _p]),
    'lk_plan_set_key_centers': (_status, [_p, _u32, _u32, _p]),
    'lk_plan_get_key_centers': (_status, [_p, _u32, _u32, _p]),
    'lk_plan_set_key_scales': (_status, [_p, _u32, _u32, _p]),
    'lk_plan_get_key_scales': (_status, [_p, _u32, _u32, _p]),
    'lk_plan_set_key_rotation': (_status, [_p, _u32, _u32]),
    'lk_plan_get_key_rotation': (_status, [_p, _u32, _p]),
    'lk_plan_get_ladder': (_status, [_p, _u32, _p, _p, _p, _p]),
    'lk_plan_get_layer': (_status, [_p, _u32, _p]),
    'lk_plan_name': (c_char_p, [_p]),
    'lk_plan_get_pages': (_status, [_p, _p, _p, _p]),
    'lk_plan_width': (_status, [_p, _u32, _u32, _u32, _u32, _u32, _u32, _p, _p]),
    'lk_plan_chanmix_layout': (_status, [_p, _u32, _u32, _p]),
    'lk_chanmix_pack': (_status, [_p, _p, _u32, _p]),
    'lk_chanmix_unpack': (_status, [_p, _p, _u32, _p]),
    'lk_plan_validate': (_status, [_p, _p]),
    'lk_plan_bytes': (_status, [_p, _u64, _u32, _u32, _p]),
    'lk_cache_bytes': (_status, [_p, _u32, _u64, _u32, _u32, _p]),
    'lk_plan_to_json': (_status, [_p, c_char_p, _size, _p]),
    'lk_plan_from_json': (_status, [c_char_p, _size, _p]),
    'lk_calibrator_create': (_status, [_p, _p]),
    'lk_calibrator_destroy': (None, [_p]),
    'lk_calibrator_add_keys': (_status, [_p, _u32, _p, _u32]),
    'lk_calibrator_add_queries': (_status, [_p, _u32, _p, _u32]),
    'lk_calibrator_add_probe': (_status, [_p, _u32, _p, _p, _p, _u32]),
    'lk_probe_tokens': (_status, [_p, _p, _p, _u32, _p, _u64, _p]),
    'lk_calibrator_add_gradients': (_status, [_p, _u32, _u32, _p, _p, _u32]),
    'lk_calibrator_add_attention': (_status, [_p, _u32, _p, _p, _p, _u32]),
    'lk_calibrator_set_costs': (_status, [_p, _u32, _p]),
    'lk_calibrator_get_costs': (_status, [_p, _u32, _p]),
    'lk_calibrator_set_clip_costs': (_status, [_p, _u32, _p]),
    'lk_calibrator_get_clip_costs': (_status, [_p, _u32, _p]),
    'lk_cost_run_create': (_status, [_p, _p, _p]),
    'lk_cost_run_destroy': (None, [_p]),
    'lk_cost_run_next': (_status, [_p, _u32, _p, _p]),
    'lk_cost_run_get_trial': (_status, [_p, _u32, _p]),
    'lk_cost_run_plan': (_status, [_p, _u32, _p]),
    'lk_cost_run_add': (_status, [_p, _u32, _f64]),
    'lk_cost_run_get_counts': (_status, [_p, _p, _p]),
    'lk_cost_run_finish': (_status, [_p, _p]),
    'lk_cost_run_to_bytes': (_status, [_p, _p, _size, _p]),
    'lk_cost_run_resume': (_status, [_p, _p, _size]),
    'lk_cost_texts': (_status, [_p, _size, _u32, _u32, _u64, _p, _size, _p]),
    'lk_divergence': (_status, [_p, _p, _u32, _u32, _p]),
    'lk_calibrator_get_sensitivity': (_status, [_p, _u32, _u32, _u32, _u32, _u32, _p]),
    'lk_calibrator_get_channels': (_status, [_p, _u32, _u32, _u32, _p]),
    'lk_calibrator_get_counts': (_status, [_p, _u32, _p, _p, _p]),
    'lk_calibrator_get_geometry': (_status, [_p, _p, _u32, _p]),
    'lk_calibrator_get_classes': (_status, [_p, _u32, _u32, _u32, _p, _p]),
    'lk_calibrator_get_retrieval': (_status, [_p, _u32, _u32, _p]),
    'lk_calibrator_chanmix': (_status, [_p, _p, _p]),
    'lk_calibrator_get_pair_maxima': (_status, [_p, _u32, _u32, _u32, _u32, _p]),
    'lk_calibrator_add_scale_search': (_status, [_p, _u32, _p, _p, _p, _p, _u32]),
    'lk_calibrator_get_scale_error': (_status, [_p, _u32, _u32, _p, _p]),
    'lk_calibrator_get_key_scales': (_status, [_p, _u32, _u32, _p, _p]),
    'lk_calibrator_pmkvq': (_status, [_p, _p, _p]),
    'lk_rope_apply': (_status, [_p, _p, _u32, _u32, _u32, _u64, _f64, _p]),
    'lk_rope_invert': (_status, [_p, _p, _u32, _u32, _u32, _u64, _f64, _p]),
    'lk_key_scales': (_status, [_p, _u32, _f64, _p]),
    'lk_calibrator_auto': (_status, [_p, _p, _p]),
    'lk_calibrator_to_bytes': (_status, [_p, _p, _size, _p]),
    'lk_calibrator_from_bytes': (_status, [_p, _size, _p]),
    'lk_solve_widths': (_status, [_u32, _u32, _p, _p, _u64, _p, _p]),
    'lk_cache_create': (_status, [_p, _p, _p, _p, _p]),
    'lk_cache_destroy': (None, [_p]),
    'lk_cache_get_stats': (_status, [_p, _p]),
    'lk_cache_plan': (_p, [_p]),
    'lk_cache_get_budget': (_status, [_p, _p]),
    'lk_cache_set_budget': (_status, [_p, _u64]),
    'lk_cache_shrink': (_status, [_p, _u32, _u32]),
    'lk_cache_poll': (_status, [_p]),
    'lk_sequence_add': (_status, [_p, _p]),
    'lk_sequence_fork': (_status, [_p, _u64, _u64, _p]),
    'lk_sequence_remove': (_status, [_p, _u64]),
    'lk_sequence_length': (_status, [_p, _u64, _p]),
    'lk_sequence_truncate': (_status, [_p, _u64, _u64]),
    'lk_step_begin': (_status, [_p, _p, _u32, _p, _p, _p]),
    'lk_step_begin_spans': (_status, [_p, _p, _u32, _p, _p, _p, _u32, _u32]),
    'lk_append': (_status, [_p, _u32, _p, _p]),
    'lk_attend': (_status, [_p, _u32, _p, _p, _p]),
    'lk_step_set_queue': (_status, [_p, _p]),
    'lk_step_replay': (_status, [_p]),
    'lk_step_state': (_status, [_p, _u32, _u32, _p]),
    'lk_step_read_state': (_status, [_p, _u32, _u32, _p, _u64]),
    'lk_step_write_state': (_status, [_p, _u32, _u32, _p, _u64]),
    'lk_sequence_find_state': (_status, [_p, _u64, _u64, _p]),
    'lk_sequence_rollback': (_status, [_p, _u64, _u64, _p]),
    'lk_state_bytes': (_status, [_p, _u32, _p]),
    'lk_step_commit': (_status, [_p, _p]),
    'lk_step_commit_tokens': (_status, [_p, _p, _p]),
    'lk_step_discard': (_status, [_p]),
    'lk_chunks_cosine': (_status, [_p, _p, _u32, _u32, _p]),
    'lk_chunks_score_cosine': (_status, [_p, _p, _p, _p, _u32, _u32, _p]),
    'lk_chunks_score_bm25': (_status, [_p, _p, _p, _u32, _p, _u32, _p]),
    'lk_chunks_by_thresholds': (_status, [_p, _u32, c_double, c_double, _p, _p, _p]),
    'lk_chunks_by_quota': (_status, [_p, _u32, _p, _p, _p]),
    'lk_chunks_score_attention': (_status, [_p, _u64, _p]),
    'lk_chunks_attention_scores': (_status, [_p, _u64, _u32, _p]),
    'lk_sequence_defer': (_status, [_p, _u64, _u32]),
    'lk_chunks_assign': (_status, [_p, _u64, _u64, _u32, _p, _p]),
    'lk_chunks_retain': (_status, [_p, _u64, _u64]),
    'lk_chunks_get': (_status, [_p, _u64, _p, _u32, _p, _p, _p]),
    'lk_merge': (_status, [_p, _p, _u32, _u32, _u32, _u32, _p, _p, _p, _p]),
    'lk_snapshot_save': (_status, [_p, _u32, _p, _p, WriteFn, _p]),
    'lk_snapshot_save_memory': (_status, [_p, _u32, _p, _p, _p, _u64, _p]),
    'lk_snapshot_save_file': (_status, [_p, _u32, _p, _p, c_char_p]),
    'lk_snapshot_load': (_status, [_p, _p, ReadFn, _p, _u32, _p, _p]),
    'lk_snapshot_load_memory': (_status, [_p, _p, _p, _u64, _u32, _p, _p]),
    'lk_snapshot_load_file': (_status, [_p, _p, c_char_p, _u32, _p, _p]),
    'lk_snapshot_open': (_status, [_p, ReadFn, _p, _p]),
    'lk_snapshot_open_memory': (_status, [_p, _u64, _p]),
    'lk_snapshot_open_file': (_status, [c_char_p, _p]),
    'lk_snapshot_close': (None, [_p]),
    'lk_snapshot_get_info': (_status, [_p, _p]),
    'lk_snapshot_plan': (_p, [_p]),
    'lk_snapshot_get_sequence': (_status, [_p, _u32, _p]),
    'lk_snapshot_get_format': (_status, [_p, _u32, _p]),
    'lk_vulkan_buffer_add': (_status, [_p, _u64, _u64, _u32]),
    'lk_vulkan_buffer_remove': (_status, [_p, _u64]),
    'lk_vulkan_pipeline_cache': (_status, [_p, _p, _u64, _p]),
}
FUNCTIONS.update({f'lk_{name}_init': (_status, [_p, _size]) for name in STRUCTS if name not in WITHOUT_INIT})

byref = c.byref
