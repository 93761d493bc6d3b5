// What a device mirrors of a cache: its constants, its rows, and the tables of the step, with the
// work items of decode and the record of who takes part.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_DEVICE_MIRROR_H
#define LK_BACKEND_DEVICE_MIRROR_H

#include "backend/device/cache_tables.h"
#include "backend/device/fault_log.h"
#include "backend/device/jobs.h"
#include "backend/device/row_tables.h"
#include "backend/device/split.h"
#include "backend/device/step_tables.h"

namespace lk {
namespace device {

// What launches of a step depend on, beside the tables.
struct StepShape {
    uint32_t n_sequences;
    uint32_t n_tokens;
    uint32_t max_new;  // of a sequence
    bool is_staged;    // a sequence has its new tokens in the staging area
};

class Mirror {
  public:
    explicit Mirror(const Allocator &allocator)
        : tables_(allocator),
          rows_(allocator),
          step_(allocator),
          splits_(allocator),
          faults_(allocator) {}

    // All that is passed lives as long. The constants are put to the device.
    lk_status open(const CacheLayout &layout, const SplitRules &rules, TableMemory *memory,
                   ReportMemory *report);

    // As CacheDevice's.
    lk_status block_create(Block *row);
    void block_destroy(Block *row);
    void entries_changed(Block *row);
    lk_status begin(const Batch &batch);
    void report(DataReport *out) const { faults_.read(out); }
    void clear_report() { faults_.clear(); }

    const CacheTables &constants() const { return tables_; }
    StepAddresses addresses() const { return step_.addresses(); }
    const StepShape &shape() const { return shape_; }
    const Splits &splits() const { return splits_; }
    uint64_t fixed_bytes() const { return tables_.bytes() + step_.bytes(); }

  private:
    CacheTables tables_;
    RowTables rows_;
    StepTables step_;
    Splits splits_;
    FaultLog faults_;
    StepShape shape_{};
    uint32_t serial_ = 0;
    bool rows_changed_ = true;     // since the last begin(): rows came, went or have other entries
    bool splits_changed_ = false;  // since they were sent
};

}  // namespace device
}  // namespace lk

#endif
