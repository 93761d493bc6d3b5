// Reclaiming bytes: the order of what gives way, and answers of the host that are refused.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/memory/reclaim.h"

#include "cache_rig.h"
#include "core/pages/ladders.h"
#include "core/pages/pack.h"

namespace {

// The host, as its pressure callback.
struct Host {
    lk_pressure_action action = LK_PRESSURE_REFUSE;
    uint64_t more_bytes = 0;
    std::vector<lk_sequence> ids;
    uint32_t n_ids = UINT32_MAX;  // named, if not as many as there are
    uint32_t n_calls = 0;
    lk_pressure last{};

    static lk_pressure_action answer(void *self, lk_pressure *pressure) {
        auto *host = static_cast<Host *>(self);
        ++host->n_calls;
        host->last = *pressure;
        pressure->budget_bytes += host->more_bytes;
        pressure->n_ids =
            host->n_ids == UINT32_MAX ? static_cast<uint32_t>(host->ids.size()) : host->n_ids;
        for (size_t i = 0; i < host->ids.size(); ++i)
            pressure->ids[i] = host->ids[i];
        return host->action;
    }
    void serve(lk_cache *cache) {
        cache->desc.pressure = answer;
        cache->desc.pressure_user = this;
    }
};

void nothing_to_give_is_a_status(void **) {
    CacheRig rig;
    rig.step(rig.add(), 40);
    const Held before = rig.held();
    assert_int_equal(lk::reclaim(rig.cache, 1), LK_E_BUDGET);
    rig.assert_held(before);
}

// Ladders come before the host, the host before eviction.
void pages_shrink_first(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_ladders);
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 16 + 3 * 32 + 32);
    rig.cache->desc.flags = LK_CACHE_EVICT;
    rig.step(sequence, 1);
    Host host;
    host.serve(rig.cache);
    uint32_t n_rounds = 0;
    while (!host.n_calls) {
        const uint64_t n_shrunk = rig.counts().pages_shrunk;
        const lk_status status = lk::reclaim(rig.cache, 7);
        assert_int_equal(status, host.n_calls ? LK_E_BUDGET : LK_OK);
        assert_int_equal(rig.counts().pages_shrunk > n_shrunk, !host.n_calls);
        assert_true(++n_rounds < 100);
    }
    for (uint32_t layer = 0; layer < CacheRig::kLayers; ++layer)
        assert_int_equal(lk::rung_bits(rig.cache, layer), 2);
    assert_int_equal(host.last.shortfall_bytes, 7);
    assert_int_equal(rig.cache->sequences.size(), 1);
    rig.cache->desc.pressure = nullptr;
    ++rig.cache->sequences.next_mark;  // a step of other sequences begins
    assert_int_equal(lk::reclaim(rig.cache, 7), LK_OK);
    assert_int_equal(rig.cache->sequences.size(), 0);
    assert_int_equal(rig.counts().sequences_evicted, 1);
}

void the_host_raises_the_budget_within_its_limit(void **) {
    CacheRig rig;
    lk_cache *cache = rig.cache;
    Host host;
    host.serve(cache);
    host.action = LK_PRESSURE_BUDGET;
    const uint64_t limit = cache->ledger.limit_bytes;
    assert_int_equal(lk::reclaim(cache, 1), LK_E_ARGUMENT);
    sentence_has("not above");
    host.more_bytes = 100;
    assert_int_equal(lk::reclaim(cache, 1), LK_E_ARGUMENT);  // max_budget_bytes is the limit
    assert_int_equal(cache->ledger.limit_bytes, limit);
    cache->desc.max_budget_bytes = limit + 100;
    assert_int_equal(lk::reclaim(cache, 1), LK_OK);
    assert_int_equal(cache->ledger.limit_bytes, limit + 100);
    assert_int_equal(host.last.budget_bytes, limit);
    assert_int_equal(host.last.reserved_bytes, cache->ledger.used_bytes());
    host.action = LK_PRESSURE_BUDGET + LK_PRESSURE_REMOVE + LK_PRESSURE_REFUSE + 1;
    assert_int_equal(lk::reclaim(cache, 1), LK_E_ARGUMENT);
    sentence_has("not an lk_pressure_action");
}

