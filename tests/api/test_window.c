// Layers with a sliding window give back the pages outside of it, and nothing else changes.
//
// SPDX-License-Identifier: Apache-2.0
#include "rig.h"

#define BUDGET (256u << 20)

typedef struct setup {
    const char *preset;
    uint32_t page_tokens;
    uint32_t sink_tokens;
    uint32_t recent_tokens;       // at 16 bits
    uint32_t attended_tokens[3];  // of the layers
    uint32_t window_sink_tokens;
} setup;

static const setup kSetups[] = {
    {"kivi2", 32, 16, 32, {40, 0, 150}, 4},
    {"kivi4", 128, 0, 128, {130, 300, 0}, 0},
    {"int8", 64, 32, 0, {1, 64, 65}, 0},
    {"fp16", 32, 16, 16, {33, 0, 90}, 16},
    {"kitty-pro", 64, 80, 40, {100, 100, 500}, 80},
};

// The model and its context; the cache is still to be made.
static void open_model(rig *r, const setup *s) {
    memset(r, 0, sizeof *r);
    rig_geometry(r, 3, 2, 1, 32);
    r->layers[0].n_query_heads = 4;
    r->layers[0].n_kv_heads = 2;
    for (uint32_t l = 0; l < 3; ++l) {
        r->layers[l].window_tokens = s->attended_tokens[l];
        r->layers[l].window_sink_tokens = s->attended_tokens[l] ? s->window_sink_tokens : 0;
    }
    rig_open(r);
    rig_preset(r, s->preset);
    rig_recent(r, s->page_tokens, s->sink_tokens, s->recent_tokens);
}

static lk_status make_cache(rig *r, uint32_t flags, uint32_t max_sequences,
                            uint32_t max_step_tokens, uint64_t budget_bytes) {
    lk_cache_desc desc;
    assert_int_equal(lk_cache_desc_init(&desc, sizeof desc), LK_OK);
    desc.flags = flags;
    desc.max_sequences = max_sequences;
    desc.max_step_tokens = max_step_tokens;
    desc.budget_bytes = budget_bytes;
    desc.slab_bytes = 1u << 20;
    return lk_cache_create(r->context, &r->geometry, r->plan, &desc, &r->cache);
}

static void start_with(rig *r, const setup *s, uint32_t max_sequences, uint32_t flags) {
    open_model(r, s);
    assert_int_equal(make_cache(r, flags, max_sequences, 512, BUDGET), LK_OK);
}

static void start(rig *r, const setup *s, uint32_t max_sequences) {
    start_with(r, s, max_sequences, 0);
}

static lk_sequence filled(rig *r, uint32_t n, uint32_t chunk) {
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
    assert_int_equal(rig_fill(r, id, 1, 0, n, chunk, NULL), LK_OK);
    return id;
}

static uint64_t held(const rig *r) {
    const lk_cache_stats stats = rig_stats(r);
    return stats.payload_bytes + stats.metadata_bytes + stats.recent_bytes;
}

static void step_at(rig *r, lk_sequence id, uint32_t place, uint32_t n, float *out) {
    const lk_status status = rig_step(r, id, 1, place, n, out);
    char sentence[512] = "";
    if (status == LK_OK)
        return;
    (void)lk_last_error(sentence, sizeof sentence, NULL);
    fail_msg("%s, %u tokens at %u: %s", lk_plan_name(r->plan), n, place, sentence);
}

