// A cache as a whole: how it is created, what a call of the interface publishes and logs.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

#include "cache_rig.h"

#include <string>

namespace {

void creation_fails_as_a_whole(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_ladders);
    lk_cache_destroy(&rig.cache);
    assert_int_equal(rig.memory.n_live, 0);
    uint64_t n = 0;
    for (;; ++n) {
        rig.memory.give(n);
        const lk_status status = rig.open();
        rig.memory.give_all();
        if (!status)
            break;
        assert_int_equal(status, LK_E_NOMEM);
        assert_null(rig.cache);
        assert_int_equal(rig.memory.n_live, 0);
        assert_int_equal(rig.context.n_caches, 0);
    }
    assert_true(n > 10);
    assert_int_equal(rig.context.n_caches, 1);
}

void a_budget_below_the_first_token_is_refused(void **) {
    CacheRig rig;
    const uint64_t fixed = rig.cache->ledger.table_bytes;
    lk_cache_destroy(&rig.cache);
    rig.desc.budget_bytes = fixed;
    assert_int_equal(rig.open(), LK_E_BUDGET);
    sentence_has("a sequence's first token need");
    rig.desc.budget_bytes = 16u << 20;
    assert_int_equal(rig.open(), LK_OK);
}

// A cache that is destroyed within a step gives back what the step has, also the block that one of
// two forks borrows to copy it.
void an_open_step_goes_with_the_cache(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.step(sequence, 40);
    lk::Sequence *child = rig.fork(sequence);
    assert_int_equal(rig.begin({{sequence, 40}, {child, 40}}), LK_OK);
    assert_non_null(rig.cache->step.sequences[1].borrowed_block);
    rig.append(0);
}

lk_cache_stats read(const CacheRig &rig) {
    lk_cache_stats stats;
    assert_int_equal(lk_cache_stats_init(&stats, sizeof stats), LK_OK);
    assert_int_equal(lk_cache_get_stats(rig.cache, &stats), LK_OK);
    return stats;
}

void finished_calls_are_published(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.step(sequence, 40);
    lk_cache_stats stats = read(rig);
    assert_int_equal(stats.n_sequences, 1);
    assert_int_equal(stats.n_tokens, 40);
    assert_int_equal(stats.budget_bytes, 16u << 20);
    assert_int_equal(stats.reserved_bytes, rig.cache->ledger.used_bytes());
    assert_int_equal(stats.table_bytes + stats.workspace_bytes, rig.cache->ledger.table_bytes);
    assert_int_equal(stats.fragmented_bytes,
                     rig.cache->ledger.extent_bytes - rig.cache->slots.slot_bytes());
    assert_int_equal(stats.free_bytes,
                     rig.cache->slots.slab_bytes() - rig.cache->slots.slot_bytes());
    assert_int_equal(stats.device_bytes, 4321);
    rig.cache->statistics.counts.pages_packed = 99;
    assert_int_equal(read(rig).pages_packed, 0);
    assert_int_equal(lk::on_cache(rig.cache, [] { return LK_OK; }), LK_OK);
    assert_int_equal(read(rig).pages_packed, 99);
}

void failed_calls_are_published_and_logged(void **) {
    assert_int_equal(lk::on_cache(nullptr, [] { return LK_OK; }), LK_E_ARGUMENT);
    CacheRig rig;
    std::string logged;
    rig.context.desc.log_user = &logged;
    rig.context.desc.log = [](void *user, lk_log_level, const char *text) {
        *static_cast<std::string *>(user) = text;
    };
    rig.context.desc.log_level = LK_LOG_WARNING;
    const lk_status status = lk::on_cache(rig.cache, [&] {
        rig.cache->statistics.counts.pages_packed = 5;
        return refuse(LK_E_NOT_FOUND, "no such thing");
    });
    assert_int_equal(status, LK_E_NOT_FOUND);
    assert_string_equal(logged.c_str(), "LK_E_NOT_FOUND: no such thing");
    assert_int_equal(read(rig).pages_packed, 5);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(creation_fails_as_a_whole),
        cmocka_unit_test(a_budget_below_the_first_token_is_refused),
        cmocka_unit_test(an_open_step_goes_with_the_cache),
        cmocka_unit_test(finished_calls_are_published),
        cmocka_unit_test(failed_calls_are_published_and_logged),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
