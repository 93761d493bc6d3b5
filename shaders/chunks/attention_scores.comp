// Attention mass of chunks: what the columns of a batch of units give to each chunk. An invocation
// takes a chunk.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/chunks/work_tile.glsl"

layout(local_size_x = LK_WATCH_MASS_THREADS) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Masses { float at[]; };

void main() {
    const LayerInfo layer = load_layer(load_step(push.step), push.layer);
    const uint n_threads = gl_NumWorkGroups.x * LK_WATCH_MASS_THREADS;
    for (uint chunk = gl_GlobalInvocationID.x; chunk < push.n_chunks; chunk += n_threads) {
        float mass = 0.0;
        for (uint place = 0u; place < push.n_units; ++place) {
            const uint n_columns = find_unit(layer, place).n_columns;
            const Address own_parts = parts_of(place, chunk);
            const Address totals = parts_of(place, push.n_chunks);
            for (uint column = 0u; column < n_columns; ++column) {
                const vec2 own = Parts(own_parts).at[column];
                const vec2 total = Parts(totals).at[column];
                mass += own.y * exp2(own.x - total.x) / total.y;
            }
        }
        mass *= push.weight;
        if (push.is_first == 0u || push.first_unit != 0u)
            mass += Masses(push.masses).at[chunk];
        Masses(push.masses).at[chunk] = mass;
    }
}