// A fork that does not grow keeps every page of its parent, which still answers as if it had no
// fork.
static void dropped_pages_are_not_missed(void **state) {
    (void)state;
    enum { N = 900 };
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s], 8);
        const uint32_t chunks[] = {1, 7, 64, 200};
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; ++c) {
            lk_sequence whole = filled(&r, 8, 8);
            const size_t bytes = (size_t)chunks[c] * rig_width(&r) * sizeof(float);
            float *x = malloc(bytes);
            float *y = malloc(bytes);
            assert_non_null(x);
            assert_non_null(y);
            lk_sequence dropping = filled(&r, 8, 8);
            lk_sequence last_child = 0;
            for (uint32_t place = 8; place < N; place += chunks[c]) {
                lk_sequence child;
                assert_int_equal(lk_sequence_fork(r.cache, whole, LK_ALL_TOKENS, &child), LK_OK);
                if (last_child)
                    assert_int_equal(lk_sequence_remove(r.cache, last_child), LK_OK);
                last_child = child;
                step_at(&r, whole, place, chunks[c], x);
                step_at(&r, dropping, place, chunks[c], y);
                assert_memory_equal(x, y, bytes);
            }
            free(x);
            free(y);
            const uint64_t both = held(&r);
            assert_int_equal(lk_sequence_remove(r.cache, dropping), LK_OK);
            assert_true(held(&r) > both - held(&r));
            assert_int_equal(lk_sequence_remove(r.cache, last_child), LK_OK);
            assert_int_equal(lk_sequence_remove(r.cache, whole), LK_OK);
            assert_int_equal(held(&r), 0);
        }
        rig_close(&r);
    }
}

// A model of windows alone needs no more bytes, however long its sequences are; plans say which.
static void bytes_end_with_the_window(void **state) {
    (void)state;
    const setup s = {"kivi2", 32, 16, 32, {40, 64, 150}, 4};
    rig r;
    start(&r, &s, 2);
    lk_sequence id = filled(&r, 400, 33);
    const uint64_t before = held(&r);
    for (uint32_t place = 400; place < 2000; place += 32)
        assert_int_equal(rig_step(&r, id, 1, place, 32, NULL), LK_OK);
    assert_true(held(&r) < before + before / 2);
    // A budget of what is there holds, also where pages are not.
    assert_int_equal(lk_cache_set_budget(r.cache, rig_stats(&r).reserved_bytes - 1), LK_E_BUDGET);
    assert_int_equal(lk_cache_set_budget(r.cache, rig_stats(&r).reserved_bytes), LK_OK);
    for (size_t k = 0; k < sizeof kSetups / sizeof *kSetups; ++k) {
        rig other;
        start(&other, &kSetups[k], 1);
        (void)filled(&other, 700, 50);
        lk_plan_size size;
        assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
        assert_int_equal(lk_plan_bytes(other.plan, 700, 1, 50, &size), LK_OK);
        const lk_cache_stats stats = rig_stats(&other);
        assert_int_equal(stats.payload_bytes, size.payload_bytes);
        assert_int_equal(stats.metadata_bytes, size.metadata_bytes);
        assert_int_equal(stats.recent_bytes, size.recent_bytes);
        rig_close(&other);
    }
    rig_close(&r);
}

// What a shorter sequence would see and is gone cannot come back.
static void cuts_below_dropped_pages_are_refused(void **state) {
    (void)state;
    rig r;
    start(&r, &kSetups[0], 4);
    lk_sequence a = filled(&r, 500, 50);
    lk_sequence b = filled(&r, 490, 50);
    assert_int_equal(rig_fill(&r, b, 1, 490, 10, 10, NULL), LK_OK);
    const uint64_t before = held(&r);
    lk_sequence child = 1;
    assert_int_equal(lk_sequence_truncate(r.cache, a, 300), LK_E_UNSUPPORTED);
    rig_sentence("window of 40");
    assert_int_equal(lk_sequence_fork(r.cache, a, 300, &child), LK_E_UNSUPPORTED);
    assert_int_equal(child, 0);
    assert_int_equal(held(&r), before);
    uint64_t length = 0;
    assert_int_equal(lk_sequence_length(r.cache, a, &length), LK_OK);
    assert_int_equal(length, 500);
    // Near the end, and within the sinks, nothing is missing.
    assert_int_equal(lk_sequence_truncate(r.cache, a, 495), LK_OK);
    assert_int_equal(lk_sequence_truncate(r.cache, b, 495), LK_OK);
    float *x = calloc((size_t)60 * rig_width(&r), sizeof *x);
    float *y = calloc((size_t)60 * rig_width(&r), sizeof *y);
    assert_non_null(x);
    assert_non_null(y);
    assert_int_equal(rig_fill(&r, a, 2, 495, 60, 20, x), LK_OK);
    assert_int_equal(rig_fill(&r, b, 2, 495, 60, 20, y), LK_OK);
    assert_memory_equal(x, y, (size_t)60 * rig_width(&r) * sizeof *x);
    assert_int_equal(lk_sequence_truncate(r.cache, a, 10), LK_OK);
    assert_int_equal(lk_sequence_truncate(r.cache, b, 0), LK_OK);
    assert_int_equal(rig_fill(&r, b, 1, 0, 10, 10, NULL), LK_OK);
    assert_int_equal(rig_fill(&r, a, 2, 10, 60, 20, x), LK_OK);
    assert_int_equal(rig_fill(&r, b, 2, 10, 60, 20, y), LK_OK);
    assert_memory_equal(x, y, (size_t)60 * rig_width(&r) * sizeof *x);
    free(x);
    free(y);
    rig_close(&r);
}

