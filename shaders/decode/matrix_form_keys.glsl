// Decode attention on a tensor core: products of queries and the keys of a page whose form is
// pushed.
//
// The partner and the outlier of a pair share bits of 2-bit codes. A strip with partners is multiplied
// twice, by the lower and by the higher bit of its codes: a partner's slot has the partner's query
// under the lower bit and the outlier's under the higher one, any other slot its own query under both.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_MATRIX_FORM_KEYS_GLSL
#define LK_SHADERS_DECODE_MATRIX_FORM_KEYS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/matrix_form_parameters.glsl"

// Where the folded queries of a slot of a token group lie, by pairs of columns.
uint folded_word(uint fold, uint slot) {
    return team * kTeamWords + (fold * kFoldSlots + slot) * kPairs;
}

// What the queries of a lane's four slots of a strip are multiplied with next to their ranges.
// Nothing here is a branch: lanes of a subgroup have strips of different widths.
struct SlotFactors {
    vec4 steps;        // between the slots' codes, for a range of 1
    vec4 places;       // that bring codes of k 8 to 15 to the size of the others
    vec4 midpoints;    // of codes
    uvec4 positions;   // in the plane of 2 bits, or beyond it
};
SlotFactors slot_factors(uint strip, uint t) {
    const uint bits = key_bits(strip);
    const uvec4 slots = strip * LK_STRIP_CHANNELS + 2u * t + uvec4(0u, 1u, 8u, 9u);
    SlotFactors factors;
    factors.positions = slots - key_end4() * LK_STRIP_CHANNELS;
    factors.places = vec4(vec2(1.0), vec2(1.0 / half_factor(bits)));
    factors.steps = vec4(step_of(bits));
    factors.midpoints = vec4(0.5 * float((1u << bits) - 1u));
    const bvec4 are_shared = lessThan(factors.positions, uvec4(2u * n_shared()));
    const bvec4 are_partners = lessThan(factors.positions, uvec4(n_shared()));
    factors.steps = mix(factors.steps, vec4(1.0 / 7.0), are_shared);
    factors.steps = mix(factors.steps, vec4(1.0), are_partners);
    factors.midpoints = mix(factors.midpoints, vec4(0.5), are_partners);
    return factors;
}

// The higher bit of a slot's codes, where strips have partners. An outlier's highest bit, worth 4 of
// its steps, lies at the higher bit of its partner's codes, worth 2. Returns what joins the product
// with the codes' midpoint.
vec2 fold_higher_bit(uint fold, uint pair, uint position, float place, vec2 folded, uint word) {
    const bool is_outlier = position - n_shared() < n_shared();
    const uint partner = position - n_shared();
    const float partner_place = (partner & 8u) != 0u ? 1.0 / half_factor(2u) : 1.0;
    const uint partner_word = pack_pair(folded * (2.0 * partner_place));
    if (position >= n_shared() && position < shared_strips() * LK_STRIP_CHANNELS)
        store_team_word(folded_word(fold, kHeadDim + position) + pair, word);
    if (is_outlier)
        store_team_word(folded_word(fold, kHeadDim + partner) + pair, partner_word);
    return is_outlier ? unpack_pair(partner_word) / partner_place : vec2(0.0);
}

const uint kProducts = kPassFolds * kPairs;

