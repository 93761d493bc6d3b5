// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/block_tables.h"

#include "base/status.h"
#include "format/tables.h"

namespace lk {
namespace device {

static_assert(sizeof(Entry) == sizeof(PageEntry) &&
                  offsetof(Entry, key_metadata) == offsetof(PageEntry, key_metadata) &&
                  offsetof(Entry, value_payload) == offsetof(PageEntry, value_payload) &&
                  offsetof(Entry, value_metadata) == offsetof(PageEntry, value_metadata) &&
                  offsetof(Entry, key_format) == offsetof(PageEntry, key_format) &&
                  offsetof(Entry, value_format) == offsetof(PageEntry, value_format),
              "entries are copied as bytes");

namespace {

constexpr uint64_t kGrowBytes = 1u << 20;
constexpr uint64_t kBlockRows = 16;  // at least

}  // namespace

BlockTables::~BlockTables() {
    for (const uint64_t block : blocks_)
        memory_->release(block);
}

void BlockTables::open(uint32_t n_entries, TableMemory *memory) {
    row_bytes_ = uint64_t{n_entries} * sizeof(Entry);
    memory_ = memory;
}

// The lists grow with the tables, so that dropping and marking cannot fail.
lk_status BlockTables::grow() {
    const uint64_t fitting = kGrowBytes / row_bytes_;
    const uint64_t n = fitting > kBlockRows ? fitting : kBlockRows;
    const uint64_t n_rows = n_rows_ + n;
    if (!free_.reserve(n_rows) || !stale_.reserve(n_rows) || !blocks_.reserve(blocks_.size() + 1))
        return fail(LK_E_NOMEM, "no memory for the lists of %llu rows",
                    static_cast<unsigned long long>(n_rows));
    uint64_t block = 0;
    const lk_status status = memory_->allocate(n * row_bytes_, "page tables", &block);
    if (status)
        return status;
    blocks_.push(block);
    for (uint64_t i = n; i--;)
        free_.push(block + i * row_bytes_);
    n_rows_ = n_rows;
    return LK_OK;
}

lk_status BlockTables::add(Block *row) {
    const lk_status status = free_.empty() ? grow() : LK_OK;
    if (status)
        return status;
    row->device_entries = free_.back();
    free_.pop();
    mark_stale(row);
    return LK_OK;
}

void BlockTables::drop(Block *row) {
    size_t i = row->is_stale ? stale_.size() : 0;
    while (i && stale_[i - 1] != row)
        --i;
    if (i)
        stale_.swap_remove(i - 1);
    free_.push(row->device_entries);
    row->device_entries = 0;
    row->is_stale = 0;
}

void BlockTables::mark_stale(Block *row) {
    if (row->is_stale)
        return;
    row->is_stale = 1;
    stale_.push(row);
}

lk_status BlockTables::send() {
    for (const Block *row : stale_) {
        const lk_status status = memory_->put(row->device_entries, row->entries, row_bytes_);
        if (status)
            return status;
    }
    for (Block *row : stale_)
        row->is_stale = 0;
    stale_.clear();
    return LK_OK;
}

}  // namespace device
}  // namespace lk
