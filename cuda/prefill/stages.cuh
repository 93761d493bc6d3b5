// Attention of many columns: a thread block's way through the stages of its pages. A block of the
// kernels below has tables, with mask and views, and stage_tokens, page_bytes and page_stride.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_STAGES_CUH
#define LK_CUDA_PREFILL_STAGES_CUH

#include "cuda/prefill/pages.cuh"

namespace lk {
namespace cuda {

// A page is copied ahead if the one before is looked up together with it and has two stages: the
// barrier between them lets all threads see the copy.
template <class Block>
__device__ inline void find_leads(const Block &block, uint32_t n_views) {
    EntryView *views = block.tables->views;
    const uint32_t i = threadIdx.x;
    const auto follows = [&](uint32_t next) {
        return block.page_stride && next > 0 && next < n_views &&
               views[next - 1].first_stage + 2 <= views[next - 1].end_stage &&
               views[next].first_stage < views[next].end_stage;
    };
    if (i < n_views) {
        views[i].is_ahead = follows(i);
        views[i].leads = follows(i + 1);
    }
}

template <class Block>
__device__ inline void look_up_pages(const TileArgs &args, const Block &block, uint32_t page) {
    auto &tables = *block.tables;
    const uint32_t n_views = min(kPageBatch, tables.mask.page_end - page);
    __syncthreads();
    if (threadIdx.x < n_views)
        view_page(args, tables.mask, page + threadIdx.x, block.page_bytes,
                  &tables.views[threadIdx.x]);
    __syncthreads();
    find_leads(block, n_views);
    __syncthreads();
}

// The first stage at or after the beginning of `page`.
template <class Block>
__device__ inline Stage enter_page(const TileArgs &args, const Block &block, uint32_t page,
                                   uint32_t parity) {
    const Mask &mask = block.tables->mask;
    Stage stage = {page, 0, 0, 0, parity};
    for (; stage.page < mask.page_end; ++stage.page) {
        if ((stage.page - mask.page_begin) % kPageBatch == 0)
            look_up_pages(args, block, stage.page);
        const EntryView &view = block.view(stage);
        if (view.first_stage < view.end_stage) {
            stage.index = view.first_stage;
            stage_position(view, block.stage_tokens, &stage);
            return stage;
        }
    }
    return stage;
}

template <class Block>
__device__ inline Stage next_stage(const TileArgs &args, const Block &block, const Stage &stage) {
    const EntryView &view = block.view(stage);
    if (stage.index + 1 == view.end_stage)
        return enter_page(args, block, stage.page + 1, stage.parity ^ 3);
    Stage next = stage;
    ++next.index;
    next.parity ^= 1;
    stage_position(view, block.stage_tokens, &next);
    return next;
}

}  // namespace cuda
}  // namespace lk

#endif
