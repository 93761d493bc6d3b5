// Packing by slices: the tiles of a page whose values share ranges, which are those of a strip where
// groups are of tokens, and of 16 tokens where groups are of channels. A team has a slice in
// registers from the first load to the codes, so shared memory has space for several workgroups.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PACK_SLICES_GLSL
#define LK_SHADERS_PACK_SLICES_GLSL

#define LK_NEW_TOKENS  // of the files below

// Of a thread: codes of at most 4 bits of a whole page lie in shared memory.
#define LK_CODE_VECTORS 2u

#include "shaders/pack/rank.glsl"
#include "shaders/pack/words.glsl"

const uint kTileQuads = LK_MAX_PAGE_TOKENS / LK_TILE_TOKENS / 4u;

// find_strip() of the page's strips: bits, offset, high_offset, in_plane.
shared uvec4 strip_positions[LK_SLICE_TILES];

void find_strips() {
    const uint strip = gl_LocalInvocationIndex;
    if (strip >= n_strips())
        return;
    const StripPosition at = find_strip(page_format, strip);
    strip_positions[strip] = uvec4(at.bits, at.offset, at.high_offset, at.in_plane);
}
StripPosition strip_position(uint strip) {
    const uvec4 at = strip_positions[strip];
    return StripPosition(at.x, at.y, at.z, at.w, strip_entry(page_format, strip));
}

uint n_slices() { return page_format.is_token_axis ? page_tiles() : n_strips(); }
uint slice_tiles() { return page_format.is_token_axis ? n_strips() : page_tiles(); }
uint strip_of(uint slice, uint i) { return page_format.is_token_axis ? i : slice; }
uint tile_of(uint slice, uint i) { return page_format.is_token_axis ? slice : i; }

struct Slice {
    uvec4 tiles[LK_SLICE_TILES];  // ordered pairs of load_tile()
};

// A slice of a page whose slots are its channels. Channels of 8 bits more, or of the next strip, are
// at distances that are no variables.
void load_plain_slice(uint slice, uint lane, out Slice loaded) {
    const uint row = LK_TILE_ROW(lane, 0u);
    const uint k = LK_TILE_K(lane, 0u);
    const uint row_bytes = 2u * row_values;
    const uint tile_bytes = LK_TILE_TOKENS * row_bytes;
    const uint step = page_format.is_token_axis ? 2u * LK_STRIP_CHANNELS : tile_bytes;
    const uint first = slice * (page_format.is_token_axis ? tile_bytes : 2u * LK_STRIP_CHANNELS);
    if (page_format.is_value) {
        Address a = address_add(job.source, first + k * row_bytes + 2u * row);
        Address b = address_add(a, 8u * row_bytes);
        [[unroll]] for (uint i = 0u; i < LK_SLICE_TILES; ++i)
            if (i < slice_tiles()) {
                ConstF16 c = ConstF16(address_add(a, row_bytes));
                ConstF16 d = ConstF16(address_add(b, row_bytes));
                loaded.tiles[i] = uvec4(ConstF16(a).at[0], ConstF16(a).at[8], ConstF16(b).at[0],
                                        ConstF16(b).at[8]) |
                                  uvec4(c.at[0], c.at[8], d.at[0], d.at[8]) << 16;
                a = address_add(a, step);
                b = address_add(b, step);
            }
        return;
    }
    Address a = address_add(job.source, first + row * row_bytes + 2u * k);
    Address b = address_add(a, 8u * row_bytes);
    [[unroll]] for (uint i = 0u; i < LK_SLICE_TILES; ++i)
        if (i < slice_tiles()) {
            loaded.tiles[i] = uvec4(ConstWords(a).at[0], ConstWords(b).at[0], ConstWords(a).at[4],
                                    ConstWords(b).at[4]);
            a = address_add(a, step);
            b = address_add(b, step);
        }
}

// As load_tile() has it, with infinities.
void load_slice(uint slice, uint lane, out Slice loaded) {
    [[unroll]] for (uint i = 0u; i < LK_SLICE_TILES; ++i)
        loaded.tiles[i] = uvec4(0u);
    if (is_ordered()) {
        [[unroll]] for (uint i = 0u; i < LK_SLICE_TILES; ++i)
            if (i < slice_tiles()) {
                const uint strip = strip_of(slice, i);
                loaded.tiles[i] =
                    load_tile(lane_offsets(strip, lane), strip, tile_of(slice, i), lane);
            }
        return;
    }
    load_plain_slice(slice, lane, loaded);
}

// The places of infinities and NaNs have zeros.
void order_slice(inout Slice loaded) {
    if (has_infinities)
        [[unroll]] for (uint i = 0u; i < LK_SLICE_TILES; ++i)
            loaded.tiles[i] = without_infinities(loaded.tiles[i]);
    [[unroll]] for (uint i = 0u; i < LK_SLICE_TILES; ++i)
        loaded.tiles[i] = ordered_pairs(loaded.tiles[i]);
}

// The place of a slice's ranges of a group, by 16.
uint sixteen_of(uint slice, uint group) {
    return page_format.is_token_axis ? group * page_tiles() + slice
                                     : slice * page_format.n_groups + group;
}

