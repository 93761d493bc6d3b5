// Attention of many columns: the keys visible to the columns of a workgroup, as a list of pages.
//
// A page belongs to a block of the sequence's table, or is a run of new tokens in
// the staging area.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_PAGES_GLSL
#define LK_SHADERS_PREFILL_PAGES_GLSL

#include "shaders/prefill/mask.glsl"

// How many blocks begin before `token`.
uint blocks_before(Mask mask, uint token) {
    uint low = 0u;
    uint high = mask.sequence.n_attended;
    while (low < high) {
        const uint midpoint = (low + high) / 2u;
        if (load_block(mask.step, mask.sequence.first_block + midpoint).first_token < token)
            low = midpoint + 1u;
        else
            high = midpoint;
    }
    return low;
}

Runs find_blocks(Mask mask) {
    const uint n = mask.sequence.n_attended;
    if (mask.window_begin == 0u)
        return make_runs(n, 0u, 0u);
    const uint reached = blocks_before(mask, mask.window_begin + 1u);
    return make_runs(n, blocks_before(mask, mask.layer.window_sink_tokens), max(reached, 1u) - 1u);
}

// How many staged pages begin before `token`, or, with round 0, end before it.
uint staged_before(Mask mask, uint token, uint round) {
    const uint n_history = mask.sequence.n_history;
    return token > n_history ? (token - n_history + round) / LK_STAGED_PAGE_TOKENS : 0u;
}
Runs find_staged(Mask mask, uint last_token) {
    if (mask.sequence.new_in_blocks)
        return make_runs(0u, 0u, 0u);
    const uint n = last_token / LK_STAGED_PAGE_TOKENS + 1u;
    if (mask.window_begin == 0u)
        return make_runs(n, 0u, 0u);
    return make_runs(n,
                     staged_before(mask, mask.layer.window_sink_tokens, LK_STAGED_PAGE_TOKENS - 1u),
                     staged_before(mask, mask.window_begin, 0u));
}

#ifdef LK_LATENT
const uint kPageParts = LK_LATENT_PAGE_PARTS;
#else
const uint kPageParts = 1u;
#endif

// Split `split` of push.n_splits of the pages visible to the columns up to those of last_token.
void find_pages(uint last_token, uint split, inout Mask mask) {
    const uint window = mask.layer.window_tokens;
    const bool cuts = window != 0u && mask.first_position >= window;
    mask.window_begin = cuts ? mask.first_position + 1u - window : 0u;
    mask.blocks = find_blocks(mask);
    mask.staged = find_staged(mask, last_token);
    const uint n_parts = (mask.blocks.n + mask.staged.n) * kPageParts;
    mask.page_begin = share(n_parts, split, push.n_splits);
    mask.page_end = share(n_parts, split + 1u, push.n_splits);
}

// False when the workgroup has no columns. `tile` is one of n_columns.
bool find_mask(uint tile, uint n_columns, out Mask mask) {
    mask = find_work_tile(gl_WorkGroupID.z / push.n_splits, gl_WorkGroupID.y);
    const SequenceInfo sequence = mask.sequence;
    mask.first_column = tile * n_columns;
    const uint n_all = sequence.n_new * mask.group_size;
    if (mask.first_column >= n_all)
        return false;
    mask.n_columns = min(n_columns, n_all - mask.first_column);
    const uint first_token = mask.first_column / mask.group_size;
    const uint last_token = (mask.first_column + mask.n_columns - 1u) / mask.group_size;
    mask.first_position = sequence.n_history + (sequence.has_tree ? 0u : first_token);
    mask.last_position = sequence.has_tree ? sequence.n_history + sequence.n_new - 1u
                                           : find_reach(mask, last_token);
    const uint last_new = mask.last_position - sequence.n_history;
    find_pages(sequence.has_tree ? last_token : last_new, gl_WorkGroupID.z % push.n_splits, mask);
    return true;
}

// The keys or the values of a page. Those of staged pages are FP16 [token][channel] and have no
// page format.
struct PageView {
    Address payload;
    Address metadata;
    uint page_format;
};
struct EntryView {
    PageView keys;
    PageView values;
    bool is_staged;
    uint first_token;
    uint n_hidden;  // tokens that come before the window
    uint n_tokens;  // that exist and may be visible to a column
};

void view_tokens(Mask mask, uint first_token, uint capacity, uint end_token,
                 inout EntryView view) {
    const uint end = min(end_token, mask.last_position + 1u);
    const bool in_window =
        first_token >= mask.window_begin || first_token < mask.layer.window_sink_tokens;
    view.first_token = first_token;
    view.n_hidden = in_window ? 0u : mask.window_begin - first_token;
    view.n_tokens = first_token < end ? min(capacity, end - first_token) : 0u;
}

EntryView view_block(Mask mask, uint row) {
    const SequenceInfo sequence = mask.sequence;
    const BlockInfo info = load_block(mask.step, sequence.first_block + row);
    const Entry entry = load_entry(info.entries, mask.layer.first_entry + mask.kv_head);
    EntryView view;
    view.keys = PageView(entry.key_payload, entry.key_metadata, entry.key_format);
    view.values = PageView(entry.value_payload, entry.value_metadata, entry.value_format);
    view.is_staged = false;
    const uint end = sequence.n_history + (sequence.new_in_blocks ? sequence.n_new : 0u);
    view_tokens(mask, info.first_token, info.capacity_tokens, end, view);
    return view;
}

EntryView view_staged(Mask mask, uint index) {
    const SequenceInfo sequence = mask.sequence;
    const uint first = index * LK_STAGED_PAGE_TOKENS;
    const uint row = mask.kv_head * push.n_tokens + sequence.first_new + first;
    EntryView view;
    view.keys.payload = address_at(push.staged_k, row, 2u * mask.layer.head_dim);
    view.values.payload = address_at(push.staged_v, row, 2u * mask.layer.value_dim);
    view.is_staged = true;
    view_tokens(mask, sequence.n_history + first, LK_STAGED_PAGE_TOKENS,
                sequence.n_history + sequence.n_new, view);
    return view;
}

// Page `page` of the list.
EntryView view_page(Mask mask, uint page) {
    return page < mask.blocks.n ? view_block(mask, run_at(mask.blocks, page))
                               : view_staged(mask, run_at(mask.staged, page - mask.blocks.n));
}

#endif
