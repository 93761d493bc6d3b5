// Moving: chosen tokens of 16-bit pages go to earlier positions. A workgroup takes a page, a thread
// channels, whose tokens it moves one after the other: source and target may be the same page.
//
// SPDX-License-Identifier: Apache-2.0
#version 460
#extension GL_GOOGLE_include_directive : require

#include "shaders/layout.glsl"
#include "shaders/tensor.glsl"

const uint kThreads = 128u;
const uint kMaskBits = 32u;  // of a word
layout(local_size_x = 128) in;
layout(push_constant) uniform PushBlock { JobPush push; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer MovedF16 { uint16_t at[]; };

void main() {
    const MoveJob job = load_move_job(push.jobs, gl_WorkGroupID.x);
    const FormatInfo from = load_format(push.formats, job.source_format);
    const uint target_tokens = load_format(push.formats, job.target_format).page_tokens;
    for (uint channel = gl_LocalInvocationIndex; channel < from.head_dim; channel += kThreads) {
        uint position = job.first_target;
        for (uint i = 0u; i < 2u * kMaskBits; ++i) {
            if ((job.mask[i / kMaskBits] >> i % kMaskBits & 1u) == 0u)
                continue;
            const uint source =
                raw_offset(from.is_value, from.page_tokens, job.first_source + i, channel);
            const uint target = raw_offset(from.is_value, target_tokens, position, channel);
            MovedF16(job.target).at[target] = MovedF16(job.source).at[source];
            ++position;
        }
    }
}
