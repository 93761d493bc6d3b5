// Attention on packed bytes against the reference, over a grid that covers every value of every
// axis and all pairs of values. --full takes more.
//
// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

#include <cstdio>
#include <cstring>
#include <functional>

#include "harness.h"

namespace {

bool g_full = false;

struct Axis {
    const char *name;
    std::vector<std::function<void(Case *)>> values;
};

template <class Field, class... Values>
Axis axis(const char *name, Field Case::*field, Values... values) {
    Axis a = {name, {}};
    (a.values.push_back([field, values](Case *c) { c->*field = static_cast<Field>(values); }), ...);
    return a;
}

std::vector<Axis> axes() {
    std::vector<Axis> all = {
        axis("head_dim", &Case::head_dim, 64, 128, 32, 48, 80, 96, 112, 144, 160, 176, 192, 208,
             224, 240, 256),
        axis("group", &Case::group, 4, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16),
        axis("key_bits", &Case::key_bits, 2, 16, 1, 3, 4, 8),
        axis("value_bits", &Case::value_bits, 2, 16, 1, 3, 4, 8),
        axis("boosted", &Case::boosted, 0, 16, 32),
        axis("n_shared", &Case::n_shared, 0, 1, 5, 16),
        axis("key_group", &Case::key_group, 0, 16, 32, 64),
        axis("value_group", &Case::value_group, 0, 16, 32, 48),
        axis("per_token_keys", &Case::per_token_keys, 0, 1),
        axis("f8", &Case::f8, 0, 1),
        axis("page_tokens", &Case::page_tokens, 128, 64, 32),
        axis("sink_tokens", &Case::sink_tokens, 32, 0, 16, 64),
        axis("packed_pages", &Case::packed_pages, 2, 0, 1, 9),
        axis("tail_tokens", &Case::tail_tokens, 5, 0, 1, 15, 16, 17, 127, 128),
        axis("n_new", &Case::n_new, 1, 2, 7, 8, 33, 65, 200),
        axis("new_in_rows", &Case::new_in_rows, 1, 0),
        axis("window", &Case::window, 0, 1, 40, 130),
        axis("window_sinks", &Case::window_sinks, 0, 4),
        axis("soft_cap", &Case::soft_cap, 0.0f, 5.0f),
        axis("sinks", &Case::sinks, 0, 1),
        axis("tree", &Case::tree, 0, 1),
        axis("dtype", &Case::dtype, LK_F32, LK_F16, LK_BF16),
        axis("n_sequences", &Case::n_sequences, 1, 3),
    };
    return all;
}

// Combinations without meaning become the nearest one with.
Case legal(Case c) {
    if (c.page_tokens == 32) {
        c.key_bits = c.key_bits == 1 || c.key_bits == 3 ? 4 : c.key_bits;
        c.value_bits = c.value_bits == 1 || c.value_bits == 3 ? 4 : c.value_bits;
    }
    if (c.tree && (c.n_new > 64 || !c.new_in_rows)) {
        c.new_in_rows = 1;
        c.n_new = c.n_new > 64 ? 33 : c.n_new;
    }
    if (c.n_shared && c.boosted)
        c.n_shared = 0;
    if (c.per_token_keys)
        c.n_shared = c.boosted = 0;
    if (c.n_new > 64)
        c.n_kv_heads = 1;
    return c;
}

uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9ull;
    return x ^ (x >> 32);
}

