// Decode attention: the blocks of a work item.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_KV_TILES_GLSL
#define LK_SHADERS_DECODE_KV_TILES_GLSL

#include "shaders/decode/codes.glsl"
#include "shaders/decode/columns.glsl"

// The pages of a block of the item, packed or at 16 bits.
struct KvTile {
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
    uint n_shared;  // pairs of the keys
    bool has_f8_keys;
    bool has_f8_values;
};

const uint kKvTileQuads = 4u;
shared uvec4 shared_kv_tiles[kKvTiles * kKvTileQuads];

void store_kv_tile(WorkTile work_tile, uint index, uint at) {
    const BlockInfo info = load_block(work_tile.step, work_tile.item.first_block + item_block(work_tile.item, index));
    const Entry entry = load_entry(info.entries, work_tile.layer.first_entry + work_tile.item.kv_head);
    const FormatInfo keys = load_format(work_tile.step.formats, entry.key_format);
    const FormatInfo values = load_format(work_tile.step.formats, entry.value_format);
    const uint end8 = keys.strips[LK_PLANE_OF(16)] + keys.strips[LK_PLANE_OF(8)];
    const uint key_groups = keys.is_raw ? 0u : keys.n_groups;
    const uint value_groups = values.is_raw ? 1u : values.n_groups;
    const uint value_bits = values.is_raw           ? 16u
                            : values.strips[LK_PLANE_OF(8)] != 0u ? 8u
                            : values.strips[LK_PLANE_OF(4)] != 0u ? 4u
                            : values.strips[LK_PLANE_OF(2)] != 0u ? 2u
                                                    : 1u;
    Address permutation = keys.permutation;
    if (keys.permutes)
        permutation = address_add(entry.key_metadata, keys.permutation_offset);
    uvec4 last;
    last.x = keys.strips[LK_PLANE_OF(16)] | end8 << 8 | end8 + keys.strips[LK_PLANE_OF(4)] << 16 |
             info.capacity_tokens / LK_TILE_TOKENS << 24;
    last.y = key_groups | value_groups << 8 | value_bits << 16 |
             (values.is_raw ? kValueStrips : values.group / LK_STRIP_CHANNELS) << 24;
    last.z = keys.parameter_bytes & 1u | (values.parameter_bytes & 1u) << 1;
    if (kShared != 0u)
        last.z |= keys.n_shared << 8;
    last.w = info.first_token;
    shared_kv_tiles[at * kKvTileQuads] = uvec4(entry.key_payload, entry.value_payload);
    shared_kv_tiles[at * kKvTileQuads + 1u] = uvec4(entry.key_metadata, entry.value_metadata);
    shared_kv_tiles[at * kKvTileQuads + 2u] =
        uvec4(permutation, keys.minima_offset, values.minima_offset);
    shared_kv_tiles[at * kKvTileQuads + 3u] = last;
}

// A KV tile without tokens, for teams that have none but go through the exchanges of the others.
void store_no_kv_tile(uint at) {
    shared_kv_tiles[at * kKvTileQuads + 2u] = uvec4(0u);
    shared_kv_tiles[at * kKvTileQuads + 3u] =
        uvec4(kStrips * 0x10101u, 1u << 8 | 16u << 16 | kValueStrips << 24, 0u, 0u);
}

KvTile load_kv_tile(uint at) {
    const uvec4 payloads = shared_kv_tiles[at * kKvTileQuads];
    const uvec4 metadata = shared_kv_tiles[at * kKvTileQuads + 1u];
    const uvec4 addresses = shared_kv_tiles[at * kKvTileQuads + 2u];
    const uvec4 last = shared_kv_tiles[at * kKvTileQuads + 3u];
    KvTile kv_tile;
    kv_tile.key_payload = payloads.xy;
    kv_tile.value_payload = payloads.zw;
    kv_tile.key_metadata = metadata.xy;
    kv_tile.value_metadata = metadata.zw;
    kv_tile.permutation = addresses.xy;
    kv_tile.key_minima = addresses.z;
    kv_tile.value_minima = addresses.w;
    kv_tile.end16 = byte_of(last.x, 0u);
    kv_tile.end8 = byte_of(last.x, 1u);
    kv_tile.end4 = byte_of(last.x, 2u);
    kv_tile.n_tiles = byte_of(last.x, 3u);
    kv_tile.key_groups = byte_of(last.y, 0u);
    kv_tile.value_groups = byte_of(last.y, 1u);
    kv_tile.value_bits = byte_of(last.y, 2u);
    kv_tile.value_group_strips = byte_of(last.y, 3u);
    kv_tile.n_shared = kShared != 0u ? byte_of(last.z, 1u) : 0u;
    kv_tile.has_f8_keys = kParameterBytes == 0u ? (last.z & 1u) != 0u : kParameterBytes == 1u;
    kv_tile.has_f8_values = kParameterBytes == 0u ? (last.z & 2u) != 0u : kParameterBytes == 1u;
    kv_tile.first_token = last.w;
    return kv_tile;
}

// KV tiles first and up of the item, by the workgroup.
void find_kv_tiles(WorkTile work_tile, uint first) {
    const uint n = work_tile.item.raw_count[0] + work_tile.item.raw_count[1] + work_tile.item.packed_count;
    barrier();
    for (uint at = gl_LocalInvocationIndex; at < kKvTiles; at += kThreads) {
        if (first + at < n)
            store_kv_tile(work_tile, first + at, at);
        else
            store_no_kv_tile(at);
    }
    barrier();
}

#endif
