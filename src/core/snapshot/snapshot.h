// What saves, loads and inspections of snapshots have in common.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SNAPSHOT_SNAPSHOT_H
#define LK_CORE_SNAPSHOT_SNAPSHOT_H

#include "format/snapshot_frame.h"
#include "plan/plan.h"

#include <lowkey/snapshot.h>

namespace lk {

// What both need of a desc. LK_E_ARGUMENT.
lk_status import_snapshot_desc(const lk_snapshot_desc *from, lk_snapshot_desc *out);
// LK_E_IO when the callback says so.
lk_status report_progress(const lk_snapshot_desc &desc, uint64_t done_bytes, uint64_t total_bytes);

// Bring the cache's device to where its bytes can be read: no step is open, nothing is captured,
// what was recorded is left. LK_E_BUSY, LK_E_STATE, LK_E_DEVICE.
lk_status settle_cache(lk_cache *cache, const char *verb);

// The plan's text as snapshots have it: at the first rung of every ladder, so that what a cache
// shrinks does not change it. Without a zero.
lk_status plan_text(const Plan &plan, const Allocator &allocator, Array<uint8_t> *out);

lk_status parse_plan_text(const Array<uint8_t> &text, Plan *out);
// Does the header say of the plan what the plan says? LK_E_CORRUPT.
lk_status check_header_plan(const SnapshotHeader &header, const Plan &plan);

}  // namespace lk

#endif
