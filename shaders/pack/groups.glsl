// Ranges and minima of a page: docs/FORMAT.md, sections 7 and 9.2 to 9.7. Teams of a tile's lanes
// take 16 neighbouring entries of the metadata after each other.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PACK_GROUPS_GLSL
#define LK_SHADERS_PACK_GROUPS_GLSL

#include "shaders/pack/limits.h"
#include "shaders/pack/source.glsl"
#include "shaders/pack/quantize.glsl"

#ifdef LK_NEW_TOKENS
layout(constant_id = LK_SPEC_ENTRIES) const uint kEntries = 1024u;
// thresholds_of() the page's groups.
shared uvec2 thresholds[kEntries];
#define LK_LANE_VECTORS LK_CODE_VECTORS /* codes lie there afterwards */
#else
const uint kEntries = kMostHeadDim * LK_MAX_PAGE_TOKENS / LK_MIN_GROUP;
#define LK_LANE_VECTORS 1u
#endif
// make_parameters() of the page's groups, by four.
shared uvec4 parameters[kEntries / 4u];
shared uvec4 lane_extremes[LK_LANE_VECTORS * gl_WorkGroupSize.x];  // lowest << 16 | highest

// Tiles that 16 neighbouring entries are for.
struct GroupTiles {
    uint strip;
    uint n_strips;
    uint tile;
    uint n_tiles;
};
uint n_sixteens() {
    return page_format.n_groups * (page_format.is_token_axis ? page_tiles() : n_strips());
}
GroupTiles group_tiles(uint sixteen) {
    const FormatInfo c = page_format;
    const uint n_raw = c.strips[LK_PLANE_OF(16)];
    if (!c.is_token_axis) {  // [strip][group of tokens]
        const uint strip = sixteen / c.n_groups;
        const uint count = c.group / LK_TILE_TOKENS;
        return GroupTiles(strip, strip < n_raw ? 0u : 1u, sixteen % c.n_groups * count, count);
    }
    // [group of slots][tile]; slots of 16 bits do not count.
    const uint count = c.group / LK_STRIP_CHANNELS;
    const uint group = sixteen / page_tiles();
    const uint first = max(group * count, n_raw);
    const uint end = min((group + 1u) * count, n_strips());
    return GroupTiles(first, max(end, first) - first, sixteen % page_tiles(), 1u);
}

// Lowest and highest values that a lane has met, in the upper 16 bits, as ordered_pair() has them:
// of its four k, or of its two rows in x and y.
struct Extremes {
    uvec4 lowest;
    uvec4 highest;
};

// Of the ordered pairs of a tile: of both rows' k, or of each row.
void add_tile(inout Extremes e, uvec4 upper, bool by_row) {
    const uvec4 lower = upper << 16;
    if (by_row) {
        const uvec4 low = min(lower, upper);
        const uvec4 high = max(lower, upper);
        e.lowest.xy = min(e.lowest.xy, min(low.xy, low.zw));
        e.highest.xy = max(e.highest.xy, max(high.xy, high.zw));
        return;
    }
    const uvec4 first = uvec4(lower.x, upper.x, lower.z, upper.z);
    const uvec4 second = uvec4(lower.y, upper.y, lower.w, upper.w);
    e.lowest = min(e.lowest, min(first, second));
    e.highest = max(e.highest, max(first, second));
}

void measure_tiles(GroupTiles at, uint lane, bool by_row) {
    Extremes e = Extremes(uvec4(0xFFFFFFFFu), uvec4(0u));
    for (uint strip = at.strip; strip < at.strip + at.n_strips; ++strip) {
        const LaneOffsets offsets = lane_offsets(strip, lane);
        for (uint tile = at.tile; tile < at.tile + at.n_tiles; ++tile)
            add_tile(e, ordered_pairs(load_tile(offsets, strip, tile, lane)), by_row);
    }
    lane_extremes[gl_LocalInvocationIndex] = e.lowest & 0xFFFF0000u | e.highest >> 16;
}

// Of one of the 16 entries, from the lanes that met its values.
uint join_lanes(uint team, uint entry, float margin, bool by_row) {
    const uint n_lanes = by_row ? 4u : 8u;
    const uint split = entry % (by_row ? 2u : 4u);
    const uint first = by_row ? entry / 2u * 4u : entry / 4u;
    const uint step = by_row ? 1u : 4u;
    uint lowest = 0xFFFFu;
    uint highest = 0u;
    for (uint i = 0u; i < n_lanes; ++i) {
        const uint word = lane_extremes[team * LK_LANES + first + i * step][split];
        lowest = min(lowest, word >> 16);
        highest = max(highest, word & 0xFFFFu);
    }
    return make_parameters(half_of_order(lowest), half_of_order(highest), margin,
                           page_format.parameter_bytes == 1u);
}

// The k or, by row, the row of one of 16 neighbouring entries.
uint fixed_of_entry(uint entry, bool by_row) {
    return by_row ? entry / 2u + 8u * (entry & 1u)
                  : 2u * (entry / 4u) + (entry & 1u) + 8u * (entry >> 1 & 1u);
}

