// SPDX-License-Identifier: Apache-2.0
#include "format/layout.h"

namespace lk {

namespace {

// log2(16 / bits) for a power of two.
constexpr uint32_t fold_steps(uint32_t bits) { return bits == 16 ? 0 : 1 + fold_steps(2 * bits); }

constexpr uint64_t align_array(uint64_t bytes) {
    return (bytes + LK_ARRAY_ALIGN - 1) / LK_ARRAY_ALIGN * LK_ARRAY_ALIGN;
}

bool is_power_of_two(uint32_t n) { return n && !(n & (n - 1)); }

const char *raw_shape_error(const PageLayout &layout) {
    if (layout.page_tokens % LK_TILE_TOKENS || !layout.page_tokens ||
        layout.page_tokens > LK_MAX_RAW_TOKENS)
        return "tokens of a 16-bit half must be a multiple of 16 up to 1024";
    if (layout.permutes || layout.n_shared)
        return "a 16-bit half has no permutation and no shared slots";
    return layout.group ? nullptr : "group must not be 0";
}

}  // namespace

BitPosition find_bit(Side side, uint32_t page_tokens, uint32_t bits, uint32_t token,
                     uint32_t channel) {
    const uint32_t tile = token / LK_TILE_TOKENS;
    const uint32_t in_tile = token % LK_TILE_TOKENS;
    const uint32_t row = side == Side::kKey ? in_tile : channel;
    const uint32_t k = side == Side::kKey ? channel : in_tile;
    uint32_t word = LK_TILE_WORDS * tile + LK_TILE_REGISTER(row, k);
    uint32_t field = 0;
    for (uint32_t step = 0; step < fold_steps(bits); ++step) {
        field = 2 * field + (word & 1u);
        word >>= 1;
    }
    const uint32_t n_words = lane_words(page_tokens, bits);
    return {strip_word_index(n_words, LK_TILE_LANE(row, k), word),
            16 * LK_TILE_HALF(k) + bits * field};
}

uint64_t payload_bytes(const PageLayout &layout) {
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < kPlaneCount; ++p)
        bytes += static_cast<uint64_t>(layout.strips[p]) *
                 strip_bytes(layout.page_tokens, kPlaneBits[p]);
    return bytes;
}

uint32_t n_groups(const PageLayout &layout) {
    const uint32_t length = layout.axis == Axis::kChannel ? layout.page_tokens : layout.head_dim;
    return (length + layout.group - 1) / layout.group;
}

uint32_t n_parameters(const PageLayout &layout) {
    return n_groups(layout) *
           (layout.axis == Axis::kChannel ? layout.head_dim : layout.page_tokens);
}

uint32_t parameter_index(const PageLayout &layout, uint32_t stored, uint32_t token) {
    if (layout.axis == Axis::kChannel) {  // [strip][token group][16 channels]
        const uint32_t strip = stored / LK_STRIP_CHANNELS;
        const uint32_t group = token / layout.group;
        return (strip * n_groups(layout) + group) * LK_STRIP_CHANNELS +
               LK_K_ORDER(stored % LK_STRIP_CHANNELS);
    }
    // [channel group][tile][16 tokens]
    const uint32_t group = stored / layout.group;
    const uint32_t in_tile = token % LK_TILE_TOKENS;
    const uint32_t index = layout.side == Side::kKey ? LK_ROW_ORDER(in_tile) : LK_K_ORDER(in_tile);
    return group * layout.page_tokens + token / LK_TILE_TOKENS * LK_TILE_TOKENS + index;
}

uint64_t ranges_offset_bytes(const PageLayout &) { return 0; }

uint64_t minima_offset_bytes(const PageLayout &layout) {
    return align_array(static_cast<uint64_t>(n_parameters(layout)) *
                       bytes_of_parameter(layout.metadata));
}

uint64_t permutation_offset_bytes(const PageLayout &layout) {
    return 2 * minima_offset_bytes(layout);
}

uint64_t metadata_bytes(const PageLayout &layout) {
    if (layout.is_raw())
        return 0;
    return permutation_offset_bytes(layout) +
           (layout.permutes ? align_array(permutation_bytes(layout.head_dim)) : 0);
}

PageLayout raw_layout(Side side, uint32_t head_dim, uint32_t tokens) {
    PageLayout layout;
    layout.side = side;
    layout.axis = side == Side::kKey ? Axis::kChannel : Axis::kToken;
    layout.head_dim = static_cast<uint16_t>(head_dim);
    layout.page_tokens = static_cast<uint16_t>(tokens);
    layout.group = static_cast<uint16_t>(side == Side::kKey ? tokens : head_dim);
    layout.strips[kPlane16] = static_cast<uint16_t>(head_dim / LK_STRIP_CHANNELS);
    return layout;
}

PageLayout absent_layout(uint32_t tokens) {
    PageLayout layout = raw_layout(Side::kValue, 0, tokens);
    layout.group = 1;  // groups are counted by division
    return layout;
}

const char *layout_error(const PageLayout &layout) {
    if (layout.head_dim < 32 || layout.head_dim > LK_MAX_HEAD_DIM ||
        layout.head_dim % LK_STRIP_CHANNELS)
        return "head_dim must be a multiple of 16 from 32 to 576";
    if (layout.side == Side::kValue && layout.head_dim > LK_MAX_PLAIN_DIM)
        return "head_dim of a V page must be at most 512";
    uint32_t strips = 0;
    for (const uint16_t n : layout.strips)
        strips += n;
    if (strips * LK_STRIP_CHANNELS != layout.head_dim)
        return "strips must cover head_dim";
    if (layout.is_raw())
        return raw_shape_error(layout);
    if (layout.page_tokens != 32 && layout.page_tokens != 64 && layout.page_tokens != 128)
        return "page_tokens must be 32, 64 or 128";
    for (uint32_t p = 0; p < kPlaneCount; ++p)
        if (layout.strips[p] && layout.page_tokens < least_page_tokens(kPlaneBits[p]))
            return "1-bit planes need page_tokens of 64 or 128";
    if (2u * layout.n_shared > layout.strips[kPlane2] * LK_STRIP_CHANNELS)
        return "shared slots must fit in the 2-bit plane";
    if (layout.n_shared && layout.side != Side::kKey)
        return "shared slots are for keys";
    if (layout.axis == Axis::kChannel) {
        if (!is_power_of_two(layout.group) || layout.group < LK_MIN_GROUP ||
            layout.group > layout.page_tokens)
            return "a token group must be a power of two from 16 to page_tokens";
        if (layout.side != Side::kKey)
            return "values have channel groups";
    } else if (!layout.group || layout.group % LK_MIN_GROUP || layout.group > layout.head_dim) {
        return "a channel group must be a multiple of 16 up to head_dim";
    }
    return nullptr;
}

}  // namespace lk
