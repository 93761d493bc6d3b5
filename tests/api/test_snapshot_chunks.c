// Snapshots of sequences that are deferred or have chunks of a class: what was assigned and where
// chunks lie comes back, on every backend, and damage to it is refused.
//
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "chunked.h"
#include "fuzz/restamp.h"
#include "snapshots.h"

#define BUDGET (64u << 20)
#define N_LIVE 4u
#define STEP 3u
#define N_CHUNKS 9u

static int is_quick(void) { return rig_default() == rig_host(); }

typedef enum kind { REORDERED, IN_PLACE, WINDOWED, LADDER } kind;
static const char *const kKinds[] = {"reordered", "in place", "with a window", "with a ladder"};

static void open_kind(rig *r, const rig_device *device, kind k, shape s) {
    chunked_open(r, device, 0, s, k == REORDERED || k == LADDER);
    if (k == WINDOWED)
        chunked_window(r, s, "cocktail");
    const uint8_t rungs[] = {16, 8, 4, 2};
    if (k == LADDER)
        assert_int_equal(lk_plan_set_ladder(r->plan, 0, rungs, 4, 16), LK_OK);
    assert_int_equal(rig_cache(r, N_LIVE, 512, BUDGET), LK_OK);
}

static uint32_t context_of(shape s) { return SINKS + N_CHUNKS * s.chunk_tokens + 7; }

// Classes and an order; a fork that was cut within them; one that shares them; a prompt that waits.
static void fill(rig *r, kind k, shape s, lk_sequence *ids) {
    uint32_t seed = 3 + s.page_tokens;
    lk_chunk_class classes[N_CHUNKS];
    const uint32_t n_context = context_of(s);
    ids[0] = chunked_prompt(r, 1, n_context);
    chunked_classes(&seed, N_CHUNKS, classes);
    assert_int_equal(lk_chunks_assign(r->cache, ids[0], n_context, N_CHUNKS, classes, NULL), LK_OK);
    assert_int_equal(rig_append_step(r, ids[0], 1, n_context, 5), LK_OK);
    // Windows have given up what a shorter fork would see.
    const uint64_t cut = k == WINDOWED ? LK_ALL_TOKENS : SINKS + 5 * s.chunk_tokens + 11;
    assert_int_equal(lk_sequence_fork(r->cache, ids[0], cut, &ids[1]), LK_OK);
    assert_int_equal(rig_append_step(r, ids[1], 2, 700, 20), LK_OK);
    assert_int_equal(lk_sequence_fork(r->cache, ids[0], LK_ALL_TOKENS, &ids[2]), LK_OK);
    assert_int_equal(rig_append_step(r, ids[2], 3, 800, 70), LK_OK);
    ids[3] = chunked_prompt(r, 4, n_context);
    if (k == LADDER)
        assert_int_equal(lk_cache_shrink(r->cache, 0, 8), LK_OK);
}

static void compare(rig *a, const lk_sequence *ids, rig *b, const lk_sequence *loaded,
                    const char *what) {
    const float distance = snapshot_distance(a, ids, b, loaded, N_LIVE);
    if (!(distance <= (a->device == b->device ? 0 : rig_tolerance())))
        fail_msg("%s: outputs are %g apart", what, (double)distance);
}

static void check_lists(rig *a, lk_sequence x, rig *b, lk_sequence y) {
    lk_chunk_class assigned[2][MAX_CHUNKS] = {{0}}, stored[2][MAX_CHUNKS] = {{0}};
    uint32_t order[2][MAX_CHUNKS] = {{0}};
    lk_chunks_info info[2] = {chunked_info(a, x), chunked_info(b, y)};
    assert_memory_equal(&info[0], &info[1], sizeof info[0]);
    assert_int_equal(lk_chunks_get(a->cache, x, NULL, MAX_CHUNKS, assigned[0], stored[0], order[0]),
                     LK_OK);
    assert_int_equal(lk_chunks_get(b->cache, y, NULL, MAX_CHUNKS, assigned[1], stored[1], order[1]),
                     LK_OK);
    assert_memory_equal(assigned[0], assigned[1], sizeof assigned[0]);
    assert_memory_equal(stored[0], stored[1], sizeof stored[0]);
    assert_memory_equal(order[0], order[1], sizeof order[0]);
}

