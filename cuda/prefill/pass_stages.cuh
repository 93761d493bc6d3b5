// Attention of long steps: the stages of a pass, page after page.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_PASS_STAGES_CUH
#define LK_CUDA_PREFILL_PASS_STAGES_CUH

#include "cuda/prefill/pass.cuh"
#include "cuda/prefill/stages.cuh"

namespace lk {
namespace cuda {

struct PassTables : ColumnTables {
    PassView views[kPageBatch];
};

// The threads that go through the stages together.
struct AllThreads {
    static __device__ __forceinline__ uint32_t index() { return threadIdx.x; }
    static __device__ __forceinline__ void meet() { __syncthreads(); }
};

template <class Threads>
struct PassPages {
    static constexpr uint32_t kParityBits = 0;

    const PagePass *pass;
    PassTables *tables;
    uint32_t pair;  // of the launch

    __device__ const Mask &mask() const { return tables->mask; }
    __device__ uint32_t tokens_of_stage() const { return tables->mask.stage_tokens; }
    __device__ const PassView &view(const Stage &stage) const {
        return tables->views[(stage.page - tables->mask.page_begin) % kPageBatch];
    }
    __device__ void look_up(const TileArgs &args, uint32_t page) const {
        Threads::meet();
        if (Threads::index() < min(kPageBatch, tables->mask.page_end - page))
            view_tiles(args, *pass, tables->mask, pair, page + Threads::index(),
                       &tables->views[Threads::index()]);
        Threads::meet();
    }
};

}  // namespace cuda
}  // namespace lk

#endif
