// A reading layer answers as a layer with a copy of its KV layer's keys and values does, bit for
// bit, and takes no bytes.
//
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>

#include "ladder.h"
#include "rigs.h"
#include "snapshots.h"

#define BUDGET (64u << 20)
#define MAX_TOKENS 288u
#define SINKS 16u

// The last layer reads layer 0. The copied model appends copies to it, the short one has no such
// layer, the reference computes alone.
enum { READING, COPIED, SHORT, REFERENCE, N_MODELS };

typedef struct setup {
    const char *plan;
    uint32_t window_tokens;  // of layers 0 and 2
    int is_late;             // layer 2 attends while layer 1 waits for its attend
} setup;

static const setup kSetups[] = {
    {"fp16", 0, 0},    {"int8", 0, 1},    {"kivi4", 60, 0}, {"kivi2", 0, 1},   {"kitty-pro", 0, 0},
    {"kitty", 110, 1}, {"numbers", 0, 0}, {"pm-kvq", 0, 1}, {"budgets", 0, 0}, {"queries", 0, 0}};
#define N_SETUPS (sizeof kSetups / sizeof *kSetups)

typedef struct models {
    const setup *setup;
    int is_scored;  // tables differ by what the scored layers need
    rig rigs[N_MODELS];
    float *out[N_MODELS];
} models;

static int is_plan(const setup *s, const char *name) { return !strcmp(s->plan, name); }

// Layer 2 with four times the query heads of layer 0, other factors and learned sinks.
static void make_geometry(rig *r, uint32_t model, uint32_t window_tokens) {
    static const float sinks[16] = {0.5f, -1, 2, 0, 1, -2, 0.25f, 3, -1, 1, 0, 2, -3, 0.75f, 1, 0};
    rig_geometry(r, model == SHORT ? 2 : 3, 4, 2, 64);
    r->layers[1].n_kv_heads = 1;
    r->layers[1].head_dim = 80;
    r->layers[0].window_tokens = r->layers[2].window_tokens = window_tokens;
    r->layers[2].n_query_heads = 16;
    r->layers[2].n_kv_heads = 2;
    r->layers[2].head_dim = 64;
    r->layers[2].scale = 0.2f;
    r->layers[2].soft_cap = 30;
    r->layers[2].sink_logits = sinks;
    if (model == COPIED)
        r->copied_kv[2] = 1;
    else
        r->layers[2].kv_layer = 0;
}

static void set_numbers(rig *r, uint32_t layer) {
    float centers[64], scales[64];
    for (uint32_t c = 0; c < 64; ++c) {
        centers[c] = 0.125f * (float)(c % 9) - 0.5f;
        scales[c] = 0.5f + 0.25f * (float)(c % 5);
    }
    assert_int_equal(lk_plan_set_key_centers(r->plan, layer, 1, centers), LK_OK);
    assert_int_equal(lk_plan_set_key_scales(r->plan, layer, LK_ALL, scales), LK_OK);
    assert_int_equal(lk_plan_set_key_rotation(r->plan, layer, LK_ROTATION_HADAMARD), LK_OK);
    assert_int_equal(lk_plan_set_metadata(r->plan, layer, LK_METADATA_F8), LK_OK);
}

static void make_plan(const setup *s, uint32_t model, rig *r) {
    const char *preset = is_plan(s, "numbers")   ? "kivi2"
                         : is_plan(s, "budgets") ? "pm-kvq"
                         : is_plan(s, "queries") ? "kitty-pro"
                                                 : s->plan;
    rig_preset(r, preset);
    rig_recent(r, 32, SINKS, 40);
    for (uint32_t l = 0; l < 3; l += 2) {
        if (l && model != COPIED)
            continue;
        if (is_plan(s, "numbers"))
            set_numbers(r, l);
        if (is_plan(s, "budgets"))
            assert_int_equal(lk_plan_set_layer_budget(r->plan, l, 150000), LK_OK);
    }
    if (is_plan(s, "queries"))
        rig_query_ranking(r);
}

