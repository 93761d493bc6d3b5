# SPDX-License-Identifier: Apache-2.0
"""The shared library through ctypes: contexts, caches of one layer, steps. Tensors are given as pointers and
strides, so that any array library can own them."""

import ctypes as c
import pathlib
import random
from typing import NamedTuple

ABI_VERSION = 1
CPU, CUDA = 1, 2
F16, F32 = 1, 3
HOST_MEMORY, CUDA_MEMORY = 1, 2
CUDA_STREAM = 1
METADATA_F8 = 2
DEFER_REFUSE = 1
ALL = 0xFFFFFFFF


class ContextDesc(c.Structure):
    _fields_ = [('size', c.c_uint32), ('backend', c.c_uint32), ('device_index', c.c_uint32),
                ('n_threads', c.c_uint32), ('cpu_mask', c.c_uint32), ('log_level', c.c_uint32),
                ('log', c.c_void_p), ('log_user', c.c_void_p), ('alloc', c.c_void_p), ('free', c.c_void_p),
                ('alloc_user', c.c_void_p)]


class Layer(c.Structure):
    _fields_ = [('size', c.c_uint32), ('n_query_heads', c.c_uint32), ('n_kv_heads', c.c_uint32),
                ('head_dim', c.c_uint32), ('window_tokens', c.c_uint32), ('window_sink_tokens', c.c_uint32),
                ('scale', c.c_float), ('soft_cap', c.c_float), ('sink_logits', c.c_void_p)]


class Geometry(c.Structure):
    _fields_ = [('size', c.c_uint32), ('n_layers', c.c_uint32), ('layers', c.POINTER(Layer))]


class CacheDesc(c.Structure):
    _fields_ = [('size', c.c_uint32), ('max_sequences', c.c_uint32), ('max_step_tokens', c.c_uint32),
                ('flags', c.c_uint32), ('budget_bytes', c.c_uint64), ('slab_bytes', c.c_uint64),
                ('max_budget_bytes', c.c_uint64), ('sequence_limit_bytes', c.c_uint64),
                ('pressure', c.c_void_p), ('pressure_user', c.c_void_p)]


class CacheStats(c.Structure):
    _fields_ = [('size', c.c_uint32), ('n_sequences', c.c_uint32), ('n_tokens', c.c_uint64),
                ('budget_bytes', c.c_uint64), ('reserved_bytes', c.c_uint64), ('payload_bytes', c.c_uint64),
                ('metadata_bytes', c.c_uint64), ('recent_bytes', c.c_uint64), ('table_bytes', c.c_uint64),
                ('workspace_bytes', c.c_uint64), ('free_bytes', c.c_uint64), ('pages_packed', c.c_uint64),
                ('pages_dequantized', c.c_uint64), ('values_saturated', c.c_uint64), ('device_bytes', c.c_uint64),
                ('shared_bytes', c.c_uint64), ('pages_copied', c.c_uint64), ('unread', c.c_uint64 * 9)]


class PlanSize(c.Structure):
    _fields_ = [('size', c.c_uint32), ('n_blocks', c.c_uint32), ('bits_per_value', c.c_double),
                ('bytes_per_token', c.c_double), ('fp16_bytes', c.c_uint64), ('payload_bytes', c.c_uint64),
                ('metadata_bytes', c.c_uint64), ('recent_bytes', c.c_uint64), ('table_bytes', c.c_uint64),
                ('cache_bytes', c.c_uint64)]


class KeyRule(c.Structure):
    _fields_ = [('size', c.c_uint32), ('bits', c.c_uint32), ('axis', c.c_uint32), ('group', c.c_uint32),
                ('boost_channels', c.c_uint32), ('boost_bits', c.c_uint32), ('boost_ranking', c.c_uint32),
                ('channel_bits', c.POINTER(c.c_uint8)), ('one_bit', c.c_uint32), ('clip', c.c_float)]


