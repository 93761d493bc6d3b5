// The state of a cache on a device: its constants, its blocks, and the tables of the step, with the
// work items of decode and the record of the sequences.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_DEVICE_STATE_H
#define LK_BACKEND_GPU_DEVICE_STATE_H

#include "backend/gpu/block_order.h"
#include "backend/gpu/block_tables.h"
#include "backend/gpu/cache_tables.h"
#include "backend/gpu/fault_log.h"
#include "backend/gpu/jobs.h"
#include "backend/gpu/new_blocks.h"
#include "backend/gpu/split.h"
#include "backend/gpu/step_tables.h"

namespace lk {
namespace gpu {

// The shape of a step, on which its launches depend besides the tables.
struct StepShape {
    uint32_t n_sequences;
    uint32_t n_tokens;
    uint32_t max_new;     // of a sequence
    bool is_staged;       // a sequence has its new tokens in the staging area
    uint32_t max_blocks;  // that attention reads, of a sequence
    uint32_t max_staged;  // new tokens in the staging area, of a sequence
    bool has_spans;       // which the kernels of decode do not know
};

class DeviceState {
  public:
    explicit DeviceState(const Allocator &allocator)
        : tables_(allocator),
          blocks_(allocator),
          order_(allocator),
          step_(allocator),
          splits_(allocator),
          faults_(allocator),
          new_blocks_(allocator) {}

    // All that is passed lives as long. The constants are put to the device.
    lk_status open(const CacheLayout &layout, const SplitRules &rules, TableMemory *memory,
                   ReportMemory *report);

    // As CacheDevice's.
    lk_status block_create(Block *block);
    void block_destroy(Block *block);
    void entries_changed(Block *block);
    lk_status begin(const Batch &batch);
    void report(DataReport *out) const { faults_.read(out); }
    void clear_report() { faults_.clear(); }

    const CacheTables &constants() const { return tables_; }
    StepAddresses addresses() const { return step_.addresses(); }
    const StepShape &shape() const { return shape_; }
    NewBlocks &new_blocks() { return new_blocks_; }  // of the step
    const Splits &splits() const { return splits_; }
    uint64_t fixed_bytes() const { return tables_.bytes() + step_.bytes(); }

  private:
    CacheTables tables_;
    BlockTables blocks_;
    BlockOrder order_;
    StepTables step_;
    Splits splits_;
    FaultLog faults_;
    NewBlocks new_blocks_;
    StepShape shape_{};
    uint32_t serial_ = 0;
    bool blocks_changed_ = true;  // since the last begin(): blocks came, went or have other entries
    bool splits_changed_ = false;  // since they were sent
};

}  // namespace gpu
}  // namespace lk

#endif
