// Decode attention on a tensor core: how its workgroups are cut, and the queries of their columns.
//
// The teams of decode/shape.glsl are whole subgroups here. All packed pages of a dispatch have one
// form: numbers of the pipeline's, or of the push constants where a layer has several forms. So
// loops over strips read no bounds from memory. Columns come in pairs: lane 4 g + t has pair t, or
// repeats one that is there; nobody reads those sums.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_MATRIX_QUERIES_GLSL
#define LK_SHADERS_DECODE_MATRIX_QUERIES_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/output.glsl"
#include "shaders/decode/shape.glsl"
#include "shaders/decode/matrix.glsl"
#include "shaders/decode/work_tile.glsl"

layout(constant_id = LK_SPEC_VALUE_BITS) const uint kValueBits = 2u;
layout(constant_id = LK_SPEC_PERMUTATION) const uint kPermutation = 0u;
layout(constant_id = LK_SPEC_SOFT_CAP) const uint kHasSoftCap = 1u;

#ifdef LK_FORMS
layout(constant_id = LK_SPEC_KEY_FOLDS) const uint kFolds = 4u;  // token groups of keys, at most
layout(constant_id = LK_SPEC_PARAMETER_BYTES) const uint kParameterBytes = 2u;
layout(constant_id = LK_SPEC_HIGH_SLOTS) const uint kHighSlots = 64u;

// Token groups of keys are folded and multiplied in so many passes, which divides their shared memory.
#ifdef LK_FEW_FORMS
layout(constant_id = LK_SPEC_FORM) const uint kForm = 0u;
layout(constant_id = LK_SPEC_PASSES) const uint kPasses = 1u;
uint form_field(int first, int n) { return bitfieldExtract(kForm, first, n); }
#else
const uint kPasses = 1u;
uint form_field(int first, int n) { return bitfieldExtract(push.form, first, n); }
#endif
const uint kPassFolds = kFolds / kPasses;

uint key_end8() { return form_field(LK_FORM_KEY_END8); }
uint key_end4() { return form_field(LK_FORM_KEY_END4); }
uint n_shared() { return form_field(LK_FORM_SHARED); }
uint n_key_groups() { return form_field(LK_FORM_KEY_GROUPS); }
uint value_group_strips() { return form_field(LK_FORM_VALUE_STRIPS); }
// Strips with partners, by twos.
uint shared_strips() {
    if (kHighSlots == 0u)
        return 0u;
    return (n_shared() + 2u * LK_STRIP_CHANNELS - 1u) / (2u * LK_STRIP_CHANNELS) * 2u;
}
uint pass_groups() { return n_key_groups() / kPasses; }
// Divisions by numbers that are pushed take tens of instructions: find_form() makes them once.
uint form_value_groups;
uint n_value_groups() { return form_value_groups; }
uint key_minima_bytes() { return kParameterBytes * kHeadDim * n_key_groups(); }
uint value_minima_bytes() { return kParameterBytes * LK_MAX_PAGE_TOKENS * n_value_groups(); }
#else
// Strips of keys before the first are 8 bits, before the second 4 bits.
layout(constant_id = LK_SPEC_KEY_END8) const uint kKeyEnd8 = 0u;
layout(constant_id = LK_SPEC_KEY_END4) const uint kKeyEnd4 = 0u;

uint key_end8() { return kKeyEnd8; }
uint key_end4() { return kKeyEnd4; }
uint key_minima_bytes() { return 2u * kHeadDim; }
#endif

// Pages that a workgroup takes at once, and the tiles that a team has of one, from first_tile() on.
#ifdef LK_FORMS
const uint kPageParts = 1u;
#else
layout(constant_id = LK_SPEC_PAGE_PARTS) const uint kPageParts = 1u;
#endif
const uint kPagesAtOnce = kTeams / kPageParts;
const uint kTeamTiles = kPageTiles / kPageParts;
bool has_second_part() { return kPageParts > 1u && (team & 1u) != 0u; }
uint first_tile() { return has_second_part() ? kTeamTiles : 0u; }

const uint kMaxStrips = LK_MATRIX_HEAD_DIM / LK_STRIP_CHANNELS;
const uint kPairs = (kColumns + 1u) / 2u;
const uint kSlotWords = 4u * kPairs;  // of the four slots of a lane
uint pair_of_lane() { return quad_lane() % kPairs; }

uint pack_pair(vec2 values) { return packHalf2x16(values); }
vec2 unpack_pair(uint word) { return unpackHalf2x16(word); }

// A team's accumulator, relative to exp2(-row_max): of a strip and a lane's pair of columns, channel
// row(), then row() + 8. Before that, the queries as they come, [channel][column].
const uint kStripQuads = 8u * kPairs;
shared vec4 shared_outputs[kTeams * kStrips * kStripQuads];
void store_query(uint channel, uint column, float value) {
    const uint at = channel * 2u * kPairs + column;
    shared_outputs[at / 4u][at % 4u] = value;
}

#include "shaders/decode/columns.glsl"

// With a pushed form, two words at once take more registers than there are.
#if defined(LK_FORMS) && !defined(LK_FEW_FORMS)
#define LK_SINGLE_WORDS
#endif

// [channel][pair], as FP16.
#ifdef LK_SINGLE_WORDS
shared uint shared_queries[kHeadDim * kPairs];
uint query_word(uint at) { return shared_queries[at]; }
#else
shared uvec2 shared_queries[kHeadDim * kPairs / 2u];
uint query_word(uint at) { return shared_queries[at / 2u][at % 2u]; }
#endif
// Those of four channels, [pair][channel]: two pairs of a channel at once.
void load_query_words(uvec4 channels, out uint words[kSlotWords]) {
#ifdef LK_SINGLE_WORDS
    [[unroll]] for (uint i = 0u; i < kSlotWords; ++i)
        words[i] = query_word(channels[i % 4u] * kPairs + i / 4u);
#else
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        if (kPairs == 1u)
            words[i] = query_word(channels[i]);
        [[unroll]] for (uint pair = 0u; pair + 1u < kPairs; pair += 2u) {
            const uvec2 two = shared_queries[(channels[i] * kPairs + pair) / 2u];
            words[pair * 4u + i] = two.x;
            words[(pair + 1u) * 4u + i] = two.y;
        }
    }
#endif
}

#ifdef LK_FORMS
// A team's own words: folded queries, [token group of a pass][slot][pair], then ranges and midpoints of a
// channel group of values. After the slots come those of strips with partners once more, for the
// higher bit of their codes.
const uint kFoldSlots = kHeadDim + kHighSlots;
const uint kFoldedWords = kPassFolds * kFoldSlots * kPairs;
#else
// A team's own words: folded queries, [slot][pair], then ranges and midpoints of values.
const uint kFoldedWords = kHeadDim * kPairs;
#endif
const uint kParameterWords = 2u * LK_MAX_PAGE_TOKENS;
const uint kTeamWords = kFoldedWords > kParameterWords ? kFoldedWords : kParameterWords;
shared uvec4 shared_words[kTeams * kTeamWords / 4u];
uint team_word(uint at) { return shared_words[at / 4u][at % 4u]; }
void store_team_word(uint at, uint word) { shared_words[at / 4u][at % 4u] = word; }
// The words of slots 2t, 2t + 1, 2t + 8 and 2t + 9 of a strip, [slot][pair], of which the first lies at `at`: two slots
// lie side by side, and lanes of all strips would meet in the same banks word by word.
void store_slot_words(uint at, uint words[kSlotWords]) {
#ifdef LK_SINGLE_WORDS
    [[unroll]] for (uint i = 0u; i < kSlotWords; ++i) {
        const uint slot = i / kPairs;
        store_team_word(at + (slot % 2u + slot / 2u * 8u) * kPairs + i % kPairs, words[i]);
    }
#else
    [[unroll]] for (uint i = 0u; i < kSlotWords; i += 4u) {
        if (kPairs == 1u) {
            store_team_word(at, words[i]);
            store_team_word(at + 1u, words[i + 1u]);
            store_team_word(at + 8u, words[i + 2u]);
            store_team_word(at + 9u, words[i + 3u]);
        } else {
            const uint to = at + (i < 2u * kPairs ? i : i + 6u * kPairs);
            shared_words[to / 4u] = uvec4(words[i], words[i + 1u], words[i + 2u], words[i + 3u]);
        }
    }
#endif
}

float row_maxes[kColumnSets];
float row_sums[kColumnSets];  // over the lane's tokens

const float kNothing = -1e30;  // row_max before any score; above kHidden