// Rows that cover all pairs: each new row starts from an uncovered pair and takes, axis by axis,
// the value that covers most.
std::vector<Case> covering_cases(uint64_t seed) {
    const std::vector<Axis> all = axes();
    const size_t n = all.size();
    std::vector<std::vector<std::vector<uint8_t>>> seen(n * n);
    for (size_t a = 0; a < n; ++a)
        for (size_t b = 0; b < n; ++b)
            seen[a * n + b].assign(all[a].values.size(),
                                   std::vector<uint8_t>(all[b].values.size(), 0));
    std::vector<Case> cases;
    for (size_t a = 0; a < n; ++a)
        for (size_t b = a + 1; b < n; ++b)
            for (size_t i = 0; i < all[a].values.size(); ++i)
                for (size_t j = 0; j < all[b].values.size(); ++j) {
                    if (seen[a * n + b][i][j])
                        continue;
                    std::vector<int> row(n, -1);
                    row[a] = static_cast<int>(i);
                    row[b] = static_cast<int>(j);
                    for (size_t x = 0; x < n; ++x) {
                        if (row[x] >= 0)
                            continue;
                        const size_t values = all[x].values.size();
                        const size_t turn = mix(seed + cases.size() * 64 + x) % values;
                        int best = -1;
                        for (size_t k = 0; k < values; ++k) {
                            const size_t v = (k + turn) % values;
                            int gain = 0;
                            for (size_t y = 0; y < n; ++y)
                                if (row[y] >= 0)
                                    gain += !seen[x * n + y][v][static_cast<size_t>(row[y])];
                            if (gain > best) {
                                best = gain;
                                row[x] = static_cast<int>(v);
                            }
                        }
                    }
                    Case c;
                    for (size_t x = 0; x < n; ++x) {
                        all[x].values[static_cast<size_t>(row[x])](&c);
                        for (size_t y = 0; y < n; ++y)
                            seen[x * n + y][static_cast<size_t>(row[x])]
                                [static_cast<size_t>(row[y])] = 1;
                    }
                    cases.push_back(legal(c));
                }
    return cases;
}

struct Path {
    const char *name;
    uint32_t mask;
};
const Path kPaths[] = {{"widest", 0},
                       {"no avx512", LK_CPU_NO_AVX512},
                       {"baseline", LK_CPU_NO_AVX512 | LK_CPU_NO_AVX2 | LK_CPU_NO_NEON}};

class Backends {
  public:
    Backends() : reference_(open_cpu(LK_CPU_REFERENCE_ONLY, 0)) {
        for (const Path &path : kPaths)
            for (const uint32_t threads : {1u, 3u})
                fast_.push_back(open_cpu(path.mask, threads));
    }
    // How many paths failed.
    int check(const Case &c) {
        Scene scene(c);
        Outputs expected;
        std::string message;
        if (!scene.run(reference_.get(), &expected, &message))
            return report(c, "reference", message);
        int failures = 0;
        for (size_t i = 0; i < fast_.size(); i += 2) {
            Outputs one, three;
            message = "";
            if (scene.run(fast_[i].get(), &one, &message) &&
                scene.run(fast_[i + 1].get(), &three, &message))
                message = !(one == three) ? "1 and 3 threads differ" : scene.compare(one, expected);
            if (!message.empty())
                failures += report(c, kPaths[i / 2].name, message);
        }
        return failures;
    }

  private:
    static int report(const Case &c, const char *path, const std::string &message) {
        print_error("%s: %s\n  %s\n", path, message.c_str(), describe(c).c_str());
        return 1;
    }
    MachinePtr reference_;
    std::vector<MachinePtr> fast_;
};

void attention_matches_reference(void **) {
    Backends backends;
    int failures = 0;
    size_t n = 0;
    for (uint64_t seed = 0; seed < (g_full ? 12u : 1u); ++seed)
        for (const Case &c : covering_cases(seed * 977)) {
            failures += backends.check(c);
            ++n;
            if (failures > 20)
                break;
        }
    print_message("%zu cases\n", n);
    assert_int_equal(failures, 0);
}

// The shapes that models run, each path of the kernels with its neighbours.
void common_shapes_match_reference(void **) {
    Backends backends;
    int failures = 0;
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
                    failures += backends.check(c);
                }
    assert_int_equal(failures, 0);
}

}  // namespace

int main(int argc, char **argv) {
    g_full = argc > 1 && std::strcmp(argv[1], "--full") == 0;
    const CMUnitTest tests[] = {
        cmocka_unit_test(common_shapes_match_reference),
        cmocka_unit_test(attention_matches_reference),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
