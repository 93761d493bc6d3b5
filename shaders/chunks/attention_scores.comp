// Attention scores of chunks: the columns of a batch of work tiles, added up. An invocation
// takes a chunk.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/chunks/work_tile.glsl"

layout(local_size_x = LK_ATTENTION_SCORE_THREADS) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Scores { float at[]; };

void main() {
    const LayerInfo layer = load_layer(load_step(push.step), push.layer);
    const uint n_threads = gl_NumWorkGroups.x * LK_ATTENTION_SCORE_THREADS;
    for (uint chunk = gl_GlobalInvocationID.x; chunk < push.n_chunks; chunk += n_threads) {
        float score = 0.0;
        bool is_beyond = false;
        for (uint index = 0u; index < push.n_work_tiles; ++index) {
            const uint n_columns = find_work_tile(layer, index).n_columns;
            const Address own_partials = partials_of(index, chunk);
            const Address totals = partials_of(index, push.n_chunks);
            for (uint column = 0u; column < n_columns; ++column) {
                const vec2 own = Partials(own_partials).at[column];
                const vec2 total = Partials(totals).at[column];
                score += own.y * exp2(own.x - total.x) / total.y;
                is_beyond = is_beyond || total.y < 0.0;
            }
        }
        score *= push.weight;
        if (push.is_first == 0u || push.first_work_tile != 0u)
            score += Scores(push.scores).at[chunk];
        Scores(push.scores).at[chunk] = is_beyond ? uintBitsToFloat(kNanBits) : score;
    }
}
