// Keys of new tokens before they are rounded to FP16: centered, scaled and rotated. An includer has
// AppendPush as push constants.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PACK_KEYS_GLSL
#define LK_SHADERS_PACK_KEYS_GLSL

#include "shaders/pack/new_tokens.glsl"
#include "shaders/rotate.glsl"

layout(constant_id = LK_SPEC_ROTATES) const uint kRotates = 0u;

// Of eight channels of a head's keys.
struct KeyChanges {
    Address centers;   // 0 = none
    Address inverses;  // of scales, likewise
    uint rotation;     // LayerInfo.key_rotation
};
KeyChanges key_changes(LayerInfo layer, bool is_value, uint head, uint channel) {
    KeyChanges changes = KeyChanges(Address(0u), Address(0u), 0u);
    if (!is_value && !is_null(layer.key_centers))
        changes.centers = address_at(layer.key_centers, head * layer.head_dim + channel, 4u);
    if (!is_value && !is_null(layer.key_inverses))
        changes.inverses = address_at(layer.key_inverses, head * layer.head_dim + channel, 4u);
    if (!is_value && kRotates != 0u)
        changes.rotation = layer.key_rotation;
    return changes;
}

// Keys that saturate by any inverse are cut first, so that no product is infinite.
float change_key(float key, KeyChanges changes, uint i) {
    precise float changed = key;
    if (!is_null(changes.centers))
        changed = changed - ConstFloats(changes.centers).at[i];
    if (!is_null(changes.inverses) || changes.rotation != 0u)
        changed = cut_for_rotation(changed);
    if (!is_null(changes.inverses))
        changed = changed * ConstFloats(changes.inverses).at[i];
    return changed;
}

Chunk take_keys(RawEight raw, uint dtype, KeyChanges changes) {
    Chunk chunk = Chunk(uvec4(0u), 0u, false);
    FloatEight keys = FloatEight(vec4(0.0), vec4(0.0));
    for (uint i = 0u; i < kChunk; ++i) {
        const uint bits = float_bits_of(raw, dtype, i);
        if (!float_is_finite(bits)) {
            chunk.has_fault = true;
            continue;
        }
        const float changed = change_key(uintBitsToFloat(bits), changes, i);
        if (i < 4u)
            keys.low[i] = changed;
        else
            keys.high[i - 4u] = changed;
    }
    if (changes.rotation != 0u)
        keys = rotate_eight(keys, changes.rotation);
    for (uint i = 0u; i < kChunk; ++i) {
        const float key = i < 4u ? keys.low[i] : keys.high[i - 4u];
        chunk.words[i / 2u] |= take_float(floatBitsToUint(key), chunk) << 16u * (i & 1u);
    }
    return chunk;
}

// The whole workgroup calls it where keys are rotated.
Chunk take_chunk(RawEight raw, uint dtype, KeyChanges changes) {
    if (is_null(changes.centers) && is_null(changes.inverses) && changes.rotation == 0u)
        return take_eight(raw, dtype);
    return take_keys(raw, dtype, changes);
}

#endif