static void open_model(models *m, uint32_t model) {
    rig *r = &m->rigs[model];
    memset(r, 0, sizeof *r);
    if (model == REFERENCE) {
        r->device = rig_host();
        r->cpu_mask = LK_CPU_REFERENCE_ONLY;
    }
    make_geometry(r, model, m->setup->window_tokens);
    rig_open(r);
    make_plan(m->setup, model, r);
    rig_is_ok(rig_cache(r, 4, MAX_TOKENS, BUDGET));
    m->out[model] = calloc((size_t)MAX_TOKENS * rig_width(r), sizeof(float));
    assert_non_null(m->out[model]);
}

static void open_models(models *m, const setup *s) {
    m->setup = s;
    m->is_scored = 0;
    for (uint32_t i = 0; i < N_MODELS; ++i)
        open_model(m, i);
}

static void close_models(models *m) {
    for (uint32_t i = 0; i < N_MODELS; ++i) {
        rig_close(&m->rigs[i]);
        free(m->out[i]);
    }
}

// Calls the same of each model.
#define EACH(m, call)                            \
    for (uint32_t i_ = 0; i_ < N_MODELS; ++i_) { \
        rig *r = &(m)->rigs[i_];                 \
        rig_is_ok(call);                         \
    }

// What all but the short model have, and the short one has in its first two layers.
static void compare(const models *m, uint32_t n, const char *what) {
    const size_t width = rig_width(&m->rigs[READING]);
    const size_t of_short = rig_width(&m->rigs[SHORT]);
    const int has_copy = !is_plan(m->setup, "queries");  // whose copy ranks by other queries
    for (uint32_t t = 0; t < n; ++t) {
        const float *own = m->out[READING] + t * width;
        if (memcmp(own, m->out[COPIED] + t * width, (has_copy ? width : of_short) * sizeof *own))
            fail_msg("%s, %s: token %u has other bits than with a copy", m->setup->plan, what, t);
        if (memcmp(own, m->out[SHORT] + t * of_short, of_short * sizeof *own))
            fail_msg("%s, %s: token %u has other bits than without the layer", m->setup->plan, what,
                     t);
    }
    const float distance = rig_distance(m->out[READING], m->out[REFERENCE], n * width);
    if (!(distance <= RIG_MOST))
        fail_msg("%s, %s: %g from the reference", m->setup->plan, what, (double)distance);
}

static void same_bytes(const models *m, const char *what) {
    const lk_cache_stats a = rig_stats(&m->rigs[READING]);
    const lk_cache_stats b = rig_stats(&m->rigs[SHORT]);
    if (a.payload_bytes != b.payload_bytes || a.metadata_bytes != b.metadata_bytes ||
        a.recent_bytes != b.recent_bytes || a.pages_packed != b.pages_packed ||
        (!m->is_scored && a.table_bytes != b.table_bytes) || a.shared_bytes != b.shared_bytes)
        fail_msg("%s, %s: other bytes than without the layer", m->setup->plan, what);
}

// Layer 2, where there is one, attends while layer 1 waits for its attend.
static lk_status late_layers(rig *r, const rig_token *tokens, uint32_t n, float *out) {
    if (r->geometry.n_layers == 2)
        return rig_layers(r, tokens, n, out);
    lk_status status = rig_layer(r, 0, tokens, n, out);
    const int reads = r->layers[2].kv_layer == 0;
    if (!status && !reads)
        status = rig_layer(r, 2, tokens, n, out);
    if (!status)
        status = rig_append(r, 1, tokens, n);
    if (!status && reads)
        status = rig_attend(r, 2, tokens, n, out);
    return status ? status : rig_attend(r, 1, tokens, n, out);
}

static rigs rigs_of(models *m) {
    return (rigs){m->rigs, m->out, N_MODELS, m->setup->is_late ? late_layers : rig_layers};
}

