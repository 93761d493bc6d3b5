// SPDX-License-Identifier: Apache-2.0
#include "cases.h"

#include <cstdio>
#include <cstring>

namespace lk_test {

using namespace lk;

namespace {

struct Planes {
    uint16_t strips[kPlaneCount];  // of 16, 8, 4, 3, 2 and 1 bits
};

PageLayout key_shape(uint16_t head_dim, uint16_t page_tokens, uint16_t group, Metadata metadata,
                     Planes planes) {
    PageLayout layout;
    layout.side = Side::kKey;
    layout.axis = Axis::kChannel;
    layout.metadata = metadata;
    layout.head_dim = head_dim;
    layout.page_tokens = page_tokens;
    layout.group = group;
    std::memcpy(layout.strips, planes.strips, sizeof layout.strips);
    return layout;
}

PageLayout token_shape(Side side, uint16_t head_dim, uint16_t page_tokens, uint16_t group,
                       Metadata metadata, Planes planes) {
    PageLayout layout = key_shape(head_dim, page_tokens, group, metadata, planes);
    layout.side = side;
    layout.axis = Axis::kToken;
    return layout;
}

PageLayout value_shape(uint16_t head_dim, uint16_t page_tokens, uint16_t group, Metadata metadata,
                       Planes planes) {
    return token_shape(Side::kValue, head_dim, page_tokens, group, metadata, planes);
}

PageLayout shared(PageLayout layout, uint16_t n_shared) {
    layout.n_shared = n_shared;
    return layout;
}

PageLayout ranked(PageLayout layout) {
    layout.permutes = 1;
    return layout;
}

std::vector<Case> make_cases() {
    constexpr Metadata f16 = Metadata::kF16;
    constexpr Metadata f8 = Metadata::kF8;
    constexpr Side key = Side::kKey;
    constexpr Ranking none = Ranking::kNone;
    constexpr Input normal = Input::kNormal;
    constexpr RangeRule deviation = {OneBit::kDeviation, 1};
    const auto clipped = [](float clip) { return RangeRule{OneBit::kRange, clip}; };
    return {
        {"key-16", raw_layout(key, 32, 32), Input::kWild, 1, none, false},
        {"key-16-sinks", raw_layout(key, 48, 48), normal, 2, none, false},
        {"value-16", raw_layout(Side::kValue, 48, 16), Input::kWild, 3, none, false},
        {"key-8", key_shape(32, 32, 32, f16, {{0, 2, 0, 0, 0, 0}}), normal, 4, none, false},
        {"key-8-page128", key_shape(32, 128, 64, f16, {{0, 2, 0, 0, 0, 0}}), normal, 5, none,
         false},
        {"key-4", key_shape(48, 64, 64, f16, {{0, 0, 3, 0, 0, 0}}), normal, 6, none, false},
        {"key-4-page32", key_shape(32, 32, 16, f16, {{0, 0, 2, 0, 0, 0}}), normal, 7, none, false},
        {"key-3", key_shape(48, 64, 32, f16, {{0, 0, 0, 3, 0, 0}}), normal, 8, none, false},
        {"key-3-page128", key_shape(32, 128, 128, f8, {{0, 0, 0, 2, 0, 0}}), normal, 9, none,
         false},
        {"key-2", key_shape(32, 32, 32, f16, {{0, 0, 0, 0, 2, 0}}), normal, 10, none, false},
        {"key-2-group16", key_shape(32, 128, 16, f16, {{0, 0, 0, 0, 2, 0}}), normal, 11, none,
         false},
        {"key-2-f8", key_shape(32, 64, 32, f8, {{0, 0, 0, 0, 2, 0}}), normal, 12, none, false},
        {"key-1", key_shape(32, 64, 16, f16, {{0, 0, 0, 0, 0, 2}}), normal, 13, none, false},
        {"key-1-page128", key_shape(32, 128, 32, f8, {{0, 0, 0, 0, 0, 2}}), normal, 14, none,
         false},
        {"value-8", value_shape(32, 32, 32, f16, {{0, 2, 0, 0, 0, 0}}), normal, 15, none, false},
        {"value-4-short-group", value_shape(80, 32, 32, f16, {{0, 0, 5, 0, 0, 0}}), normal, 16,
         none, false},
        {"value-3", value_shape(32, 64, 16, f8, {{0, 0, 0, 2, 0, 0}}), normal, 17, none, false},
        {"value-2", value_shape(64, 64, 64, f16, {{0, 0, 0, 0, 4, 0}}), normal, 18, none, false},
        {"value-2-f8-short-group", value_shape(80, 32, 48, f8, {{0, 0, 0, 0, 5, 0}}), normal, 19,
         none, false},
        {"value-1", value_shape(32, 64, 32, f16, {{0, 0, 0, 0, 0, 2}}), normal, 20, none, false},
        {"value-2-head256", value_shape(256, 32, 128, f16, {{0, 0, 0, 0, 16, 0}}), normal, 21, none,
         false},
        {"key-token-4", token_shape(key, 64, 32, 64, f16, {{0, 0, 4, 0, 0, 0}}), normal, 22, none,
         false},
        {"key-token-2-groups", token_shape(key, 80, 64, 32, f8, {{0, 0, 0, 0, 5, 0}}), normal, 23,
         none, false},
        {"key-token-mixed", token_shape(key, 64, 64, 48, f16, {{1, 0, 1, 1, 1, 0}}), normal, 24,
         none, true},
        {"key-mixed-all", key_shape(96, 64, 32, f16, {{1, 1, 1, 1, 1, 1}}), normal, 25, none, true},
        {"key-mixed-f8", key_shape(96, 128, 64, f8, {{0, 1, 2, 1, 1, 1}}), normal, 26, none, true},
        {"key-shared", shared(key_shape(64, 64, 32, f8, {{0, 0, 0, 0, 4, 0}}), 7), normal, 27, none,
         true},
        {"key-shared-strips", shared(key_shape(96, 32, 32, f16, {{0, 0, 2, 0, 4, 0}}), 21), normal,
         28, none, true},
        {"key-shared-full", shared(key_shape(32, 32, 32, f16, {{0, 0, 0, 0, 2, 0}}), 16), normal,
         29, none, true},
        {"kitty", ranked(key_shape(128, 128, 128, f16, {{0, 0, 1, 0, 7, 0}})), normal, 30,
         Ranking::kKey, false},
        {"kitty-pro", ranked(key_shape(128, 128, 128, f16, {{0, 0, 2, 0, 6, 0}})), normal, 31,
         Ranking::kKey, false},
        {"kitty-query", ranked(key_shape(64, 64, 64, f16, {{0, 0, 1, 0, 3, 0}})), normal, 32,
         Ranking::kQueryRange, false},
        {"kitty-ties", ranked(key_shape(64, 32, 32, f16, {{0, 0, 1, 0, 3, 0}})), Input::kZeros, 33,
         Ranking::kKey, false},
        {"kitty-value", value_shape(128, 128, 128, f16, {{0, 0, 0, 0, 8, 0}}), normal, 34, none,
         false},
        {"key-4-constant", key_shape(32, 32, 32, f16, {{0, 0, 2, 0, 0, 0}}), Input::kConstant, 35,
         none, false},
        {"value-2-constant-f8", value_shape(32, 32, 32, f8, {{0, 0, 0, 0, 2, 0}}), Input::kConstant,
         36, none, false},
        {"key-4-wild", key_shape(32, 64, 16, f16, {{0, 0, 2, 0, 0, 0}}), Input::kWild, 37, none,
         false},
        {"key-2-wild-f8", key_shape(32, 64, 16, f8, {{0, 0, 0, 0, 2, 0}}), Input::kWild, 38, none,
         false},
        {"value-8-wild-f8", value_shape(48, 32, 16, f8, {{0, 3, 0, 0, 0, 0}}), Input::kWild, 39,
         none, false},
        {"key-2-zeros", key_shape(32, 32, 16, f16, {{0, 0, 0, 0, 2, 0}}), Input::kZeros, 40, none,
         false},
        {"value-4-zeros-f8", value_shape(32, 32, 16, f8, {{0, 0, 2, 0, 0, 0}}), Input::kZeros, 41,
         none, false},
        {"key-4-ties", key_shape(32, 32, 16, f16, {{0, 0, 2, 0, 0, 0}}), Input::kTies, 42, none,
         false},
        {"key-2-ties", key_shape(32, 64, 32, f16, {{0, 0, 0, 0, 2, 0}}), Input::kTies, 43, none,
         false},
        {"value-1-ties", value_shape(32, 64, 32, f16, {{0, 0, 0, 0, 0, 2}}), Input::kTies, 44, none,
         false},
        {"value-8-ties", value_shape(32, 32, 16, f16, {{0, 2, 0, 0, 0, 0}}), Input::kTies, 45, none,
         false},
        {"key-1-deviation", key_shape(32, 64, 16, f16, {{0, 0, 0, 0, 0, 2}}), normal, 46, none,
         false, deviation},
        {"key-1-deviation-wild", key_shape(32, 64, 64, f16, {{0, 0, 0, 0, 0, 2}}), Input::kWild, 47,
         none, false, deviation},
        {"key-1-deviation-wild-f8", key_shape(32, 128, 32, f8, {{0, 0, 0, 0, 0, 2}}), Input::kWild,
         48, none, false, deviation},
        {"key-1-deviation-zeros", key_shape(32, 64, 16, f8, {{0, 0, 0, 0, 0, 2}}), Input::kZeros,
         49, none, false, deviation},
        {"value-1-deviation-short-group", value_shape(80, 64, 32, f8, {{0, 0, 0, 0, 0, 5}}), normal,
         50, none, false, deviation},
        {"value-1-deviation-group48", value_shape(80, 64, 48, f16, {{0, 0, 0, 0, 0, 5}}), normal,
         51, none, false, deviation},
        {"value-mixed-deviation", value_shape(96, 64, 32, f16, {{0, 0, 0, 0, 3, 3}}), normal, 52,
         none, true, deviation},
        {"key-token-1-deviation", token_shape(key, 64, 64, 64, f16, {{0, 0, 0, 0, 0, 4}}), normal,
         53, none, false, deviation},
        {"key-mixed-deviation", key_shape(96, 64, 32, f16, {{1, 1, 1, 1, 1, 1}}), normal, 54, none,
         true, deviation},
        {"chanmix", shared(key_shape(128, 128, 32, f8, {{0, 0, 0, 0, 8, 0}}), 13), normal, 55, none,
         true, deviation},
        {"key-2-clip", key_shape(32, 64, 32, f16, {{0, 0, 0, 0, 2, 0}}), normal, 56, none, false,
         clipped(0.7f)},
        {"key-2-clip-wild-f8", key_shape(32, 128, 128, f8, {{0, 0, 0, 0, 2, 0}}), Input::kWild, 57,
         none, false, clipped(0.55f)},
        {"key-2-clip-zeros", key_shape(32, 32, 16, f16, {{0, 0, 0, 0, 2, 0}}), Input::kZeros, 58,
         none, false, clipped(0.001f)},
        {"kitty-clip", ranked(key_shape(64, 64, 64, f16, {{0, 0, 1, 0, 3, 0}})), normal, 59,
         Ranking::kKey, false, clipped(0.6f)},
        {"key-mixed-clip", shared(key_shape(96, 64, 16, f8, {{0, 1, 1, 1, 2, 1}}), 9), normal, 60,
         none, true, clipped(0.85f)},
        {"key-token-mixed-clip", token_shape(key, 112, 64, 48, f16, {{1, 0, 1, 0, 4, 1}}), normal,
         61, none, true, clipped(0.7f)},
        {"value-2-clip-short-group", value_shape(80, 32, 48, f8, {{0, 0, 0, 0, 5, 0}}), normal, 62,
         none, false, clipped(0.55f)},
        {"kitty-head512", ranked(key_shape(512, 32, 32, f16, {{0, 0, 8, 0, 24, 0}})), normal, 63,
         Ranking::kKey, false},
        {"kitty-query-head272", ranked(key_shape(272, 32, 16, f16, {{0, 0, 1, 0, 16, 0}})), normal,
         64, Ranking::kQueryRange, false},
        {"key-shared-head512", shared(key_shape(512, 32, 32, f8, {{0, 2, 4, 0, 26, 0}}), 52),
         normal, 65, none, true},
        {"value-4-head512", value_shape(512, 32, 512, f16, {{0, 0, 32, 0, 0, 0}}), normal, 66, none,
         false},
        {"value-1-deviation-head512", value_shape(512, 64, 512, f8, {{0, 0, 0, 0, 0, 32}}), normal,
         67, none, false, deviation},
        {"kitty-head576", ranked(key_shape(576, 32, 32, f16, {{0, 0, 8, 0, 28, 0}})), normal, 68,
         Ranking::kKey, false},
        {"key-token-4-head576", token_shape(key, 576, 64, 64, f8, {{0, 0, 36, 0, 0, 0}}), normal,
         69, none, false},
        {"key-mixed-head576", key_shape(576, 32, 16, f16, {{4, 0, 32, 0, 0, 0}}), normal, 70, none,
         true},
        {"value-2-head192", value_shape(192, 32, 192, f16, {{0, 0, 0, 0, 12, 0}}), normal, 71, none,
         false},
    };
}

uint16_t exact_half(int32_t n, int32_t exponent) {
    bool saturated = false;
    const float scale = bits_to_float(static_cast<uint32_t>(127 + exponent) << 23);
    return float_to_half(static_cast<float>(n) * scale, &saturated);
}

uint16_t normal_value(uint32_t x, uint32_t channel) {
    int32_t n = -126;
    for (uint32_t shift = 8; shift <= 26; shift += 6)
        n += static_cast<int32_t>((x >> shift) & 63u);
    if (channel % 3 == 0)
        n += static_cast<int32_t>(channel * 37 % 64) - 32;
    return exact_half(n, static_cast<int32_t>(channel * 5 % 4) + (channel % 11 == 3 ? 4 : 0) - 5);
}

uint16_t make_value(Input input, uint32_t x, uint32_t token, uint32_t channel,
                    uint32_t group_axis) {
    switch (input) {
        case Input::kNormal: return normal_value(x, channel);
        case Input::kConstant:
            return exact_half(static_cast<int32_t>(group_axis * 29 % 97) - 48, -3);
        case Input::kWild:
            return static_cast<uint16_t>((x >> 26 & 0x1Fu) == 0x1F ? x >> 16 & 0xBFFFu : x >> 16);
        case Input::kZeros: return static_cast<uint16_t>((x >> 16 & 0x8000u) | (x >> 20 & 3u));
        case Input::kTies: break;
    }
    const uint32_t place = (token + channel) % 16;
    return exact_half(place == 0 ? 0 : place == 1 ? 30 : static_cast<int32_t>((x >> 16) % 31), -2);
}

}  // namespace

const std::vector<Case> &cases() {
    static const std::vector<Case> all = make_cases();
    return all;
}

const Case *find_case(const char *name) {
    for (const Case &c : cases())
        if (std::strcmp(c.name, name) == 0)
            return &c;
    return nullptr;
}

uint32_t n_ranked(const PageLayout &layout) {
    for (const uint16_t n : layout.strips)
        if (n)
            return n * LK_STRIP_CHANNELS;
    return 0;
}

std::vector<uint16_t> make_input(const PageLayout &layout, Input input, Lcg *lcg) {
    std::vector<uint16_t> values;
    for (uint32_t token = 0; token < layout.page_tokens; ++token)
        for (uint32_t channel = 0; channel < layout.head_dim; ++channel)
            values.push_back(make_value(input, lcg->next(), token, channel,
                                        layout.axis == Axis::kChannel ? channel : token));
    return values;
}

Packed pack_case(const Case &c, uint32_t seed) {
    Packed page;
    page.layout = c.layout;
    Lcg lcg = {seed};
    page.values = make_input(c.layout, c.input, &lcg);
    const uint32_t head_dim = c.layout.head_dim;
    for (uint32_t channel = 0; channel < head_dim; ++channel)
        page.query_stats.push_back(static_cast<uint64_t>(lcg.next()) << 12 | channel);
    const PageValues input = {page.values.data(), head_dim};
    if (c.has_fixed || c.layout.permutes)
        page.permutation.resize(permutation_bytes(head_dim));
    if (c.has_fixed)
        for (uint32_t slot = 0; slot < head_dim; ++slot)
            store_channel(page.permutation.data(), head_dim, slot, (5 * slot + 3) % head_dim);
    if (c.ranking == Ranking::kKey)
        rank_by_key(input, head_dim, c.layout.page_tokens, n_ranked(c.layout),
                    page.permutation.data());
    if (c.ranking == Ranking::kQueryRange)
        rank_by_query_range(input, head_dim, c.layout.page_tokens, page.query_stats.data(),
                            n_ranked(c.layout), page.permutation.data());
    page.payload.resize(payload_bytes(c.layout));
    page.metadata.resize(metadata_bytes(c.layout));
    pack_page(c.layout, c.ranges, input,
              page.permutation.empty() ? nullptr : page.permutation.data(), page.payload.data(),
              page.metadata.empty() ? nullptr : page.metadata.data());
    return page;
}

std::vector<uint8_t> Packed::file() const {
    const bool has_fixed = !permutation.empty() && !layout.permutes;
    const PageFile page = {layout, payload.data(), metadata.empty() ? nullptr : metadata.data(),
                           has_fixed ? permutation.data() : nullptr};
    std::vector<uint8_t> bytes(page_file_bytes(page));
    page_file_encode(page, bytes.data());
    return bytes;
}

std::vector<uint8_t> read_file(const char *path) {
    std::vector<uint8_t> bytes;
    std::FILE *file = std::fopen(path, "rb");
    if (!file)
        return bytes;
    uint8_t block[4096];
    for (size_t n; (n = std::fread(block, 1, sizeof block, file)) > 0;)
        bytes.insert(bytes.end(), block, block + n);
    std::fclose(file);
    return bytes;
}

}  // namespace lk_test
