// Attention of many columns: the slots, FP16 keys and values of all tokens of a sequence for some KV
// heads, as registers of matrices: [tile of 16 tokens][strip][lane]. A token has its place by its
// position, its channels are in their own order.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_SLOTS_GLSL
#define LK_SHADERS_PREFILL_SLOTS_GLSL

#include "shaders/prefill/limits.h"
#include "shaders/prefill/mask.glsl"

uint count_tokens(SequenceInfo sequence) { return sequence.n_history + sequence.n_new; }

// The keys or the values of a head of the dispatch.
Address slots_of(SequenceInfo sequence, uint head_dim, uint head, uint side) {
    const uint n = LK_SLOT_TOKENS(count_tokens(sequence));
    return address_at(push.slots, (2u * head + side) * n, 2u * head_dim);
}

// Where (token, channel) lies in them, in FP16 numbers.
uint slot_offset(uint head_dim, bool is_value, uint token, uint channel) {
    const uint strip = token / LK_TILE_TOKENS * (head_dim / LK_STRIP_CHANNELS) +
                       channel / LK_STRIP_CHANNELS;
    const uint in_tile = token % LK_TILE_TOKENS;
    const uint in_strip = channel % LK_STRIP_CHANNELS;
    return strip * kTileValues + (is_value ? row_offset(in_strip) + k_offset(in_tile)
                                           : row_offset(in_tile) + k_offset(in_strip));
}

#endif
