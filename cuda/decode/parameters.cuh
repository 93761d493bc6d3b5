// Decode: ranges and minima of packed pages as FP16 numbers.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_PARAMETERS_CUH
#define LK_CUDA_DECODE_PARAMETERS_CUH

#include "cuda/decode/ring.cuh"

namespace lk {
namespace cuda {

// A parameter as it is loaded is 1 / kParameterScale of its value. The bits of e4m3fnuz are those
// of an FP16 number whose exponent has a bias of 15 instead of 8: kernels of FP8 parameters leave
// it at that, and have queries and weights that are larger by as much.
template <DecodeKind kKind>
constexpr bool kHasF8 = kKind == kDecodeF8By32 || kKind == kDecodeF8Narrow ||
                        kKind == kDecodeF8Wide || kKind == kDecodeF8;
template <DecodeKind kKind>
constexpr int kParameterShift = kHasF8<kKind> ? 7 : 0;
template <DecodeKind kKind>
constexpr float kParameterScale = static_cast<float>(1 << kParameterShift<kKind>);
template <DecodeKind kKind>
constexpr uint32_t kParameterBytes = kHasF8<kKind> ? 1 : 2;

// Kinds of pages with one group and without shared slots.
template <DecodeKind kKind>
constexpr bool kIsPlain =
    kKind == kDecodePlain || kKind == kDecodePlainNarrow || kKind == kDecodeF8Plain;
// Kinds that read the numbers of groups from each page.
template <DecodeKind kKind>
constexpr bool kHasAnyGroups = !kIsPlain<kKind> && kKind != kDecodeF8By32;
// Kinds of all native formats: keys of 8 bits, values of 8 and 4 bits, groups of 16, and pages of a
// head whose keys have different formats or permutations of their own too.
template <DecodeKind kKind>
constexpr bool kHasAllFormats = reads_all_formats(kKind);
// Tiles of 16 tokens of a packed page.
template <DecodeKind kKind>
constexpr int kTilesOf = decode_page_tokens(kKind) / 16;
// Kinds with values of 1 bit.
template <DecodeKind kKind>
constexpr bool kHasBitValues = kHasAnyGroups<kKind> || kKind == kDecodeF8Plain;
// Kinds with keys of 1 bit.
template <DecodeKind kKind>
constexpr bool kHasBitKeys = has_bit_keys(kKind);

// Groups of pages of kDecodeF8By32.
constexpr uint32_t kF8Groups = 4;       // of tokens
constexpr uint32_t kF8GroupStrips = 2;  // of a group of channels

// Kinds whose FP8 parameters are widened to FP16 once a page, by the warp, into memory of its own,
// which costs some 60 instructions of 1500 for a page of one group.
template <DecodeKind kKind>
constexpr bool kWidens = widens_parameters(kKind);
struct F16Parameters {
    uint32_t ranges;         // shared
    uint32_t minima_offset;  // bytes
};
static __device__ __noinline__ void widen_parameters(uint32_t from, uint32_t to, uint32_t n_bytes,
                                                     uint32_t lane) {
    __syncwarp();
#pragma unroll 1
    for (uint32_t i = lane * 4; i < n_bytes; i += kWarp * 4) {
        const uint32_t bytes = load_shared1(from + i);
        *static_cast<uint2 *>(__cvta_shared_to_generic(to + i * 2)) = widened_f8(bytes);
    }
    __syncwarp();
}
// n_bytes: of ranges, minima, and what is to follow them.
__device__ __forceinline__ F16Parameters widened(const F16Parameters &f8, uint32_t to,
                                                 uint32_t n_bytes, uint32_t lane) {
    widen_parameters(f8.ranges, to, n_bytes, lane);
    return {to, 2 * f8.minima_offset};
}
__device__ __forceinline__ F16Parameters widened(const F16Parameters &f8, uint32_t to,
                                                 uint32_t lane) {
    return widened(f8, to, 2 * f8.minima_offset, lane);
}

// Parameters (2t, 2t+1, 2t+8, 2t+9 of 16), which lie next to each other, as two pairs of FP16
// numbers.
template <DecodeKind kKind>
__device__ __forceinline__ uint2 load_ranges(uint32_t array, uint32_t index) {
    if (!kHasF8<kKind>)
        return load_shared2(array + index * 2);
    const uint32_t bytes = load_shared1(array + index);
    return make_uint2(f8_ranges(bytes, kLowPair), f8_ranges(bytes, kHighPair));
}
template <DecodeKind kKind>
__device__ __forceinline__ uint2 load_minima(uint32_t array, uint32_t index) {
    if (!kHasF8<kKind>)
        return load_shared2(array + index * 2);
    const uint32_t bytes = load_shared1(array + index);
    return make_uint2(f8_minima(bytes, kLowPair), f8_minima(bytes, kHighPair));
}
// Ranges at two offsets.
template <DecodeKind kKind>
__device__ __forceinline__ uint32_t load_two_ranges(uint32_t array, uint32_t first,
                                                    uint32_t second) {
    if (!kHasF8<kKind>)
        return __byte_perm(load_shared<uint16_t>(array + first * 2),
                           load_shared<uint16_t>(array + second * 2), 0x5410);
    return __byte_perm(load_shared_byte(array + first), load_shared_byte(array + second), 0x5410)
           << 7;
}

// minimum + range / 2
__device__ __forceinline__ uint32_t midpoint_of(uint32_t range, uint32_t minimum) {
    return as_word(__hfma2(as_half2(range), as_half2(0x38003800u), as_half2(minimum)));
}

}  // namespace cuda
}  // namespace lk

#endif
