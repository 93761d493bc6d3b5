// New tokens of a layer: to FP16, keys centered and scaled, into their 16-bit blocks and the
// staging area. A thread block takes the keys or the values of a few neighbouring tokens.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/fragment.cuh"
#include "cuda/launch.h"
#include "cuda/pack/f16_page.cuh"
#include "cuda/pack/quantize.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kAppendThreads = 128;
constexpr uint32_t kAppendWarps = kAppendThreads / kWarp;
constexpr uint32_t kChunk = 8;         // channels that a thread converts at once
constexpr uint32_t kBatch = 4;         // chunks whose loads a thread has under way
constexpr uint32_t kBlockTokens = 32;  // of a thread block in a long step
constexpr uint32_t kManyBlocks = 256;  // that come before thread blocks take more tokens

enum Dtype : uint32_t { kF16 = 1, kBf16 = 2, kF32 = 3 };

struct AppendKernelArgs {
    StepView step;
    LayerArg layer;
    TensorArg kv[2];          // k, v
    uint32_t has_vectors[2];  // their chunks begin at multiples of 16 bytes
    StagingArg staging;
    uint32_t n_sequences;
    uint32_t n_tokens;
    uint32_t block_tokens;  // at most kBlockTokens
    uint32_t block_chunks;  // of a token, at most kAppendThreads
    uint32_t token_step;    // tokens that a thread block takes at once
};

LK_BOTH uint32_t element_bytes(const TensorArg &tensor) { return tensor.dtype == kF32 ? 4 : 2; }

// The share of a thread: a chunk of a head, of every step-th token of the thread block.
struct Share {
    uint32_t head;
    uint32_t channel;
    uint32_t first;
    uint32_t step;
    bool exists;

    __device__ explicit Share(const AppendKernelArgs &args) {
        const uint32_t head_chunks = args.layer.head_dim / kChunk;
        const uint32_t chunk = blockIdx.y * args.block_chunks + threadIdx.x % args.block_chunks;
        head = chunk / head_chunks;
        channel = chunk % head_chunks * kChunk;
        first = threadIdx.x / args.block_chunks;
        step = args.token_step;
        exists = first < step && head < args.layer.n_kv_heads;
    }
};

// Elements of a chunk as they lie in a tensor; those of 16 bits are two to a word.
struct RawChunk {
    uint32_t words[kChunk];

    __device__ void load_vector(uint32_t i, const uint8_t *chunk) {
        const uint4 vector = reinterpret_cast<const uint4 *>(chunk)[i];
        words[4 * i] = vector.x;
        words[4 * i + 1] = vector.y;
        words[4 * i + 2] = vector.z;
        words[4 * i + 3] = vector.w;
    }
    __device__ void load_elements(const uint8_t *chunk, uint32_t element_bytes) {
        if (element_bytes == 4) {
            for (uint32_t i = 0; i < kChunk; ++i)
                words[i] = reinterpret_cast<const uint32_t *>(chunk)[i];
            return;
        }
        const auto *values = reinterpret_cast<const uint16_t *>(chunk);
        for (uint32_t i = 0; i < kChunk / 2; ++i)
            words[i] = values[2 * i] | uint32_t{values[2 * i + 1]} << 16;
    }
};

// A thread's chunks of the tokens of its thread block.
class ChunkReader {
  public:
    __device__ ChunkReader(const AppendKernelArgs &args, const Share &share, bool is_value,
                           uint32_t first_token)
        : element_bytes_(element_bytes(args.kv[is_value])),
          has_vectors_(args.has_vectors[is_value]) {
        const TensorArg &tensor = args.kv[is_value];
        token_bytes_ = tensor.token_stride * element_bytes_;
        const int64_t chunk = share.head * tensor.head_stride + share.channel;
        first_ = static_cast<const uint8_t *>(tensor.data) + first_token * token_bytes_ +
                 chunk * element_bytes_;
    }
    // Load the chunks of kBatch tokens that are `step` apart, none from `end` on.
    __device__ void load(uint32_t token, uint32_t step, uint32_t end,
                         RawChunk (&raw)[kBatch]) const {
        const uint8_t *from = first_ + token * token_bytes_;
        const int64_t step_bytes = step * token_bytes_;
        if (!has_vectors_) {
            for (uint32_t i = 0; i < kBatch; ++i)
                if (token + i * step < end)
                    raw[i].load_elements(from + i * step_bytes, element_bytes_);
            return;
        }
        for (uint32_t i = 0; i < kBatch; ++i)
            if (token + i * step < end)
                raw[i].load_vector(0, from + i * step_bytes);
        for (uint32_t i = 0; i < kBatch; ++i)
            if (token + i * step < end && element_bytes_ == 4)
                raw[i].load_vector(1, from + i * step_bytes);
    }

