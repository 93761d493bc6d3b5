// Classes that are assigned before their chunks come. When the context is complete, pages, classes
// and order are those of an assignment at its end, and on the way the cache needs few bytes more.
//
// SPDX-License-Identifier: Apache-2.0
#include "contexts.h"

// A device in software takes seconds for what the CPU does in milliseconds.
static int is_quick(void) { return rig_default() == rig_host(); }

// One cache has the classes before the first token, the other after the last one.
static void run_equal(shape s, uint32_t reorder, uint32_t recent, uint32_t n_chunks,
                      uint32_t n_after, uint32_t step) {
    rig first, last;
    context_open(&first, &last, s, reorder, recent);
    const context c = context_make(s, n_chunks, n_after, step + n_chunks);
    const int has_scores = n_chunks % 2;
    const uint32_t n_query = 9;
    const lk_sequence id = context_add(&first);
    assert_int_equal(chunked_prompt(&last, 1, c.n_tokens + n_query), id);
    rig_is_ok(context_assign(&last, id, &c, has_scores));
    rig_is_ok(context_assign(&first, id, &c, has_scores));
    assert_int_equal(chunked_info(&first, id).n_pending, n_chunks);
    rig_is_ok(context_feed(&first, id, 1, 0, c.n_tokens + n_query, step));
    context_touch(&first, id);
    context_touch(&last, id);
    assert_int_equal(chunked_info(&first, id).n_pending, 0);
    context_same(&first, &last);
    assert_int_equal(rig_stats(&first).pages_packed, rig_stats(&last).pages_packed);
    assert_int_equal(rig_stats(&first).pages_dequantized, 0);
    // Both go on alike.
    rig_is_ok(context_feed(&first, id, 1, c.n_tokens + n_query, c.n_tokens + n_query + 70, 35));
    rig_is_ok(context_feed(&last, id, 1, c.n_tokens + n_query, c.n_tokens + n_query + 70, 35));
    context_same(&first, &last);
    rig_close(&first);
    rig_close(&last);
}

static void the_end_is_an_assignment_at_the_end(void **state) {
    (void)state;
    const shape shapes[] = {{128, 32}, {32, 32}, {64, 8}, {32, 64}, {64, 128}};
    const uint32_t steps[] = {1, 7, 64, 200, 512};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i)
        for (size_t k = is_quick() ? 0 : 3; k < sizeof steps / sizeof *steps;
             k += is_quick() ? 1 : 2)
            for (uint32_t n = 0; n < 26; n += n ? 12 : 1)
                run_equal(shapes[i], 1, n % 2 ? 40 : 0, n, n % 8, steps[k]);
    run_equal((shape){32, 32}, 0, 0, 13, 5, 50);
    run_equal((shape){32, 32}, 0, 33, 12, 0, 64);
    run_equal((shape){32, 32}, 0, 33, 12, 3, 512);
}

// Chunks wait for others of their block; lk_chunks_get() says what is there, and how.
static void chunks_wait_for_their_block(void **state) {
    (void)state;
    rig r;
    const shape s = {64, 32};
    chunked_open(&r, rig_default(), 0, s, 1);
    rig_is_ok(rig_cache(&r, 2, 512, CONTEXT_BUDGET));
    const lk_sequence id = context_add(&r);
    const lk_chunk_class classes[6] = {1, 3, 2, 1, 1, 1};
    const uint32_t n = SINKS + 6 * 32;
    rig_is_ok(lk_chunks_assign(r.cache, id, n, 6, classes, NULL));
    lk_chunks_info info = chunked_info(&r, id);
    assert_int_equal(info.is_assigned, 1);
    assert_int_equal(info.deferral, LK_DEFER_OFF);
    assert_int_equal(info.n_chunks, 0);
    assert_int_equal(info.n_pending, 6);
    lk_chunk_class assigned[6], stored[6];
    uint32_t order[6];
    rig_is_ok(context_feed(&r, id, 1, 0, SINKS + 3 * 32, 32));
    context_touch(&r, id);
    info = chunked_info(&r, id);
    assert_int_equal(info.n_chunks, 3);
    assert_int_equal(info.n_pending, 6);
    assert_int_equal(rig_stats(&r).payload_bytes, 0);
    // With chunk 3 the first low block is there. Chunk 2 has no other middle one and joins chunk 1.
    rig_is_ok(context_feed(&r, id, 1, SINKS + 3 * 32, SINKS + 5 * 32, 32));
    context_touch(&r, id);
    rig_is_ok(lk_chunks_get(r.cache, id, &info, 6, assigned, stored, order));
    assert_int_equal(info.n_chunks, 5);
    assert_int_equal(info.n_pending, 2);
    const lk_chunk_class now[5] = {1, 3, 3, 1, 3};
    const uint32_t order_now[5] = {0, 3, 1, 2, 4};
    assert_memory_equal(stored, now, sizeof now);
    assert_memory_equal(order, order_now, sizeof order_now);
    assert_memory_equal(assigned, classes, 5 * sizeof *classes);
    rig_is_ok(context_feed(&r, id, 1, SINKS + 5 * 32, n, 32));
    context_touch(&r, id);
    rig_is_ok(lk_chunks_get(r.cache, id, &info, 6, assigned, stored, order));
    assert_int_equal(info.n_pending, 0);
    const lk_chunk_class end[6] = {1, 3, 3, 1, 1, 1};
    const uint32_t order_end[6] = {0, 3, 4, 5, 1, 2};
    assert_memory_equal(stored, end, sizeof end);
    assert_memory_equal(order, order_end, sizeof order_end);
    rig_close(&r);
}