// A snapshot does not have what was dropped, and what it loads to drops on.
static void snapshots_have_no_dropped_pages(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        start(&r, &kSetups[s], 3);
        lk_sequence id = filled(&r, 700, 70);
        const uint64_t alone = held(&r);
        uint64_t n_bytes = 0;
        assert_int_equal(lk_snapshot_save_memory(r.cache, 1, &id, NULL, NULL, 0, &n_bytes), LK_OK);
        void *bytes = malloc(n_bytes);
        assert_non_null(bytes);
        assert_int_equal(lk_snapshot_save_memory(r.cache, 1, &id, NULL, bytes, n_bytes, &n_bytes),
                         LK_OK);
        lk_sequence loaded = 0;
        assert_int_equal(lk_snapshot_load_memory(r.cache, NULL, bytes, n_bytes, 1, &loaded, NULL),
                         LK_OK);
        free(bytes);
        assert_int_equal(held(&r), 2 * alone);
        float *x = calloc((size_t)130 * rig_width(&r), sizeof *x);
        float *y = calloc((size_t)130 * rig_width(&r), sizeof *y);
        assert_non_null(x);
        assert_non_null(y);
        assert_int_equal(rig_fill(&r, id, 2, 700, 130, 13, x), LK_OK);
        assert_int_equal(rig_fill(&r, loaded, 2, 700, 130, 13, y), LK_OK);
        assert_memory_equal(x, y, (size_t)130 * rig_width(&r) * sizeof *x);
        assert_int_equal(lk_sequence_remove(r.cache, id), LK_OK);
        assert_true(held(&r) < alone + alone / 2);
        free(x);
        free(y);
        rig_close(&r);
    }
}

// Lengths to go back to, each below the one before: out of every window, and within pages.
static const uint32_t kCuts[] = {770, 513, 400, 257, 131, 60, 9};

// Bits on the CPU; a device's numbers by two ways of the same meaning may differ.
static void require_same(const rig *r, const float *x, const float *y, uint32_t n_tokens) {
    const int is_exact = rig_default()->backend == LK_BACKEND_CPU;
    const size_t n = (size_t)n_tokens * rig_width(r);
    assert_true(rig_distance(x, y, n) <= (is_exact ? 0 : rig_tolerance()));
}

// The same tokens in a cache that keeps its pages and in one where a fork keeps them: a step never
// has a page that the fork, which it makes first, does not share.
typedef struct two_caches {
    rig keeping, forked;
    lk_sequence a, b, child;
    uint32_t place;
    float *x, *y;
} two_caches;

static void step_both(two_caches *c, uint32_t n) {
    const lk_sequence last = c->child;
    assert_true(n <= LK_DRAFT_TOKENS);  // a longer step packs pages that no fork shares
    assert_int_equal(lk_sequence_fork(c->forked.cache, c->b, LK_ALL_TOKENS, &c->child), LK_OK);
    if (last)
        assert_int_equal(lk_sequence_remove(c->forked.cache, last), LK_OK);
    step_at(&c->keeping, c->a, c->place, n, c->x);
    step_at(&c->forked, c->b, c->place, n, c->y);
    require_same(&c->keeping, c->x, c->y, n);
    c->place += n;
}

