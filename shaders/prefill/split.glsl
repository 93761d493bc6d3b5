// Attention of many columns: the result of a workgroup of a split, for the merge.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_SPLIT_GLSL
#define LK_SHADERS_PREFILL_SPLIT_GLSL

#include "shaders/prefill/mask.glsl"

struct TileSplit {
    Address outputs;  // [columns][head_dim], not divided by the sums
    Address references;
    Address sums;
};
uint split_floats(uint n_columns, uint head_dim) { return n_columns * (head_dim + 2u); }
TileSplit find_split(uint sequence, uint kv_head, uint n_kv_heads, uint tile, uint split,
                   uint n_columns, uint head_dim) {
    const uint first = ((sequence * n_kv_heads + kv_head) * push.n_tiles + tile) * push.n_splits;
    TileSplit found;
    found.outputs = address_at(push.partials, first + split, split_floats(n_columns, head_dim) * 4u);
    found.references = address_add(found.outputs, n_columns * head_dim * 4u);
    found.sums = address_add(found.references, n_columns * 4u);
    return found;
}

// That of the workgroup, which has columns of `tile`.
TileSplit own_split(Mask mask, uint tile, uint n_columns, uint head_dim) {
#ifdef LK_SLOTS
    return find_split(0u, gl_WorkGroupID.y, gl_NumWorkGroups.y, tile, gl_WorkGroupID.z, n_columns,
                      head_dim);
#else
    return find_split(gl_WorkGroupID.z / push.n_splits, mask.kv_head, mask.layer.n_kv_heads, tile,
                      gl_WorkGroupID.z % push.n_splits, n_columns, head_dim);
#endif
}

#endif
