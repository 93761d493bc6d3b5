// From a page to numbers: the values of a tile of any page format, by section 8 of docs/FORMAT.md.
//
// A tile's lane has the rows lane / 4 and lane / 4 + 8 (tokens of keys, channels of values), and of
// both the same four k, which lie together in K order.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DEQUANTIZE_GLSL
#define LK_SHADERS_DEQUANTIZE_GLSL

#include "shaders/layout.glsl"
#include "shaders/floats.glsl"

struct LaneValues {
    vec4 low;   // row lane / 4
    vec4 high;  // row lane / 4 + 8
};

uvec4 f16_of(uvec2 words) {
    return uvec4(words.x & 0xFFFFu, words.x >> 16, words.y & 0xFFFFu, words.y >> 16);
}
uvec4 bytes_of(uint word) { return uvec4(word, word >> 8, word >> 16, word >> 24) & 0xFFu; }

// Registers of a tile as its two rows.
uvec4 low_row(uvec4 registers) { return f16_of(registers.xz); }
uvec4 high_row(uvec4 registers) { return f16_of(registers.yw); }

// Small codes by their position in a mantissa, at the rate of additions.
vec4 codes_to_floats(uvec4 codes) { return uintBitsToFloat(codes | 0x4B000000u) - 8388608.0; }

// The bytes that a lane needs of a tile, as they lie in memory.
struct LaneWords {
    uvec4 codes;    // registers at 16 bits; else words of codes, at 3 bits those of the third in .z
    uvec4 parameters;  // of ranges .xy, of minima .zw
};

// Parameters of an array of ranges or minima from `index` on: four, which begin at a multiple of four,
// or, by row, two at a multiple of two. Of FP8 the word in which they lie.
uvec2 load_parameter_words(Address array, uint parameter_bytes, uint index, bool by_row) {
    if (parameter_bytes == 1u || by_row)
        return uvec2(ConstWords(array).at[index * parameter_bytes / 4u], 0u);
    return ConstPairs(array).at[index / 4u];
}
vec4 parameters_of(uvec2 words, uint parameter_bytes, uint index) {
    return parameter_bytes == 1u ? f8s_to_floats(bytes_of(words.x >> 8u * (index % 4u)))
                              : f16_to_floats(f16_of(words));
}

uint parameter_index(FormatInfo c, StripPosition position, uint tile, uint lane) {
    return position.first_entry + tile_entry(c, tile) + lane_entry(scales_by_row(c), lane);
}

// Load a lane's words of a tile of a strip, which find_strip() has found.
LaneWords load_lane(FormatInfo c, StripPosition position, Address payload, Address metadata, uint tile,
                    uint lane) {
    const Address words = address_add(payload, position.offset);
    LaneWords lane_words;
    if (position.bits == 16u) {
        lane_words.codes = ConstQuads(words).at[tile * LK_LANES + lane];
        return lane_words;
    }
    const uint low_bits = position.bits == 3u ? 2u : position.bits;
    lane_words.codes.xy = load_code_words(words, c.page_tokens, low_bits, tile, lane);
    if (position.bits == 3u)
        lane_words.codes.zw = load_code_words(address_add(payload, position.high_offset),
                                              c.page_tokens, 1u, tile, lane);
    const uint index = parameter_index(c, position, tile, lane);
    const bool by_row = scales_by_row(c);
    lane_words.parameters.xy = load_parameter_words(metadata, c.parameter_bytes, index, by_row);
    lane_words.parameters.zw = load_parameter_words(address_add(metadata, c.minima_offset),
                                              c.parameter_bytes, index, by_row);
    return lane_words;
}

// Ranges and minima of a lane's codes; by row, .x is that of the lower and .y that of the higher.
struct LaneScale {
    vec4 range;
    vec4 minimum;
};

