// Vectors of kWidth FP32 through the compiler's vector extension. Included once by each file that
// is compiled for an instruction set, which says LK_SIMD_WIDTH; everything is local to it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_SIMD_H
#define LK_BACKEND_CPU_SIMD_H

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#if !defined(__clang__)
// GCC 12's own AVX-512 header passes an undefined vector where nothing of it is kept.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "backend/cpu/kernels.h"

#define LK_INLINE inline __attribute__((always_inline))
// The loop that follows, unrolled n times. A sanitizer checks each turn by code of its own, which
// takes minutes to compile where the loops over packed words are unrolled.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LK_UNROLL(n) _Pragma("GCC unroll 1")
#else
#define LK_UNROLL(n) _Pragma(LK_PRAGMA_TEXT(GCC unroll n))
#endif
#define LK_PRAGMA_TEXT(words) #words

namespace lk {
namespace cpu {
namespace {

constexpr uint32_t kWidth = LK_SIMD_WIDTH;
typedef float Vf __attribute__((vector_size(4 * LK_SIMD_WIDTH)));
typedef int32_t Vi __attribute__((vector_size(4 * LK_SIMD_WIDTH)));
typedef uint32_t Vu __attribute__((vector_size(4 * LK_SIMD_WIDTH)));
typedef uint16_t Vh __attribute__((vector_size(2 * LK_SIMD_WIDTH)));
typedef uint8_t Vb __attribute__((vector_size(LK_SIMD_WIDTH)));
typedef int32_t Vi4 __attribute__((vector_size(16)));
typedef uint32_t Vu4 __attribute__((vector_size(16)));
typedef float Vf4 __attribute__((vector_size(16)));

constexpr float kMasked = -__builtin_huge_valf();
// The running maximum before any key: finite, so that differences of two are never NaN.
constexpr float kNoMaximum = -1e30f;

template <class V, class T>
LK_INLINE V load(const T *from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
template <class V, class T>
LK_INLINE void store(T *to, V v) {
    std::memcpy(to, &v, sizeof v);
}
// Call `call` with 4, 2 or 1 rows as a constant, at most kMost, and the first of them, for all
// rows.
template <uint32_t kMost, class Call>
LK_INLINE void by_rows(uint32_t n_rows, Call call) {
    for (uint32_t r = 0; r < n_rows;) {
        const uint32_t rest = n_rows - r;
        if (kMost >= 4 && rest >= 4) {
            call(std::integral_constant<uint32_t, 4>(), r);
            r += 4;
        } else if (kMost >= 2 && rest >= 2) {
            call(std::integral_constant<uint32_t, 2>(), r);
            r += 2;
        } else {
            call(std::integral_constant<uint32_t, 1>(), r);
            r += 1;
        }
    }
}

// What the pointer points to is loaded after this: a compiler that loads it before the loop around
// keeps more vectors than there are registers, on the stack.
template <class T>
LK_INLINE const T *reload(const T *from) {
    __asm__ volatile("" : "+r"(from));
    return from;
}
LK_INLINE Vf broadcast(float f) { return f - Vf{}; }
LK_INLINE Vi broadcast_int(int32_t i) { return i - Vi{}; }
// Integers below 2^31.
LK_INLINE Vf to_floats(Vu v) { return __builtin_convertvector(Vi(v), Vf); }
LK_INLINE Vf maximum(Vf a, Vf b) { return a > b ? a : b; }

template <class V>
LK_INLINE void transpose4(V *v) {
    const V a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
    const V b = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
    const V c = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
    const V d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
    v[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    v[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    v[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

// The sum of a vector's quarters; of its two parts at 8 lanes; at 4 the vector itself.
#if defined(__AVX512F__)
LK_INLINE Vf4 fold_vector(Vf v) {
    const __m512 x = reinterpret_cast<__m512 &>(v);
    const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return Vf4(_mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
}
LK_INLINE Vi4 fold_vector(Vi v) {
    const __m512i x = reinterpret_cast<__m512i &>(v);
    const __m256i y = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    return Vi4(_mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1)));
}
#elif defined(__AVX2__)
LK_INLINE Vf4 fold_vector(Vf v) {
    const __m256 y = reinterpret_cast<__m256 &>(v);
    return Vf4(_mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
}
LK_INLINE Vi4 fold_vector(Vi v) {
    const __m256i y = reinterpret_cast<__m256i &>(v);
    return Vi4(_mm_add_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1)));
}
#else
LK_INLINE Vf4 fold_vector(Vf v) { return v; }
LK_INLINE Vi4 fold_vector(Vi v) { return v; }
#endif

LK_INLINE float horizontal_sum(Vf v) {
    const Vf4 f = fold_vector(v);
    return (f[0] + f[1]) + (f[2] + f[3]);
}
LK_INLINE float horizontal_max(Vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(reinterpret_cast<__m512 &>(v));
#else
    Vf4 four[kWidth / 4];
    std::memcpy(four, &v, sizeof v);
    Vf4 highest = four[0] > four[kWidth / 4 - 1] ? four[0] : four[kWidth / 4 - 1];
    const Vf4 swapped = __builtin_shufflevector(highest, highest, 2, 3, 0, 1);
    highest = highest > swapped ? highest : swapped;
    return highest[0] > highest[1] ? highest[0] : highest[1];
#endif
}

// FP16 to FP32, exact. Infinity and NaN do not occur in pages.
LK_INLINE Vf halves_to_floats(Vh h) {
#if defined(__AVX512F__)
    __m256i bits;
    std::memcpy(&bits, &h, sizeof bits);
    const __m512 f = _mm512_cvtph_ps(bits);
#elif defined(__AVX2__)
    __m128i bits;
    std::memcpy(&bits, &h, sizeof bits);
    const __m256 f = _mm256_cvtph_ps(bits);
#else
    const Vu wide = __builtin_convertvector(h, Vu);
    const Vu sign = (wide & 0x8000u) << 16;
    const Vu magnitude = (wide & 0x7FFFu) << 13;
    // A subnormal gets the exponent of 2^-14 and loses its implicit one by subtraction.
    const Vu normal = magnitude + (112u << 23);
    const Vu shifted = normal + (1u << 23);
    Vf subnormal;
    std::memcpy(&subnormal, &shifted, sizeof subnormal);
    subnormal = subnormal - 0x1p-14f;
    Vu low;
    std::memcpy(&low, &subnormal, sizeof low);
    const Vu bits = (magnitude < (1u << 23) ? low : normal) | sign;
    Vf f;
    std::memcpy(&f, &bits, sizeof f);
#endif
    Vf out;
    std::memcpy(&out, &f, sizeof out);
    return out;
}

// 2^x for x <= 0 with a relative error below 2e-7; 0 below 2^-126. Minimax on [-1/2, 1/2].
LK_INLINE Vf exp2_negative(Vf x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const Vf floor = broadcast(-126.0f);
    const Vf clamped = x > floor ? x : floor;
    const Vf shifted = clamped + kRound;
    const Vf f = clamped - (shifted - kRound);
    Vf p = f * 1.5403530e-4f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    Vi exponent;
    std::memcpy(&exponent, &shifted, sizeof exponent);
    Vi bits;
    std::memcpy(&bits, &p, sizeof bits);
    bits += exponent << 23;
    Vf result;
    std::memcpy(&result, &bits, sizeof result);
    return x < floor ? Vf{} : result;
}

// tanh by exp2, absolute error below 3e-7.
LK_INLINE Vf tanh_vector(Vf y) {
    const Vf magnitude = y < 0.0f ? -y : y;
    const Vf e = exp2_negative(magnitude * -2.885390082f);  // exp(-2 |y|)
    const Vf t = (1.0f - e) / (1.0f + e);
    return y < 0.0f ? -t : t;
}

// e4m3fnuz by its bits; NaN does not occur.
LK_INLINE Vf f8_to_floats(Vb v) {
#if defined(__AVX2__)
    // Its bits are those of an FP16 number 128 times as small, with the sign one bit higher.
#if defined(__AVX512F__)
    __m128i bytes;
    std::memcpy(&bytes, &v, sizeof bytes);
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    const __m512 f = _mm512_mul_ps(
        _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xBFFF)))),
        _mm512_set1_ps(128.0f));
#else
    const __m128i wide = _mm_slli_epi16(
        _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(&v))), 7);
    const __m256 f = _mm256_mul_ps(
        _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(static_cast<int16_t>(0xBFFF)))),
        _mm256_set1_ps(128.0f));
