// Decode of up to four query columns: products of bytes, exact in integers.
//
// A code is one AND away from the tensor core: the four bytes of a masked word are codes of k 2t
// and 2t + 1 for the rows g and g + 8. So a B fragment has a column for each half of the rows: of
// columns 2h and 2h + 1 the first has its factors at the even bytes and zeros at the odd ones, the
// second the other way round, and the 16 rows of a product are rows g of two strips.
//
// A factor is a byte plus a byte / 252: the value rounded to 0 .. 255, and the remainder. Each byte
// has its own product. Ranges are multiplied in first, with one rounding, so the error of a factor
// is below 2^-15 of the largest range of its page.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_BYTES_CUH
#define LK_CUDA_DECODE_BYTES_CUH

#include "cuda/decode/values.cuh"

namespace lk {
namespace cuda {

constexpr int kLowScale = 252;                // a low byte counts 1 / 252
constexpr uint32_t kLowScales = 0x5BE05BE0u;  // 252, twice
// 1536, twice: added, it leaves integers in the low bits.
constexpr uint32_t kIntegers = 0x66006600u;

// c += a * b, high bytes of factors, which have no sign, or low ones.
__device__ __forceinline__ void mma_high_bytes(int32_t (&c)[4], uint32_t a0, uint32_t a1,
                                               uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_low_bytes(int32_t (&c)[4], uint32_t a0, uint32_t a1,
                                              uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two factors: in the low byte of each half, high and low part.
struct Bytes {
    uint32_t high;
    uint32_t low;
};
// x * range, which rounds to 255 at most: the fused product less its integer is exact but for one
// rounding.
__device__ __forceinline__ Bytes split_product(uint32_t x, uint32_t range) {
    const uint32_t high = fused(x, range, kIntegers);
    const uint32_t minus = as_word(__hsub2(as_half2(kIntegers), as_half2(high)));
    const uint32_t left = fused(x, range, minus);
    return {high, fused(left, kLowScales, kIntegers)};
}

// The position of a lane in fragments.
struct ByteLane {
    uint32_t lane;
    uint32_t high;  // PRMT selectors: bytes 0 and 2, or 1 and 3, to the bytes of the lane's column
    uint32_t low;

    __device__ __forceinline__ explicit ByteLane(uint32_t index)
        : lane(index), high(index & 4u ? 0x2404u : 0x4240u), low(index & 4u ? 0x3414u : 0x4341u) {}
    __device__ __forceinline__ uint32_t t() const { return lane & 3u; }
    __device__ __forceinline__ bool is_upper() const { return lane & 4u; }  // column of rows g + 8
};

// Ranges of a page are brought below 255.5 by a power of two.
struct RangeScale {
    uint32_t power_f16x2;  // the power, twice
    float step_scale;      // the value of 1 / 252

    // Added to the bits of an FP16 number, raises the exponent of those from 255.5 / 256 of the
    // next power of two on.
    static constexpr uint32_t kRoundUp = 4;

    // ranges: shared, of 128 tokens; four for each lane.
    static __device__ __forceinline__ RangeScale of_page(uint32_t ranges, uint32_t lane) {
        const uint2 r = load_shared2(ranges + lane * 8);
        const uint32_t most = as_word(__hmax2(as_half2(r.x), as_half2(r.y)));
        // Ranges are not negative, so they are ordered as integers.
        const uint32_t bits = __reduce_max_sync(kAllLanes, max(most & 0xFFFFu, most >> 16));
        const uint32_t exponent = min(37u - ((bits + kRoundUp) >> 10), 30u);
        return {exponent << 10 | exponent << 26,
                __uint_as_float((142u - exponent) << 23) * (1.0f / kLowScale)};
    }
};

}  // namespace cuda
}  // namespace lk

#endif