// Every verb of chunks on what was saved or loaded; both do the same.
static void go_on(rig *r, kind k, shape s, const lk_sequence *ids) {
    uint32_t seed = 77;
    lk_chunk_class classes[N_CHUNKS];
    const uint32_t n_context = context_of(s);
    chunked_classes(&seed, N_CHUNKS, classes);
    assert_int_equal(lk_chunks_assign(r->cache, ids[0], n_context, N_CHUNKS, classes, NULL), LK_OK);
    assert_int_equal(rig_append_step(r, ids[1], 2, 720, 40), LK_OK);
    if (k != WINDOWED)
        assert_int_equal(lk_sequence_truncate(r->cache, ids[2], SINKS + 3 * s.chunk_tokens + 5),
                         LK_OK);
    assert_int_equal(rig_append_step(r, ids[2], 3, 900, 9), LK_OK);
    assert_int_equal(rig_append_step(r, ids[3], 4, n_context, 60), LK_OK);
    assert_int_equal(lk_chunks_assign(r->cache, ids[3], n_context, N_CHUNKS, classes, NULL), LK_OK);
    assert_int_equal(rig_append_step(r, ids[3], 4, n_context + 60, 2), LK_OK);
}

static void run_round_trip(kind k, shape s, const rig_device *from, const rig_device *to) {
    rig a, b;
    lk_sequence ids[N_LIVE], loaded[N_LIVE];
    open_kind(&a, from, k, s);
    open_kind(&b, to, k, s);
    fill(&a, k, s, ids);
    if (k == LADDER)
        assert_int_equal(lk_cache_shrink(b.cache, 0, 8), LK_OK);
    const bytes saved = snapshot_save(&a, NULL);
    assert_int_equal(
        lk_snapshot_load_memory(b.cache, NULL, saved.data, saved.n, N_LIVE, loaded, NULL), LK_OK);
    const bytes again = snapshot_save(&b, NULL);
    snapshot_same(again, saved);
    for (uint32_t i = 0; i < N_LIVE; ++i)
        check_lists(&a, ids[i], &b, loaded[i]);
    assert_int_equal(chunked_info(&b, loaded[3]).deferral, LK_DEFER_REFUSE);
    compare(&a, ids, &b, loaded, kKinds[k]);
    go_on(&a, k, s, ids);
    go_on(&b, k, s, loaded);
    for (uint32_t i = 0; i < N_LIVE; ++i)
        check_lists(&a, ids[i], &b, loaded[i]);
    compare(&a, ids, &b, loaded, kKinds[k]);
    const bytes grown = snapshot_save(&a, NULL);
    const bytes loaded_grown = snapshot_save(&b, NULL);
    // When a window's layers drop a page depends on who had it.
    if (k != WINDOWED)
        snapshot_same(loaded_grown, grown);
    free(saved.data);
    free(again.data);
    free(grown.data);
    free(loaded_grown.data);
    rig_close(&a);
    rig_close(&b);
}

static void chunks_come_back(void **state) {
    (void)state;
    const struct {
        kind kind;
        shape shape;
    } cases[] = {{REORDERED, {128, 32}}, {IN_PLACE, {32, 32}}, {REORDERED, {32, 64}},
                 {REORDERED, {64, 8}},   {WINDOWED, {32, 32}}, {LADDER, {64, 32}}};
    for (size_t i = 0; i < (is_quick() ? sizeof cases / sizeof *cases : 1); ++i)
        run_round_trip(cases[i].kind, cases[i].shape, rig_default(), rig_default());
    if (is_quick())
        return;
    run_round_trip(cases[0].kind, cases[0].shape, rig_host(), rig_default());
    run_round_trip(cases[0].kind, cases[0].shape, rig_default(), rig_host());
}