void the_host_names_sequences(void **) {
    CacheRig rig;
    lk::Sequence *kept = rig.add();
    lk::Sequence *named = rig.add();
    rig.step({{kept, 5}, {named, 40}});
    const lk_sequence id = named->id;
    ++rig.cache->sequences.next_mark;
    kept->mark = rig.cache->sequences.next_mark;  // as a step that begins
    Host host;
    host.serve(rig.cache);
    host.action = LK_PRESSURE_REMOVE;
    assert_int_equal(lk::reclaim(rig.cache, 1), LK_E_ARGUMENT);
    sentence_has("n_ids is 0");
    host.n_ids = host.last.capacity + 1;
    assert_int_equal(lk::reclaim(rig.cache, 1), LK_E_ARGUMENT);
    host.n_ids = UINT32_MAX;
    host.ids = {id, kept->id};
    assert_int_equal(lk::reclaim(rig.cache, 1), LK_E_ARGUMENT);
    sentence_has("is in the step");
    host.ids = {id, 77};
    assert_int_equal(lk::reclaim(rig.cache, 1), LK_E_ARGUMENT);
    sentence_has("is not there");
    assert_ptr_equal(rig.cache->sequences.find(id), named);
    host.ids = {id, id};
    assert_int_equal(lk::reclaim(rig.cache, 1), LK_OK);
    assert_null(rig.cache->sequences.find(id));
    assert_int_equal(rig.counts().sequences_evicted, 1);
    assert_int_equal(rig.counts().n_tokens, 5);
}

void the_oldest_is_evicted_unless_it_is_in_the_step(void **) {
    CacheRig rig;
    rig.cache->desc.flags = LK_CACHE_EVICT;
    lk::Sequence *newest = rig.add();
    lk::Sequence *oldest = rig.add();
    lk::Sequence *next = rig.add();
    const lk_sequence ids[] = {next->id, newest->id};
    for (lk::Sequence *sequence : {oldest, next, newest})
        rig.step(sequence, 1);
    ++rig.cache->sequences.next_mark;
    oldest->mark = rig.cache->sequences.next_mark;
    for (const lk_sequence id : ids) {
        assert_int_equal(lk::reclaim(rig.cache, 1), LK_OK);
        assert_null(rig.cache->sequences.find(id));
    }
    assert_int_equal(lk::reclaim(rig.cache, 1), LK_E_BUDGET);
    assert_int_equal(rig.cache->sequences.size(), 1);
}

// Packing takes an extent for its slots, which the host gives here.
void packing_reclaims_what_it_takes(void **) {
    CacheRig rig;
    lk::Sequence *other = rig.add();
    lk::Sequence *sequence = rig.add();
    rig.step(other, 16);
    rig.grow(sequence, 16 + 32 + 32);
    rig.cache->ledger.limit_bytes = rig.cache->ledger.used_bytes();
    assert_int_equal(lk::pack_with_reclaim(rig.cache, sequence, lk::pack_due_blocks), LK_E_BUDGET);
    assert_int_equal(sequence->block(1)->n_packed, 0);
    uint32_t n_calls = 0;
    rig.cache->desc.max_budget_bytes = UINT64_MAX;
    rig.cache->desc.pressure_user = &n_calls;
    rig.cache->desc.pressure = [](void *user, lk_pressure *pressure) {
        ++*static_cast<uint32_t *>(user);
        pressure->budget_bytes += pressure->shortfall_bytes;
        return lk_pressure_action{LK_PRESSURE_BUDGET};
    };
    assert_int_equal(lk::pack_with_reclaim(rig.cache, sequence, lk::pack_due_blocks), LK_OK);
    assert_true(n_calls > 0);
    assert_int_equal(sequence->block(1)->n_packed, 2);
    rig.device().packs = kDeviceFails;
    rig.step(sequence, 32);
    assert_int_equal(lk::pack_with_reclaim(rig.cache, sequence, lk::pack_due_blocks), LK_E_DEVICE);
    rig.device().packs = {};
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(nothing_to_give_is_a_status),
        cmocka_unit_test(pages_shrink_first),
        cmocka_unit_test(the_host_raises_the_budget_within_its_limit),
        cmocka_unit_test(the_host_names_sequences),
        cmocka_unit_test(the_oldest_is_evicted_unless_it_is_in_the_step),
        cmocka_unit_test(packing_reclaims_what_it_takes),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
