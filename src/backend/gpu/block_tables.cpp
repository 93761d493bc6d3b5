// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/block_tables.h"

#include "base/status.h"
#include "format/tables.h"

namespace lk {
namespace gpu {

static_assert(sizeof(Entry) == sizeof(PageEntry) &&
                  offsetof(Entry, key_metadata) == offsetof(PageEntry, key_metadata) &&
                  offsetof(Entry, value_payload) == offsetof(PageEntry, value_payload) &&
                  offsetof(Entry, value_metadata) == offsetof(PageEntry, value_metadata) &&
                  offsetof(Entry, key_format) == offsetof(PageEntry, key_format) &&
                  offsetof(Entry, value_format) == offsetof(PageEntry, value_format),
              "entries are copied as bytes");

namespace {

constexpr uint64_t kGrowBytes = 1u << 20;
constexpr uint64_t kGrowBlocks = 16;  // at least

}  // namespace

BlockTables::~BlockTables() {
    for (const uint64_t block : blocks_)
        memory_->release(block);
}

void BlockTables::open(uint32_t n_entries, TableMemory *memory) {
    block_bytes_ = uint64_t{n_entries} * sizeof(Entry);
    memory_ = memory;
}

// The lists grow with the tables, so that dropping and marking cannot fail.
lk_status BlockTables::grow() {
    const uint64_t fitting = kGrowBytes / block_bytes_;
    const uint64_t n = fitting > kGrowBlocks ? fitting : kGrowBlocks;
    const uint64_t n_blocks = n_blocks_ + n;
    if (!free_.reserve(n_blocks) || !stale_.reserve(n_blocks) ||
        !blocks_.reserve(blocks_.size() + 1))
        return fail(LK_E_NOMEM, "no memory for the lists of %llu blocks",
                    static_cast<unsigned long long>(n_blocks));
    uint64_t block = 0;
    LK_TRY(memory_->allocate(n * block_bytes_, "page tables", &block));
    blocks_.push(block);
    for (uint64_t i = n; i--;)
        free_.push(block + i * block_bytes_);
    n_blocks_ = n_blocks;
    return LK_OK;
}

lk_status BlockTables::add(Block *block) {
    LK_TRY(free_.empty() ? grow() : LK_OK);
    block->device_entries = free_.back();
    free_.pop();
    mark_stale(block);
    return LK_OK;
}

void BlockTables::drop(Block *block) {
    size_t i = block->is_stale ? stale_.size() : 0;
    while (i && stale_[i - 1] != block)
        --i;
    if (i)
        stale_.swap_remove(i - 1);
    free_.push(block->device_entries);
    block->device_entries = 0;
    block->is_stale = 0;
}

void BlockTables::mark_stale(Block *block) {
    if (block->is_stale)
        return;
    block->is_stale = 1;
    stale_.push(block);
}

lk_status BlockTables::send() {
    for (const Block *block : stale_)
        LK_TRY(memory_->put(block->device_entries, block->entries, block_bytes_));

    for (Block *block : stale_)
        block->is_stale = 0;
    stale_.clear();
    return LK_OK;
}

}  // namespace gpu
}  // namespace lk
