// The table of page formats, and what layers and entries refer to in it.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/pages/formats.h"

#include "suite.h"

#include <functional>
#include <vector>

namespace {

constexpr uint32_t kLayers = 2;
constexpr uint32_t kHeads = 2;
constexpr uint32_t kHeadDim = 64;
constexpr uint8_t kRungs[] = {16, 8, 4, 2};

struct Built {
    explicit Built(const char *preset, const std::function<void(lk_plan *)> &change = {})
        : geometry(lk::default_allocator()), formats(lk::default_allocator()) {
        for (uint32_t l = 0; l < kLayers; ++l) {
            lk_layer layer;
            assert_int_equal(lk_layer_init(&layer, sizeof layer), LK_OK);
            layer.n_query_heads = layer.n_kv_heads = kHeads;
            layer.head_dim = kHeadDim;
            assert_true(geometry.push(layer));
        }
        lk_geometry from;
        assert_int_equal(lk_geometry_init(&from, sizeof from), LK_OK);
        from.n_layers = kLayers;
        from.layers = geometry.data();
        assert_int_equal(lk_plan_preset(preset, &from, &plan), LK_OK);
        if (change)
            change(plan);
        assert_int_equal(
            lk::build_formats(plan->model, geometry, lk::default_allocator(), &formats), LK_OK);
    }
    ~Built() { lk_plan_destroy(&plan); }

    lk::Array<lk_layer> geometry;
    lk_plan *plan = nullptr;
    lk::Formats formats;
};

void equal_entries_share_formats(void **) {
    Built built("kivi2");
    const lk::Formats &formats = built.formats;
    assert_int_equal(formats.entries.size(), kLayers * kHeads);
    assert_int_equal(formats.layers[1].first_entry, kHeads);
    for (const lk::EntryInfo &entry : formats.entries) {
        assert_int_equal(entry.key.packed_format, formats.entries[0].key.packed_format);
        assert_int_equal(entry.value.packed_format, formats.entries[0].value.packed_format);
        assert_int_equal(lk::n_packing(entry), 2);
        assert_false(entry.ranks_by_queries);
    }
    assert_int_equal(formats.entries[3].layer, 1);
    assert_int_equal(formats.entries[3].kv_head, 1);
    for (size_t a = 0; a < formats.table.size(); ++a)
        for (size_t b = a + 1; b < formats.table.size(); ++b)
            assert_false(lk::same_layout(formats[a].layout, formats[b].layout));
}

void raw_pages_do_not_pack(void **) {
    Built built("fp16");
    const lk::EntryInfo &entry = built.formats.entries[0];
    assert_int_equal(lk::n_packing(entry), 0);
    assert_int_equal(entry.key.packed_format, entry.key.recent_format);
    assert_true(built.formats.is_raw(entry.key.recent_format));
    assert_int_not_equal(entry.key.recent_format, entry.value.recent_format);
}

// A sink block that is shorter than a page has formats of its own.
void short_sinks_have_their_formats(void **) {
    Built built("kivi2", [](lk_plan *plan) {
        assert_int_equal(lk_plan_set_pages(plan, 64), LK_OK);
        assert_int_equal(lk_plan_set_recent(plan, 64 + 16, 64), LK_OK);
    });
    const lk::LayerInfo &layer = built.formats.layers[0];
    assert_int_equal(built.formats[layer.last_sink_key].layout.page_tokens, 16);
    assert_int_equal(built.formats[layer.last_sink_value].layout.page_tokens, 16);
    assert_true(built.formats.is_raw(layer.last_sink_key));
}

// Down a ladder each step gives the widest plane half its width, and the last rung is final.
void ladders_step_down_to_the_last_rung(void **) {
    Built built("pm-kvq", [](lk_plan *plan) {
        for (uint32_t l = 0; l < kLayers; ++l)
            assert_int_equal(lk_plan_set_ladder(plan, l, kRungs, 4, l ? 8 : 16), LK_OK);
    });
    const lk::Formats &formats = built.formats;
    assert_int_equal(formats.layers[0].rung, 0);
    assert_int_equal(formats.layers[1].rung, 1);
    const lk::PageInfo &key = formats.entries[0].key;
    assert_int_equal(key.rung_format[0], key.recent_format);
    std::vector<uint32_t> widths;
    for (uint16_t f = key.rung_format[1];; f = formats.shrink_steps[f].to) {
        widths.push_back(lk::format_bits(formats[f]));
        if (!formats.shrink_steps[f].to)
            break;
        assert_int_equal(formats.shrink_steps[f].page_tokens, formats[f].layout.page_tokens);
        assert_false(formats.shrink_steps[f].moves());
    }
    const std::vector<uint32_t> wanted = {8, 4, 0};
    assert_true(widths == wanted);
    assert_true(formats.shrink_steps[key.recent_format].moves());
    assert_int_equal(formats.layer_formats[0].n_formats, formats.layer_formats[1].n_formats);
    assert_true(formats.layer_formats[0].shrinks);
    for (uint32_t i = 0; i < formats.layer_formats[0].n_formats; ++i)
        assert_false(formats.is_raw(formats.layer_formats[0].formats[i]));
}

// With values of 4 bits, pages without a class and those of the highest class have keys at 16 bits.
void half_raw_pages_are_known(void **) {
    const auto set_values = [](lk_plan *plan) {
        lk_value_rule rule;
        assert_int_equal(lk_value_rule_init(&rule, sizeof rule), LK_OK);
        rule.bits = 4;
        assert_int_equal(lk_plan_set_value(plan, 1, LK_ALL, &rule), LK_OK);
    };
    for (const char *preset : {"fp16", "cocktail"}) {
        Built built(preset, set_values);
        assert_false(built.formats.layer_formats[0].has_half_raw);
        assert_true(built.formats.layer_formats[1].has_half_raw);
    }
    Built built("kivi2", set_values);
    assert_false(built.formats.layer_formats[1].has_half_raw);
}

void ranked_channels_follow_each_other(void **) {
    Built built("kitty", [](lk_plan *plan) {
        lk_key_rule rule;
        assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
        rule.bits = 2;
        rule.boost_bits = 4;
        rule.boost_channels = 16;
        rule.boost_ranking = LK_RANKING_QUERY_RANGE;
        assert_int_equal(lk_plan_set_key(plan, 1, LK_ALL, &rule), LK_OK);
    });
    const lk::Formats &formats = built.formats;
    assert_false(formats.layers[0].ranks_by_queries);
    assert_true(formats.layers[1].ranks_by_queries);
    assert_int_equal(formats.n_ranked_channels, kHeads * kHeadDim);
    assert_int_equal(formats.layers[1].stat_offset, 0);
    assert_int_equal(formats.layers[1].n_ranked_channels, kHeads * kHeadDim);
    assert_int_equal(formats.entries[3].stat_offset, kHeadDim);
    assert_true(formats[formats.entries[3].key.packed_format].ranking == lk::Ranking::kQueryRange);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(equal_entries_share_formats),
        cmocka_unit_test(raw_pages_do_not_pack),
        cmocka_unit_test(short_sinks_have_their_formats),
        cmocka_unit_test(ladders_step_down_to_the_last_rung),
        cmocka_unit_test(half_raw_pages_are_known),
        cmocka_unit_test(ranked_channels_follow_each_other),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
