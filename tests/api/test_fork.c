// Forks share pages, and each is as if it had them alone.
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
} setup;

static const setup kSetups[] = {
    {"fp16", 128, 0, 0, 0},        {"kivi2", 32, 0, 16, 0}, {"kivi4", 128, 0, 128, 0},
    {"kitty-pro", 64, 80, 64, 0},  {"int8", 64, 16, 32, 0}, {"kitty", 32, 16, 40, 1},
    {"kitty-pro", 32, 48, 100, 1},
};

static void start(rig *r, const setup *s, uint32_t max_sequences, uint64_t budget_bytes) {
    memset(r, 0, sizeof *r);
    rig_geometry(r, 2, 2, 1, 32);
    r->layers[0].n_query_heads = 4;
    r->layers[0].n_kv_heads = 2;
    r->layers[1].head_dim = 48;
    rig_open(r);
    rig_preset(r, s->preset);
    // One layer stays at 16 bits next to the packed one.
    if (!strcmp(s->preset, "int8"))
        assert_int_equal(lk_plan_set_ladder(r->plan, 1, (const uint8_t[]){16, 8}, 2, 16), LK_OK);
    rig_recent(r, s->page_tokens, s->sink_tokens, s->recent_tokens);
    if (s->ranks_by_queries)
        rig_query_ranking(r);
    assert_int_equal(rig_cache(r, max_sequences, 512, budget_bytes), LK_OK);
}

static lk_sequence add(rig *r) {
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
    return id;
}

static lk_sequence fork_of(rig *r, lk_sequence parent, uint64_t n_tokens) {
    lk_sequence id;
    assert_int_equal(lk_sequence_fork(r->cache, parent, n_tokens, &id), LK_OK);
    assert_true(id > parent);
    return id;
}

static void drop(rig *r, lk_sequence id) {
    assert_int_equal(lk_sequence_remove(r->cache, id), LK_OK);
}

static float *output_buffer(const rig *r, uint32_t n) {
    float *out = calloc((size_t)n * rig_width(r), sizeof *out);
    assert_non_null(out);
    return out;
}

// The same `n` tokens after two sequences have the same answers, bit for bit.
static void same_answers(rig *r, lk_sequence a, lk_sequence b, uint32_t chain, uint32_t place,
                         uint32_t n, uint32_t chunk) {
    float *x = output_buffer(r, n);
    float *y = output_buffer(r, n);
    assert_int_equal(rig_fill(r, a, chain, place, n, chunk, x), LK_OK);
    assert_int_equal(rig_fill(r, b, chain, place, n, chunk, y), LK_OK);
    assert_memory_equal(x, y, (size_t)n * rig_width(r) * sizeof *x);
    free(x);
    free(y);
}

static void is_empty(const rig *r, uint64_t reserved_bytes) {
    const lk_cache_stats stats = rig_stats(r);
    assert_int_equal(stats.n_sequences, 0);
    assert_int_equal(stats.n_tokens, 0);
    assert_int_equal(stats.shared_bytes, 0);
    assert_int_equal(stats.payload_bytes + stats.metadata_bytes + stats.recent_bytes, 0);
    assert_int_equal(stats.reserved_bytes, reserved_bytes);
}

// A sequence of its own with the history of a fork.
static lk_sequence make_alone(rig *r, uint32_t n, uint32_t chunk, uint32_t keep) {
    lk_sequence id = add(r);
    assert_int_equal(rig_fill(r, id, 1, 0, n, chunk, NULL), LK_OK);
    assert_int_equal(lk_sequence_truncate(r->cache, id, keep), LK_OK);
    return id;
}

