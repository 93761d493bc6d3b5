// Turning samples to positions and back.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/float_mode.h"
#include "format/fp16.h"
#include "plan/plan.h"
#include "stats/api.h"
#include "stats/attention.h"
#include "stats/rope.h"

namespace lk {

namespace {

constexpr size_t kOldestRope = sizeof(lk_rope);
constexpr double kBase = 10000;
constexpr double kMostPosition = 9007199254740992;  // 2^53, the last that has all its digits

lk_rope default_rope() {
    lk_rope rope = {};
    rope.size = sizeof rope;
    rope.pairing = LK_ROPE_HALVES;
    rope.base = kBase;
    return rope;
}

// A checked rope for heads of head_dim channels, and what its pairs turn by at position 1.
struct Turn {
    RopePairs pairs;
    double frequencies[LK_MAX_PLAIN_DIM / 2];
};

lk_status read_rope(const lk_rope *from, uint32_t head_dim, Turn *out) {
    lk_rope rope = default_rope();
    lk_status status = import_struct(&rope, sizeof rope, kOldestRope, from, "rope");
    if (status == LK_OK)
        status = check_pairs(rope.pairing, rope.channels, head_dim, "rope.", &out->pairs);
    if (status != LK_OK)
        return status;
    if (rope.reserved)
        return fail(LK_E_ARGUMENT, "rope.reserved is %u, not 0", rope.reserved);
    if (!(rope.base > 1) || !std::isfinite(rope.base))
        return fail(LK_E_ARGUMENT, "rope.base is %g, must be finite and above 1", rope.base);
    for (uint32_t i = 0; i < out->pairs.channels / 2; ++i) {
        out->frequencies[i] = rope.frequencies
                                  ? rope.frequencies[i]
                                  : std::pow(rope.base, -2.0 * i / out->pairs.channels);
        if (!std::isfinite(out->frequencies[i]))
            return fail(LK_E_ARGUMENT, "rope.frequencies[%u] is not finite", i);
    }
    return LK_OK;
}

void turn_row(const Turn &turn, double position, float *row) {
    for (uint32_t i = 0; i < turn.pairs.channels / 2; ++i) {
        const double angle = position * turn.frequencies[i];
        float &a = row[turn.pairs.first(i)];
        float &b = row[turn.pairs.second(i)];
        const double x = double{a};
        const double y = double{b};
        a = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
        b = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
    }
}

// direction 1 turns, -1 turns back.
lk_status turn_samples(const lk_rope *rope, const lk_tensor *from, uint32_t n_tokens,
                       uint32_t n_heads, uint32_t head_dim, uint64_t first_position,
                       double position_scale, double direction, float *values) {
    if (!values)
        return null_argument("values");
    if (!n_heads || !head_dim || head_dim > LK_MAX_PLAIN_DIM)
        return fail(LK_E_ARGUMENT, "n_heads is %u and head_dim %u, must be at least 1, at most %u",
                    n_heads, head_dim, static_cast<uint32_t>(LK_MAX_PLAIN_DIM));
    Turn turn = {};
    Samples samples;
    lk_status status = read_rope(rope, head_dim, &turn);
    if (status == LK_OK)
        status = import_samples(from, "samples", n_tokens, n_heads, head_dim, &samples);
    if (status != LK_OK)
        return status;
    const double last = (static_cast<double>(first_position) + n_tokens) * position_scale;
    if (!(position_scale > 0) || !(last <= kMostPosition))
        return fail(LK_E_ARGUMENT,
                    "position_scale is %g, must be above 0 and leave positions at most 2^53",
                    position_scale);
    float row[LK_MAX_PLAIN_DIM];
    for (uint32_t t = 0; t < n_tokens; ++t)
        for (uint32_t h = 0; h < n_heads; ++h) {
            const double position = static_cast<double>(first_position + t) * position_scale;
            read_exact(samples, t, h, row);
            turn_row(turn, direction * position, row);
            std::memcpy(values + (uint64_t{t} * n_heads + h) * head_dim, row,
                        head_dim * sizeof *row);
        }
    return LK_OK;
}

}  // namespace

lk_status check_pairs(lk_rope_pairing pairing, uint32_t channels, uint32_t head_dim,
                      const char *prefix, RopePairs *out) {
    if (pairing != LK_ROPE_HALVES && pairing != LK_ROPE_INTERLEAVED)
        return fail(LK_E_ARGUMENT, "%spairing is %u, must be 1 (rotate-half) or 2 (interleaved)",
                    prefix, pairing);
    if (channels > head_dim || channels % 2)
        return fail(LK_E_ARGUMENT, "%schannels is %u, must be even and at most head_dim, %u",
                    prefix, channels, head_dim);
    *out = {pairing, channels ? channels : head_dim & ~1u};
    return LK_OK;
}

}  // namespace lk

extern "C" {

lk_status lk_rope_init(lk_rope *rope, size_t struct_bytes) {
    return lk::init_with(rope, struct_bytes, lk::kOldestRope, lk::default_rope(), "rope");
}

lk_status lk_rope_apply(const lk_rope *rope, const lk_tensor *samples, uint32_t n_tokens,
                        uint32_t n_heads, uint32_t head_dim, uint64_t first_position,
                        double position_scale, float *values) {
    const lk::FloatMode mode;
    return lk::turn_samples(rope, samples, n_tokens, n_heads, head_dim, first_position,
                            position_scale, 1, values);
}

lk_status lk_rope_invert(const lk_rope *rope, const lk_tensor *samples, uint32_t n_tokens,
                         uint32_t n_heads, uint32_t head_dim, uint64_t first_position,
                         double position_scale, float *values) {
    const lk::FloatMode mode;
    return lk::turn_samples(rope, samples, n_tokens, n_heads, head_dim, first_position,
                            position_scale, -1, values);
}

}  // extern "C"
