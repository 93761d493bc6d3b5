// Codes of a half page and the words that hold them: docs/FORMAT.md, sections 4, 5 and 9.4. A team
// of a tile's lanes writes a strip.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PACK_WORDS_GLSL
#define LK_SHADERS_PACK_WORDS_GLSL

#include "pack_groups.glsl"

// A lane's words of a strip of 1, 2, 4, 8 or 16 bits, in the order of its tiles, stored by four.
struct WordWriter {
    Address strip;
    uint bits;
    uint word;
    uvec4 last;
};
WordWriter begin_words(Address strip, uint bits) {
    return WordWriter(strip, bits, 0u, uvec4(0u));
}

// Register r of a tile, whose halves are codes.
void put_codes(inout WordWriter writer, uint tile, uint r, uint codes, uint lane) {
    const uint at = LK_TILE_WORDS * tile + r;
    const uint steps = fold_steps(writer.bits);
    const uint last_folded = (1u << steps) - 1u;
    writer.word |= codes << fold_bit(at, writer.bits);
    if ((at & last_folded) != last_folded)
        return;
    writer.last = uvec4(writer.last.yzw, writer.word);
    writer.word = 0u;
    const uint word = at >> steps;
    const uint n_words = lane_words(half_class.page_tokens, writer.bits);
    if (word % LK_VECTOR_WORDS == LK_VECTOR_WORDS - 1u)
        Quads(writer.strip).at[word / LK_VECTOR_WORDS * LK_LANES + lane] = writer.last;
    else if (n_words == 2u && word == 1u)
        Pairs(writer.strip).at[lane] = writer.last.zw;
    else if (n_words == 1u)
        Words(writer.strip).at[lane] = writer.last.w;
}

// Of a lane's elements in a tile: of its four k, or of its two rows.
struct LaneQuantizers {
    Quantizer parts[4];
};
LaneQuantizers load_quantizers(uint strip, uint tile, uint lane) {
    const bool by_row = scales_by_row(half_class);
    const uint entry = first_entry(half_class, strip, tile) + lane_entry(by_row, lane);
    LaneQuantizers lane_quantizers;
    for (uint i = 0u; i < 4u; ++i)
        lane_quantizers.parts[i] = make_quantizer(parameters[entry + (by_row ? i & 1u : i)],
                                                  half_class.number_bytes == 1u);
    return lane_quantizers;
}

uint quantize_pair(LaneQuantizers quantizers, uint pair, uint r, uint bits, bool by_row) {
    const uint low = quantize(half_to_float(pair & 0xFFFFu),
                              quantizers.parts[part_of_entry(by_row, r, 0u)], bits);
    const uint high = quantize(half_to_float(pair >> 16),
                               quantizers.parts[part_of_entry(by_row, r, 1u)], bits);
    return low | high << 16;
}

// A value of a plane with shared slots, quantized to 1, 2 or 3 bits.
uint shared_slot_code(uint slot, uint token, uint bits) {
    const uint in_tile = token % LK_TILE_TOKENS;
    const uint place = half_class.is_token_axis ? LK_ROW_ORDER(in_tile)
                                                : LK_K_ORDER(slot % LK_STRIP_CHANNELS);
    const uint entry =
        first_entry(half_class, slot / LK_STRIP_CHANNELS, token / LK_TILE_TOKENS) + place;
    return quantize(half_to_float(slot_half(slot, token)),
                    make_quantizer(parameters[entry], half_class.number_bytes == 1u), bits);
}

// The two bits of a slot: a partner holds the highest bit of its outlier's code. in_plane: the slot
// as the plane counts.
uint shared_field(uint slot, uint in_plane, uint token) {
    const uint bits = shared_bits(half_class, in_plane);
    const uint code = shared_slot_code(slot, token, bits) & 3u;
    if (bits != 1u)
        return code;
    return code | shared_slot_code(slot + half_class.n_shared, token, 3u) >> 2 << 1;
}

// Register r of a tile of keys with shared slots, value by value: a plane has few of them.
uint shared_codes(StripPlace place, uint strip, uint tile, uint r, uint lane) {
    const uint token = tile * LK_TILE_TOKENS + LK_TILE_ROW(lane, r);
    const uint k = LK_TILE_K(lane, r);
    const uint slot = strip * LK_STRIP_CHANNELS + k;
    const uint in_plane = place.in_plane * LK_STRIP_CHANNELS + k;
    return shared_field(slot, in_plane, token) |
           shared_field(slot + 1u, in_plane + 1u, token) << 16;
}

void write_strip(uint strip, uint lane) {
    const StripPlace place = find_strip(half_class, strip);
    const bool by_row = scales_by_row(half_class);
    const bool has_shared =
        place.bits == 2u && place.in_plane * LK_STRIP_CHANNELS < 2u * half_class.n_shared;
    WordWriter low = begin_words(address_add(job.payload, place.offset),
                                 place.bits == 3u ? 2u : place.bits);
    WordWriter high = begin_words(address_add(job.payload, place.high_offset), 1u);
    LaneQuantizers quantizers;
    for (uint tile = 0u; tile < page_tiles(); ++tile) {
        const uvec4 registers = load_tile(strip, tile, lane);
        if (place.bits < 16u)
            quantizers = load_quantizers(strip, tile, lane);
        for (uint r = 0u; r < LK_TILE_WORDS; ++r) {
            uint codes = registers[r];
            if (has_shared)
                codes = shared_codes(place, strip, tile, r, lane);
            else if (place.bits < 16u)
                codes = quantize_pair(quantizers, codes, r, place.bits, by_row);
            if (place.bits == 3u) {
                put_codes(high, tile, r, codes >> 2 & 0x10001u, lane);
                codes &= 0x30003u;
            }
            put_codes(low, tile, r, codes, lane);
        }
    }
}

#endif
