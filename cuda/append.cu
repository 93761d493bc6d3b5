// New tokens of a layer: to FP16, into their 16-bit rows and the staging area. A block takes the
// keys or the values of a token.
//
// SPDX-License-Identifier: Apache-2.0
#include "fragment.cuh"
#include "launch.h"
#include "quantize.cuh"
#include "raw_half.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kAppendThreads = 128;
constexpr uint32_t kChunk = 8;  // channels that a thread converts at once

enum Dtype : uint32_t { kF16 = 1, kBf16 = 2, kF32 = 3 };

struct AppendKernelArgs {
    StepView step;
    LayerArg layer;
    TensorArg tensors[2];  // K, V
    StagingArg staging;
    uint32_t n_sequences;
    uint32_t n_tokens;
};

// Elements of kChunk channels as they lie in a tensor; those of 16 bits are two to a word.
struct RawChunk {
    uint32_t words[kChunk];

    __device__ RawChunk(const TensorArg &tensor, uint32_t token, uint32_t head, uint32_t channel) {
        const int64_t first = token * tensor.token_stride + head * tensor.head_stride + channel;
        const uint32_t element_bytes = tensor.dtype == kF32 ? 4 : 2;
        const auto *from = static_cast<const uint8_t *>(tensor.data) + first * element_bytes;
        if (reinterpret_cast<uintptr_t>(from) % sizeof(uint4) == 0) {
            set_vector(0, from);
            if (element_bytes == 4)
                set_vector(1, from + sizeof(uint4));
        } else if (element_bytes == 4) {
            for (uint32_t i = 0; i < kChunk; ++i)
                words[i] = reinterpret_cast<const uint32_t *>(from)[i];
        } else {
            const auto *halves = reinterpret_cast<const uint16_t *>(from);
            for (uint32_t i = 0; i < kChunk / 2; ++i)
                words[i] = halves[2 * i] | uint32_t{halves[2 * i + 1]} << 16;
        }
    }
    __device__ uint32_t half(uint32_t i) const { return words[i / 2] >> 16 * (i % 2) & 0xFFFFu; }

  private:
    __device__ void set_vector(uint32_t i, const uint8_t *from) {
        const uint4 vector = *reinterpret_cast<const uint4 *>(from);
        words[4 * i] = vector.x;
        words[4 * i + 1] = vector.y;
        words[4 * i + 2] = vector.z;
        words[4 * i + 3] = vector.w;
    }
};

// FP16 of kChunk channels, and what there is to report.
struct Chunk {
    uint32_t halves[kChunk];
    uint32_t n_saturated = 0;
    bool has_fault = false;

    __device__ Chunk(const RawChunk &raw, uint32_t dtype) {
        for (uint32_t i = 0; i < kChunk; ++i) {
            if (dtype == kF16)
                set_half(i, raw.half(i));
            else
                set_float(i, dtype == kBf16 ? raw.half(i) << 16 : raw.words[i]);
        }
    }
    __device__ uint32_t pair(uint32_t i) const { return halves[i] | halves[i + 1] << 16; }

  private:
    __device__ void set_float(uint32_t i, uint32_t float_bits) {
        const bool is_finite = (float_bits & 0x7F800000u) != 0x7F800000u;
        bool saturated;
        const uint32_t bits = round_half(__uint_as_float(float_bits), &saturated);
        halves[i] = is_finite ? bits : 0;
        n_saturated += is_finite && saturated;
        has_fault |= !is_finite;
    }
    __device__ void set_half(uint32_t i, uint32_t bits) {
        const bool is_finite = (bits & 0x7C00u) != 0x7C00u;
        halves[i] = is_finite ? bits : 0;
        has_fault |= !is_finite;
    }
};

// The last of n ascending numbers that is not above the limit; the first is not. Whole warps.
template <typename Number>
__device__ uint32_t find_last(uint32_t n, uint32_t limit, const Number &number) {
    const uint32_t lane = threadIdx.x % kWarp;
    // What is looked for is mostly near the end.
    for (uint32_t end = n; end > kWarp; end -= kWarp) {
        const uint32_t i = end - kWarp + lane;
        const uint32_t found = __ballot_sync(kAllLanes, number(i) <= limit);
        if (found)
            return end - kWarp + __popc(found) - 1;
        n = end - kWarp;
    }
    return __popc(__ballot_sync(kAllLanes, lane < n && number(lane) <= limit)) - 1;
}

// The row that stores a token; entries is null when none does.
struct TokenPlace {
    const Entry *entries;  // [heads] of the layer
    uint32_t token;        // in the row
};

__device__ TokenPlace find_place(const AppendKernelArgs &args, const SequenceInfo &sequence,
                                 uint32_t token) {
    const uint32_t position = sequence.n_history + token - sequence.first_new;
    const RowInfo *rows = args.step.rows + sequence.first_row;
    const RowInfo &row =
        rows[find_last(sequence.n_rows, position, [&](uint32_t i) { return rows[i].first_token; })];
    const auto *entries = reinterpret_cast<const Entry *>(row.entries);
    return {row.is_direct ? nullptr : entries + args.layer.first_entry, position - row.first_token};
}

