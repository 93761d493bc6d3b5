// Packing: a workgroup takes a page from 16 bits to its page format. It permutes the channels if
// the page format says so, finds the ranges and minima, and writes the strips by teams of 32
// threads.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/push.h"

layout(local_size_x_id = LK_SPEC_THREADS) in;  // a multiple of LK_LANES

#include "shaders/pack/rank.glsl"
#include "shaders/pack/words.glsl"

void main() {
    job = load_pack_job(push.jobs, gl_WorkGroupID.x);
    page_format = load_format(push.formats, job.target_format);
    order_channels();
    if (!page_format.is_raw)
        measure_groups();
    for (uint strip = gl_LocalInvocationIndex / LK_LANES; strip < n_strips();
         strip += gl_WorkGroupSize.x / LK_LANES)
        write_strip(strip, gl_LocalInvocationIndex % LK_LANES);
}
