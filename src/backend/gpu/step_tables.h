// The tables of a step that kernels read, at addresses that stay the same for a cache's life.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_STEP_TABLES_H
#define LK_BACKEND_GPU_STEP_TABLES_H

#include "backend/backend.h"
#include "backend/gpu/block_order.h"
#include "backend/gpu/memory.h"
#include "backend/gpu/split.h"

namespace lk {
namespace gpu {

// Where they are.
struct StepAddresses {
    uint64_t header;     // StepHeader
    uint64_t sequences;  // SequenceInfo []
    uint64_t splits;     // the work items of Splits
    uint64_t blocks;     // BlockInfo []
    uint64_t ancestors;  // u64 [n_tokens]
    uint64_t positions;  // u32 [n_tokens], longer than ancestors in steps with spans
};

class StepTables {
  public:
    explicit StepTables(const Allocator &allocator)
        : sequences_(allocator), blocks_(allocator), ancestors_(allocator), positions_(allocator) {}

    // splits_bytes: of Splits. has_order: blocks in order follow those of the batch.
    lk_status open(const CacheLayout &layout, uint64_t splits_bytes, bool has_order,
                   TableMemory *memory);
    // blocks_changed: blocks came or went since the last send(). LK_E_UNSUPPORTED: a sequence of
    // 2^32 tokens.
    lk_status fill(const Batch &batch, const BlockOrder &order, uint32_t serial,
                   bool blocks_changed);
    // The tables, and the work items of the batch if they are not null.
    lk_status send(const Splits *splits);

    StepAddresses addresses() const;
    uint64_t bytes() const { return table_.bytes(); }

  private:
    bool has_same_blocks(const Batch &batch) const;
    lk_status fill_sequences(const Batch &batch);
    lk_status fill_blocks(const Batch &batch, const BlockOrder &order);
    bool push_block(const Block &block);
    void fill_trees(const Batch &batch);
    void fill_spans(const Batch &batch);

    StepHeader header_{};
    Array<SequenceInfo> sequences_;  // [max_sequences]
    Array<BlockInfo> blocks_;
    Array<uint64_t> ancestors_;
    Array<uint32_t> positions_;
    uint64_t max_blocks_ = 0;
    bool has_blocks_ = false;    // the device has blocks_, of header_.n_sequences sequences
    bool sends_blocks_ = false;  // with the next send()
    bool has_packed_on_append_ = false;
    bool has_trees_ = false;
    bool has_spans_ = false;

    TableMemory *memory_ = nullptr;
    Table table_;  // header, sequences, splits, blocks, ancestors, positions
    uint64_t splits_offset_ = 0;
    uint64_t blocks_offset_ = 0;
    uint64_t ancestors_offset_ = 0;
    uint64_t positions_offset_ = 0;
};

}  // namespace gpu
}  // namespace lk

#endif
