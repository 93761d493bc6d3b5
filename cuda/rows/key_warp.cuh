// Attention of latent layers: key warps, which make weights of a stage, and what they share with
// value warps.
//
// A key warp has 16 tokens of a stage and all of their channels, so a logit is whole in a register.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_KEY_WARP_CUH
#define LK_CUDA_ROWS_KEY_WARP_CUH

#include "cuda/rows/any_codes.cuh"

namespace lk {
namespace cuda {

static_assert(kSideWarps * LK_TILE_TOKENS == kMostRowsTokens, "a warp has a tile of a stage");

__device__ __forceinline__ uint32_t column_of_product(int n, int i) {
    return 8 * n + 2 * (threadIdx.x % 4) + i % 2;
}

// Barrier 1 is that of the key warps.
__device__ __forceinline__ void meet_key_warps() {
    __syncwarp();
    asm volatile("bar.sync 1, %0;" ::"n"(kSideWarps * kWarp) : "memory");
}
__device__ __forceinline__ bool any_of_key_warps(bool is_so) {
    uint32_t is_any;
    __syncwarp();
    asm volatile(
        "{\n.reg .pred own, any;\n"
        "setp.ne.u32 own, %1, 0;\n"
        "bar.red.or.pred any, 1, %2, own;\n"
        "selp.u32 %0, 1, 0, any;\n}"
        : "=r"(is_any)
        : "r"(uint32_t{is_so}), "n"(kSideWarps * kWarp)
        : "memory");
    return is_any;
}

// Barrier 3: products with minima go from value warps to key warps.
__device__ __forceinline__ void give_minima() {
    __syncwarp();
    asm volatile("bar.arrive 3, %0;" ::"n"(kRowsThreads) : "memory");
}
__device__ __forceinline__ void await_minima() {
    __syncwarp();
    asm volatile("bar.sync 3, %0;" ::"n"(kRowsThreads) : "memory");
}

// What value warps found out about a stage.
struct FoundStage {
    Stage stage;
    Codes codes;
    uint32_t slot;      // shared address
    uint32_t is_whole;  // once its copies have arrived
    FoundPage page;     // of kAnyCodes
};
// Two are read while the next one is found.
constexpr uint32_t kFoundStages = 4;

// What key warps tell value warps of a stage.
struct WeighedStage {
    float shrinks[kRowsColumns];  // what the columns' output is multiplied by
    uint32_t is_raised;           // some of them are not 1
};

// A lane's word of a tile of codes.
template <uint32_t kBits>
__device__ __forceinline__ uint32_t tile_offset(uint32_t tile) {
    constexpr uint32_t kVectorBytes = 4 * LK_VECTOR_WORDS * LK_LANES;
    return kBits == 4 ? tile / 4 * kVectorBytes + tile % 4 * 4 : tile / 2 * 4;
}

// S of a tile of codes of at most kLatentBits, or of FP16 numbers (kBits 16): all strips of the
// keys.
template <uint32_t kBits>
__device__ __forceinline__ void multiply_own_tile(const RowsBlock &block, const Codes &codes,
                                                  const KeyRangeScale &scale, uint32_t slot,
                                                  uint32_t n_tiles, uint32_t tile,
                                                  TileProducts &products) {
    const uint32_t lane = threadIdx.x % kWarp;
    const bool is_coded = kBits < 16;
    const uint32_t stride = is_coded ? strip_bytes(codes.page_tokens, kBits) : n_tiles * kTileBytes;
    const uint32_t words = is_coded
                               ? codes.words + lane_offset<kBits>(codes) + tile_offset<kBits>(tile)
                               : slot + tile * kTileBytes + 16 * lane;
    const uint32_t ranges = codes.ranges + 8 * (lane % 4);
    const uint32_t shift = kBits == 2 ? tile % 2 * 2 : 0;
    const auto multiply = [&](uint32_t strip, TileProducts &sums) {
        uint32_t b[4];
        load_own_queries(block, strip * LK_STRIP_CHANNELS + lane % 16, b);
        const uint32_t at = words + strip * stride;
        uint32_t a[4];
        if (is_coded) {
            const uint2 r = load_shared2(ranges + 32 * strip);
            const uint32_t lower = multiply_f16(r.x, scale.lower);
            const uint32_t upper = multiply_f16(r.y, scale.upper);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                b[i] = multiply_f16(b[i], i % 2 ? upper : lower);
            const uint32_t word = load_shared1(at) >> shift;
            mask_codes<is_coded ? kBits : 4>(word, word, a);
        } else {
            const uint4 four = load_shared4(at);
            a[0] = four.x, a[1] = four.y, a[2] = four.z, a[3] = four.w;
        }
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
            mma(sums[n], a[0], a[1], a[2], a[3], b[2 * n], b[2 * n + 1]);
    };
    TileProducts odd = {};  // a second chain of sums
    uint32_t strip = 0;
    constexpr int kUnroll = kBits == 4 ? 2 : 1;  // for the width that most plans have
#pragma unroll kUnroll
    for (; strip + 1 < block.key_strips; strip += 2) {
        multiply(strip, products);
        multiply(strip + 1, odd);
    }
    if (strip < block.key_strips)
        multiply(strip, products);
#pragma unroll
    for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            products[n][i] += odd[n][i];
}

// A key warp.
struct KeyWarp {
    float references[kNarrowEights][2];  // of the lane's columns

