// SPDX-License-Identifier: Apache-2.0
#include "grid.h"

#include <algorithm>
#include <cstdio>
#include <functional>

namespace {

struct Axis {
    std::vector<std::function<void(Case *)>> values;
};

template <class Field, class... Values>
Axis axis(Field Case::*field, Values... values) {
    Axis a;
    (a.values.push_back([field, values](Case *c) { c->*field = static_cast<Field>(values); }), ...);
    return a;
}

std::vector<Axis> whole_axes() {
    return {
        axis(&Case::head_dim, 64, 128, 32, 48, 80, 96, 112, 144, 160, 176, 192, 208, 224, 240, 256,
             272, 320, 384, 448, 496, 512),
        axis(&Case::group, 4, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 24, 32,
             33, 64),
        axis(&Case::key_bits, 2, 16, 1, 3, 4, 8),
        axis(&Case::value_bits, 2, 16, 1, 3, 4, 8),
        axis(&Case::boosted, 0, 16, 32),
        axis(&Case::n_shared, 0, 1, 5, 16),
        axis(&Case::key_group, 0, 16, 32, 64),
        axis(&Case::value_group, 0, 16, 32, 48),
        axis(&Case::per_token_keys, 0, 1),
        axis(&Case::f8, 0, 1),
        axis(&Case::page_tokens, 128, 64, 32),
        axis(&Case::sink_tokens, 32, 0, 16, 64),
        axis(&Case::packed_pages, 2, 0, 1, 9),
        axis(&Case::tail_tokens, 5, 0, 1, 15, 16, 17, 127, 128),
        axis(&Case::n_new, 1, 2, 4, 7, 8, 16, 33, 64, 65, 200),
        axis(&Case::window, 0, 1, 40, 130),
        axis(&Case::window_sinks, 0, 4),
        axis(&Case::soft_cap, 0.0f, 5.0f),
        axis(&Case::sinks, 0, 1),
        axis(&Case::centers, 0, 1),
        axis(&Case::scales, 0, 1),
        axis(&Case::rotated, 0, 1),
        axis(&Case::tree, 0, 1),
        axis(&Case::dtype, LK_F32, LK_F16, LK_BF16),
        axis(&Case::n_sequences, 1, 3),
        axis(&Case::spread, 0, 1),
        axis(&Case::has_lse, 1, 0),
    };
}

std::vector<Axis> short_axes() {
    return {
        axis(&Case::head_dim, 128, 64, 32, 80, 96, 256, 320, 512),
        axis(&Case::group, 4, 1, 5, 8, 16, 24),
        axis(&Case::key_bits, 2, 16, 1, 3, 4, 8),
        axis(&Case::value_bits, 2, 16, 1, 3, 4, 8),
        axis(&Case::boosted, 0, 16),
        axis(&Case::n_shared, 0, 5),
        axis(&Case::key_group, 0, 16),
        axis(&Case::value_group, 0, 16, 48),
        axis(&Case::per_token_keys, 0, 1),
        axis(&Case::f8, 0, 1),
        axis(&Case::page_tokens, 64, 128, 32),
        axis(&Case::sink_tokens, 16, 0, 32),
        axis(&Case::packed_pages, 1, 0),
        axis(&Case::tail_tokens, 5, 0, 17),
        axis(&Case::n_new, 1, 3, 16, 65),
        axis(&Case::window, 0, 40),
        axis(&Case::window_sinks, 0, 4),
        axis(&Case::soft_cap, 0.0f, 5.0f),
        axis(&Case::sinks, 0, 1),
        axis(&Case::centers, 0, 1),
        axis(&Case::scales, 0, 1),
        axis(&Case::rotated, 0, 1),
        axis(&Case::tree, 0, 1),
        axis(&Case::dtype, LK_F16, LK_F32, LK_BF16),
        axis(&Case::n_sequences, 1, 2),
        axis(&Case::spread, 0, 1),
        axis(&Case::has_lse, 1, 0),
    };
}

// Combinations without meaning become the nearest one with.
Case legal(Case c) {
    if (c.page_tokens == 32) {
        c.key_bits = c.key_bits == 1 || c.key_bits == 3 ? 4 : c.key_bits;
        c.value_bits = c.value_bits == 1 || c.value_bits == 3 ? 4 : c.value_bits;
    }
    if (c.tree && c.n_new > LK_DRAFT_TOKENS)
        c.n_new = 33;
    if (c.n_shared && c.boosted)
        c.n_shared = 0;
    if (c.per_token_keys)
        c.n_shared = c.boosted = 0;
    if (c.n_new > LK_DRAFT_TOKENS)
        c.n_kv_heads = 1;
    return c;
}

// The longest sequence of a case at most as long as kShort says.
Case shortened(Case c) {
    const uint32_t others = c.sink_tokens + c.tail_tokens + c.n_new + c.n_sequences * 3;
    while (c.packed_pages && others + (c.packed_pages + c.n_sequences - 1) * c.page_tokens > 300)
        --c.packed_pages;
    return c;
}

uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9ull;
    return x ^ (x >> 32);
}