// Do the groups at these tiles have 1-bit codes that are measured by mean and deviation? k: the
// entry's slot in the strip where groups run along tokens.
bool takes_deviation(GroupTiles at, uint k) {
    const FormatInfo c = page_format;
    if (!c.by_deviation || at.n_strips == 0u)
        return false;
    const uint first_of_ones = n_strips() - c.strips[LK_PLANE_OF(1)];
    if (c.is_token_axis)
        return (at.n_strips & at.n_strips - 1u) == 0u && at.strip >= first_of_ones;
    if (at.strip >= first_of_ones)
        return true;
    const uint first_of_twos = first_of_ones - c.strips[LK_PLANE_OF(2)];
    return at.strip >= first_of_twos &&
           (at.strip - first_of_twos) * LK_STRIP_CHANNELS + k < c.n_shared;
}

// The share of its range that is cut off at each end of a group at these tiles; 0 unless all codes
// of the group have 2 bits. k as in takes_deviation().
float group_margin(GroupTiles at, uint k) {
    const FormatInfo c = page_format;
    const uint end_of_twos = n_strips() - c.strips[LK_PLANE_OF(1)];
    const uint first_of_twos = end_of_twos - c.strips[LK_PLANE_OF(2)];
    if (at.strip < first_of_twos || at.strip + at.n_strips > end_of_twos)
        return 0.0;
    const uint in_plane =
        (at.strip - first_of_twos) * LK_STRIP_CHANNELS + (c.is_token_axis ? 0u : k);
    return in_plane < 2u * c.n_shared ? 0.0 : c.clip_margin;
}

// Value i of the group of an entry, in the order in which they are added up.
float group_value(GroupTiles at, uint fixed_index, uint i) {
    const bool by_token = page_format.is_token_axis;
    const uint slot = at.strip * LK_STRIP_CHANNELS + (by_token ? i : fixed_index);
    const uint token = by_token ? fixed_index : i;
    const uint tile = at.tile + token / LK_TILE_TOKENS;
    return half_to_float(source_f16(slot_offsets[slot] +
                                     tile * source_token_offset(LK_TILE_TOKENS) +
                                     source_token_offset(token % LK_TILE_TOKENS)));
}

// The number of values is a power of two, so the mean of rounded sums is exact.
uint deviation_parameters(GroupTiles at, uint fixed_index) {
    const uint n = LK_TILE_TOKENS * (page_format.is_token_axis ? at.n_strips : at.n_tiles);
    const float share = uintBitsToFloat(127u - findMSB(n) << 23);  // 1 / n
    precise float sum = 0.0;
    for (uint i = 0u; i < n; ++i)
        sum += group_value(at, fixed_index, i);
    precise const float midpoint = sum * share;
    precise float distances = 0.0;
    for (uint i = 0u; i < n; ++i) {
        precise const float distance = group_value(at, fixed_index, i) - midpoint;
        distances += abs(distance);
    }
    return make_deviation_parameters(midpoint, distances * share, page_format.parameter_bytes == 1u);
}

// Of one of the 16 entries.
uint entry_parameters(GroupTiles at, uint team, uint entry, bool by_row) {
    const uint fixed_index = fixed_of_entry(entry, by_row);
    if (takes_deviation(at, fixed_index))
        return deviation_parameters(at, fixed_index);
    return at.n_strips != 0u ? join_lanes(team, entry, group_margin(at, fixed_index), by_row) : 0u;
}

void store_parameter(Address array, uint entry, uint bits) {
    if (page_format.parameter_bytes == 1u)
        Bytes(array).at[entry] = uint8_t(bits);
    else
        F16Values(array).at[entry] = uint16_t(bits);
}

// Find and store one of 16 neighbouring entries, once all lanes of the team have met its values.
void measure_entry(GroupTiles at, uint sixteen, uint team, uint lane, bool by_row) {
    const uint entry = sixteen * LK_STRIP_CHANNELS + lane;
    const uint found = entry_parameters(at, team, lane, by_row);
    parameters[entry / 4u][entry % 4u] = found;
#ifdef LK_NEW_TOKENS
    thresholds[entry] = thresholds_of(found, page_format.parameter_bytes == 1u,
                                      page_format.strips[LK_PLANE_OF(1)] != 0u,
                                      page_format.strips[LK_PLANE_OF(2)] != 0u);
#endif
    store_parameter(job.metadata, entry, found & 0xFFFFu);
    store_parameter(address_add(job.metadata, page_format.minima_offset), entry, found >> 16);
}

#ifndef LK_NEW_TOKENS
// Find and store the ranges and minima. All threads.
void measure_groups() {
    const bool by_row = scales_by_row(page_format);
    const uint n_teams = gl_WorkGroupSize.x / LK_LANES;
    const uint team = gl_LocalInvocationIndex / LK_LANES;
    const uint lane = gl_LocalInvocationIndex % LK_LANES;
    for (uint first = 0u; first < n_sixteens(); first += n_teams) {
        const uint sixteen = first + team;
        const bool exists = sixteen < n_sixteens();
        const GroupTiles at = group_tiles(sixteen);
        if (exists)
            measure_tiles(at, lane, by_row);
        barrier();
        if (exists && lane < LK_STRIP_CHANNELS)
            measure_entry(at, sixteen, team, lane, by_row);
        barrier();
    }
}
#endif

#endif
