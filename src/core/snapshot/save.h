// Saving sequences.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SNAPSHOT_SAVE_H
#define LK_CORE_SNAPSHOT_SAVE_H

#include "core/snapshot/stream.h"

namespace lk {

// Sequences of a cache, as the save of all forms is called with.
struct SnapshotChoice {
    uint32_t n_sequences;
    const lk_sequence *ids;
    const lk_snapshot_desc *desc;
};
lk_status snapshot_bytes(lk_cache *cache, const SnapshotChoice &choice, uint64_t *n_bytes);
lk_status save_snapshot(lk_cache *cache, const SnapshotChoice &choice, SnapshotSink *sink);

}  // namespace lk

#endif
