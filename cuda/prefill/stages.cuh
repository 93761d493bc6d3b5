// Attention of many columns: a thread block's way through the stages of its pages. `pages` has a
// mask, a view of each page, which look_up() makes for some at once, the tokens of a stage and
// kParityBits, the bits of a stage's parity that its kernel reads.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_STAGES_CUH
#define LK_CUDA_PREFILL_STAGES_CUH

#include "cuda/prefill/pages.cuh"

namespace lk {
namespace cuda {

// The first stage at or after the beginning of `page`.
template <class Pages>
__device__ inline Stage enter_page(const TileArgs &args, const Pages &pages, uint32_t page,
                                   uint32_t parity = 0) {
    const Mask &mask = pages.mask();
    Stage stage = {page, 0, 0, 0, parity};
    for (; stage.page < mask.page_end; ++stage.page) {
        if ((stage.page - mask.page_begin) % kPageBatch == 0)
            pages.look_up(args, stage.page);
        const auto &view = pages.view(stage);
        if (view.first_stage < view.end_stage) {
            stage.index = view.first_stage;
            stage_position(view, pages.tokens_of_stage(), &stage);
            return stage;
        }
    }
    return stage;
}

template <class Pages>
__device__ inline Stage next_stage(const TileArgs &args, const Pages &pages, const Stage &stage) {
    const auto &view = pages.view(stage);
    if (stage.index + 1 == view.end_stage)
        return enter_page(args, pages, stage.page + 1, stage.parity ^ (3 & Pages::kParityBits));
    Stage next = stage;
    ++next.index;
    next.parity ^= 1 & Pages::kParityBits;
    stage_position(view, pages.tokens_of_stage(), &next);
    return next;
}

}  // namespace cuda
}  // namespace lk

#endif
