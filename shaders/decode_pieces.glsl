// Decode attention: the rows of a work item.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_PIECES_GLSL
#define LK_SHADERS_DECODE_PIECES_GLSL

#include "decode_codes.glsl"
#include "decode_columns.glsl"

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

void store_piece(Unit unit, uint index, uint at) {
    const BlockInfo info = load_row(unit.step, unit.item.first_row + item_row(unit.item, index));
    const Entry entry = load_entry(info.entries, unit.layer.first_entry + unit.item.kv_head);
    const FormatInfo keys = load_class(unit.step.classes, entry.key_format);
    const FormatInfo values = load_class(unit.step.classes, entry.value_format);
    const uint end8 = keys.strips[0] + keys.strips[1];
    const uint key_groups = keys.is_raw ? 0u : keys.n_groups;
    const uint value_groups = values.is_raw ? 1u : values.n_groups;
    const uint value_bits = values.is_raw           ? 16u
                            : values.strips[1] != 0u ? 8u
                            : values.strips[2] != 0u ? 4u
                            : values.strips[4] != 0u ? 2u
                                                    : 1u;
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

#endif