// Parent and fork go different ways, in turn, and each is as a sequence of its own.
static void forks_are_whole(void **state) {
    (void)state;
    enum { N = 230, CHUNK = 46 };
    const uint32_t keeps[] = {0, 10, 33, 100, 144, 229, N};
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s], RIG_SEQUENCES, BUDGET);
        const uint64_t empty = rig_stats(&r).reserved_bytes;
        for (size_t k = 0; k < sizeof keeps / sizeof *keeps; ++k) {
            const uint32_t keep = keeps[k];
            lk_sequence parent = add(&r);
            assert_int_equal(rig_fill(&r, parent, 1, 0, N, CHUNK, NULL), LK_OK);
            lk_sequence child = fork_of(&r, parent, keep == N ? LK_ALL_TOKENS : keep);
            uint64_t length = 1;
            assert_int_equal(lk_sequence_length(r.cache, child, &length), LK_OK);
            assert_int_equal(length, keep);
            lk_sequence own_parent = make_alone(&r, N, CHUNK, N);
            lk_sequence own_child = make_alone(&r, N, CHUNK, keep);
            for (uint32_t turn = 0; turn < 3; ++turn) {
                same_answers(&r, child, own_child, 2, keep + turn * 70, 70, turn == 1 ? 70 : 9);
                same_answers(&r, parent, own_parent, 3, N + turn * 70, 70, turn == 2 ? 70 : 9);
            }
            drop(&r, k % 2 ? parent : child);
            same_answers(&r, k % 2 ? child : parent, k % 2 ? own_child : own_parent, 4, 500, 80,
                         20);
            drop(&r, k % 2 ? child : parent);
            drop(&r, own_parent);
            drop(&r, own_child);
            is_empty(&r, empty);
        }
        rig_close(&r);
    }
}

// Removed in any order, forks give back every byte and leave the others as they are.
static void removal_leaves_the_others(void **state) {
    (void)state;
    const uint32_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                   {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s], RIG_SEQUENCES, BUDGET);
        const uint64_t empty = rig_stats(&r).reserved_bytes;
        for (uint32_t o = 0; o < 6; ++o) {
            lk_sequence ids[3];
            ids[0] = add(&r);
            assert_int_equal(rig_fill(&r, ids[0], 1, 0, 170, 60, NULL), LK_OK);
            ids[1] = fork_of(&r, ids[0], LK_ALL_TOKENS);
            assert_int_equal(rig_fill(&r, ids[0], 1, 170, 90, 30, NULL), LK_OK);
            ids[2] = fork_of(&r, ids[1], 150);
            for (uint32_t i = 0; i < 3; ++i) {
                drop(&r, ids[orders[o][i]]);
                if (i == 2)
                    break;
                const uint32_t left = orders[o][2];
                const uint32_t place = left == 0 ? 260 : left == 1 ? 170 : 150;
                lk_sequence own =
                    left == 2 ? make_alone(&r, 170, 60, 150) : make_alone(&r, 170, 60, 170);
                if (left == 0)
                    assert_int_equal(rig_fill(&r, own, 1, 170, 90, 30, NULL), LK_OK);
                lk_sequence probe = fork_of(&r, ids[left], LK_ALL_TOKENS);
                same_answers(&r, probe, own, 5, place, 64, 33);
                drop(&r, own);
                drop(&r, probe);
            }
            is_empty(&r, empty);
        }
        rig_close(&r);
    }
}

// Sequences of one step have the same rows, and all of them begin in the same one.
static void batches_share_rows(void **state) {
    (void)state;
    enum { N = 150, FORKS = 4, STEPS = 40 };
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s], 2 * FORKS, BUDGET);
        lk_sequence forks[FORKS];
        lk_sequence own[FORKS];
        forks[0] = make_alone(&r, N, 50, N);
        for (uint32_t i = 0; i < FORKS; ++i) {
            if (i)
                forks[i] = fork_of(&r, forks[0], N);
            own[i] = make_alone(&r, N, 50, N);
        }
        const uint32_t counts[FORKS] = {1, 3, 1, 2};
        const uint32_t width = rig_width(&r);
        uint32_t n = 0;
        for (uint32_t i = 0; i < FORKS; ++i)
            n += counts[i];
        float *x = output_buffer(&r, n);
        float *y = output_buffer(&r, n);
        for (uint32_t step = 0; step < STEPS; ++step) {
            rig_token tokens[16];
            uint32_t t = 0;
            for (uint32_t i = 0; i < FORKS; ++i)
                for (uint32_t c = 0; c < counts[i]; ++c)
                    tokens[t++] = (rig_token){2 + i, step * counts[i] + c};
            assert_int_equal(rig_begin(&r, FORKS, forks, counts, NULL), LK_OK);
            assert_int_equal(rig_layers(&r, tokens, n, x), LK_OK);
            if (step % 5 == 3) {
                assert_int_equal(lk_step_discard(r.cache), LK_OK);
                assert_int_equal(rig_begin(&r, FORKS, forks, counts, NULL), LK_OK);
                assert_int_equal(rig_layers(&r, tokens, n, x), LK_OK);
            }
            assert_int_equal(lk_step_commit(r.cache, NULL), LK_OK);
            assert_int_equal(rig_begin(&r, FORKS, own, counts, NULL), LK_OK);
            assert_int_equal(rig_layers(&r, tokens, n, y), LK_OK);
            assert_int_equal(lk_step_commit(r.cache, NULL), LK_OK);
            assert_memory_equal(x, y, (size_t)n * width * sizeof *x);
        }
        free(x);
        free(y);
        rig_close(&r);
    }
}

