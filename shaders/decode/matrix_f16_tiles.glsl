// Decode attention on a tensor core: blocks at 16 bits, a tile of 16 tokens at a time. The teams of
// all items of a work tile share its tiles.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_MATRIX_F16_TILES_GLSL
#define LK_SHADERS_DECODE_MATRIX_F16_TILES_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/matrix_queries.glsl"

const int kWeightExponent = 14;  // weights are multiplied in FP16, this much larger

struct F16Tile {
    Address keys;  // of the tile in the first strip
    Address values;
    uint strip_vectors;
    uint first_token;
    bool is_there;
};
const uint kLookups = kTeams * LK_DECODE_ROUNDS;  // that are made at once
const uint kAddressQuads = 2u;
shared uvec4 shared_addresses[kLookups * kAddressQuads];

// Is an entry among the packed ones at 16 bits? Only where there may be such.
bool is_row(WorkTile work_tile, Entry entry) {
    return push.n_own_f16_rounds != 0u && load_format(work_tile.step.formats, entry.key_format).is_raw;
}

// Tile `index` of a block that is surely at 16 bits, or may be; none after its last one or the last token.
void store_f16_tile(WorkTile work_tile, uint row_index, bool is_sure, uint index, uint at) {
    const BlockInfo info = load_block(work_tile.step, work_tile.item.first_block + row_index);
    const Entry entry = load_entry(info.entries, work_tile.layer.first_entry + work_tile.item.kv_head);
    const uint first_token = info.first_token + index * LK_TILE_TOKENS;
    const bool is_there = index < info.capacity_tokens / LK_TILE_TOKENS &&
                          first_token < work_tile.n_history + work_tile.n_new && (is_sure || is_row(work_tile, entry));
    const uint tile_bytes = LK_TILE_TOKENS * LK_STRIP_CHANNELS * 2u;
    shared_addresses[at * kAddressQuads] = uvec4(address_add(entry.key_payload, index * tile_bytes),
                                          address_add(entry.value_payload, index * tile_bytes));
    shared_addresses[at * kAddressQuads + 1u] =
        uvec4(info.capacity_tokens / LK_TILE_TOKENS * LK_LANES, first_token, is_there ? 1u : 0u, 0u);
}

// Tiles of rounds first and up. The rounds after n_f16_rounds take 16-bit blocks among the packed
// ones, if there are any, each by the item's own teams.
void find_f16_tiles(WorkTile work_tile, uint first) {
    barrier();
    const uint n_rows = work_tile.item.raw_count[0] + work_tile.item.raw_count[1];
    for (uint at = gl_LocalInvocationIndex; at < kLookups; at += kThreads) {
        const uint round = first + at / kTeams;
        const bool is_own = round >= push.n_f16_rounds;
        const uint n = is_own ? work_tile.item.packed_count : n_rows;
        const uint index =
            (is_own ? round - push.n_f16_rounds : round * work_tile.item.n_splits + work_tile.item.split) *
                kTeams + at % kTeams;
        shared_addresses[at * kAddressQuads + 1u] = uvec4(0u);
        if (index / kPageTiles < n)
            store_f16_tile(work_tile,
                           is_own ? work_tile.item.packed_begin + index / kPageTiles
                                  : item_block(work_tile.item, index / kPageTiles),
                           !is_own, index % kPageTiles, at);
    }
    barrier();
}
F16Tile load_f16_tile(uint at) {
    const uvec4 payloads = shared_addresses[at * kAddressQuads];
    const uvec4 rest = shared_addresses[at * kAddressQuads + 1u];
    return F16Tile(payloads.xy, payloads.zw, rest.x, rest.y, rest.z != 0u);
}

// The plain queries of a strip.
ColumnMatrix query_columns(uint strip) {
    const uint at = (strip * LK_STRIP_CHANNELS + row()) * kPairs + pair_of_lane();
    return column_matrix(uvec2(query_word(at), query_word(at + 8u * kPairs)));
}

// Values of missing tokens need not be numbers: masks that make them 0, for the first two words of
// a tile and for the others.
uvec2 masks_of_tokens(uint first, uint n_tokens) {
    const uvec2 token = first + 2u * quad_lane() + uvec2(0u, 8u);
    return mix(uvec2(0u), uvec2(0xFFFFu), lessThan(token, uvec2(n_tokens))) |
           mix(uvec2(0u), uvec2(0xFFFF0000u), lessThan(token + 1u, uvec2(n_tokens)));
}

void attend_f16_tile(WorkTile work_tile, F16Tile tile) {
    uvec4 keys[kMaxStrips];
    uvec4 values[kMaxStrips];
    [[unroll]] for (uint strip = 0u; strip < kMaxStrips; ++strip)
        keys[strip] = values[strip] = uvec4(0u);
    if (tile.is_there)
        [[unroll]] for (uint strip = 0u; strip < kMaxStrips; ++strip)
            if (strip < kStrips) {
                keys[strip] = ConstQuads(tile.keys).at[strip * tile.strip_vectors + lane];
                values[strip] = ConstQuads(tile.values).at[strip * tile.strip_vectors + lane];
            }
    Column column[kColumnSets];
    columns_of_lane(column);
    const uvec2 hidden = hidden_of_lane(work_tile, column, tile.is_there, tile.first_token, 1u);
    SumMatrix sums = zero_sums();
    [[unroll]] for (uint strip = 0u; strip < kMaxStrips; ++strip)
        if (strip < kStrips)
            sums = multiply_add(matrix_of(keys[strip]), query_columns(strip), sums);
    vec4 scores = score_tile(work_tile.layer, sums, vec2(column[0].factor, column[1].factor),
                             vec2(column[0].shift, column[1].shift));
    scores = hide_scores(scores, hidden, 0u);
    const vec2 factors = raise_row_maxes(max(scores.xy, scores.zw));
    const vec4 weights = weigh_tile(scores) * power(kWeightExponent);
    const ColumnMatrix columns = column_matrix(uvec2(pack_pair(weights.xy), pack_pair(weights.zw)));
    const uvec2 masks = masks_of_tokens(tile.first_token, work_tile.n_history + work_tile.n_new);
    [[unroll]] for (uint strip = 0u; strip < kMaxStrips; ++strip)
        if (strip < kStrips) {
            const uvec4 kept = uvec4(values[strip].xy & masks.x, values[strip].zw & masks.y);
            const SumMatrix products = multiply_add(matrix_of(kept), columns, zero_sums());
            add_outputs(strip, factors, sums_of(products) * power(-kWeightExponent));
        }
}

#endif
