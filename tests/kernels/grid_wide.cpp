// Cases of heads of 256 channels and more.
//
// SPDX-License-Identifier: Apache-2.0
#include "grid.h"

std::vector<Case> wide_cases() {
    struct Keys {
        uint32_t bits, boosted, n_shared, ordered, stepped;
    };
    std::vector<Case> all;
    uint32_t turns[9] = {};
    for (const uint32_t head_dim : {512u, 320u})
        for (const Keys &keys : {Keys{2, 128, 0, 0, 0}, Keys{16, 0, 0, 0, 0}, Keys{2, 0, 0, 0, 0},
                                 Keys{4, 0, 0, 0, 0}, Keys{8, 0, 0, 0, 0}, Keys{2, 32, 13, 1, 0},
                                 Keys{2, 0, 21, 0, 0}, Keys{2, 0, 0, 0, 1}, Keys{2, 64, 0, 1, 0}})
            for (const uint32_t value_bits : {2u, 4u, 16u, 1u, 8u}) {
                Case c;
                c.head_dim = head_dim;
                c.n_kv_heads = next_of({1, 2}, turns);
                c.group = next_of({8, 16, 4, 1, 8, 5, 24}, turns + 1);
                c.key_bits = keys.bits;
                c.boosted = keys.boosted;
                c.n_shared = keys.n_shared;
                c.ordered = keys.ordered;
                c.stepped = keys.stepped;
                c.value_bits = value_bits;
                // Most as kitty-pro, whose pages have one group.
                c.key_group = next_of({0, 0, 0, 64, 0, 16}, turns + 2);
                c.value_group = next_of({0, 0, 0, 64, 0, 128}, turns + 2);
                c.f8 = next_of({0, 0, 0, 1, 0, 0, 1}, turns + 3);
                c.n_new = next_of({1, 1, 2, 1, 70, 3}, turns + 4);
                c.raw_between = next_of({0, 0, 1}, turns + 5);
                c.centers = next_of({1, 0}, turns + 6);
                c.scales = next_of({0, 0, 1, 1}, turns + 7);
                c.rotated = turns[0] % 4 == 2;
                c.soft_cap = turns[0] % 11 == 3 ? 5.0f : 0.0f;
                c.window = turns[0] % 13 == 5 ? 130 : 0;
                c.packed_pages = next_of({3, 4, 17, 2}, turns + 8);
                c.tail_tokens = 19;
                all.push_back(c);
            }
    return all;
}

std::vector<Case> many_split_cases() {
    std::vector<Case> all;
    for (const uint32_t value_bits : {2u, 16u}) {
        Case c;
        c.head_dim = 512;
        c.n_kv_heads = 1;
        c.group = 8;
        c.key_bits = value_bits;
        c.boosted = value_bits == 2 ? 128 : 0;
        c.value_bits = value_bits;
        c.packed_pages = 150;
        c.tail_tokens = 19;
        c.sinks = 1;
        all.push_back(c);
    }
    return all;
}

std::vector<Case> idle_cases() {
    struct Widths {
        uint32_t keys, boosted, values;
    };
    std::vector<Case> all;
    uint32_t turns[7] = {};
    for (const uint32_t head_dim : {96u, 80u, 128u, 256u})
        for (const Widths &widths : {Widths{2, 0, 2}, Widths{4, 0, 4}, Widths{8, 0, 8},
                                     Widths{2, 16, 2}, Widths{8, 0, 2}, Widths{4, 0, 8}}) {
            Case c;
            c.head_dim = head_dim;
            c.group = 8;
            c.key_bits = widths.keys;
            c.boosted = widths.boosted;
            c.value_bits = widths.values;
            c.n_kv_heads = next_of({1, 2}, turns);
            c.n_new = next_of({1, 1, 2}, turns + 1);
            c.packed_pages = next_of({3, 1, 2, 6, 4}, turns + 2);
            c.tail_tokens = next_of({5, 131, 19}, turns + 3);
            c.window = next_of({0, 0, 0, 0, 130}, turns + 4);
            c.soft_cap = turns[0] % 7 == 3 ? 5.0f : 0.0f;
            c.sinks = next_of({0, 1, 0}, turns + 5);
            c.n_sequences = next_of({1, 1, 1, 3}, turns + 6);
            all.push_back(c);
        }
    return all;
}

