// A PageLayout resolved for the kernels.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_PAGE_VIEW_H
#define LK_BACKEND_CPU_PAGE_VIEW_H

#include "backend/cpu/kernels.h"
#include "format/layout.h"

namespace lk {
namespace cpu {

// The views of one walk over a sequence's blocks: sinks and recent tokens are raw, and the pages in
// between mostly share a layout, so the last two views of either sort are kept.
class ViewCache {
  public:
    // Valid until the second next call.
    const PageView *get(const PageLayout &layout);

  private:
    struct View {
        PageLayout layout;  // head_dim 0: empty
        PageView view;
    };
    struct Pair {
        View views[2];
        uint32_t last;
    };
    Pair raw_ = {};
    Pair packed_ = {};
};

}  // namespace cpu
}  // namespace lk

#endif
