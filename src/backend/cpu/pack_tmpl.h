// What packing and dequantizing do in FP32: every operation is rounded as the scalar codec rounds
// it, so that pages have the same bits. Compilers may fuse a product with an addition here, so none
// is added to anything but a guess, or round_product() keeps it apart.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_PACK_TMPL_H
#define LK_BACKEND_CPU_PACK_TMPL_H

#include "backend/cpu/simd.h"

namespace lk {
namespace cpu {
namespace {

LK_INLINE Vf magnitude_of(Vf v) { return v < 0.0f ? -v : v; }
LK_INLINE Vf least(Vf a, Vf b) { return a < b ? a : b; }
// Does a vector of 0 and -1 have a -1?
LK_INLINE bool any_of(Vi v) {
    int32_t all = 0;
    for (uint32_t i = 0; i < kWidth; ++i)
        all |= v[i];
    return all != 0;
}

// kWidth elements; *bad gets -1 where one is no finite number.
LK_INLINE Vf load_elements(const uint8_t *row, Element element, uint32_t first, Vi *bad) {
    constexpr int32_t kExponent = 0x7F800000;
    constexpr uint32_t kHalfExponent = 0x7C00;
    if (element == Element::kF16) {
        const Vh bits = load<Vh>(row + 2ull * first);
        const Vu wide = __builtin_convertvector(bits, Vu);
        *bad |= (wide & kHalfExponent) == kHalfExponent;
        return halves_to_floats(bits);
    }
    const Vi bits = element == Element::kF32
                        ? load<Vi>(row + 4ull * first)
                        : Vi(__builtin_convertvector(load<Vh>(row + 2ull * first), Vu) << 16);
    *bad |= (bits & kExponent) == kExponent;
    Vf values;
    std::memcpy(&values, &bits, sizeof values);
    return values;
}

bool load_row(const void *row, Element element, uint32_t n, const RowChange &change, float *out) {
    const auto *bytes = static_cast<const uint8_t *>(row);
    const Vf limit = broadcast(change.limit);
    Vi bad = {};
    for (uint32_t i = 0; i < n; i += kWidth) {
        Vf v = load_elements(bytes, element, i, &bad);
        if (change.centers)
            v -= load<Vf>(change.centers + i);
        v = maximum(least(v, limit), -limit);
        if (change.inverses)
            v *= load<Vf>(change.inverses + i);
        store(out + i, v);
    }
    return !any_of(bad);
}

// To FP16 of numbers up to 65504.
LK_INLINE Vh floats_to_halves(Vf v) {
#if defined(__AVX512F__)
    const __m256i bits = _mm512_cvtps_ph(reinterpret_cast<__m512 &>(v), _MM_FROUND_TO_NEAREST_INT);
    return load<Vh>(&bits);
#elif defined(__AVX2__)
    const __m128i bits = _mm256_cvtps_ph(reinterpret_cast<__m256 &>(v), _MM_FROUND_TO_NEAREST_INT);
    return load<Vh>(&bits);
#else
    Vu bits;
    std::memcpy(&bits, &v, sizeof bits);
    const Vu sign = (bits >> 16) & 0x8000u;
    const Vu magnitude = bits & 0x7FFFFFFFu;
    const Vu rebased = magnitude - (112u << 23);
    const Vu normal = (rebased + 0xFFFu + ((rebased >> 13) & 1u)) >> 13;
    // The last digit of a number next to 1/2 is that of a subnormal FP16 number.
    const Vf moved = magnitude_of(v) + 0.5f;
    Vu subnormal;
    std::memcpy(&subnormal, &moved, sizeof subnormal);
    subnormal -= 126u << 23;
    const Vu half = magnitude < 0x38800000u ? subnormal : normal;
    return __builtin_convertvector(half | sign, Vh);
#endif
}

constexpr float kHighestHalf = 65504.0f;

uint32_t round_row(const float *values, uint32_t n, uint16_t *out) {
    constexpr float kBeyond = 65520.0f;  // what would become infinity
    const Vf highest = broadcast(kHighestHalf);
    Vi saturated = {};
    for (uint32_t i = 0; i < n; i += kWidth) {
        const Vf v = load<Vf>(values + i);
        saturated += magnitude_of(v) >= kBeyond;
        store(out + i, floats_to_halves(maximum(least(v, highest), -highest)));
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < kWidth; ++i)
        count -= static_cast<uint32_t>(saturated[i]);
    return count;
}

void sum_magnitudes(const uint16_t *values, uint64_t row_stride, uint32_t n_rows, uint32_t n,
                    float *sums) {
    for (uint32_t k = 0; k < n; k += kWidth) {
        Vf sum = {};
        for (uint32_t row = 0; row < n_rows; ++row)
            sum += magnitude_of(halves_to_floats(load<Vh>(values + row * row_stride + k)));
        store(sums + k, sum);
    }
}

void find_deviations(const uint16_t *values, uint64_t row_stride, uint32_t n_rows, uint32_t n,
                     float *means, float *deviations) {
    const Vf count = broadcast(static_cast<float>(n_rows));
    for (uint32_t k = 0; k < n; k += kWidth) {
        Vf sum = {};
        for (uint32_t row = 0; row < n_rows; ++row)
            sum += halves_to_floats(load<Vh>(values + row * row_stride + k));
        const Vf mean = sum / count;
        Vf distances = {};
        for (uint32_t row = 0; row < n_rows; ++row)
            distances +=
                magnitude_of(halves_to_floats(load<Vh>(values + row * row_stride + k)) - mean);
        store(means + k, mean);
        store(deviations + k, distances / count);
    }
}

// quantize() of format/quantize.h: the guess is off by one at most, and the same comparisons
// settle it. Under a range of 0 every code is 0.
struct Quantizer {
    Vf minimum;
    Vf range;
    Vf step;
    Vf top;
    Vf inverse;

