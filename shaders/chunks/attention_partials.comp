// Attention scores of chunks: the softmax of each chunk's tokens under the columns of a work tile, as
// partial results. A workgroup takes a chunk, two tiles of its tokens at a time; an invocation has a column
// and the tokens of one of the two.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

#include "shaders/dequantize.glsl"
#include "shaders/chunks/work_tile.glsl"

const uint kQuads = LK_STRIP_CHANNELS / 4u;
layout(local_size_x = 128) in;  // two for each column

shared vec4 shared_keys[2][LK_TILE_TOKENS][kQuads];  // of a strip, in K order
shared vec4 shared_queries[kQuads][LK_ATTENTION_SCORE_COLUMNS];
shared vec2 shared_partials[LK_ATTENTION_SCORE_COLUMNS];

// The invocation's column and tile.
uint column;
uint own_tile;

// A page of keys.
struct Keys {
    FormatInfo info;
    Address payload;
    Address metadata;
    Address order;  // slot -> channel, or 0
};
Keys find_keys(StepTable step, LayerInfo layer, uint kv_head, uint page) {
    const uint first_block = load_sequence(step, push.sequence).first_block + push.first_block;
    const BlockInfo row = load_block(step, first_block + page);
    const Entry entry = load_entry(row.entries, layer.first_entry + kv_head);
    Keys keys;
    keys.info = load_format(step.formats, entry.key_format);
    keys.payload = entry.key_payload;
    keys.metadata = entry.key_metadata;
    keys.order = keys.info.permutes ? address_add(entry.key_metadata, keys.info.permutation_offset)
                                    : keys.info.permutation;
    return keys;
}

Address query_row;  // of the invocation's column; 0 where it does not exist

void find_query(WorkTile work_tile) {
    const uint at = work_tile.first_column + column;
    query_row = Address(0u);
    if (column < work_tile.n_columns)
        query_row = tensor_row(push.q, push.first_query + at / work_tile.group_size,
                               work_tile.kv_head * work_tile.group_size + at % work_tile.group_size);
}
float load_query(uint channel) {
    return is_null(query_row) ? 0.0 : load_element(query_row, push.q.dtype, channel);
}

// The part that scores of all tokens share matters under a soft-cap alone.
float find_start(LayerInfo layer, WorkTile work_tile) {
    float start = 0.0;
    if (is_null(layer.key_centers) || layer.soft_cap == 0.0)
        return start;
    for (uint c = 0u; c < layer.head_dim; ++c)
        start += load_query(c) *
                 ConstFloats(layer.key_centers).at[work_tile.kv_head * layer.head_dim + c];
    return start;
}

// Beyond the layer's limit; of a column that does not exist, no.
bool is_query_beyond(LayerInfo layer) {
    bool is_beyond = false;
    for (uint c = 0u; c < layer.head_dim; ++c)
        is_beyond = is_beyond || is_beyond_limit(layer, load_query(c));
    return is_beyond;
}

void share_keys(Keys keys, uint first_tile, uint n_tiles, uint strip) {
    const uint lane = gl_LocalInvocationIndex % LK_LANES;
    const uint tile = gl_LocalInvocationIndex / LK_LANES;
    if (tile >= n_tiles)
        return;
    const LaneValues values = load_values(keys.info, find_strip(keys.info, strip), keys.payload,
                                          keys.metadata, first_tile + tile, lane);
    shared_keys[tile][lane / 4u][lane % 4u] = values.low;
    shared_keys[tile][lane / 4u + 8u][lane % 4u] = values.high;
}

// The queries, multiplied by the key scales.
void share_queries(LayerInfo layer, Keys keys, uint kv_head, uint strip) {
    for (uint quad = own_tile; quad < kQuads; quad += 2u) {
        vec4 query;
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            const uint k = LK_TILE_K(quad, i & 2u) + (i & 1u);
            const uint slot = strip * LK_STRIP_CHANNELS + k;
            const uint channel = is_null(keys.order)
                                     ? slot
                                     : load_channel(keys.order, layer.head_dim, slot);
            query[i] = load_query(channel);
            if (!is_null(layer.key_scales))
                query[i] *= ConstFloats(layer.key_scales).at[kv_head * layer.head_dim + channel];
        }
        shared_queries[quad][column] = query;
    }
}

float scores[LK_TILE_TOKENS];

