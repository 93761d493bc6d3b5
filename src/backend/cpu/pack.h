// Everything that writes pages and staging: exact, the same bits on every instruction set.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_PACK_H
#define LK_BACKEND_CPU_PACK_H

#include "backend/backend.h"

namespace lk {
namespace cpu {

// FP16 values of a page, [page_tokens][head_dim].
constexpr uint64_t kPageValues = static_cast<uint64_t>(LK_MAX_PAGE_TOKENS) * LK_MAX_HEAD_DIM;

// One token of the batch, all heads, into the staging area. Counts what saturates; *bad is
// lowered to the first value that is not finite, as bad_code() of it.
constexpr uint64_t kNothingBad = UINT64_MAX;
constexpr uint64_t bad_code(uint64_t token, uint64_t n_heads, uint64_t head, uint64_t is_value) {
    return (token * n_heads + head) * 2 + is_value;
}
void convert_token(const ConvertArgs &args, uint32_t token, uint64_t *n_saturated, uint64_t *bad);

void store_tokens(const StoreArgs &item);

// values: scratch of kPageValues.
void pack_item(const PackItem &item, uint16_t *values);
void reopen_item(const ReopenItem &item, uint16_t *values);

void sum_queries_item(const QuerySumArgs &item);

}  // namespace cpu
}  // namespace lk

#endif