// Rows that cover all pairs: each new row starts from an uncovered pair and takes, axis by axis,
// the value that covers most.
class Cover {
  public:
    Cover(std::vector<Axis> axes, uint64_t seed) : axes_(std::move(axes)), seed_(seed) {
        const size_t n = axes_.size();
        seen_.resize(n * n);
        for (size_t a = 0; a < n; ++a)
            for (size_t b = 0; b < n; ++b)
                seen_[a * n + b].assign(axes_[a].values.size() * axes_[b].values.size(), false);
    }
    std::vector<Case> cases() {
        for (size_t a = 0; a < axes_.size(); ++a)
            for (size_t b = a + 1; b < axes_.size(); ++b)
                for (size_t i = 0; i < axes_[a].values.size(); ++i)
                    for (size_t j = 0; j < axes_[b].values.size(); ++j)
                        if (!pair(a, i, b, j))
                            add_row(a, i, b, j);
        return cases_;
    }

  private:
    static constexpr size_t kOpen = SIZE_MAX;

    std::vector<bool>::reference pair(size_t a, size_t i, size_t b, size_t j) {
        return seen_[a * axes_.size() + b][i * axes_[b].values.size() + j];
    }
    void add_row(size_t a, size_t i, size_t b, size_t j) {
        std::vector<size_t> row(axes_.size(), kOpen);
        row[a] = i;
        row[b] = j;
        for (size_t x = 0; x < row.size(); ++x)
            if (row[x] == kOpen)
                row[x] = best_value(row, x);
        Case c;
        for (size_t x = 0; x < row.size(); ++x) {
            axes_[x].values[row[x]](&c);
            for (size_t y = 0; y < row.size(); ++y)
                pair(x, row[x], y, row[y]) = true;
        }
        cases_.push_back(legal(c));
    }
    // Ties are broken by the seed.
    size_t best_value(const std::vector<size_t> &row, size_t x) {
        const size_t values = axes_[x].values.size();
        const size_t turn = mix(seed_ + cases_.size() * 64 + x) % values;
        size_t best = turn;
        int most = -1;
        for (size_t k = 0; k < values; ++k) {
            const size_t v = (k + turn) % values;
            int gain = 0;
            for (size_t y = 0; y < row.size(); ++y)
                gain += row[y] != kOpen && !pair(x, v, y, row[y]);
            if (gain > most) {
                most = gain;
                best = v;
            }
        }
        return best;
    }

    std::vector<Axis> axes_;
    uint64_t seed_;
    std::vector<std::vector<bool>> seen_;
    std::vector<Case> cases_;
};

}  // namespace

std::vector<Case> covering_cases(Grid grid, uint64_t seed) {
    if (grid == Grid::kWhole)
        return Cover(whole_axes(), seed).cases();
    std::vector<Case> cases = Cover(short_axes(), seed).cases();
    std::transform(cases.begin(), cases.end(), cases.begin(), shortened);
    return cases;
}

std::vector<Case> common_cases() {
    std::vector<Case> all;
    for (const uint32_t head_dim : {64u, 128u})
        for (const uint32_t key_bits : {16u, 8u, 4u, 2u})
            for (const uint32_t value_bits : {16u, 8u, 4u, 2u})
                for (const uint32_t n_new : {1u, 3u, 70u}) {
                    Case c;
                    c.head_dim = head_dim;
                    c.key_bits = key_bits;
                    c.value_bits = value_bits;
                    c.n_new = n_new;
                    c.tail_tokens = 131;
                    all.push_back(c);
                }
    return all;
}