static uint64_t told_bytes(const rig *r, const context *c, uint32_t n_tokens, uint32_t n_sequences,
                           uint32_t step, uint64_t *final_bytes) {
    lk_chunk_mix mix;
    lk_plan_size size;
    rig_is_ok(lk_chunk_mix_init(&mix, sizeof mix));
    rig_is_ok(lk_plan_size_init(&size, sizeof size));
    for (uint32_t i = 0; i < c->n_chunks; ++i)
        ++*(c->classes[i] == LK_CHUNK_LOW      ? &mix.n_low
            : c->classes[i] == LK_CHUNK_MIDDLE ? &mix.n_middle
                                               : &mix.n_high);
    uint64_t budget = 0;
    rig_is_ok(lk_plan_chunk_prefill_bytes(r->plan, n_tokens, n_sequences, step, &mix, &budget));
    rig_is_ok(lk_plan_chunk_bytes(r->plan, n_tokens, n_sequences, step, &mix, &size));
    *final_bytes = size.cache_bytes;
    return budget;
}

// The budget that the plan tells holds every step of two contexts that grow together, and the final
// state needs what the plan tells too.
static void run_budget(shape s, uint32_t reorder, uint32_t recent, uint32_t n_chunks, uint32_t step,
                       uint32_t seed) {
    rig r;
    const context c = context_make(s, n_chunks, seed % s.chunk_tokens, seed);
    const uint32_t n_tokens = c.n_tokens + 20;
    uint64_t final_bytes;
    chunked_open(&r, rig_default(), 0, s, reorder);
    rig_recent(&r, s.page_tokens, SINKS, recent);
    const uint64_t budget = told_bytes(&r, &c, n_tokens, 2, step, &final_bytes);
    assert_true(budget >= final_bytes);
    rig_is_ok(rig_cache(&r, 2, 2 * step, budget));
    lk_sequence ids[2];
    for (int i = 0; i < 2; ++i) {
        ids[i] = context_add(&r);
        rig_is_ok(context_assign(&r, ids[i], &c, i));
    }
    rig_token *tokens = malloc(2 * step * sizeof *tokens);
    assert_non_null(tokens);
    for (uint32_t at = 0; at < n_tokens; at += step) {
        const uint32_t n = n_tokens - at < step ? n_tokens - at : step;
        const uint32_t counts[2] = {n, n};
        for (uint32_t t = 0; t < 2 * n; ++t)
            tokens[t] = (rig_token){1 + t / n, at + t % n};
        rig_is_ok(rig_begin(&r, 2, ids, counts, NULL));
        rig_is_ok(rig_append(&r, 0, tokens, 2 * n));
        rig_is_ok(rig_append(&r, 1, tokens, 2 * n));
        rig_is_ok(lk_step_commit(r.cache, NULL));
    }
    free(tokens);
    const uint32_t ones[2] = {1, 1};
    rig_is_ok(rig_begin(&r, 2, ids, ones, NULL));
    rig_is_ok(lk_step_discard(r.cache));
    for (int i = 0; i < 2; ++i)
        assert_int_equal(chunked_info(&r, ids[i]).n_pending, 0);
    rig_is_ok(lk_cache_set_budget(r.cache, final_bytes));
    rig_close(&r);
}

