// Decode attention: products of codes by vector arithmetic. A lane sums over its own k, then the
// quad's lanes add up what they have for the same rows.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_PRODUCTS_GLSL
#define LK_SHADERS_DECODE_PRODUCTS_GLSL

#extension GL_EXT_control_flow_attributes : require

const uint kSums = 4u * kScores;  // of a lane: [tile][row][column]

void multiply_key_tile(inout Sum sums[kSums], uint tile, Tile codes, Pair folded[kFolded]) {
    [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
        const uint at = 2u * tile * kColumns + column;
        add_product(sums[at], codes.r0, folded[2u * column]);
        add_product(sums[at], codes.r2, folded[2u * column + 1u]);
        add_product(sums[at + kColumns], codes.r1, folded[2u * column]);
        add_product(sums[at + kColumns], codes.r3, folded[2u * column + 1u]);
    }
}

// The folded queries of a token group: those of a row times its ranges.
void fold_pairs(Pair low, Pair high, Pair plain[kFolded], inout Pair folded[kFolded]) {
    [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
        folded[2u * column] = plain[2u * column] * low;
        folded[2u * column + 1u] = plain[2u * column + 1u] * high;
    }
}
void fold_ranges(uint group, uint row, Pair plain[kFolded], inout Pair folded[kFolded]) {
    const uvec2 ranges = load_ranges(group, row);
    fold_pairs(half_pair(ranges.x), half_pair(ranges.y), plain, folded);
}
void fold_higher_ranges(uint group, uvec4 slots, Pair plain[kFolded],
                        inout Pair folded[kFolded]) {
    const vec4 ranges = ranges_of_slots(group, slots);
    fold_pairs(to_pair(ranges.xy), to_pair(ranges.zw), plain, folded);
}
// Does a token group begin with the tile?
bool begins_group(KvTile kv_tile, uint tile) {
    return kGrouped != 0u && tile * kKeyGroups % kPageTiles == 0u &&
           tile * kv_tile.key_groups % kPageTiles == 0u;
}
uint group_of(KvTile kv_tile, uint tile) { return tile * kv_tile.key_groups / kPageTiles; }

// Strips [from, to), all of the same width.
void multiply_key_strips(inout Sum sums[kSums], KvTile kv_tile, uint bits, uint from, uint to,
                         inout KeyVectors vectors) {
    const uint n_tiles = 16u / bits;  // of a vector
    for (uint strip = from; strip < to; ++strip) {
        const uint row = strip * 4u + quad_lane();
        Pair plain[kFolded];
        Pair folded[kFolded];
        load_folded(row, plain);
        [[unroll]] for (uint i = 0u; i < kFolded; ++i)
            folded[i] = plain[i];
        [[unroll]] for (uint v = 0u; v < bits / 2u; ++v) {
            const uvec4 words = take_vector(kv_tile, vectors);
            [[unroll]] for (uint i = 0u; i < n_tiles; ++i) {
                const uint tile = v * n_tiles + i;
                if (begins_group(kv_tile, tile))
                    fold_ranges(group_of(kv_tile, tile), row, plain, folded);
                multiply_key_tile(sums, tile, code_tile(words, bits, i), folded);
            }
        }
    }
}

// Strips [from, to) with partners.
void multiply_shared_strips(inout Sum sums[kSums], KvTile kv_tile, uint from, uint to,
                            inout KeyVectors vectors) {
    for (uint strip = from; strip < to; ++strip) {
        const uint row = strip * 4u + quad_lane();
        const uvec4 slots = slots_of_higher_bits(kv_tile, strip, quad_lane());
        Pair plain_low[kFolded];
        Pair plain_high[kFolded];
        Pair low[kFolded];
        Pair high[kFolded];
        load_folded(row, plain_low);
        load_folded_higher(kv_tile, strip, slots, plain_high);
        [[unroll]] for (uint i = 0u; i < kFolded; ++i) {
            low[i] = plain_low[i];
            high[i] = plain_high[i];
        }
        const uvec4 words = take_vector(kv_tile, vectors);
        [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile) {
            if (begins_group(kv_tile, tile)) {
                fold_ranges(group_of(kv_tile, tile), row, plain_low, low);
                fold_higher_ranges(group_of(kv_tile, tile), slots, plain_high, high);
            }
            multiply_key_tile(sums, tile, code_tile(words, 2u, tile, 1u), low);
            multiply_key_tile(sums, tile, code_tile(words, 2u, tile, 2u), high);
        }
    }
}

