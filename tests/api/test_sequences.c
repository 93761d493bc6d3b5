// What a sequence holds does not depend on how its tokens came: chunks, batches, drafts, discarded
// steps and truncation.
//
// SPDX-License-Identifier: Apache-2.0
#include "rig.h"

#define BUDGET (256u << 20)

typedef struct setup {
    const char *preset;
    uint32_t page_tokens;
    uint32_t sink_tokens;
    uint32_t recent_tokens;
    int ranks_by_queries;
    uint8_t rung;  // of a ladder of layer 0
} setup;

static const setup kSetups[] = {
    {"fp16", 128, 0, 0, 0, 0},        {"kivi2", 32, 0, 16, 0, 0},      {"kivi4", 128, 0, 128, 0, 0},
    {"kitty", 32, 16, 40, 0, 0},      {"kitty-pro", 64, 80, 64, 0, 0}, {"int8", 64, 0, 32, 0, 0},
    {"kivi4", 32, 16, 32, 0, 2},      {"kivi4", 32, 16, 32, 0, 16},    {"kitty", 32, 16, 0, 1, 0},
    {"kitty-pro", 32, 48, 100, 1, 0},
};

static void start(rig *r, const setup *s) {
    memset(r, 0, sizeof *r);
    rig_geometry(r, 2, 2, 1, 32);
    r->layers[0].n_query_heads = 4;
    r->layers[0].n_kv_heads = 2;
    r->layers[1].head_dim = 48;
    rig_open(r);
    rig_preset(r, s->preset);
    rig_recent(r, s->page_tokens, s->sink_tokens, s->recent_tokens);
    if (s->rung)
        assert_int_equal(lk_plan_set_ladder(r->plan, 0, (const uint8_t[]){16, 4, 2}, 3, s->rung),
                         LK_OK);
    if (s->ranks_by_queries) {
        for (uint32_t l = 0; l < 2; ++l) {
            lk_key_rule rule;
            assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
            assert_int_equal(lk_plan_get_key(r->plan, l, 0, &rule), LK_OK);
            rule.boost_ranking = LK_RANKING_QUERY_RANGE;
            assert_int_equal(lk_plan_set_key(r->plan, l, LK_ALL, &rule), LK_OK);
        }
    }
    assert_int_equal(rig_cache(r, RIG_SEQUENCES, 1024, BUDGET), LK_OK);
}

static lk_sequence add(rig *r) {
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
    return id;
}

static float *output_buffer(const rig *r, uint32_t n) {
    float *out = calloc((size_t)n * rig_width(r), sizeof *out);
    assert_non_null(out);
    return out;
}

// The outputs of the same `n` tokens after two sequences are equal bit for bit.
static void same_answers(rig *r, lk_sequence a, lk_sequence b, uint32_t chain, uint32_t place,
                         uint32_t n) {
    const size_t bytes = (size_t)n * rig_width(r) * sizeof(float);
    float *x = output_buffer(r, n);
    float *y = output_buffer(r, n);
    assert_int_equal(rig_fill(r, a, chain, place, n, 7, x), LK_OK);
    assert_int_equal(rig_fill(r, b, chain, place, n, 7, y), LK_OK);
    assert_memory_equal(x, y, bytes);
    free(x);
    free(y);
}

static void chunks_make_the_same_pages(void **state) {
    (void)state;
    enum { N = 420, TAIL = 24, AFTER = 100 };
    const uint32_t chunks[] = {N, 1, 13, 64, 65, 200};
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s]);
        const size_t bytes = (size_t)AFTER * rig_width(&r) * sizeof(float);
        float *expected = output_buffer(&r, AFTER);
        float *found = output_buffer(&r, AFTER);
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; ++c) {
            lk_sequence id = add(&r);
            assert_int_equal(rig_fill(&r, id, 1, 0, N, chunks[c], NULL), LK_OK);
            assert_int_equal(rig_fill(&r, id, 1, N, TAIL, 5, NULL), LK_OK);
            assert_int_equal(rig_fill(&r, id, 1, N + TAIL, AFTER, 9, c ? found : expected), LK_OK);
            if (c)
                assert_memory_equal(found, expected, bytes);
            assert_int_equal(lk_sequence_remove(r.cache, id), LK_OK);
        }
        free(expected);
        free(found);
        rig_close(&r);
    }
}