// Each operation is rounded on its own: a dequantized page has these values, on every device.
LaneValues scale_codes(bool by_row, LaneScale scale, vec4 code_steps, uvec4 low, uvec4 high) {
    const vec4 low_range = by_row ? scale.range.xxxx : scale.range;
    const vec4 high_range = by_row ? scale.range.yyyy : scale.range;
    const vec4 low_minimum = by_row ? scale.minimum.xxxx : scale.minimum;
    const vec4 high_minimum = by_row ? scale.minimum.yyyy : scale.minimum;
    precise const vec4 low_offset = codes_to_floats(low) * (low_range * code_steps);
    precise const vec4 high_offset = codes_to_floats(high) * (high_range * code_steps);
    precise const vec4 low_values = low_minimum + low_offset;
    precise const vec4 high_values = high_minimum + high_offset;
    return LaneValues(low_values, high_values);
}

// Bit 1 of the field of a slot of the 2-bit plane that begins at `plane`, in both rows of the lane.
uvec2 load_partner_bits(FormatInfo c, Address plane, uint slot, uint tile, uint lane) {
    const uint k = slot % LK_STRIP_CHANNELS;
    const Address strip = address_add(plane, slot / LK_STRIP_CHANNELS * (4u * c.page_tokens));
    const uvec4 registers =
        load_codes(strip, c.page_tokens, 2u, tile, LK_TILE_LANE(LK_TILE_ROW(lane, 0u), k));
    const uvec2 rows = k < 8u ? registers.xy : registers.zw;
    return rows >> 16u * LK_TILE_HALF(k) >> 1 & 1u;
}

// Shared slots: fields of two bits become codes of one, two or three, each with its own step.
void resolve_shared(FormatInfo c, StripPosition position, Address payload, uint tile, uint lane,
                    inout uvec4 low, inout uvec4 high, inout vec4 code_steps) {
    const Address plane =
        address_add(payload, position.offset - position.in_plane * (4u * c.page_tokens));
    for (uint i = 0u; i < 4u; ++i) {
        const uint k = LK_TILE_K(lane, i & 2u) + (i & 1u);
        const uint slot = position.in_plane * LK_STRIP_CHANNELS + k;
        const uint bits = shared_bits(c, slot);
        uvec2 codes = uvec2(low[i], high[i]);
        if (bits == 1u)
            codes &= 1u;
        if (bits == 3u)
            codes |= load_partner_bits(c, plane, slot - c.n_shared, tile, lane) << 2;
        low[i] = codes.x;
        high[i] = codes.y;
        code_steps[i] = code_step(bits);
    }
}

LaneValues values_of_f16(uvec4 low, uvec4 high) {
    return LaneValues(f16_to_floats(low), f16_to_floats(high));
}

// The values of what load_lane() has loaded.
LaneValues values_of(FormatInfo c, StripPosition position, Address payload, uint tile, uint lane,
                     LaneWords words) {
    if (position.bits == 16u)
        return values_of_f16(low_row(words.codes), high_row(words.codes));
    uvec4 registers = codes_of(words.codes.xy, position.bits == 3u ? 2u : position.bits, tile);
    if (position.bits == 3u)
        registers |= codes_of(words.codes.zw, 1u, tile) << 2;
    uvec4 low = low_row(registers);
    uvec4 high = high_row(registers);
    vec4 code_steps = vec4(code_step(position.bits));
    if (position.bits == 2u && c.n_shared != 0u)
        resolve_shared(c, position, payload, tile, lane, low, high, code_steps);
    const uint index = parameter_index(c, position, tile, lane);
    const LaneScale scale = LaneScale(parameters_of(words.parameters.xy, c.parameter_bytes, index),
                                      parameters_of(words.parameters.zw, c.parameter_bytes, index));
    return scale_codes(scales_by_row(c), scale, code_steps, low, high);
}

LaneValues load_values(FormatInfo c, StripPosition position, Address payload, Address metadata, uint tile,
                       uint lane) {
    return values_of(c, position, payload, tile, lane,
                     load_lane(c, position, payload, metadata, tile, lane));
}

#endif