__device__ void store_staged(const StagingArg &staging, const Chunk &chunk, bool is_value,
                             uint32_t head_dim, uint32_t token, uint32_t head, uint32_t channel) {
    uint16_t *area = is_value ? staging.values : staging.keys;
    const uint64_t row = uint64_t{head} * staging.n_tokens + token;
    *reinterpret_cast<uint4 *>(area + row * head_dim + channel) =
        make_uint4(chunk.pair(0), chunk.pair(2), chunk.pair(4), chunk.pair(6));
}

__device__ void store_in_row(const StepView &step, const Entry &entry, const Chunk &chunk,
                             bool is_value, uint32_t token, uint32_t channel) {
    const ClassInfo &c = step.classes[is_value ? entry.value_class : entry.key_class];
    if (!c.is_raw)
        return;
    auto *halves =
        reinterpret_cast<uint16_t *>(is_value ? entry.value_payload : entry.key_payload) +
        raw_token_steps(is_value).offset(token);
    const Steps channels = raw_channel_steps(is_value, c.page_tokens);
    if (is_value) {
        for (uint32_t i = 0; i < kChunk; ++i)
            halves[channels.offset(channel + i)] = static_cast<uint16_t>(chunk.halves[i]);
        return;
    }
    // Two channels share a word of a key tile.
    for (uint32_t i = 0; i < kChunk; i += 2)
        *reinterpret_cast<uint32_t *>(halves + channels.offset(channel + i)) = chunk.pair(i);
}

__device__ void report_fault(const AppendKernelArgs &args, uint64_t key) {
    atomicMin(reinterpret_cast<unsigned long long *>(&args.step.report->first_bad), key);
}

// The sum of the block's counts goes to the report, which is in host memory.
__device__ void report_saturated(const AppendKernelArgs &args, uint32_t n_saturated) {
    if (!__syncthreads_or(n_saturated != 0))
        return;
    __shared__ uint32_t n_block;
    if (threadIdx.x == 0)
        n_block = 0;
    __syncthreads();
    atomicAdd(&n_block, n_saturated);
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(&args.step.report->n_saturated), n_block);
}

// Loads that need no table come first, so that a step of few tokens waits for memory less often.
__global__ void __launch_bounds__(kAppendThreads)
    append_kernel(const __grid_constant__ AppendKernelArgs args) {
    const uint32_t token = blockIdx.x;
    const bool is_value = blockIdx.y;
    const TensorArg &tensor = args.tensors[is_value];
    const uint32_t head_chunks = args.layer.head_dim / kChunk;
    const uint32_t n_chunks = args.layer.n_kv_heads * head_chunks;
    const StepHeader header = *args.step.header;
    uint32_t i = threadIdx.x;
    RawChunk raw(tensor, token, i < n_chunks ? i / head_chunks : 0, i % head_chunks * kChunk);
    const SequenceInfo *sequences = args.step.sequences;
    const uint32_t sequence =
        find_last(args.n_sequences, token, [&](uint32_t j) { return sequences[j].first_new; });
    if (header.n_sequences != args.n_sequences || header.n_tokens != args.n_tokens) {
        if (threadIdx.x == 0 && token == 0)
            report_fault(args, kShapeFault);
        return;
    }
    const TokenPlace place = find_place(args, sequences[sequence], token);
    uint32_t n_saturated = 0;
    while (i < n_chunks) {
        const uint32_t head = i / head_chunks;
        const uint32_t channel = i % head_chunks * kChunk;
        const Chunk chunk(raw, tensor.dtype);
        n_saturated += chunk.n_saturated;
        if (chunk.has_fault)
            report_fault(args, kFaultBias | fault_key(header.serial, args.layer.layer, token, head,
                                                      is_value));
        if (args.staging.keys)
            store_staged(args.staging, chunk, is_value, args.layer.head_dim, token, head, channel);
        if (place.entries)
            store_in_row(args.step, place.entries[head], chunk, is_value, place.token, channel);
        i += blockDim.x;
        if (i < n_chunks)
            raw = RawChunk(tensor, token, i / head_chunks, i % head_chunks * kChunk);
    }
    report_saturated(args, n_saturated);
}

}  // namespace

cudaError_t launch_append(const StepView &step, const LayerArg &layer, const TensorArg &k,
                          const TensorArg &v, const StagingArg &staging, uint32_t n_sequences,
                          uint32_t n_tokens, cudaStream_t stream) {
    if (!n_tokens)
        return cudaSuccess;
    const AppendKernelArgs args = {step, layer, {k, v}, staging, n_sequences, n_tokens};
    const dim3 grid(n_tokens, 2);
    append_kernel<<<grid, kAppendThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk
