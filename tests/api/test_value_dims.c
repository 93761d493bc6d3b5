// Values of another dim than keys, and latent layers, whose values are channels of their keys: the
// reference's answers on every path, and exact bytes.
//
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>

#include "rigs.h"
#include "snapshots.h"

#define BUDGET (64u << 20)
#define MAX_TOKENS 288u
#define SINKS 16u

// Layer 0 has narrow values, layer 1 is latent, layer 2 has wide values. In the plain model layer 1
// appends the first channels of its keys as values.
enum { FAST, REFERENCE, PLAIN, N_MODELS };

typedef struct setup {
    const char *plan;
    uint32_t page_tokens;
    uint32_t window_tokens;  // of layers 1 and 2
} setup;

static const setup kSetups[] = {
    {"fp16", 64, 0},      {"int8", 32, 0},         {"kivi4", 128, 60}, {"kivi2", 32, 0},
    {"kitty-pro", 64, 0}, {"wide-keys", 64, 110},  {"pm-kvq", 32, 0},  {"pm-kvq-paper", 64, 0},
    {"queries", 64, 0},   {"wide-keys-pro", 64, 0}};
#define N_SETUPS (sizeof kSetups / sizeof *kSetups)

typedef struct models {
    const setup *setup;
    rig rigs[N_MODELS];
    float *out[N_MODELS];
} models;

static void make_geometry(rig *r, int is_plain, uint32_t window_tokens) {
    static const float sinks[20] = {0.5f, -1, 2,  0,     1, -2, 0.25f, 3,     -1, 1,
                                    0,    2,  -3, 0.75f, 1, 0,  -2,    -0.5f, 1,  2};
    rig_geometry(r, 3, 4, 2, 96);
    r->layers[0].value_dim = 64;
    r->layers[1].n_query_heads = 20;
    r->layers[1].n_kv_heads = 1;
    r->layers[1].head_dim = 288;
    r->layers[1].value_dim = 256;
    r->layers[1].flags = is_plain ? 0 : LK_LAYER_LATENT;
    r->has_keys_as_values[1] = is_plain;
    r->layers[1].sink_logits = sinks;
    r->layers[1].soft_cap = 30;
    r->layers[2].head_dim = 64;
    r->layers[2].value_dim = 128;
    r->layers[1].window_tokens = r->layers[2].window_tokens = window_tokens;
}

static int is_plan(const setup *s, const char *name) { return !strcmp(s->plan, name); }

// Mesa's driver on the CPU takes half a minute for a setup. Decode on Vulkan reads packed pages of
// 128 tokens, which kivi4 has.
static int is_run(const setup *s) {
    return rig_default()->backend != LK_BACKEND_VULKAN || is_plan(s, "kitty-pro") ||
           is_plan(s, "kivi4") || is_plan(s, "pm-kvq");
}

static void make_plan(const setup *s, rig *r) {
    rig_preset(r, is_plan(s, "queries") ? "kitty-pro" : s->plan);
    rig_recent(r, s->page_tokens, SINKS, 40);
    if (is_plan(s, "queries"))
        rig_query_ranking(r);
}

static void open_model(const setup *s, uint32_t model, rig *r) {
    memset(r, 0, sizeof *r);
    if (model == REFERENCE) {
        r->device = rig_host();
        r->cpu_mask = LK_CPU_REFERENCE_ONLY;
    }
    make_geometry(r, model == PLAIN, s->window_tokens);
    rig_open(r);
    make_plan(s, r);
    rig_is_ok(rig_cache(r, 4, MAX_TOKENS, BUDGET));
}

#define EACH(m, call)                            \
    for (uint32_t i_ = 0; i_ < N_MODELS; ++i_) { \
        rig *r = &(m)->rigs[i_];                 \
        rig_is_ok(call);                         \
    }

static void compare(const models *m, uint32_t n, const char *what) {
    const size_t width = rig_width(&m->rigs[FAST]);
    const float distance = rig_distance(m->out[FAST], m->out[REFERENCE], n * width);
    if (!(distance <= RIG_MOST))
        fail_msg("%s, %s: %g from the reference", m->setup->plan, what, (double)distance);
    // At 16 bits alone the values of the plain model are those of the latent one.
    const float apart = rig_distance(m->out[FAST], m->out[PLAIN], n * width);
    if (is_plan(m->setup, "fp16") && !(apart <= 2 * rig_tolerance()))
        fail_msg("%s: a latent layer is %g from one with values of its own", what, (double)apart);
}

