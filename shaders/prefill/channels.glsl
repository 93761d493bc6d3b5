// Attention of many columns: the channels of a page's keys.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_CHANNELS_GLSL
#define LK_SHADERS_PREFILL_CHANNELS_GLSL

#include "shaders/prefill/sides.glsl"

shared uint shared_channels[kHeadDim];  // of the slots

// They are there after the next barrier.
void find_channels(Side keys) {
    for (uint slot = gl_LocalInvocationIndex; slot < kHeadDim; slot += gl_WorkGroupSize.x)
        shared_channels[slot] = slot_channel(permutation_of(keys), slot);
}

#endif
