// The budget is hard, and lk_plan_bytes() says the least one that works.
//
// SPDX-License-Identifier: Apache-2.0
#include "rig.h"

#define BUDGET (2560u << 10)

typedef struct shape {
    uint32_t n_layers;
    uint32_t n_query_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t page_tokens;
    uint32_t sink_tokens;
    uint32_t recent_tokens;
} shape;

typedef struct run {
    uint32_t n_sequences;
    uint32_t n_tokens;
    uint32_t step_tokens;
} run;

// Side by side, as lk_plan_bytes() counts: each step takes every sequence forward.
static lk_status fill_side_by_side(rig *r, const run *go, uint64_t *most_reserved) {
    lk_sequence ids[RIG_SEQUENCES];
    uint32_t counts[RIG_SEQUENCES];
    lk_status status = LK_OK;
    for (uint32_t i = 0; !status && i < go->n_sequences; ++i)
        status = lk_sequence_add(r->cache, &ids[i]);
    rig_token *tokens = calloc((size_t)go->n_sequences * go->step_tokens, sizeof *tokens);
    assert_non_null(tokens);
    for (uint32_t done = 0; !status && done < go->n_tokens;) {
        const uint32_t left = go->n_tokens - done;
        const uint32_t n = left < go->step_tokens ? left : go->step_tokens;
        for (uint32_t i = 0; i < go->n_sequences; ++i) {
            counts[i] = n;
            for (uint32_t t = 0; t < n; ++t)
                tokens[i * n + t] = (rig_token){i, done + t};
        }
        status = rig_begin(r, go->n_sequences, ids, counts, NULL);
        const lk_cache_stats stats = rig_stats(r);
        assert_true(stats.reserved_bytes <= stats.budget_bytes);
        if (stats.reserved_bytes > *most_reserved)
            *most_reserved = stats.reserved_bytes;
        if (status)
            break;
        assert_int_equal(rig_layers(r, tokens, go->n_sequences * n, NULL), LK_OK);
        assert_int_equal(lk_step_commit(r->cache, NULL), LK_OK);
        done += n;
    }
    free(tokens);
    return status;
}

static lk_status try_budget(rig *r, const run *go, uint64_t budget) {
    lk_status status = rig_cache(r, go->n_sequences, go->n_sequences * go->step_tokens, budget);
    uint64_t most = 0;
    if (!status)
        status = fill_side_by_side(r, go, &most);
    lk_cache_destroy(&r->cache);
    return status;
}

static void check_run(rig *r, const run *go) {
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(lk_plan_bytes(r->plan, go->n_tokens, go->n_sequences, go->step_tokens, &size),
                     LK_OK);
    lk_status status = try_budget(r, go, size.cache_bytes);
    if (status) {
        char sentence[512];
        lk_last_error(sentence, sizeof sentence, NULL);
        fail_msg("%s: %u x %u tokens in steps of %u in %llu bytes: %s", lk_plan_name(r->plan),
                 go->n_sequences, go->n_tokens, go->step_tokens,
                 (unsigned long long)size.cache_bytes, sentence);
    }
    status = try_budget(r, go, size.cache_bytes - 1);
    if (status != LK_E_BUDGET)
        fail_msg("%s: %u x %u tokens in steps of %u fit in %llu bytes, one less than said",
                 lk_plan_name(r->plan), go->n_sequences, go->n_tokens, go->step_tokens,
                 (unsigned long long)size.cache_bytes - 1);
    rig_sentence("is short of");
}

