// Which forms the pages of a plan have, how many kernels read them, and how long steps are cut,
// without a device.
//
// SPDX-License-Identifier: Apache-2.0
#include "auto_layers.h"
#include "backend/vulkan/decode_rules.h"
#include "shaders/prefill/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <algorithm>
#include <utility>
#include <vector>

namespace {

using auto_layers::Head;
using auto_layers::kAutoLayers;
using auto_layers::Layer;
using lk::Side;
using lk::vulkan::DecodeRules;
using lk::vulkan::PageForm;

constexpr uint32_t kHeads = 8;
constexpr uint32_t kHeadDim = 128;
constexpr uint32_t kLayers = 32;
constexpr uint32_t kMostPipelines = 12;

class Plan {
  public:
    // value_dim: 0 = head_dim
    Plan(const std::vector<Layer> &layers, lk::Metadata metadata, uint32_t head_dim = kHeadDim,
         uint32_t value_dim = 0)
        : head_dim_(head_dim), value_dim_(value_dim ? value_dim : head_dim) {
        for (uint32_t i = 0; i < kHeadDim; ++i)
            permutation_[i] = static_cast<uint8_t>(kHeadDim - 1 - i);
        formats_.push_back({lk::raw_layout(Side::kKey, head_dim, 128), nullptr, {}, 0});
        formats_.push_back({lk::raw_layout(Side::kValue, value_dim_, 128), nullptr, {}, 0});
        for (const Layer &layer : layers) {
            first_entries_.push_back(static_cast<uint32_t>(entries_.size()));
            for (const Head &head : layer)
                add_head(head, metadata);
            lk::LayerView view{};
            view.n_query_heads = 4 * kHeads;
            view.n_kv_heads = kHeads;
            view.head_dim = head_dim;
            view.value_dim = value_dim_;
            views_.push_back(view);
        }
        layout_.formats = formats_.data();
        layout_.n_formats = static_cast<uint32_t>(formats_.size());
        layout_.layers = views_.data();
        layout_.first_entries = first_entries_.data();
        layout_.n_layers = static_cast<uint32_t>(views_.size());
        layout_.n_entries = static_cast<uint32_t>(entries_.size());
        layout_.entry_formats = entries_.data();
        layout_.page_tokens = 128;
    }
    const lk::CacheLayout &layout() const { return layout_; }

  private:
    lk::PageLayout packed(Side side, lk::Metadata metadata, uint32_t group) const {
        lk::PageLayout made =
            lk::raw_layout(side, side == Side::kKey ? head_dim_ : value_dim_, 128);
        made.strips[lk::kPlane16] = 0;
        made.axis = side == Side::kKey ? lk::Axis::kChannel : lk::Axis::kToken;
        made.metadata = metadata;
        made.group = static_cast<uint16_t>(group);
        return made;
    }
    void add_head(const Head &head, lk::Metadata metadata) {
        lk::PageLayout key = packed(Side::kKey, metadata, head.key_group);
        key.strips[lk::kPlane8] = static_cast<uint16_t>(head.n8 / 16);
        key.strips[lk::kPlane4] = static_cast<uint16_t>(head.n4 / 16);
        key.strips[lk::kPlane2] = static_cast<uint16_t>((head_dim_ - head.n8 - head.n4) / 16);
        key.n_shared = static_cast<uint16_t>(head.n_shared);
        lk::PageLayout value = packed(Side::kValue, metadata, head.value_group);
        value.strips[lk::plane_of(head.value_bits)] = static_cast<uint16_t>(value_dim_ / 16);
        const auto at = static_cast<uint16_t>(formats_.size());
        const bool is_ordered = head.n8 + head.n4 + head.n_shared != 0;
        formats_.push_back({key, is_ordered ? permutation_ : nullptr, {}, 0});
        formats_.push_back({value, nullptr, {}, 0});
        entries_.push_back({0, at, 1, static_cast<uint16_t>(at + 1), at});
    }