static void discard_restores(void **state) {
    (void)state;
    const uint32_t steps[] = {1, 40, 64, 65, 300};
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s]);
        lk_sequence a = add(&r);
        lk_sequence b = add(&r);
        assert_int_equal(rig_fill(&r, a, 1, 0, 333, 100, NULL), LK_OK);
        assert_int_equal(rig_fill(&r, b, 1, 0, 333, 100, NULL), LK_OK);
        for (size_t i = 0; i < sizeof steps / sizeof *steps; ++i) {
            uint32_t n = steps[i];
            rig_token tokens[300];
            for (uint32_t t = 0; t < n; ++t)
                tokens[t] = (rig_token){9, t};
            assert_int_equal(rig_begin(&r, 1, &a, &n, NULL), LK_OK);
            assert_int_equal(rig_layers(&r, tokens, n, NULL), LK_OK);
            assert_int_equal(lk_step_discard(r.cache), LK_OK);
            uint64_t length = 0;
            assert_int_equal(lk_sequence_length(r.cache, a, &length), LK_OK);
            assert_int_equal(length, 333);
        }
        same_answers(&r, a, b, 1, 333, 130);
        rig_close(&r);
    }
}

static void batches_equal_single_runs(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s]);
        const uint32_t counts[3][4] = {{300, 1, 64, 90}, {5, 200, 64, 1}, {1, 1, 65, 2}};
        lk_sequence single[4];
        lk_sequence batch[4];
        for (int i = 0; i < 4; ++i) {
            single[i] = add(&r);
            batch[i] = add(&r);
        }
        uint32_t positions[4] = {0};
        for (int step = 0; step < 3; ++step) {
            rig_token tokens[600];
            uint32_t n = 0;
            for (uint32_t i = 0; i < 4; ++i)
                for (uint32_t t = 0; t < counts[step][i]; ++t)
                    tokens[n++] = (rig_token){i, positions[i] + t};
            float *together = output_buffer(&r, n);
            float *alone = output_buffer(&r, n);
            assert_int_equal(rig_begin(&r, 4, batch, counts[step], NULL), LK_OK);
            assert_int_equal(rig_layers(&r, tokens, n, together), LK_OK);
            assert_int_equal(lk_step_commit(r.cache, NULL), LK_OK);
            uint32_t first = 0;
            for (uint32_t i = 0; i < 4; ++i) {
                assert_int_equal(rig_step(&r, single[i], i, positions[i], counts[step][i],
                                          alone + (size_t)first * rig_width(&r)),
                                 LK_OK);
                positions[i] += counts[step][i];
                first += counts[step][i];
            }
            const size_t n_values = (size_t)n * rig_width(&r);
            if (r.device->backend == LK_BACKEND_CPU)
                assert_memory_equal(together, alone, n_values * sizeof(float));
            assert_true(rig_distance(together, alone, n_values) <= rig_tolerance());
            free(together);
            free(alone);
        }
        rig_close(&r);
    }
}

// A tree of drafts gives every token what the chain along its path gives it.
static void trees_equal_chains(void **state) {
    (void)state;
    enum { N = 9 };
    const int32_t parent[N] = {-1, 0, 1, 0, 3, -1, 5, 2, 5};
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s]);
        lk_sequence tree = add(&r);
        lk_sequence chain = add(&r);
        assert_int_equal(rig_fill(&r, tree, 1, 0, 215, 90, NULL), LK_OK);
        assert_int_equal(rig_fill(&r, chain, 1, 0, 215, 90, NULL), LK_OK);
        rig_token tokens[N];
        for (uint32_t t = 0; t < N; ++t)
            tokens[t] = (rig_token){7, t};
        float *out = output_buffer(&r, N);
        uint32_t n = N;
        assert_int_equal(rig_begin(&r, 1, &tree, &n, parent), LK_OK);
        assert_int_equal(rig_layers(&r, tokens, n, out), LK_OK);
        const uint32_t broken = 4;
        assert_int_equal(lk_step_commit(r.cache, &broken), LK_E_ARGUMENT);
        const uint32_t keep = 3;
        assert_int_equal(lk_step_commit(r.cache, &keep), LK_OK);
        for (uint32_t t = 0; t < N; ++t) {
            rig_token path[N];
            uint32_t length = 0;
            for (int32_t at = (int32_t)t; at >= 0; at = parent[at])
                ++length;
            uint32_t place = length;
            for (int32_t at = (int32_t)t; at >= 0; at = parent[at])
                path[--place] = tokens[at];
            float *own = output_buffer(&r, length);
            assert_int_equal(rig_begin(&r, 1, &chain, &length, NULL), LK_OK);
            assert_int_equal(rig_layers(&r, path, length, own), LK_OK);
            assert_int_equal(lk_step_discard(r.cache), LK_OK);
            const uint32_t width = rig_width(&r);
            const float distance =
                rig_distance(out + (size_t)t * width, own + (size_t)(length - 1) * width, width);
            if (!(distance <= rig_tolerance()))
                fail_msg("token %u: tree and chain are %.9g apart", t, (double)distance);
            free(own);
        }
        assert_int_equal(rig_step(&r, chain, 7, 0, 3, NULL), LK_OK);
        same_answers(&r, tree, chain, 1, 300, 120);
        free(out);
        rig_close(&r);
    }
}