// A budget that packs a prompt's oldest chunks: what is packed stays so, whoever goes on with it.
static void packed_prompts_come_back(void **state) {
    (void)state;
    const shape s = {128, 32};
    const uint32_t n = SINKS + 32 * 160;
    rig a, b;
    chunked_open(&a, NULL, 0, s, 1);
    chunked_open(&b, NULL, 0, s, 1);
    assert_int_equal(rig_cache(&b, N_LIVE, 512, BUDGET), LK_OK);
    assert_int_equal(rig_cache(&a, N_LIVE, 512, BUDGET), LK_OK);
    (void)chunked_prompt(&a, 1, n);
    const uint64_t held = rig_stats(&a).reserved_bytes;
    lk_cache_destroy(&a.cache);
    assert_int_equal(rig_cache(&a, N_LIVE, 512, held * 3 / 4), LK_OK);
    lk_sequence id, loaded;
    assert_int_equal(lk_sequence_add(a.cache, &id), LK_OK);
    assert_int_equal(lk_sequence_defer(a.cache, id, LK_DEFER_PACK), LK_OK);
    assert_int_equal(chunked_append(&a, id, 1, n), LK_OK);
    const lk_chunks_info info = chunked_info(&a, id);
    assert_true(info.n_middle > 0 && info.n_high > 0 && !info.is_assigned);
    const bytes saved = snapshot_save(&a, NULL);
    assert_int_equal(lk_snapshot_load_memory(b.cache, NULL, saved.data, saved.n, 1, &loaded, NULL),
                     LK_OK);
    check_lists(&a, id, &b, loaded);
    // It ends in the middle of a packed chunk that a fork has too.
    lk_sequence fork, again;
    assert_int_equal(lk_sequence_fork(b.cache, loaded, SINKS + 32 + 9, &fork), LK_OK);
    uint64_t n_bytes = 0;
    assert_int_equal(lk_snapshot_save_memory(b.cache, 1, &fork, NULL, NULL, 0, &n_bytes), LK_OK);
    bytes cut = {malloc(n_bytes), n_bytes};
    assert_non_null(cut.data);
    assert_int_equal(lk_snapshot_save_memory(b.cache, 1, &fork, NULL, cut.data, cut.n, NULL),
                     LK_OK);
    assert_int_equal(lk_snapshot_load_memory(b.cache, NULL, cut.data, cut.n, 1, &again, NULL),
                     LK_OK);
    float *x = calloc(2 * STEP * rig_width(&b), sizeof *x);
    assert_non_null(x);
    float *y = x + STEP * rig_width(&b);
    assert_int_equal(rig_step(&b, fork, 5, 300, STEP, x), LK_OK);
    assert_int_equal(rig_step(&b, again, 5, 300, STEP, y), LK_OK);
    assert_true(rig_distance(x, y, STEP * rig_width(&b)) <= rig_tolerance());
    free(x);
    free(cut.data);
    free(saved.data);
    rig_close(&a);
    rig_close(&b);
}

// Originals are not saved: packed chunks get no wider, and chunks that are assigned next keep none.
static void originals_are_not_saved(void **state) {
    (void)state;
    const shape s = {32, 32};
    const uint32_t n_context = context_of(s);
    rig a, b;
    open_kind(&a, NULL, REORDERED, s);
    open_kind(&b, NULL, REORDERED, s);
    lk_chunk_class low[N_CHUNKS], high[N_CHUNKS];
    for (uint32_t c = 0; c < N_CHUNKS; ++c) {
        low[c] = LK_CHUNK_LOW;
        high[c] = LK_CHUNK_HIGH;
    }
    const lk_sequence id = chunked_prompt(&a, 1, n_context);
    assert_int_equal(lk_chunks_retain(a.cache, id, BUDGET), LK_OK);
    assert_int_equal(lk_chunks_assign(a.cache, id, n_context, N_CHUNKS, low, NULL), LK_OK);
    const bytes saved = snapshot_save(&a, NULL);
    lk_sequence loaded;
    assert_int_equal(lk_snapshot_load_memory(b.cache, NULL, saved.data, saved.n, 1, &loaded, NULL),
                     LK_OK);
    assert_true(chunked_info(&a, id).retained_bytes > 0);
    assert_int_equal(chunked_info(&b, loaded).retained_bytes, 0);
    assert_int_equal(lk_chunks_assign(a.cache, id, n_context, N_CHUNKS, high, NULL), LK_OK);
    assert_int_equal(chunked_info(&a, id).n_high, N_CHUNKS);
    assert_int_equal(lk_chunks_assign(b.cache, loaded, n_context, N_CHUNKS, high, NULL), LK_OK);
    assert_int_equal(chunked_info(&b, loaded).n_high, 0);
    assert_int_equal(chunked_info(&b, loaded).n_narrower, N_CHUNKS);
    free(saved.data);
    rig_close(&a);
    rig_close(&b);
}

