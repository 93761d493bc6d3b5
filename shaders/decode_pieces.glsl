// Decode attention: the rows of a work item, and its query columns.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_PIECES_GLSL
#define LK_SHADERS_DECODE_PIECES_GLSL

#include "attend_output.glsl"
#include "decode_codes.glsl"
#include "decode_unit.glsl"

// A row of the item, packed or at 16 bits.
struct Piece {
    Address key_payload;
    Address value_payload;
    Address key_metadata;
    Address value_metadata;
    Address permutation;  // of the keys' slots, 0 = none
    uint first_token;
    uint key_minima;  // bytes into the metadata
    uint value_minima;
    uint end16;  // strips of the keys before this one are 16 bits, and so on
    uint end8;
    uint end4;
    uint n_tiles;  // of tokens
    uint key_groups;
    uint value_groups;
    uint value_bits;
    uint value_group_strips;
    bool has_f8_keys;
    bool has_f8_values;
};

const uint kPieceQuads = 4u;
shared uvec4 shared_pieces[kPieces * kPieceQuads];

// Row `index` of the item: those of its two runs of raw rows come first.
uint item_row(WorkItem item, uint index) {
    if (index < item.raw_count[0])
        return item.raw_begin[0] + index;
    index -= item.raw_count[0];
    return index < item.raw_count[1] ? item.raw_begin[1] + index
                                     : item.packed_begin + index - item.raw_count[1];
}

void store_piece(Unit unit, uint index, uint at) {
    const RowInfo info = load_row(unit.step, unit.item.first_row + item_row(unit.item, index));
    const Entry entry = load_entry(info.entries, unit.layer.first_entry + unit.item.kv_head);
    const ClassInfo keys = load_class(unit.step.classes, entry.key_class);
    const ClassInfo values = load_class(unit.step.classes, entry.value_class);
    const uint end8 = keys.strips[0] + keys.strips[1];
    const uint key_groups = keys.is_raw ? 0u : keys.n_groups;
    const uint value_groups = values.is_raw ? 1u : values.n_groups;
    const uint value_bits = values.is_raw           ? 16u
                            : values.strips[1] != 0u ? 8u
                            : values.strips[2] != 0u ? 4u
                                                    : 2u;
    Address permutation = keys.permutation;
    if (keys.permutes)
        permutation = address_add(entry.key_metadata, keys.permutation_offset);
    uvec4 last;
    last.x = keys.strips[0] | end8 << 8 | end8 + keys.strips[2] << 16 |
             info.capacity_tokens / LK_TILE_TOKENS << 24;
    last.y = key_groups | value_groups << 8 | value_bits << 16 |
             (values.is_raw ? kStrips : values.group / LK_STRIP_CHANNELS) << 24;
    last.z = keys.number_bytes & 1u | (values.number_bytes & 1u) << 1;
    last.w = info.first_token;
    shared_pieces[at * kPieceQuads] = uvec4(entry.key_payload, entry.value_payload);
    shared_pieces[at * kPieceQuads + 1u] = uvec4(entry.key_metadata, entry.value_metadata);
    shared_pieces[at * kPieceQuads + 2u] =
        uvec4(permutation, keys.minima_offset, values.minima_offset);
    shared_pieces[at * kPieceQuads + 3u] = last;
}

// A piece without tokens, for teams that have none but go through the exchanges of the others.
void store_no_piece(uint at) {
    shared_pieces[at * kPieceQuads + 2u] = uvec4(0u);
    shared_pieces[at * kPieceQuads + 3u] = uvec4(kStrips * 0x10101u, 1u << 8 | 16u << 16 | kStrips << 24, 0u, 0u);
}

Piece load_piece(uint at) {
    const uvec4 payloads = shared_pieces[at * kPieceQuads];
    const uvec4 metadata = shared_pieces[at * kPieceQuads + 1u];
    const uvec4 places = shared_pieces[at * kPieceQuads + 2u];
    const uvec4 last = shared_pieces[at * kPieceQuads + 3u];
    Piece piece;
    piece.key_payload = payloads.xy;
    piece.value_payload = payloads.zw;
    piece.key_metadata = metadata.xy;
    piece.value_metadata = metadata.zw;
    piece.permutation = places.xy;
    piece.key_minima = places.z;
    piece.value_minima = places.w;
    piece.end16 = byte_of(last.x, 0u);
    piece.end8 = byte_of(last.x, 1u);
    piece.end4 = byte_of(last.x, 2u);
    piece.n_tiles = byte_of(last.x, 3u);
    piece.key_groups = byte_of(last.y, 0u);
    piece.value_groups = byte_of(last.y, 1u);
    piece.value_bits = byte_of(last.y, 2u);
    piece.value_group_strips = byte_of(last.y, 3u);
    piece.has_f8_keys = (last.z & 1u) != 0u;
    piece.has_f8_values = (last.z & 2u) != 0u;
    piece.first_token = last.w;
    return piece;
}