std::vector<Case> wide_group_cases() {
    std::vector<Case> all;
    uint32_t turns[6] = {};
    for (const uint32_t head_dim : {512u, 256u})
        for (const uint32_t n_shared : {0u, 13u, 37u, 100u})
            for (const uint32_t boosted : {0u, 48u}) {
                Case c;
                c.head_dim = head_dim;
                c.n_kv_heads = next_of({1, 2}, turns);
                c.group = next_of({8, 4, 12}, turns + 1);
                c.key_bits = 2;
                c.boosted = boosted;
                c.ordered = boosted != 0;
                c.n_shared = n_shared;
                c.value_bits = next_of({2, 4, 16, 8, 2}, turns + 2);
                c.key_group = c.value_group = 32;
                c.f8 = 1;
                c.n_new = next_of({1, 1, 2}, turns + 3);
                c.raw_between = next_of({0, 0, 1}, turns + 4);
                c.centers = c.scales = next_of({0, 1}, turns + 5);
                c.packed_pages = 9;
                c.tail_tokens = 19;
                all.push_back(c);
            }
    // One group in a page.
    for (const uint32_t head_dim : {512u, 256u})
        for (const uint32_t key_bits : {2u, 4u, 8u})
            for (const uint32_t value_bits : {1u, 2u, 4u, 8u, 16u}) {
                Case c;
                c.head_dim = head_dim;
                c.n_kv_heads = 1;
                c.group = next_of({8, 6, 4, 16}, turns + 1);
                c.key_bits = key_bits;
                c.boosted = key_bits == 2 ? next_of({96, 0, 160}, turns + 2) : 0;
                c.ordered = next_of({0, 1}, turns + 4);
                c.value_bits = value_bits;
                c.f8 = 1;
                c.n_new = next_of({1, 2, 1}, turns + 3);
                c.centers = c.scales = next_of({0, 1}, turns + 5);
                c.wider = key_bits == 2 && value_bits == 4;
                c.packed_pages = 5;
                c.tail_tokens = 19;
                all.push_back(c);
            }
    return all;
}

std::vector<Case> wide_format_cases() {
    struct Keys {
        uint32_t bits, boosted, n_shared, ordered, stepped, ones;
    };
    std::vector<Case> all;
    uint32_t turns[10] = {};
    for (const uint32_t head_dim : {512u, 256u})
        for (const uint32_t f8 : {1u, 0u})
            for (const Keys &keys :
                 {Keys{2, 0, 0, 0, 0, 0}, Keys{2, 32, 0, 1, 0, 0}, Keys{2, 48, 0, 0, 0, 0},
                  Keys{2, 32, 13, 1, 0, 0}, Keys{2, 0, 67, 0, 0, 0}, Keys{2, 0, 0, 0, 1, 0},
                  Keys{2, 16, 0, 0, 0, 5}, Keys{2, 0, 0, 0, 0, 13}, Keys{4, 0, 0, 0, 0, 0},
                  Keys{8, 0, 0, 0, 0, 0}, Keys{16, 0, 0, 0, 0, 0}})
                for (uint32_t i = 0; i < 3; ++i) {
                    Case c;
                    c.head_dim = head_dim;
                    c.n_kv_heads = next_of({1, 2, 1}, turns);
                    c.f8 = f8;
                    c.key_bits = keys.bits;
                    c.boosted = keys.boosted;
                    c.n_shared = keys.n_shared;
                    c.ordered = keys.ordered;
                    c.stepped = keys.stepped;
                    c.ones = keys.ones;
                    c.value_bits = next_of({2, 1, 4, 8, 16}, turns + 1);
                    c.key_group = next_of({64, 16, 32, 0}, turns + 2);
                    c.value_group = next_of({32, 64, 128, 16, 256, 0, 64}, turns + 3);
                    c.group = next_of({4, 1, 8, 4, 2, 4, 16}, turns + 4);
                    c.n_new = next_of({1, 1, 1, 3}, turns + 5);
                    c.raw_between = next_of({0, 0, 1}, turns + 6);
                    c.wider = next_of({0, 1, 0, 0}, turns + 7);
                    c.mixed = next_of({0, 0, 0, 0, 1}, turns + 8);
                    // Values of a layer have groups of one size.
                    c.value_group = c.mixed ? 64 : c.value_group;
                    c.centers = c.scales = next_of({1, 0}, turns + 9);
                    c.soft_cap = all.size() % 11 == 3 ? 5.0f : 0.0f;
                    c.window = all.size() % 13 == 5 ? 130 : 0;
                    c.packed_pages = all.size() % 17 == 7 ? 40 : 4;
                    c.tail_tokens = 19;
                    all.push_back(c);
                }
    return all;
}