void multiply_f16_key_tile(inout float sums[kSums], uint tile, uvec4 words, Pair folded[kFolded]) {
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        const vec2 low = unpackHalf2x16(words[i]);
        const vec2 high = unpackHalf2x16(words[i + 2u]);
        [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
            const uint at = (2u * tile + i) * kColumns + column;
            add_product(sums[at], low, vec2(folded[2u * column]));
            add_product(sums[at], high, vec2(folded[2u * column + 1u]));
        }
    }
}

// Strips at 16 bits, in FP32: keys may be as large as FP16 goes. A vector's place is loaded anew as
// soon as it was used. Where no page is packed, registers suffice for two strips.
void multiply_f16_strips(inout float sums[kSums], KvTile kv_tile) {
    const uint n_strips = kIsF16 ? 2u : 1u;
    const uint end = min(kv_tile.end16, end_strip());
    uvec4 words[2][kPageTiles];
    [[unroll]] for (uint s = 0u; s < 2u; ++s)
        if (s < n_strips)
            [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
                words[s][tile] = load_f16_keys(kv_tile, min(first_strip() + s, kv_tile.end16 - 1u), tile);
    for (uint first = first_strip(); first < end; first += n_strips)
        [[unroll]] for (uint s = 0u; s < 2u; ++s) {
            const uint strip = first + s;
            if (s < n_strips && strip < end) {
                Pair folded[kFolded];
                load_folded(strip * 4u + quad_lane(), folded);
                [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile) {
                    multiply_f16_key_tile(sums, tile, words[s][tile], folded);
                    if (strip + n_strips < end)
                        words[s][tile] = load_f16_keys(kv_tile, strip + n_strips, tile);
                }
            }
        }
}

// Packed strips [from, to), times unit.
void multiply_code_strips(inout float totals[kSums], KvTile kv_tile, uint from, uint to,
                          inout KeyVectors vectors, float step_scale) {
    Sum sums[kSums];
    [[unroll]] for (uint i = 0u; i < kSums; ++i)
        sums[i] = kZeroSum;
    if (has_keys(8u))
        multiply_key_strips(sums, kv_tile, 8u, from, min(to, kv_tile.end8), vectors);
    if (has_keys(4u))
        multiply_key_strips(sums, kv_tile, 4u, max(from, kv_tile.end8), min(to, kv_tile.end4),
                            vectors);
    uint end_shared = kv_tile.end4;
    if (kShared != 0u) {
        end_shared = shared_end(kv_tile);
        multiply_shared_strips(sums, kv_tile, max(from, kv_tile.end4), min(to, end_shared), vectors);
    }
    if (has_keys(2u))
        multiply_key_strips(sums, kv_tile, 2u, max(from, end_shared), to, vectors);
    [[unroll]] for (uint i = 0u; i < kSums; ++i)
        totals[i] = fma(total_of(sums[i]), step_scale, totals[i]);
}

// Products of the team's strips join the scores.
void add_key_products(KvTile kv_tile, inout KeyVectors vectors, int exponent) {
    float totals[kSums];
    [[unroll]] for (uint i = 0u; i < kSums; ++i)
        totals[i] = 0.0;
    if (kv_tile.end16 != 0u && kv_tile.n_tiles != 0u) {
        multiply_f16_strips(totals, kv_tile);
        [[unroll]] for (uint i = 0u; i < kSums; ++i)
            totals[i] *= power(-kLargeExponent);
    }
    const float step_scale = power(exponent - kLargeExponent);
    const uint end = end_strip();
    for (uint from = max(kv_tile.end16, first_strip()); from < end; from += kBlockStrips)
        multiply_code_strips(totals, kv_tile, from, min(from + kBlockStrips, end), vectors,
                             step_scale);
    [[unroll]] for (uint i = 0u; i < kScores; ++i)
        scores[i] += quad_sum(vec4(totals[4u * i], totals[4u * i + 1u], totals[4u * i + 2u],
                                   totals[4u * i + 3u]));
}

const uint kPairSums = 4u * kColumns;  // of a lane and pair of strips: [strip][row][column]

void multiply_value_tile(inout Sum sums[kPairSums], uint first, Tile codes, Pair folded[kFolded]) {
    [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
        const uint at = first + column;
        add_product(sums[at], codes.r0, folded[2u * column]);
        add_product(sums[at], codes.r2, folded[2u * column + 1u]);
        add_product(sums[at + kColumns], codes.r1, folded[2u * column]);
        add_product(sums[at + kColumns], codes.r3, folded[2u * column + 1u]);
    }
}

// A pair of strips.
void multiply_code_values(inout float totals[kPairSums], KvTile kv_tile, uint bits, uint strip) {
    const uint n_vectors = value_vectors_of(bits);
    const uint n_tiles = kPageTiles / n_vectors;  // of a vector
    Sum sums[kPairSums];
    [[unroll]] for (uint i = 0u; i < kPairSums; ++i)
        sums[i] = kZeroSum;
    [[unroll]] for (uint v = 0u; v < n_vectors; ++v) {
        const uvec4 words[2] = value_vectors;
        take_value_vectors(kv_tile, bits, strip, v);
        [[unroll]] for (uint i = 0u; i < n_tiles; ++i) {
            Pair folded[kFolded];
            const uint row = (v * n_tiles + i) * 4u + quad_lane();
            load_folded(weight_row(row), folded);
            if (kGrouped != 0u) {
                const uvec2 ranges = shared_parameters[value_ranges_row + row];
                fold_pairs(half_pair(ranges.x), half_pair(ranges.y), folded, folded);
            }
            [[unroll]] for (uint s = 0u; s < 2u; ++s)
                multiply_value_tile(sums, s * 2u * kColumns, code_tile(words[s], bits, i), folded);
        }
    }
    [[unroll]] for (uint i = 0u; i < kPairSums; ++i)
        totals[i] = total_of(sums[i]);
}

void multiply_f16_value_tile(inout float totals[kPairSums], uint first, uvec4 words,
                             Pair folded[kFolded]) {
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        const vec2 low = unpackHalf2x16(words[i]);
        const vec2 high = unpackHalf2x16(words[i + 2u]);
        [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
            const uint at = first + i * kColumns + column;
            add_product(totals[at], low, vec2(folded[2u * column]));
            add_product(totals[at], high, vec2(folded[2u * column + 1u]));
        }
    }
}