// Queries in the order of the page's slots, times the ranges of each token group of a pass; and the lane's part
// of their products with the keys' minimum + range / 2, less those of the factors as they were
// rounded with the midpoints of codes, over parameter_scale(): [token group][pair].
void fold_queries(int exponent, uint pass, out vec2 products[kProducts]) {
    const float unit = power(kLargeExponent - exponent) * parameter_scale();
    const float inverse_unit = power(exponent - kLargeExponent) / parameter_scale();
    [[unroll]] for (uint i = 0u; i < kProducts; ++i)
        products[i] = vec2(0.0);
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint task = lane + i * LK_LANES;
        const uint strip = task / 4u;
        if (strip < kStrips) {
            const SlotFactors own = slot_factors(strip, task % 4u);
            const vec4 steps = unit * own.steps;
            const vec4 code_midpoints = own.midpoints * inverse_unit / own.places;
            const uvec4 channels = slot_channels(page_parameters.channels[i], strip, task % 4u);
            uint queries_of[kSlotWords];
            load_query_words(channels, queries_of);
            [[unroll]] for (uint fold = 0u; fold < kPassFolds; ++fold)
                if (fold < pass_groups()) {
                    Parameters parameters = page_parameters.keys[i * kFolds + fold];
                    if (pass != 0u)
                        parameters = page_parameters.keys[(i + 1u) * kFolds - kPassFolds + fold];
                    const vec4 ranges = parameters_of(parameters.ranges);
                    const vec4 midpoints = 0.5 * ranges + parameters_of(parameters.minima);
                    const vec4 factors = ranges * steps;
                    uint words[kSlotWords];
                    [[unroll]] for (uint pair = 0u; pair < kPairs; ++pair)
                        [[unroll]] for (uint slot = 0u; slot < 4u; ++slot) {
                            const vec2 queries = unpack_pair(queries_of[pair * 4u + slot]);
                            const vec2 folded = queries * factors[slot];
                            const uint word = pack_pair(folded * own.places[slot]);
                            words[slot * kPairs + pair] = word;
                            products[fold * kPairs + pair] +=
                                queries * midpoints[slot] - unpack_pair(word) * code_midpoints[slot];
                            if (kHighSlots != 0u && n_shared() != 0u)
                                products[fold * kPairs + pair] -=
                                    inverse_unit * fold_higher_bit(fold, pair, own.positions[slot],
                                                                   own.places[slot], folded, word);
                        }
                    store_slot_words(folded_word(fold, strip * LK_STRIP_CHANNELS + 2u * (task % 4u)), words);
                }
        }
    }
}

// Folds the token groups of a pass. The last begins are where its scores begin, of tiles kPageTiles / kFolds at a time.
void fold_groups(int exponent, uint pass, inout vec2 begins[kFolds]) {
    vec2 products[kProducts];
    fold_queries(exponent, pass, products);
    vec2 group_begins[kPassFolds];
    [[unroll]] for (uint fold = 0u; fold < kPassFolds; ++fold) {
        vec2 of_fold[kPairs];
        [[unroll]] for (uint pair = 0u; pair < kPairs; ++pair)
            of_fold[pair] = products[fold * kPairs + pair];
        group_begins[fold] = sum_products(of_fold) * parameter_scale();
    }
    const uint first = kFolds - kPassFolds;
    [[unroll]] for (uint i = 0u; i < kPassFolds; ++i) {
        begins[first + i] = group_begins[0];
        [[unroll]] for (uint fold = 1u; fold < kPassFolds; ++fold)
            if (fold <= i && i * pass_groups() / kPassFolds == fold)
                begins[first + i] = group_begins[fold];
    }
}

// A pass multiplies tiles from here on: the last ones, whatever half of the page they are of.
const uint kPassTile = (kPasses - 1u) * kPageTiles / 2u;

// The columns of a tile in a strip: of its token group; zeros after the last strip.
ColumnMatrix folded_columns(uint tile, uint first_slot, bool is_there) {
    const uint fold = (tile - kPassTile) * n_key_groups() / kPageTiles;
    const uint at = folded_word(fold, is_there ? first_slot + row() : row()) + pair_of_lane();
    uvec2 words = uvec2(team_word(at), team_word(at + 8u * kPairs));
    if (!is_there)
        words = uvec2(0u);
    return column_matrix(words);
}
// May a token group begin with the tile? Columns are loaded without a condition.
bool may_begin_group(uint tile) { return tile * kFolds % kPageTiles == 0u; }

void multiply_key_strip(uvec4 words[4], uint bits, uint strip) {
    const uint slot = strip * LK_STRIP_CHANNELS;
    ColumnMatrix columns;
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        if (tile >= kPassTile) {
            if (may_begin_group(tile))
                columns = folded_columns(tile, slot, strip < kStrips);
            key_sums[tile] =
                multiply_add(matrix_of(code_registers(words, bits, tile)), columns, key_sums[tile]);
        }
}

// Bit `bit` of the codes of a tile of a strip of 2 bits.
uvec4 bit_registers(uvec4 words, uint bit, uint tile) {
    const uint word = words[tile / 2u];
    const uint mask = 0x10001u << bit + 2u * (tile & 1u);
    const uvec2 codes = uvec2(word, word >> 8);
    return uvec4(codes & mask, codes & mask << 4);
}
void multiply_shared_strip(uvec4 words, uint strip) {
    const uint slot = strip * LK_STRIP_CHANNELS;
    const uint high_slot = kHeadDim + slot - key_end4() * LK_STRIP_CHANNELS;
    ColumnMatrix low;
    ColumnMatrix high;
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        if (tile >= kPassTile) {
            if (may_begin_group(tile)) {
                low = folded_columns(tile, slot, strip < kStrips);
                high = folded_columns(tile, high_slot, strip < kStrips);
            }
            key_sums[tile] =
                multiply_add(matrix_of(bit_registers(words, 0u, tile)), low, key_sums[tile]);
            key_sums[tile] =
                multiply_add(matrix_of(bit_registers(words, 1u, tile)), high, key_sums[tile]);
        }
}

