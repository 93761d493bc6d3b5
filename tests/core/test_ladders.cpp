// Ladders: which layer goes down next, and how far a search has come.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/pages/ladders.h"

#include "cache_rig.h"

namespace {

// One sequence with three packed blocks, all layers at 16 bits.
struct Laddered {
    explicit Laddered(const std::function<void(lk_plan *)> &change = give_ladders)
        : rig("pm-kvq", 16u << 20, change) {
        sequence = rig.add();
        rig.grow(sequence, 16 + 3 * 32 + 32);
        rig.step(sequence, 1);
        assert_int_equal(sequence->first_open, 4);
    }
    uint32_t bits(uint32_t block, uint32_t layer) const {
        const lk::PageEntry &entry = sequence->block(block)->entries[layer];
        assert_int_equal(lk::format_bits(rig.cache->formats[entry.key_format]),
                         lk::format_bits(rig.cache->formats[entry.value_format]));
        return rig.cache->formats[entry.key_format].layout.strips[lk::plane_of(2)]
                   ? 2
                   : lk::format_bits(rig.cache->formats[entry.key_format]);
    }
    lk::LadderSearch &search(uint32_t layer) { return rig.cache->formats.layers[layer].search; }
    CacheRig rig;
    lk::Sequence *sequence;
};

void a_lower_rung_is_for_new_pages_first(void **) {
    Laddered made;
    lk_cache *cache = made.rig.cache;
    assert_int_equal(lk::rung_bits(cache, 0), 16);
    lk::set_rung(cache, 0, 2);
    assert_int_equal(lk::rung_bits(cache, 0), 4);
    assert_int_equal(lk::rung_bits(cache, 1), 16);
    const lk::EntryInfo &entry = cache->formats.entries[0];
    for (const lk::PageInfo *page : {&entry.key, &entry.value}) {
        assert_int_equal(page->packed_format, page->rung_format[2]);
        assert_int_equal(page->slots.packed_payload, 32 * 32 * 4 / 8);
        assert_int_equal(page->slots.packed_metadata, page->slots.recent_metadata);
    }
    assert_true(made.search(0).is_unsettled);
    assert_false(made.search(1).is_unsettled);
    assert_int_equal(made.bits(1, 0), 16);
    lk::set_rung(cache, 0, 0);
    assert_int_equal(cache->formats.entries[0].key.slots.packed_payload, 0);
}

// A step at a time and a block at a time, from the oldest on; sinks and open blocks stay.
void a_layer_settles_step_by_step(void **) {
    Laddered made;
    lk_cache *cache = made.rig.cache;
    lk::set_rung(cache, 0, 2);
    uint32_t n_done = 0;
    assert_int_equal(lk::settle_layer(cache, 0, 1, &n_done), LK_OK);
    assert_int_equal(n_done, 2);
    // Pages at 16 bits are packed at the rung at once.
    assert_int_equal(made.bits(1, 0), 4);
    assert_int_equal(made.bits(2, 0), 16);
    assert_int_equal(made.search(0).next_block, 2);
    assert_true(made.search(0).is_unsettled);
    assert_int_equal(lk::settle_layer(cache, 0, 100, &n_done), LK_OK);
    assert_int_equal(n_done, 6);
    assert_int_equal(made.bits(3, 0), 4);
    assert_int_equal(made.bits(0, 0), 16);
    assert_int_equal(made.bits(4, 0), 16);
    assert_int_equal(made.bits(1, 1), 16);
    assert_false(made.search(0).is_unsettled);
}

void the_widest_layer_goes_first(void **) {
    Laddered made;
    lk_cache *cache = made.rig.cache;
    const uint32_t rungs[][2] = {{8, 16}, {8, 8}, {4, 8}, {4, 4}, {2, 4}, {2, 2}};
    for (const uint32_t *bits : rungs) {
        uint32_t n_done = 0;
        assert_int_equal(lk::shrink_pages(cache, 1, &n_done), LK_OK);
        assert_true(n_done >= 1);
        for (bool is_on_its_way = true; is_on_its_way;) {
            is_on_its_way = made.search(0).is_unsettled || made.search(1).is_unsettled;
            for (uint32_t layer = 0; layer < 2; ++layer)
                if (made.search(layer).is_unsettled)
                    assert_int_equal(lk::settle_layer(cache, layer, 100, &n_done), LK_OK);
        }
        for (uint32_t layer = 0; layer < 2; ++layer) {
            assert_int_equal(lk::rung_bits(cache, layer), bits[layer]);
            assert_int_equal(made.bits(1, layer), bits[layer]);
        }
    }
    uint32_t n_done = 9;
    assert_int_equal(lk::shrink_pages(cache, 1, &n_done), LK_OK);
    assert_int_equal(n_done, 0);
}

void the_plan_orders_equal_layers(void **) {
    Laddered made([](lk_plan *plan) {
        give_ladders(plan);
        assert_int_equal(lk_plan_set_shrink_order(plan, 0, 1), LK_OK);
    });
    uint32_t n_done = 0;
    assert_int_equal(lk::shrink_pages(made.rig.cache, 1, &n_done), LK_OK);
    assert_int_equal(lk::rung_bits(made.rig.cache, 0), 16);
    assert_int_equal(lk::rung_bits(made.rig.cache, 1), 8);
}

// Pages that were found and not shrunk are found again.
void a_failure_begins_the_search_anew(void **) {
    Laddered made;
    lk_cache *cache = made.rig.cache;
    lk::set_rung(cache, 0, 1);
    uint32_t n_done = 0;
    assert_int_equal(lk::settle_layer(cache, 0, 1, &n_done), LK_OK);
    made.rig.device().packs = kDeviceFails;
    assert_int_equal(lk::settle_layer(cache, 0, 100, &n_done), LK_E_DEVICE);
    assert_int_equal(made.search(0).next_block, 0);
    assert_true(made.search(0).is_unsettled);
    made.rig.device().packs = {};
    assert_int_equal(lk::settle_layer(cache, 0, 100, &n_done), LK_OK);
    assert_int_equal(n_done, 6);
}

void layers_without_a_ladder_are_settled(void **) {
    Laddered made([](lk_plan *plan) {
        const uint8_t rungs[] = {16, 2};
        assert_int_equal(lk_plan_set_ladder(plan, LK_ALL, nullptr, 0, 0), LK_OK);
        assert_int_equal(lk_plan_set_ladder(plan, 1, rungs, 2, 16), LK_OK);
    });
    lk::unsettle_layers(made.rig.cache);
    assert_false(made.search(0).is_unsettled);
    assert_true(made.search(1).is_unsettled);
}

// Formats whose codes lie alike share a run.
void steps_are_alike_by_what_is_done(void **) {
    Laddered made;
    const lk::Formats &formats = made.rig.cache->formats;
    const lk::EntryInfo &entry = formats.entries[0];
    const lk::ShrinkStep &key = formats.shrink_steps[entry.key.rung_format[1]];
    const lk::ShrinkStep &value = formats.shrink_steps[entry.value.rung_format[1]];
    assert_int_equal(key.bits, 8);
    assert_int_equal(key.n_strips, 2);
    assert_int_equal(key.tail_bytes, 0);
    assert_int_equal(key.to, entry.key.rung_format[2]);
    assert_int_equal(key.alike, value.alike);
    assert_int_not_equal(key.alike, formats.shrink_steps[entry.key.rung_format[2]].alike);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_lower_rung_is_for_new_pages_first),
        cmocka_unit_test(a_layer_settles_step_by_step),
        cmocka_unit_test(the_widest_layer_goes_first),
        cmocka_unit_test(the_plan_orders_equal_layers),
        cmocka_unit_test(a_failure_begins_the_search_anew),
        cmocka_unit_test(layers_without_a_ladder_are_settled),
        cmocka_unit_test(steps_are_alike_by_what_is_done),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
