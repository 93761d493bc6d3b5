// Loading sequences.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SNAPSHOT_LOAD_H
#define LK_CORE_SNAPSHOT_LOAD_H

#include "core/snapshot/stream.h"

namespace lk {

struct SnapshotTarget {
    const lk_snapshot_desc *desc;
    uint32_t capacity;
    lk_sequence *ids;
    uint32_t *n_sequences;
};
lk_status load_snapshot(lk_cache *cache, const SnapshotTarget &target, SnapshotSource *source);

}  // namespace lk

#endif