class ValueRule(c.Structure):
    _fields_ = [('size', c.c_uint32), ('bits', c.c_uint32), ('group', c.c_uint32), ('one_bit', c.c_uint32),
                ('clip', c.c_float)]


class ChunkRule(c.Structure):
    _fields_ = [('size', c.c_uint32), ('chunk_tokens', c.c_uint32), ('low_bits', c.c_uint32),
                ('middle_bits', c.c_uint32), ('high_bits', c.c_uint32), ('alpha', c.c_float), ('beta', c.c_float),
                ('reorder', c.c_uint32), ('hold', c.c_uint32)]


class ChunkQuota(c.Structure):
    _fields_ = [('size', c.c_uint32), ('block_chunks', c.c_uint32), ('low_share', c.c_double),
                ('high_share', c.c_double), ('budget_bytes', c.c_uint64), ('low_bytes', c.c_uint64),
                ('middle_bytes', c.c_uint64), ('high_bytes', c.c_uint64)]


class ChunksInfo(c.Structure):
    _fields_ = [('size', c.c_uint32), ('n_chunks', c.c_uint32), ('chunk_tokens', c.c_uint32),
                ('is_assigned', c.c_uint32), ('deferral', c.c_uint32), ('n_low', c.c_uint32),
                ('n_middle', c.c_uint32), ('n_high', c.c_uint32), ('n_wider', c.c_uint32),
                ('n_narrower', c.c_uint32), ('first_token', c.c_uint64), ('retained_bytes', c.c_uint64)]


class Tensor(c.Structure):
    _fields_ = [('size', c.c_uint32), ('dtype', c.c_uint32), ('memory', c.c_uint32), ('flags', c.c_uint32),
                ('data', c.c_void_p), ('buffer', c.c_uint64), ('offset_bytes', c.c_uint64),
                ('token_stride', c.c_int64), ('head_stride', c.c_int64)]


class Queue(c.Structure):
    _fields_ = [('size', c.c_uint32), ('kind', c.c_uint32), ('handle', c.c_void_p),
                ('wait_semaphore', c.c_uint64), ('wait_value', c.c_uint64), ('signal_semaphore', c.c_uint64),
                ('signal_value', c.c_uint64)]


U32 = c.c_uint32
POINTER = c.c_void_p
# Arguments of the calls that take more than pointers.
ARGUMENTS = {
    'lk_context_open': [POINTER, U32, POINTER],
    'lk_plan_preset': [c.c_char_p, POINTER, POINTER],
    'lk_plan_from_json': [c.c_char_p, c.c_size_t, POINTER],
    'lk_plan_set_name': [POINTER, c.c_char_p],
    'lk_plan_set_metadata': [POINTER, U32, U32],
    'lk_plan_set_key': [POINTER, U32, U32, POINTER],
    'lk_plan_set_value': [POINTER, U32, U32, POINTER],
    'lk_plan_bytes': [POINTER, c.c_uint64, U32, U32, POINTER],
    'lk_plan_set_pages': [POINTER, U32],
    'lk_plan_set_chunks': [POINTER, POINTER],
    'lk_chunks_by_quota': [POINTER, U32] + [POINTER] * 3,
    'lk_sequence_defer': [POINTER, c.c_uint64, U32],
    'lk_chunks_assign': [POINTER, c.c_uint64, c.c_uint64, U32, POINTER, POINTER],
    'lk_chunks_get': [POINTER, c.c_uint64, POINTER, U32] + [POINTER] * 3,
    'lk_cache_create': [POINTER] * 5,
    'lk_cache_get_stats': [POINTER] * 2,
    'lk_sequence_add': [POINTER] * 2,
    'lk_step_begin': [POINTER, POINTER, U32, POINTER, POINTER, POINTER],
    'lk_append': [POINTER, U32, POINTER, POINTER],
    'lk_attend': [POINTER, U32, POINTER, POINTER, POINTER],
    'lk_step_commit': [POINTER] * 2,
    'lk_step_discard': [POINTER],
    'lk_snapshot_save_memory': [POINTER, U32] + [POINTER] * 3 + [c.c_uint64, POINTER],
    'lk_last_error': [c.c_char_p, c.c_size_t, POINTER],
}


