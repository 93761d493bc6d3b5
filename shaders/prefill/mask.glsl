// Attention of many columns: the sequence and the columns of a workgroup.
//
// A column is a new token under one query head; those of a token, one for each head of the group,
// are neighbours.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_MASK_GLSL
#define LK_SHADERS_PREFILL_MASK_GLSL

#include "shaders/layout.glsl"
#include "shaders/prefill/limits.h"

#ifdef LK_SLOTS
layout(push_constant) uniform PushBlock { SlotPush push; };
#else
layout(push_constant) uniform PushBlock { TilePush push; };
#endif

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

struct Mask {
    StepTable step;
    LayerInfo layer;
    SequenceInfo sequence;
    uint kv_head;
    uint group_size;
    uint first_column;    // of the sequence
    uint n_columns;       // of the workgroup
    uint first_position;  // lowest of the columns, and highest that they attend to
    uint last_position;
    uint window_begin;  // first token that a window reaches, 0 without one
    Runs blocks;
    Runs staged;      // pages that follow those of blocks
    uint page_begin;  // this workgroup's split of both, in parts of pages
    uint page_end;
};

// A column: token of the batch, and head.
struct QueryColumn {
    uint token;
    uint head;
};
QueryColumn query_column(Mask mask, uint column) {
    return QueryColumn(mask.sequence.first_new + column / mask.group_size,
                       mask.kv_head * mask.group_size + column % mask.group_size);
}

// floor(n * split / n_splits), where the product may need more than 32 bits.
uint share(uint n, uint split, uint n_splits) {
    return n / n_splits * split + n % n_splits * split / n_splits;
}

// The sequence and the KV head of a workgroup.
Mask find_work_tile(uint sequence, uint kv_head) {
    Mask mask;
    mask.step = load_step(push.step);
    mask.layer = load_layer(mask.step, push.layer);
    mask.sequence = load_sequence(mask.step, sequence);
    mask.kv_head = kv_head;
    mask.group_size = mask.layer.n_query_heads / mask.layer.n_kv_heads;
    return mask;
}

// Position of the last token that new token `token` attends to; without a tree.
uint find_reach(Mask mask, uint token) {
    return mask.sequence.has_spans >= (mask.layer.window_tokens != 0u ? 1u : 2u)
               ? load_position(mask.step, mask.sequence.first_new + token)
                                   : mask.sequence.n_history + token;
}

#endif
