// What a step has to reserve, and by how much a budget is short of it.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/memory/reserve.h"

#include "cache_rig.h"

namespace {

// Extents for one more block at 16 bits: all of its slots are of one size.
void a_shortfall_is_counted_in_extents(void **) {
    CacheRig rig;
    lk::Ledger &ledger = rig.cache->ledger;
    rig.cache->block_slots.clear_needs();
    lk::add_block_slots(rig.cache, lk::BlockKind::kRecent);
    const uint64_t used = ledger.used_bytes();
    ledger.limit_bytes = used + LK_EXTENT_BYTES + 1000;
    assert_int_equal(lk::shortfall_of(rig.cache, 1000).bytes, 0);
    assert_int_equal(lk::shortfall_of(rig.cache, 1007).bytes, 7);
    assert_int_equal(lk::shortfall_of(rig.cache, 1007).compacted_bytes, 7);
    ledger.spare_bytes = 5;
    assert_int_equal(lk::shortfall_of(rig.cache, 1000).bytes, 5);
    ledger.spare_bytes = 0;
    assert_int_equal(lk::check_reserve(rig.cache, 1000, "a test"), LK_OK);
    assert_int_equal(lk::check_reserve(rig.cache, 1007, "a test"), LK_E_BUDGET);
    sentence_has("is short of 7 bytes");
    sentence_has("a test needs");
    ledger.limit_bytes = 16u << 20;
}

// A cache may be opened with what its first token takes, and with not a byte less.
void the_first_token_fits_just(void **) {
    uint64_t least = 0;
    {
        CacheRig rig;
        least = rig.cache->ledger.table_bytes + lk::first_token_bytes(rig.cache);
    }
    CacheRig rig("kivi2", least);
    lk::Sequence *sequence = rig.add();
    rig.step(sequence, 1);
    assert_int_equal(rig.cache->ledger.used_bytes(), least);
    assert_int_equal(rig.begin(sequence, 16), LK_E_BUDGET);
    sentence_has("the step's 16 tokens need");
    assert_int_equal(sequence->length, 1);
    assert_int_equal(rig.cache->ledger.used_bytes(), least);
}

void private_bytes_are_limited(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.step(sequence, 16);
    rig.cache->desc.sequence_limit_bytes = 2 * lk::block_bytes(rig.plan()) + 2 * 2 * 16 * 32 * 2;
    assert_int_equal(rig.begin(sequence, 1), LK_E_BUDGET);
    sentence_has("private bytes");
    rig.cache->desc.sequence_limit_bytes += 2 * 2 * 32 * 32 * 2;
    rig.step(sequence, 32);
    assert_int_equal(rig.begin(sequence, 1), LK_E_BUDGET);
}

lk_pressure_action add_budget(void *user, lk_pressure *pressure) {
    *static_cast<uint64_t *>(user) = pressure->shortfall_bytes;
    pressure->budget_bytes += pressure->shortfall_bytes;
    return LK_PRESSURE_BUDGET;
}

// The host is called with the shortfall, and exactly that is enough.
void the_pressure_callback_fills_the_shortfall(void **) {
    uint64_t shortfall = 0;
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.step(sequence, 16);
    lk_cache *cache = rig.cache;
    cache->ledger.limit_bytes = cache->ledger.used_bytes();
    assert_int_equal(rig.begin(sequence, 1), LK_E_BUDGET);
    cache->desc.pressure = add_budget;
    cache->desc.pressure_user = &shortfall;
    rig.step(sequence, 1);
    assert_int_equal(shortfall, lk::block_bytes(rig.plan()) + LK_EXTENT_BYTES);
    assert_int_equal(cache->ledger.used_bytes(), cache->ledger.limit_bytes);
}

void the_least_recently_used_sequence_is_evicted(void **) {
    CacheRig rig;
    lk::Sequence *first = rig.add();
    lk::Sequence *second = rig.add();
    rig.step(first, 16);
    rig.step(second, 16);
    rig.step(first, 1);
    const lk_sequence evicted = second->id;
    rig.cache->desc.flags = LK_CACHE_EVICT;
    rig.cache->ledger.limit_bytes = rig.cache->ledger.used_bytes();
    rig.step(first, 32);
    assert_null(rig.cache->sequences.find(evicted));
    assert_int_equal(rig.counts().sequences_evicted, 1);
    assert_int_equal(first->length, 49);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_shortfall_is_counted_in_extents),
        cmocka_unit_test(the_first_token_fits_just),
        cmocka_unit_test(private_bytes_are_limited),
        cmocka_unit_test(the_pressure_callback_fills_the_shortfall),
        cmocka_unit_test(the_least_recently_used_sequence_is_evicted),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