static rigs rigs_of(models *m) { return (rigs){m->rigs, m->out, N_MODELS, rig_layers}; }

static void step(models *m, const lk_sequence *ids, uint32_t n_sequences, uint32_t place,
                 uint32_t n, const int32_t *parent, int32_t keep, const char *what) {
    const rigs all = rigs_of(m);
    rigs_step(&all, ids, n_sequences, place, n, parent, keep);
    compare(m, n_sequences * n, what);
}

static void keep_path(models *m, lk_sequence id, uint32_t place) {
    const rigs all = rigs_of(m);
    compare(m, rigs_keep_path(&all, id, place), "a draft tree");
}

// A cache that what was saved is loaded into saves the same bytes and answers the same. bits: the
// rung that the saved cache has been shrunk to, or 0.
static void save_and_load(const models *m, const lk_sequence *ids, uint32_t n, uint32_t bits) {
    rig *r = (rig *)&m->rigs[FAST];
    rig other;
    open_model(m->setup, FAST, &other);
    const bytes saved = snapshot_save(r, NULL);
    lk_sequence loaded[4];
    uint32_t n_loaded = 0;
    rig_is_ok(
        lk_snapshot_load_memory(other.cache, NULL, saved.data, saved.n, 4, loaded, &n_loaded));
    assert_int_equal(n_loaded, n);
    const bytes again = snapshot_save(&other, NULL);
    snapshot_same(again, saved);
    if (bits)
        rig_is_ok(lk_cache_shrink(other.cache, LK_ALL, bits));
    const float apart = snapshot_distance(r, ids, &other, loaded, n);
    if (!(apart <= rig_tolerance()))
        fail_msg("%s: %g apart after a load", m->setup->plan, (double)apart);
    const lk_cache_stats a = rig_stats(r), b = rig_stats(&other);
    assert_int_equal(a.payload_bytes, b.payload_bytes);
    assert_int_equal(a.metadata_bytes, b.metadata_bytes);
    assert_int_equal(a.recent_bytes, b.recent_bytes);
    free(saved.data);
    free(again.data);
    rig_close(&other);
}

static void run_steps(const setup *s) {
    static const int32_t tree[6] = {-1, 0, 0, 1, 1, 3};
    models m;
    m.setup = s;
    for (uint32_t i = 0; i < N_MODELS; ++i) {
        open_model(s, i, &m.rigs[i]);
        m.out[i] = calloc((size_t)MAX_TOKENS * rig_width(&m.rigs[i]), sizeof(float));
        assert_non_null(m.out[i]);
    }
    lk_sequence ids[2];
    EACH(&m, lk_sequence_add(r->cache, &ids[0]));
    step(&m, ids, 1, 0, 150, NULL, 150, "a prompt");
    step(&m, ids, 1, 150, 65, NULL, 65, "a long step");
    step(&m, ids, 1, 215, 80, NULL, -1, "a long step that is dropped");
    step(&m, ids, 1, 215, 64, NULL, 50, "drafts");
    step(&m, ids, 1, 265, 6, tree, 2, "a draft tree that is cut");
    keep_path(&m, ids[0], 267);
    uint32_t length = 271;
    for (uint32_t i = 0; i < 8; ++i)
        step(&m, ids, 1, length++, 1, NULL, 1, "a token");
    EACH(&m, lk_sequence_fork(r->cache, ids[0], LK_ALL_TOKENS, &ids[1]));
    step(&m, ids, 2, length, 3, NULL, 3, "a fork");
    length += 3;
    save_and_load(&m, ids, 2, 0);
    uint32_t rung = 0;
    if (is_plan(s, "pm-kvq") || is_plan(s, "pm-kvq-paper"))
        for (uint32_t bits = 8; bits >= 2; bits /= 2) {
            EACH(&m, lk_cache_shrink(r->cache, LK_ALL, bits));
            step(&m, ids, 2, length++, 1, NULL, 1, "narrower pages");
            save_and_load(&m, ids, 2, rung = bits);
        }
    const uint32_t cut = s->window_tokens ? length - 5 : 107;
    EACH(&m, lk_sequence_truncate(r->cache, ids[0], cut));
    EACH(&m, lk_sequence_remove(r->cache, ids[1]));
    step(&m, ids, 1, cut, 20, NULL, 20, "after a truncation");
    step(&m, ids, 1, cut + 20, 70, NULL, 70, "a long step after it");
    save_and_load(&m, ids, 1, rung);
    for (uint32_t i = 0; i < N_MODELS; ++i) {
        rig_close(&m.rigs[i]);
        free(m.out[i]);
    }
}

