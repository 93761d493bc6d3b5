// What rules resolve to: planes, slots and the functions that core shares with the size query.
//
// SPDX-License-Identifier: Apache-2.0
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "plan/footprint.h"
#include "plan/plan.h"

// Last: cmocka's fail is a macro.
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace lk;

struct Fixture {
    lk_layer layer = {};
    lk_plan *plan = nullptr;

    explicit Fixture(const char *preset, uint32_t head_dim = 64) {
        layer.size = sizeof layer;
        layer.n_query_heads = layer.n_kv_heads = 1;
        layer.head_dim = head_dim;
        lk_geometry geometry = {};
        geometry.size = sizeof geometry;
        geometry.n_layers = 1;
        geometry.layers = &layer;
        assert_int_equal(lk_plan_preset(preset, &geometry, &plan), LK_OK);
    }
    ~Fixture() { lk_plan_destroy(&plan); }
    Fixture(const Fixture &) = delete;
    Fixture &operator=(const Fixture &) = delete;

    void classes(const uint8_t *channel_bits) {
        lk_key_rule rule;
        assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
        rule.channel_bits = channel_bits;
        assert_int_equal(lk_plan_set_key(plan, 0, 0, &rule), LK_OK);
        assert_int_equal(lk_plan_validate(plan, nullptr), LK_OK);
    }
    KeyFormat key(uint32_t rung = kNoRung) const {
        KeyFormat out;
        resolve_key_at(plan->model, 0, 0, rung, &out);
        assert_null(layout_error(out.layout));
        return out;
    }
};

void expect_strips(const PageLayout &layout, uint32_t s16, uint32_t s8, uint32_t s4, uint32_t s3,
                   uint32_t s2, uint32_t s1) {
    const uint32_t expected[] = {s16, s8, s4, s3, s2, s1};
    for (uint32_t p = 0; p < kPlaneCount; ++p)
        assert_int_equal(layout.strips[p], expected[p]);
}

void presets_resolve_to_planes(void **) {
    const Fixture fp16("fp16");
    assert_true(fp16.key().raw);
    expect_strips(fp16.key().layout, 4, 0, 0, 0, 0, 0);
    const Fixture kitty("kitty-pro", 128);
    const KeyFormat key = kitty.key();
    expect_strips(key.layout, 0, 0, 2, 0, 6, 0);
    assert_int_equal(key.boosted_channels, 32);
    assert_int_equal(key.boost_ranking, LK_RANKING_KEY);
    assert_int_equal(key.layout.permutes, 1);
    assert_false(key.has_permutation);
    assert_int_equal(key.layout.group, 128);
    expect_strips(kitty.key(16).layout, 8, 0, 0, 0, 0, 0);
    assert_true(kitty.key(16).raw);
    const KeyFormat low = kitty.key(2);
    expect_strips(low.layout, 0, 0, 0, 0, 8, 0);
    assert_int_equal(low.layout.permutes, 0);
    assert_int_equal(low.boosted_channels, 0);
    ValueFormat value;
    resolve_value(kitty.plan->model, 0, 0, &value);
    expect_strips(value.layout, 0, 0, 0, 0, 8, 0);
    assert_int_equal(value.layout.group, 128);
    const Fixture wide("wide-keys-pro", 128);
    expect_strips(wide.key().layout, 0, 0, 3, 0, 5, 0);
    assert_int_equal(wide.key().boosted_channels, 48);
    assert_true(wide.key().layout.metadata == Metadata::kF8);
    resolve_value(wide.plan->model, 0, 0, &value);
    expect_strips(value.layout, 0, 0, 0, 0, 8, 0);
    assert_int_equal(value.layout.group, 128);
}