// What a page is packed to is packed once, whoever comes first, and counted once.
static void shared_pages_are_packed_once(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        if (!strcmp(kSetups[s].preset, "fp16"))
            continue;
        rig r;
        start(&r, &kSetups[s], RIG_SEQUENCES, BUDGET);
        const uint32_t page = kSetups[s].page_tokens;
        const uint32_t n = kSetups[s].sink_tokens + 2 * page;
        lk_sequence ids[3];
        ids[0] = make_alone(&r, n, 50, n);
        ids[1] = fork_of(&r, ids[0], LK_ALL_TOKENS);
        ids[2] = fork_of(&r, ids[1], LK_ALL_TOKENS);
        const uint64_t before = rig_stats(&r).pages_packed;
        uint64_t payload = 0;
        for (uint32_t i = 0; i < 3; ++i) {
            assert_int_equal(rig_fill(&r, ids[i], 2 + i, n, kSetups[s].recent_tokens + 1, 13, NULL),
                             LK_OK);
            const lk_cache_stats stats = rig_stats(&r);
            if (!i)
                payload = stats.payload_bytes;
            assert_true(stats.pages_packed > before || before);
            assert_int_equal(stats.payload_bytes, payload);
            assert_true(stats.shared_bytes > 0);
        }
        const uint64_t after = rig_stats(&r).pages_packed;
        drop(&r, ids[0]);
        drop(&r, ids[1]);
        assert_int_equal(rig_stats(&r).payload_bytes, payload);
        assert_int_equal(rig_stats(&r).shared_bytes, 0);
        drop(&r, ids[2]);
        // The forks packed as many pages as one sequence alone packs.
        lk_sequence own = make_alone(&r, n, 50, n);
        assert_int_equal(rig_fill(&r, own, 2, n, kSetups[s].recent_tokens + 1, 13, NULL), LK_OK);
        assert_int_equal(rig_stats(&r).pages_packed - after, after);
        rig_close(&r);
    }
}

static void idle_forks_cost_little(void **state) {
    (void)state;
    enum { N = 2000, FORKS = 3000 };
    const setup kinds[] = {{"kivi2", 32, 32, 128, 0}, {"kitty-pro", 128, 32, 128, 1}};
    for (size_t s = 0; s < sizeof kinds / sizeof *kinds; ++s) {
        rig r;
        start(&r, &kinds[s], FORKS + 1, BUDGET);
        lk_sequence parent = add(&r);
        assert_int_equal(rig_fill(&r, parent, 1, 0, N, 500, NULL), LK_OK);
        const lk_cache_stats before = rig_stats(&r);
        lk_sequence last = 0;
        for (uint32_t i = 0; i < FORKS; ++i)
            last = fork_of(&r, i % 3 ? parent : last ? last : parent, LK_ALL_TOKENS);
        const lk_cache_stats after = rig_stats(&r);
        assert_int_equal(after.n_sequences, FORKS + 1);
        assert_int_equal(after.n_tokens, (uint64_t)N * (FORKS + 1));
        const uint64_t held = before.payload_bytes + before.metadata_bytes + before.recent_bytes;
        assert_int_equal(after.payload_bytes + after.metadata_bytes + after.recent_bytes, held);
        assert_int_equal(after.shared_bytes, held);
        assert_true(after.reserved_bytes > before.reserved_bytes);
        assert_true((after.reserved_bytes - before.reserved_bytes) / FORKS < 1024);
        drop(&r, parent);
        lk_sequence own = make_alone(&r, N, 500, N);
        same_answers(&r, last, own, 2, N, 64, 16);
        rig_close(&r);
    }
}

static void same_bytes(const lk_cache_stats *a, const lk_cache_stats *b) {
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_int_equal(a->reserved_bytes, b->reserved_bytes);
    assert_int_equal(a->payload_bytes, b->payload_bytes);
    assert_int_equal(a->metadata_bytes, b->metadata_bytes);
    assert_int_equal(a->recent_bytes, b->recent_bytes);
    assert_int_equal(a->shared_bytes, b->shared_bytes);
    assert_int_equal(a->table_bytes, b->table_bytes);
}