// A step of n tokens for each sequence, compared and kept up to `keep`; -1 = dropped.
static void step(models *m, const lk_sequence *ids, uint32_t n_sequences, uint32_t place,
                 uint32_t n, const int32_t *parent, int32_t keep, const char *what) {
    const rigs all = rigs_of(m);
    rigs_step(&all, ids, n_sequences, place, n, parent, keep);
    compare(m, n_sequences * n, what);
    same_bytes(m, what);
}

// Drafts of a tree, of which a path that is no chain of its first tokens is kept.
static void keep_path(models *m, lk_sequence id, uint32_t place) {
    const rigs all = rigs_of(m);
    compare(m, rigs_keep_path(&all, id, place), "a draft tree");
}

static lk_sequence add(models *m) {
    lk_sequence id = 0;
    EACH(m, lk_sequence_add(r->cache, &id));
    return id;
}

static void run_steps(const setup *s) {
    static const int32_t tree[6] = {-1, 0, 0, 1, 1, 3};
    models m;
    open_models(&m, s);
    lk_sequence ids[3] = {add(&m), 0, 0};
    step(&m, ids, 1, 0, 150, NULL, 150, "a prompt");
    step(&m, ids, 1, 150, 65, NULL, 65, "a long step");
    step(&m, ids, 1, 215, 80, NULL, -1, "a long step that is dropped");
    step(&m, ids, 1, 215, 64, NULL, 50, "drafts");
    uint32_t length = 265;
    step(&m, ids, 1, length, 6, tree, 2, "a draft tree that is cut");
    length += 2;
    keep_path(&m, ids[0], length);
    length += 4;
    for (uint32_t i = 0; i < 12; ++i)
        step(&m, ids, 1, length++, 1, NULL, 1, "a token");
    EACH(&m, lk_sequence_fork(r->cache, ids[0], LK_ALL_TOKENS, &ids[1]));
    step(&m, ids, 2, length, 3, NULL, 3, "a fork");
    length += 3;
    ids[2] = add(&m);
    EACH(&m, lk_sequence_remove(r->cache, ids[2]));
    if (is_plan(s, "pm-kvq"))
        for (uint32_t bits = 8; bits >= 2; bits /= 2) {
            EACH(&m, lk_cache_shrink(r->cache, bits == 4 ? 0 : LK_ALL, bits));
            if (bits == 4)
                EACH(&m, i_ == COPIED ? lk_cache_shrink(r->cache, 2, 4) : LK_OK);
            step(&m, ids, 2, length++, 1, NULL, 1, "narrower pages");
        }
    const uint32_t cut = s->window_tokens ? length - 5 : 107;
    EACH(&m, lk_sequence_truncate(r->cache, ids[0], cut));
    EACH(&m, lk_sequence_remove(r->cache, ids[1]));
    step(&m, ids, 1, cut, 20, NULL, 20, "after a truncation");
    step(&m, ids, 1, cut + 20, 70, NULL, 70, "a long step after it");
    close_models(&m);
}

static void reads_are_copies(void **state) {
    (void)state;
    for (size_t s = 0; s < N_SETUPS; ++s)
        run_steps(&kSetups[s]);
}