    LK_INLINE static Quantizer make(Vf minimum, Vf range, Vf top, Vf step) {
        Quantizer q;
        q.minimum = minimum;
        q.range = range;
        q.step = step;
        q.top = range > 0.0f ? top : Vf{};
        q.inverse = range > 0.0f ? top / range : Vf{};
        return q;
    }
    LK_INLINE Vf threshold(Vf midpoint) const { return midpoint * range * step; }
    LK_INLINE Vh codes(Vf value) const {
        const Vf distance = value - minimum;
        const Vf guess = least(maximum(distance * inverse + 0.5f, Vf{}), top);
        Vf code = __builtin_convertvector(__builtin_convertvector(guess, Vi), Vf);
        const Vf above = code + 1.0f;
        code = (code < top) & (distance >= threshold(code + 0.5f)) ? above : code;
        const Vf below = code - 1.0f;
        code = (code > 0.0f) & (distance < threshold(code - 0.5f)) ? below : code;
        return __builtin_convertvector(__builtin_convertvector(code, Vi), Vh);
    }
};

void quantize_strip(const StripRules &rules, const uint16_t *values, uint16_t *codes) {
    for (uint32_t tile = 0; tile < rules.n_tiles; ++tile)
        for (uint32_t k = 0; k < 16; k += kWidth) {
            const uint16_t *from = values + tile * rules.tile_stride + k;
            const float *minima = rules.minima + rules.first[tile];
            const float *ranges = rules.ranges + rules.first[tile];
            const Vf top = load<Vf>(rules.tops + k);
            const Vf step = load<Vf>(rules.steps + k);
            Quantizer q;
            if (!rules.is_by_row)
                q = Quantizer::make(load<Vf>(minima + k), load<Vf>(ranges + k), top, step);
            for (uint32_t row = 0; row < 16; ++row, from += rules.row_stride) {
                if (rules.is_by_row)
                    q = Quantizer::make(broadcast(minima[row]), broadcast(ranges[row]), top, step);
                store(codes + (tile * 16 + row) * 16 + k,
                      q.codes(halves_to_floats(load<Vh>(from))));
            }
        }
}

// A product that is rounded before it is added to anything.
LK_INLINE Vf round_product(Vf product) {
#if defined(__SSE2__)
    __asm__("" : "+x"(product));
#elif defined(__ARM_NEON)
    __asm__("" : "+w"(product));
#endif
    return product;
}

// dequantize() of format/quantize.h.
void dequantize_strip(const StripRules &rules, const uint16_t *codes, uint16_t *values) {
    const Vf highest = broadcast(kHighestHalf);
    for (uint32_t tile = 0; tile < rules.n_tiles; ++tile)
        for (uint32_t k = 0; k < 16; k += kWidth) {
            uint16_t *to = values + tile * rules.tile_stride + k;
            const float *minima = rules.minima + rules.first[tile];
            const float *ranges = rules.ranges + rules.first[tile];
            const Vf code_step = load<Vf>(rules.steps + k);
            for (uint32_t row = 0; row < 16; ++row, to += rules.row_stride) {
                const uint32_t at = rules.is_by_row ? row : k;
                const Vf minimum = rules.is_by_row ? broadcast(minima[at]) : load<Vf>(minima + at);
                const Vf range = rules.is_by_row ? broadcast(ranges[at]) : load<Vf>(ranges + at);
                const Vu code =
                    __builtin_convertvector(load<Vh>(codes + (tile * 16 + row) * 16 + k), Vu);
                const Vf value = minimum + round_product(to_floats(code) * (range * code_step));
                store(to, floats_to_halves(maximum(least(value, highest), -highest)));
            }
        }
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