// A tree of 64 tokens whose paths jump: every third token goes back to an earlier one.
static void grow_tree(int32_t *parent, uint32_t seed) {
    for (int32_t i = 0; i < LK_DRAFT_TOKENS; ++i)
        parent[i] = (i * 5 + (int32_t)seed) % 3 ? i - 1 : i / 2 - 1;
}

// A path that ends at `leaf`, root first; its length.
static uint32_t path_of(const int32_t *parent, int32_t leaf, uint32_t *path) {
    uint32_t n = 0;
    for (int32_t at = leaf; at >= 0; at = parent[at])
        ++n;
    uint32_t place = n;
    for (int32_t at = leaf; at >= 0; at = parent[at])
        path[--place] = (uint32_t)at;
    return n;
}

// The tokens of a tree that a commit keeps are as if appended alone, also next to other sequences.
static void any_path_is_kept(void **state) {
    (void)state;
    enum { TREES = 2, N = LK_DRAFT_TOKENS };
    const uint32_t lengths[] = {1, 23, 215, 256};
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s]);
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; ++l) {
            lk_sequence trees[TREES + 1];
            lk_sequence chains[TREES + 1];
            for (uint32_t i = 0; i <= TREES; ++i) {
                trees[i] = add(&r);
                chains[i] = add(&r);
                assert_int_equal(rig_fill(&r, trees[i], i, 0, lengths[l], 90, NULL), LK_OK);
                assert_int_equal(rig_fill(&r, chains[i], i, 0, lengths[l], 90, NULL), LK_OK);
            }
            // Two trees, and one that keeps nothing.
            int32_t parent[(TREES + 1) * N];
            rig_token tokens[(TREES + 1) * N];
            uint32_t counts[TREES + 1] = {N, N, N};
            uint32_t n_kept[TREES + 1] = {0};
            uint32_t kept[TREES * N];
            uint32_t n = 0;
            for (uint32_t i = 0; i <= TREES; ++i) {
                grow_tree(parent + (size_t)i * N, i + (uint32_t)l);
                for (uint32_t t = 0; t < N; ++t)
                    tokens[i * N + t] = (rig_token){20 + i, t};
                if (i == TREES)
                    break;
                n_kept[i] = path_of(parent + (size_t)i * N, (int32_t)(N - 1 - 7 * i), kept + n);
                n += n_kept[i];
            }
            assert_true(n_kept[0] > 4 && n_kept[0] < N);
            assert_int_equal(rig_begin(&r, TREES + 1, trees, counts, parent), LK_OK);
            assert_int_equal(rig_layers(&r, tokens, (TREES + 1) * N, NULL), LK_OK);
            kept[0] += 1;
            assert_int_equal(lk_step_commit_tokens(r.cache, n_kept, kept), LK_E_ARGUMENT);
            rig_sentence("chain");
            kept[0] -= 1;
            assert_int_equal(lk_step_commit_tokens(r.cache, n_kept, NULL), LK_E_ARGUMENT);
            assert_int_equal(lk_step_commit_tokens(r.cache, NULL, kept), LK_E_ARGUMENT);
            assert_int_equal(lk_step_commit_tokens(r.cache, n_kept, kept), LK_OK);
            n = 0;
            for (uint32_t i = 0; i <= TREES; ++i) {
                if (n_kept[i]) {
                    rig_token path[N];
                    for (uint32_t t = 0; t < n_kept[i]; ++t)
                        path[t] = tokens[i * N + kept[n++]];
                    assert_int_equal(rig_begin(&r, 1, &chains[i], &n_kept[i], NULL), LK_OK);
                    assert_int_equal(rig_layers(&r, path, n_kept[i], NULL), LK_OK);
                    assert_int_equal(lk_step_commit(r.cache, NULL), LK_OK);
                }
                same_answers(&r, trees[i], chains[i], 30, lengths[l], 150);
                assert_int_equal(lk_sequence_remove(r.cache, trees[i]), LK_OK);
                assert_int_equal(lk_sequence_remove(r.cache, chains[i]), LK_OK);
            }
        }
        rig_close(&r);
    }
}

