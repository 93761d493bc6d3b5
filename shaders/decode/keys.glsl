// Decode attention: products of queries and the keys of a KV tile. Tokens are rows, channels k.
//
// Ranges are multiplied into the queries, the codes are taken around their midpoint, and so are the
// keys: minimum + range / 2 of each token group, times the queries, is where the group's scores
// begin. Ranges are divided by a power of two above the largest of the page.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_KEYS_GLSL
#define LK_SHADERS_DECODE_KEYS_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/key_slots.glsl"

const uint kFoldTasks = (4u * kTeamStrips + LK_LANES - 1u) / LK_LANES;
uint fold_task(uint i) { return 4u * first_strip() + lane + i * LK_LANES; }
// With several token groups, queries and ranges meet in FP16: each takes half of kLarge.
const int kGroupedExponent = kLargeExponent / 2;

float scores[kScores];  // of the lane: products, then weights

// The parameters that a lane folds into the queries: of strips task / 4, its four slots' numbers of
// a token group.
struct FoldTask {
    uvec2 ranges;
    uvec2 minima;
    uvec4 channels;
};
bool has_codes(KvTile kv_tile, uint task) {
    return task / 4u >= kv_tile.end16 && task / 4u < end_strip();
}
void load_tasks(KvTile kv_tile, uint group, inout FoldTask tasks[kFoldTasks]) {
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint task = fold_task(i);
        if (has_codes(kv_tile, task)) {
            const uint strip = task / 4u;
            tasks[i].ranges = load_key_parameters(kv_tile, 0u, strip, group, task % 4u);
            tasks[i].minima = load_key_parameters(kv_tile, kv_tile.key_minima, strip, group, task % 4u);
        }
    }
}

shared float shared_most[kPageTeams];
// Over the lanes of all teams of the page.
float page_max(float x) {
    x = team_max(x);
    if (kPageTeams > 1u) {
        if (lane == 0u)
            shared_most[team_of_page()] = x;
        barrier();
        for (uint i = 0u; i < kPageTeams; ++i)
            x = max(x, shared_most[i]);
    }
    return x;
}

// The exponent that the page's ranges are divided by.
int range_exponent(KvTile kv_tile, FoldTask tasks[kFoldTasks]) {
    float most = 0.0;
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint task = fold_task(i);
        if (has_codes(kv_tile, task)) {
            most = max(most, largest_of(to_parameters(tasks[i].ranges, kv_tile.has_f8_keys)));
            if (kGrouped != 0u)
                for (uint group = 1u; group < kv_tile.key_groups; ++group)
                    most = max(most, largest_of(key_ranges(kv_tile, task / 4u, group, task % 4u)));
        }
    }
    return exponent_above(page_max(most));
}

// minimum + range / 2
vec4 midpoints_of(KvTile kv_tile, FoldTask task) {
    return 0.5 * to_parameters(task.ranges, kv_tile.has_f8_keys) +
           to_parameters(task.minima, kv_tile.has_f8_keys);
}

// Queries in the order of the page's stored channels, times their factors; and the lane's part of
// their products with the midpoints of the first token group.
void fold_queries(KvTile kv_tile, FoldTask tasks[kFoldTasks], int exponent,
                  out float products[kColumns]) {
    [[unroll]] for (uint column = 0u; column < kColumns; ++column)
        products[column] = 0.0;
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint task = fold_task(i);
        if (task / 4u < end_strip()) {
            const uint bits = strip_bits(kv_tile, task / 4u);
            vec4 factors = vec4(kLarge);
            vec4 midpoints = vec4(0.0);
            if (bits < 16u) {
                factors = kGrouped != 0u ? vec4(power(kGroupedExponent))
                                         : to_parameters(tasks[i].ranges, kv_tile.has_f8_keys) *
                                               power(kLargeExponent - exponent);
                factors *= slot_factors(kv_tile, bits, task / 4u, task % 4u);
                midpoints = midpoints_of(kv_tile, tasks[i]);
            }
            [[unroll]] for (uint column = 0u; column < kColumns; ++column) {
                const vec4 queries = queries_of(tasks[i].channels, column);
                const vec2 low = queries.xy * factors.xy;
                const vec2 high = queries.zw * factors.zw;
                products[column] += dot(queries, midpoints);
                store_folded_pair(task, column, 0u, low);
                store_folded_pair(task, column, 1u, high);
            }
        }
    }
}

