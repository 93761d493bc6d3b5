// Device copies of the entries of blocks. The budget counts them with the blocks: they are no part
// of CacheDevice::fixed_bytes().
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_BLOCK_TABLES_H
#define LK_BACKEND_GPU_BLOCK_TABLES_H

#include "backend/backend.h"
#include "backend/gpu/memory.h"

namespace lk {
namespace gpu {

class BlockTables {
  public:
    explicit BlockTables(const Allocator &allocator)
        : blocks_(allocator), free_(allocator), stale_(allocator) {}
    ~BlockTables();
    BlockTables(const BlockTables &) = delete;
    BlockTables &operator=(const BlockTables &) = delete;

    void open(uint32_t n_entries, TableMemory *memory);
    // Give the block a table, which is stale until the next send().
    lk_status add(Block *block);
    // Its table may be another block's at once: queued work runs before tables that are sent later.
    void drop(Block *block);
    void mark_stale(Block *block);
    lk_status send();

  private:
    lk_status grow();

    TableMemory *memory_ = nullptr;
    uint64_t block_bytes_ = 0;
    uint64_t n_blocks_ = 0;   // tables
    Array<uint64_t> blocks_;  // addresses
    Array<uint64_t> free_;    // the next one last
    Array<Block *> stale_;
};

}  // namespace gpu
}  // namespace lk

#endif
