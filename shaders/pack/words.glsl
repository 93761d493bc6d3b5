// Codes of a page and the words that hold them: docs/FORMAT.md, sections 4, 5 and 9.4. A team of a
// tile's lanes writes a strip.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PACK_WORDS_GLSL
#define LK_SHADERS_PACK_WORDS_GLSL

#include "shaders/pack/groups.glsl"

// A lane's words of a strip of 1, 2, 4 or 8 bits, in the order of its tiles, stored by four.
struct WordWriter {
    Address strip;
    uint bits;
    uint word;
    uvec4 last;
};
WordWriter begin_words(Address strip, uint bits) {
    return WordWriter(strip, bits, 0u, uvec4(0u));
}

void put_word(inout WordWriter writer, uint index, uint word, uint lane) {
    const uint n_words = lane_words(page_format.page_tokens, writer.bits);
    writer.last = uvec4(writer.last.yzw, word);
    if (index % LK_VECTOR_WORDS == LK_VECTOR_WORDS - 1u)
        Quads(writer.strip).at[index / LK_VECTOR_WORDS * LK_LANES + lane] = writer.last;
    else if (n_words == 2u && index == 1u)
        Pairs(writer.strip).at[lane] = writer.last.zw;
    else if (n_words == 1u)
        Words(writer.strip).at[lane] = writer.last.w;
}
// A tile's codes of up to 4 bits, two in each of its registers, each in 4 bits of a word.
uint join_codes(uvec4 codes) { return codes.x | codes.y << 8 | codes.z << 4 | codes.w << 12; }
// Below 8 bits, tiles share words.
void put_fields(inout WordWriter writer, uint tile, uint fields, uint lane) {
    const uint word_tiles = 4u / writer.bits;
    writer.word |= fields << tile_bit(tile, writer.bits);
    if (tile % word_tiles != word_tiles - 1u)
        return;
    put_word(writer, tile / word_tiles, writer.word, lane);
    writer.word = 0u;
}
#ifndef LK_NEW_TOKENS
void put_codes(inout WordWriter writer, uint tile, uvec4 codes, uint lane) {
    if (writer.bits != 8u) {
        put_fields(writer, tile, join_codes(codes), lane);
        return;
    }
    put_word(writer, 2u * tile, codes.x | codes.y << 8, lane);
    put_word(writer, 2u * tile + 1u, codes.z | codes.w << 8, lane);
}
#endif

// Quantizers of the lower and the higher number of each register that a lane has of a tile.
struct LaneQuantizers {
    Quantizer low;
    Quantizer high;
};
LaneQuantizers load_quantizers(uint strip, uint tile, uint lane) {
    const bool by_row = scales_by_row(page_format);
    const uint first = first_entry(page_format, strip, tile) + lane_entry(by_row, lane);
    uvec4 found = parameters[first / 4u];
    if (by_row)
        found = first % 4u == 0u ? found.xyxy : found.zwzw;
    const Quantizer q = make_quantizer(found, page_format.parameter_bytes == 1u);
    if (by_row)
        return LaneQuantizers(q, q);
    return LaneQuantizers(Quantizer(q.minimum.xxzz, q.range.xxzz, q.inverse.xxzz),
                          Quantizer(q.minimum.yyww, q.range.yyww, q.inverse.yyww));
}

uvec4 quantize_tile(LaneQuantizers quantizers, uvec4 registers, uint bits) {
    const uvec4 low = quantize(f16_to_floats(registers & 0xFFFFu), quantizers.low, bits);
    const uvec4 high = quantize(f16_to_floats(registers >> 16), quantizers.high, bits);
    return low | high << 16;
}

#ifdef LK_NEW_TOKENS
// Thresholds of the ordered pairs of each register that a lane has of a tile: of 1 bit, or of 2 bits.
struct LaneThresholds {
    uvec4 least[3];
};
LaneThresholds load_thresholds(uint strip, uint tile, uint lane, uint bits) {
    const bool by_row = scales_by_row(page_format);
    const uint first = first_entry(page_format, strip, tile) + lane_entry(by_row, lane);
    const uvec2 a = thresholds[first];
    const uvec2 b = thresholds[first + 1u];
    const uvec2 c = by_row ? a : thresholds[first + 2u];
    const uvec2 d = by_row ? b : thresholds[first + 3u];
    // By row a register has two numbers of one row, else numbers of two k.
    const uvec4 low = by_row ? uvec4(a.x, b.x, a.x, b.x) : uvec4(a.x, a.x, c.x, c.x);
    const uvec4 high = by_row ? low : uvec4(b.x, b.x, d.x, d.x);
    LaneThresholds found;
    if (bits == 1u) {
        found.least[0] = low & 0xFFFFu | high << 16;
        return found;
    }
    const uvec4 low_next = by_row ? uvec4(a.y, b.y, a.y, b.y) : uvec4(a.y, a.y, c.y, c.y);
    const uvec4 high_next = by_row ? low_next : uvec4(b.y, b.y, d.y, d.y);
    found.least[0] = low >> 16 | high & 0xFFFF0000u;
    found.least[1] = low_next & 0xFFFFu | high_next << 16;
    found.least[2] = low_next >> 16 | high_next & 0xFFFF0000u;
    return found;
}
uvec4 compare_tile(LaneThresholds thresholds, uvec4 ordered, uint bits) {
    const uvec4 first = reach(ordered, thresholds.least[0]);
    if (bits == 1u)
        return first >> 15;
    const uvec4 second = reach(ordered, thresholds.least[1]);
    const uvec4 third = reach(ordered, thresholds.least[2]);
    return second >> 14 | (first & ~second | third) >> 15;
}
#endif

