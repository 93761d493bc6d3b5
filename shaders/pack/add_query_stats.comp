// Arithmetic on sums of |Q|.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "format/format_const.h"
#include "shaders/tables.glsl"

layout(local_size_x = LK_QUERY_STATS_THREADS) in;
layout(push_constant) uniform PushBlock { AddQueryStatsPush push; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Sums { uvec2 at[]; };

void add_sum(StatItem item, uint channel) {
    uvec2 sum = uvec2(0u);
    if ((item.flags & LK_STAT_REPLACES) == 0u)
        sum = Sums(item.target).at[channel];
    uvec2 mask = item.mask;
    for (Address source = item.source; mask != uvec2(0u);
         source = address_add(source, item.stride_bytes)) {
        if ((mask.x & 1u) != 0u) {
            sum = sum_add(sum, Sums(source).at[channel]);
            if ((item.flags & LK_STAT_CLEARS) != 0u)
                Sums(source).at[channel] = uvec2(0u);
        }
        mask = uvec2(mask.x >> 1 | mask.y << 31, mask.y >> 1);
    }
    Sums(item.target).at[channel] = sum;
}

void main() {
    uint index = gl_WorkGroupID.y;
    StatItem item = load_sum_item(push.items, index);
    if (index != 0u && (item.flags & LK_STAT_FOLLOWS) != 0u)
        return;
    bool has_more = true;
    while (has_more) {
        for (uint c = gl_GlobalInvocationID.x; c < item.n_channels;
             c += gl_NumWorkGroups.x * LK_QUERY_STATS_THREADS)
            add_sum(item, c);
        ++index;
        has_more = index < push.n_items;
        if (has_more)
            item = load_sum_item(push.items, index);
        has_more = has_more && (item.flags & LK_STAT_FOLLOWS) != 0u;
    }
}