static void the_budget_is_told_beforehand(void **state) {
    (void)state;
    const shape shapes[] = {{128, 32}, {64, 16}, {32, 64}, {32, 32}};
    const uint32_t n_seeds = is_quick() ? 6 : 1;
    for (uint32_t i = 0; i < 4; ++i)
        for (uint32_t seed = 0; seed < n_seeds; ++seed) {
            run_budget(shapes[i], 1, seed % 3 * 20, 40, 96, 11 * i + seed);
            run_budget(shapes[i], 1, 0, 33, 31 + 50 * seed, 7 * i + seed);
        }
    run_budget((shape){64, 64}, 0, 0, 24, 64, 3);
    run_budget((shape){64, 64}, 0, 70, 24, 100, 4);
}

// One byte less than a step needs: the step is refused, and goes on with more.
static void budgets_refuse_the_step(void **state) {
    (void)state;
    rig r, last;
    const shape s = {64, 32};
    context_open(&r, &last, s, 1, 0);
    const context c = context_make(s, 60, 3, 8);
    const lk_sequence id = context_add(&r);
    rig_is_ok(context_assign(&r, id, &c, 0));
    uint32_t at = 0;
    int n_refused = 0;
    while (at < c.n_tokens) {
        const uint32_t n = c.n_tokens - at < 100 ? c.n_tokens - at : 100;
        const uint64_t held = rig_stats(&r).reserved_bytes;
        uint64_t budget = held;
        if (lk_cache_set_budget(r.cache, budget) == LK_OK) {
            while (rig_append_step(&r, id, 1, at, n) == LK_E_BUDGET) {
                rig_sentence("is short of");
                ++n_refused;
                budget += 1u << 18;
                rig_is_ok(lk_cache_set_budget(r.cache, budget));
            }
        } else {
            rig_is_ok(rig_append_step(&r, id, 1, at, n));
        }
        uint64_t length;
        rig_is_ok(lk_sequence_length(r.cache, id, &length));
        at += n;
        assert_int_equal(length, at);
        assert_true(rig_stats(&r).reserved_bytes <= budget || budget == held);
        rig_is_ok(lk_cache_set_budget(r.cache, CONTEXT_BUDGET));
    }
    assert_true(n_refused > 0);
    context_touch(&r, id);
    assert_int_equal(chunked_prompt(&last, 1, c.n_tokens), id);
    rig_is_ok(context_assign(&last, id, &c, 0));
    context_same(&r, &last);
    rig_close(&r);
    rig_close(&last);
}

// 131072 tokens of 32 layers in steps of 2048, each of which is half as large as a layer.
enum {
    LONG_LAYERS = 32,
    LONG_DIM = 32,
    LONG_TOKENS = 131072,
    LONG_STEP = 2048,
    LONG_END = LONG_TOKENS + 64,
    LONG_CHUNKS = (LONG_TOKENS - 32) / 32
};

typedef struct long_context {
    lk_context *context;
    lk_plan *plan;
    lk_cache *cache;
    lk_chunk_class classes[LONG_CHUNKS];
    uint16_t values[2 * LONG_STEP * LONG_DIM];  // keys, then values
    lk_chunk_mix mix;
    lk_plan_size size;
} long_context;

// 60, 30 and 10 percent of the chunks are low, middle and high.
static void choose_long(long_context *x) {
    uint32_t seed = 1;
    rig_is_ok(lk_chunk_mix_init(&x->mix, sizeof x->mix));
    for (uint32_t c = 0; c < LONG_CHUNKS; ++c) {
        const uint32_t share = chunked_random(&seed) % 10;
        x->classes[c] = share < 6 ? LK_CHUNK_LOW : share < 9 ? LK_CHUNK_MIDDLE : LK_CHUNK_HIGH;
        x->mix.n_low += x->classes[c] == LK_CHUNK_LOW;
        x->mix.n_middle += x->classes[c] == LK_CHUNK_MIDDLE;
        x->mix.n_high += x->classes[c] == LK_CHUNK_HIGH;
    }
    for (uint32_t i = 0; i < 2 * LONG_STEP * LONG_DIM; ++i)  // FP16 from 1 to 2, of both signs
        x->values[i] = (uint16_t)(0x3c00 | (chunked_random(&seed) & 0x83ff));
}