  private:
    const uint8_t *first_;
    int64_t token_bytes_;
    uint32_t element_bytes_;
    bool has_vectors_;
};

// Centers and inverses of a chunk's channels; null where the layer has none.
struct ChunkParameters {
    const float *centers;
    const float *inverses;
};

// FP16 numbers of a chunk, two to a word, with the counts and faults to report.
struct Chunk {
    uint32_t words[kChunk / 2];
    uint32_t n_saturated = 0;
    bool has_fault = false;

    __device__ Chunk(const RawChunk &raw, uint32_t dtype, const ChunkParameters &parameters) {
        if (parameters.centers || parameters.inverses)
            take_keys(raw, dtype, parameters);
        else if (dtype == kF16)
            take_f16(raw);
        else
            take_floats(raw, dtype == kBf16);
    }

  private:
    // The highest bit of each FP16 number that is infinite or NaN.
    static __device__ uint32_t not_finite(uint32_t pair) {
        return ((pair & 0x7C007C00u) + 0x04000400u) & 0x80008000u;
    }
    __device__ void take_f16(const RawChunk &raw) {
        uint32_t found = 0;
        for (uint32_t i = 0; i < kChunk / 2; ++i) {
            words[i] = raw.words[i];
            found |= not_finite(words[i]);
        }
        has_fault = found != 0;
        if (!has_fault)
            return;
        for (uint32_t i = 0; i < kChunk / 2; ++i)
            words[i] &= ~((not_finite(words[i]) >> 15) * 0xFFFFu);
    }
    __device__ void take_floats(const RawChunk &raw, bool is_bf16) {
        for (uint32_t i = 0; i < kChunk / 2; ++i) {
            const uint32_t low = is_bf16 ? raw.words[i] << 16 : raw.words[2 * i];
            const uint32_t high = is_bf16 ? raw.words[i] & 0xFFFF0000u : raw.words[2 * i + 1];
            words[i] = take_float(low) | take_float(high) << 16;
        }
    }
    __device__ void take_keys(const RawChunk &raw, uint32_t dtype,
                              const ChunkParameters &parameters) {
#pragma unroll
        for (uint32_t i = 0; i < kChunk; ++i) {
            const float center = parameters.centers ? parameters.centers[i] : 0.0f;
            const float inverse = parameters.inverses ? parameters.inverses[i] : 1.0f;
            const uint32_t half = take_float(element_bits(raw, dtype, i), center, inverse);
            words[i / 2] = i % 2 ? words[i / 2] | half << 16 : half;
        }
    }
    // Element i as FP32; infinities and NaNs stay such.
    static __device__ uint32_t element_bits(const RawChunk &raw, uint32_t dtype, uint32_t i) {
        if (dtype == kF32)
            return raw.words[i];
        const uint32_t bits = i % 2 ? raw.words[i / 2] >> 16 : raw.words[i / 2] & 0xFFFFu;
        if (dtype == kBf16)
            return bits << 16;
        return __float_as_uint(__half2float(__ushort_as_half(static_cast<uint16_t>(bits))));
    }
    // k - 0 and k * 1 are k, bit for bit.
    __device__ uint32_t take_float(uint32_t float_bits, float center = 0.0f, float inverse = 1.0f) {
        const bool is_finite = (float_bits & 0x7F800000u) != 0x7F800000u;
        bool saturated;
        const uint32_t bits = round_to_half(
            __fmul_rn(__fsub_rn(__uint_as_float(float_bits), center), inverse), &saturated);
        n_saturated += is_finite && saturated;
        has_fault |= !is_finite;
        return is_finite ? bits : 0;
    }
};