static void kept_pages_come_back(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        two_caches c;
        memset(&c, 0, sizeof c);
        start_with(&c.keeping, &kSetups[s], 2, LK_CACHE_KEEP_WINDOWED);
        start(&c.forked, &kSetups[s], 3);
        c.x = calloc((size_t)LK_DRAFT_TOKENS * rig_width(&c.keeping), sizeof *c.x);
        c.y = calloc((size_t)LK_DRAFT_TOKENS * rig_width(&c.keeping), sizeof *c.y);
        assert_true(c.x && c.y);
        c.a = filled(&c.keeping, 8, 8);
        c.b = filled(&c.forked, 8, 8);
        c.place = 8;
        for (uint32_t cut = 0; cut < sizeof kCuts / sizeof *kCuts; ++cut) {
            while (c.place < 900 - 100 * cut)
                step_both(&c, c.place % 5 ? 1 : 60);
            c.place = kCuts[cut];
            assert_int_equal(lk_sequence_truncate(c.keeping.cache, c.a, c.place), LK_OK);
            assert_int_equal(lk_sequence_truncate(c.forked.cache, c.b, c.place), LK_OK);
            step_both(&c, 1);
            step_both(&c, 30);
        }
        lk_sequence early;
        assert_int_equal(lk_sequence_fork(c.keeping.cache, c.a, 20, &early), LK_OK);
        free(c.x);
        free(c.y);
        rig_close(&c.keeping);
        rig_close(&c.forked);
    }
}

static lk_plan_size kept_size(const rig *r, uint32_t n_tokens, uint32_t step_tokens) {
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(
        lk_cache_bytes(r->plan, LK_CACHE_KEEP_WINDOWED, n_tokens, 1, step_tokens, &size), LK_OK);
    return size;
}

static lk_status fill_within(rig *r, uint32_t n_tokens, uint32_t step_tokens, uint64_t budget) {
    lk_status status = make_cache(r, LK_CACHE_KEEP_WINDOWED, 1, step_tokens, budget);
    lk_sequence id;
    if (!status)
        status = lk_sequence_add(r->cache, &id);
    return status ? status : rig_fill(r, id, 1, 0, n_tokens, step_tokens, NULL);
}

// The bytes of kept pages are those that lk_cache_bytes() states, and its budget is the least one.
static void kept_pages_are_counted(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof kSetups / sizeof *kSetups; ++s) {
        rig r;
        open_model(&r, &kSetups[s]);
        const lk_plan_size size = kept_size(&r, 700, 50);
        lk_plan_size freeing;
        assert_int_equal(lk_plan_size_init(&freeing, sizeof freeing), LK_OK);
        assert_int_equal(lk_plan_bytes(r.plan, 700, 1, 50, &freeing), LK_OK);
        assert_true(size.payload_bytes + size.recent_bytes >
                    freeing.payload_bytes + freeing.recent_bytes);
        assert_int_equal(fill_within(&r, 700, 50, size.cache_bytes), LK_OK);
        const lk_cache_stats stats = rig_stats(&r);
        assert_int_equal(stats.payload_bytes, size.payload_bytes);
        assert_int_equal(stats.metadata_bytes, size.metadata_bytes);
        assert_int_equal(stats.recent_bytes, size.recent_bytes);
        lk_cache_destroy(&r.cache);
        assert_int_equal(fill_within(&r, 700, 50, size.cache_bytes - 1), LK_E_BUDGET);
        rig_close(&r);
    }
}

static void *save(rig *r, lk_sequence id, uint64_t *n_bytes) {
    assert_int_equal(lk_snapshot_save_memory(r->cache, 1, &id, NULL, NULL, 0, n_bytes), LK_OK);
    void *bytes = malloc(*n_bytes);
    assert_non_null(bytes);
    assert_int_equal(lk_snapshot_save_memory(r->cache, 1, &id, NULL, bytes, *n_bytes, n_bytes),
                     LK_OK);
    return bytes;
}

