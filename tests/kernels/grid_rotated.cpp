// Cases of rotated keys.
//
// SPDX-License-Identifier: Apache-2.0
#include "grid.h"

std::vector<Case> rotated_cases() {
    struct Keys {
        uint32_t bits, boosted, n_shared, ordered, per_token;
    };
    std::vector<Case> all;
    // Lists of different lengths, so that turns meet in new ways.
    uint32_t turns[10] = {};
    for (const uint32_t head_dim : {128u, 64u, 80u, 96u, 256u, 512u})
        for (const Keys &keys : {Keys{2, 0, 0, 0, 0}, Keys{2, 16, 0, 0, 0}, Keys{16, 0, 0, 0, 0},
                                 Keys{4, 0, 0, 0, 0}, Keys{2, 32, 13, 1, 0}, Keys{4, 0, 0, 0, 1}})
            for (const uint32_t n_new : {1u, 3u, 70u}) {
                Case c;
                c.rotated = 1;
                c.head_dim = head_dim;
                c.key_bits = keys.bits;
                c.boosted = keys.boosted;
                c.n_shared = keys.n_shared;
                c.ordered = keys.ordered;
                c.per_token_keys = keys.per_token;
                c.n_new = n_new;
                c.value_bits = keys.bits == 16 ? 16 : next_of({2, 4, 1, 8, 16}, turns);
                c.key_group = next_of({0, 0, 32, 0, 64}, turns + 1);
                c.value_group = next_of({0, 0, 0, 32}, turns + 2);
                c.f8 = next_of({0, 1, 0}, turns + 3);
                c.group = next_of({4, 1, 8, 16, 5, 24}, turns + 4);
                c.n_kv_heads = n_new > LK_DRAFT_TOKENS ? 1 : 2;
                c.centers = next_of({0, 1, 0}, turns + 5);
                c.scales = next_of({0, 0, 1, 1}, turns + 6);
                c.soft_cap = next_of({0, 0, 0, 0, 5}, turns + 7) ? 5.0f : 0.0f;
                c.packed_pages = next_of({3, 9}, turns + 8);
                c.raw_between = next_of({0, 0, 1}, turns + 9);
                c.tail_tokens = 19;
                c.tree = n_new == 3 && turns[0] % 2;
                c.sinks = turns[4] % 5 == 2;
                c.n_sequences = turns[4] % 7 == 3 ? 3 : 1;
                c.dtype = std::vector<lk_dtype>{LK_F16, LK_BF16, LK_F32}[turns[4] % 3];
                all.push_back(c);
            }
    return all;
}