// The products with the midpoints of another token group.
void multiply_midpoints(KvTile kv_tile, uint group, inout FoldTask tasks[kFoldTasks],
                      out float products[kColumns]) {
    if (group < kv_tile.key_groups)
        load_tasks(kv_tile, group, tasks);
    [[unroll]] for (uint column = 0u; column < kColumns; ++column)
        products[column] = 0.0;
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i)
        if (has_codes(kv_tile, fold_task(i)))
            [[unroll]] for (uint column = 0u; column < kColumns; ++column)
                products[column] +=
                    dot(queries_of(tasks[i].channels, column), midpoints_of(kv_tile, tasks[i]));
}

void store_task_ranges(KvTile kv_tile, uint group, FoldTask tasks[kFoldTasks], float unit) {
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint task = fold_task(i);
        if (group < kv_tile.key_groups && has_codes(kv_tile, task))
            store_ranges(group, task, to_parameters(tasks[i].ranges, kv_tile.has_f8_keys) * unit);
    }
}

// Of a column of the lane, what all lanes have.
float total_of_lanes(float products[kColumns], uint set) {
    vec4 four;
    [[unroll]] for (uint t = 0u; t < 4u; ++t) {
        const uint column = column_of(t, set);
        four[t] = is_column(column) ? products[column % kColumns] : 0.0;
    }
    float total = quad_sum(four);
    [[unroll]] for (uint bit = 2u; bit < kLaneBits; ++bit)
        total += exchange(total, 1u << bit);
    return total;
}

// Scores begin at the products of the queries with the midpoints. The ranges of token groups are laid
// out for the products.
void begin_scores(KvTile kv_tile, int exponent, inout FoldTask tasks[kFoldTasks],
                  inout float products[kColumns]) {
    [[unroll]] for (uint i = 0u; i < kScores; ++i)
        scores[i] = 0.0;
    const uint n_groups = kGrouped != 0u ? push.n_key_groups : 1u;
    for (uint group = 0u; group < n_groups; ++group) {
        if (kGrouped != 0u && group != 0u)
            multiply_midpoints(kv_tile, group, tasks, products);
        if (kGrouped != 0u)
            store_task_ranges(kv_tile, group, tasks, power(kGroupedExponent - exponent));
        [[unroll]] for (uint set = 0u; set < kColumnSets; ++set) {
            const float product = total_of_lanes(products, set);
            [[unroll]] for (uint slot = 0u; slot < kSlots; ++slot)
                if (kGrouped == 0u || slot_tile(slot) * kv_tile.key_groups / kPageTiles == group)
                    scores[slot * kColumnSets + set] = product;
        }
    }
}

#include "shaders/decode/products.glsl"

// The teams of a page each have the products of their strips: the sums of all, in the same order.
shared float shared_scores[kPageTeams > 1u ? kTeams * kScores * LK_LANES : 1u];  // [team][score][lane]
void add_scores_of_teams() {
    [[unroll]] for (uint i = 0u; i < kScores; ++i)
        shared_scores[(team * kScores + i) * LK_LANES + lane] = scores[i];
    barrier();
    [[unroll]] for (uint i = 0u; i < kScores; ++i) {
        float sum = 0.0;
        for (uint of_team = 0u; of_team < kTeams; ++of_team)
            sum += shared_scores[(of_team * kScores + i) * LK_LANES + lane];
        scores[i] = sum;
    }
}

// Products of the queries and the KV tile's keys become the lane's scores. Loads come first.
void multiply_keys(KvTile kv_tile) {
    FoldTask tasks[kFoldTasks];
    load_tasks(kv_tile, 0u, tasks);
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i)
        tasks[i].channels = slot_channels(kv_tile, min(fold_task(i) / 4u, kStrips - 1u),
                                          lane % 4u);
    KeyVectors vectors = begin_vectors(kv_tile);
    const int exponent = range_exponent(kv_tile, tasks);
    float products[kColumns];
    fold_queries(kv_tile, tasks, exponent, products);
    begin_scores(kv_tile, exponent, tasks, products);
    page_sync();
    add_key_products(kv_tile, vectors, exponent);
    if (kPageTeams > 1u)
        add_scores_of_teams();
    else
        team_sync();
}

#endif