    // Products of the warp's tile; a warp whose tile a stage does not have gets zeros.
    __device__ __forceinline__ void multiply(const RowsBlock &block, const FoundStage &stage,
                                             const Codes &codes, uint32_t slot, uint32_t n_tiles,
                                             uint32_t warp, const float *minima,
                                             TileProducts &products) const {
        KeyRangeScale scale = {};
        if (codes.bits == kAnyCodes) {
            if (warp < n_tiles)
                multiply_any_keys(block, stage.page, codes, warp, products);
            return;
        }
        if (!codes.bits) {
            if (warp < n_tiles)
                multiply_own_tile<16>(block, codes, scale, slot, n_tiles, warp, products);
            return;
        }
        if (warp < n_tiles) {
            scale = find_range_scale(codes, 0, block.key_strips);
            if (codes.bits == 4)
                multiply_own_tile<4>(block, codes, scale, slot, n_tiles, warp, products);
            else
                multiply_own_tile<2>(block, codes, scale, slot, n_tiles, warp, products);
        }
        await_minima();
        const float factor = scale.inverse * code_factor(codes.bits);
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const auto *of_column =
                    reinterpret_cast<const float4 *>(minima + column_of_product(n, j) * kSideWarps);
                float least = 0;
#pragma unroll
                for (uint32_t i = 0; i < kSideWarps / 4; ++i) {
                    const float4 four = of_column[i];
                    least += (four.x + four.y) + (four.z + four.w);
                }
                products[n][j] = fmaf(products[n][j], factor, least);
                products[n][2 + j] = fmaf(products[n][2 + j], factor, least);
            }
    }

    // Products become logits.
    __device__ __forceinline__ void shape(const TileArgs &args, const RowsTables &tables,
                                          const RowsStage &stage, uint32_t warp,
                                          TileProducts &products) const {
        const uint32_t first = warp * LK_TILE_TOKENS + threadIdx.x % kWarp / 4;
        uint32_t seen = ~0u;  // a bit for each product; the loop stays one, to be short
#pragma unroll 1
        for (uint32_t i = 0; stage.hides && i < 4 * kNarrowEights; ++i) {
            const uint32_t token = first + i / 2 % 2 * 8;
            if (token >= stage.n_tokens ||
                !is_visible(args, tables, column_of_product(static_cast<int>(i / 4), i % 2),
                            stage.first_token + token))
                seen ^= 1u << i;
        }
        const float factor = logit_factor(args.layer);
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t column = column_of_product(n, i);
                float &x = products[n][i];
                x = fmaf(x, tables.factors[column], tables.offsets[column]);
            }
        if (args.layer.soft_cap > 0)
#pragma unroll
            for (auto &four : products)
#pragma unroll
                for (float &x : four)
                    x = shape_logit(args.layer, x);
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                // Rounded before the reference is subtracted, so that none lies above its own.
                products[n][i] = __fmul_rn(products[n][i], factor);
                if (first + i / 2 * 8 >= stage.n_tokens || !(seen >> (4 * n + i) & 1))
                    products[n][i] = -INFINITY;
            }
    }

    // Raise the references of columns that have a logit beyond their headroom. highs:
    // [column][kSideWarps], in shared memory.
    __device__ __forceinline__ void raise(const TileProducts &logits, uint32_t warp, float *highs,
                                          float *shrinks) {
        const uint32_t lane = threadIdx.x % kWarp;
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                float high = fmaxf(logits[n][j], logits[n][2 + j]);
#pragma unroll
                for (uint32_t step = 4; step < kWarp; step *= 2)
                    high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, step));
                if (lane < 4)
                    highs[column_of_product(n, j) * kSideWarps + warp] = high;
            }
        meet_key_warps();
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const uint32_t column = column_of_product(n, j);
                const float *of_column = highs + column * kSideWarps;
                float high = of_column[0];
#pragma unroll
                for (uint32_t i = 1; i < kSideWarps; ++i)
                    high = fmaxf(high, of_column[i]);
                const float old = references[n][j];
                const float raised = high > old + kHeadroom ? fmaxf(old, high - kBelow) : old;
                references[n][j] = raised;
                if (warp == 0 && lane < 4)
                    shrinks[column] = exp2_fast(old - raised);
            }
    }

    // Weights of the warp's tokens, [column][token].
    __device__ __forceinline__ void store_weights(const TileProducts &logits, uint32_t warp,
                                                  __half *weights, uint32_t stride) const {
        const uint32_t lane = threadIdx.x % kWarp;
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t two =
                    pack_f16(exp2_fast(logits[n][2 * half] - references[n][0]),
                             exp2_fast(logits[n][2 * half + 1] - references[n][1]));
                // Two columns of a token become two tokens of a column.
                *reinterpret_cast<uint32_t *>(weights + (8 * n + lane / 4) * stride +
                                              warp * LK_TILE_TOKENS + 8 * half + 2 * (lane % 4)) =
                    transpose(two);
            }
    }
};

}  // namespace cuda
}  // namespace lk

#endif