namespace {

// Every pair of widths under FP8 numbers of 32, some keys with channels at 4 bits of their page.
void add_f8_cases(std::vector<Case> *all) {
    for (const uint32_t head_dim : {64u, 128u})
        for (const uint32_t key_bits : {16u, 8u, 4u, 2u})
            for (const uint32_t value_bits : {16u, 8u, 4u, 2u, 1u}) {
                Case c;
                c.head_dim = head_dim;
                c.key_bits = key_bits;
                c.value_bits = value_bits;
                c.key_group = c.value_group = 32;
                c.f8 = 1;
                c.boosted = key_bits == 2 && value_bits != 2 ? 16 : 0;
                c.tail_tokens = 131;
                all->push_back(c);
            }
}

}  // namespace

std::vector<Case> chanmix_cases() {
    struct Groups {
        uint32_t key, value, f8;
    };
    std::vector<Case> all;
    uint32_t turn = 0;
    for (const uint32_t head_dim : {64u, 128u, 80u})
        for (const Groups groups : {Groups{32, 32, 1}, {0, 0, 0}, {16, 32, 1}, {64, 48, 0}})
            for (const uint32_t group : {1u, 4u, 8u, 16u})
                for (const uint32_t n_new : {1u, 3u}) {
                    Case c;
                    c.head_dim = head_dim;
                    c.group = group;
                    c.n_new = n_new;
                    c.key_bits = c.value_bits = 2;
                    c.key_group = groups.key;
                    c.value_group = groups.value;
                    c.f8 = groups.f8;
                    c.n_shared = std::vector<uint32_t>{1, 5, 8, 13, 16, 21, 32}[turn % 7];
                    c.soft_cap = turn % 3 == 1 ? 5.0f : 0.0f;
                    c.sinks = turn % 4 == 2;
                    c.centers = turn % 5 < 3;
                    c.scales = turn % 5 > 1;
                    c.rotated = turn % 3 == 2;
                    c.packed_pages = 3;
                    c.raw_between = turn % 4 < 2;
                    c.tail_tokens = 19;
                    ++turn;
                    all.push_back(c);
                }
    add_f8_cases(&all);
    return all;
}

std::vector<Case> one_bit_cases() {
    std::vector<Case> all;
    uint32_t turn = 0;
    for (const uint32_t head_dim : {128u, 64u, 80u, 256u})
        for (const uint32_t value_group : {128u, 64u, 32u})
            for (const uint32_t f8 : {0u, 1u}) {
                Case c;
                c.head_dim = head_dim;
                c.key_bits = 2;
                c.value_bits = 1;
                c.value_group = value_group;
                c.f8 = f8;
                c.boosted = std::vector<uint32_t>{0, 16, head_dim / 32 * 16}[turn % 3];
                c.ones = std::vector<uint32_t>{0, 1, 3, head_dim / 16, 2}[turn % 5];
                c.group = std::vector<uint32_t>{4, 1, 8, 2}[turn % 4];
                c.n_new = turn % 7 < 3 ? 2 : 1;
                c.packed_pages = 3;
                c.raw_between = turn % 9 < 4;
                c.tail_tokens = 19;
                ++turn;
                all.push_back(c);
            }
    return all;
}

uint32_t next_of(const std::vector<uint32_t> &values, uint32_t *turn) {
    return values[(*turn)++ % values.size()];
}