#endif
    Vf out;
    std::memcpy(&out, &f, sizeof out);
    return out;
#else
    const Vu wide = __builtin_convertvector(v, Vu);
    const Vu magnitude = (wide & 0x7Fu) << 20;
    const Vu sign = (wide & 0x80u) << 24;
    // A subnormal gets the exponent of 2^-7 and loses its implicit one by subtraction.
    const Vu normal = magnitude + (119u << 23);
    const Vu shifted = normal + (1u << 23);
    Vf subnormal;
    std::memcpy(&subnormal, &shifted, sizeof subnormal);
    subnormal = subnormal - 0x1p-7f;
    Vu low;
    std::memcpy(&low, &subnormal, sizeof low);
    const Vu bits = (magnitude < (1u << 23) ? low : normal) | sign;
    Vf f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
#endif
}

// 16 values to the order of parameters: index LK_K_ORDER(k) gets value k.
LK_INLINE void order_tile(const float *from, float *to) {
#if defined(__AVX512F__)
    const __m512i order = _mm512_set_epi32(15, 14, 7, 6, 13, 12, 5, 4, 11, 10, 3, 2, 9, 8, 1, 0);
    _mm512_storeu_ps(to, _mm512_permutexvar_ps(order, _mm512_loadu_ps(from)));
#else
    for (uint32_t i = 0; i < 8; i += 4) {
        const Vf4 low = load<Vf4>(from + i);
        const Vf4 high = load<Vf4>(from + 8 + i);
        store(to + 2 * i, __builtin_shufflevector(low, high, 0, 1, 4, 5));
        store(to + 2 * i + 4, __builtin_shufflevector(low, high, 2, 3, 6, 7));
    }
#endif
}
// The reverse.
LK_INLINE void unorder_tile(const float *from, float *to) {
    for (uint32_t i = 0; i < 8; i += 4) {
        const Vf4 first = load<Vf4>(from + 2 * i);
        const Vf4 second = load<Vf4>(from + 2 * i + 4);
        store(to + i, __builtin_shufflevector(first, second, 0, 1, 4, 5));
        store(to + 8 + i, __builtin_shufflevector(first, second, 2, 3, 6, 7));
    }
}
// 16 values from the order of rows, i and i + 8 side by side: index LK_ROW_ORDER(i) has value i.
LK_INLINE void unorder_rows(const float *from, float *to) {
    for (uint32_t i = 0; i < 8; i += 4) {
        const Vf4 first = load<Vf4>(from + 2 * i);
        const Vf4 second = load<Vf4>(from + 2 * i + 4);
        store(to + i, __builtin_shufflevector(first, second, 0, 2, 4, 6));
        store(to + 8 + i, __builtin_shufflevector(first, second, 1, 3, 5, 7));
    }
}

}  // namespace
}  // namespace cpu
}  // namespace lk

#endif