// The dot products of up to two tiles of a page.
void multiply_tiles(LayerInfo layer, Keys keys, uint kv_head, uint first_tile, uint n_tiles,
                    float start) {
    [[unroll]] for (uint t = 0u; t < LK_TILE_TOKENS; ++t)
        scores[t] = start;
    for (uint strip = 0u; strip < layer.head_dim / LK_STRIP_CHANNELS; ++strip) {
        barrier();
        share_keys(keys, first_tile, n_tiles, strip);
        share_queries(layer, keys, kv_head, strip);
        barrier();
        [[unroll]] for (uint quad = 0u; quad < kQuads; ++quad) {
            const vec4 query = shared_queries[quad][column];
            [[unroll]] for (uint t = 0u; t < LK_TILE_TOKENS; ++t)
                scores[t] += dot(query, shared_keys[own_tile][t][quad]);
        }
    }
}

float shape_score(LayerInfo layer, float product) {
    const float score = product * layer.scale;
    return kLog2E * (layer.soft_cap > 0.0 ? layer.soft_cap * tanh(score / layer.soft_cap) : score);
}

// The invocation's tokens, which begin at `first` of the context, as far as they are of the chunk.
vec2 weigh_tile(LayerInfo layer, uint first, uint begin, uint end, vec2 partial) {
    float row_max = partial.x;
    [[unroll]] for (uint t = 0u; t < LK_TILE_TOKENS; ++t) {
        scores[t] = shape_score(layer, scores[t]);
        if (first + t >= begin && first + t < end)
            row_max = max(row_max, scores[t]);
    }
    float sum = partial.y * exp2(partial.x - row_max);
    [[unroll]] for (uint t = 0u; t < LK_TILE_TOKENS; ++t)
        if (first + t >= begin && first + t < end)
            sum += exp2(scores[t] - row_max);
    return vec2(row_max, sum);
}

// Tiles of a page two by two; the second of a pair may be after the chunk.
vec2 weigh_chunk(StepTable step, LayerInfo layer, WorkTile work_tile, uint chunk, float start) {
    const uint begin = chunk * push.chunk_tokens;
    const uint end = begin + push.chunk_tokens;
    vec2 partial = vec2(kHidden, 0.0);
    for (uint first = begin / LK_TILE_TOKENS * LK_TILE_TOKENS; first < end;) {
        const uint page = first / push.page_tokens;
        const uint page_end = min((page + 1u) * push.page_tokens, end);
        const uint n_tiles = min(2u, (page_end - first + LK_TILE_TOKENS - 1u) / LK_TILE_TOKENS);
        const Keys keys = find_keys(step, layer, work_tile.kv_head, page);
        multiply_tiles(layer, keys, work_tile.kv_head, first % push.page_tokens / LK_TILE_TOKENS,
                       n_tiles, start);
        if (own_tile < n_tiles)
            partial = weigh_tile(layer, first + own_tile * LK_TILE_TOKENS, begin, end, partial);
        first += n_tiles * LK_TILE_TOKENS;
    }
    return partial;
}

void store_partial(uint chunk, vec2 partial) {
    barrier();
    if (own_tile == 1u)
        shared_partials[column] = partial;
    barrier();
    if (own_tile == 0u)
        Partials(partials_of(gl_WorkGroupID.y, chunk)).at[column] =
            join_partials(partial, shared_partials[column]);
}

void main() {
    column = gl_LocalInvocationIndex % LK_ATTENTION_SCORE_COLUMNS;
    own_tile = gl_LocalInvocationIndex / LK_ATTENTION_SCORE_COLUMNS;
    const StepTable step = load_step(push.step);
    const LayerInfo layer = load_layer(step, push.layer);
    const WorkTile work_tile = find_work_tile(layer, gl_WorkGroupID.y);
    find_query(work_tile);
    // It counts as one that is not there, but for its sum.
    const bool is_beyond = is_query_beyond(layer);
    if (is_beyond)
        query_row = Address(0u);
    const float start = find_start(layer, work_tile);
    for (uint chunk = gl_WorkGroupID.x; chunk < push.n_chunks; chunk += gl_NumWorkGroups.x) {
        const vec2 partial = weigh_chunk(step, layer, work_tile, chunk, start);
        store_partial(chunk, vec2(partial.x, is_beyond ? kBeyond : partial.y));
    }
}