// The vectors of a strip of 8 or 4 bits, as code_registers() takes them for a pass's tiles.
void take_strip(Page page, Page next, uint bits, out uvec4 words[4]) {
    words = uvec4[4](uvec4(0u), uvec4(0u), uvec4(0u), uvec4(0u));
    if (kPasses == 2u) {
        if (bits == 8u) {
            words[2] = take_pass_vector(page, next);
            words[3] = take_pass_vector(page, next);
        } else {
            words[1] = take_pass_vector(page, next);
        }
    } else {
        const TwoVectors low = take_key_two(page, next);
        words[0] = low.first;
        words[1] = low.second;
        if (bits == 8u) {
            const TwoVectors high = take_key_two(page, next);
            words[2] = high.first;
            words[3] = high.second;
        }
    }
}
// Likewise, those of two strips of 2 bits.
TwoVectors take_two_strips(Page page, Page next) {
    TwoVectors two;
    if (kPasses == 2u) {
        const uvec4 words = take_pass_vector(page, next);
        two = TwoVectors(uvec4(0u, 0u, words.xy), uvec4(0u, 0u, words.zw));
    } else {
        two = take_key_two(page, next);
    }
    return two;
}

// Products of all strips with the tiles of a pass.
void multiply_key_strips(Page page, Page next) {
    const uvec4 none = uvec4(0u);
    const uint end8 = key_end8();
    const uint end4 = key_end4();
    const uint shared_end = end4 + shared_strips();
    uvec4 words[4];
    [[dont_unroll]] for (uint strip = 0u; strip < end8; ++strip) {
        take_strip(page, next, 8u, words);
        multiply_key_strip(words, 8u, strip);
    }
    [[dont_unroll]] for (uint strip = end8; strip < end4; ++strip) {
        take_strip(page, next, 4u, words);
        multiply_key_strip(words, 4u, strip);
    }
    [[dont_unroll]] for (uint strip = end4; strip < shared_end; strip += 2u) {
        const TwoVectors two = take_two_strips(page, next);
        multiply_shared_strip(two.first, strip);
        multiply_shared_strip(two.second, strip + 1u);
    }
    [[dont_unroll]] for (uint strip = shared_end; strip < kStrips; strip += 2u) {
        const TwoVectors two = take_two_strips(page, next);
        multiply_key_strip(uvec4[4](two.first, none, none, none), 2u, strip);
        multiply_key_strip(uvec4[4](two.second, none, none, none), 2u, strip + 1u);
    }
}

void multiply_pass(Page page, Page next, int exponent, uint pass, inout vec2 begins[kFolds]) {
    fold_groups(exponent, pass, begins);
    team_sync();
    multiply_key_strips(page, next);
    team_sync();  // before the folded queries are overwritten
}

// Products of the queries and the page's keys, up to factors: a tile's sums times power(
// exponent - kLargeExponent + 24), by 4 less in odd tiles. A second pass takes the place of the first, whose sums and
// begins move to the page's first tiles.
void multiply_keys(Page page, Page next, int exponent, out vec2 begins[kFolds]) {
    [[unroll]] for (uint i = 0u; i < kFolds; ++i)
        begins[i] = vec2(0.0);
    [[unroll]] for (uint tile = 0u; tile < kPageTiles; ++tile)
        key_sums[tile] = zero_sums();
    next_vector = 2u * next_two;
    if (kPasses == 1u) {
        multiply_pass(page, next, exponent, 0u, begins);
    } else {
        [[dont_unroll]] for (uint pass = 0u; pass < kPasses; ++pass) {
            [[unroll]] for (uint i = 0u; i < kPassFolds; ++i)
                begins[i] = begins[kFolds - kPassFolds + i];
            [[unroll]] for (uint tile = 0u; tile < kPageTiles / 2u; ++tile) {
                key_sums[tile] = key_sums[tile + kPageTiles / 2u];
                key_sums[tile + kPageTiles / 2u] = zero_sums();
            }
            multiply_pass(page, next, exponent, pass, begins);
        }
        next_two = next_vector / 2u;
    }
}

#endif