// The last of n ascending values that is not above the limit; the first is not. Whole warps.
template <typename Value>
__device__ uint32_t find_last(uint32_t n, uint32_t limit, const Value &value) {
    const uint32_t lane = threadIdx.x % kWarp;
    uint32_t first = 0;
    // The token is mostly near the end.
    if (n > kWarp) {
        first = n - kWarp;
        const uint32_t found = __ballot_sync(kAllLanes, value(first + lane) <= limit);
        if (found)
            return first + __popc(found) - 1;
        n = first;
        first = 0;
    }
    // A token further back: each round leaves one of 32 ranges.
    for (;;) {
        const uint32_t step = (n + kWarp - 1) / kWarp;
        const uint32_t i = lane * step;
        const uint32_t part =
            __popc(__ballot_sync(kAllLanes, i < n && value(first + i) <= limit)) - 1;
        if (step == 1)
            return first + part;
        first += part * step;
        n = min(step, n - part * step);
    }
}

// The block that stores a token; entries is null when none does.
struct TokenPosition {
    const Entry *entries;  // [heads] of the layer
    uint32_t token;        // in the block
};

// Where a token goes, and the n tokens from it on that follow it in its block. Whole warps.
__device__ TokenPosition find_position(const AppendKernelArgs &args, uint32_t token, uint32_t *n) {
    const SequenceInfo *sequences = args.step.sequences;
    const SequenceInfo &sequence = sequences[find_last(
        args.n_sequences, token, [&](uint32_t i) { return sequences[i].first_new; })];
    const uint32_t in_sequence = token - sequence.first_new;
    const uint32_t position = sequence.n_history + in_sequence;
    const BlockInfo *blocks = args.step.blocks + sequence.first_block;
    const BlockInfo &block = blocks[find_last(sequence.n_blocks, position,
                                              [&](uint32_t i) { return blocks[i].first_token; })];
    const auto *entries = reinterpret_cast<const Entry *>(block.entries);
    const uint32_t in_block = position - block.first_token;
    *n = min(sequence.n_new - in_sequence, block.capacity_tokens - in_block);
    return {block.is_packed_on_append ? nullptr : entries + args.layer.first_entry, in_block};
}

// Where n tokens of the batch go, at most kBlockTokens. Each warp finds those of its share.
__device__ void find_positions(const AppendKernelArgs &args, uint32_t first_token, uint32_t n,
                               TokenPosition *positions) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t n_share = (n + kAppendWarps - 1) / kAppendWarps;
    uint32_t token = threadIdx.x / kWarp * n_share;
    const uint32_t end = min(token + n_share, n);
    while (token < end) {
        uint32_t n_found;
        const TokenPosition position = find_position(args, first_token + token, &n_found);
        n_found = min(n_found, end - token);
        if (lane < n_found)
            positions[token + lane] = {position.entries, position.token + lane};
        token += n_found;
    }
}

__device__ void store_staged(const StagingArg &staging, const Chunk &chunk, bool is_value,
                             uint32_t head_dim, uint32_t token, const Share &share) {
    uint16_t *area = is_value ? staging.v : staging.k;
    const uint64_t row = uint64_t{share.head} * staging.n_tokens + token;
    *reinterpret_cast<uint4 *>(area + row * head_dim + share.channel) =
        make_uint4(chunk.words[0], chunk.words[1], chunk.words[2], chunk.words[3]);
}

__device__ void store_in_block(const StepView &step, const Entry &entry, const Chunk &chunk,
                               bool is_value, uint32_t token, uint32_t channel) {
    const FormatInfo &c = step.formats[is_value ? entry.value_format : entry.key_format];
    if (!c.is_raw)
        return;
    auto *values =
        reinterpret_cast<uint16_t *>(is_value ? entry.value_payload : entry.key_payload) +
        raw_token_steps(is_value).offset(token);
    const Steps channels = raw_channel_steps(is_value, c.page_tokens);
    // Two channels share a word of a key tile.
    for (uint32_t i = 0; i < kChunk / 2; ++i) {
        const uint32_t pair = chunk.words[i];
        uint16_t *low = values + channels.offset(channel + 2 * i);
        if (is_value) {
            low[0] = static_cast<uint16_t>(pair);
            values[channels.offset(channel + 2 * i + 1)] = static_cast<uint16_t>(pair >> 16);
        } else {
            *reinterpret_cast<uint32_t *>(low) = pair;
        }
    }
}