// Pieces first and up of the item, by the workgroup.
void find_pieces(Unit unit, uint first) {
    const uint n = unit.item.raw_count[0] + unit.item.raw_count[1] + unit.item.packed_count;
    barrier();
    for (uint at = gl_LocalInvocationIndex; at < kPieces; at += kThreads) {
        if (first + at < n)
            store_piece(unit, first + at, at);
        else
            store_no_piece(at);
    }
    barrier();
}

// The columns' queries, brought below 1 by a power of two, and what the columns see.
shared Number shared_queries[kHeadDim * kColumns];  // [channel][column]
struct Column {
    uint position;
    uvec2 ancestors;  // bit i: it sees new token i
    float factor;     // from products to scores in powers of two
    float shift;      // the score of the keys' center
};
shared Column shared_columns[kColumns];

Column make_column(Unit unit, uint column, float factor, float shift) {
    const uint i = (unit.first_column + column) / unit.group_size;
    Column made;
    made.position = unit.n_history + i;
    made.ancestors = uvec2(i < 31u ? (2u << i) - 1u : ~0u, i < 32u ? 0u : (2u << i - 32u) - 1u);
    made.factor = factor;
    made.shift = shift;
    if (unit.item.has_tree) {
        made.position = load_position(unit.step, unit.item.first_new + i);
        made.ancestors = load_ancestors(unit.step, unit.item.first_new + i);
    }
    return made;
}

void load_queries(Unit unit) {
    const uint kCount = (kHeadDim + LK_LANES - 1u) / LK_LANES;
    for (uint first = 0u; first < kColumns; first += kTeams) {
        const uint column = first + team;
        const bool is_real = column < unit.n_columns;
        const ColumnPlace place = place_column(unit, is_real ? column : 0u);
        const Address from = tensor_row(push.queries, place.token, place.head);
        const Address centers =
            address_at(unit.layer.key_centers, unit.item.kv_head, 4u * kHeadDim);
        const Address scales = address_at(unit.layer.key_scales, unit.item.kv_head, 4u * kHeadDim);
        const bool has_centers = !is_null(unit.layer.key_centers);
        const bool has_scales = !is_null(unit.layer.key_scales);
        float query[kCount];
        float most = 0.0;
        float center = 0.0;  // the lane's part of the query's product with the keys' center
        [[unroll]] for (uint i = 0u; i < kCount; ++i) {
            const uint channel = lane + i * LK_LANES;
            query[i] = 0.0;
            if (is_real && channel < kHeadDim)
                query[i] = load_element(from, push.queries.dtype, channel);
            if (has_centers && channel < kHeadDim)
                center = fma(query[i], ConstFloats(centers).at[channel], center);
            if (has_scales && channel < kHeadDim)
                query[i] *= ConstFloats(scales).at[channel];
            most = max(most, abs(query[i]));
        }
        center = team_sum(center);
        const int exponent = clamp(exponent_above(team_max(most)), -100, 100);
        [[unroll]] for (uint i = 0u; i < kCount; ++i) {
            const uint channel = lane + i * LK_LANES;
            if (column < kColumns && channel < kHeadDim)
                shared_queries[channel * kColumns + column] = Number(query[i] * power(-exponent));
        }
        if (lane == 0u && column < kColumns)
            shared_columns[column] = make_column(unit, is_real ? column : 0u,
                                                 unit.layer.scale * kLog2E * power(exponent),
                                                 unit.layer.scale * kLog2E * center);
    }
}

bool in_window(Unit unit, Column column, uint at) {
    return unit.layer.window_tokens == 0u || at + unit.layer.window_tokens > column.position ||
           at < unit.layer.window_sink_tokens;
}
bool sees(Unit unit, Column column, uint token) {
    if (token < unit.n_history)
        return in_window(unit, column, token);
    const uint i = token - unit.n_history;
    if (i >= unit.n_new || (column.ancestors[i >> 5] >> (i & 31u) & 1u) == 0u)
        return false;
    if (unit.item.has_tree)
        token = load_position(unit.step, unit.item.first_new + i);
    return in_window(unit, column, token);
}
// Is any token of [first, end) hidden from any column?
bool hides(Unit unit, uint first, uint end) {
    if (end > unit.n_history + (unit.n_new == 1u ? 1u : 0u))
        return true;
    const uint latest = unit.n_history + unit.item.n_new - 1u;
    return unit.layer.window_tokens != 0u && end > unit.layer.window_sink_tokens &&
           first + unit.layer.window_tokens <= latest;
}

#endif
