// Everything that writes pages and staging: exact, the same bits on every instruction set. Without
// kernels the codec of format/codec.h does it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_PACK_H
#define LK_BACKEND_CPU_PACK_H

#include "backend/backend.h"
#include "backend/cpu/kernels.h"

namespace lk {
namespace cpu {

// FP16 values of a page, [page_tokens][head_dim].
constexpr uint64_t kPageValues = static_cast<uint64_t>(LK_MAX_PAGE_TOKENS) * LK_MAX_HEAD_DIM;
// Of a thread that packs, in FP16 values.
constexpr uint64_t kPackScratch = 2 * kPageValues;

// One token of the batch, all heads, into the staging area. Counts what saturates; *bad is
// lowered to the first value that is not finite, as bad_code() of it.
constexpr uint64_t kNothingBad = UINT64_MAX;
constexpr uint64_t bad_code(uint64_t token, uint64_t n_heads, uint64_t head, uint64_t is_value) {
    return (token * n_heads + head) * 2 + is_value;
}
void convert_token(const Kernels *kernels, const AppendArgs &args, uint32_t token,
                   uint64_t *n_saturated, uint64_t *bad);

// The new tokens of a sequence that one block holds.
struct BlockPart {
    const Block *block;
    uint32_t first_staged;  // of the batch
    uint32_t token_in_block;
    uint32_t n_tokens;
};
// Copy those of one head from the staging area to a 16-bit block.
void store_part(const AppendArgs &args, const PageFormat *classes, const BlockPart &part,
                uint32_t kv_head);

// Pack its keys or values, which fill the block, from there; not keys that are ranked by queries.
// scratch: kPackScratch.
void pack_part(const Kernels *kernels, const AppendArgs &args, const PageFormat *classes,
               const BlockPart &part, uint32_t kv_head, bool is_value, uint16_t *scratch);

void pack_item(const Kernels *kernels, const PackItem &item, uint16_t *scratch);
void dequantize_item(const Kernels *kernels, const DequantizeItem &item, uint16_t *scratch);
void move_item(const MoveItem &item, uint16_t *scratch);

// Sum i of a run, of its KV head `head`, to u64 [head_dim].
void sum_queries(const Kernels *kernels, const QueryStatArgs &args, const QueryStatRun &run,
                 uint32_t i, uint32_t head, uint64_t *sums);
void add_sum(const StatItem &item);

}  // namespace cpu
}  // namespace lk

#endif
