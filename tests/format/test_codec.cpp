// Packing, unpacking, shared slots, ranking, shrinking of whole strips.
//
// SPDX-License-Identifier: Apache-2.0
#include "cases.h"
#include "suite.h"

#include <algorithm>
#include <cmath>
#include <random>

using namespace lk;

namespace {

PageLayout base_shape(Side side, uint32_t head_dim, uint32_t page_tokens) {
    PageLayout layout;
    layout.side = side;
    layout.axis = side == Side::kKey ? Axis::kChannel : Axis::kToken;
    layout.head_dim = static_cast<uint16_t>(head_dim);
    layout.page_tokens = static_cast<uint16_t>(page_tokens);
    layout.group = 16;
    return layout;
}

// Every mix of two widths, then random ones with and without shared slots.
std::vector<PageLayout> mixes() {
    std::vector<PageLayout> all;
    lk_test::Lcg lcg = {7};
    for (const Side side : {Side::kKey, Side::kValue})
        for (const uint32_t page : {32u, 64u, 128u}) {
            for (uint32_t a = 0; a < kPlaneCount; ++a)
                for (uint32_t b = 0; b < kPlaneCount; ++b) {
                    PageLayout layout = base_shape(side, 48, page);
                    layout.strips[a] = static_cast<uint16_t>(layout.strips[a] + 1);
                    layout.strips[b] = static_cast<uint16_t>(layout.strips[b] + 2);
                    all.push_back(layout);
                }
            for (uint32_t n = 0; n < 20; ++n) {
                PageLayout layout = base_shape(side, 32 + 16 * (lcg.next() >> 16) % 240, page);
                layout.head_dim = static_cast<uint16_t>(layout.head_dim / 16 * 16);
                for (uint32_t strip = 0; strip < layout.head_dim / 16u; ++strip)
                    ++layout.strips[(lcg.next() >> 16) % kPlaneCount];
                if (side == Side::kKey)
                    layout.n_shared = static_cast<uint16_t>((lcg.next() >> 16) %
                                                            (8u * layout.strips[kPlane2] + 1));
                all.push_back(layout);
            }
        }
    all.erase(std::remove_if(all.begin(), all.end(),
                             [](const PageLayout &s) { return layout_error(s) != nullptr; }),
              all.end());
    return all;
}

uint32_t expected_bits(const PageLayout &layout, uint32_t slot) {
    uint32_t first = 0;
    for (uint32_t p = 0; p < kPlaneCount; ++p) {
        const uint32_t n = layout.strips[p] * 16u;
        if (slot < first + n) {
            const uint32_t i = slot - first;
            if (p == kPlane2 && i < 2u * layout.n_shared)
                return i < layout.n_shared ? 1 : 3;
            return kPlaneBits[p];
        }
        first += n;
    }
    return 0;
}

void codes_come_back(void **) {
    lk_test::Lcg lcg = {11};
    for (const PageLayout &layout : mixes()) {
        std::vector<uint8_t> payload(payload_bytes(layout), 0xA5);
        std::vector<uint32_t> codes;
        for (uint32_t slot = 0; slot < layout.head_dim; ++slot) {
            const uint32_t bits = code_bits(layout, slot);
            assert_int_equal(bits, expected_bits(layout, slot));
            for (uint32_t token = 0; token < layout.page_tokens; ++token) {
                codes.push_back(lcg.next() >> (32 - bits));
                write_code(layout, payload.data(), slot, token, codes.back());
            }
        }
        size_t i = 0;
        for (uint32_t slot = 0; slot < layout.head_dim; ++slot)
            for (uint32_t token = 0; token < layout.page_tokens; ++token)
                assert_int_equal(read_code(layout, payload.data(), slot, token), codes[i++]);
    }
}

uint32_t count_bits(const std::vector<uint8_t> &bytes) {
    uint32_t n = 0;
    for (const uint8_t byte : bytes)
        n += static_cast<uint32_t>(__builtin_popcount(byte));
    return n;
}

void codes_fill_the_payload_and_touch_only_their_own(void **) {
    for (const PageLayout &layout : mixes()) {
        std::vector<uint8_t> payload(payload_bytes(layout));
        uint32_t expected = 0;
        for (uint32_t slot = 0; slot < layout.head_dim; ++slot)
            for (uint32_t token = 0; token < layout.page_tokens; ++token) {
                expected += code_bits(layout, slot);
                write_code(layout, payload.data(), slot, token, top_code(code_bits(layout, slot)));
                if (layout.head_dim <= 48 && token % 16 == 5)
                    assert_int_equal(count_bits(payload), expected);
            }
        assert_int_equal(count_bits(payload), expected);
        assert_int_equal(expected, 8 * payload.size());
    }
}

void shared_slots_are_a_two_bit_page(void **) {
    lk_test::Lcg lcg = {13};
    for (const uint16_t n_shared :
         {uint16_t{1}, uint16_t{9}, uint16_t{16}, uint16_t{23}, uint16_t{32}}) {
        PageLayout uniform = base_shape(Side::kKey, 64, 64);
        uniform.strips[kPlane2] = 4;
        PageLayout shared = uniform;
        shared.n_shared = n_shared;
        assert_null(layout_error(shared));
        assert_int_equal(payload_bytes(shared), payload_bytes(uniform));
        assert_int_equal(metadata_bytes(shared), metadata_bytes(uniform));
        std::vector<uint8_t> payload(payload_bytes(uniform));
        for (uint8_t &byte : payload)
            byte = static_cast<uint8_t>(lcg.next() >> 24);
        std::vector<uint8_t> again(payload.size());
        for (uint32_t token = 0; token < 64; ++token)
            for (uint32_t slot = 0; slot < 64; ++slot) {
                const uint32_t two = read_code(uniform, payload.data(), slot, token);
                const uint32_t code = read_code(shared, payload.data(), slot, token);
                if (slot < n_shared)
                    assert_int_equal(code, two & 1);
                else if (slot < 2u * n_shared)
                    assert_int_equal(
                        code,
                        two | read_code(uniform, payload.data(), slot - n_shared, token) >> 1 << 2);
                else
                    assert_int_equal(code, two);
                write_code(shared, again.data(), slot, token, code);
            }
        assert_memory_equal(again.data(), payload.data(), payload.size());
    }
}

std::vector<uint16_t> unpack(const lk_test::Packed &page) {
    std::vector<uint16_t> values(size_t{page.layout.page_tokens} * page.layout.head_dim);
    unpack_page(page.layout, page.payload.data(), page.metadata.data(),
                page.permutation.empty() ? nullptr : page.permutation.data(),
                page.layout.page_tokens, values.data(), page.layout.head_dim);
    return values;
}

bool is_saturated(Metadata metadata, const Parameters &p) {
    if (metadata == Metadata::kF16)
        return p.range_bits == kHalfMax;
    return p.range_bits == 0x7F || p.minimum_bits == 0x7F || p.minimum_bits == 0xFF;
}

// How far a value lies outside the levels of a group that need not reach its extremes.
double beyond_levels(const lk_test::Case &c, uint32_t bits, float x, const Parameters &p) {
    if (!(bits == 1 && c.ranges.one_bit == OneBit::kDeviation) && !(bits == 2 && c.ranges.clip < 1))
        return 0;
    const double below = static_cast<double>(p.minimum) - static_cast<double>(x);
    return std::max({0.0, below, -below - static_cast<double>(p.range)});
}

void packed_values_are_near(void **) {
    for (const lk_test::Case &c : lk_test::cases()) {
        for (uint32_t seed = 0; seed < (lk_test::full_grid() ? 50 : 3); ++seed) {
            const lk_test::Packed page = lk_test::pack_case(c, c.seed + 77 * seed);
            const uint8_t *metadata = page.metadata.data();
            for (uint32_t slot = 0; slot < c.layout.head_dim; ++slot)
                for (uint32_t token = 0; token < c.layout.page_tokens; ++token) {
                    const uint32_t channel =
                        channel_of(c.layout, metadata, page.permutation.data(), slot);
                    const float x =
                        half_to_float(page.values[size_t{token} * c.layout.head_dim + channel]);
                    const float y =
                        unpack_value(c.layout, page.payload.data(), metadata, slot, token);
                    const uint32_t bits = code_bits(c.layout, slot);
                    if (bits == 16) {
                        assert_int_equal(float_to_bits(x), float_to_bits(y));
                        continue;
                    }
                    const Parameters p = read_parameters(c.layout, metadata, slot, token);
                    // Half a step; FP16 rounding of the range; FP32 rounding of everything else.
                    const double bound =
                        static_cast<double>(p.range) * (0.5 / top_code(bits) + 0x1p-11) + 0x1p-24 +
                        0x1p-21 * (std::fabs(static_cast<double>(x)) +
                                   std::fabs(static_cast<double>(p.minimum)));
                    const bool clipped = is_saturated(c.layout.metadata, p);
                    const double error = std::fabs(static_cast<double>(x) - static_cast<double>(y));
                    if (!clipped && !(error <= bound + beyond_levels(c, bits, x, p)))
                        fail_msg("%s, seed %u: slot %u token %u: %a became %a, bound %a", c.name,
                                 c.seed + 77 * seed, slot, token, static_cast<double>(x),
                                 static_cast<double>(y), bound);
                }
        }
    }
}

double square_error(lk_test::Case c, OneBit one_bit) {
    c.ranges.one_bit = one_bit;
    double sum = 0;
    for (uint32_t seed = 1; seed < 9; ++seed) {
        const lk_test::Packed page = lk_test::pack_case(c, seed);
        const std::vector<uint16_t> values = unpack(page);
        for (size_t i = 0; i < values.size(); ++i) {
            const double error = static_cast<double>(half_to_float(values[i])) -
                                 static_cast<double>(half_to_float(page.values[i]));
            sum += error * error;
        }
    }
    return sum;
}

// Parameters are FP8, where one channel in eleven saturates. By deviation a Gaussian group of 32
// has an error of 0.35 of its variance, by its extremes 2.0 of it.
void deviation_has_less_error(void **) {
    const lk_test::Case *c = lk_test::find_case("key-1-page128");
    const double share = square_error(*c, OneBit::kDeviation) / square_error(*c, OneBit::kRange);
    if (!(share > 0.1 && share < 0.4))
        fail_msg("the square error is %g of the range's", share);
}

// The mean square error of standard normal values in groups of some tokens.
double normal_error(uint32_t group, float clip) {
    PageLayout layout = base_shape(Side::kKey, 128, 128);
    layout.group = static_cast<uint16_t>(group);
    layout.strips[kPlane2] = 8;
    std::mt19937 random(5);
    std::normal_distribution<float> draw;
    constexpr uint32_t kPages = 8;
    std::vector<uint16_t> values(128 * 128);
    std::vector<uint16_t> again(values.size());
    std::vector<uint8_t> payload(payload_bytes(layout)), metadata(metadata_bytes(layout));
    double sum = 0;
    for (uint32_t page = 0; page < kPages; ++page) {
        bool saturated = false;
        for (uint16_t &value : values)
            value = float_to_half(draw(random), &saturated);
        pack_page(layout, {OneBit::kRange, clip}, {values.data(), 128}, nullptr, payload.data(),
                  metadata.data());
        unpack_page(layout, payload.data(), metadata.data(), nullptr, 128, again.data(), 128);
        for (size_t i = 0; i < values.size(); ++i) {
            const double error = static_cast<double>(half_to_float(again[i])) -
                                 static_cast<double>(half_to_float(values[i]));
            sum += error * error;
        }
    }
    return sum / (kPages * static_cast<double>(values.size()));
}

void clips_have_less_error(void **) {
    const struct {
        uint32_t group;
        float clip;
        double error;
    } cases[] = {{32, 1, 0.158},
                 {32, 0.7f, 0.105},
                 {128, 1, 0.250},
                 {128, 0.7f, 0.133},
                 {128, 0.55f, 0.125}};
    for (const auto &c : cases) {
        const double error = normal_error(c.group, c.clip);
        if (!(std::fabs(error - c.error) < 0.03 * c.error))
            fail_msg("groups of %u with clip %g: the error is %g, not %g", c.group,
                     static_cast<double>(c.clip), error, c.error);
    }
}

// What is packed at 4 bits, or shares its range with such, keeps it.
void clips_are_of_two_bits(void **) {
    const struct {
        Axis axis;
        uint16_t fours, twos;
        bool changes;
    } cases[] = {{Axis::kChannel, 2, 0, false},
                 {Axis::kChannel, 0, 2, true},
                 {Axis::kToken, 2, 0, false},
                 {Axis::kToken, 0, 2, true},
                 {Axis::kToken, 1, 1, false}};
    for (const auto &c : cases) {
        PageLayout layout = base_shape(Side::kKey, 32, 32);
        layout.axis = c.axis;
        layout.group = 32;
        layout.strips[kPlane4] = c.fours;
        layout.strips[kPlane2] = c.twos;
        lk_test::Lcg lcg = {3};
        const std::vector<uint16_t> values =
            lk_test::make_input(layout, lk_test::Input::kNormal, &lcg);
        std::vector<uint8_t> bytes[2];
        for (uint32_t i = 0; i < 2; ++i) {
            bytes[i].resize(payload_bytes(layout) + metadata_bytes(layout));
            pack_page(layout, {OneBit::kRange, i ? 0.5f : 1}, {values.data(), 32}, nullptr,
                      bytes[i].data(), bytes[i].data() + payload_bytes(layout));
        }
        assert_int_equal(bytes[0] != bytes[1], c.changes);
    }
}

void constant_groups_are_exact(void **) {
    const lk_test::Case *c = lk_test::find_case("key-4-constant");
    const lk_test::Packed page = lk_test::pack_case(*c, c->seed);
    const std::vector<uint16_t> values = unpack(page);
    assert_memory_equal(values.data(), page.values.data(), values.size() * 2);
    for (const uint8_t byte : page.payload)
        assert_int_equal(byte, 0);
}

void one_bit_of_a_constant_is_exact(void **) {
    PageLayout layout = base_shape(Side::kKey, 32, 64);
    layout.strips[kPlane1] = 2;
    for (const uint32_t value : {0x3C01u, 0xFBFFu, 0x0001u, 0x8001u}) {
        const std::vector<uint16_t> values(32 * 64, static_cast<uint16_t>(value));
        std::vector<uint8_t> payload(payload_bytes(layout)), metadata(metadata_bytes(layout));
        pack_page(layout, {OneBit::kDeviation, 1}, {values.data(), 32}, nullptr, payload.data(),
                  metadata.data());
        std::vector<uint16_t> again(values.size());
        unpack_page(layout, payload.data(), metadata.data(), nullptr, 64, again.data(), 32);
        assert_memory_equal(again.data(), values.data(), 2 * values.size());
    }
}

void zeros_lose_their_sign(void **) {
    PageLayout layout = base_shape(Side::kValue, 32, 32);
    layout.strips[kPlane2] = 2;
    const std::vector<uint16_t> minus(32 * 32, 0x8000);
    std::vector<uint8_t> payload(payload_bytes(layout), 1), metadata(metadata_bytes(layout), 1);
    for (const Metadata m : {Metadata::kF16, Metadata::kF8}) {
        layout.metadata = m;
        pack_page(layout, {OneBit::kDeviation, 1}, {minus.data(), 32}, nullptr, payload.data(),
                  metadata.data());
        for (uint64_t i = 0; i < payload_bytes(layout); ++i)
            assert_int_equal(payload[i], 0);
        for (uint64_t i = 0; i < metadata_bytes(layout); ++i)
            assert_int_equal(metadata[i], 0);
    }
}

void unpacking_stops_where_told(void **) {
    const lk_test::Case *c = lk_test::find_case("kitty-query");
    const lk_test::Packed page = lk_test::pack_case(*c, 5);
    const std::vector<uint16_t> whole = unpack(page);
    constexpr uint32_t kStride = 70;
    constexpr uint16_t kGuard = 0x1234;
    std::vector<uint16_t> part(size_t{64} * kStride, kGuard);
    unpack_page(page.layout, page.payload.data(), page.metadata.data(), nullptr, 21, part.data(),
                kStride);
    for (uint32_t token = 0; token < 64; ++token)
        for (uint32_t channel = 0; channel < kStride; ++channel)
            assert_int_equal(part[token * kStride + channel],
                             token < 21 && channel < 64 ? whole[token * 64 + channel] : kGuard);
}

void identity_is_stored_when_the_page_permutes(void **) {
    PageLayout layout = base_shape(Side::kKey, 32, 32);
    layout.strips[kPlane4] = layout.strips[kPlane2] = 1;
    layout.permutes = 1;
    const std::vector<uint16_t> values(32 * 32, 0x3C00);
    std::vector<uint8_t> payload(payload_bytes(layout)), metadata(metadata_bytes(layout));
    pack_page(layout, {OneBit::kDeviation, 1}, {values.data(), 32}, nullptr, payload.data(),
              metadata.data());
    for (uint32_t slot = 0; slot < 32; ++slot)
        assert_int_equal(metadata[permutation_offset_bytes(layout) + slot], slot);
}

void ranking_breaks_ties_downwards(void **) {
    constexpr uint32_t kDim = 48, kTokens = 32;
    std::vector<uint16_t> keys(kDim * kTokens, 0x3C00);
    for (uint32_t token = 0; token < kTokens; ++token) {
        keys[token * kDim + 40] = 0xC400;                       // -4
        keys[token * kDim + 41] = token % 2 ? 0x4200 : 0xC200;  // +-3
        keys[token * kDim + 7] = 0x8000;
    }
    uint8_t permutation[kDim];
    rank_by_key({keys.data(), kDim}, kDim, kTokens, 16, permutation);
    const uint8_t boosted[16] = {0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 40, 41};
    assert_memory_equal(permutation, boosted, 16);
    assert_int_equal(permutation[16], 7);
    for (uint32_t slot = 17; slot < kDim; ++slot)
        assert_true(permutation[slot] > permutation[slot - 1]);
    // Only channel 41 has a range, but channel 40 no query either: all else ties at zero.
    std::vector<uint64_t> sums(kDim, uint64_t{1} << 40);
    rank_by_query_range({keys.data(), kDim}, kDim, kTokens, sums.data(), 16, permutation);
    const uint8_t by_range[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 41};
    assert_memory_equal(permutation, by_range, 16);
}

void shrinking_a_strip_maps_every_code(void **) {
    lk_test::Lcg lcg = {17};
    for (const Side side : {Side::kKey, Side::kValue})
        for (const uint32_t page : {32u, 64u, 128u})
            for (const uint32_t bits : {8u, 4u, 2u}) {
                const uint32_t n_codes = 1u << 2 * bits;
                uint32_t next = 0;
                while (next < n_codes) {
                    const uint32_t first = next;
                    std::vector<uint32_t> words(strip_bytes(page, 2 * bits) / 4);
                    PageLayout wide = base_shape(side, 16, page);
                    wide.strips[bits == 8 ? kPlane16 : bits == 4 ? kPlane8 : kPlane4] = 1;
                    PageLayout narrow = base_shape(side, 16, page);
                    narrow.strips[bits == 8 ? kPlane8 : bits == 4 ? kPlane4 : kPlane2] = 1;
                    auto *bytes = reinterpret_cast<uint8_t *>(words.data());
                    for (uint32_t token = 0; token < page; ++token)
                        for (uint32_t slot = 0; slot < 16; ++slot)
                            write_code(wide, bytes, slot, token, next++ % n_codes);
                    const uint32_t spoiler = lcg.next();
                    words.push_back(spoiler);
                    shrink_strip(words.data(), page, bits);
                    assert_int_equal(words.back(), spoiler);
                    bytes = reinterpret_cast<uint8_t *>(words.data());
                    uint32_t code = first;
                    for (uint32_t token = 0; token < page; ++token)
                        for (uint32_t slot = 0; slot < 16; ++slot)
                            assert_int_equal(read_code(narrow, bytes, slot, token),
                                             shrink_code(code++ % n_codes, bits));
                }
            }
}

// The short forms that every backend runs, on all pairs of fields that a word can hold.
void merged_words_equal_the_map(void **) {
    for (uint32_t a = 0; a < 256; ++a)
        for (uint32_t b = 0; b < 256; ++b) {
            const uint32_t word = a | b << 8 | (a ^ 0x5Au) << 16 | (b ^ 0xA5u) << 24;
            uint32_t at4 = 0, at2 = 0;
            for (uint32_t bit = 0; bit < 32; bit += 8)
                at4 |= shrink_code(word >> bit & 0xFFu, 4) << bit;
            for (uint32_t bit = 0; bit < 32; bit += 4)
                at2 |= shrink_code(word >> bit & 0xFu, 2) << bit;
            assert_int_equal(LK_SHRINK_8_TO_4(word), at4);
            assert_int_equal(LK_SHRINK_4_TO_2(word), at2);
            assert_int_equal(LK_MERGE_8_TO_4(word, ~word), at4 | LK_SHRINK_8_TO_4(~word) << 4);
            assert_int_equal(LK_MERGE_4_TO_2(word, ~word), at2 | LK_SHRINK_4_TO_2(~word) << 2);
        }
}

// PM-KVQ's own state, INT16 codes: all 65536 of them go down the whole ladder in place, and are at
// every rung what one rounding gives.
void chains_of_strips_round_once(void **) {
    constexpr uint32_t kPage = 128, kCodes = 16 * kPage;
    constexpr Plane kSteps[] = {kPlane16, kPlane8, kPlane4, kPlane2};
    for (const Side side : {Side::kKey, Side::kValue})
        for (uint32_t first = 0; first < 65536; first += kCodes) {
            std::vector<uint32_t> words(strip_bytes(kPage, 16) / 4);
            auto *bytes = reinterpret_cast<uint8_t *>(words.data());
            for (uint32_t step = 0; step < 4; ++step) {
                const uint32_t bits = kPlaneBits[kSteps[step]];
                const uint64_t divisor = 65535 / top_code(bits);
                PageLayout layout = base_shape(side, 16, kPage);
                layout.strips[kSteps[step]] = 1;
                if (step)
                    shrink_strip(words.data(), kPage, bits);
                for (uint32_t i = 0; i < kCodes; ++i)
                    if (step)
                        assert_int_equal(read_code(layout, bytes, i % 16, i / 16),
                                         (2 * uint64_t{first + i} + divisor) / (2 * divisor));
                    else
                        write_code(layout, bytes, i % 16, i / 16, first + i);
            }
        }
}

}  // namespace

int main(int argc, char **argv) {
    lk_test::read_arguments(argc, argv);
    const CMUnitTest tests[] = {
        cmocka_unit_test(codes_come_back),
        cmocka_unit_test(codes_fill_the_payload_and_touch_only_their_own),
        cmocka_unit_test(shared_slots_are_a_two_bit_page),
        cmocka_unit_test(packed_values_are_near),
        cmocka_unit_test(deviation_has_less_error),
        cmocka_unit_test(clips_have_less_error),
        cmocka_unit_test(clips_are_of_two_bits),
        cmocka_unit_test(constant_groups_are_exact),
        cmocka_unit_test(one_bit_of_a_constant_is_exact),
        cmocka_unit_test(zeros_lose_their_sign),
        cmocka_unit_test(unpacking_stops_where_told),
        cmocka_unit_test(identity_is_stored_when_the_page_permutes),
        cmocka_unit_test(ranking_breaks_ties_downwards),
        cmocka_unit_test(shrinking_a_strip_maps_every_code),
        cmocka_unit_test(merged_words_equal_the_map),
        cmocka_unit_test(chains_of_strips_round_once),
    };
    return cmocka_run_group_tests_name("format codec", tests, nullptr, nullptr);
}