// A value of a plane with shared slots, quantized to 1, 2 or 3 bits.
uint shared_slot_code(uint slot, uint token, uint bits) {
    const uint in_tile = token % LK_TILE_TOKENS;
    const uint position = page_format.is_token_axis ? LK_ROW_ORDER(in_tile)
                                                : LK_K_ORDER(slot % LK_STRIP_CHANNELS);
    const uint entry =
        first_entry(page_format, slot / LK_STRIP_CHANNELS, token / LK_TILE_TOKENS) + position;
    const uint found = parameters[entry / 4u][entry % 4u];
    const Quantizer q = make_quantizer(uvec4(found), page_format.parameter_bytes == 1u);
    const uint value = source_f16(slot_offsets[slot] + source_token_offset(token));
    return quantize(vec4(half_to_float(value)), q, bits).x;
}

// The two bits of a slot: a partner holds the highest bit of its outlier's code. in_plane: the slot
// as the plane counts.
uint shared_field(uint slot, uint in_plane, uint token) {
    const uint bits = shared_bits(page_format, in_plane);
    const uint n_codes = bits == 1u ? 2u : 1u;
    uint field = 0u;
    for (uint i = 0u; i < n_codes; ++i) {
        const uint code =
            shared_slot_code(slot + i * page_format.n_shared, token, i == 0u ? bits : 3u);
        field |= i == 0u ? code & 3u : code >> 2 << 1;
    }
    return field;
}

// A tile of keys with shared slots, value by value: a plane has few of them.
uvec4 shared_codes(StripPosition position, uint strip, uint tile, uint lane) {
    uvec4 codes = uvec4(0u);
    for (uint i = 0u; i < kLaneValues; ++i) {
        const uint k = lane_slot(false, lane, i / 2u, i % 2u);
        const uint token = tile * LK_TILE_TOKENS + lane_token(false, lane, i / 2u, i % 2u);
        const uint field = shared_field(strip * LK_STRIP_CHANNELS + k,
                                        position.in_plane * LK_STRIP_CHANNELS + k, token);
        codes[i / 2u] |= field << 16u * (i % 2u);
    }
    return codes;
}

bool has_shared_slots(StripPosition position) {
    return position.bits == 2u &&
           position.in_plane * LK_STRIP_CHANNELS < 2u * page_format.n_shared;
}

#ifndef LK_NEW_TOKENS
void copy_strip(StripPosition position, uint strip, uint lane) {
    const LaneOffsets offsets = lane_offsets(strip, lane);
    Quads target = Quads(address_add(job.payload, position.offset));
    for (uint tile = 0u; tile < page_tiles(); ++tile)
        target.at[tile * LK_LANES + lane] = load_tile(offsets, strip, tile, lane);
}

void pack_strip(StripPosition position, uint strip, uint lane) {
    const LaneOffsets offsets = lane_offsets(strip, lane);
    const bool has_shared = has_shared_slots(position);
    const uint group_tiles = page_format.is_token_axis ? 1u : page_format.group / LK_TILE_TOKENS;
    WordWriter low = begin_words(address_add(job.payload, position.offset),
                                 position.bits == 3u ? 2u : position.bits);
    WordWriter high = begin_words(address_add(job.payload, position.high_offset), 1u);
    LaneQuantizers quantizers;
    for (uint tile = 0u; tile < page_tiles(); ++tile) {
        if (tile % group_tiles == 0u)
            quantizers = load_quantizers(strip, tile, lane);
        uvec4 codes;
        if (has_shared)
            codes = shared_codes(position, strip, tile, lane);
        else
            codes = quantize_tile(quantizers, load_tile(offsets, strip, tile, lane), position.bits);
        if (position.bits == 3u) {
            put_codes(high, tile, codes >> 2 & 0x10001u, lane);
            codes &= 0x30003u;
        }
        put_codes(low, tile, codes, lane);
    }
}

void write_strip(uint strip, uint lane) {
    const StripPosition position = find_strip(page_format, strip);
    if (position.bits == 16u)
        copy_strip(position, strip, lane);
    else
        pack_strip(position, strip, lane);
}
#endif

#endif