// Deferral, scores by the reading layer's attention, classes in another order, and back.
static void chunks_are_read(void **state) {
    (void)state;
    static const setup kChunks = {"cocktail", 0, 0};
    enum { CHUNKS = 8, CONTEXT = SINKS + 32 * CHUNKS, QUESTION = 9 };
    models m;
    open_models(&m, &kChunks);
    const lk_sequence id = add(&m);
    EACH(&m, lk_sequence_defer(r->cache, id, LK_DEFER_REFUSE));
    step(&m, &id, 1, 0, CONTEXT, NULL, CONTEXT, "a context");
    lk_chunk_attention options;
    assert_int_equal(lk_chunk_attention_init(&options, sizeof options), LK_OK);
    options.n_query_tokens = QUESTION;
    options.n_chunks = CHUNKS;
    options.n_layers = 1;
    m.is_scored = 1;
    float scores[N_MODELS][CHUNKS];
    for (uint32_t layer = 0; layer < 3; layer += 2) {
        options.layers = &layer;
        for (uint32_t i = 0; i < N_MODELS; ++i)
            if (!layer || i != SHORT)
                rig_is_ok(lk_chunks_score_attention(m.rigs[i].cache, id, &options));
        step(&m, &id, 1, CONTEXT + layer * QUESTION, QUESTION * (layer ? 1 : 2), NULL,
             QUESTION * (layer ? 1 : 2), "a question");
        for (uint32_t i = 0; i < N_MODELS; ++i)
            if (!layer || i != SHORT)
                rig_is_ok(lk_chunks_attention_scores(m.rigs[i].cache, id, CHUNKS, scores[i]));
        assert_memory_equal(scores[READING], scores[COPIED], sizeof scores[READING]);
        assert_true(rig_distance(scores[READING], scores[REFERENCE], CHUNKS) <= 1e-3f);
    }
    lk_chunk_class classes[CHUNKS] = {LK_CHUNK_LOW, LK_CHUNK_HIGH, LK_CHUNK_LOW,    LK_CHUNK_MIDDLE,
                                      LK_CHUNK_LOW, LK_CHUNK_LOW,  LK_CHUNK_MIDDLE, LK_CHUNK_HIGH};
    EACH(&m, lk_chunks_assign(r->cache, id, CONTEXT, CHUNKS, classes, NULL));
    step(&m, &id, 1, CONTEXT + 3 * QUESTION, 1, NULL, 1, "an answer");
    step(&m, &id, 1, CONTEXT + 3 * QUESTION + 1, 40, NULL, 40, "more of it");
    close_models(&m);
}

// A plan's bytes are those without the layer, but for the staging area that its reader needs, and a
// cache reaches its state with them.
static void bytes_are_counted_once(void **state) {
    (void)state;
    enum { TOKENS = 3000 };  // in steps of 100
    for (size_t s = 0; s < N_SETUPS; ++s) {
        // Devices count as the CPU does; one plan shows that they reach the state.
        if (is_plan(&kSetups[s], "budgets") || (s && rig_default()->backend != LK_BACKEND_CPU))
            continue;
        lk_plan_size sizes[SHORT + 1];
        for (uint32_t i = 0; i <= SHORT; ++i) {
            rig r = {0};
            make_geometry(&r, i, kSetups[s].window_tokens);
            make_plan(&kSetups[s], i, &r);
            assert_int_equal(lk_plan_size_init(&sizes[i], sizeof sizes[i]), LK_OK);
            rig_is_ok(lk_plan_bytes(r.plan, TOKENS, 1, 100, &sizes[i]));
            lk_plan_destroy(&r.plan);
        }
        const lk_plan_size *a = &sizes[READING], *b = &sizes[SHORT];
        assert_true(a->payload_bytes == b->payload_bytes && a->fp16_bytes == b->fp16_bytes &&
                    a->metadata_bytes == b->metadata_bytes && a->recent_bytes == b->recent_bytes);
        assert_true(a->bits_per_value == b->bits_per_value &&
                    a->bytes_per_token == b->bytes_per_token);
        assert_true(a->cache_bytes - b->cache_bytes == a->table_bytes - b->table_bytes);
        assert_true(kSetups[s].window_tokens || a->cache_bytes < sizes[COPIED].cache_bytes);
        for (uint64_t missing = 0; missing < 2; ++missing) {
            rig r = {0};
            make_geometry(&r, READING, kSetups[s].window_tokens);
            rig_open(&r);
            make_plan(&kSetups[s], READING, &r);
            rig_is_ok(rig_cache(&r, 1, 100, a->cache_bytes - missing));
            lk_sequence id;
            assert_int_equal(lk_sequence_add(r.cache, &id), LK_OK);
            lk_status status = LK_OK;
            for (uint32_t n = 0; !status && n < TOKENS; n += 100)
                status = is_plan(&kSetups[s], "queries") ? rig_step(&r, id, 1, n, 100, NULL)
                                                         : rig_append_step(&r, id, 1, n, 100);
            assert_true(missing && !is_plan(&kSetups[s], "pm-kvq") ? status == LK_E_BUDGET
                                                                   : status == LK_OK);
            rig_close(&r);
        }
    }
}