    const uint32_t head_dim_;
    const uint32_t value_dim_;
    uint8_t permutation_[kHeadDim];  // of layers whose heads are as wide
    std::vector<lk::PageFormat> formats_;
    std::vector<lk::LayerView> views_;
    std::vector<uint32_t> first_entries_;
    std::vector<lk::EntryFormats> entries_;
    lk::CacheLayout layout_{};
};

lk::vulkan::Traits device_with_matrices() {
    lk::vulkan::Traits traits{};
    traits.cooperative_matrix = traits.matrix_uses = traits.float16 = traits.subgroup = true;
    traits.subgroup_size = 32;
    traits.n_cores = 132;
    traits.max_shared_bytes = 49152;
    return traits;
}

uint32_t threads_of(const DecodeRules &rules, uint32_t layer) {
    return rules.threads(layer, rules.tile_columns(layer, 1));
}

// Kernels of decode, of steps of one new token and of several, with those that merge splits.
uint32_t count_pipelines(const DecodeRules &rules, uint32_t n_layers) {
    std::vector<std::pair<PageForm, uint32_t>> distinct;
    for (uint32_t l = 0; l < n_layers; ++l)
        for (uint32_t i = 0; i < rules.n_forms(l); ++i) {
            const PageForm &form = rules.form(l, i);
            const uint32_t threads = threads_of(rules, l);
            if (std::none_of(distinct.begin(), distinct.end(), [&](const auto &known) {
                    return has_same_pipeline(known.first, form) && known.second == threads;
                }))
                distinct.push_back({form, threads});
        }
    return 2 * static_cast<uint32_t>(distinct.size()) + 2;
}

void auto_plans_need_few_pipelines(void **) {
    const lk::vulkan::Traits traits = device_with_matrices();
    std::vector<std::vector<Layer>> plans;
    for (const Layer &layer : kAutoLayers)
        plans.emplace_back(kLayers, layer);
    plans.emplace_back();
    for (uint32_t l = 0; l < kLayers; ++l)
        plans.back().push_back(kAutoLayers[l % kAutoLayers.size()]);
    for (const std::vector<Layer> &layers : plans) {
        const Plan plan(layers, lk::Metadata::kF8);
        DecodeRules rules(lk::default_allocator(), traits);
        assert_true(rules.open(plan.layout()));
        for (uint32_t l = 0; l < kLayers; ++l) {
            assert_true(rules.arithmetic(l) == lk::vulkan::DecodeArithmetic::kMatrix);
            assert_true(rules.has_pushed_forms(l));
        }
        assert_in_range(count_pipelines(rules, kLayers), 1, kMostPipelines);
    }
}

// A multiprocessor takes four workgroups of two teams where all forms have several token groups,
// and two of four teams where one form has not: layers share pipelines.
void folded_forms_have_small_workgroups(void **) {
    const lk::vulkan::Traits traits = device_with_matrices();
    const Layer folded(kHeads, {32, 0, 16, 0, 2, 128});
    const Layer single(kHeads, {128, 0, 16, 6, 2, 128});
    Layer mixed = folded;
    mixed[0] = single[0];
    const Layer plain(kHeads, {128, 0, 16, 0, 2, 128});
    struct Expected {
        std::vector<Layer> layers;
        uint32_t n_teams;
        uint32_t n_workers;
    };
    const Expected all[] = {{{folded, folded}, 2, 4},
                            {{folded, plain}, 2, 4},
                            {{single}, 4, 2},
                            {{mixed}, 4, 2},
                            {{folded, single}, 4, 2}};
    for (const Expected &expected : all) {
        const Plan plan(expected.layers, lk::Metadata::kF16);
        DecodeRules rules(lk::default_allocator(), traits);
        assert_true(rules.open(plan.layout()));
        assert_true(rules.has_pushed_forms(0));
        assert_int_equal(threads_of(rules, 0), expected.n_teams * LK_LANES);
        assert_int_equal(rules.shape(0, 1, 4).n_workers, expected.n_workers * traits.n_cores);
    }
}

// A layer of one form, without anything that has to be pushed, has its widths as constants.
void plain_layers_have_constants(void **) {
    const lk::vulkan::Traits traits = device_with_matrices();
    const Plan plan({Layer(kHeads, {128, 0, 16, 0, 2, 128})}, lk::Metadata::kF16);
    DecodeRules rules(lk::default_allocator(), traits);
    assert_true(rules.open(plan.layout()));
    assert_false(rules.has_pushed_forms(0));
    assert_int_equal(rules.n_forms(0), 1);
    assert_int_equal(rules.form(0, 0).key_end8, 0);
    assert_int_equal(rules.form(0, 0).key_end4, 1);
    const Head plain = {128, 0, 16, 0, 2, 128};
    std::vector<Head> others(5, plain);
    others[0].key_group = 64;
    others[1].value_group = 64;
    others[2].n_shared = 3;
    others[3].value_bits = 1;
    for (size_t i = 0; i < others.size(); ++i) {
        const auto metadata = i == 4 ? lk::Metadata::kF8 : lk::Metadata::kF16;
        const Plan other({Layer(kHeads, others[i])}, metadata);
        DecodeRules forms(lk::default_allocator(), traits);
        assert_true(forms.open(other.layout()));
        assert_true(forms.has_pushed_forms(0));
    }
}

// Of the presets wide-keys and wide-keys-pro: one form, which kernels of matrices read, and the
// vector kernel without them.
void wide_keys_have_one_form(void **) {
    lk::vulkan::Traits traits = device_with_matrices();
    for (const uint32_t value_bits : {1u, 2u})
        for (const bool has_matrices : {true, false}) {
            traits.cooperative_matrix = has_matrices;
            const Plan plan({Layer(kHeads, {128, 0, 48, 0, value_bits, 128})}, lk::Metadata::kF8);
            DecodeRules rules(lk::default_allocator(), traits);
            assert_true(rules.open(plan.layout()));
            assert_true(rules.takes(0, 4));
            assert_int_equal(rules.n_forms(0), 1);
            assert_int_equal(rules.arithmetic(0) == lk::vulkan::DecodeArithmetic::kMatrix,
                             has_matrices);
        }
}

// Without matrices the vector kernel takes layers with pairs of shared stored channels, with the
// threads of other layers where the device's shared memory allows.
void pairs_need_no_matrices(void **) {
    lk::vulkan::Traits traits = device_with_matrices();
    traits.cooperative_matrix = false;
    const Layer pairs(kHeads, {128, 0, 16, 6, 1, 32});
    const Layer others(kHeads, {128, 0, 16, 0, 1, 32});
    const Plan plan({pairs, others}, lk::Metadata::kF8);
    for (const uint32_t shared_bytes : {16384u, 32768u})
        for (const bool has_float16 : {false, true}) {
            traits.max_shared_bytes = shared_bytes;
            traits.float16 = has_float16;
            DecodeRules rules(lk::default_allocator(), traits);
            assert_true(rules.open(plan.layout()));
            const auto arithmetic = has_float16 ? lk::vulkan::DecodeArithmetic::kFloat16
                                                : lk::vulkan::DecodeArithmetic::kFloat32;
            for (const uint32_t layer : {0u, 1u}) {
                assert_true(rules.takes(layer, 4));
                assert_true(rules.arithmetic(layer) == arithmetic);
                assert_int_equal(rules.n_forms(layer), 1);
                assert_int_equal(rules.has_shared(layer), layer == 0);
            }
            const uint32_t columns = rules.tile_columns(0, 1);
            const uint32_t threads = rules.threads(0, columns);
            assert_in_range(
                lk::vulkan::decode_shared_bytes({kHeadDim, kHeadDim}, columns, threads / LK_LANES,
                                                arithmetic, true, rules.vector_folds(0), 0),
                1, shared_bytes);
            if (shared_bytes > 16384)
                assert_int_equal(threads, rules.threads(1, columns));
        }
}

// Layers that take more shared memory than a workgroup has are for prefill.
void layers_without_room_are_not_taken(void **) {
    lk::vulkan::Traits traits = device_with_matrices();
    traits.cooperative_matrix = traits.subgroup = false;
    const Plan plan({Layer(kHeads, {128, 0, 16, 6, 1, 32}), Layer(kHeads, {16, 0, 16, 6, 1, 32})},
                    lk::Metadata::kF8);
    for (const uint32_t shared_bytes : {6144u, 16384u}) {
        traits.max_shared_bytes = shared_bytes;
        DecodeRules rules(lk::default_allocator(), traits);
        assert_true(rules.open(plan.layout()));
        assert_true(rules.takes(0));
        assert_int_equal(rules.takes(1), shared_bytes == 16384);
    }
}

// Teams of a workgroup share the pages of heads above 256 channels, in the shared memory that such
// heads need of a device, whatever the pages have.
void teams_share_pages_of_wide_heads(void **) {
    lk::vulkan::Traits traits = device_with_matrices();
    for (const uint32_t head_dim : {128u, 512u})
        for (const bool is_plain : {true, false}) {
            const Head head =
                is_plain ? Head{128, 0, 0, 0, 2, head_dim} : Head{16, 0, 0, 0, 1, head_dim / 8};
            const Plan plan({Layer(kHeads, head)},
                            is_plain ? lk::Metadata::kF16 : lk::Metadata::kF8, head_dim);
            traits.cooperative_matrix = false;
            traits.max_shared_bytes = 32768;
            DecodeRules rules(lk::default_allocator(), traits);
            assert_true(rules.open(plan.layout()));
            assert_true(rules.takes(0));
            const uint32_t columns = rules.tile_columns(0, 1);
            const uint32_t n_teams = rules.threads(0, columns) / 32;
            const lk::gpu::SplitShape shape = rules.shape(0, kHeads, 4);
            assert_in_range(n_teams, 2, LK_DECODE_MAX_TEAMS);
            assert_int_equal(rules.page_teams(0, columns), head_dim > 256 ? n_teams : 1);
            assert_int_equal(shape.n_readers, head_dim > 256 ? 1 : n_teams);
            assert_int_equal(shape.turn_bytes, head_dim > 256 ? 4 * 128 * head_dim : 0);
        }
}

// Layers whose values have another dim than keys run the vector kernel, also on devices with
// matrices; latent layers have no values to read.
void other_value_dims_have_no_matrices(void **) {
    struct Expected {
        uint32_t head_dim;
        uint32_t value_dim;
        uint32_t value_group;
        uint32_t value_steps;
        bool shares_pages;
    };
    const Expected all[] = {{192, 128, 128, 4, false},
                            {128, 64, 64, 2, false},
                            {64, 128, 48, 5, false},
                            {128, 512, 512, 16, true},
                            {512, 32, 32, 1, true}};
    const lk::vulkan::Traits traits = device_with_matrices();
    for (const Expected &expected : all)
        for (const bool is_latent : {false, true}) {
            const Plan plan({Layer(kHeads, {128, 0, 0, 0, 2, expected.value_group})},
                            lk::Metadata::kF16, expected.head_dim, expected.value_dim);
            lk::LayerView view = plan.layout().layers[0];
            view.is_latent = is_latent;
            lk::CacheLayout layout = plan.layout();
            layout.layers = &view;
            DecodeRules rules(lk::default_allocator(), traits);
            assert_true(rules.open(layout));
            assert_int_equal(rules.takes(0), !is_latent);
            assert_true(rules.arithmetic(0) == lk::vulkan::DecodeArithmetic::kFloat16);
            assert_int_equal(rules.value_steps(0), expected.value_steps);
            const uint32_t columns = rules.tile_columns(0, 1);
            assert_int_equal(rules.page_teams(0, columns) > 1, expected.shares_pages);
            assert_int_equal(
                rules.shape(0, kHeads, 4).turn_bytes,
                expected.shares_pages ? 2 * 128 * (expected.head_dim + expected.value_dim) : 0);
        }
}

// Steps that leave workers idle: two teams take a plain page of few vectors, of which each loads
// all, and layers whose workgroups have few teams have larger ones, which take a page with one team
// or two.
void idle_workers_have_variants(void **) {
    struct Expected {
        Head head;
        lk::Metadata metadata;
        uint32_t n_variants;
        uint32_t n_teams;  // of a wide workgroup
    };
    const Expected all[] = {{{128, 0, 0, 0, 2, 256}, lk::Metadata::kF16, 3, 4},
                            {{128, 0, 256, 0, 4, 256}, lk::Metadata::kF16, 3, 4},
                            {{128, 256, 0, 0, 8, 256}, lk::Metadata::kF16, 3, 4},
                            {{32, 0, 32, 0, 2, 256}, lk::Metadata::kF8, 1, 0}};
    const lk::vulkan::Traits traits = device_with_matrices();
    for (const Expected &expected : all) {
        const Plan plan({Layer(kHeads, expected.head)}, expected.metadata, 256);
        DecodeRules rules(lk::default_allocator(), traits);
        assert_true(rules.open(plan.layout()));
        assert_true(rules.arithmetic(0) == lk::vulkan::DecodeArithmetic::kMatrix);
        const uint32_t columns = rules.tile_columns(0, 4);
        const uint32_t n_teams = rules.threads(0, columns) / 32;
        assert_int_equal(rules.n_variants(0, columns), expected.n_variants);
        const lk::vulkan::DecodeVariant first = rules.variant(0, columns, 0);
        assert_int_equal(first.threads, 32 * n_teams);
        assert_int_equal(first.page_parts, 1);
        const lk::gpu::SplitShape shape = rules.shape(0, kHeads, 4);
        assert_int_equal(shape.n_idle, expected.n_variants - 1);
        for (uint32_t i = 0; i < shape.n_idle; ++i) {
            const lk::vulkan::DecodeVariant idle = rules.variant(0, columns, i + 1);
            assert_true(n_teams < expected.n_teams);
            assert_int_equal(idle.threads, 32 * expected.n_teams);
            assert_int_equal(idle.page_parts, i + 1);
            assert_int_equal(shape.idle[i].n_readers, expected.n_teams);
            assert_int_equal(shape.idle[i].page_parts, i + 1);
            assert_int_equal(shape.idle[i].n_workers, traits.n_cores);
        }
    }
}

// Heads whose workgroups have all teams keep them: two take a page of few vectors.
void full_workgroups_share_small_pages(void **) {
    const std::pair<Head, uint32_t> all[] = {{{128, 0, 0, 0, 2, 128}, 2},
                                             {{128, 0, 128, 0, 4, 128}, 1}};
    const lk::vulkan::Traits traits = device_with_matrices();
    for (const auto &[head, n_variants] : all) {
        const Plan plan({Layer(kHeads, head)}, lk::Metadata::kF16, 128);
        DecodeRules rules(lk::default_allocator(), traits);
        assert_true(rules.open(plan.layout()));
        const uint32_t columns = rules.tile_columns(0, 4);
        assert_int_equal(rules.threads(0, columns), 128);
        assert_int_equal(rules.n_variants(0, columns), n_variants);
        if (n_variants == 1)
            continue;
        const lk::gpu::SplitShape shape = rules.shape(0, kHeads, 4);
        assert_int_equal(rules.variant(0, columns, 1).threads, 128);
        assert_int_equal(rules.variant(0, columns, 1).page_parts, 2);
        assert_int_equal(shape.idle[0].n_workers, shape.n_workers);
        assert_int_equal(shape.idle[0].n_readers, 4);
    }
}

// Pages with codes on one side alone are not for the kernels of matrices, which look for both.
void half_raw_layers_have_no_matrices(void **) {
    const lk::vulkan::Traits traits = device_with_matrices();
    const Plan plan({Layer(kHeads, {128, 0, 16, 0, 2, 128})}, lk::Metadata::kF16);
    lk::CacheLayout layout = plan.layout();
    for (const bool is_half_raw : {false, true}) {
        const lk::LayerFormats formats = {nullptr, 0, 0, is_half_raw};
        layout.layer_formats = &formats;
        DecodeRules rules(lk::default_allocator(), traits);
        assert_true(rules.open(layout));
        assert_int_equal(rules.arithmetic(0) == lk::vulkan::DecodeArithmetic::kMatrix,
                         !is_half_raw);
    }
}

// Splits have a page each, so that none writes a result of nothing.
void splits_have_pages(void **) {
    constexpr uint32_t kWorkgroups = 528;
    assert_int_equal(lk::vulkan::tile_splits(1, kWorkgroups, 0), 1);
    assert_int_equal(lk::vulkan::tile_splits(1, kWorkgroups, 1), 1);
    assert_int_equal(lk::vulkan::tile_splits(1, kWorkgroups, 64), 64);
    assert_int_equal(lk::vulkan::tile_splits(1, kWorkgroups, 4096), LK_TILE_MAX_SPLITS);
    assert_int_equal(lk::vulkan::tile_splits(8, kWorkgroups, 4096), 66);
    assert_int_equal(lk::vulkan::tile_splits(kWorkgroups + 1, kWorkgroups, 4096), 1);
}

// Shared memory or invocations of a workgroup decide whether latents have 16 columns, 8 or none.
void latents_have_columns_that_fit(void **) {
    assert_int_equal(lk::vulkan::latent_columns(576, 49152, 1024), 16);
    assert_int_equal(lk::vulkan::latent_columns(576, 49152, 511), 8);
    assert_int_equal(lk::vulkan::latent_columns(576, 32768, 1024), 8);
    assert_int_equal(lk::vulkan::latent_columns(576, 16384, 1024), 0);
    assert_int_equal(lk::vulkan::latent_columns(576, 49152, 255), 0);
    assert_int_equal(lk::vulkan::latent_columns(288, 32768, 512), 16);
    assert_true(lk::vulkan::latent_matrix_shared_bytes(576) <= 49152);
    for (uint32_t head_dim = 32; head_dim <= LK_MAX_HEAD_DIM; head_dim += 16)
        for (const uint32_t bytes : {32768u, 49152u, 65536u}) {
            const uint32_t columns = lk::vulkan::latent_columns(head_dim, bytes, 512);
            assert_true(columns && lk::vulkan::latent_shared_bytes(head_dim, columns) <= bytes);
        }
}

void splits_fill_the_last_turn(void **) {
    constexpr uint32_t kCores = 132;
    constexpr uint32_t kMost = 8 * kCores;
    assert_int_equal(lk::vulkan::slot_splits(129, kMost, kCores), 1);
    assert_int_equal(lk::vulkan::slot_splits(86, kMost, kCores), 3);    // two turns of 129
    assert_int_equal(lk::vulkan::slot_splits(16, kMost, kCores), 8);    // a turn of 128
    assert_int_equal(lk::vulkan::slot_splits(2000, kMost, kCores), 1);  // no partial results
    for (uint32_t n_tiles = 1; n_tiles <= kMost; ++n_tiles) {
        const uint32_t n_splits = lk::vulkan::slot_splits(n_tiles, kMost, kCores);
        assert_in_range(n_splits, 1, LK_SLOT_MAX_SPLITS);
        assert_true(n_splits * n_tiles <= kMost);
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(auto_plans_need_few_pipelines),
        cmocka_unit_test(folded_forms_have_small_workgroups),
        cmocka_unit_test(plain_layers_have_constants),
        cmocka_unit_test(wide_keys_have_one_form),
        cmocka_unit_test(pairs_need_no_matrices),
        cmocka_unit_test(layers_without_room_are_not_taken),
        cmocka_unit_test(teams_share_pages_of_wide_heads),
        cmocka_unit_test(other_value_dims_have_no_matrices),
        cmocka_unit_test(idle_workers_have_variants),
        cmocka_unit_test(full_workgroups_share_small_pages),
        cmocka_unit_test(half_raw_layers_have_no_matrices),
        cmocka_unit_test(splits_have_pages),
        cmocka_unit_test(latents_have_columns_that_fit),
        cmocka_unit_test(splits_fill_the_last_turn),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
