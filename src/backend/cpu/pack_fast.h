// pack_page() of format/codec.h, bit for bit, in a fraction of its time.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_PACK_FAST_H
#define LK_BACKEND_CPU_PACK_FAST_H

#include "format/codec.h"

namespace lk {
namespace cpu {

void pack_page_fast(const PageLayout &layout, const RangeRule &rule, PageValues input,
                    const uint8_t *permutation, uint8_t *payload, uint8_t *metadata);

}  // namespace cpu
}  // namespace lk

#endif