// What the lane has met of a group of the slice, for measure_entry().
void measure_slice(Slice loaded, uint slice, uint group) {
    const GroupTiles at = group_tiles(sixteen_of(slice, group));
    const bool by_row = scales_by_row(page_format);
    const uint first = page_format.is_token_axis ? at.strip : at.tile;
    const uint n = page_format.is_token_axis ? at.n_strips
                   : at.n_strips == 0u       ? 0u
                                             : at.n_tiles;
    Extremes e = Extremes(uvec4(0xFFFFFFFFu), uvec4(0u));
    [[unroll]] for (uint i = 0u; i < LK_SLICE_TILES; ++i)
        if (i - first < n)
            add_tile(e, loaded.tiles[i], by_row);
    lane_extremes[gl_LocalInvocationIndex] = e.lowest & 0xFFFF0000u | e.highest >> 16;
}

// Ranges and minima of all slices. All threads.
void measure_slices(Slice loaded, uint slice) {
    const bool by_row = scales_by_row(page_format);
    const uint of_slice = gl_LocalInvocationIndex / LK_STRIP_CHANNELS;
    for (uint group = 0u; group < page_format.n_groups; ++group) {
        measure_slice(loaded, slice, group);
        barrier();
        if (of_slice < n_slices()) {
            const uint sixteen = sixteen_of(of_slice, group);
            measure_entry(group_tiles(sixteen), sixteen, of_slice,
                          gl_LocalInvocationIndex % LK_STRIP_CHANNELS, by_row);
        }
        barrier();
    }
}

// The eight codes that a lane has of a tile, each in 4 bits.
void keep_fields(uint strip, uint tile, uvec4 codes, uint lane) {
    lane_extremes[(strip * kTileQuads + tile / 4u) * LK_LANES + lane][tile % 4u] =
        join_codes(codes);
}

// A tile's bytes where it has 8 or 16 bits, else its codes; those of shared slots come later.
void write_tile(uvec4 ordered, uint strip, uint tile, uint lane) {
    const StripPosition position = strip_position(strip);
    const Address target = address_add(job.payload, position.offset);
    if (position.bits == 16u) {
        Quads(target).at[tile * LK_LANES + lane] = pairs_of_order(ordered);
        return;
    }
    uvec4 codes;
    if (position.bits <= 2u)
        codes = compare_tile(load_thresholds(strip, tile, lane, position.bits), ordered,
                             position.bits);
    else
        codes = quantize_tile(load_quantizers(strip, tile, lane), pairs_of_order(ordered),
                              position.bits);
    if (position.bits == 8u)
        Pairs(target).at[(tile / 2u * LK_LANES + lane) * 2u + tile % 2u] =
            uvec2(codes.x | codes.y << 8, codes.z | codes.w << 8);
    else
        keep_fields(strip, tile, codes, lane);
}

// The loop has one copy of its body, so the tiles move past it.
void write_slice(Slice loaded, uint slice, uint lane) {
    for (uint i = 0u; i < slice_tiles(); ++i) {
        write_tile(loaded.tiles[0], strip_of(slice, i), tile_of(slice, i), lane);
        [[unroll]] for (uint j = 1u; j < LK_SLICE_TILES; ++j)
            loaded.tiles[j - 1u] = loaded.tiles[j];
    }
}

// Codes of shared slots, one tile after the other.
void write_shared_slots(uint team, uint n_teams, uint lane) {
    for (uint at = team; at < n_strips() * page_tiles(); at += n_teams) {
        const uint strip = at / page_tiles();
        const uint tile = at % page_tiles();
        const StripPosition position = strip_position(strip);
        if (has_shared_slots(position))
            keep_fields(strip, tile, shared_codes(position, strip, tile, lane), lane);
    }
}

// The words of a strip of at most 4 bits.
void write_words(uint strip, uint lane) {
    const StripPosition position = strip_position(strip);
    if (position.bits > 4u)
        return;
    const bool is_split = position.bits == 3u;
    WordWriter low =
        begin_words(address_add(job.payload, position.offset), is_split ? 2u : position.bits);
    WordWriter high = begin_words(address_add(job.payload, position.high_offset), 1u);
    for (uint tile = 0u; tile < page_tiles(); ++tile) {
        const uint fields =
            lane_extremes[(strip * kTileQuads + tile / 4u) * LK_LANES + lane][tile % 4u];
        if (is_split)
            put_fields(high, tile, fields >> 2 & 0x11111111u, lane);
        put_fields(low, tile, is_split ? fields & 0x33333333u : fields, lane);
    }
}

// As many teams as a page has slices, at least. All threads.
void pack_slices() {
    const uint team = gl_LocalInvocationIndex / LK_LANES;
    const uint lane = gl_LocalInvocationIndex % LK_LANES;
    const uint n_teams = gl_WorkGroupSize.x / LK_LANES;
    const bool exists = team < n_slices();
    Slice loaded;
    load_slice(exists ? team : 0u, lane, loaded);
    order_slice(loaded);
    measure_slices(loaded, exists ? team : 0u);
    if (exists)
        write_slice(loaded, team, lane);
    if (page_format.n_shared != 0u) {
        barrier();
        write_shared_slots(team, n_teams, lane);
    }
    barrier();
    for (uint strip = team; strip < n_strips(); strip += n_teams)
        write_words(strip, lane);
}

#endif
