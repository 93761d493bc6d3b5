// Cases whose values are not as wide as keys, or are channels of them.
//
// SPDX-License-Identifier: Apache-2.0
#include "grid.h"

namespace {

struct Dims {
    uint32_t key, value;
};

struct Keys {
    uint32_t bits, boosted, n_shared, ordered, stepped, per_token;
};

const Keys kKinds[] = {{16, 0, 0, 0, 0, 0},  {2, 16, 0, 0, 0, 0}, {4, 0, 0, 0, 0, 0},
                       {2, 32, 13, 1, 0, 0}, {8, 0, 0, 0, 0, 1},  {2, 0, 0, 0, 1, 0},
                       {4, 0, 0, 0, 0, 1},   {3, 0, 0, 0, 0, 0},  {2, 0, 5, 0, 0, 0},
                       {1, 0, 0, 0, 0, 0},   {8, 0, 0, 0, 0, 0}};

void set_keys(const Keys &keys, Case *c) {
    c->key_bits = keys.bits;
    c->boosted = keys.boosted;
    c->n_shared = keys.n_shared;
    c->ordered = keys.ordered;
    c->stepped = keys.stepped;
    c->per_token_keys = keys.per_token;
}

// Latent pages of one width with a range for each channel of a page, whose codes CUDA multiplies as
// they are.
Case plain_latent(const Dims &dims, uint32_t bits) {
    Case c;
    c.head_dim = dims.key;
    c.value_dim = dims.value;
    c.latent = 1;
    c.key_bits = bits;
    c.n_kv_heads = 1;
    c.key_group = c.value_group = c.f8 = 0;
    return c;
}

// In layers of few query columns and of many.
void add_plain_latents(std::vector<Case> *all) {
    uint32_t turns[8] = {};
    for (const Dims dims : {Dims{576, 512}, {288, 256}, {96, 48}})
        for (const uint32_t bits : {4u, 8u, 2u}) {
            Case c = plain_latent(dims, bits);
            c.group = next_of({16, 20, 64, 8}, turns);
            c.n_new = next_of({1, 2, 1, 1, 3}, turns + 1);
            c.packed_pages = next_of({9, 3}, turns + 2);
            c.raw_between = next_of({0, 0, 0, 1}, turns + 3);
            c.tail_tokens = next_of({19, 131, 0, 70}, turns + 4);
            c.page_tokens = next_of({128, 64}, turns + 5);
            c.n_sequences = next_of({1, 3}, turns + 6);
            c.soft_cap = turns[0] == 5 ? 5.0f : 0.0f;
            c.tree = c.n_new == 3;
            c.spread = turns[0] % 2;
            c.dtype = std::vector<lk_dtype>{LK_F16, LK_BF16, LK_F32}[turns[0] % 3];
            all->push_back(c);
        }
}

// In layers of at most 16 query columns, which CUDA runs by key warps and value warps.
void add_narrow_latents(std::vector<Case> *all) {
    struct Columns {
        uint32_t group;
        uint32_t n_new;
    };
    const Dims all_dims[] = {{576, 512}, {288, 256}, {96, 48}, {64, 32}};
    uint32_t turns[9] = {};
    for (const uint32_t bits : {4u, 2u, 8u})
        for (const Columns columns : {Columns{16, 1}, {5, 3}, {8, 2}, {4, 1}, {16, 1}}) {
            const Dims dims = all_dims[turns[0]++ % 4];
            Case c = plain_latent(dims, bits);
            c.group = columns.group;
            c.n_new = columns.n_new;
            c.packed_pages = next_of({9, 3, 0}, turns + 1);
            c.raw_between = next_of({0, 0, 0, 1}, turns + 2);
            c.tail_tokens = next_of({19, 131, 0, 70}, turns + 3);
            c.page_tokens = next_of({128, 64, 128, 32}, turns + 4);
            c.n_sequences = next_of({1, 3}, turns + 5);
            c.sinks = next_of({0, 1, 0}, turns + 6);
            c.soft_cap = turns[0] % 7 == 5 ? 5.0f : 0.0f;
            c.tree = c.n_new == 3;
            c.wider = bits == 2 && c.page_tokens == 128;
            c.spread = turns[0] % 2;
            c.dtype = std::vector<lk_dtype>{LK_F16, LK_BF16, LK_F32}[turns[0] % 3];
            all->push_back(c);
        }
}

// Whole pages of every kind under more than 16 query columns, of which CUDA's kernel makes FP16
// once for 32 columns: at once, or in two stages where a page and the queries do not fit.
void add_large_latents(std::vector<Case> *all) {
    uint32_t turns[4] = {};
    for (const Keys &keys : kKinds) {
        if (keys.bits == 16)
            continue;
        Case c = plain_latent({576, 512}, keys.bits);
        set_keys(keys, &c);
        c.key_group = next_of({32, 0, 64}, turns);
        c.value_group = c.per_token_keys ? 64 : 0;
        c.f8 = next_of({0, 1}, turns + 1);
        c.group = next_of({20, 33, 48}, turns + 2);
        c.packed_pages = 3;
        c.tail_tokens = next_of({19, 70, 0}, turns + 3);
        c.page_tokens = 128;
        c.spread = turns[0] % 2;
        c.soft_cap = turns[0] % 5 == 4 ? 5.0f : 0.0f;
        c.dtype = std::vector<lk_dtype>{LK_F16, LK_BF16, LK_F32}[turns[0] % 3];
        all->push_back(c);
    }
}

// Steps of few query columns over pages of 128 tokens whose codes Vulkan's decode multiplies as
// they are, and over their splits. Each dims have every second kind of keys.
void add_short_steps(std::vector<Case> *all) {
    uint32_t turns[13] = {};
    for (const Dims dims :
         {Dims{192, 128}, {64, 128}, {128, 64}, {320, 256}, {256, 512}, {512, 32}, {64, 320}})
        for (const Keys &keys : kKinds) {
            if (keys.per_token || keys.bits % 2 || next_of({0, 1}, turns + 12))
                continue;
            Case c;
            c.head_dim = dims.key;
            c.value_dim = dims.value;
            set_keys(keys, &c);
            c.value_bits = next_of({2, 4, 1, 8, 16}, turns);
            c.key_group = next_of({0, 32, 0, 64}, turns + 1);
            if (next_of({0, 1, 0}, turns + 2))
                c.value_group = dims.value > 256 ? 64 : dims.value > 64 ? 48 : 32;
            c.f8 = next_of({0, 1}, turns + 3);
            c.group = next_of({4, 8, 1, 5, 16}, turns + 4);
            c.n_new = c.group > 5 ? 1 : next_of({1, 3, 2}, turns + 5);
            c.tree = c.n_new == 3;
            c.n_kv_heads = next_of({1, 2}, turns + 6);
            c.packed_pages = next_of({3, 17, 0, 9}, turns + 7);
            c.raw_between = next_of({0, 0, 1}, turns + 8);
            c.tail_tokens = next_of({19, 131, 0}, turns + 9);
            c.window = next_of({0, 0, 0, 130}, turns + 10);
            c.centers = turns[0] % 3 == 1;
            c.scales = turns[0] % 4 == 1;
            c.rotated = turns[0] % 5 == 2;
            c.sinks = turns[0] % 6 == 3;
            c.soft_cap = turns[0] % 7 == 3 ? 5.0f : 0.0f;
            c.n_sequences = next_of({1, 2, 1, 3}, turns + 11);
            c.spread = turns[0] % 2;
            c.dtype = std::vector<lk_dtype>{LK_F16, LK_F32, LK_BF16}[turns[0] % 3];
            all->push_back(c);
        }
}

}  // namespace