void shared_slots_lie_before_the_ordinary(void **) {
    Fixture f("kivi2");
    uint8_t bits[64];
    std::memset(bits, 2, sizeof bits);
    bits[60] = bits[3] = 1;
    bits[50] = bits[7] = 3;
    for (uint32_t c = 16; c < 32; ++c)
        bits[c] = 8;
    f.classes(bits);
    const KeyFormat key = f.key();
    expect_strips(key.layout, 0, 1, 0, 0, 3, 0);
    assert_int_equal(key.layout.n_shared, 2);
    assert_true(key.has_permutation);
    for (uint32_t s = 0; s < 16; ++s)
        assert_int_equal(key.permutation[s], 16 + s);
    const uint8_t head[] = {3, 60, 7, 50, 0, 1, 2, 4, 5, 6, 8};
    for (uint32_t s = 0; s < sizeof head; ++s)
        assert_int_equal(key.permutation[16 + s], head[s]);
    assert_int_equal(key.permutation[63], 63);
    // A uniform 2-bit page but for its 8-bit strip.
    assert_int_equal(payload_bytes(key.layout), (16 * 8 + 48 * 2) * 128 / 8);
    expect_strips(f.key(4).layout, 0, 0, 1, 0, 3, 0);
    const KeyFormat two = f.key(2);
    expect_strips(two.layout, 0, 0, 0, 0, 4, 0);
    assert_int_equal(two.layout.n_shared, 2);
    assert_int_equal(two.permutation[0], 3);
    assert_true(f.key(16).raw);
    assert_false(f.key(16).has_permutation);
}

void unequal_counts_are_planes_of_their_own(void **) {
    Fixture f("kivi2");
    uint8_t bits[64];
    for (uint32_t c = 0; c < 64; ++c)
        bits[c] = static_cast<uint8_t>(c < 16 ? 1 : c < 48 ? 3 : 4);
    f.classes(bits);
    const KeyFormat key = f.key();
    expect_strips(key.layout, 0, 0, 1, 2, 0, 1);
    assert_int_equal(key.layout.n_shared, 0);
    assert_int_equal(key.permutation[0], 48);
    assert_int_equal(key.permutation[16], 16);
    assert_int_equal(key.permutation[48], 0);
    std::memset(bits, 3, sizeof bits);
    f.classes(bits);
    expect_strips(f.key().layout, 0, 0, 0, 4, 0, 0);
    assert_false(f.key().has_permutation);
    std::memset(bits, 16, sizeof bits);
    f.classes(bits);
    assert_true(f.key().raw);
}

void any_permutation_is_a_bijection(void **) {
    Fixture f("kivi2", 256);
    const uint8_t widths[] = {1, 2, 3, 4, 8, 16};
    uint32_t seed = 1;
    for (uint32_t round = 0; round < 200; ++round) {
        uint8_t bits[256];
        for (uint32_t s = 0; s < 16; ++s)
            for (uint32_t c = 0; c < 16; ++c)
                bits[(c * 16 + s * 7 + round) % 256] = widths[(s * (round + 1) + round / 7) % 6];
        for (uint32_t c = 255; c > 0; --c) {
            seed = seed * 1664525u + 1013904223u;
            const uint32_t d = (seed >> 8) % (c + 1);
            const uint8_t kept = bits[c];
            bits[c] = bits[d];
            bits[d] = kept;
        }
        lk_key_rule rule;
        assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
        rule.channel_bits = bits;
        assert_int_equal(lk_plan_set_key(f.plan, 0, 0, &rule), LK_OK);
        if (lk_plan_validate(f.plan, nullptr) != LK_OK)
            continue;
        const KeyFormat key = f.key();
        bool seen[256] = {};
        for (uint32_t s = 0; s < 256; ++s) {
            assert_false(seen[key.permutation[s]]);
            seen[key.permutation[s]] = true;
        }
    }
}

void rows_follow_each_other(void **) {
    Fixture f("kitty");
    for (const uint32_t sinks : {0u, 16u, 32u, 128u, 144u, 1024u})
        for (const uint32_t page : {32u, 64u, 128u}) {
            assert_int_equal(lk_plan_set_pages(f.plan, page), LK_OK);
            assert_int_equal(lk_plan_set_recent(f.plan, sinks, 100), LK_OK);
            const Plan &plan = f.plan->model;
            for (uint64_t token = 0; token < 3000; ++token) {
                const uint64_t row = block_of_token(plan, token);
                assert_true(block_first_token(plan, row) <= token);
                assert_true(token < block_first_token(plan, row) + block_capacity(plan, row));
                assert_true(is_sink_block(plan, row) == (token < sinks));
                assert_int_equal(block_count(plan, token + 1), row + 1);
                const bool due =
                    token >= sinks && block_first_token(plan, row) + page + 100 <= 2000;
                assert_true(is_due(plan, row, 2000) == due);
            }
            assert_int_equal(block_count(plan, 0), 0);
        }
}