static void snapshots_hold_it_once(void **state) {
    (void)state;
    for (size_t s = 0; s < N_SETUPS; s += 3) {
        models m;
        open_models(&m, &kSetups[s]);
        lk_sequence ids[2] = {add(&m), 0};
        step(&m, ids, 1, 0, 270, NULL, 270, "a prompt");
        EACH(&m, lk_sequence_fork(r->cache, ids[0], LK_ALL_TOKENS, &ids[1]));
        step(&m, ids, 2, 270, 20, NULL, 20, "forks");
        models other;
        open_models(&other, &kSetups[s]);
        bytes saved[N_MODELS];
        lk_sequence loaded[2];
        uint32_t n;
        for (uint32_t i = 0; i < N_MODELS; ++i) {
            saved[i] = snapshot_save(&m.rigs[i], NULL);
            rig_is_ok(lk_snapshot_load_memory(other.rigs[i].cache, NULL, saved[i].data, saved[i].n,
                                              2, loaded, &n));
            bytes again = snapshot_save(&other.rigs[i], NULL);
            snapshot_same(again, saved[i]);
            free(again.data);
        }
        const rig *reading = &other.rigs[READING];
        assert_true(saved[READING].n < saved[COPIED].n);
        assert_int_equal(lk_snapshot_load_memory(reading->cache, NULL, saved[COPIED].data,
                                                 saved[COPIED].n, 2, loaded, &n),
                         LK_E_MISMATCH);
        assert_int_equal(
            lk_snapshot_load_memory(other.rigs[COPIED].cache, NULL, saved[READING].data,
                                    saved[READING].n, 2, loaded, &n),
            LK_E_MISMATCH);
        step(&other, ids, 2, 290, 70, NULL, 70, "after a load");
        for (uint32_t i = 0; i < N_MODELS; ++i)
            free(saved[i].data);
        close_models(&other);
        close_models(&m);
    }
}

static void wrong_calls(void **state) {
    (void)state;
    models m;
    open_models(&m, &kSetups[N_SETUPS - 3]);
    rig *r = &m.rigs[READING];
    const lk_sequence id = add(&m);
    const rig_token token = {0, 0};
    const uint32_t n = 1;
    rig_is_ok(rig_begin(r, 1, &id, &n, NULL));
    assert_int_equal(rig_append(r, 2, &token, 1), LK_E_ARGUMENT);
    rig_sentence("layer 2 reads the keys and values of layer 0: append to that layer alone");
    assert_int_equal(rig_attend(r, 2, &token, 1, NULL), LK_E_STATE);
    rig_sentence("layer 2 reads the keys and values of layer 0, which has none in this step");
    rig_is_ok(rig_layer(r, 1, &token, 1, NULL));
    assert_int_equal(rig_attend(r, 2, &token, 1, NULL), LK_E_STATE);
    rig_is_ok(rig_append(r, 0, &token, 1));
    rig_is_ok(rig_attend(r, 2, &token, 1, NULL));
    assert_int_equal(rig_attend(r, 2, &token, 1, NULL), LK_E_STATE);
    rig_sentence("layer 2 was attended in this step already");
    rig_is_ok(lk_step_commit(r->cache, NULL));
    rig_is_ok(rig_begin(r, 1, &id, &n, NULL));
    rig_is_ok(rig_append(r, 0, &token, 1));
    rig_is_ok(rig_append(r, 1, &token, 1));
    rig_is_ok(lk_step_commit(r->cache, NULL));  // nobody has to attend
    assert_int_equal(lk_cache_shrink(r->cache, 2, 4), LK_E_ARGUMENT);
    rig_sentence("layer 2 reads the pages of layer 0: shrink that layer");
    close_models(&m);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_are_copies),
        cmocka_unit_test(chunks_are_read),
        cmocka_unit_test(bytes_are_counted_once),
        cmocka_unit_test(snapshots_hold_it_once),
        cmocka_unit_test(wrong_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