static void without_memory_or_bytes(void **state) {
    (void)state;
    const shape s = {64, 32};
    rig r;
    lk_sequence ids[N_LIVE];
    open_kind(&r, NULL, REORDERED, s);
    fill(&r, REORDERED, s, ids);
    const bytes saved = snapshot_save(&r, NULL);
    const uint64_t used = rig_stats(&r).reserved_bytes;
    for (uint32_t i = 0; i < N_LIVE; ++i)
        assert_int_equal(lk_sequence_remove(r.cache, ids[i]), LK_OK);
    lk_status status = LK_E_NOMEM;
    for (int64_t nth = 1; status; nth += is_quick() ? 1 : 23) {
        const lk_cache_stats before = rig_stats(&r);
        r.memory.fail_at = r.memory.n_calls + nth;
        status = lk_snapshot_load_memory(r.cache, NULL, saved.data, saved.n, N_LIVE, ids, NULL);
        r.memory.fail_at = 0;
        if (!status)
            break;
        assert_int_equal(status, LK_E_NOMEM);
        const lk_cache_stats after = rig_stats(&r);
        snapshot_same_stats(&after, &before);
        assert_true(nth < 2000);
    }
    const bytes again = snapshot_save(&r, NULL);
    assert_true(again.n == saved.n);
    free(again.data);
    int n_refused = 0;
    for (uint64_t budget = used / 2; budget < 2 * used; budget += used / 8) {
        lk_cache_destroy(&r.cache);
        if (rig_cache(&r, N_LIVE, 512, budget))
            continue;
        const lk_cache_stats before = rig_stats(&r);
        status = lk_snapshot_load_memory(r.cache, NULL, saved.data, saved.n, N_LIVE, ids, NULL);
        const lk_cache_stats after = rig_stats(&r);
        assert_true(after.reserved_bytes <= budget);
        if (!status)
            continue;
        assert_int_equal(status, LK_E_BUDGET);
        snapshot_same_stats(&after, &before);
        ++n_refused;
    }
    assert_true(n_refused > 0);
    free(saved.data);
    rig_close(&r);
}

// One layer and one head, pages of 32 tokens with two chunks each: assigned, and deferred.
static bytes open_small(rig *r) {
    snapshot_small_open(r, "cocktail", 1);
    const shape s = {32, 16};
    chunked_rule(r, s, 1, 1);
    snapshot_small_make(r);
    const lk_chunk_class classes[5] = {3, 1, 2, 1, 2};
    const lk_sequence id = chunked_prompt(r, 1, SINKS + 5 * 16 + 3);
    assert_int_equal(lk_chunks_assign(r->cache, id, SINKS + 5 * 16, 5, classes, NULL), LK_OK);
    const lk_sequence ids[2] = {id, chunked_prompt(r, 2, SINKS + 5)};
    return snapshot_small_take(r, ids, 2);
}

static void damage_is_refused(void **state) {
    (void)state;
    if (!is_quick())
        skip();
    rig r;
    const bytes saved = open_small(&r);
    snapshot_cut_everywhere(&r, saved);
    assert_true(snapshot_flip_frame(&r, saved) > 0);
    free(saved.data);
    rig_close(&r);
}

typedef struct edit {
    const char *what;
    int64_t at;  // of the body of the first SEQN or ROWS, or from its end
    uint32_t value;
    uint32_t n_bytes;
    const char *chunk;
    const char *sentence;
} edit;

