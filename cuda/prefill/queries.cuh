// Attention of many columns: queries of a thread block, as both kernels of prefill load them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_QUERIES_CUH
#define LK_CUDA_PREFILL_QUERIES_CUH

#include "cuda/prefill/output.cuh"
#include "cuda/query_change.cuh"

namespace lk {
namespace cuda {

// A power of two to divide a query by, where FP16 cannot hold it.
__device__ inline float query_divisor(float highest) {
    const uint32_t exponent = __float_as_uint(highest) >> 23;
    constexpr uint32_t kKept = 127 + 14;  // below 2^15
    return exponent > kKept && exponent < 255 ? __uint_as_float((exponent - kKept + 127) << 23)
                                              : 1.0f;
}

// A query as it meets keys, and the divisor of one that FP16 does not hold.
template <int kCount>
struct RoundedQuery {
    float x[kCount];
    float center_product;
    float divisor;
};

// Out of line, where queries of FP16 come only if their layer changes them.
template <int kCount>
__device__ __noinline__ RoundedQuery<kCount> change_and_divide(RoundedQuery<kCount> q,
                                                               const QueryChange change) {
    q.center_product = change_query(change, q.x);
    float high = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        high = fmaxf(high, fabsf(q.x[i]));
#pragma unroll
    for (int step = 1; step < static_cast<int>(kWarp); step *= 2)
        high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, step));
    q.divisor = query_divisor(high);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        q.x[i] *= inverse_power(q.divisor);
    return q;
}

// Elements of a tensor as they lie there, since loads wait together where no conversion comes
// between them: load(pointer to elements) is called for those of 16 or of 32 bits.
template <class Load>
__device__ __forceinline__ void load_bits(const TensorArg &tensor, const Load &load) {
    if (tensor.dtype == kF32)
        load(static_cast<const uint32_t *>(tensor.data));
    else
        load(static_cast<const uint16_t *>(tensor.data));
}
__device__ __forceinline__ float element_of(uint32_t dtype, uint32_t bits) {
    return dtype == kF16 ? __half2float(__ushort_as_half(static_cast<uint16_t>(bits)))
                         : __uint_as_float(dtype == kF32 ? bits : bits << 16);
}

// Round eight of the warp's queries to FP16 and pass them to store(query, channel, value); columns
// that do not exist repeat the last one. Returns whether logits take more than the layer's factor.
template <int kStrips, class Store>
__device__ inline bool load_slice(const TileArgs &args, ColumnTables &tables,
                                  const WarpColumns &warp, uint32_t slice, const Store &store) {
    constexpr int kSteps = (kStrips + 1) / 2;  // a lane's channels, kWarp apart
    const Mask &mask = tables.mask;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t head_dim = args.layer.head_dim;
    const float sign = args.layer.scale < 0 ? -1.0f : 1.0f;
    uint32_t bits[8][kSteps];
    load_bits(args.q, [&](const auto *elements) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t column = min(8 * slice + i, warp.n - 1);
            const QueryColumn query = query_column(mask.sequence, mask.kv_head, mask.group_size,
                                                   mask.first_column + warp.first + column);
            const int64_t offset = row_offset(args.q, query.token, query.head);
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                const uint32_t channel = kWarp * step + lane;
                bits[i][step] = channel < head_dim ? elements[offset + channel] : 0;
            }
        }
    });
    const QueryChange change(args.layer, mask.kv_head);
    const bool fits = args.q.dtype == kF16 && !change.exists();
    bool has_factors = change.centers;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        RoundedQuery<kSteps> q = {};
        q.divisor = 1;
        // A query beyond its layer's limit counts as zeros, its logits are NaN by their offset.
        bool is_beyond = false;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            q.x[step] = sign * element_of(args.q.dtype, bits[i][step]);
            is_beyond |= is_beyond_limit(args.layer, q.x[step]);
        }
        is_beyond = __any_sync(kAllLanes, is_beyond);
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
            q.x[step] = is_beyond ? 0.0f : q.x[step];
        if (!fits)
            q = change_and_divide(q, change);
        has_factors |= is_beyond || q.divisor != 1;
        if (lane == 0) {
            tables.factors[warp.first + 8 * slice + i] = q.divisor;
            tables.offsets[warp.first + 8 * slice + i] =
                is_beyond ? __uint_as_float(kNanBits) : q.center_product;
        }
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const uint32_t channel = kWarp * step + lane;
            if (channel < head_dim)
                store(i, channel, __float2half_rn(q.x[step]));
        }
    }
    return has_factors;
}

template <class Tables>
__device__ inline void load_positions(const TileArgs &args, Tables *tables) {
    const Mask &mask = tables->mask;
    const SequenceInfo &sequence = mask.sequence;
    for (uint32_t column = threadIdx.x; column < Tables::kMostColumns; column += blockDim.x) {
        const uint32_t last = mask.n_columns - 1;
        const uint32_t token =
            (mask.first_column + (column < last ? column : last)) / mask.group_size;
        tables->positions[column] = sequence.has_tree
                                        ? args.step.positions[sequence.first_new + token]
                                        : sequence.n_history + token;
        tables->reaches[column] =
            sequence.has_tree ? tables->positions[column] : find_reach(args, sequence, token);
        tables->ancestors[column] =
            sequence.has_tree ? args.step.ancestors[sequence.first_new + token] : 0;
    }
}

}  // namespace cuda
}  // namespace lk

#endif
