// Attention mass of chunks: units of query columns, and where their parts lie. push.h has the
// dispatches.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_CHUNKS_WORK_TILE_GLSL
#define LK_SHADERS_CHUNKS_WORK_TILE_GLSL

#include "shaders/output.glsl"

layout(push_constant) uniform PushBlock { WatchPush push; };

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Parts { vec2 at[]; };

// Query columns of a KV head.
struct Unit {
    uint kv_head;
    uint first_column;
    uint n_columns;
    uint group_size;
};
Unit find_unit(LayerInfo layer, uint place) {
    const uint unit = push.first_unit + place;
    const uint group_size = layer.n_query_heads / layer.n_kv_heads;
    const uint first = unit % push.n_tiles * LK_WATCH_COLUMNS;
    return Unit(unit / push.n_tiles, first,
                min(LK_WATCH_COLUMNS, push.n_queries * group_size - first), group_size);
}

// Of a chunk for the columns of a unit's place; behind the last chunk those of the whole context.
Address parts_of(uint place, uint chunk) {
    return address_at(push.partials, place * (push.n_chunks + 1u) + chunk, LK_WATCH_COLUMNS * 8u);
}

// A part: a reference and the sum of exp2(score - reference).
vec2 join_parts(vec2 a, vec2 b) {
    const float top = max(a.x, b.x);
    return vec2(top, a.y * exp2(a.x - top) + b.y * exp2(b.x - top));
}

#endif