std::vector<Case> value_dim_cases() {
    std::vector<Case> all;
    // Lists of different lengths, so that turns meet in new ways.
    uint32_t turns[16] = {};
    for (const Dims dims : {Dims{192, 128}, {64, 128}, {128, 64}, {80, 96}, {256, 512}, {512, 32}})
        for (const Keys &keys : kKinds) {
            Case c;
            c.head_dim = dims.key;
            c.value_dim = dims.value;
            set_keys(keys, &c);
            c.value_bits = next_of({2, 16, 4, 1, 8, 3}, turns);
            c.key_group = next_of({0, 64, 32}, turns + 1);
            c.value_group = next_of({0, 32, 48}, turns + 2);
            c.f8 = next_of({0, 1}, turns + 3);
            c.group = next_of({4, 1, 8, 16, 33}, turns + 4);
            c.n_new = next_of({1, 3, 70, 1, 20}, turns + 5);
            c.packed_pages = next_of({3, 9}, turns + 6);
            c.raw_between = next_of({0, 0, 1}, turns + 7);
            c.tail_tokens = next_of({19, 131, 0}, turns + 8);
            c.page_tokens =
                keys.bits == 1 || keys.bits == 3 ? 64 : next_of({128, 32, 64}, turns + 9);
            c.value_bits = c.page_tokens == 32 && c.value_bits % 2 ? 2 : c.value_bits;
            c.window = next_of({0, 0, 0, 130}, turns + 10);
            c.centers = next_of({0, 1, 0}, turns + 11);
            c.scales = next_of({0, 0, 0, 1}, turns + 12);
            c.rotated = turns[0] % 3 == 2;
            c.sinks = next_of({0, 1, 0, 0, 0}, turns + 13);
            c.soft_cap = turns[0] % 7 == 3 ? 5.0f : 0.0f;
            c.tree = c.n_new <= LK_DRAFT_TOKENS && turns[0] % 4 == 1;
            c.spans = c.tree ? 0 : next_of({0, 0, 7}, turns + 14);
            c.n_sequences = next_of({1, 3}, turns + 15);
            c.spread = turns[0] % 2;
            c.n_kv_heads = c.n_new > LK_DRAFT_TOKENS ? 1 : 2;
            c.dtype = std::vector<lk_dtype>{LK_F16, LK_F32, LK_BF16}[turns[0] % 3];
            all.push_back(c);
        }
    // Pages of keys change their size between values of one format, in so many sequences that a
    // thread block of a GPU has all pages of one.
    Case c;
    c.head_dim = 96;
    c.value_dim = 32;
    c.key_bits = c.value_bits = 2;
    c.key_group = c.value_group = c.f8 = 0;
    c.wider = 2;
    c.group = 1;
    c.n_kv_heads = 8;
    c.n_sequences = 17;
    c.packed_pages = 3;
    c.page_tokens = 64;
    c.tail_tokens = 19;
    all.push_back(c);
    add_short_steps(&all);
    return all;
}

