// New tokens on their way to FP16: a thread takes chunks of eight channels.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PACK_NEW_TOKENS_CUH
#define LK_CUDA_PACK_NEW_TOKENS_CUH

#include "cuda/append_pages.h"
#include "cuda/fragment.cuh"
#include "cuda/pack/quantize.cuh"

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

// Centers and inverses of a chunk's channels; null where the layer has none.
struct ChunkParameters {
    const float *centers;
    const float *inverses;

    __device__ bool exist() const { return centers || inverses; }
};
__device__ inline ChunkParameters chunk_parameters(const NewTokens &tokens, bool is_value,
                                                   const ChunkPosition &at) {
    const LayerArg &layer = tokens.layer;
    const uint32_t first = at.head * layer.head_dim + at.channel;
    return {!is_value && layer.key_centers ? layer.key_centers + first : nullptr,
            !is_value && layer.key_inverses ? layer.key_inverses + first : nullptr};
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

// FP16 numbers of a chunk, two to a word, with the counts and faults to report.
struct Chunk {
    uint32_t words[kChunk / 2];
    uint32_t n_saturated = 0;
    bool has_fault = false;

    __device__ Chunk(const RawChunk &raw, uint32_t dtype, const ChunkParameters &parameters) {
        if (dtype == kF16 && !parameters.exist())
            take_f16(raw);
        else
            take_floats(raw, dtype, parameters);
    }
    __device__ uint4 vector() const { return make_uint4(words[0], words[1], words[2], words[3]); }

  private:
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
    // Nearly all chunks are finite and in the range of FP16: two elements become a word at once.
    __device__ void take_floats(const RawChunk &raw, uint32_t dtype,
                                const ChunkParameters &parameters) {
        constexpr uint32_t kHighest = 0x477FE000;  // 65504
        uint32_t highest = 0;
#pragma unroll
        for (uint32_t i = 0; i < kChunk / 2; ++i) {
            const float low = change(element(raw, dtype, 2 * i), 2 * i, parameters);
            const float high = change(element(raw, dtype, 2 * i + 1), 2 * i + 1, parameters);
            words[i] = as_word(__floats2half2_rn(low, high));
            highest = max(highest, __float_as_uint(low) & 0x7FFFFFFFu);
            highest = max(highest, __float_as_uint(high) & 0x7FFFFFFFu);
        }
        if (highest > kHighest)
            take_any(raw, dtype, parameters);
    }
    __device__ void take_any(const RawChunk &raw, uint32_t dtype,
                             const ChunkParameters &parameters) {
#pragma unroll
        for (uint32_t i = 0; i < kChunk; ++i) {
            const float k = element(raw, dtype, i);
            const uint32_t half = take_float(k, change(k, i, parameters));
            words[i / 2] = i % 2 ? words[i / 2] | half << 16 : half;
        }
    }
    // Element i as FP32; infinities and NaNs stay such.
    static __device__ float element(const RawChunk &raw, uint32_t dtype, uint32_t i) {
        if (dtype == kF32)
            return __uint_as_float(raw.words[i]);
        const uint32_t bits = i % 2 ? raw.words[i / 2] >> 16 : raw.words[i / 2] & 0xFFFFu;
        if (dtype == kBf16)
            return __uint_as_float(bits << 16);
        return __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
    }
    // k - 0 and k * 1 are k, bit for bit.
    static __device__ float change(float element, uint32_t i, const ChunkParameters &parameters) {
        const float center = parameters.centers ? parameters.centers[i] : 0.0f;
        const float inverse = parameters.inverses ? parameters.inverses[i] : 1.0f;
        return __fmul_rn(__fsub_rn(element, center), inverse);
    }
    __device__ uint32_t take_float(float element, float number) {
        const bool is_finite = (__float_as_uint(element) & 0x7F800000u) != 0x7F800000u;
        bool saturated;
        const uint32_t bits = round_to_half(number, &saturated);
        n_saturated += is_finite && saturated;
        has_fault |= !is_finite;
        return is_finite ? bits : 0;
    }
};

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
__device__ inline void store_chunk(uint16_t *to, const Chunk &chunk) {
    *reinterpret_cast<uint4 *>(to) = chunk.vector();
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
