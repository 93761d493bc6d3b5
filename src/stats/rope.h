// Pairs of channels that RoPE rotates together.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_ROPE_H
#define LK_STATS_ROPE_H

#include <lowkey/rope.h>

namespace lk {

struct RopePairs {
    lk_rope_pairing pairing;
    uint32_t channels;  // that RoPE rotates

    uint32_t first(uint32_t pair) const { return pairing == LK_ROPE_HALVES ? pair : 2 * pair; }
    uint32_t second(uint32_t pair) const {
        return pairing == LK_ROPE_HALVES ? pair + channels / 2 : 2 * pair + 1;
    }
};
// channels 0 = all. LK_E_ARGUMENT; the sentence puts prefix before a member's name.
lk_status check_pairs(lk_rope_pairing pairing, uint32_t channels, uint32_t head_dim,
                      const char *prefix, RopePairs *out);

}  // namespace lk

#endif
