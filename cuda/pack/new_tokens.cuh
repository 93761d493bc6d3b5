// New tokens on their way to FP16: a thread takes chunks of eight channels.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PACK_NEW_TOKENS_CUH
#define LK_CUDA_PACK_NEW_TOKENS_CUH

#include "cuda/append_pages.h"
#include "cuda/fragment.cuh"
#include "cuda/pack/quantize.cuh"
#include "cuda/rotate.cuh"

namespace lk {
namespace cuda {

constexpr uint32_t kChunk = 8;  // channels that a thread converts at once
constexpr uint32_t kBatch = 4;  // chunks whose loads a thread has under way

enum Dtype : uint32_t { kF16 = 1, kBf16 = 2, kF32 = 3 };

LK_BOTH uint32_t element_bytes(const TensorArg &tensor) { return tensor.dtype == kF32 ? 4 : 2; }

// Eight channels of a KV head, of any token.
struct ChunkPosition {
    uint32_t head;
    uint32_t channel;
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

// The chunks that a thread takes of a thread block's tokens.
class ChunkReader {
  public:
    __device__ ChunkReader(const NewTokens &tokens, const ChunkPosition &at, bool is_value,
                           uint32_t first_token)
        : element_bytes_(element_bytes(tokens.kv[is_value])),
          has_vectors_(tokens.has_vectors[is_value]) {
        const TensorArg &tensor = tokens.kv[is_value];
        token_bytes_ = tensor.token_stride * element_bytes_;
        const int64_t chunk = at.head * tensor.head_stride + at.channel;
        first_ = static_cast<const uint8_t *>(tensor.data) + first_token * token_bytes_ +
                 chunk * element_bytes_;
    }
    // Copy the chunks of tokens first, first + step and so on below `end` to rows in shared memory,
    // and read them from there: all loads are under way at once. False: only chunks of 16 bytes can
    // be copied, others are read where they are.
    __device__ bool copy(uint16_t *rows, uint32_t row_values, uint32_t first, uint32_t step,
                         uint32_t end) {
        if (element_bytes_ != 2 || !has_vectors_)
            return false;
        const uint32_t row_bytes = 2 * row_values;
        const uint32_t to = shared_address(rows);
        for (uint32_t token = first; token < end; token += step)
            copy_async(to + token * row_bytes, first_ + token * token_bytes_);
        commit_copies();
        wait_copies<0>();
        first_ = reinterpret_cast<const uint8_t *>(rows);
        token_bytes_ = row_bytes;
        return true;
    }
    __device__ void load(uint32_t token, RawChunk *raw) const {
        const uint8_t *from = first_ + token * token_bytes_;
        if (!has_vectors_)
            return raw->load_elements(from, element_bytes_);
        raw->load_vector(0, from);
        if (element_bytes_ == 4)
            raw->load_vector(1, from);
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

constexpr uint32_t kWarpChannels = kWarp * kChunk;

// What changes a chunk's channels: null and 0 where the layer has none.
struct ChunkParameters {
    const float *centers;
    const float *inverses;
    uint32_t rotation;  // channels of a block
    bool is_upper;      // the upper half of the chunks of a block of two warps

    __device__ bool exist() const { return centers || inverses || rotation; }
};
__device__ inline ChunkParameters chunk_parameters(const NewTokens &tokens, bool is_value,
                                                   const ChunkPosition &at) {
    const LayerArg &layer = tokens.layer;
    const uint32_t first = at.head * layer.head_dim + at.channel;
    return {!is_value && layer.key_centers ? layer.key_centers + first : nullptr,
            !is_value && layer.key_inverses ? layer.key_inverses + first : nullptr,
            is_value ? 0 : layer.key_rotation, (at.channel & kWarpChannels) != 0};
}

// The highest bit of each FP16 number that is infinite or NaN.
LK_BOTH uint32_t not_finite(uint32_t pair) {
    return ((pair & 0x7C007C00u) + 0x04000400u) & 0x80008000u;
}

// A chunk of BF16 at FP16. Numbers beyond FP16 become infinite: BF16 has none between 65504, the
// largest of FP16, and those that round to infinity.
__device__ inline uint32_t bf16_to_f16(uint32_t pair) {
    return as_word(
        __floats2half2_rn(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)));
}
__device__ inline uint4 bf16_to_f16(const uint4 &chunk) {
    return make_uint4(bf16_to_f16(chunk.x), bf16_to_f16(chunk.y), bf16_to_f16(chunk.z),
                      bf16_to_f16(chunk.w));
}

// Element i of a chunk as FP32; infinities and NaNs stay such.
__device__ inline float element(const RawChunk &raw, uint32_t dtype, uint32_t i) {
    if (dtype == kF32)
        return __uint_as_float(raw.words[i]);
    const uint32_t bits = i % 2 ? raw.words[i / 2] >> 16 : raw.words[i / 2] & 0xFFFFu;
    if (dtype == kBf16)
        return __uint_as_float(bits << 16);
    return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}
__device__ inline bool is_finite(float number) {
    return (__float_as_uint(number) & 0x7F800000u) != 0x7F800000u;
}
// k - 0 and k * 1 are k, bit for bit.
__device__ inline float centered(float element, uint32_t i, const ChunkParameters &parameters) {
    return __fsub_rn(element, parameters.centers ? parameters.centers[i] : 0.0f);
}
__device__ inline float scaled(float number, uint32_t i, const ChunkParameters &parameters) {
    return __fmul_rn(number, parameters.inverses ? parameters.inverses[i] : 1.0f);
}

// FP16 numbers of a chunk, two to a word, with the counts and faults to report.
struct Chunk {
    uint32_t words[kChunk / 2];
    uint32_t n_saturated;
    bool has_fault;

