// Attention scores of chunks: work tiles of query columns, and the addresses of their partial results. push.h has the
// dispatches.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_CHUNKS_WORK_TILE_GLSL
#define LK_SHADERS_CHUNKS_WORK_TILE_GLSL

#include "shaders/output.glsl"

layout(push_constant) uniform PushBlock { AttentionScoresPush push; };

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Partials { vec2 at[]; };

// Query columns of a KV head.
struct WorkTile {
    uint kv_head;
    uint first_column;
    uint n_columns;
    uint group_size;
};
WorkTile find_work_tile(LayerInfo layer, uint index) {
    const uint work_tile = push.first_work_tile + index;
    const uint group_size = layer.n_query_heads / layer.n_kv_heads;
    const uint first = work_tile % push.n_tiles * LK_ATTENTION_SCORE_COLUMNS;
    return WorkTile(work_tile / push.n_tiles, first,
                min(LK_ATTENTION_SCORE_COLUMNS, push.n_queries * group_size - first), group_size);
}

// The partial results of a chunk for the columns of a work tile; after the last chunk those of the
// whole context.
Address partials_of(uint index, uint chunk) {
    return address_at(push.partials, index * (push.n_chunks + 1u) + chunk, LK_ATTENTION_SCORE_COLUMNS * 8u);
}

// A partial result: a reference and the sum of exp2(score - reference).
vec2 join_partials(vec2 a, vec2 b) {
    const float row_max = max(a.x, b.x);
    return vec2(row_max, a.y * exp2(a.x - row_max) + b.y * exp2(b.x - row_max));
}

#endif