__device__ void report_fault(const AppendKernelArgs &args, uint64_t key) {
    atomicMin(reinterpret_cast<unsigned long long *>(&args.step.report->first_bad), key);
}

// The sum of the counts of the thread block goes to the report, which is in host memory.
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

// Returns how many values were saturated.
__device__ uint32_t append_chunk(const AppendKernelArgs &args, uint32_t serial, const RawChunk &raw,
                                 bool is_value, uint32_t token, const Share &share,
                                 const TokenPosition &position) {
    const LayerArg &layer = args.layer;
    const uint32_t first = share.head * layer.head_dim + share.channel;
    ChunkParameters parameters = {};
    if (!is_value && layer.key_centers)
        parameters.centers = layer.key_centers + first;
    if (!is_value && layer.key_inverses)
        parameters.inverses = layer.key_inverses + first;
    const Chunk chunk(raw, args.kv[is_value].dtype, parameters);
    if (chunk.has_fault)
        report_fault(args,
                     kFaultBias | fault_key(serial, args.layer.layer, token, share.head, is_value));
    if (args.staging.k)
        store_staged(args.staging, chunk, is_value, args.layer.head_dim, token, share);
    if (position.entries)
        store_in_block(args.step, position.entries[share.head], chunk, is_value, position.token,
                       share.channel);
    return chunk.n_saturated;
}

// Loads that need no table come first, so that a step of few tokens waits for memory less often.
__global__ void __launch_bounds__(kAppendThreads, 7)
    append_kernel(const __grid_constant__ AppendKernelArgs args) {
    __shared__ TokenPosition positions[kBlockTokens];
    const bool is_value = blockIdx.z;
    const uint32_t first_token = blockIdx.x * args.block_tokens;
    const uint32_t n_tokens = min(args.block_tokens, args.n_tokens - first_token);
    const StepHeader header = *args.step.header;
    const Share share(args);
    const ChunkReader reader(args, share, is_value, first_token);
    const uint32_t end = share.exists ? n_tokens : 0;
    RawChunk raw[kBatch];
    uint32_t token = share.first;
    reader.load(token, share.step, end, raw);
    if (header.n_sequences != args.n_sequences || header.n_tokens != args.n_tokens) {
        if (threadIdx.x == 0 && blockIdx.x == 0)
            report_fault(args, kShapeFault);
        return;
    }
    find_positions(args, first_token, n_tokens, positions);
    __syncthreads();
    uint32_t n_saturated = 0;
    while (token < end) {
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i, token += share.step)
            if (token < end)
                n_saturated += append_chunk(args, header.serial, raw[i], is_value,
                                            first_token + token, share, positions[token]);
        reader.load(token, share.step, end, raw);
    }
    report_saturated(args, n_saturated);
}

bool begins_at_vectors(const TensorArg &tensor) {
    const uint64_t bytes = element_bytes(tensor);
    const uint64_t strides = static_cast<uint64_t>(tensor.token_stride) * bytes |
                             static_cast<uint64_t>(tensor.head_stride) * bytes;
    return (reinterpret_cast<uint64_t>(tensor.data) | strides) % sizeof(uint4) == 0;
}

}  // namespace

cudaError_t launch_append(const StepView &step, const LayerArg &layer, const TensorArg &k,
                          const TensorArg &v, const StagingArg &staging, uint32_t n_sequences,
                          uint32_t n_tokens, cudaStream_t stream) {
    if (!n_tokens)
        return cudaSuccess;
    const uint32_t n_chunks = layer.n_kv_heads * (layer.head_dim / kChunk);
    AppendKernelArgs args{};
    args.step = step;
    args.layer = layer;
    args.kv[0] = k;
    args.kv[1] = v;
    args.has_vectors[0] = begins_at_vectors(k);
    args.has_vectors[1] = begins_at_vectors(v);
    args.staging = staging;
    args.n_sequences = n_sequences;
    args.n_tokens = n_tokens;
    args.block_tokens = std::clamp(n_tokens / kManyBlocks, 1u, kBlockTokens);
    args.block_chunks = std::min(n_chunks, kAppendThreads);
    args.token_step = kAppendThreads / args.block_chunks;
    const dim3 grid((n_tokens + args.block_tokens - 1) / args.block_tokens,
                    (n_chunks + args.block_chunks - 1) / args.block_chunks, 2);
    append_kernel<<<grid, kAppendThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk
