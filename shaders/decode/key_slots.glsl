// Decode attention: the slots of the keys' strips, their channels, ranges and factors; and pairs of
// shared stored channels (docs/FORMAT.md, section 5.3).
//
// A strip with partners is multiplied twice, by the lower and by the higher bit of its codes of 2
// bits. A partner's slot has the partner's query under the lower bit and the outlier's under the
// higher one, any other slot its own query under both. An outlier's highest bit is worth 4 of its
// steps and lies where other channels have a bit worth 2, so the query is doubled there.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_KEY_SLOTS_GLSL
#define LK_SHADERS_DECODE_KEY_SLOTS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/vectors.glsl"

uvec2 load_key_parameters(KvTile kv_tile, uint offset, uint strip, uint group, uint t) {
    return load_parameters(address_add(kv_tile.key_metadata, offset),
                        ((strip * kv_tile.key_groups + group) * 4u + t) * 4u, kv_tile.has_f8_keys);
}
vec4 key_ranges(KvTile kv_tile, uint strip, uint group, uint t) {
    return to_parameters(load_key_parameters(kv_tile, 0u, strip, group, t), kv_tile.has_f8_keys);
}

// The slots 2t, 2t + 1, 2t + 8, 2t + 9 of a strip, and their channels.
uvec4 slots_of(uint strip, uint t) {
    return strip * LK_STRIP_CHANNELS + 2u * t + uvec4(0u, 1u, 8u, 9u);
}
uvec4 slot_channels(KvTile kv_tile, uint strip, uint t) {
    if (is_null(kv_tile.permutation))
        return slots_of(strip, t);
    if (kHeadDim > LK_BYTE_CHANNELS) {
        const uint first = ConstWords(kv_tile.permutation).at[strip * 8u + t];
        const uint second = ConstWords(kv_tile.permutation).at[strip * 8u + 4u + t];
        return uvec4(first, first >> 16, second, second >> 16) & 0xFFFFu;
    }
    const uint low = ConstWords(kv_tile.permutation).at[strip * 4u + t / 2u] >> (t & 1u) * 16u;
    const uint high = ConstWords(kv_tile.permutation).at[strip * 4u + 2u + t / 2u] >> (t & 1u) * 16u;
    return uvec4(low, low >> 8, high, high >> 8) & 0xFFu;
}
vec4 queries_of(uvec4 channels, uint column) {
    const uvec4 at = channels * kColumns + column;
    return vec4(shared_queries[at.x], shared_queries[at.y], shared_queries[at.z],
                shared_queries[at.w]);
}

// Strips with partners lie from end4 up to this one.
uint shared_end(KvTile kv_tile) {
    return kv_tile.end4 + (kv_tile.n_shared + LK_STRIP_CHANNELS - 1u) / LK_STRIP_CHANNELS;
}

// What the ranges of a strip of `bits` are multiplied with: 2^bits steps of each channel's codes.
vec4 slot_factors(KvTile kv_tile, uint bits, uint strip, uint t) {
    vec4 factors = vec4(code_range(bits));
    if (kShared != 0u) {
        // Beyond all pairs where the strip is before the codes of 2 bits.
        const uvec4 positions = slots_of(strip, t) - kv_tile.end4 * LK_STRIP_CHANNELS;
        const bvec4 are_shared = lessThan(positions, uvec4(2u * kv_tile.n_shared));
        const bvec4 are_partners = lessThan(positions, uvec4(kv_tile.n_shared));
        factors = mix(mix(factors, vec4(4.0 / 7.0), are_shared), vec4(4.0), are_partners);
    }
    return factors;
}

// The slots whose channels the higher bits of a strip's four slots belong to.
uvec4 slots_of_higher_bits(KvTile kv_tile, uint strip, uint t) {
    const uvec4 slots = slots_of(strip, t);
    const uvec4 positions = slots - kv_tile.end4 * LK_STRIP_CHANNELS;
    return slots + mix(uvec4(0u), uvec4(kv_tile.n_shared),
                       lessThan(positions, uvec4(kv_tile.n_shared)));
}
uint slot_row_of(uint slot) {
    return slot / LK_STRIP_CHANNELS * 4u + slot % LK_STRIP_CHANNELS % 8u / 2u;
}
float folded_query(uint slot, uint column) {
    return folded_value(slot_row_of(slot), column, slot % LK_STRIP_CHANNELS);
}
float slot_range(uint group, uint slot) {
    return range_of(group, slot_row_of(slot), slot % LK_STRIP_CHANNELS);
}
// The queries of a strip's higher bits, as load_folded() has those of the slots, and their ranges.
void load_folded_higher(KvTile kv_tile, uint strip, uvec4 slots, out Pair folded[kFolded]) {
    const vec4 factors =
        mix(vec4(1.0), vec4(2.0), notEqual(slots, slots_of(strip, quad_lane())));
    [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
        const vec4 queries =
            factors * vec4(folded_query(slots.x, column), folded_query(slots.y, column),
                           folded_query(slots.z, column), folded_query(slots.w, column));
        folded[2u * column] = to_pair(queries.xy);
        folded[2u * column + 1u] = to_pair(queries.zw);
    }
}
vec4 ranges_of_slots(uint group, uvec4 slots) {
    return vec4(slot_range(group, slots.x), slot_range(group, slots.y),
                slot_range(group, slots.z), slot_range(group, slots.w));
}

#endif
