// Snapshots from untrusted bytes: no crash and no cost beyond the bound and the cache's budget;
// what is refused changes nothing, what is accepted supports every verb. Since hashes keep random
// bytes out, each input is tried a second time with its hashes made to fit.
//
// SPDX-License-Identifier: Apache-2.0
#include "cost/cost.h"
#include "mutate.h"
#include "restamp.h"
#include "snapshot_cases.h"

#include <cstdlib>
#include <memory>

namespace {

void require(bool condition) {
    if (!condition)
        std::abort();
}

struct Caches {
    Caches() {
        lk_context_desc desc;
        require(lk_context_desc_init(&desc, sizeof desc) == LK_OK);
        desc.n_threads = 1;
        require(lk_context_open(&desc, LK_ABI_VERSION, &context) == LK_OK);
        for (uint32_t i = 0; i < kSnapshotCases; ++i)
            cases[i] = std::make_unique<SnapshotCase>(context, i);
    }
    ~Caches() {
        for (std::unique_ptr<SnapshotCase> &own : cases)
            own.reset();
        require(lk_context_close(&context) == LK_OK);
    }
    Caches(const Caches &) = delete;
    Caches &operator=(const Caches &) = delete;

    lk_context *context = nullptr;
    std::unique_ptr<SnapshotCase> cases[kSnapshotCases];
};

void use(SnapshotCase *own, lk_sequence id) {
    uint64_t length = 0;
    require(lk_sequence_length(own->cache(), id, &length) == LK_OK);
    (void)own->append(id, 3, 3);
    own->use_chunks(id);
    uint64_t kept = 0;
    require(lk_sequence_rollback(own->cache(), id, length / 2, &kept) == LK_OK);
    require(kept <= length / 2);
    (void)own->append(id, 70, 70);
    (void)own->save();
}

lk_cache_stats stats_of(const SnapshotCase &own) {
    lk_cache_stats stats;
    require(lk_cache_stats_init(&stats, sizeof stats) == LK_OK);
    require(lk_cache_get_stats(own.cache(), &stats) == LK_OK);
    return stats;
}

void check(SnapshotCase *own, const uint8_t *data, size_t size) {
    lk_sequence ids[kCaseSequences];
    uint32_t n = 0;
    constexpr uint64_t kFreeNs = 50000000;
    cost_begin();
    const lk_status status =
        lk_snapshot_load_memory(own->cache(), nullptr, data, size, kCaseSequences, ids, &n);
    cost_expect("a load", size, kCaseBudget, kFreeNs);
    for (uint32_t i = 0; !status && i < n; ++i)
        use(own, ids[i]);
    for (uint32_t i = 0; !status && i < n; ++i)
        own->remove(ids[i]);
    const lk_cache_stats after = stats_of(*own);
    require(after.n_sequences == 0 && after.n_tokens == 0 && after.payload_bytes == 0 &&
            after.recent_bytes == 0 && after.metadata_bytes == 0);
}

void check_all(const uint8_t *data, size_t size) {
    static Caches caches;
    for (const std::unique_ptr<SnapshotCase> &own : caches.cases)
        check(own.get(), data, size);
    lk_snapshot *snapshot = nullptr;
    cost_begin();
    const lk_status status = lk_snapshot_open_memory(data, size, &snapshot);
    cost_expect("an inspection", size, 0, 0);
    require((status == LK_OK) == (snapshot != nullptr));
    lk_snapshot_close(&snapshot);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_all(data, size);
    std::vector<uint8_t> stamped(data, data + size);
    snapshot_restamp(stamped.data(), stamped.size());
    check_all(stamped.data(), stamped.size());
    return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size,
                                          unsigned seed) {
    mutate::Random random(seed);
    if (mutate::below(&random, 4) == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    std::vector<uint8_t> bytes(data, data + size);
    mutate::snapshot(&bytes, &random);
    return mutate::give(bytes, data, max_size);
}