static void answers_are_the_references(void **state) {
    (void)state;
    for (size_t s = 0; s < N_SETUPS; ++s)
        if (is_run(&kSetups[s]))
            run_steps(&kSetups[s]);
}

// Classes of chunks, in another order, from originals too.
static void chunks_have_classes(void **state) {
    (void)state;
    static const setup kChunks = {"cocktail", 64, 0};
    enum { CHUNKS = 8, CONTEXT = SINKS + 32 * CHUNKS };
    static const lk_chunk_class classes[2][CHUNKS] = {
        {LK_CHUNK_LOW, LK_CHUNK_HIGH, LK_CHUNK_LOW, LK_CHUNK_MIDDLE, LK_CHUNK_LOW, LK_CHUNK_LOW,
         LK_CHUNK_MIDDLE, LK_CHUNK_HIGH},
        {LK_CHUNK_HIGH, LK_CHUNK_HIGH, LK_CHUNK_MIDDLE, LK_CHUNK_MIDDLE, LK_CHUNK_LOW, LK_CHUNK_LOW,
         LK_CHUNK_LOW, LK_CHUNK_LOW}};
    models m;
    m.setup = &kChunks;
    lk_sequence id = 0;
    for (uint32_t i = 0; i < N_MODELS; ++i) {
        open_model(&kChunks, i, &m.rigs[i]);
        m.out[i] = calloc((size_t)MAX_TOKENS * rig_width(&m.rigs[i]), sizeof(float));
        rig_is_ok(lk_sequence_add(m.rigs[i].cache, &id));
        rig_is_ok(lk_sequence_defer(m.rigs[i].cache, id, LK_DEFER_REFUSE));
        rig_is_ok(lk_chunks_retain(m.rigs[i].cache, id, 16u << 20));
    }
    step(&m, &id, 1, 0, CONTEXT, NULL, CONTEXT, "a context");
    for (uint32_t i = 0; i < 2; ++i) {
        EACH(&m, lk_chunks_assign(r->cache, id, CONTEXT, CHUNKS, classes[i], NULL));
        step(&m, &id, 1, CONTEXT + 40 * i, 40, NULL, 40, "an answer");
        save_and_load(&m, &id, 1, 0);
    }
    for (uint32_t i = 0; i < N_MODELS; ++i) {
        rig_close(&m.rigs[i]);
        free(m.out[i]);
    }
}

// A cache reaches the state of lk_plan_bytes() with its bytes, and not with one less; a latent
// layer takes the bytes of its keys.
static void bytes_are_exact(void **state) {
    (void)state;
    enum { TOKENS = 2000 };  // in steps of 100
    for (size_t s = 0; s < N_SETUPS; ++s) {
        if (!is_run(&kSetups[s]))
            continue;
        lk_plan_size size, plain;
        rig r = {0};
        assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
        assert_int_equal(lk_plan_size_init(&plain, sizeof plain), LK_OK);
        make_geometry(&r, 1, kSetups[s].window_tokens);
        make_plan(&kSetups[s], &r);
        rig_is_ok(lk_plan_bytes(r.plan, TOKENS, 1, 100, &plain));
        lk_plan_destroy(&r.plan);
        make_geometry(&r, 0, kSetups[s].window_tokens);
        make_plan(&kSetups[s], &r);
        rig_is_ok(lk_plan_bytes(r.plan, TOKENS, 1, 100, &size));
        assert_int_equal(plain.fp16_bytes - size.fp16_bytes, TOKENS * 256 * 2);
        assert_true(size.cache_bytes < plain.cache_bytes);
        for (uint64_t missing = 0; missing < 2; ++missing) {
            rig_open(&r);
            make_plan(&kSetups[s], &r);
            rig_is_ok(rig_cache(&r, 1, 100, size.cache_bytes - missing));
            lk_sequence id;
            assert_int_equal(lk_sequence_add(r.cache, &id), LK_OK);
            lk_status status = LK_OK;
            for (uint32_t n = 0; !status && n < TOKENS; n += 100)
                status = is_plan(&kSetups[s], "queries") ? rig_step(&r, id, 1, n, 100, NULL)
                                                         : rig_append_step(&r, id, 1, n, 100);
            const int has_ladder = !strncmp(kSetups[s].plan, "pm-kvq", 6);
            assert_int_equal(status, missing && !has_ladder ? LK_E_BUDGET : LK_OK);
            if (!missing && !has_ladder) {
                const lk_cache_stats stats = rig_stats(&r);
                assert_int_equal(stats.payload_bytes, size.payload_bytes);
                assert_int_equal(stats.metadata_bytes, size.metadata_bytes);
                assert_int_equal(stats.recent_bytes, size.recent_bytes);
            }
            rig_close(&r);
        }
    }
}