static lk_sequence load(rig *r, const void *bytes, uint64_t n_bytes) {
    lk_sequence id = 0;
    assert_int_equal(lk_snapshot_load_memory(r->cache, NULL, bytes, n_bytes, 1, &id, NULL), LK_OK);
    return id;
}

// A snapshot has the pages that its cache had, and goes into caches that keep them or do not.
static void snapshots_have_kept_pages(void **state) {
    (void)state;
    rig keeping, freeing;
    start_with(&keeping, &kSetups[0], 3, LK_CACHE_KEEP_WINDOWED);
    start(&freeing, &kSetups[0], 3);
    lk_sequence a = filled(&keeping, 500, 50);
    lk_sequence b = filled(&freeing, 500, 50);
    const uint64_t least = held(&freeing);
    assert_true(held(&keeping) > least);
    uint64_t n_kept, n_freed;
    void *kept = save(&keeping, a, &n_kept);
    void *freed = save(&freeing, b, &n_freed);
    assert_true(n_kept > n_freed);
    // All of it comes back and can be cut anywhere.
    assert_int_equal(lk_sequence_truncate(keeping.cache, load(&keeping, kept, n_kept), 100), LK_OK);
    // A cache that frees such pages does so in the next step.
    assert_int_equal(lk_sequence_remove(freeing.cache, b), LK_OK);
    lk_sequence loaded = load(&freeing, kept, n_kept);
    assert_true(held(&freeing) > least);
    lk_sequence other = load(&freeing, freed, n_freed);
    assert_int_equal(rig_step(&freeing, loaded, 1, 500, 1, NULL), LK_OK);
    assert_int_equal(rig_step(&freeing, other, 1, 500, 1, NULL), LK_OK);
    const uint64_t both = held(&freeing);
    assert_int_equal(lk_sequence_remove(freeing.cache, other), LK_OK);
    assert_int_equal(both, 2 * held(&freeing));
    // Freed pages are gone for a cache that keeps its own.
    loaded = load(&keeping, freed, n_freed);
    assert_int_equal(lk_sequence_truncate(keeping.cache, loaded, 300), LK_E_UNSUPPORTED);
    rig_sentence("window of 40");
    assert_int_equal(lk_sequence_truncate(keeping.cache, loaded, 495), LK_OK);
    free(kept);
    free(freed);
    rig_close(&keeping);
    rig_close(&freeing);
}

static void flags_are_checked(void **state) {
    (void)state;
    rig r;
    open_model(&r, &kSetups[0]);
    assert_int_equal(make_cache(&r, 4, 1, 64, BUDGET), LK_E_ARGUMENT);
    rig_sentence("cache_desc.flags is 0x4, known bits are 0x3");
    lk_plan_size size, same;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(lk_plan_size_init(&same, sizeof same), LK_OK);
    assert_int_equal(lk_cache_bytes(NULL, 0, 100, 1, 50, &size), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_bytes(r.plan, 0, 100, 1, 50, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_cache_bytes(r.plan, 8, 100, 1, 50, &size), LK_E_ARGUMENT);
    rig_sentence("flags is 0x8");
    assert_int_equal(lk_cache_bytes(r.plan, LK_CACHE_EVICT, 1000, 1, 50, &size), LK_OK);
    assert_int_equal(lk_plan_bytes(r.plan, 1000, 1, 50, &same), LK_OK);
    assert_memory_equal(&size, &same, sizeof size);
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_pages_are_not_missed),
        cmocka_unit_test(bytes_end_with_the_window),
        cmocka_unit_test(cuts_below_dropped_pages_are_refused),
        cmocka_unit_test(snapshots_have_no_dropped_pages),
        cmocka_unit_test(kept_pages_come_back),
        cmocka_unit_test(kept_pages_are_counted),
        cmocka_unit_test(snapshots_have_kept_pages),
        cmocka_unit_test(flags_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