std::vector<Case> grouped_cases() {
    struct Keys {
        uint32_t bits, boosted, n_shared, ordered, stepped;
    };
    std::vector<Case> all;
    // Lists of different lengths, so that turns meet in new ways.
    uint32_t turns[8] = {};
    for (const uint32_t head_dim : {64u, 80u, 96u, 128u, 256u})
        for (const uint32_t f8 : {1u, 0u})
            for (const Keys &keys :
                 {Keys{2, 0, 0, 0, 0}, Keys{2, 16, 0, 1, 0}, Keys{2, 32, 13, 1, 0},
                  Keys{2, 0, 21, 0, 0}, Keys{2, 0, 0, 0, 1}, Keys{2, 16, 0, 0, 0},
                  Keys{4, 0, 0, 0, 0}, Keys{8, 0, 0, 0, 0}, Keys{16, 0, 0, 0, 0}})
                for (const uint32_t value_bits : {1u, 2u, 4u, 8u, 16u}) {
                    Case c;
                    c.head_dim = head_dim;
                    c.f8 = f8;
                    c.key_bits = keys.bits;
                    c.boosted = keys.boosted;
                    c.n_shared = keys.n_shared;
                    c.ordered = keys.ordered;
                    c.stepped = keys.stepped;
                    c.value_bits = value_bits;
                    c.key_group = next_of({64, 16, 32, 0}, turns);
                    c.value_group =
                        next_of({32, 64, 48, head_dim == 256 ? 32u : 16u, 0}, turns + 1);
                    c.group = next_of({4, 1, 8, 4, 2, 4, 16}, turns + 2);
                    c.n_new = next_of({1, 1, 3}, turns + 3);
                    c.raw_between = next_of({0, 0, 1}, turns + 4);
                    c.wider = next_of({0, 1, 0, 0}, turns + 5);
                    c.centers = next_of({1, 0}, turns + 6);
                    c.scales = next_of({0, 0, 1, 1}, turns + 7);
                    c.rotated = turns[0] % 3 == 1;
                    c.soft_cap = turns[0] % 11 == 3 ? 5.0f : 0.0f;
                    c.window = turns[0] % 13 == 5 ? 130 : 0;
                    c.packed_pages = turns[0] % 17 == 7 ? 40 : 4;
                    c.tail_tokens = 19;
                    all.push_back(c);
                }
    return all;
}

std::vector<Case> long_cases() {
    struct Keys {
        uint32_t bits, boosted, n_shared, ordered;
    };
    std::vector<Case> all;
    uint32_t turns[12] = {};
    for (const uint32_t head_dim : {128u, 64u, 80u, 96u, 256u})
        for (const Keys &keys : {Keys{16, 0, 0, 0}, Keys{2, 16, 0, 1}, Keys{2, 16, 0, 0},
                                 Keys{2, 0, 5, 0}, Keys{8, 0, 0, 0}}) {
            Case c;
            c.head_dim = head_dim;
            c.n_kv_heads = 1;
            c.key_bits = keys.bits;
            c.boosted = keys.boosted;
            c.n_shared = keys.n_shared;
            c.ordered = keys.ordered;
            c.value_bits = keys.bits == 16 ? 16 : next_of({2, 4, 8, 1, 16, 3}, turns);
            c.group = keys.bits == 16 ? 2 : next_of({16, 4, 8}, turns + 1);
            c.n_new = keys.bits == 16 ? next_of({66, 200, 131}, turns + 2) : 2080 / c.group;
            c.packed_pages = keys.bits == 16 ? 72 : 3;
            // CUDA has 64 KiB for dequantized pages for each new token.
            if (keys.ordered && head_dim >= 128)
                c.packed_pages = c.n_new * 128 / head_dim + 10;
            c.n_sequences = keys.bits == 8 ? next_of({1, 3, 2}, turns + 3) : 1;
            c.tail_tokens = next_of({131, 0, 19}, turns + 4);
            c.window = next_of({0, 0, 0, 1000, 0, 40, 1}, turns + 5);
            c.window_sinks = c.window ? 4 : 0;
            c.page_tokens = keys.bits == 8    ? next_of({64, 32, 128}, turns + 6)
                            : keys.bits == 16 ? next_of({128, 32, 64}, turns + 10)
                                              : 128;
            c.sink_tokens = next_of({32, 48, 0, 112}, turns + 11);
            c.raw_between = next_of({0, 1, 0}, turns + 7);
            c.centers = c.scales = next_of({0, 1}, turns + 8);
            c.rotated = turns[8] % 3 == 1;
            c.soft_cap = turns[0] % 7 == 3 ? 5.0f : 0.0f;
            c.dtype = std::vector<lk_dtype>{LK_F16, LK_F32, LK_BF16}[turns[9]++ % 3];
            c.sinks = turns[9] % 4 == 1;
            all.push_back(c);
        }
    // The window begins with a page, and those before it are freed. Short pages have less than a
    // stage of CUDA's.
    for (const uint32_t page_tokens : {128u, 32u})
        for (const uint32_t head_dim : {128u, 64u, 256u, 80u}) {
            Case c;
            c.head_dim = head_dim;
            c.n_kv_heads = 1;
            c.group = 8;
            c.n_new = 300;
            c.sinks = 1;
            c.sink_tokens = 0;
            c.page_tokens = page_tokens;
            c.packed_pages = 7;
            c.tail_tokens = page_tokens - 1;
            c.window = 4 * page_tokens;
            all.push_back(c);
        }
    return all;
}

