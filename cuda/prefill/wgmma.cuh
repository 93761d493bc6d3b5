// Hopper: products of a warpgroup with shared memory, barriers that count arrivals, bulk copies.
//
// A warpgroup is four warps, each with 16 rows of A and of the sums; fragments are those of
// fragment.cuh. B lies in shared memory as matrices of 8 rows (n) of 16 bytes (k).
// wgmma exists on sm_90a alone, barriers and bulk copies from sm_90 on.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_WGMMA_CUH
#define LK_CUDA_PREFILL_WGMMA_CUH

#include "cuda/fragment.cuh"

namespace lk {
namespace cuda {

constexpr uint32_t kGroupThreads = 4 * kWarp;  // of a warpgroup

// Where B lies. n_stride: bytes to the matrix of the next 8 rows; k_stride: of the next 8 k.
class Operand {
  public:
    __device__ __forceinline__ Operand(uint32_t address, uint32_t n_stride, uint32_t k_stride)
        // Equal in all lanes, which the compiler cannot know.
        : low_(__shfl_sync(kAllLanes, (address & 0x3FFFFu) >> 4 | (k_stride >> 4) << 16, 0)),
          high_(n_stride >> 4) {}
    __device__ __forceinline__ uint64_t at(uint32_t bytes) const {
        return uint64_t{high_} << 32 | (low_ + (bytes >> 4));
    }

  private:
    const uint32_t low_;
    const uint32_t high_;
};

#define LK_D4(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define LK_D32(d, i)                                                                 \
    LK_D4(d, i), LK_D4(d, i + 1), LK_D4(d, i + 2), LK_D4(d, i + 3), LK_D4(d, i + 4), \
        LK_D4(d, i + 5), LK_D4(d, i + 6), LK_D4(d, i + 7)

// d = a b, or d += a b: 64 x 16 by 16 x 64 and 16 x 128, a in registers. Asynchronous, in order.
__device__ __forceinline__ void group_mma(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b,
                                          bool adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
        "%24,%25,%26,%27,%28,%29,%30,%31},{%32,%33,%34,%35},%36,p,1,1,0;\n}"
        : LK_D32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));
}
__device__ __forceinline__ void group_mma(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b,
                                          bool adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
        "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
        "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},"
        "{%64,%65,%66,%67},%68,p,1,1,0;\n}"
        : LK_D32(d, 0), LK_D32(d, 8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));
}
#undef LK_D32
#undef LK_D4

// Registers that the compiler may have touched are ready for the products after it.
__device__ __forceinline__ void open_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Wait until at most n groups of products are under way.
template <int n>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
// The compiler leaves uses of sums on their side of this.
template <int kFragments>
__device__ __forceinline__ void pin(float (&sums)[kFragments][4]) {
#pragma unroll
    for (int n = 0; n < kFragments; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            asm volatile("" : "+f"(sums[n][i])::"memory");
}

// Registers of each thread of the warpgroup from here on.
template <int n>
__device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}

// Barriers in shared memory that complete a phase after n arrivals.
__device__ __forceinline__ void open_barrier(uint32_t barrier, uint32_t n) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(n) : "memory");
}
// The copies see open barriers.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void await(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred there;\nagain:\n"
        "mbarrier.try_wait.parity.shared.b64 there, [%0], %1;\n@!there bra again;\n}" ::"r"(
            barrier),
        "r"(parity)
        : "memory");
}
// An arrival at the barrier, whose phase completes when so many copied bytes are there, too.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
// Copy bytes that the barrier expects to shared memory.
__device__ __forceinline__ void copy_expected(uint32_t to, const uint8_t *from, uint32_t bytes,
                                              uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
__device__ __forceinline__ void copy_bulk(uint32_t to, const uint8_t *from, uint32_t bytes,
                                          uint32_t barrier) {
    expect_bytes(barrier, bytes);
    copy_expected(to, from, bytes, barrier);
}
// Copies of this kind come after the thread's own stores to shared memory.
__device__ __forceinline__ void order_stores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// A barrier of some of the thread block's warps. 0 is __syncthreads().
template <int kBarrier, int kThreads>
__device__ __forceinline__ void meet() {
    asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

}  // namespace cuda
}  // namespace lk

#endif