static void kept_prefix_is_exact(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s]);
        lk_sequence a = add(&r);
        lk_sequence b = add(&r);
        uint32_t place = 0;
        for (uint32_t keep = 0; keep <= 64; keep += 9) {
            uint32_t n = 64;
            rig_token tokens[64];
            for (uint32_t t = 0; t < n; ++t)
                tokens[t] = (rig_token){t < keep ? 1u : 5u, place + t};
            assert_int_equal(rig_begin(&r, 1, &a, &n, NULL), LK_OK);
            assert_int_equal(rig_layers(&r, tokens, n, NULL), LK_OK);
            assert_int_equal(lk_step_commit(r.cache, &keep), LK_OK);
            assert_int_equal(rig_fill(&r, b, 1, place, keep, 64, NULL), LK_OK);
            place += keep;
        }
        same_answers(&r, a, b, 1, place, 150);
        rig_close(&r);
    }
}

// Cut in 16-bit rows, a sequence is as one that never had the tokens.
static void truncation_is_exact_at_16_bits(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        if (kSetups[s].ranks_by_queries)
            continue;
        rig r;
        start(&r, &kSetups[s]);
        const uint32_t base = 150;
        for (uint32_t extra = 1; extra < 60; extra += 13) {
            lk_sequence a = add(&r);
            lk_sequence b = add(&r);
            assert_int_equal(rig_fill(&r, a, 1, 0, base, 60, NULL), LK_OK);
            assert_int_equal(rig_fill(&r, b, 1, 0, base, 60, NULL), LK_OK);
            const lk_cache_stats before = rig_stats(&r);
            assert_int_equal(rig_step(&r, a, 3, 0, extra, NULL), LK_OK);
            const uint64_t packed = rig_stats(&r).pages_packed;
            assert_int_equal(lk_sequence_truncate(r.cache, a, base), LK_OK);
            assert_int_equal(rig_stats(&r).pages_packed, packed);
            assert_int_equal(rig_stats(&r).n_tokens, before.n_tokens);
            same_answers(&r, a, b, 1, base, 140);
            assert_int_equal(lk_sequence_remove(r.cache, a), LK_OK);
            assert_int_equal(lk_sequence_remove(r.cache, b), LK_OK);
        }
        rig_close(&r);
    }
}

// Anywhere: the length is right, what follows works, and two of the same history agree.
static void truncation_works_anywhere(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s]);
        for (uint32_t keep = 0; keep <= 300; keep += 37) {
            lk_sequence a = add(&r);
            lk_sequence b = add(&r);
            assert_int_equal(rig_fill(&r, a, 1, 0, 250, 250, NULL), LK_OK);
            assert_int_equal(rig_fill(&r, b, 1, 0, 250, 50, NULL), LK_OK);
            assert_int_equal(rig_fill(&r, a, 1, 250, 80, 20, NULL), LK_OK);
            assert_int_equal(rig_fill(&r, b, 1, 250, 80, 20, NULL), LK_OK);
            assert_int_equal(lk_sequence_truncate(r.cache, a, keep), LK_OK);
            assert_int_equal(lk_sequence_truncate(r.cache, b, keep), LK_OK);
            uint64_t length = 1;
            assert_int_equal(lk_sequence_length(r.cache, a, &length), LK_OK);
            assert_int_equal(length, keep);
            if (!kSetups[s].ranks_by_queries)
                same_answers(&r, a, b, 2, keep, 90);
            else
                assert_int_equal(rig_fill(&r, a, 2, keep, 200, 110, NULL), LK_OK);
            assert_int_equal(lk_sequence_remove(r.cache, a), LK_OK);
            assert_int_equal(lk_sequence_remove(r.cache, b), LK_OK);
        }
        const lk_cache_stats stats = rig_stats(&r);
        assert_int_equal(stats.n_tokens, 0);
        assert_int_equal(stats.payload_bytes + stats.metadata_bytes + stats.recent_bytes, 0);
        assert_int_equal(stats.reserved_bytes, stats.table_bytes + stats.workspace_bytes);
        rig_close(&r);
    }
}

