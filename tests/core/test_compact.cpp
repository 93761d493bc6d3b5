// Compaction: slots of sparse extents are moved together, and the entries that have them follow.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/memory/compact.h"

#include "cache_rig.h"

#include <set>
#include <vector>

namespace {

// Many sequences' worth of blocks in one sequence, of which all but every eighth are freed.
struct Sparse {
    Sparse() {
        rig.cache->slots.trim();
        sequence = rig.add();
        assert_true(sequence->block_table.reserve(kBlocks));
        std::vector<lk::CacheBlock *> all;
        for (uint32_t i = 0; i < kBlocks; ++i) {
            lk::CacheBlock *block;
            assert_int_equal(lk::create_block(rig.cache, 1 + i, lk::BlockKind::kRecent, &block),
                             LK_OK);
            all.push_back(block);
        }
        for (uint32_t i = 0; i < kBlocks; ++i)
            if (i % 8)
                lk::release_block(rig.cache, all[i]);
            else
                assert_true(sequence->block_table.push(all[i]));
    }
    std::set<uint64_t> addresses() const {
        std::set<uint64_t> found;
        for (size_t i = 0; i < sequence->block_table.size(); ++i)
            for (uint32_t e = 0; e < sequence->block(i)->n_entries; ++e) {
                found.insert(sequence->block(i)->entries[e].key_payload);
                found.insert(sequence->block(i)->entries[e].value_payload);
            }
        return found;
    }

    static constexpr uint32_t kBlocks = 512;
    CacheRig rig;
    lk::Sequence *sequence;
};

void slots_move_together(void **) {
    Sparse sparse;
    lk_cache *cache = sparse.rig.cache;
    const uint64_t before = cache->ledger.extent_bytes;
    const uint64_t slots = cache->slots.slot_bytes();
    const std::set<uint64_t> old = sparse.addresses();
    std::set<uint64_t> sources;
    std::set<uint64_t> targets;
    sparse.rig.device().shrinks = [&](const lk::ShrinkItem *items, uint32_t n) {
        for (uint32_t i = 0; i < n; ++i) {
            assert_int_equal(items[i].n_strips, 0);
            sources.insert(items[i].source);
            targets.insert(items[i].target);
        }
        return LK_OK;
    };
    assert_true(lk::compact(cache));
    assert_true(cache->ledger.extent_bytes < before / 4);
    assert_int_equal(cache->slots.slot_bytes(), slots);
    const std::set<uint64_t> now = sparse.addresses();
    assert_int_equal(now.size(), old.size());
    for (const uint64_t source : sources)
        assert_true(old.count(source));
    for (const uint64_t address : now)
        assert_true(targets.count(address) || old.count(address));
    assert_false(lk::compact(cache));
}

void a_failing_device_changes_nothing(void **) {
    Sparse sparse;
    lk_cache *cache = sparse.rig.cache;
    const std::set<uint64_t> old = sparse.addresses();
    const uint64_t slots = cache->slots.slot_bytes();
    sparse.rig.device().shrinks = kDeviceFails;
    assert_false(lk::compact(cache));
    assert_true(sparse.addresses() == old);
    assert_int_equal(cache->slots.slot_bytes(), slots);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(slots_move_together),
        cmocka_unit_test(a_failing_device_changes_nothing),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
