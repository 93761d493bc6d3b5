// unpack_page() of format/codec.h, bit for bit, in a fraction of its time.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_DEQUANTIZE_FAST_H
#define LK_BACKEND_CPU_DEQUANTIZE_FAST_H

#include "backend/cpu/kernels.h"
#include "format/codec.h"

namespace lk {
namespace cpu {

// All tokens of a packed page, [page_tokens][head_dim], to values. scratch: of LK_MAX_PAGE_TOKENS x
// LK_MAX_HEAD_DIM, which does not overlap values.
void dequantize_page_fast(const Kernels &kernels, const PageLayout &layout, const uint8_t *payload,
                          const uint8_t *metadata, const uint8_t *fixed_permutation,
                          uint16_t *scratch, uint16_t *values);

}  // namespace cpu
}  // namespace lk

#endif
