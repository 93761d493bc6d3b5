// SPDX-License-Identifier: Apache-2.0
#include "format/layout.h"

namespace lk {

namespace {

// log2(16 / bits) for a power of two.
constexpr uint32_t fold_steps(uint32_t bits) {
    return bits == 16 ? 0 : bits == 8 ? 1 : bits == 4 ? 2 : bits == 2 ? 3 : 4;
}

constexpr uint32_t metadata_width(Metadata metadata) { return metadata == Metadata::kF16 ? 2 : 1; }

constexpr uint64_t align_array(uint64_t bytes) {
    return (bytes + LK_ARRAY_ALIGN - 1) / LK_ARRAY_ALIGN * LK_ARRAY_ALIGN;
}

bool is_power_of_two(uint32_t n) { return n && !(n & (n - 1)); }

const char *raw_shape_error(const HalfShape &shape) {
    if (shape.page_tokens % LK_TILE_TOKENS || !shape.page_tokens ||
        shape.page_tokens > LK_MAX_RAW_TOKENS)
        return "tokens of a 16-bit half must be a multiple of 16 up to 1024";
    if (shape.permutes || shape.n_shared)
        return "a 16-bit half has no permutation and no shared slots";
    return shape.group ? nullptr : "group must not be 0";
}

}  // namespace

BitPlace strip_place(Side side, uint32_t page_tokens, uint32_t bits, uint32_t token,
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

uint64_t payload_bytes(const HalfShape &shape) {
    uint64_t bytes = 0;
    for (uint32_t p = 0; p < kPlaneCount; ++p)
        bytes +=
            static_cast<uint64_t>(shape.strips[p]) * strip_bytes(shape.page_tokens, kPlaneBits[p]);
    return bytes;
}

StripPlace strip_at(const HalfShape &shape, uint32_t strip) {
    uint64_t offset = 0;
    uint32_t p = 0;
    while (strip >= shape.strips[p]) {
        strip -= shape.strips[p];
        offset +=
            static_cast<uint64_t>(shape.strips[p]) * strip_bytes(shape.page_tokens, kPlaneBits[p]);
        ++p;
    }
    const auto plane = static_cast<Plane>(p);
    if (plane != kPlane3)
        return {
            plane, strip,
            offset + static_cast<uint64_t>(strip) * strip_bytes(shape.page_tokens, kPlaneBits[p]),
            0};
    const uint64_t low = strip_bytes(shape.page_tokens, 2);
    const uint64_t high = strip_bytes(shape.page_tokens, 1);
    return {plane, strip, offset + strip * low, offset + shape.strips[p] * low + strip * high};
}

uint32_t n_groups(const HalfShape &shape) {
    const uint32_t length = shape.axis == Axis::kChannel ? shape.page_tokens : shape.head_dim;
    return (length + shape.group - 1) / shape.group;
}

uint32_t n_parameters(const HalfShape &shape) {
    return n_groups(shape) * (shape.axis == Axis::kChannel ? shape.head_dim : shape.page_tokens);
}

uint32_t parameter_index(const HalfShape &shape, uint32_t slot, uint32_t token) {
    if (shape.axis == Axis::kChannel) {  // [strip][token group][16 channels]
        const uint32_t strip = slot / LK_STRIP_CHANNELS;
        const uint32_t group = token / shape.group;
        return (strip * n_groups(shape) + group) * LK_STRIP_CHANNELS +
               LK_K_ORDER(slot % LK_STRIP_CHANNELS);
    }
    // [channel group][tile][16 tokens]
    const uint32_t group = slot / shape.group;
    const uint32_t in_tile = token % LK_TILE_TOKENS;
    const uint32_t place = shape.side == Side::kKey ? LK_ROW_ORDER(in_tile) : LK_K_ORDER(in_tile);
    return group * shape.page_tokens + token / LK_TILE_TOKENS * LK_TILE_TOKENS + place;
}

uint64_t ranges_offset_bytes(const HalfShape &) { return 0; }

uint64_t minima_offset_bytes(const HalfShape &shape) {
    return align_array(static_cast<uint64_t>(n_parameters(shape)) * metadata_width(shape.metadata));
}

uint64_t permutation_offset_bytes(const HalfShape &shape) { return 2 * minima_offset_bytes(shape); }

uint64_t metadata_bytes(const HalfShape &shape) {
    if (shape.is_raw())
        return 0;
    return permutation_offset_bytes(shape) + (shape.permutes ? align_array(shape.head_dim) : 0);
}

HalfShape raw_shape(Side side, uint32_t head_dim, uint32_t tokens) {
    HalfShape shape;
    shape.side = side;
    shape.axis = side == Side::kKey ? Axis::kChannel : Axis::kToken;
    shape.head_dim = static_cast<uint16_t>(head_dim);
    shape.page_tokens = static_cast<uint16_t>(tokens);
    shape.group = static_cast<uint16_t>(side == Side::kKey ? tokens : head_dim);
    shape.strips[kPlane16] = static_cast<uint16_t>(head_dim / LK_STRIP_CHANNELS);
    return shape;
}

const char *shape_error(const HalfShape &shape) {
    if (shape.head_dim < 32 || shape.head_dim > LK_MAX_HEAD_DIM ||
        shape.head_dim % LK_STRIP_CHANNELS)
        return "head_dim must be a multiple of 16 from 32 to 256";
    uint32_t strips = 0;
    for (const uint16_t n : shape.strips)
        strips += n;
    if (strips * LK_STRIP_CHANNELS != shape.head_dim)
        return "strips must cover head_dim";
    if (shape.is_raw())
        return raw_shape_error(shape);
    if (shape.page_tokens != 32 && shape.page_tokens != 64 && shape.page_tokens != 128)
        return "page_tokens must be 32, 64 or 128";
    if (shape.page_tokens < 64 && (shape.strips[kPlane1] || shape.strips[kPlane3]))
        return "1-bit planes need page_tokens of 64 or 128";
    if (2u * shape.n_shared > shape.strips[kPlane2] * LK_STRIP_CHANNELS)
        return "shared slots must fit in the 2-bit plane";
    if (shape.n_shared && shape.side != Side::kKey)
        return "shared slots are for keys";
    if (shape.axis == Axis::kChannel) {
        if (!is_power_of_two(shape.group) || shape.group < LK_MIN_GROUP ||
            shape.group > shape.page_tokens)
            return "a token group must be a power of two from 16 to page_tokens";
        if (shape.side != Side::kKey)
            return "values have channel groups";
    } else if (!shape.group || shape.group % LK_MIN_GROUP || shape.group > shape.head_dim) {
        return "a channel group must be a multiple of 16 up to head_dim";
    }
    return nullptr;
}

}  // namespace lk
