# SPDX-License-Identifier: Apache-2.0
"""One GPU's stream: timed calls, flushes of the L2 before them, and PyTorch's attention next to lowkey's."""

import statistics
from typing import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

import binding

Call = Callable[[], object]
BACKENDS = {'cudnn': SDPBackend.CUDNN_ATTENTION, 'flash': SDPBackend.FLASH_ATTENTION}
FILL_TOKENS = 8192
COPY_BYTES = 2 << 30
WARM_UPS = 3


def nothing() -> None:
    pass


class Gpu:
    def __init__(self, n_samples: int):
        self.n_samples = n_samples
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        properties = torch.cuda.get_device_properties(0)
        self.name = properties.name
        # Written once, then read: a flush that writes leaves dirty lines whose write-back the next reads pay for.
        self.flush = torch.zeros(max(4 * properties.L2_cache_size, 240_000_000) // 4, device='cuda')
        self.sink = torch.zeros((), device='cuda')

    def time(self, call: Call, before: Call = nothing, after: Call = nothing, n_flushes: int = 2) -> dict:
        """Microseconds of call between two events, L2 flushed. The flushes also keep the GPU busy until the host has
        queued the call, so a call that keeps the host long wants more of them."""
        samples = []
        for i in range(self.n_samples + WARM_UPS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before()
            for _ in range(n_flushes):
                torch.sum(self.flush, 0, out=self.sink)
            begin.record()
            call()
            end.record()
            end.synchronize()
            after()
            if i >= WARM_UPS:
                samples.append(begin.elapsed_time(end) * 1e3)
        low, median, high = statistics.quantiles(samples, n=4)
        return {'us': median, 'quartiles_us': [low, high]}

    def time_graph(self, call: Call) -> dict:
        """The same work inside a captured graph."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode='thread_local')
        try:
            call()
        finally:
            graph.capture_end()
        return self.time(graph.replay)

    def copy_bytes_per_s(self) -> float:
        """Bytes read and written by a copy in device memory."""
        source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device='cuda')
        target = torch.zeros_like(source)
        return 2 * COPY_BYTES / (self.time(lambda: target.copy_(source))['us'] * 1e-6)

    def empty_us(self) -> float:
        return self.time(lambda: torch.cuda._sleep(0))['us']

    def sdpa(self, backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(BACKENDS[backend]):
            return scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def time_sdpa(self, backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict:
        def attend() -> torch.Tensor:
            return scaled_dot_product_attention(q, k, v, enable_gqa=True)

        with sdpa_kernel(BACKENDS[backend]):
            return self.time(attend) | {'graph_us': self.time_graph(attend)['us']}


def causal_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """FlashAttention in which the last query attends to all keys."""
    bias = causal_lower_right(q.shape[2], k.shape[2])
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)


def random_tensors(n_sequences: int, n_heads: tuple[int, int], n_tokens: int, head_dim: int,
                   n_queries: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v [sequences, heads, tokens, head_dim] in FP16; a few key channels are larger, as in models."""
    torch.manual_seed(n_tokens + head_dim)
    options = {'device': 'cuda', 'dtype': torch.float16}
    q = torch.randn(n_sequences, n_heads[0], n_queries, head_dim, **options)
    k, v = (torch.randn(n_sequences, n_heads[1], n_tokens, head_dim, **options) for _ in range(2))
    k[..., 3::17] *= 4
    return q, k, v


class Lowkey:
    """The library on the stream of a Gpu, fed with tensors [sequences, heads, tokens, head_dim]."""

    def __init__(self, library: binding.Library, gpu: Gpu):
        self.library, self.gpu = library, gpu
        self.queue = library.queue(gpu.stream.cuda_stream) if library.memory == binding.CUDA_MEMORY else None

    def cache(self, plan: str, shape: tuple[int, int, int], n_sequences: int, n_tokens: int,
              step_tokens: int = FILL_TOKENS) -> binding.Cache:
        return binding.Cache(self.library, plan, shape, n_sequences, n_tokens, step_tokens, self.queue)

    def view(self, x: torch.Tensor, sequence: int, first: int = 0) -> binding.Tensor:
        """Tokens of one sequence from `first` on."""
        return self.library.tensor(x[sequence, :, first:].data_ptr(), x.stride(2), x.stride(1))

    def batch(self, x: torch.Tensor) -> binding.Tensor:
        """[sequences, heads, 1, head_dim]: the one token of each."""
        return self.library.tensor(x.data_ptr(), x.stride(0), x.stride(1))

    def fill(self, cache: binding.Cache, k: torch.Tensor, v: torch.Tensor, n_tokens: int) -> None:
        """Commit n_tokens tokens of each sequence; tensors of fewer tokens or sequences are used again."""
        step = min(FILL_TOKENS, k.shape[2])
        for sequence in range(cache.n_sequences):
            source = sequence % k.shape[0]
            cache.hold(sequence)
            for first in range(0, n_tokens, step):
                cache.begin(min(step, n_tokens - first), sequence)
                at = first % k.shape[2]
                cache.append(self.view(k, source, at), self.view(v, source, at))
                cache.commit()
            cache.classify(sequence, n_tokens)

    def time_decode(self, cache: binding.Cache, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                    out: torch.Tensor) -> dict:
        """One new token of each sequence: lk_attend alone, by itself and inside a graph."""
        query, output = self.batch(q), self.batch(out)
        keys, values = self.batch(k), self.batch(v)

        def open_step() -> None:
            cache.begin(1)
            cache.append(keys, values)

        def attend() -> None:
            cache.attend(query, output)

        result = self.gpu.time(attend, open_step, cache.discard)
        open_step()
        result['graph_us'] = self.gpu.time_graph(attend)['us']
        cache.discard()
        return result | {'bytes': cache.bytes(), 'bits_per_value': cache.bits_per_value}

    def time_prompt(self, cache: binding.Cache, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
                    first: int) -> dict:
        """lk_attend of a prompt's tokens from `first` on, after the tokens of the cache."""
        def open_step() -> None:
            cache.begin(q.shape[2])
            cache.append(self.view(k, 0, first), self.view(v, 0, first))

        query, output = self.view(q, 0), self.view(out, 0)
        return self.gpu.time(lambda: cache.attend(query, output), open_step, cache.discard)

    def time_pack(self, cache: binding.Cache, k: torch.Tensor, v: torch.Tensor) -> dict:
        """lk_append of a prompt, which packs all of it but the window."""
        keys, values = self.view(k, 0), self.view(v, 0)
        return self.gpu.time(lambda: cache.append(keys, values), lambda: cache.begin(k.shape[2]), cache.discard,
                             n_flushes=32)
