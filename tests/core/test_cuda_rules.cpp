// What CUDA's kernels are chosen by: the packed pages of layers that the kernels of rows run, and
// that decode takes layers with rotated keys.
//
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/decode_rules.h"
#include "core/cache.h"
#include "fake_device.h"

#include <lowkey/cache.h>

#include <algorithm>
#include <vector>

#include "suite.h"

namespace {

constexpr uint32_t kMultiprocessors = 132;
constexpr uint32_t kSharedBytes = 232448;

enum Layers : uint32_t { kOneWidth, kBoosted, kOrdered, kSixteen, kOtherDim, kRotated, kLayers };

#define assert_ok(call) assert_int_equal(call, LK_OK)

// A cache of such layers on a device that does no work, and what CUDA finds in its layout.
class Rules {
  public:
    Rules() : context_(lk::default_allocator()), rules_(lk::default_allocator()) {
        std::vector<lk_layer> layers(kLayers);
        for (lk_layer &layer : layers) {
            assert_ok(lk_layer_init(&layer, sizeof layer));
            layer.n_query_heads = 16;
            layer.n_kv_heads = 1;
            layer.head_dim = 576;
            layer.value_dim = 512;
            layer.flags = LK_LAYER_LATENT;
        }
        layers[kOtherDim].head_dim = 192;
        layers[kOtherDim].value_dim = 128;
        layers[kRotated].head_dim = layers[kRotated].value_dim = 128;
        layers[kOtherDim].flags = layers[kRotated].flags = 0;
        lk_geometry geometry;
        assert_ok(lk_geometry_init(&geometry, sizeof geometry));
        geometry.n_layers = kLayers;
        geometry.layers = layers.data();
        assert_ok(lk_plan_preset("kivi4", &geometry, &plan_));
        set_keys(kBoosted, 2, 32);
        set_classes(kOrdered);
        set_keys(kSixteen, 16, 0);
        assert_ok(lk_plan_set_key_rotation(plan_, kRotated, LK_ROTATION_HADAMARD));
        context_.backend = &backend_;
        lk_cache_desc desc;
        assert_ok(lk_cache_desc_init(&desc, sizeof desc));
        desc.max_sequences = 1;
        desc.budget_bytes = uint64_t{1} << 30;
        assert_ok(lk_cache_create(&context_, &geometry, plan_, &desc, &cache_));
        assert_true(rules_.open(backend_.layout, kMultiprocessors, kSharedBytes));
    }
    ~Rules() {
        lk_cache_destroy(&cache_);
        lk_plan_destroy(&plan_);
    }
    Rules(const Rules &) = delete;
    Rules &operator=(const Rules &) = delete;

    lk::cuda::RowsPages pages(uint32_t layer) const { return rules_.rows_pages(layer); }
    bool takes(uint32_t layer) const { return rules_.takes(layer, 1); }
    uint64_t key_bytes(uint32_t layer) const { return bytes(entry(layer).packed_key); }
    uint64_t value_bytes(uint32_t layer) const { return bytes(entry(layer).packed_value); }

  private:
    void set_keys(uint32_t layer, uint32_t bits, uint32_t boosted) {
        lk_key_rule rule;
        assert_ok(lk_key_rule_init(&rule, sizeof rule));
        rule.bits = bits;
        rule.boost_channels = boosted;
        if (boosted) {
            rule.boost_bits = 4;
            rule.boost_ranking = LK_RANKING_KEY;
        }
        assert_ok(lk_plan_set_key(plan_, layer, LK_ALL, &rule));
    }
    void set_classes(uint32_t layer) {
        std::vector<uint8_t> classes(576, 2);
        std::fill(classes.end() - 64, classes.end(), uint8_t{4});  // stored before the others
        lk_key_rule rule;
        assert_ok(lk_key_rule_init(&rule, sizeof rule));
        rule.bits = 2;
        rule.channel_bits = classes.data();
        assert_ok(lk_plan_set_key(plan_, layer, LK_ALL, &rule));
    }
    const lk::EntryFormats &entry(uint32_t layer) const {
        return backend_.layout.entry_formats[backend_.layout.first_entries[layer]];
    }
    uint64_t bytes(uint16_t format) const {
        const lk::PageLayout &layout = backend_.layout.formats[format].layout;
        return lk::payload_bytes(layout) + lk::metadata_bytes(layout);
    }

    FakeDeviceBackend backend_;
    lk_context context_;
    lk::cuda::DecodeRules rules_;
    lk_plan *plan_ = nullptr;
    lk_cache *cache_ = nullptr;
};

void latent_pages_of_one_width_are_coded(void **) {
    const Rules rules;
    assert_int_equal(rules.pages(kOneWidth).coded_bytes, rules.key_bytes(kOneWidth));
    assert_int_equal(rules.pages(kOneWidth).packed_bytes, rules.key_bytes(kOneWidth));
}

void other_packed_pages_become_rows(void **) {
    const Rules rules;
    assert_int_equal(rules.pages(kBoosted).coded_bytes, 0);
    assert_int_equal(rules.pages(kBoosted).packed_bytes, rules.key_bytes(kBoosted));
    assert_int_equal(rules.pages(kBoosted).page_tokens, LK_MAX_PAGE_TOKENS);
    assert_int_equal(rules.pages(kOtherDim).coded_bytes, 0);
    assert_int_equal(rules.pages(kOtherDim).packed_bytes,
                     rules.key_bytes(kOtherDim) + rules.value_bytes(kOtherDim));
}

void copies_have_place_for_a_fixed_order(void **) {
    const Rules rules;
    assert_int_equal(rules.pages(kOrdered).coded_bytes, 0);
    assert_int_equal(rules.pages(kOrdered).packed_bytes,
                     rules.key_bytes(kOrdered) + lk::permutation_bytes(576));
}

void pages_of_16_bits_are_not_packed(void **) {
    const Rules rules;
    assert_int_equal(rules.pages(kSixteen).coded_bytes, 0);
    assert_int_equal(rules.pages(kSixteen).packed_bytes, 0);
}

void decode_takes_rotated_keys(void **) {
    const Rules rules;
    assert_true(rules.takes(kRotated));
    assert_false(rules.takes(kOneWidth));
    assert_false(rules.takes(kOtherDim));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(latent_pages_of_one_width_are_coded),
        cmocka_unit_test(other_packed_pages_become_rows),
        cmocka_unit_test(copies_have_place_for_a_fixed_order),
        cmocka_unit_test(pages_of_16_bits_are_not_packed),
        cmocka_unit_test(decode_takes_rotated_keys),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