static void the_exact_budget_works(void **state) {
    (void)state;
    const shape shapes[] = {
        {1, 2, 1, 32, 32, 0, 16},  {3, 2, 2, 64, 128, 32, 128}, {2, 3, 3, 80, 64, 80, 50},
        {1, 1, 1, 256, 128, 0, 0}, {3, 5, 5, 128, 32, 48, 100},
    };
    const run runs[] = {{1, 200, 200}, {1, 330, 50}, {1, 150, 1}, {3, 420, 97}, {2, 300, 300}};
    for (const char *const *preset =
             (const char *const[]){"fp16", "kivi2", "kitty", "int8", "ladder", "queries", NULL};
         *preset; ++preset)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s) {
            rig r;
            memset(&r, 0, sizeof r);
            rig_geometry(&r, shapes[s].n_layers, shapes[s].n_query_heads, shapes[s].n_kv_heads,
                         shapes[s].head_dim);
            rig_open(&r);
            const int has_ladder = !strcmp(*preset, "ladder");
            const int ranks = !strcmp(*preset, "queries");
            rig_preset(&r, has_ladder ? "kivi4" : ranks ? "kitty-pro" : *preset);
            if (has_ladder)
                assert_int_equal(lk_plan_set_ladder(r.plan, 0, (const uint8_t[]){16, 8, 4}, 3, 8),
                                 LK_OK);
            if (ranks)
                rig_query_ranking(&r);
            rig_recent(&r, shapes[s].page_tokens, shapes[s].sink_tokens, shapes[s].recent_tokens);
            for (size_t i = 0; i < sizeof runs / sizeof *runs; ++i)
                check_run(&r, &runs[i]);
            rig_close(&r);
        }
}

// Layers with windows drop pages: what a plan says counts that in.
static void the_exact_budget_works_with_windows(void **state) {
    (void)state;
    const shape shapes[] = {{3, 2, 2, 64, 32, 32, 64}, {2, 3, 3, 80, 64, 80, 50}};
    const uint32_t windows[][3] = {{40, 0, 200}, {90, 90, 0}};
    const run runs[] = {{1, 700, 330}, {1, 900, 50}, {2, 420, 97}, {1, 400, 7}};
    for (const char *const *preset = (const char *const[]){"fp16", "kivi2", "kitty", "int8", NULL};
         *preset; ++preset)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s) {
            rig r;
            memset(&r, 0, sizeof r);
            rig_geometry(&r, shapes[s].n_layers, shapes[s].n_query_heads, shapes[s].n_kv_heads,
                         shapes[s].head_dim);
            for (uint32_t l = 0; l < shapes[s].n_layers; ++l)
                r.layers[l].window_tokens = windows[s][l];
            rig_open(&r);
            rig_preset(&r, *preset);
            rig_recent(&r, shapes[s].page_tokens, shapes[s].sink_tokens, shapes[s].recent_tokens);
            for (size_t i = 0; i < sizeof runs / sizeof *runs; ++i)
                check_run(&r, &runs[i]);
            rig_close(&r);
        }
}

// A budget that ends: the step is refused, the sequences are whole, and freed bytes can be used.
static void a_full_cache_goes_on(void **state) {
    (void)state;
    rig r;
    memset(&r, 0, sizeof r);
    rig_geometry(&r, 1, 1, 1, 256);
    rig_open(&r);
    rig_preset(&r, "int8");
    rig_recent(&r, 128, 16, 32);
    assert_int_equal(rig_cache(&r, 3, 64, BUDGET), LK_OK);
    lk_sequence a;
    lk_sequence b;
    assert_int_equal(lk_sequence_add(r.cache, &a), LK_OK);
    assert_int_equal(lk_sequence_add(r.cache, &b), LK_OK);
    uint32_t n_a = 0;
    lk_status status = LK_OK;
    while (!(status = rig_step(&r, a, 1, n_a, 16, NULL)))
        n_a += 16;
    assert_int_equal(status, LK_E_BUDGET);
    rig_sentence("is short of");
    assert_true(n_a > 200);
    uint64_t length = 0;
    assert_int_equal(lk_sequence_length(r.cache, a, &length), LK_OK);
    assert_int_equal(length, n_a);
    assert_int_equal(lk_step_commit(r.cache, NULL), LK_E_STATE);
    assert_int_equal(rig_step(&r, a, 1, n_a, 16, NULL), LK_E_BUDGET);
    assert_int_equal(lk_sequence_truncate(r.cache, a, n_a / 128 * 128 - 180), LK_OK);
    assert_int_equal(rig_step(&r, a, 1, n_a / 128 * 128 - 180, 16, NULL), LK_OK);
    assert_int_equal(lk_sequence_remove(r.cache, a), LK_OK);
    assert_int_equal(rig_fill(&r, b, 2, 0, 200, 64, NULL), LK_OK);
    const lk_cache_stats stats = rig_stats(&r);
    assert_int_equal(stats.n_sequences, 1);
    assert_int_equal(stats.n_tokens, 200);
    assert_true(stats.reserved_bytes <= BUDGET);
    rig_close(&r);
}