// A dequantized page is packed again: with enough later tokens, its bytes are those of a fresh
// page.
static void dequantized_pages_are_packed_again(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s]);
        lk_sequence a = add(&r);
        assert_int_equal(rig_fill(&r, a, 1, 0, 450, 60, NULL), LK_OK);
        assert_int_equal(lk_sequence_truncate(r.cache, a, 137), LK_OK);
        assert_int_equal(rig_fill(&r, a, 1, 137, 463, 60, NULL), LK_OK);
        const lk_cache_stats again = rig_stats(&r);
        assert_int_equal(lk_sequence_remove(r.cache, a), LK_OK);
        lk_sequence b = add(&r);
        assert_int_equal(rig_fill(&r, b, 1, 0, 137, 60, NULL), LK_OK);
        assert_int_equal(rig_fill(&r, b, 1, 137, 463, 60, NULL), LK_OK);
        const lk_cache_stats fresh = rig_stats(&r);
        assert_int_equal(again.payload_bytes, fresh.payload_bytes);
        assert_int_equal(again.recent_bytes, fresh.recent_bytes);
        rig_close(&r);
    }
}

// Answers and what they are made from do not tell that keys are kept less their centers, divided by
// their scales, or rotated: the same cache without them differs by the rounding of what is stored
// alone. The rounding of k - c is at most 2^-11 of 32 for each key, that of k / s at most 2^-11 of
// k, and a rotated key has the norm of what it was.
static void changes_of_keys_do_not_show(void **state) {
    (void)state;
    if (rig_default() != rig_host())
        skip();
    enum { N = 300, AFTER = 40, CASES = 6 };
    const float most[CASES] = {0, 0.02f, 0.002f, 0.02f, 0.002f, 0.02f};
    const float logits[4] = {1.5f, -2.0f, 0.5f, 3.0f};
    float centers[48], scales[48];
    for (uint32_t c = 0; c < 48; ++c) {
        centers[c] = c % 5 == 1 ? -24.0f : 0.37f * (float)c;
        scales[c] = c % 7 == 2 ? 300.0f : 0.01f + 0.3f * (float)c;
    }
    rig r[CASES];
    float *out[CASES];
    for (uint32_t i = 0; i < CASES; ++i) {
        memset(&r[i], 0, sizeof r[i]);
        rig_geometry(&r[i], 2, 4, 2, 32);
        r[i].layers[0].sink_logits = logits;
        r[i].layers[1].head_dim = 48;
        r[i].layers[1].soft_cap = 6;
        r[i].layers[1].window_tokens = 100;
        rig_open(&r[i]);
        rig_preset(&r[i], "fp16");
        if (i & 1) {
            assert_int_equal(lk_plan_set_key_centers(r[i].plan, 0, 1, centers), LK_OK);
            assert_int_equal(lk_plan_set_key_centers(r[i].plan, 1, LK_ALL, centers), LK_OK);
        }
        if (i & 2) {
            assert_int_equal(lk_plan_set_key_scales(r[i].plan, 0, 0, scales), LK_OK);
            assert_int_equal(lk_plan_set_key_scales(r[i].plan, 1, LK_ALL, scales), LK_OK);
        }
        if (i & 4)
            assert_int_equal(lk_plan_set_key_rotation(r[i].plan, LK_ALL, LK_ROTATION_HADAMARD),
                             LK_OK);
        assert_int_equal(rig_cache(&r[i], 1, 1024, BUDGET), LK_OK);
        out[i] = output_buffer(&r[i], N + AFTER);
        const lk_sequence id = add(&r[i]);
        assert_int_equal(rig_step(&r[i], id, 1, 0, N, out[i]), LK_OK);
        assert_int_equal(rig_fill(&r[i], id, 1, N, AFTER, 3, out[i] + (size_t)N * rig_width(&r[i])),
                         LK_OK);
    }
    const size_t n = (size_t)(N + AFTER) * rig_width(&r[0]);
    for (uint32_t i = 1; i < CASES; ++i) {
        assert_true(rig_distance(out[0], out[i], n) < most[i]);
        assert_true(rig_distance(out[0], out[i], n) > 0);
    }
    for (uint32_t i = 0; i < CASES; ++i) {
        free(out[i]);
        rig_close(&r[i]);
    }
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_make_the_same_pages),
        cmocka_unit_test(discard_restores),
        cmocka_unit_test(batches_equal_single_runs),
        cmocka_unit_test(trees_equal_chains),
        cmocka_unit_test(any_path_is_kept),
        cmocka_unit_test(kept_prefix_is_exact),
        cmocka_unit_test(truncation_is_exact_at_16_bits),
        cmocka_unit_test(truncation_works_anywhere),
        cmocka_unit_test(dequantized_pages_are_packed_again),
        cmocka_unit_test(changes_of_keys_do_not_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
