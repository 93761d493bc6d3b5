// Attention of latent layers by key warps and value warps: weights, which key warps make, and what
// the kernels of one width and of any format share.
//
// Key warps make weights of a stage, while value warps copy the next one and multiply the weights
// and values of the stage before: a thread block meets once for each stage. A key warp has 16
// tokens of a stage and all of their channels, so a logit is whole in a register.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_KEY_WARP_CUH
#define LK_CUDA_ROWS_KEY_WARP_CUH

#include "cuda/rows/attend.cuh"

namespace lk {
namespace cuda {

constexpr int kNarrowEights = kRowsColumns / 8;
static_assert(kSideWarps * LK_TILE_TOKENS == kMostRowsTokens, "a warp has a tile of a stage");

constexpr uint32_t kOnes = 0x3C003C00;  // two FP16 numbers

// Of 8 columns each, [2 tokens or channels 8 apart][2 columns]: as the sums of a product lie.
using TileProducts = float[kNarrowEights][4];

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

// Value warps also look up pages and copy them. kAny: packed pages may have any format.
template <bool kAny>
struct ValueThreads {
    static constexpr bool kTakesAny = kAny;
    static constexpr uint32_t kN = kSideWarps * kWarp;
    static __device__ __forceinline__ uint32_t index() { return threadIdx.x - kN; }
    static __device__ __forceinline__ void meet() {
        __syncwarp();
        asm volatile("bar.sync 2, %0;" ::"n"(kN) : "memory");
    }
};

// What value warps found out about a stage.
struct FoundStage {
    Stage stage;
    Codes codes;
    uint32_t slot;      // shared address
    uint32_t is_whole;  // once its copies have arrived
};
// Two are read while the next one is found.
constexpr uint32_t kFoundStages = 4;

// What key warps tell value warps of a stage.
struct WeighedStage {
    float shrinks[kRowsColumns];  // what the columns' output is multiplied by
    uint32_t is_raised;           // some of them are not 1
};

// A key warp.
struct KeyWarp {
    float references[kNarrowEights][2];  // of the lane's columns

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

    // Raise references if a logit of any column lies beyond its headroom, and tell so.
    __device__ __forceinline__ bool keep_up(const TileProducts &logits, uint32_t warp, float *highs,
                                            float *shrinks) {
        float over = -INFINITY;
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                over = fmaxf(over, logits[n][i] - references[n][i % 2]);
        const bool is_raised = any_of_key_warps(over > kHeadroom);
        if (is_raised)
            raise(logits, warp, highs, shrinks);
        return is_raised;
    }
};

// Sums of the weights of a stage as they were rounded, by a product with ones.
struct RoundedSums {
    TileProducts sums;

    template <bool kWide>
    __device__ __forceinline__ void add(const ColumnOperands<kWide> &weights) {
        weights.multiply({kOnes, kOnes, kOnes, kOnes}, sums);
    }
    __device__ __forceinline__ float of(int n, int i) const { return sums[n][i]; }
};

}  // namespace cuda
}  // namespace lk

#endif
