// The stages that CUDA's kernels of rows have on devices with 99, 163 and 227 KB of shared memory
// for a thread block, and where their arrays lie.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/rows/shapes.h"

#include <initializer_list>

#include "suite.h"

namespace {

using namespace lk::cuda;

constexpr uint32_t k99 = 101376;  // sm_86, sm_89, sm_120
constexpr uint32_t k163 = 166912;
constexpr uint32_t k227 = 232448;
constexpr uint32_t kPageTokens = 128;

LayerArg layer_of(uint32_t head_dim, uint32_t value_dim, bool is_latent) {
    LayerArg layer{};
    layer.head_dim = head_dim;
    layer.value_dim = value_dim;
    layer.is_latent = is_latent;
    return layer;
}
LayerArg latent() { return layer_of(576, 512, true); }
LayerArg narrow_values() { return layer_of(192, 128, false); }

RowsPages raw_pages() { return {0, 0, kPageTokens}; }
// With a range and a minimum of a channel.
uint32_t page_bytes(uint32_t n_channels, uint32_t bits) {
    return n_channels * (kPageTokens * bits / 8 + 4);
}
RowsPages packed_pages(uint32_t bytes) { return {0, bytes, kPageTokens}; }
RowsPages coded_pages(uint32_t bits) {
    return {page_bytes(576, bits), page_bytes(576, bits), kPageTokens};
}

struct Expected {
    uint32_t shared_bytes;
    uint32_t n_columns;
    uint32_t n_slots;
    uint32_t stage_tokens;
    bool has_copy;
};
template <size_t kN>
void assert_shapes(const LayerArg &layer, const RowsPages &pages, uint32_t n_columns,
                   const Expected (&all)[kN]) {
    for (const Expected &expected : all) {
        RowsGrid grid{};
        assert_true(choose_shape(layer, pages, n_columns, expected.shared_bytes, &grid));
        assert_int_equal(grid.n_columns, expected.n_columns);
        assert_int_equal(grid.n_slots, expected.n_slots);
        assert_int_equal(grid.stage_tokens, expected.stage_tokens);
        assert_int_equal(grid.copy_bytes, expected.has_copy ? pages.packed_bytes : 0);
    }
}

void fp16_latents(void **) {
    assert_shapes(latent(), raw_pages(), 16,
                  {{k99, 16, 1, 48, false}, {k163, 16, 2, 48, false}, {k227, 16, 2, 64, false}});
    assert_shapes(latent(), raw_pages(), 128,
                  {{k99, 32, 1, 32, false}, {k163, 32, 2, 32, false}, {k227, 32, 2, 64, false}});
}

void coded_latents(void **) {
    assert_shapes(latent(), coded_pages(2), 16,
                  {{k99, 16, 3, 16, false}, {k163, 16, 3, 32, false}, {k227, 16, 3, 48, false}});
    assert_shapes(latent(), coded_pages(4), 16,
                  {{k99, 16, 1, 32, false}, {k163, 16, 3, 32, false}, {k227, 16, 3, 48, false}});
    assert_shapes(latent(), coded_pages(4), 20,
                  {{k99, 16, 1, 32, false}, {k163, 32, 1, 32, false}, {k227, 32, 2, 32, false}});
    RowsGrid grid{};
    assert_true(choose_shape(latent(), coded_pages(4), 16, k99, &grid));
    assert_int_equal(grid.page_bytes, page_bytes(576, 4));
    assert_int_equal(grid.slot_bytes, grid.page_bytes);
    assert_true(grid.overlays_weights);
}

void parts_of_coded_latents(void **) {
    assert_shapes(latent(), coded_pages(8), 16,
                  {{k99, 16, 1, 32, false}, {k163, 16, 1, 64, false}, {k227, 16, 2, 64, false}});
    RowsGrid grid{};
    assert_true(choose_shape(latent(), coded_pages(8), 16, k99, &grid));
    assert_int_equal(grid.page_bytes, page_bytes(576, 8));
    assert_int_equal(grid.slot_bytes, page_bytes(576, 4));  // of half the codes
    // Those of 2 bits in the same cache stay whole.
    assert_true(grid.slot_bytes >= page_bytes(576, 2));
    for (const SlotShape &shape : kSlotShapes)
        if (shape.flags & kCutsPages)
            assert_false(is_possible(latent(), shape, coded_pages(2), 16));
}

void packed_latents(void **) {
    const RowsPages two_and_a_half = packed_pages(26496);  // bits, with an order
    assert_shapes(latent(), two_and_a_half, 16,
                  {{k99, 16, 1, 32, true}, {k163, 16, 1, 64, true}, {k227, 16, 1, 128, true}});
    assert_shapes(latent(), two_and_a_half, 128,
                  {{k99, 32, 1, 32, false}, {k163, 32, 1, 64, true}, {k227, 32, 1, 128, true}});
    const RowsPages three = packed_pages(page_bytes(576, 3));
    assert_shapes(latent(), three, 16, {{k99, 16, 1, 32, true}, {k227, 16, 1, 128, true}});
    RowsGrid grid{};
    assert_true(choose_shape(latent(), three, 16, k99, &grid));
    assert_int_equal(grid.key_shares, kKeyShares / 2);
    const RowsPages four_by_32 = packed_pages(page_bytes(576, 4) + 3 * 576 * 4);
    assert_shapes(latent(), four_by_32, 16, {{k99, 16, 1, 32, false}, {k163, 16, 1, 64, true}});
    assert_shapes(latent(), four_by_32, 20, {{k99, 32, 1, 32, false}});
    const RowsPages wide_keys = packed_pages(page_bytes(576, 4) + 6912);
    assert_shapes(latent(), wide_keys, 20, {{k163, 16, 1, 64, true}, {k227, 32, 1, 64, true}});
}

void values_of_another_dim(void **) {
    assert_shapes(narrow_values(), raw_pages(), 16,
                  {{k99, 16, 2, 48, false}, {k163, 16, 2, 64, false}, {k227, 16, 2, 64, false}});
    const RowsPages four = packed_pages(page_bytes(192 + 128, 4));
    assert_shapes(narrow_values(), four, 16,
                  {{k99, 16, 1, 64, true}, {k163, 16, 1, 128, true}, {k227, 16, 1, 128, true}});
    const RowsPages eight = packed_pages(page_bytes(192 + 128, 8));
    assert_shapes(narrow_values(), eight, 16,
                  {{k99, 16, 1, 32, true}, {k163, 16, 1, 128, true}, {k227, 16, 1, 128, true}});
}

// f(layer, pages, columns), of many.
template <class F>
void each_case(F f) {
    const LayerArg layers[] = {latent(), narrow_values(), layer_of(64, 128, false),
                               layer_of(320, 256, true), layer_of(512, 496, false)};
    for (const LayerArg &layer : layers) {
        const uint32_t stored = layer.head_dim + (layer.is_latent ? 0 : layer.value_dim);
        for (const uint32_t n_columns : {1u, 16u, 20u, 128u}) {
            f(layer, raw_pages(), n_columns);
            for (const uint32_t page_tokens : {32u, 64u, 128u})
                for (uint32_t bits = 1; bits <= 8; ++bits) {
                    const uint32_t bytes = stored * (page_tokens * bits / 8 + 4);
                    f(layer, RowsPages{0, bytes, page_tokens}, n_columns);
                    if (layer.is_latent)
                        f(layer, RowsPages{bytes, bytes, page_tokens}, n_columns);
                }
        }
    }
}
bool fits(const LayerArg &layer, const SlotShape &shape, const RowsPages &pages, uint32_t n_columns,
          uint32_t shared_bytes) {
    return is_possible(layer, shape, pages, n_columns) &&
           shaped_grid(layer, shape, pages, n_columns).shared_bytes + kRowsStaticBytes <=
               shared_bytes;
}

void stages_are_the_longest_that_fit(void **) {
    each_case([](const LayerArg &layer, const RowsPages &pages, uint32_t n_columns) {
        for (const uint32_t shared_bytes : {k99, k163, k227}) {
            RowsGrid grid{};
            assert_true(choose_shape(layer, pages, n_columns, shared_bytes, &grid));
            assert_true(grid.shared_bytes + kRowsStaticBytes <= shared_bytes);
            for (const SlotShape &shape : kSlotShapes) {
                const RowsGrid other = shaped_grid(layer, shape, pages, n_columns);
                if (other.unpacks == grid.unpacks && other.page_bytes == grid.page_bytes &&
                    other.n_columns == grid.n_columns && other.n_slots == grid.n_slots &&
                    other.copy_bytes == grid.copy_bytes && shape.stage_tokens > grid.stage_tokens)
                    assert_false(fits(layer, shape, pages, n_columns, shared_bytes));
            }
        }
    });
}

// Arrays are in use together, but for weights that replace products, the copy of a page that is
// one stage, and the output.
void arrays_lie_one_after_the_other(void **) {
    each_case([](const LayerArg &layer, const RowsPages &pages, uint32_t n_columns) {
        for (const SlotShape &shape : kSlotShapes) {
            if (!is_possible(layer, shape, pages, n_columns))
                continue;
            const RowsGrid grid = shaped_grid(layer, shape, pages, n_columns);
            const RowsLayout layout = rows_layout(layer, grid);
            const uint32_t columns = grid.unpacks ? kRowsColumns : grid.n_columns;
            const uint32_t share = 4 * columns * partial_stride(grid);
            const uint32_t products = grid.divides_warps ? 0 : grid.key_shares * share;
            const uint32_t weights = (grid.divides_warps ? 2 : 1) * rows_weight_bytes(grid);
            assert_true(shape.stage_tokens <= grid.partial_tokens);
            assert_true(layout.queries >= grid.n_slots * (shape.flags & kCutsPages
                                                              ? part_bytes(layer, pages)
                                                              : grid.page_bytes));
            assert_true(layout.minima >= layout.queries + 2 * grid.n_columns * layer.head_dim);
            assert_true(layout.weights >=
                        layout.minima + (grid.page_bytes ? 4 * kRowsWarps * grid.n_columns : 0));
            if (grid.overlays_weights) {
                assert_int_equal(layout.weights, layout.partial);
                assert_true(rows_weight_bytes(grid) <= share);
            } else {
                assert_true(layout.partial >= layout.weights + weights);
            }
            assert_true(layout.copy >= layout.partial + (grid.keeps_copy ? products : 0));
            assert_true(layout.total >= layout.partial + products);
            assert_true(layout.total >= layout.copy + grid.copy_bytes);
            assert_true(layout.total >= rows_output_bytes(layer, grid));
        }
    });
}

// Rows of a matrix, which a column's numbers are, reach different banks of shared memory.
void columns_reach_different_banks(void **) {
    for (const SlotShape &shape : kSlotShapes) {
        const RowsGrid grid = shaped_grid(latent(), shape, packed_pages(26496), 16);
        assert_int_equal(2 * partial_stride(grid) % 32, 8);
        uint32_t banks = 0;  // a bit for four of them
        for (uint32_t column = 0; column < 8; ++column)
            banks |= 1u << grid.weight_stride / 2 * column % 32 / 4;
        assert_int_equal(banks, 0xFF);
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(fp16_latents),
        cmocka_unit_test(coded_latents),
        cmocka_unit_test(parts_of_coded_latents),
        cmocka_unit_test(packed_latents),
        cmocka_unit_test(values_of_another_dim),
        cmocka_unit_test(stages_are_the_longest_that_fit),
        cmocka_unit_test(arrays_lie_one_after_the_other),
        cmocka_unit_test(columns_reach_different_banks),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