// A budget below the bytes of the first rung takes pages down the ladders.
static void ladders_shrink(void **state) {
    (void)state;
    static const setup kLadder = {"pm-kvq", 32, 0};
    rig r = {0}, reference = {0};
    make_geometry(&r, 0, 0);
    rig_open(&r);
    make_plan(&kLadder, &r);
    rig_is_ok(rig_cache(&r, 1, 100, 6u << 20));
    open_model(&kLadder, REFERENCE, &reference);
    lk_sequence id, other;
    rig_is_ok(lk_sequence_add(r.cache, &id));
    for (uint32_t n = 0; n < 5000; n += 100)
        rig_is_ok(rig_append_step(&r, id, 1, n, 100));
    const lk_cache_stats stats = rig_stats(&r);
    assert_true(stats.pages_shrunk > 0);
    assert_true(stats.reserved_bytes <= 6u << 20);
    const bytes saved = snapshot_save(&r, NULL);
    uint32_t n_loaded = 0;
    rig_is_ok(
        lk_snapshot_load_memory(reference.cache, NULL, saved.data, saved.n, 1, &other, &n_loaded));
    assert_true(snapshot_distance(&r, &id, &reference, &other, 1) <= RIG_MOST);
    free(saved.data);
    rig_close(&r);
    rig_close(&reference);
}

static void misuse_is_refused(void **state) {
    (void)state;
    rig r;
    const setup fp16 = {"fp16", 64, 0};
    open_model(&fp16, FAST, &r);
    lk_sequence id;
    rig_is_ok(lk_sequence_add(r.cache, &id));
    const uint32_t n = 1;
    float numbers[20 * 288] = {0};
    lk_tensor tensor;
    rig_tensor(&r, &tensor, rig_place(&r, numbers, sizeof numbers), 1, 288);
    rig_is_ok(rig_begin(&r, 1, &id, &n, NULL));
    assert_int_equal(lk_append(r.cache, 1, &tensor, &tensor), LK_E_ARGUMENT);
    rig_sentence("v is not NULL, and layer 1 is latent");
    assert_int_equal(lk_append(r.cache, 0, &tensor, NULL), LK_E_ARGUMENT);
    rig_sentence("v is NULL");
    assert_int_equal(lk_append(r.cache, 1, NULL, NULL), LK_E_ARGUMENT);
    rig_is_ok(lk_append(r.cache, 1, &tensor, NULL));
    rig_is_ok(lk_step_discard(r.cache));
    // An infinity in a key is found; there is no value to look at.
    numbers[287] = INFINITY;
    rig_point(&r, &tensor, rig_place(&r, numbers, sizeof numbers));
    rig_is_ok(rig_begin(&r, 1, &id, &n, NULL));
    const lk_status appended = lk_append(r.cache, 1, &tensor, NULL);
    r.device->wait();
    assert_int_equal(appended ? appended : lk_append(r.cache, 0, &tensor, &tensor), LK_E_DATA);
    rig_is_ok(lk_step_discard(r.cache));
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_references),
        cmocka_unit_test(chunks_have_classes),
        cmocka_unit_test(bytes_are_exact),
        cmocka_unit_test(ladders_shrink),
        cmocka_unit_test(misuse_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
