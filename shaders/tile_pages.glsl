// Attention of many columns: which keys the columns of a workgroup see, as a list of pages.
//
// A column is a new token under one query head; those of a token, one for each head of the group,
// are neighbours. A page is a row of the sequence's table, or a run of new tokens in the staging
// area.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_TILE_PAGES_GLSL
#define LK_SHADERS_TILE_PAGES_GLSL

#include "layout.glsl"

layout(push_constant) uniform PushBlock { TilePush push; };

const uint kStagedTokens = 128u;  // of a page of staged tokens

// Pages of a list that a window leaves: the first n_sinks and those from `window` on.
struct Runs {
    uint n_sinks;
    uint window;
    uint n;
};
uint run_at(Runs runs, uint i) { return i < runs.n_sinks ? i : i - runs.n_sinks + runs.window; }
Runs make_runs(uint n_pages, uint n_sinks, uint window) {
    const uint kept = min(n_sinks, n_pages);
    const uint from = max(window, kept);
    return Runs(kept, from, kept + n_pages - from);
}

struct Sight {
    StepTable step;
    LayerInfo layer;
    SequenceInfo sequence;
    uint kv_head;
    uint group_size;
    uint first_column;    // of the sequence
    uint n_columns;       // of the workgroup
    uint first_position;  // lowest and highest of the columns
    uint last_position;
    uint window_begin;  // first token that a window reaches, 0 without one
    Runs rows;
    Runs staged;      // pages that follow the rows
    uint page_begin;  // this workgroup's part of both
    uint page_end;
};

// Place of a column: token of the batch, and head.
struct ColumnPlace {
    uint token;
    uint head;
};
ColumnPlace place_column(Sight sight, uint column) {
    return ColumnPlace(sight.sequence.first_new + column / sight.group_size,
                       sight.kv_head * sight.group_size + column % sight.group_size);
}

// How many rows begin before `token`.
uint rows_before(Sight sight, uint token) {
    uint low = 0u;
    uint high = sight.sequence.n_attended;
    while (low < high) {
        const uint middle = (low + high) / 2u;
        if (load_row(sight.step, sight.sequence.first_row + middle).first_token < token)
            low = middle + 1u;
        else
            high = middle;
    }
    return low;
}

Runs find_rows(Sight sight) {
    const uint n = sight.sequence.n_attended;
    if (sight.window_begin == 0u)
        return make_runs(n, 0u, 0u);
    const uint reached = rows_before(sight, sight.window_begin + 1u);
    return make_runs(n, rows_before(sight, sight.layer.window_sink_tokens), max(reached, 1u) - 1u);
}

// Of staged pages: how many begin before `token`, or, with round 0, end before it.
uint staged_before(Sight sight, uint token, uint round) {
    const uint n_history = sight.sequence.n_history;
    return token > n_history ? (token - n_history + round) / kStagedTokens : 0u;
}
Runs find_staged(Sight sight, uint last_token) {
    if (sight.sequence.new_in_blocks)
        return make_runs(0u, 0u, 0u);
    const uint n = last_token / kStagedTokens + 1u;
    if (sight.window_begin == 0u)
        return make_runs(n, 0u, 0u);
    return make_runs(n,
                     staged_before(sight, sight.layer.window_sink_tokens, kStagedTokens - 1u),
                     staged_before(sight, sight.window_begin, 0u));
}

// floor(n * part / n_parts), where the product may need more than 32 bits.
uint share(uint n, uint part, uint n_parts) {
    return n / n_parts * part + n % n_parts * part / n_parts;
}

// Part `part` of push.n_splits of the pages that the columns up to those of last_token see.
void find_pages(uint last_token, uint part, inout Sight sight) {
    const uint window = sight.layer.window_tokens;
    const bool cuts = window != 0u && sight.first_position >= window;
    sight.window_begin = cuts ? sight.first_position + 1u - window : 0u;
    sight.rows = find_rows(sight);
    sight.staged = find_staged(sight, last_token);
    const uint n_pages = sight.rows.n + sight.staged.n;
    sight.page_begin = share(n_pages, part, push.n_splits);
    sight.page_end = share(n_pages, part + 1u, push.n_splits);
}