// The same at 16 bits, in FP32: values may be as large as FP16 goes. Where no page is packed, the
// vectors of a tile were loaded ahead, and those of the next pair take their place.
void multiply_f16_values(inout float totals[kPairSums], KvTile kv_tile, uint strip, uint n_tokens) {
    if (!kIsF16)
        load_f16_values(kv_tile, strip);
    const bool is_cut = kv_tile.first_token + kv_tile.n_tiles * LK_TILE_TOKENS > n_tokens;
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile) {
        Pair folded[kFolded];
        load_folded(weight_row(tile * 4u + quad_lane()), folded);
        [[unroll]] for (uint s = 0u; s < 2u; ++s) {
            if (is_cut)
                f16_values[s][tile] = keep_tile(kv_tile, f16_values[s][tile], tile, n_tokens);
            multiply_f16_value_tile(totals, s * 2u * kColumns, f16_values[s][tile], folded);
            if (kIsF16 && strip + 2u < end_value_strip())
                f16_values[s][tile] = load_f16_value(kv_tile, strip + 2u + s, tile);
        }
    }
}

// The lane's sums of a pair of strips of the values.
void multiply_value_pair(KvTile kv_tile, uint strip, bool is_there, uint n_tokens,
                         out float results[kOutputs]) {
    float totals[kPairSums];
    [[unroll]] for (uint i = 0u; i < kPairSums; ++i)
        totals[i] = 0.0;
    if (is_there) {
        if (has_values(1u) && kv_tile.value_bits == 1u)
            multiply_code_values(totals, kv_tile, 1u, strip);
        else if (has_values(2u) && kv_tile.value_bits == 2u)
            multiply_code_values(totals, kv_tile, 2u, strip);
        else if (has_values(4u) && kv_tile.value_bits == 4u)
            multiply_code_values(totals, kv_tile, 4u, strip);
        else if (has_values(8u) && kv_tile.value_bits == 8u)
            multiply_code_values(totals, kv_tile, 8u, strip);
        else
            multiply_f16_values(totals, kv_tile, strip, n_tokens);
    }
    [[unroll]] for (uint i = 0u; i < kOutputs; ++i)
        results[i] = quad_sum(
            vec4(totals[4u * i], totals[4u * i + 1u], totals[4u * i + 2u], totals[4u * i + 3u]));
}

#endif