std::vector<Case> span_cases() {
    std::vector<Case> all;
    uint32_t turns[8] = {};
    for (const uint32_t head_dim : {128u, 64u, 80u, 256u, 32u})
        for (const uint32_t n_new : {2u, 17u, 64u, 65u, 200u, 330u}) {
            Case c;
            c.head_dim = head_dim;
            c.n_new = n_new;
            c.spans = next_of({7, 64, 150}, turns);
            c.group = next_of({4, 1, 8, 5, 16}, turns + 1);
            c.key_bits = next_of({2, 4, 16, 8}, turns + 2);
            c.value_bits = c.key_bits == 16 ? 16 : next_of({2, 4, 1}, turns + 3);
            c.boosted = c.key_bits == 2 ? 16 : 0;
            c.window = next_of({0, 150, 0, 40, 400}, turns + 4);
            c.window_sinks = c.window ? 4 : 0;
            c.n_sequences = next_of({1, 3}, turns + 5);
            c.tail_tokens = next_of({5, 0, 131}, turns + 6);
            c.sinks = next_of({0, 0, 1}, turns + 7);
            c.windowed_spans = turns[0] % 4 == 1;
            c.n_kv_heads = n_new > LK_DRAFT_TOKENS ? 1 : 2;
            all.push_back(c);
        }
    // Of as many columns as CUDA takes packed pages apart for.
    for (const uint32_t head_dim : {128u, 64u}) {
        Case c = all.front();
        c.head_dim = head_dim;
        c.n_kv_heads = 1;
        c.group = 8;
        c.n_new = 300;
        c.spans = 200;
        c.window = head_dim == 64 ? 220 : 0;
        c.packed_pages = 5;
        all.push_back(c);
    }
    return all;
}

std::vector<Case> ratio_cases() {
    std::vector<Case> all;
    uint32_t turns[7] = {};
    for (const uint32_t head_dim : {128u, 64u, 256u, 80u})
        for (const uint32_t group : {20u, 24u, 32u, 64u, 33u}) {
            Case c;
            c.head_dim = head_dim;
            c.group = group;
            c.n_new = next_of({1, 2, 1, 3}, turns);
            c.key_bits = next_of({2, 2, 16, 4, 8}, turns + 1);
            c.value_bits = next_of({2, 4, 1, 16, 8, 2}, turns + 2);
            c.boosted = c.key_bits == 2 ? next_of({16, 0}, turns + 3) : 0;
            c.key_group = c.value_group = next_of({0, 0, 32}, turns + 4);
            c.f8 = c.key_group != 0;
            c.sinks = c.centers = next_of({0, 1}, turns + 5);
            c.tree = c.n_new > 1;
            c.packed_pages = next_of({3, 5, 12}, turns + 6);
            c.raw_between = c.packed_pages == 5;
            c.tail_tokens = 19;
            all.push_back(c);
        }
    return all;
}

std::vector<Case> wide_item_cases() {
    std::vector<Case> all;
    uint32_t turns[7] = {};
    for (const uint32_t head_dim : {128u, 64u, 96u})
        for (const uint32_t boosted : {0u, 16u, 48u, head_dim})
            for (const uint32_t value_bits : {2u, 4u}) {
                Case c;
                c.head_dim = head_dim;
                c.group = next_of({16, 16, 12, 24, 9}, turns);
                c.key_bits = boosted == head_dim ? 4 : 2;
                c.boosted = boosted % head_dim;
                c.value_bits = value_bits;
                c.n_new = next_of({1, 1, 3}, turns + 1);
                c.packed_pages = next_of({3, 40, 13}, turns + 2);
                c.raw_between = next_of({0, 0, 1}, turns + 3);
                c.centers = c.scales = c.sinks = next_of({0, 1}, turns + 4);
                c.rotated = turns[4] % 3 == 1;
                c.soft_cap = static_cast<float>(next_of({0, 0, 0, 5}, turns + 5));
                c.window = next_of({0, 0, 0, 0, 200}, turns + 6);
                all.push_back(c);
            }
    return all;
}

