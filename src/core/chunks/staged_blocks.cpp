// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/staged_blocks.h"

#include <algorithm>

#include "core/cache.h"
#include "core/memory/reserve.h"

namespace lk {

StagedBlocks::StagedBlocks(lk_cache *cache) : cache_(*cache), blocks_(cache->context->allocator) {}

StagedBlocks::~StagedBlocks() {
    for (CacheBlock *block : blocks_)
        release_block(&cache_, block);
    cache_.slots.trim();
}

// As many as have their packs in one launch; one where work is done when a call returns.
uint64_t StagedBlocks::most_blocks(uint64_t n_packed) const {
    if (!cache_.context->backend->traits().queue)
        return 1;
    const uint64_t n = kBatch / (2 * cache_.formats.entries.size());
    return std::max<uint64_t>(1, std::min(n, n_packed));
}

lk_status StagedBlocks::open(uint64_t index, uint64_t n_packed, uint64_t table_bytes) {
    const uint64_t most = most_blocks(n_packed);
    uint64_t n = 1;
    for (uint64_t more = 1; n + more <= most; more *= 2) {
        for (uint64_t i = 0; i < more; ++i)
            add_block_slots(&cache_, BlockKind::kRecent);
        table_bytes += more * block_bytes(cache_.plan.model);
        if (!has_room(&cache_, table_bytes))
            break;
        n += more;
    }
    if (!blocks_.reserve(n))
        return fail(LK_E_NOMEM, "no memory for a list of %llu blocks", ull{n});
    for (uint64_t i = 0; i < n; ++i) {
        CacheBlock *block;
        LK_TRY(create_block(&cache_, index, BlockKind::kRecent, &block));
        (void)blocks_.push(block);
    }
    return LK_OK;
}

lk_status StagedBlocks::take(CacheBlock **out) {
    if (n_taken_ == blocks_.size())
        LK_TRY(flush());
    *out = blocks_[n_taken_++];
    return LK_OK;
}

lk_status StagedBlocks::flush() {
    n_taken_ = 0;
    LK_TRY(flush_moves(&cache_));
    return flush_packs(&cache_);
}

void StagedBlocks::drop() {
    cache_.work.moves.clear();
    cache_.work.packs.clear();
}

}  // namespace lk