// A step that is dropped gives its copies back, and the fork shares all again.
static void discard_returns_the_copies(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s], RIG_SEQUENCES, BUDGET);
        lk_sequence parent = make_alone(&r, 140, 70, 140);
        lk_sequence own = make_alone(&r, 140, 70, 137);
        lk_sequence child = fork_of(&r, parent, 137);
        uint32_t n = 1;
        assert_int_equal(rig_begin(&r, 1, &child, &n, NULL), LK_OK);  // packs what is due
        assert_int_equal(lk_step_discard(r.cache), LK_OK);
        const lk_cache_stats before = rig_stats(&r);
        const uint32_t steps[] = {1, 64, 65, 300};
        for (uint32_t i = 0; i < 4; ++i) {
            n = steps[i];
            rig_token tokens[300];
            for (uint32_t t = 0; t < n; ++t)
                tokens[t] = (rig_token){9, t};
            assert_int_equal(rig_begin(&r, 1, &child, &n, NULL), LK_OK);
            assert_true(rig_stats(&r).pages_copied > before.pages_copied);
            assert_int_equal(rig_layers(&r, tokens, n, NULL), LK_OK);
            if (i == 1) {
                const uint32_t keep = 0;
                assert_int_equal(lk_step_commit(r.cache, &keep), LK_OK);
            } else {
                assert_int_equal(lk_step_discard(r.cache), LK_OK);
            }
            const lk_cache_stats after = rig_stats(&r);
            same_bytes(&after, &before);
        }
        // The parent's own tokens go after the shared ones: no copy.
        const uint64_t copied = rig_stats(&r).pages_copied;
        assert_int_equal(rig_step(&r, parent, 1, 140, 1, NULL), LK_OK);
        assert_int_equal(rig_stats(&r).pages_copied, copied);
        same_answers(&r, child, own, 2, 137, 200, 40);
        rig_close(&r);
    }
}

// Tokens without answers, as far as the budget goes.
static void fill_up(rig *r, lk_sequence id, int attends) {
    static const rig_token tokens[512];
    for (uint32_t n = 512; n; n /= 2) {
        lk_status status;
        while (!(status = rig_begin(r, 1, &id, &n, NULL))) {
            for (uint32_t l = 0; l < r->geometry.n_layers; ++l)
                assert_int_equal(
                    attends ? rig_layer(r, l, tokens, n, NULL) : rig_append(r, l, tokens, n),
                    LK_OK);
            assert_int_equal(lk_step_commit(r->cache, NULL), LK_OK);
        }
        assert_int_equal(status, LK_E_BUDGET);
    }
}

// No bytes for the copy: refused with nothing changed, and the copy is made once there are.
static void copies_are_in_the_budget(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s], 3, 3u << 20);
        lk_sequence parent = make_alone(&r, 100, 50, 100);
        lk_sequence child = fork_of(&r, parent, 90);
        lk_sequence other = add(&r);
        fill_up(&r, other, kSetups[s].ranks_by_queries);
        // A sink page or a slot may be left for a copy alone, never for all that follows it.
        const lk_cache_stats before = rig_stats(&r);
        uint32_t n = 512;
        assert_int_equal(rig_begin(&r, 1, &child, &n, NULL), LK_E_BUDGET);
        rig_sentence("is short of");
        const lk_cache_stats after = rig_stats(&r);
        same_bytes(&after, &before);
        assert_int_equal(after.pages_copied, before.pages_copied);
        drop(&r, other);
        lk_sequence own = make_alone(&r, 100, 50, 90);
        same_answers(&r, child, own, 2, 90, 64, 32);
        rig_close(&r);
    }
}