std::vector<Case> plain_f8_cases() {
    std::vector<Case> all;
    uint32_t turns[7] = {};
    for (const uint32_t head_dim : {128u, 64u, 80u})
        for (const uint32_t key_bits : {2u, 4u, 8u, 16u})
            for (const uint32_t value_bits : {1u, 2u, 4u, 8u, 16u}) {
                Case c;
                c.head_dim = head_dim;
                c.key_bits = key_bits;
                c.value_bits = value_bits;
                c.f8 = 1;
                c.boosted = key_bits == 2 ? next_of({48, 0, 16}, turns) : 0;
                c.ordered = c.boosted == 16;
                c.group = next_of({4, 1, 8, 4, 3}, turns + 1);
                c.n_new = next_of({1, 1, 3}, turns + 2);
                c.packed_pages = next_of({3, 23}, turns + 3);
                c.raw_between = next_of({0, 0, 1}, turns + 4);
                c.wider = next_of({0, 0, 0, 1}, turns + 5);
                c.centers = next_of({1, 0}, turns + 6);
                c.window = turns[1] % 7 == 5 ? 130 : 0;
                all.push_back(c);
            }
    return all;
}

std::vector<Case> mixed_cases() {
    std::vector<Case> all;
    uint32_t turn = 0;
    for (const uint32_t f8 : {0u, 1u})
        for (const uint32_t value_bits : {1u, 2u, 4u, 8u})
            for (const uint32_t key_group : {0u, 32u, 16u}) {
                Case c;
                c.head_dim = turn % 4 == 3 ? 80 : 128;
                c.key_bits = turn % 5 == 2 ? 8 : 2;
                c.value_bits = value_bits;
                c.key_group = key_group;
                c.value_group = std::vector<uint32_t>{32, 128, 16, 48, 64}[turn % 5];
                c.f8 = f8;
                c.n_shared = turn % 3 == 0 && c.key_bits == 2 ? 21 : 0;
                c.boosted = turn % 3 == 1 ? 16 : 0;
                c.group = std::vector<uint32_t>{4, 8, 1}[turn % 3];
                c.n_new = turn % 4 == 1 ? 2 : 1;
                c.packed_pages = 7;
                c.raw_between = turn % 2;
                c.mixed = 1 + turn % 2;
                c.tail_tokens = 19;
                ++turn;
                all.push_back(c);
            }
    return all;
}

std::vector<Case> short_page_cases() {
    std::vector<Case> all = grouped_cases();
    const std::vector<Case> mixed = mixed_cases();
    all.insert(all.end(), mixed.begin(), mixed.end());
    uint32_t turn = 0;
    for (Case &c : all) {
        c.page_tokens = turn++ % 2 ? 64 : 32;
        c.packed_pages = 2 * c.packed_pages + 1;
        c.tail_tokens = 19 + turn % 3 * 16;
        c = legal(c);
    }
    return all;
}

std::vector<Case> page_cases() {
    constexpr uint32_t kEveryWide = 7;  // coprime to the numbers of values of the other axes
    std::vector<Case> all;
    uint32_t turn = 0;
    for (const uint32_t page_tokens : {32u, 64u, 128u})
        for (const uint32_t bits : {1u, 2u, 3u, 4u, 8u, 16u})
            for (const uint32_t f8 : {0u, 1u})
                for (const uint32_t head_dim : {32u, 80u, 128u, 256u, 272u, 512u})
                    for (const uint32_t variant : {0u, 1u, 2u, 3u, 4u}) {
                        if (page_tokens < 64 && (bits == 1 || bits == 3))
                            continue;
                        if (head_dim > 256 && turn++ % kEveryWide)
                            continue;
                        Case c;
                        c.page_tokens = page_tokens;
                        c.key_bits = c.value_bits = bits;
                        c.f8 = f8;
                        c.head_dim = head_dim;
                        c.key_group = variant == 1 ? 16 : variant == 2 ? 32 : 0;
                        c.value_group = variant == 1 ? 16 : variant == 2 ? 48 : 0;
                        c.boosted = variant == 2 ? 16 : 0;
                        c.n_shared = variant == 3 ? 5 : 0;
                        c.per_token_keys = variant == 4;
                        all.push_back(c);
                    }
    return all;
}

std::vector<Case> every_case(const std::vector<Case> &cases, size_t n, size_t first) {
    std::vector<Case> some;
    for (size_t i = first; i < cases.size(); i += n)
        some.push_back(cases[i]);
    return some;
}

bool Part::read(const char *text) {
    return std::sscanf(text, "%zu/%zu", &first, &n) == 2 && first < n;
}