    __device__ uint4 vector() const { return make_uint4(words[0], words[1], words[2], words[3]); }
    __device__ void put(uint32_t i, float number) {
        bool saturated;
        const uint32_t half = round_to_half(number, &saturated);
        words[i / 2] = i % 2 ? words[i / 2] | half << 16 : half;
        n_saturated += saturated;
    }
};

// The words of a chunk of a layer without a rotation, two elements at once, if it is finite and in
// the range of FP16 as nearly all are. Returns whether it is.
__device__ inline bool convert_usual(const RawChunk &raw, uint32_t dtype,
                                     const ChunkParameters &parameters,
                                     uint32_t (&words)[kChunk / 2]) {
    if (dtype == kF16 && !parameters.exist()) {
        uint32_t found = 0;
#pragma unroll
        for (uint32_t i = 0; i < kChunk / 2; ++i) {
            words[i] = raw.words[i];
            found |= not_finite(words[i]);
        }
        return !found;
    }
    constexpr uint32_t kHighest = 0x477FE000;  // 65504
    const auto changed = [&](uint32_t i) {
        return scaled(centered(element(raw, dtype, i), i, parameters), i, parameters);
    };
    uint32_t highest = 0;
#pragma unroll
    for (uint32_t i = 0; i < kChunk / 2; ++i) {
        const float low = changed(2 * i);
        const float high = changed(2 * i + 1);
        words[i] = as_word(__floats2half2_rn(low, high));
        highest = max(highest, __float_as_uint(low) & 0x7FFFFFFFu);
        highest = max(highest, __float_as_uint(high) & 0x7FFFFFFFu);
    }
    return highest <= kHighest;
}

// The last stage of a block of two warps.
__device__ inline void join_warps(bool is_upper, float4 *own, const float4 *others,
                                  float (&x)[kChunk]) {
    const float sign = is_upper ? -1.0f : 1.0f;
#pragma unroll
    for (uint32_t i = 0; i < kChunk; i += 4) {
        if (own)
            *own = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
        __syncthreads();
        const float4 y = own ? *others : float4{};
        __syncthreads();
        x[i] = __fmaf_rn(x[i], sign, y.x);
        x[i + 1] = __fmaf_rn(x[i + 1], sign, y.y);
        x[i + 2] = __fmaf_rn(x[i + 2], sign, y.z);
        x[i + 3] = __fmaf_rn(x[i + 3], sign, y.w);
    }
}

// A chunk of any elements; those that are not finite count as 0. Of a layer with a rotation all
// threads of the thread block come together, neighbours having the chunks of a block of channels.
// own, others: where threads of two warps that share such a block exchange half a chunk; null where
// they have no token.
__device__ inline Chunk convert_any(const RawChunk &raw, uint32_t dtype,
                                    const ChunkParameters &parameters, float4 *own,
                                    const float4 *others) {
    Chunk chunk = {};
    float x[kChunk];
#pragma unroll
    for (uint32_t i = 0; i < kChunk; ++i) {
        const float k = element(raw, dtype, i);
        chunk.has_fault |= !is_finite(k);
        const float number = is_finite(k) ? centered(k, i, parameters) : 0;
        x[i] = scaled(parameters.rotation ? cut_to_rotate(number) : number, i, parameters);
    }
    if (parameters.rotation) {
        rotate_in_lane(parameters.rotation, 1, x);
        rotate_across_lanes(min(parameters.rotation / kChunk, kWarp), x);
        if (parameters.rotation > kWarpChannels)
            join_warps(parameters.is_upper, own, others, x);
        scale_rotated(parameters.rotation, x);
    }
#pragma unroll
    for (uint32_t i = 0; i < kChunk; ++i)
        chunk.put(i, x[i]);
    return chunk;
}

// Where the chunk of a token of the batch is staged; null where the step has no staging area.
__device__ inline uint16_t *staged_chunk(const NewTokens &tokens, bool is_value, uint32_t token,
                                         const ChunkPosition &at) {
    const StagingArg &staging = tokens.staging;
    if (!staging.k)
        return nullptr;
    const uint64_t row = uint64_t{at.head} * staging.n_tokens + token;
    return (is_value ? staging.v : staging.k) + row * stored_dim(tokens.layer, is_value) +
           at.channel;
}
__device__ inline void store_chunk(uint16_t *to, const uint32_t (&words)[kChunk / 2]) {
    *reinterpret_cast<uint4 *>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ inline void report_fault(const NewTokens &tokens, uint64_t key) {
    atomicMin(reinterpret_cast<unsigned long long *>(&tokens.step.report->first_bad), key);
}

__device__ inline void report_chunk(const NewTokens &tokens, uint32_t serial, bool is_value,
                                    uint32_t token, const ChunkPosition &at) {
    report_fault(tokens,
                 kFaultBias | fault_key(serial, tokens.layer.layer, token, at.head, is_value));
}

// The sum of the counts of the thread block goes to the report, which is in host memory.
__device__ inline void report_saturated(const NewTokens &tokens, uint32_t n_saturated) {
    if (!__syncthreads_or(n_saturated != 0))
        return;
    __shared__ uint32_t n_block;
    if (threadIdx.x == 0)
        n_block = 0;
    __syncthreads();
    atomicAdd(&n_block, n_saturated);
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(&tokens.step.report->n_saturated),
                  n_block);
}

}  // namespace cuda
}  // namespace lk

#endif
