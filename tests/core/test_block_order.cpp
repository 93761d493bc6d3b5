// Blocks of a step in the order of their formats: pages of one form lie side by side, sinks and the
// last raw blocks stay where they are, and sequences that need no order have none.
//
// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/block_order.h"

#include <string>
#include <vector>

#include "backend/gpu/split.h"
#include "suite.h"

namespace {

using lk::Side;
namespace gpu = lk::gpu;

// Formats of keys; the values' follow.
enum : uint16_t { kRaw = 0, kFour = 2, kTwo = 4 };

class Rules final : public gpu::SplitRules {
  public:
    explicit Rules(uint32_t n_forms) : n_forms_(n_forms) {}
    gpu::SplitLimits limits() const override { return {}; }
    gpu::SplitShape shape(uint32_t, uint32_t, uint32_t) const override { return {}; }
    uint32_t n_forms(uint32_t) const override { return n_forms_; }

  private:
    uint32_t n_forms_;
};

// A layer of one head whose pages have classes.
struct Model {
    Model() {
        for (const uint32_t plane : {lk::kPlane16, lk::kPlane4, lk::kPlane2})
            for (const Side side : {Side::kKey, Side::kValue}) {
                lk::PageFormat format{};
                format.layout = lk::raw_layout(side, 128, LK_MAX_PAGE_TOKENS);
                std::swap(format.layout.strips[lk::kPlane16], format.layout.strips[plane]);
                formats.push_back(format);
            }
        layer.n_query_heads = layer.n_kv_heads = 1;
        layer.head_dim = layer.value_dim = 128;
        layout.formats = formats.data();
        layout.layers = &layer;
        layout.first_entries = &first_entry;
        layout.layer_formats = &layer_formats;
        layout.n_layers = layout.n_entries = 1;
        layout.max_sequences = layout.max_step_tokens = 4;
    }
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    std::vector<lk::PageFormat> formats;
    lk::LayerView layer{};
    uint32_t first_entry = 0;
    lk::LayerFormats layer_formats = {nullptr, 4, 0, 0};
    lk::CacheLayout layout{};
};

// Blocks of a sequence: of each its format, 'r', '4' or '2'.
class Blocks {
  public:
    explicit Blocks(const std::string &formats)
        : entries_(formats.size()), blocks_(formats.size()) {
        for (size_t r = 0; r < formats.size(); ++r) {
            entries_[r].key_format = formats[r] == 'r' ? kRaw : formats[r] == '4' ? kFour : kTwo;
            entries_[r].value_format = entries_[r].key_format + 1;
            blocks_[r].entries = &entries_[r];
            pointers_.push_back(&blocks_[r]);
        }
    }
    lk::BatchSequence sequence(uint64_t id) const {
        lk::BatchSequence made{};
        made.blocks = pointers_.data();
        made.n_blocks = made.n_attended = static_cast<uint32_t>(pointers_.size());
        made.id = id;
        return made;
    }
    // Those of a list, by their numbers.
    std::string numbers(const lk::Block *const *blocks, size_t n) const {
        std::string text;
        for (size_t i = 0; i < n; ++i)
            text += std::to_string(blocks[i] - blocks_.data());
        return text;
    }
    const lk::Block *const *own() const { return pointers_.data(); }

  private:
    std::vector<lk::PageEntry> entries_;
    std::vector<lk::Block> blocks_;
    std::vector<const lk::Block *> pointers_;
};

lk::Batch batch_of(const std::vector<lk::BatchSequence> &sequences) {
    const auto n = static_cast<uint32_t>(sequences.size());
    return {sequences.data(), n, n};
}

void pages_of_a_form_lie_side_by_side(void **) {
    const Model model;
    const Rules rules(2);
    gpu::BlockOrder order(lk::default_allocator());
    assert_true(order.open(model.layout, rules));
    assert_true(order.is_used());
    const Blocks runs("r2244r"), mixed("r24r424r"), other("42424");
    std::vector<lk::BatchSequence> sequences = {runs.sequence(1), mixed.sequence(2),
                                                other.sequence(3)};
    assert_true(order.fill(batch_of(sequences), true));
    assert_true(order.is_new());
    assert_ptr_equal(order.sequences()[0].blocks, runs.own());
    assert_string_equal(mixed.numbers(order.sequences()[1].blocks, 8).c_str(), "03152467");
    assert_string_equal(other.numbers(order.sequences()[2].blocks, 5).c_str(), "02413");
    assert_int_equal(order.blocks().size(), 13);
    const uint32_t first_blocks[] = {0, 19, 27};
    assert_memory_equal(order.first_blocks(), first_blocks, sizeof first_blocks);
    // The next step of the same blocks.
    ++sequences[1].n_history;
    assert_true(order.fill(batch_of(sequences), false));
    assert_false(order.is_new());
    assert_int_equal(order.sequences()[1].n_history, 1);
    assert_string_equal(mixed.numbers(order.sequences()[1].blocks, 8).c_str(), "03152467");
    // Blocks beyond those that attention reads keep their places.
    sequences[1].n_attended = 5;
    assert_true(order.fill(batch_of(sequences), false));
    assert_true(order.is_new());
    assert_string_equal(mixed.numbers(order.sequences()[1].blocks, 8).c_str(), "03124567");
}

void layers_of_one_form_or_a_window_have_no_order(void **) {
    Model model;
    const Blocks mixed("2424");
    const std::vector<lk::BatchSequence> sequences = {mixed.sequence(1)};
    for (const uint32_t n_forms : {1u, 2u}) {
        const Rules rules(n_forms);
        model.layer.window_tokens = n_forms == 2 ? 256 : 0;
        gpu::BlockOrder order(lk::default_allocator());
        assert_true(order.open(model.layout, rules));
        assert_false(order.is_used());
        assert_true(order.fill(batch_of(sequences), true));
        assert_false(order.is_new());
        assert_true(order.blocks().empty());
    }
}

}  // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_a_form_lie_side_by_side),
        cmocka_unit_test(layers_of_one_form_or_a_window_have_no_order),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