// With the budget that the plan tells.
static void open_long(long_context *x) {
    lk_layer layers[LONG_LAYERS];
    for (uint32_t l = 0; l < LONG_LAYERS; ++l) {
        rig_is_ok(lk_layer_init(&layers[l], sizeof layers[l]));
        layers[l].n_query_heads = layers[l].n_kv_heads = 1;
        layers[l].head_dim = LONG_DIM;
    }
    lk_geometry geometry;
    lk_context_desc where;
    lk_cache_desc desc;
    rig_is_ok(lk_geometry_init(&geometry, sizeof geometry));
    rig_is_ok(lk_context_desc_init(&where, sizeof where));
    rig_is_ok(lk_cache_desc_init(&desc, sizeof desc));
    rig_is_ok(lk_plan_size_init(&x->size, sizeof x->size));
    geometry.n_layers = LONG_LAYERS;
    geometry.layers = layers;
    rig_is_ok(lk_context_open(&where, LK_ABI_VERSION, &x->context));
    rig_is_ok(lk_plan_preset("cocktail", &geometry, &x->plan));
    rig_is_ok(lk_plan_chunk_bytes(x->plan, LONG_END, 1, LONG_STEP, &x->mix, &x->size));
    rig_is_ok(
        lk_plan_chunk_prefill_bytes(x->plan, LONG_END, 1, LONG_STEP, &x->mix, &desc.budget_bytes));
    const uint64_t layer_bytes = (uint64_t)LONG_TOKENS * LONG_DIM * 2 * sizeof(uint16_t);
    assert_true(desc.budget_bytes <= x->size.cache_bytes * 105 / 100 + layer_bytes);
    desc.max_sequences = 1;
    desc.max_step_tokens = LONG_STEP;
    rig_is_ok(lk_cache_create(x->context, &geometry, x->plan, &desc, &x->cache));
}

static void feed_long(long_context *x, lk_sequence id) {
    lk_tensor k, v;
    rig_is_ok(lk_tensor_init(&k, sizeof k));
    k.dtype = LK_F16;
    k.memory = LK_MEMORY_HOST;
    k.token_stride = k.head_stride = LONG_DIM;
    k.data = x->values;
    v = k;
    v.data = x->values + LONG_STEP * LONG_DIM;
    for (uint32_t at = 0; at < LONG_END; at += LONG_STEP) {
        const uint32_t n = LONG_END - at < LONG_STEP ? LONG_END - at : LONG_STEP;
        rig_is_ok(lk_step_begin(x->cache, NULL, 1, &id, &n, NULL));
        for (uint32_t l = 0; l < LONG_LAYERS; ++l)
            rig_is_ok(lk_append(x->cache, l, &k, &v));
        rig_is_ok(lk_step_commit(x->cache, NULL));
    }
    const uint32_t one = 1;
    rig_is_ok(lk_step_begin(x->cache, NULL, 1, &id, &one, NULL));
    rig_is_ok(lk_step_discard(x->cache));
}

static void a_long_context_is_never_at_16_bits(void **state) {
    (void)state;
    if (!is_quick())
        skip();
    long_context *x = malloc(sizeof *x);
    assert_non_null(x);
    choose_long(x);
    open_long(x);
    lk_sequence id;
    rig_is_ok(lk_sequence_add(x->cache, &id));
    rig_is_ok(lk_chunks_assign(x->cache, id, LONG_TOKENS, LONG_CHUNKS, x->classes, NULL));
    feed_long(x, id);
    lk_chunks_info info;
    rig_is_ok(lk_chunks_info_init(&info, sizeof info));
    rig_is_ok(lk_chunks_get(x->cache, id, &info, 0, NULL, NULL, NULL));
    assert_int_equal(info.n_pending, 0);
    assert_int_equal(info.n_low, x->mix.n_low / 4 * 4);
    rig_is_ok(lk_cache_set_budget(x->cache, x->size.cache_bytes));
    lk_cache_destroy(&x->cache);
    lk_plan_destroy(&x->plan);
    rig_is_ok(lk_context_close(&x->context));
    free(x);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_is_an_assignment_at_the_end),
        cmocka_unit_test(chunks_wait_for_their_block),
        cmocka_unit_test(the_budget_is_told_beforehand),
        cmocka_unit_test(budgets_refuse_the_step),
        cmocka_unit_test(a_long_context_is_never_at_16_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