// Lists that fit their hashes and not their sequence.
static void wrong_lists_are_refused(void **state) {
    (void)state;
    if (!is_quick())
        skip();
    rig r;
    const bytes saved = open_small(&r);
    const edit edits[] = {
        {"a chunk twice", -25, 3, 4, "SEQN", "does not hold each of its 5 chunks once"},
        {"a chunk beyond", -25, 5, 4, "SEQN", "does not hold each of its 5 chunks once"},
        {"no class", -5, 0, 1, "SEQN", "chunk 0 of sequence 1 has class 0"},
        {"a class beyond", -1, 4, 1, "SEQN", "chunk 4 of sequence 1 has class 4"},
        {"lists without a flag", 28, 0, 4, "SEQN", "flags 0, deferral 0 and 5 chunks"},
        {"an unknown flag", 28, 6, 4, "SEQN", "flags 0x6"},
        {"a mode beyond", 36, 3, 4, "SEQN", "deferral 3"},
        {"fewer chunks", 32, 4, 4, "SEQN", "a sequence of"},
        {"a class of sinks", 32, 1, 4, "ROWS", "has chunk class 1, and no chunks"},
        {"a class of a row beyond", 32, 4, 4, "ROWS", "has chunk class 4"},
        {"a reserved field", 36, 1, 4, "ROWS", "reserved bytes 0x1"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; ++i) {
        uint8_t *copy = malloc(saved.n);
        assert_non_null(copy);
        memcpy(copy, saved.data, saved.n);
        size_t at = RESTAMP_HEADER;
        while (memcmp(copy + at, edits[i].chunk, 4) != 0)
            at = snapshot_next_chunk(copy, at, saved.n);
        const size_t body = at + RESTAMP_CHUNK;
        const size_t end = snapshot_next_chunk(copy, at, saved.n);
        const size_t where = (edits[i].at < 0 ? end : body) + (size_t)edits[i].at;
        memcpy(copy + where, &edits[i].value, edits[i].n_bytes);
        snapshot_restamp(copy, saved.n);
        lk_sequence ids[2];
        const lk_status status =
            lk_snapshot_load_memory(r.cache, NULL, copy, saved.n, 2, ids, NULL);
        if (status != LK_E_CORRUPT)
            fail_msg("%s: status %d", edits[i].what, status);
        rig_sentence(edits[i].sentence);
        lk_snapshot *snapshot = NULL;
        assert_int_equal(lk_snapshot_open_memory(copy, saved.n, &snapshot), LK_E_CORRUPT);
        free(copy);
    }
    free(saved.data);
    rig_close(&r);
}

// Chunks of a plan that has none, and an order of one that leaves them in place, are refused by the
// plan's text before.
static void other_rules_are_refused(void **state) {
    (void)state;
    const shape s = {32, 32};
    rig a, b;
    lk_sequence ids[N_LIVE];
    open_kind(&a, NULL, REORDERED, s);
    open_kind(&b, NULL, IN_PLACE, s);
    fill(&a, REORDERED, s, ids);
    const bytes saved = snapshot_save(&a, NULL);
    assert_int_equal(lk_snapshot_load_memory(b.cache, NULL, saved.data, saved.n, N_LIVE, ids, NULL),
                     LK_E_MISMATCH);
    rig_sentence("\"true, \"hold\"");
    rig_sentence("against \"false, \"hold\"");
    assert_int_equal(rig_stats(&b).n_sequences, 0);
    free(saved.data);
    rig_close(&a);
    rig_close(&b);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_come_back),        cmocka_unit_test(packed_prompts_come_back),
        cmocka_unit_test(originals_are_not_saved), cmocka_unit_test(without_memory_or_bytes),
        cmocka_unit_test(damage_is_refused),       cmocka_unit_test(wrong_lists_are_refused),
        cmocka_unit_test(other_rules_are_refused),
    };
    return cmocka_run_group_tests_name("api snapshot chunks", tests, NULL, NULL);
}