void direct_packing_needs_more_than_a_draft(void **) {
    const Fixture f("kivi2");  // no sinks, 128 recent tokens
    const Plan &plan = f.plan->model;
    assert_true(packs_on_append(plan, 0, 0, 256));
    assert_false(packs_on_append(plan, 0, 0, 255));
    assert_false(packs_on_append(plan, 0, 1, 512));
    assert_true(packs_on_append(plan, 1, 1, 512));
    assert_false(packs_on_append(plan, 0, 256, 64));
    assert_false(packs_on_append(plan, 2, 256, LK_DRAFT_TOKENS));
}

void slots_name_what_is_allocated(void **) {
    Fixture f("kitty", 128);
    PageSlots key = key_slots(f.plan->model, 0, 0);
    assert_int_equal(key.recent_payload, 32768);
    assert_int_equal(key.recent_metadata, 0);
    assert_int_equal(key.packed_payload, 4608);
    assert_int_equal(key.packed_metadata, 640);
    const uint8_t rungs[] = {16, 4, 2};
    assert_int_equal(lk_plan_set_ladder(f.plan, 0, rungs, 3, 2), LK_OK);
    key = key_slots(f.plan->model, 0, 0);
    assert_int_equal(key.packed_payload, 4096);
    assert_int_equal(key.packed_metadata, 640);
    assert_int_equal(key.recent_metadata, 640);
    assert_int_equal(lk_plan_set_ladder(f.plan, 0, rungs, 3, 16), LK_OK);
    key = key_slots(f.plan->model, 0, 0);
    assert_int_equal(key.packed_payload, 0);
    assert_int_equal(key.packed_metadata, 0);
    assert_int_equal(key.recent_metadata, 640);
}

void expect_caps(const Fixture &f, std::initializer_list<uint32_t> expected) {
    const WidthCaps rows = width_caps(f.plan->model, 0);
    assert_int_equal(rows.n, expected.size());
    uint32_t i = 0;
    for (const uint32_t cap : expected) {
        assert_int_equal(rows.caps[i++], cap);
        assert_true(rows.has(cap));
    }
    assert_false(rows.has(1));
}

void rows_take_the_lower_one_of_rung_and_class(void **) {
    const Fixture f("cocktail", 128);
    expect_caps(f, {kNoRung, 16, 4, 2});
    const uint8_t rungs[] = {16, 8};
    assert_int_equal(lk_plan_set_ladder(f.plan, 0, rungs, 2, 8), LK_OK);
    expect_caps(f, {16, 8, 4, 2});
    assert_int_equal(lk_plan_set_ladder(f.plan, 0, rungs + 1, 1, 8), LK_OK);
    expect_caps(f, {8, 4, 2});
    assert_int_equal(lk_plan_set_ladder(f.plan, 0, nullptr, 0, 0), LK_OK);
    lk_chunk_rule none = {};
    none.size = sizeof none;
    assert_int_equal(lk_plan_set_chunks(f.plan, &none), LK_OK);
    expect_caps(f, {kNoRung});
    assert_int_equal(width_cap(kNoRung, kNoRung), kNoRung);
    assert_int_equal(width_cap(8, kNoRung), 8);
    assert_int_equal(width_cap(kNoRung, 4), 4);
    assert_int_equal(width_cap(2, 4), 2);
    assert_int_equal(width_cap(16, 4), 4);
}

