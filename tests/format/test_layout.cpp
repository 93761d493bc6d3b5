// Where bits lie: index functions, sizes, shapes.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cases.h"
#include "cli/common/widths.h"
#include "suite.h"

using namespace lk;

namespace {

constexpr uint32_t kPages[] = {32, 64, 128};
constexpr uint32_t kWidths[] = {16, 8, 4, 2, 1};
constexpr Side kSides[] = {Side::kKey, Side::kValue};

bool width_fits(uint32_t page_tokens, uint32_t bits) { return page_tokens * bits >= 64; }

void every_bit_of_a_strip_has_one_code(void **) {
    for (const Side side : kSides)
        for (const uint32_t page : {16u, 32u, 48u, 64u, 128u, 1024u})
            for (const uint32_t bits : kWidths) {
                if (!width_fits(page, bits) || (bits < 16 && (page == 48 || page > 128)))
                    continue;
                std::vector<uint8_t> owner(size_t{strip_bytes(page, bits)} * 8);
                for (uint32_t token = 0; token < page; ++token)
                    for (uint32_t channel = 0; channel < 16; ++channel) {
                        const BitPosition at = find_bit(side, page, bits, token, channel);
                        assert_true(at.bit % 16 + bits <= 16);
                        for (uint32_t b = 0; b < bits; ++b) {
                            const size_t bit = size_t{at.word} * 32 + at.bit + b;
                            assert_true(bit < owner.size());
                            assert_int_equal(owner[bit]++, 0);
                        }
                    }
                assert_int_equal(owner.size(), size_t{page} * 16 * bits);
            }
}

// Where a word of a lane lies, backwards: index -> (lane, word).
void split_index(uint32_t n_words, uint32_t index, uint32_t *lane, uint32_t *word) {
    if (n_words < 4) {
        *lane = index / n_words;
        *word = index % n_words;
    } else {
        *lane = index / 4 % 32;
        *word = index / 128 * 4 + index % 4;
    }
}

void widths_nest(void **) {
    for (const Side side : kSides)
        for (const uint32_t page : kPages)
            for (const uint32_t bits : {8u, 4u, 2u, 1u}) {
                if (!width_fits(page, bits))
                    continue;
                for (uint32_t token = 0; token < page; ++token)
                    for (uint32_t channel = 0; channel < 16; ++channel) {
                        const BitPosition wide = find_bit(side, page, 2 * bits, token, channel);
                        const BitPosition narrow = find_bit(side, page, bits, token, channel);
                        uint32_t lane_wide, word_wide, lane, word;
                        split_index(page * 2 * bits / 64, wide.word, &lane_wide, &word_wide);
                        split_index(page * bits / 64, narrow.word, &lane, &word);
                        assert_int_equal(lane, lane_wide);
                        assert_int_equal(word, word_wide >> 1);
                        assert_int_equal(narrow.bit / 16, wide.bit / 16);
                        const uint32_t field_wide = wide.bit % 16 / (2 * bits);
                        assert_int_equal(narrow.bit % 16,
                                         bits * (2 * field_wide + (word_wide & 1)));
                    }
            }
}

void sixteen_bits_are_mma_registers(void **) {
    for (uint32_t lane = 0; lane < 32; ++lane)
        for (uint32_t r = 0; r < 4; ++r)
            for (uint32_t half = 0; half < 2; ++half) {
                // PTX ISA, m16n8k16, A of .f16: groupID = lane >> 2, threadID = lane % 4.
                const uint32_t row = lane / 4 + (r == 1 || r == 3 ? 8 : 0);
                const uint32_t k = lane % 4 * 2 + half + (r >= 2 ? 8 : 0);
                assert_int_equal(LK_TILE_LANE(row, k), lane);
                assert_int_equal(LK_TILE_REGISTER(row, k), r);
                assert_int_equal(LK_TILE_HALF(k), half);
                assert_int_equal(LK_TILE_ROW(lane, r), row);
                assert_int_equal(LK_TILE_K(lane, r), k - half);
                for (const Side side : kSides) {
                    const bool key = side == Side::kKey;
                    const BitPosition at =
                        find_bit(side, 64, 16, 32 + (key ? row : k), key ? k : row);
                    assert_int_equal(at.word, (2 * 32 + lane) * 4 + r);
                    assert_int_equal(at.bit, 16 * half);
                }
            }
}

void examples_of_the_document(void **) {
    const struct {
        Side side;
        uint32_t bits, word, bit;
    } rows[] = {{Side::kKey, 16, 210, 16}, {Side::kKey, 8, 83, 16}, {Side::kKey, 4, 81, 20},
                {Side::kKey, 2, 80, 22},   {Side::kKey, 1, 40, 22}, {Side::kValue, 4, 25, 24}};
    for (const auto &row : rows) {
        const BitPosition at = find_bit(row.side, 128, row.bits, 21, 9);
        assert_int_equal(at.word, row.word);
        assert_int_equal(at.bit, row.bit);
    }
}

void parameters_lie_in_fragment_order(void **) {
    const uint32_t k_order[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
    const uint32_t row_order[16] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
    for (const lk_test::Case &c : lk_test::cases()) {
        if (c.layout.is_raw())
            continue;
        const bool by_channel = c.layout.axis == Axis::kChannel;
        const uint32_t *order = by_channel || c.layout.side == Side::kValue ? k_order : row_order;
        std::vector<uint32_t> users(n_parameters(c.layout));
        for (uint32_t slot = 0; slot < c.layout.head_dim; ++slot)
            for (uint32_t token = 0; token < c.layout.page_tokens; ++token) {
                const uint32_t index = parameter_index(c.layout, slot, token);
                assert_true(index < users.size());
                ++users[index];
                assert_int_equal(order[index % 16], (by_channel ? slot : token) % 16);
                const uint32_t block = index / 16;
                const uint32_t n = by_channel ? n_groups(c.layout) : c.layout.page_tokens / 16u;
                assert_int_equal(block % n, by_channel ? token / c.layout.group : token / 16);
                assert_int_equal(block / n, by_channel ? slot / 16 : slot / c.layout.group);
            }
        for (const uint32_t n : users)
            assert_true(n > 0 && n <= c.layout.group);
    }
}

PageLayout shape128(Side side, uint16_t group, Metadata metadata, uint16_t at4, uint16_t at2,
                    bool permutes) {
    PageLayout layout;
    layout.side = side;
    layout.axis = side == Side::kKey ? Axis::kChannel : Axis::kToken;
    layout.metadata = metadata;
    layout.permutes = permutes;
    layout.head_dim = 128;
    layout.page_tokens = 128;
    layout.group = group;
    layout.strips[kPlane4] = at4;
    layout.strips[kPlane2] = at2;
    return layout;
}

// The table of docs/FORMAT.md, section 13.
void bytes_of_known_plans(void **) {
    constexpr Metadata f16 = Metadata::kF16;
    const struct {
        PageLayout key, value;
        uint64_t key_payload, key_metadata, value_payload, value_metadata;
        double bits_per_value;
    } rows[] = {
        {shape128(Side::kKey, 128, f16, 8, 0, false), shape128(Side::kValue, 128, f16, 8, 0, false),
         8192, 512, 8192, 512, 4.25},
        {shape128(Side::kKey, 128, f16, 0, 8, false), shape128(Side::kValue, 128, f16, 0, 8, false),
         4096, 512, 4096, 512, 2.25},
        {shape128(Side::kKey, 128, f16, 1, 7, true), shape128(Side::kValue, 128, f16, 0, 8, false),
         4608, 640, 4096, 512, 2.40625},
        {shape128(Side::kKey, 128, f16, 2, 6, true), shape128(Side::kValue, 128, f16, 0, 8, false),
         5120, 640, 4096, 512, 2.53125},
        {shape128(Side::kKey, 32, Metadata::kF8, 0, 8, false),
         shape128(Side::kValue, 32, Metadata::kF8, 0, 8, false), 4096, 1024, 4096, 1024, 2.5},
    };
    for (const auto &row : rows) {
        assert_null(layout_error(row.key));
        assert_null(layout_error(row.value));
        assert_int_equal(payload_bytes(row.key), row.key_payload);
        assert_int_equal(metadata_bytes(row.key), row.key_metadata);
        assert_int_equal(payload_bytes(row.value), row.value_payload);
        assert_int_equal(metadata_bytes(row.value), row.value_metadata);
        const uint64_t bytes =
            row.key_payload + row.key_metadata + row.value_payload + row.value_metadata;
        assert_true(static_cast<double>(bytes) * 8 / (2 * 128 * 128) == row.bits_per_value);
    }
    const PageLayout raw = raw_layout(Side::kKey, 128, 128);
    assert_int_equal(payload_bytes(raw), 32768);
    assert_int_equal(metadata_bytes(raw), 0);
}

void strips_tile_the_payload(void **) {
    for (const lk_test::Case &c : lk_test::cases()) {
        std::vector<uint8_t> owner(payload_bytes(c.layout));
        uint64_t bits = 0;
        for (uint32_t strip = 0; strip < c.layout.head_dim / 16u; ++strip) {
            const StripPosition at = find_strip(c.layout, strip);
            const uint32_t width = at.bits;
            bits += uint64_t{width} * 16 * c.layout.page_tokens;
            const uint32_t low = 2u * c.layout.page_tokens * (width == 3 ? 2 : width);
            assert_int_equal(at.offset % LK_ARRAY_ALIGN, 0);
            for (uint32_t i = 0; i < low; ++i)
                assert_int_equal(owner[at.offset + i]++, 0);
            for (uint32_t i = 0; width == 3 && i < 2u * c.layout.page_tokens; ++i)
                assert_int_equal(owner[at.high_offset + i]++, 0);
        }
        assert_int_equal(bits, 8 * owner.size());
        assert_int_equal(minima_offset_bytes(c.layout) % LK_ARRAY_ALIGN, 0);
        assert_int_equal(metadata_bytes(c.layout) % LK_ARRAY_ALIGN, 0);
    }
}

void shapes_are_checked(void **) {
    for (const lk_test::Case &c : lk_test::cases())
        assert_null(layout_error(c.layout));
    const PageLayout good = shape128(Side::kKey, 128, Metadata::kF16, 1, 7, true);
    const PageLayout value = shape128(Side::kValue, 48, Metadata::kF16, 0, 8, false);
    const auto refused = [](PageLayout layout, auto &&spoil) {
        spoil(layout);
        return layout_error(layout) != nullptr;
    };
    assert_true(refused(good, [](PageLayout &s) { s.head_dim = 0; }));
    assert_true(refused(good, [](PageLayout &s) { s.head_dim = 120; }));
    assert_true(refused(good, [](PageLayout &s) { s.head_dim = 272; }));
    assert_true(refused(good, [](PageLayout &s) { s.head_dim = 16, s.strips[kPlane2] = 0; }));
    assert_true(refused(good, [](PageLayout &s) { s.strips[kPlane2] = 6; }));
    assert_true(refused(good, [](PageLayout &s) { s.strips[kPlane8] = 65535; }));
    assert_true(refused(good, [](PageLayout &s) { s.page_tokens = 0; }));
    assert_true(refused(good, [](PageLayout &s) { s.page_tokens = 96; }));
    assert_true(refused(good, [](PageLayout &s) { s.page_tokens = 256; }));
    assert_true(refused(good, [](PageLayout &s) { s.group = 0; }));
    assert_true(refused(good, [](PageLayout &s) { s.group = 8; }));
    assert_true(refused(good, [](PageLayout &s) { s.group = 48; }));
    assert_true(refused(good, [](PageLayout &s) { s.group = 256; }));
    assert_true(refused(good, [](PageLayout &s) { s.n_shared = 57; }));
    assert_true(refused(good, [](PageLayout &s) { s.side = Side::kValue; }));
    assert_true(refused(good, [](PageLayout &s) {
        s.page_tokens = 32, s.group = 32, s.strips[kPlane1] = 1, s.strips[kPlane2] = 6;
    }));
    assert_true(refused(value, [](PageLayout &s) { s.group = 0; }));
    assert_true(refused(value, [](PageLayout &s) { s.group = 40; }));
    assert_true(refused(value, [](PageLayout &s) { s.group = 144; }));
    assert_true(refused(value, [](PageLayout &s) { s.n_shared = 1; }));
    const PageLayout raw = raw_layout(Side::kValue, 64, 1024);
    assert_null(layout_error(raw));
    assert_true(refused(raw, [](PageLayout &s) { s.page_tokens = 0; }));
    assert_true(refused(raw, [](PageLayout &s) { s.page_tokens = 1040; }));
    assert_true(refused(raw, [](PageLayout &s) { s.page_tokens = 24; }));
    assert_true(refused(raw, [](PageLayout &s) { s.permutes = 1; }));
    assert_true(refused(raw, [](PageLayout &s) { s.n_shared = 1; }));
    assert_true(refused(raw, [](PageLayout &s) { s.group = 0; }));
}

// The command may include no table of the library, so its list is compared here.
void the_command_lists_the_widths_of_the_table(void **) {
    struct Row {
        uint32_t plane, bits, narrower;
    };
#define LK_ROW(plane, bits, low_bits, high_bits, narrower) {plane, bits, narrower},
    constexpr Row kTable[] = {LK_PLANES(LK_ROW)};
#undef LK_ROW
    assert_int_equal(cli::kCodeWidths.size(), LK_PLANE_COUNT);
    uint32_t rung = 16;
    for (const Row &row : kTable) {
        assert_int_equal(cli::kCodeWidths[row.plane], row.bits);
        const bool is_rung = std::count(cli::kRungWidths.begin(), cli::kRungWidths.end(), row.bits);
        assert_int_equal(is_rung, row.bits == rung);
        rung = row.bits == rung ? row.narrower : rung;
    }
}

}  // namespace

int main(int argc, char **argv) {
    lk_test::read_arguments(argc, argv);
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_of_a_strip_has_one_code),
        cmocka_unit_test(widths_nest),
        cmocka_unit_test(sixteen_bits_are_mma_registers),
        cmocka_unit_test(examples_of_the_document),
        cmocka_unit_test(parameters_lie_in_fragment_order),
        cmocka_unit_test(bytes_of_known_plans),
        cmocka_unit_test(strips_tile_the_payload),
        cmocka_unit_test(shapes_are_checked),
        cmocka_unit_test(the_command_lists_the_widths_of_the_table),
    };
    return cmocka_run_group_tests_name("format layout", tests, nullptr, nullptr);
}
