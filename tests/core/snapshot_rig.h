// Snapshots of a cache on a device that does no work: its slots hold what a test puts there.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_CORE_SNAPSHOT_RIG_H
#define LK_TESTS_CORE_SNAPSHOT_RIG_H

#include "cache_rig.h"
#include "core/snapshot/load.h"
#include "core/snapshot/save.h"

// All sequences of a cache.
inline std::vector<uint8_t> save_all(CacheRig *rig, const lk_snapshot_desc *desc = nullptr) {
    const lk::SnapshotChoice all = {0, nullptr, desc};
    uint64_t n_bytes = 0;
    assert_int_equal(lk::snapshot_bytes(rig->cache, all, &n_bytes), LK_OK);
    std::vector<uint8_t> bytes(n_bytes);
    lk::MemorySink sink(bytes.data(), n_bytes);
    assert_int_equal(lk::save_snapshot(rig->cache, all, &sink), LK_OK);
    assert_null(sink.reserve(1));
    return bytes;
}
inline lk_status load_all(CacheRig *rig, const std::vector<uint8_t> &bytes, lk_sequence *ids,
                          uint32_t capacity, uint32_t *n = nullptr,
                          const lk_snapshot_desc *desc = nullptr) {
    lk::MemorySource source(bytes.data(), bytes.size());
    return lk::load_snapshot(rig->cache, {desc, capacity, ids, n}, &source);
}

#endif
