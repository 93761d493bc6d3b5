// Warp-wide KV tiles: tensor-core products, matrix loads, asynchronous copies.
//
// A fragment of a 16 x 16 tile is 4 registers of two FP16 numbers: R0 rows 0-7, k 0-7; R1 rows
// 8-15, k 0-7; R2 rows 0-7, k 8-15; R3 rows 8-15, k 8-15; lane 4 row + k / 2. A B fragment is b0 (k
// 0-7) and b1 (k 8-15) of column lane / 4; a C fragment is c0, c1 (row lane / 4) and c2, c3 (row +
// 8) of columns 2 (lane % 4) and the next.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_FRAGMENT_CUH
#define LK_CUDA_FRAGMENT_CUH

#include <cuda_fp16.h>

#include <cstdint>

namespace lk {
namespace cuda {

constexpr uint32_t kWarp = 32;
constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of FP16 numbers, transposed on the way; lane i gives the address of row i % 8
// of matrix i / 8. The compiler may move it over barriers: an address that is used again after one
// goes through renewed().
__device__ __forceinline__ uint32_t renewed(uint32_t address) {
    asm volatile("" : "+r"(address)::"memory");
    return address;
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    asm("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "r"(address));
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
__device__ __forceinline__ uint32_t transpose(uint32_t x) {
    uint32_t r;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(r) : "r"(x));
    return r;
}

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void copy_async(uint32_t shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(shared), "l"(global) : "memory");
}
// Copy 16 bytes; zeros when `exists` is false.
__device__ __forceinline__ void copy_or_clear(uint32_t shared, const void *from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(shared), "l"(from),
                 "r"(exists ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Wait until at most n groups of copies are under way.
template <int n>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

// Shared memory by its own addresses: ordinary loads, which the compiler may move between barriers.
template <typename T>
__device__ __forceinline__ T load_shared(uint32_t address) {
    return *static_cast<const T *>(__cvta_shared_to_generic(address));
}
__device__ __forceinline__ uint4 load_shared4(uint32_t address) {
    return load_shared<uint4>(address);
}
__device__ __forceinline__ uint2 load_shared2(uint32_t address) {
    return load_shared<uint2>(address);
}
__device__ __forceinline__ uint32_t load_shared1(uint32_t address) {
    return load_shared<uint32_t>(address);
}
__device__ __forceinline__ uint64_t load_shared_address(uint32_t address) {
    return load_shared<uint64_t>(address);
}
__device__ __forceinline__ uint32_t load_shared_byte(uint32_t address) {
    return load_shared<uint8_t>(address);
}
__device__ __forceinline__ uint32_t load_shared_half(uint32_t address) {
    return load_shared<uint16_t>(address);
}

// Logits up to this size are multiplied and have their row_max subtracted in one operation. A
// larger row_max could be rounded by more than the greatest exponent of FP32; logits that are
// rounded first are never above it.
constexpr float kFar = 0x1p20f;

__device__ __forceinline__ float exp2_fast(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ uint32_t as_word(__half2 h) { return *reinterpret_cast<uint32_t *>(&h); }
__device__ __forceinline__ __half2 as_half2(uint32_t w) { return *reinterpret_cast<__half2 *>(&w); }
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
    return as_word(__floats2half2_rn(low, high));
}
__device__ __forceinline__ uint32_t multiply_f16(uint32_t a, uint32_t b) {
    return as_word(__hmul2(as_half2(a), as_half2(b)));
}
// The selectors of __byte_perm() that spread two bytes of a word over its two FP16 numbers.
enum BytePair : uint32_t { kLowPair = 0x4140, kHighPair = 0x4342 };

// Two FP8 parameters that are not negative, and any two.
__device__ __forceinline__ uint32_t f8_ranges(uint32_t bytes, BytePair pair) {
    return __byte_perm(bytes, 0, pair) << 7;
}
__device__ __forceinline__ uint32_t f8_minima(uint32_t bytes, BytePair pair) {
    const uint32_t bits = __byte_perm(bytes, 0, pair) << 7;
    return bits + (bits & 0x40004000u);  // the signs go from bit 14 to bit 15
}
// Four FP8 numbers as FP16 numbers.
__device__ __forceinline__ uint2 widened_f8(uint32_t bytes) {
    constexpr uint32_t kUp = 0x58005800u;  // 2^7: the bits are those of a larger bias
    return make_uint2(multiply_f16(f8_minima(bytes, kLowPair), kUp),
                      multiply_f16(f8_minima(bytes, kHighPair), kUp));
}
// a * b + c, rounded once.
__device__ __forceinline__ uint32_t fused(uint32_t a, uint32_t b, uint32_t c) {
    return as_word(__hfma2(as_half2(a), as_half2(b), as_half2(c)));
}

}  // namespace cuda
}  // namespace lk

#endif