F8_GROUP = 32


class ByChannel(NamedTuple):
    """Two bits a number with FP8 ranges and minima, as ChanMix has them: some channels of the keys at 3 bits, as many
    at 1, and the first heads at 4 throughout."""
    outliers: int = 0  # of 128 channels
    retrieval_share: float = 0

    def widths(self, head_dim: int) -> list[int]:
        n = self.outliers * head_dim // 128
        widths = [2] * head_dim
        for i in range(n):
            widths[(3 + 17 * i) % head_dim] = 3
        ordinary = [channel for channel in range(head_dim) if widths[channel] == 2]
        for i in range(n):
            widths[ordinary[i * len(ordinary) // n]] = 1
        return widths


BY_CHANNEL = {'uniform-2': ByChannel(), 'chanmix-o': ByChannel(16), 'chanmix-ro': ByChannel(16, 0.3)}


SINK_TOKENS, PAGE_TOKENS = 32, 128  # of the preset with chunks


class Mix(NamedTuple):
    """A context whose chunks have classes, as Cocktail has them. Without reorder a chunk is a page."""
    low: float
    middle: float
    high: float
    chunk_tokens: int = 32
    reorder: bool = True

    def page_tokens(self) -> int:
        return PAGE_TOKENS if self.reorder else self.chunk_tokens


# Uniform at the 2 bits of low chunks; the paper's mix; both in the order of the context; and with chunks of a page.
MIXES = {'low': Mix(1, 0, 0), 'mix': Mix(0.6, 0.3, 0.1), 'low, reorder=off': Mix(1, 0, 0, 32, False),
         'mix, reorder=off': Mix(0.6, 0.3, 0.1, 32, False), 'mix of 128': Mix(0.6, 0.3, 0.1, 128),
         'mix of 128, reorder=off': Mix(0.6, 0.3, 0.1, 128, False)}


# Plans of `auto`, of one layer with 32 query heads and 8 KV heads of 128, which record_plans.py writes.
RECORDED = {path.stem: path for path in sorted((pathlib.Path(__file__).parent / 'plans').glob('auto-*.json'))}
RECORDED_SHAPE = (32, 8, 128)


class Failure(Exception):
    pass


class Library:
    """A loaded library and one open context."""

    def __init__(self, path: str, backend: int):
        self.lk = c.CDLL(path)
        self.lk.lk_build_info.restype = c.c_char_p
        for name, arguments in ARGUMENTS.items():
            getattr(self.lk, name).argtypes = arguments
        self.memory = CUDA_MEMORY if backend == CUDA else HOST_MEMORY
        desc = self.start('context_desc', ContextDesc)
        desc.backend = backend
        self.context = POINTER()
        self.check(self.lk.lk_context_open(c.byref(desc), ABI_VERSION, c.byref(self.context)))

    def build_info(self) -> str:
        return self.lk.lk_build_info().decode()

    def check(self, status: int) -> None:
        if status == 0:
            return
        sentence = c.create_string_buffer(1024)
        self.lk.lk_last_error(sentence, 1024, None)
        raise Failure(f'{sentence.value.decode()} (status {status})')

    def start(self, name: str, kind: type):
        value = kind()
        self.check(getattr(self.lk, f'lk_{name}_init')(c.byref(value), c.c_size_t(c.sizeof(value))))
        return value

    def queue(self, stream: int) -> Queue:
        queue = self.start('queue', Queue)
        queue.kind, queue.handle = CUDA_STREAM, stream
        return queue

    def tensor(self, pointer: int, token_stride: int, head_stride: int, dtype: int = F16) -> Tensor:
        tensor = self.start('tensor', Tensor)
        tensor.dtype, tensor.memory, tensor.data = dtype, self.memory, pointer
        tensor.token_stride, tensor.head_stride = token_stride, head_stride
        return tensor


    def plan(self, name: str, geometry: Geometry) -> POINTER:
        """A preset, one of BY_CHANNEL, of MIXES or of RECORDED; the caller destroys it."""
        made = POINTER()
        if name in RECORDED:
            text = RECORDED[name].read_bytes()
            self.check(self.lk.lk_plan_from_json(text, len(text), c.byref(made)))
            return made
        preset = 'kivi2' if name in BY_CHANNEL else 'cocktail' if name in MIXES else name
        self.check(self.lk.lk_plan_preset(preset.encode(), c.byref(geometry), c.byref(made)))
        try:
            if name in BY_CHANNEL:
                self.set_classes(made, BY_CHANNEL[name], geometry.layers[0])
            if name in MIXES:
                self.set_chunks(made, MIXES[name])
        except Failure:
            self.lk.lk_plan_destroy(c.byref(made))
            raise
        return made

    def set_chunks(self, plan: POINTER, mix: Mix) -> None:
        rule = self.start('chunk_rule', ChunkRule)
        rule.chunk_tokens, rule.reorder = mix.chunk_tokens, int(mix.reorder)
        self.check(self.lk.lk_plan_set_pages(plan, mix.page_tokens()))
        self.check(self.lk.lk_plan_set_chunks(plan, c.byref(rule)))

    def set_classes(self, plan: POINTER, by_channel: ByChannel, layer: Layer) -> None:
        """Ranges and minima of FP8 for 32 tokens of a channel, or 32 channels of a value."""
        self.check(self.lk.lk_plan_set_metadata(plan, ALL, METADATA_F8))
        widths = (c.c_uint8 * layer.head_dim)(*by_channel.widths(layer.head_dim))
        for head in range(layer.n_kv_heads):
            is_retrieval = head < round(by_channel.retrieval_share * layer.n_kv_heads)
            key, value = self.start('key_rule', KeyRule), self.start('value_rule', ValueRule)
            key.bits = value.bits = 4 if is_retrieval else 2
            key.group = value.group = F8_GROUP
            if not is_retrieval:
                key.channel_bits = c.cast(widths, c.POINTER(c.c_uint8))
            self.check(self.lk.lk_plan_set_key(plan, ALL, head, c.byref(key)))
            self.check(self.lk.lk_plan_set_value(plan, ALL, head, c.byref(value)))


class Cache:
    """A cache of one layer with sequences of one length."""

    def __init__(self, library: Library, plan: str, shape: tuple[int, int, int], n_sequences: int, max_tokens: int,
                 max_step_tokens: int, queue: Queue | None):
        self.library, self.lk, self.queue = library, library.lk, queue
        self.handle, self.n_sequences = POINTER(), n_sequences
        self.mix = MIXES.get(plan)
        layers = (Layer * 1)(library.start('layer', Layer))
        layers[0].n_query_heads, layers[0].n_kv_heads, layers[0].head_dim = shape
        geometry = library.start('geometry', Geometry)
        geometry.n_layers, geometry.layers = 1, layers
        made = library.plan(plan, geometry)
        try:
            size = library.start('plan_size', PlanSize)
            step_tokens = -(-max_step_tokens // n_sequences)
            self.check(self.lk.lk_plan_bytes(made, max_tokens + max_step_tokens, n_sequences, step_tokens,
                                             c.byref(size)))
            self.bits_per_value = size.bits_per_value
            desc = library.start('cache_desc', CacheDesc)
            desc.max_sequences, desc.max_step_tokens = n_sequences, max_step_tokens
            # Slack for whole slabs and for sequences that are filled one after the other.
            desc.budget_bytes = size.cache_bytes + size.fp16_bytes + (2 << 26)
            self.check(self.lk.lk_cache_create(library.context, c.byref(geometry), made, c.byref(desc),
                                               c.byref(self.handle)))
        finally:
            self.lk.lk_plan_destroy(c.byref(made))
        self.ids = (c.c_uint64 * n_sequences)()
        for i in range(n_sequences):
            self.check(self.lk.lk_sequence_add(self.handle, c.byref(self.ids, 8 * i)))

    def __enter__(self) -> 'Cache':
        return self

    def __exit__(self, *_) -> None:
        self.lk.lk_cache_destroy(c.byref(self.handle))

    def check(self, status: int) -> None:
        self.library.check(status)

    def begin(self, n_tokens: int, sequence: int | None = None) -> None:
        """Open a step of n_tokens new tokens of every sequence, or of one."""
        first, n = (0, self.n_sequences) if sequence is None else (sequence, 1)
        counts = (U32 * n)(*[n_tokens] * n)
        queue = c.byref(self.queue) if self.queue is not None else None
        self.check(self.lk.lk_step_begin(self.handle, queue, n, c.byref(self.ids, 8 * first), counts, None))

    def hold(self, sequence: int) -> None:
        """Before a sequence is filled: keep its chunks at 16 bits until they have classes."""
        if self.mix:
            self.check(self.lk.lk_sequence_defer(self.handle, self.ids[sequence], DEFER_REFUSE))

    def classify(self, sequence: int, n_tokens: int) -> None:
        """After it: give the chunks the classes of the mix, in whole blocks, at random positions."""
        if not self.mix:
            return
        n_chunks = max(0, n_tokens - SINK_TOKENS) // self.mix.chunk_tokens
        draw = random.Random(sequence)
        scores = (c.c_float * n_chunks)(*(draw.random() for _ in range(n_chunks)))
        classes = (U32 * n_chunks)()
        quota = self.library.start('chunk_quota', ChunkQuota)
        quota.block_chunks = self.mix.page_tokens() // self.mix.chunk_tokens
        quota.low_share, quota.high_share = self.mix.low, self.mix.high
        self.check(self.lk.lk_chunks_by_quota(scores, n_chunks, c.byref(quota), classes, None))
        self.check(self.lk.lk_chunks_assign(self.handle, self.ids[sequence], n_tokens, n_chunks, classes, scores))

    def chunk_percents(self) -> list[float]:
        """Percents of the chunks of all sequences that are kept as low, middle and high ones."""
        counts = [0, 0, 0]
        for sequence in self.ids:
            info = self.library.start('chunks_info', ChunksInfo)
            self.check(self.lk.lk_chunks_get(self.handle, sequence, c.byref(info), 0, None, None, None))
            counts = [n + more for n, more in zip(counts, (info.n_low, info.n_middle, info.n_high))]
        return [100 * n / sum(counts) for n in counts]

    def append(self, k: Tensor, v: Tensor) -> None:
        self.check(self.lk.lk_append(self.handle, 0, c.byref(k), c.byref(v)))

    def attend(self, q: Tensor, out: Tensor) -> None:
        self.check(self.lk.lk_attend(self.handle, 0, c.byref(q), c.byref(out), None))

    def commit(self) -> None:
        self.check(self.lk.lk_step_commit(self.handle, None))

    def discard(self) -> None:
        self.check(self.lk.lk_step_discard(self.handle))

    def snapshot(self) -> bytearray:
        """Of all sequences."""
        n_bytes = c.c_uint64()
        self.check(self.lk.lk_snapshot_save_memory(self.handle, 0, None, None, None, 0, c.byref(n_bytes)))
        data = bytearray(n_bytes.value)
        self.check(self.lk.lk_snapshot_save_memory(self.handle, 0, None, None,
                                                   c.byref((c.c_char * len(data)).from_buffer(data)), len(data),
                                                   c.byref(n_bytes)))
        return data

    def stats(self) -> CacheStats:
        stats = self.library.start('cache_stats', CacheStats)
        self.check(self.lk.lk_cache_get_stats(self.handle, c.byref(stats)))
        return stats

    def bytes(self) -> int:
        """What a pass of attention reads: codes, ranges, minima and the tokens at 16 bits."""
        stats = self.stats()
        return stats.payload_bytes + stats.metadata_bytes + stats.recent_bytes
