// How many slots of which size a block of each kind takes.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/memory/block_slots.h"

#include "cache_rig.h"
#include "core/pages/ladders.h"

namespace {

constexpr uint64_t kRaw = 32 * 32 * 2;  // bytes of a page at 16 bits

// Bytes of slots that a block of a kind takes.
uint64_t taken(CacheRig *rig, lk::BlockKind kind) {
    const uint64_t before = rig->cache->slots.slot_bytes();
    lk::CacheBlock *block = nullptr;
    const uint64_t index = kind == lk::BlockKind::kSink ? 0 : 1;
    assert_int_equal(lk::create_block(rig->cache, index, kind, &block), LK_OK);
    const uint64_t bytes = rig->cache->slots.slot_bytes() - before;
    lk::release_block(rig->cache, block);
    return bytes;
}

void counts_are_what_blocks_take(void **) {
    for (const char *preset : {"kivi2", "kitty", "fp16"}) {
        CacheRig rig(preset);
        const lk::BlockSlots &counts = rig.cache->block_slots;
        assert_int_equal(lk::slots_of_size(counts.recent, kRaw), 4);
        assert_int_equal(lk::slots_of_size(counts.last_sink, kRaw / 2), 4);
        assert_int_equal(lk::total_bytes(counts.sink), 4 * kRaw);
        assert_int_equal(lk::total_bytes(counts.recent), taken(&rig, lk::BlockKind::kRecent));
        assert_int_equal(lk::total_bytes(counts.last_sink), taken(&rig, lk::BlockKind::kSink));
        assert_int_equal(lk::total_bytes(counts.on_append),
                         taken(&rig, lk::BlockKind::kPackedOnAppend));
        assert_int_equal(lk::slots_of_size(counts.recent, kRaw + LK_SLOT_ALIGN), 0);
    }
}

// Sinks that fill their blocks have none that is shorter than a page.
void whole_sinks_have_no_last_one(void **) {
    CacheRig rig("kivi2", 16u << 20,
                 [](lk_plan *plan) { assert_int_equal(lk_plan_set_recent(plan, 64, 32), LK_OK); });
    assert_int_equal(rig.cache->block_slots.last_sink.size(), 0);
    assert_int_equal(lk::total_bytes(rig.cache->block_slots.sink), 4 * kRaw);
}

// Every size that a page may come to is known before the first step, and rungs need no memory.
void rungs_change_what_a_packed_block_takes(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_ladders);
    lk_cache *cache = rig.cache;
    assert_int_equal(lk::slots_of_size(cache->block_slots.on_append, kRaw), 4);
    for (const uint32_t rung : {1u, 2u, 3u})
        assert_int_not_equal(cache->slots.size_index(kRaw >> rung), lk::kNoSize);
    rig.memory.give(0);
    for (uint32_t layer = 0; layer < CacheRig::kLayers; ++layer)
        lk::set_rung(cache, layer, layer + 1);
    assert_int_equal(lk::slots_of_size(cache->block_slots.on_append, kRaw), 0);
    assert_int_equal(lk::slots_of_size(cache->block_slots.on_append, kRaw / 2), 2);
    assert_int_equal(lk::slots_of_size(cache->block_slots.on_append, kRaw / 4), 2);
    rig.memory.give_all();
    assert_int_equal(lk::total_bytes(cache->block_slots.on_append),
                     taken(&rig, lk::BlockKind::kPackedOnAppend));
}

void needs_are_cleared(void **) {
    CacheRig rig;
    lk::BlockSlots &counts = rig.cache->block_slots;
    assert_int_equal(counts.needs.size(), rig.cache->slots.n_sizes());
    counts.needs[0] = counts.needs.back() = 3;
    counts.clear_needs();
    for (const uint64_t n : counts.needs)
        assert_int_equal(n, 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_what_blocks_take),
        cmocka_unit_test(whole_sinks_have_no_last_one),
        cmocka_unit_test(rungs_change_what_a_packed_block_takes),
        cmocka_unit_test(needs_are_cleared),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