void take_queries() {
    barrier();
    for (uint at = gl_LocalInvocationIndex; at < kHeadDim * kPairs / 2u; at += kThreads) {
        vec4 values = shared_outputs[at];
        if (kColumns == 1u)
            values.yw = vec2(0.0);
#ifdef LK_SINGLE_WORDS
        shared_queries[2u * at] = pack_pair(values.xy);
        shared_queries[2u * at + 1u] = pack_pair(values.zw);
#else
        shared_queries[at] = uvec2(pack_pair(values.xy), pack_pair(values.zw));
#endif
    }
    barrier();
}
void clear_outputs() {
    for (uint at = gl_LocalInvocationIndex; at < kTeams * kStrips * kStripQuads; at += kThreads)
        shared_outputs[at] = vec4(0.0);
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        row_maxes[set] = kNothing;
        row_sums[set] = 0.0;
    }
    barrier();
}
void add_outputs(uint strip, vec2 factors, vec4 added) {
    const uint at = (team * kStrips + strip) * kStripQuads + row() * kPairs + pair_of_lane();
    if (quad_lane() < kPairs)
        shared_outputs[at] = shared_outputs[at] * factors.xyxy + added;
}
float shared_output(uint of_team, uint channel, uint column) {
    const uint strip = channel / LK_STRIP_CHANNELS;
    const uint at =
        (of_team * kStrips + strip) * kStripQuads + channel % 8u * kPairs + column / 2u;
    return shared_outputs[at][channel / 8u % 2u * 2u + column % 2u];
}

// Raise row_max to the highest scores of the lane's tokens and others'. Returns the factor of
// earlier outputs.
vec2 raise_row_maxes(vec2 most) {
    vec2 factors;
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
        const float row_max = max(row_maxes[set], column_max(most[set]));
        factors[set] = exp2(row_maxes[set] - row_max);
        row_maxes[set] = row_max;
        row_sums[set] *= factors[set];
    }
    return factors;
}

// Twice the exponent of tanh, in powers of two, is x times this factor.
float cap_score(LayerInfo layer, float x) {
    const float power_of_tanh = exp2(clamp(x * (2.0 / layer.soft_cap), -60.0, 60.0));
    return layer.soft_cap * kLog2E * (1.0 - 2.0 / (power_of_tanh + 1.0));
}

// Of n tiles of tokens from `first` on, a bit for each 8 tokens: is the lane's token hidden from a
// column?
uint hidden_tokens(WorkTile work_tile, Column column, uint first, uint n_tiles) {
    uint hidden = 0u;
    [[dont_unroll]] for (uint i = 0u; i < 2u * n_tiles; ++i)
        if (!is_visible(work_tile, column, first + 8u * i + row()))
            hidden |= 1u << i;
    return hidden;
}
uvec2 hidden_of_lane(WorkTile work_tile, Column column[kColumnSets], bool is_there, uint first,
                     uint n_tiles) {
    uvec2 hidden = uvec2(is_there ? 0u : ~0u);
    if (is_there && hides(work_tile, first, first + n_tiles * LK_TILE_TOKENS))
        [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
            hidden[set] = hidden_tokens(work_tile, column[set], first, n_tiles);
    return hidden;
}

vec4 sums_of(SumMatrix sums) { return vec4(sums[0], sums[1], sums[2], sums[3]); }

// The sums of a tile of keys as scores: times factors, plus shifts.
vec4 score_tile(LayerInfo layer, SumMatrix sums, vec2 factors, vec2 shifts) {
    vec4 scores = sums_of(sums) * factors.xyxy + shifts.xyxy;
    if (kHasSoftCap != 0u && layer.soft_cap > 0.0)
        [[unroll]] for (uint i = 0u; i < 4u; ++i)
            scores[i] = cap_score(layer, scores[i]);
    return scores;
}
vec4 hide_scores(vec4 scores, uvec2 hidden, uint tile) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i)
        if ((hidden[i % 2u] >> 2u * tile + i / 2u & 1u) != 0u)
            scores[i] = kHidden;
    return scores;
}
vec4 weigh_tile(vec4 scores) {
    const vec4 weights = exp2(scores - vec4(row_maxes[0], row_maxes[1], row_maxes[0], row_maxes[1]));
    row_sums[0] += weights.x + weights.z;
    row_sums[1] += weights.y + weights.w;
    return weights;
}
void columns_of_lane(out Column column[kColumnSets]) {
    [[unroll]] for (uint set = 0u; set < kColumnSets; ++set)
        column[set] = shared_columns[(2u * pair_of_lane() + set) % kColumns];
}

#endif