// Cut to anywhere, a sequence leaves what it shares to the others.
static void truncation_leaves_the_others(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s], RIG_SEQUENCES, BUDGET);
        for (uint32_t keep = 0; keep < 200; keep += 37) {
            lk_sequence a = make_alone(&r, 200, 64, 200);
            lk_sequence b = fork_of(&r, a, LK_ALL_TOKENS);
            assert_int_equal(lk_sequence_truncate(r.cache, a, keep), LK_OK);
            lk_sequence own_a = make_alone(&r, 200, 64, keep);
            lk_sequence own_b = make_alone(&r, 200, 64, 200);
            same_answers(&r, a, own_a, 2, keep, 90, 30);
            same_answers(&r, b, own_b, 3, 200, 90, 30);
            // Cut again, with the rest of the page gone or there.
            lk_sequence c = fork_of(&r, b, 205);
            lk_sequence own_c = fork_of(&r, own_b, 205);
            if (keep % 2)
                drop(&r, b);
            same_answers(&r, c, own_c, 4, 205, 40, 10);
            if (!(keep % 2))
                drop(&r, b);
            drop(&r, a);
            drop(&r, c);
            drop(&r, own_a);
            drop(&r, own_b);
            drop(&r, own_c);
        }
        rig_close(&r);
    }
}

// Host memory that fails anywhere in a fork or in the step after it changes nothing.
static void forks_without_memory(void **state) {
    (void)state;
    rig r;
    start(&r, &kSetups[sizeof kSetups / sizeof *kSetups - 1], RIG_SEQUENCES, BUDGET);
    lk_sequence parent = make_alone(&r, 150, 50, 150);
    lk_sequence own = make_alone(&r, 150, 50, 140);
    lk_sequence child = 0;
    lk_status status = LK_E_NOMEM;
    for (int64_t nth = 1; status; ++nth) {
        const lk_cache_stats before = rig_stats(&r);
        r.memory.n_calls = 0;
        r.memory.fail_at = nth;
        status = lk_sequence_fork(r.cache, parent, 140, &child);
        const lk_cache_stats after = rig_stats(&r);
        if (!status)
            break;
        assert_int_equal(status, LK_E_NOMEM);
        assert_int_equal(child, 0);
        same_bytes(&after, &before);
    }
    status = LK_E_NOMEM;
    uint32_t n = 70;
    for (int64_t nth = 1; status; ++nth) {
        const lk_cache_stats before = rig_stats(&r);
        r.memory.n_calls = 0;
        r.memory.fail_at = nth;
        status = rig_begin(&r, 1, &child, &n, NULL);
        r.memory.fail_at = 0;
        const lk_cache_stats after = rig_stats(&r);
        if (!status)
            break;
        assert_int_equal(status, LK_E_NOMEM);
        if (after.pages_packed == before.pages_packed)
            assert_int_equal(after.recent_bytes, before.recent_bytes);
        assert_int_equal(after.n_tokens, before.n_tokens);
    }
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    same_answers(&r, child, own, 2, 140, 100, 50);
    rig_close(&r);
}

static void wrong_forks(void **state) {
    (void)state;
    rig r;
    start(&r, &kSetups[1], 2, BUDGET);
    lk_sequence parent = make_alone(&r, 50, 50, 50);
    lk_sequence child = 7;
    assert_int_equal(lk_sequence_fork(NULL, parent, 1, &child), LK_E_ARGUMENT);
    assert_int_equal(child, 0);
    child = 7;
    assert_int_equal(lk_sequence_fork(r.cache, parent, 1, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_sequence_fork(r.cache, parent, 51, &child), LK_E_ARGUMENT);
    rig_sentence("51");
    assert_int_equal(child, 0);
    assert_int_equal(lk_sequence_fork(r.cache, 99, 1, &child), LK_E_NOT_FOUND);
    uint32_t n = 1;
    assert_int_equal(rig_begin(&r, 1, &parent, &n, NULL), LK_OK);
    assert_int_equal(lk_sequence_fork(r.cache, parent, 1, &child), LK_E_BUSY);
    rig_sentence("forked");
    assert_int_equal(lk_step_discard(r.cache), LK_OK);
    child = fork_of(&r, parent, 1);
    assert_int_equal(lk_sequence_fork(r.cache, parent, 1, &parent), LK_E_BUDGET);
    rig_sentence("max_sequences");
    // A cache goes with an open step that has borrowed pages.
    assert_int_equal(rig_begin(&r, 1, &child, &n, NULL), LK_OK);
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_are_whole),          cmocka_unit_test(removal_leaves_the_others),
        cmocka_unit_test(batches_share_rows),       cmocka_unit_test(shared_pages_are_packed_once),
        cmocka_unit_test(idle_forks_cost_little),   cmocka_unit_test(discard_returns_the_copies),
        cmocka_unit_test(copies_are_in_the_budget), cmocka_unit_test(truncation_leaves_the_others),
        cmocka_unit_test(forks_without_memory),     cmocka_unit_test(wrong_forks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
