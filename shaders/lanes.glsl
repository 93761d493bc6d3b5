// Attention: teams of 32 invocations, whose lanes exchange numbers. An includer has the size of its
// workgroup.
//
// Without subgroups that are as large as a team, lanes exchange numbers through shared memory, and
// all teams go through the same barriers. Where a compiler cannot see that a subgroup is together,
// NVIDIA's matches lanes before each exchange, ten times the exchange itself.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_LANES_GLSL
#define LK_SHADERS_LANES_GLSL

#ifdef LK_SUBGROUPS
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

#include "format/format_const.h"
#include "shaders/push.h"

layout(constant_id = LK_SPEC_SUBGROUP) const uint kSubgroup = 0u;

const uint kThreads = gl_WorkGroupSize.x;
const uint kTeams = kThreads / LK_LANES;

uint team;
uint lane;

// Does a team stay inside a subgroup?
#ifdef LK_SUBGROUPS
const bool kIsFree = kSubgroup >= LK_LANES;
#else
const bool kIsFree = false;
#endif
const uint kExchanged = kIsFree ? 1u : kThreads;
shared vec4 shared_exchange[kExchanged];

void find_lane() {
    uint invocation = gl_LocalInvocationIndex;
#ifdef LK_SUBGROUPS
    invocation = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
#endif
    team = invocation / LK_LANES;
    lane = invocation % LK_LANES;
}
uint thread() { return team * LK_LANES + lane; }
uint quad_lane() { return lane & 3u; }
uint row() { return lane >> 2; }

// Stores of the team's lanes to shared memory are there for the others.
void team_sync() {
#ifdef LK_SUBGROUPS
    if (kIsFree)
        subgroupBarrier();
    else
        barrier();
#else
    barrier();
#endif
}

// The number of lane ^ distance.
vec4 exchange_shared(vec4 x, uint distance) {
    barrier();
    shared_exchange[thread() % kExchanged] = x;
    barrier();
    return shared_exchange[(thread() ^ distance) % kExchanged];
}
#ifdef LK_SUBGROUPS
vec2 exchange(vec2 x, uint distance) {
    vec2 other;
    if (distance < kSubgroup)
        other = subgroupShuffleXor(x, distance);
    else
        other = exchange_shared(x.xyxy, distance).xy;
    return other;
}
float exchange(float x, uint distance) {
    float other;
    if (distance < kSubgroup)
        other = subgroupShuffleXor(x, distance);
    else
        other = exchange_shared(vec4(x), distance).x;
    return other;
}
#else
vec2 exchange(vec2 x, uint distance) { return exchange_shared(x.xyxy, distance).xy; }
float exchange(float x, uint distance) { return exchange_shared(vec4(x), distance).x; }
#endif

// Over the four lanes of a row.
vec2 quad_max(vec2 x) {
    x = max(x, exchange(x, 1u));
    return max(x, exchange(x, 2u));
}
vec2 quad_total(vec2 x) {
    x += exchange(x, 1u);
    return x + exchange(x, 2u);
}

// Distances of exchanges are literals once glslc has unrolled the loops over their bits. Else a driver
// may keep the loops and go through the lanes one by one.
const uint kLaneBits = 5u;  // of LK_LANES

// A power of two that is above x, as its exponent; x is not negative.
int exponent_above(float x) { return x > 0.0 ? int(floatBitsToUint(x) >> 23) - 126 : 0; }
float power(int exponent) { return uintBitsToFloat(uint(127 + clamp(exponent, -126, 127)) << 23); }

#endif