void classes_of_chunks_have_slots_of_their_own(void **) {
    const Fixture f("cocktail", 128);
    // Keys: a range and a minimum for each of 4 groups of 32 tokens and channel.
    const uint64_t key_metadata = 4 * 128 * 4, value_metadata = 128 * 4;
    for (const uint32_t cap : {2u, 4u}) {
        const PageSlots key = key_slots_at(f.plan->model, 0, 0, cap);
        assert_int_equal(key.recent_payload, 32768);
        assert_int_equal(key.recent_metadata, 0);
        assert_int_equal(key.packed_payload, 128 * 128 / 8 * cap);
        assert_int_equal(key.packed_metadata, key_metadata);
        const PageSlots value = value_slots_at(f.plan->model, 0, 0, cap);
        assert_int_equal(value.packed_payload, 128 * 128 / 8 * cap);
        assert_int_equal(value.packed_metadata, value_metadata);
    }
    for (const uint32_t cap : {kNoRung, 16u})
        assert_int_equal(key_slots_at(f.plan->model, 0, 0, cap).packed_payload, 0);
    // A page that may shrink in place has its metadata slot from the start.
    const uint8_t rungs[] = {16, 8};
    assert_int_equal(lk_plan_set_ladder(f.plan, 0, rungs, 2, 16), LK_OK);
    assert_int_equal(key_slots_at(f.plan->model, 0, 0, 16).recent_metadata, key_metadata);
    assert_int_equal(key_slots_at(f.plan->model, 0, 0, 2).packed_metadata, key_metadata);
}

// A ladder's first rung may be below a class: slots then lie in the order of the class, and stay
// when the page shrinks to the rung.
void slots_are_ordered_by_the_widest_cap(void **) {
    Fixture f("cocktail");
    uint8_t bits[64];
    for (uint32_t c = 0; c < 64; ++c)
        bits[c] = c < 32 ? 4 : 8;
    f.classes(bits);
    lk_chunk_rule rule;
    assert_int_equal(lk_chunk_rule_init(&rule, sizeof rule), LK_OK);
    rule.middle_bits = 8;
    assert_int_equal(lk_plan_set_chunks(f.plan, &rule), LK_OK);
    const uint8_t rungs[] = {16, 4};
    assert_int_equal(lk_plan_set_ladder(f.plan, 0, rungs, 2, 16), LK_OK);
    const KeyFormat middle = f.key(8);
    expect_strips(middle.layout, 0, 2, 2, 0, 0, 0);
    const KeyFormat shrunk = f.key(4);
    expect_strips(shrunk.layout, 0, 0, 4, 0, 0, 0);
    const KeyFormat low = f.key(2);
    expect_strips(low.layout, 0, 0, 0, 0, 4, 0);
    for (uint32_t s = 0; s < 64; ++s) {
        assert_int_equal(middle.permutation[s], (s + 32) % 64);
        assert_int_equal(shrunk.permutation[s], middle.permutation[s]);
        assert_int_equal(low.permutation[s], middle.permutation[s]);
    }
}

void the_geometry_hash_is_pinned(void **) {
    const Fixture f("kivi2", 128);
    const Fixture g("kitty", 128);
    const Fixture h("kivi2", 64);
    assert_true(geometry_hash(f.plan->model) == geometry_hash(g.plan->model));
    assert_true(geometry_hash(f.plan->model) != geometry_hash(h.plan->model));
    assert_true(geometry_hash(f.plan->model) == 0x61ecaae77ce6de90ull);
}

void copies_fail_whole(void **) {
    const Fixture f("kitty");
    Allocator nothing = default_allocator();
    nothing.alloc = [](void *, size_t, size_t) -> void * { return nullptr; };
    lk_plan copy(nothing);
    assert_false(copy_plan(f.plan->model, &copy.model));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(presets_resolve_to_planes),
        cmocka_unit_test(shared_slots_lie_before_the_ordinary),
        cmocka_unit_test(unequal_counts_are_planes_of_their_own),
        cmocka_unit_test(any_permutation_is_a_bijection),
        cmocka_unit_test(rows_follow_each_other),
        cmocka_unit_test(direct_packing_needs_more_than_a_draft),
        cmocka_unit_test(slots_name_what_is_allocated),
        cmocka_unit_test(rows_take_the_lower_one_of_rung_and_class),
        cmocka_unit_test(classes_of_chunks_have_slots_of_their_own),
        cmocka_unit_test(slots_are_ordered_by_the_widest_cap),
        cmocka_unit_test(the_geometry_hash_is_pinned),
        cmocka_unit_test(copies_fail_whole),
    };
    return cmocka_run_group_tests_name("plan resolve", tests, nullptr, nullptr);
}