// The sequence and the KV head of a workgroup.
Sight find_unit(uint sequence, uint kv_head) {
    Sight sight;
    sight.step = load_step(push.step);
    sight.layer = load_layer(sight.step, push.layer);
    sight.sequence = load_sequence(sight.step, sequence);
    sight.kv_head = kv_head;
    sight.group_size = sight.layer.n_query_heads / sight.layer.n_kv_heads;
    return sight;
}

// False when the workgroup has no columns. `tile` is one of n_columns.
bool find_sight(uint tile, uint n_columns, out Sight sight) {
    sight = find_unit(gl_WorkGroupID.z / push.n_splits, gl_WorkGroupID.y);
    const SequenceInfo sequence = sight.sequence;
    sight.first_column = tile * n_columns;
    const uint n_all = sequence.n_new * sight.group_size;
    if (sight.first_column >= n_all)
        return false;
    sight.n_columns = min(n_columns, n_all - sight.first_column);
    const uint first_token = sight.first_column / sight.group_size;
    const uint last_token = (sight.first_column + sight.n_columns - 1u) / sight.group_size;
    sight.first_position = sequence.n_history + (sequence.has_tree ? 0u : first_token);
    sight.last_position =
        sequence.n_history + (sequence.has_tree ? sequence.n_new - 1u : last_token);
    find_pages(last_token, gl_WorkGroupID.z % push.n_splits, sight);
    return true;
}

// One of a page's halves. Staged ones are FP16 [token][head_dim] and have no class.
struct HalfView {
    Address payload;
    Address metadata;
    uint page_format;
};
struct PageView {
    HalfView keys;
    HalfView values;
    bool is_staged;
    uint first_token;
    uint n_hidden;  // tokens that come before the window
    uint n_tokens;  // that exist and that a column may see
};

void view_tokens(Sight sight, uint first_token, uint capacity, uint end_token,
                 inout PageView view) {
    const uint end = min(end_token, sight.last_position + 1u);
    const bool in_window =
        first_token >= sight.window_begin || first_token < sight.layer.window_sink_tokens;
    view.first_token = first_token;
    view.n_hidden = in_window ? 0u : sight.window_begin - first_token;
    view.n_tokens = first_token < end ? min(capacity, end - first_token) : 0u;
}

PageView view_row(Sight sight, uint row) {
    const SequenceInfo sequence = sight.sequence;
    const BlockInfo info = load_row(sight.step, sequence.first_row + row);
    const Entry entry = load_entry(info.entries, sight.layer.first_entry + sight.kv_head);
    PageView view;
    view.keys = HalfView(entry.key_payload, entry.key_metadata, entry.key_format);
    view.values = HalfView(entry.value_payload, entry.value_metadata, entry.value_format);
    view.is_staged = false;
    const uint end = sequence.n_history + (sequence.new_in_blocks ? sequence.n_new : 0u);
    view_tokens(sight, info.first_token, info.capacity_tokens, end, view);
    return view;
}

PageView view_staged(Sight sight, uint index) {
    const SequenceInfo sequence = sight.sequence;
    const uint row_bytes = 2u * sight.layer.head_dim;
    const uint first = index * kStagedTokens;
    const uint row = sight.kv_head * push.n_tokens + sequence.first_new + first;
    PageView view;
    view.keys.payload = address_at(push.staged_keys, row, row_bytes);
    view.values.payload = address_at(push.staged_values, row, row_bytes);
    view.is_staged = true;
    view_tokens(sight, sequence.n_history + first, kStagedTokens,
                sequence.n_history + sequence.n_new, view);
    return view;
}

// Page `page` of the list.
PageView view_page(Sight sight, uint page) {
    return page < sight.rows.n ? view_row(sight, run_at(sight.rows, page))
                               : view_staged(sight, run_at(sight.staged, page - sight.rows.n));
}

#endif
