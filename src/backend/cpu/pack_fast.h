// pack_page() of format/codec.h, bit for bit, in a fraction of its time.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_PACK_FAST_H
#define LK_BACKEND_CPU_PACK_FAST_H

#include "backend/cpu/kernels.h"
#include "format/codec.h"

namespace lk {
namespace cpu {

// values: scratch of LK_MAX_PAGE_TOKENS x LK_MAX_HEAD_DIM that does not overlap the input.
void pack_page_fast(const Kernels &kernels, const PageLayout &layout, const RangeRule &rule,
                    PageValues input, const uint8_t *permutation, uint16_t *values,
                    uint8_t *payload, uint8_t *metadata);

}  // namespace cpu
}  // namespace lk

#endif