std::vector<Case> latent_cases() {
    std::vector<Case> all;
    uint32_t turns[13] = {};
    for (const Dims dims : {Dims{576, 512}, {288, 256}, {128, 0}, {64, 32}})
        for (const Keys &keys : kKinds) {
            Case c;
            c.head_dim = dims.key;
            c.value_dim = dims.value;
            c.latent = 1;
            set_keys(keys, &c);
            c.n_kv_heads = 1;
            c.key_group = next_of({0, 64, 32, 16}, turns);
            c.value_group = c.per_token_keys ? next_of({128, 0, 48}, turns + 1) : 0;
            c.f8 = next_of({0, 1, 0}, turns + 2);
            c.group = next_of({16, 20, 4, 64, 1, 128, 150}, turns + 3);
            c.n_new = next_of({1, 3, 1, 70, 2}, turns + 4);
            c.packed_pages = next_of({3, 9, 2}, turns + 5);
            c.raw_between = next_of({0, 0, 1}, turns + 6);
            c.tail_tokens = next_of({19, 131, 0, 5}, turns + 7);
            c.page_tokens =
                keys.bits == 1 || keys.bits == 3 ? 128 : next_of({128, 64, 32}, turns + 8);
            c.sinks = next_of({0, 1, 0, 0, 0}, turns + 9);
            c.soft_cap = turns[0] % 7 == 3 ? 5.0f : 0.0f;
            c.tree = c.n_new <= LK_DRAFT_TOKENS && turns[0] % 4 == 1;
            c.spans = c.tree ? 0 : next_of({0, 0, 7}, turns + 10);
            c.n_sequences = next_of({1, 3}, turns + 11);
            c.wider = next_of({0, 0, 1, 0}, turns + 12) && !c.per_token_keys && c.key_bits == 2 &&
                      c.page_tokens == 128;
            c.spread = turns[0] % 2;
            c.dtype = std::vector<lk_dtype>{LK_F16, LK_F32, LK_BF16}[turns[0] % 3];
            all.push_back(c);
        }
    add_plain_latents(&all);
    add_narrow_latents(&all);
    add_large_latents(&all);
    return all;
}

std::vector<Case> latent_batch_cases() {
    std::vector<Case> all;
    uint32_t turns[3] = {};
    for (const Dims dims : {Dims{576, 512}, {96, 48}})
        for (const uint32_t bits : {4u, 2u}) {
            const bool is_large = dims.key > 128;
            Case c;
            c.head_dim = dims.key;
            c.value_dim = dims.value;
            c.latent = 1;
            c.key_bits = bits;
            c.n_kv_heads = 1;
            c.group = next_of({16, 8}, turns);
            c.packed_pages = is_large ? 30 : 20;
            c.tail_tokens = next_of({131, 19}, turns + 1);
            c.page_tokens = bits == 4 ? 128 : 64;
            c.n_sequences = is_large ? 20 : 44;
            c.raw_between = !is_large && bits == 4;
            c.dtype = LK_F16;
            all.push_back(c);
        }
    return all;
}
