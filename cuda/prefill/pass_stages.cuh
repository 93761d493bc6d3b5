// Attention of long steps: the stages of a pass, page after page.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_PASS_STAGES_CUH
#define LK_CUDA_PREFILL_PASS_STAGES_CUH

#include "cuda/prefill/pass.cuh"

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

struct PassPages {
    PassTables *tables;
    uint32_t pair;  // of the launch

    __device__ const PassView &view(const Stage &stage) const {
        return tables->views[(stage.page - tables->mask.page_begin) % kPageBatch];
    }
};

template <class Threads>
__device__ inline void look_up_pages(const TileArgs &args, const PagePass &pass,
                                     const PassPages &pages, uint32_t page) {
    PassTables &tables = *pages.tables;
    Threads::meet();
    if (Threads::index() < min(kPageBatch, tables.mask.page_end - page))
        view_tiles(args, pass, tables.mask, pages.pair, page + Threads::index(),
                   &tables.views[Threads::index()]);
    Threads::meet();
}

// The first stage at or after the beginning of `page`.
template <class Threads>
__device__ inline Stage enter_page(const TileArgs &args, const PagePass &pass,
                                   const PassPages &pages, uint32_t page) {
    const Mask &mask = pages.tables->mask;
    Stage stage = {page, 0, 0, 0, 0};
    for (; stage.page < mask.page_end; ++stage.page) {
        if ((stage.page - mask.page_begin) % kPageBatch == 0)
            look_up_pages<Threads>(args, pass, pages, stage.page);
        const PassView &view = pages.view(stage);
        if (view.first_stage < view.end_stage) {
            stage.index = view.first_stage;
            stage_position(view, mask.stage_tokens, &stage);
            return stage;
        }
    }
    return stage;
}

template <class Threads>
__device__ inline Stage next_stage(const TileArgs &args, const PagePass &pass,
                                   const PassPages &pages, const Stage &stage) {
    const PassView &view = pages.view(stage);
    if (stage.index + 1 == view.end_stage)
        return enter_page<Threads>(args, pass, pages, stage.page + 1);
    Stage next = stage;
    ++next.index;
    stage_position(view, pages.tables->mask.stage_tokens, &next);
    return next;
}

}  // namespace cuda
}  // namespace lk

#endif