static void stats_equal_the_plans_bytes(void **state) {
    (void)state;
    rig r;
    memset(&r, 0, sizeof r);
    rig_geometry(&r, 2, 4, 2, 64);
    rig_open(&r);
    rig_preset(&r, "kitty-pro");
    rig_recent(&r, 64, 48, 64);
    assert_int_equal(rig_cache(&r, 1, 40, 64u << 20), LK_OK);
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r.cache, &id), LK_OK);
    assert_int_equal(rig_fill(&r, id, 1, 0, 500, 40, NULL), LK_OK);
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(lk_plan_bytes(r.plan, 500, 1, 40, &size), LK_OK);
    const lk_cache_stats stats = rig_stats(&r);
    assert_int_equal(stats.payload_bytes, size.payload_bytes);
    assert_int_equal(stats.metadata_bytes, size.metadata_bytes);
    assert_int_equal(stats.recent_bytes, size.recent_bytes);
    assert_int_equal(stats.table_bytes + stats.workspace_bytes, size.table_bytes);
    assert_int_equal(stats.pages_packed, size.n_blocks * 2u * 4u);
    assert_true(stats.reserved_bytes <= size.cache_bytes);
    rig_close(&r);
}

// Forks by the thousand, of which some grow: block tables take most of the budget, and slabs with
// pages stay. What the hooks give is never above the budget, but for what is fixed and for the
// tables of slabs.
static void forks_never_exceed_the_budget(void **state) {
    (void)state;
    enum { PARENT = 20000, FORKS = 4000, STORM = 24 << 20, SLAB = 256 << 10, SLAB_TABLE = 1280 };
    rig r;
    memset(&r, 0, sizeof r);
    rig_geometry(&r, 1, 1, 1, 32);
    rig_open(&r);
    rig_preset(&r, "kivi2");
    rig_recent(&r, 32, 0, 32);
    assert_int_equal(rig_cache(&r, FORKS, 500, STORM), LK_OK);
    const int64_t outside = r.memory.live_bytes - (int64_t)rig_stats(&r).workspace_bytes +
                            (int64_t)(STORM / SLAB) * SLAB_TABLE;
    lk_sequence ids[FORKS];
    uint32_t places[FORKS];
    assert_int_equal(lk_sequence_add(r.cache, &ids[0]), LK_OK);
    places[0] = PARENT;
    for (uint32_t place = 0; place < PARENT; place += 500)
        assert_int_equal(rig_append_step(&r, ids[0], 1, place, 500), LK_OK);
    for (uint32_t round = 0; round < 3; ++round) {
        uint32_t n = 1;
        lk_status status = LK_OK;
        while (n < FORKS && !status) {
            status = lk_sequence_fork(r.cache, ids[n / 2], LK_ALL_TOKENS, &ids[n]);
            if (status)
                break;
            places[n] = places[n / 2];
            // Some go on, until their block tables are too short.
            for (uint32_t i = 0; i < 3 && n % 16 == 0 && !status; ++i, places[n] += 40)
                status = rig_append_step(&r, ids[n], 2 + n, places[n], 40);
            ++n;
        }
        assert_int_equal(status, LK_E_BUDGET);
        rig_sentence("is short of");
        assert_true(n > 300);
        const lk_cache_stats stats = rig_stats(&r);
        assert_true(stats.reserved_bytes <= stats.budget_bytes);
        assert_true(stats.table_bytes > STORM / 2);
        if (r.memory.most_bytes > STORM + outside)
            fail_msg("hooks gave %lld bytes, the budget is %d and %lld are outside",
                     (long long)r.memory.most_bytes, STORM, (long long)outside);
        while (n > 1)
            assert_int_equal(lk_sequence_remove(r.cache, ids[--n]), LK_OK);
    }
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_exact_budget_works),
        cmocka_unit_test(the_exact_budget_works_with_windows),
        cmocka_unit_test(a_full_cache_goes_on),
        cmocka_unit_test(forks_never_exceed_the_budget),
        cmocka_unit_test(stats_equal_the_plans_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
