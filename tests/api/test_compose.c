// Classes of chunks with all other features of a plan: boosted channels, outliers with their
// partners, keys per token with centers, scales and a rotation, FP8 numbers, ladders, windows,
// tokens after the context that are packed, originals, and chunks that are shorter or longer than a
// page.
//
// Each plan runs in up to four caches that must answer the same. The fast one; the reference, which
// gets the same calls; one without reordering whose host feeds the tokens in the order of the fast
// one's places, so that its pages are the same; and where pages do not depend on which chunks are
// neighbours, one without reordering that gets the tokens in their own order.
//
// --full, the last argument, runs 1304 of the 14336 plans and shapes; else fewer.
//
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "chunked.h"

#define MAX_TOKENS 1024u
#define BUDGET (64u << 20)
#define STEP_TOKENS 512u

static int g_full;

enum {
    BOOST = 1,        // Kitty: channels of a head ranked for each page
    OUTLIERS = 2,     // ChanMix: shared slots in one head, wider channels in another
    TOKEN_KEYS = 4,   // PM-KVQ: a head's keys per token
    NUMBERS = 8,      // centers of keys, scales and a rotation
    BYTES = 16,       // FP8 ranges and minima
    LADDER = 32,      // 16, 8, 4 and 2 bits, down while there are classes
    PACKS = 64,       // tokens after the context are packed
    IN_ORDER = 128,   // no reordering, and a sliding window
    WIDE = 256,       // classes of 4, 8 and 16 bits
    ORIGINALS = 512,  // other classes first, then promoted
    EVERYTHING = 1023
};
static const char *const kFeatures[] = {"boost",  "outliers", "token-keys", "numbers", "fp8",
                                        "ladder", "packs",    "in-order",   "wide",    "originals"};

static const shape kShapes[] = {{128, 32}, {64, 32},   {32, 32},   {128, 8},  {128, 16},
                                {64, 8},   {32, 16},   {64, 64},   {128, 64}, {32, 64},
                                {64, 128}, {128, 128}, {128, 256}, {32, 256}};
#define N_SHAPES (sizeof kShapes / sizeof *kShapes)

enum { FAST, REFERENCE, PLACED, UNPERMUTED, N_RIGS };

typedef struct scene {
    uint32_t features;
    shape shape;
    uint32_t n_chunks, length;
    rig rigs[N_RIGS];
    int is_open[N_RIGS];
    float *out[N_RIGS];
    lk_chunk_class assigned[MAX_CHUNKS], stored[MAX_CHUNKS];
    uint32_t order[MAX_CHUNKS];
    rig_token tokens[MAX_TOKENS];
} scene;

static void fail_scene(const scene *s, const char *what) {
    char features[128] = "";
    for (uint32_t i = 0; i < sizeof kFeatures / sizeof *kFeatures; ++i)
        if (s->features >> i & 1) {
            strcat(features, " ");
            strcat(features, kFeatures[i]);
        }
    fail_msg("pages of %u, chunks of %u,%s: %s", s->shape.page_tokens, s->shape.chunk_tokens,
             features, what);
}

static void expect(const scene *s, lk_status status, const char *what) {
    char sentence[512], text[640];
    if (!status)
        return;
    lk_last_error(sentence, sizeof sentence, NULL);
    snprintf(text, sizeof text, "%s: %d, %s", what, status, sentence);
    fail_scene(s, text);
}

static lk_key_rule key_of(uint32_t bits) {
    lk_key_rule key;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    key.bits = bits;
    key.group = 32;
    return key;
}

static void set_keys(rig *r, uint32_t features) {
    uint8_t outliers[64], mixed[64];
    for (uint32_t c = 0; c < 64; ++c) {
        outliers[c] = (uint8_t)(c % 8 == 1 ? 3 : c % 8 == 6 ? 1 : 2);
        mixed[c] = (uint8_t)(c % 4 == 3 ? 8 : c % 4 == 1 ? 4 : 2);
    }
    lk_key_rule key = key_of(2);
    if (features & OUTLIERS) {
        key.channel_bits = outliers;
        assert_int_equal(lk_plan_set_key(r->plan, 0, 0, &key), LK_OK);
        key.channel_bits = mixed;
        assert_int_equal(lk_plan_set_key(r->plan, 1, 0, &key), LK_OK);
    }
    if (features & BOOST) {
        key = key_of(features & WIDE ? 4 : 2);
        key.boost_channels = 16;
        key.boost_bits = 2 * key.bits;
        key.boost_ranking = LK_RANKING_KEY;
        assert_int_equal(lk_plan_set_key(r->plan, 0, 1, &key), LK_OK);
    }
    if (features & TOKEN_KEYS) {
        key = key_of(8);
        key.axis = LK_AXIS_TOKEN;
        assert_int_equal(lk_plan_set_key(r->plan, 1, 1, &key), LK_OK);
    }
}

static void set_numbers(rig *r) {
    float centers[64], scales[64];
    for (uint32_t c = 0; c < 64; ++c) {
        centers[c] = 0.125f * (float)(c % 9) - 0.5f;
        scales[c] = 0.5f + 0.25f * (float)(c % 5);
    }
    assert_int_equal(lk_plan_set_key_centers(r->plan, 1, 1, centers), LK_OK);
    assert_int_equal(lk_plan_set_key_scales(r->plan, 1, 1, scales), LK_OK);
    assert_int_equal(lk_plan_set_key_scales(r->plan, 0, 1, scales), LK_OK);
    assert_int_equal(lk_plan_set_key_rotation(r->plan, 1, LK_ROTATION_HADAMARD), LK_OK);
}

static void set_chunks(rig *r, uint32_t features, shape s, uint32_t reorder) {
    chunked_rule(r, s, reorder, !(features & PACKS));
    if (!(features & WIDE))
        return;
    lk_chunk_rule rule;
    assert_int_equal(lk_chunk_rule_init(&rule, sizeof rule), LK_OK);
    assert_int_equal(lk_plan_get_chunks(r->plan, &rule), LK_OK);
    rule.low_bits = 4;
    rule.middle_bits = 8;
    assert_int_equal(lk_plan_set_chunks(r->plan, &rule), LK_OK);
}

// Two layers: groups of two and of three query heads.
static void open_rig(scene *s, uint32_t index, const rig_device *device, shape own,
                     uint32_t reorder) {
    rig *r = &s->rigs[index];
    memset(r, 0, sizeof *r);
    s->is_open[index] = 1;
    r->device = device;
    r->cpu_mask = index == FAST ? 0 : LK_CPU_REFERENCE_ONLY;
    rig_geometry(r, 2, 4, 2, 64);
    r->layers[1].n_query_heads = 6;
    r->layers[1].window_tokens = s->features & IN_ORDER ? 150 : 0;
    rig_open(r);
    rig_preset(r, "cocktail");
    set_chunks(r, s->features, own, reorder);
    set_keys(r, s->features);
    if (s->features & NUMBERS)
        set_numbers(r);
    lk_value_rule value;
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    value.bits = s->features & PACKS ? 4 : 16;
    assert_int_equal(lk_plan_set_value(r->plan, LK_ALL, LK_ALL, &value), LK_OK);
    if (s->features & BYTES)
        assert_int_equal(lk_plan_set_metadata(r->plan, LK_ALL, LK_METADATA_F8), LK_OK);
    const uint8_t rungs[] = {16, 8, 4, 2};
    if (s->features & LADDER)
        assert_int_equal(lk_plan_set_ladder(r->plan, LK_ALL, rungs, 4, 16), LK_OK);
    expect(s, rig_cache(r, 1, STEP_TOKENS, BUDGET), "a cache");
    s->out[index] = malloc(80 * rig_width(r) * sizeof(float));
    assert_non_null(s->out[index]);
}

static uint32_t block_chunks(shape s) {
    return s.chunk_tokens < s.page_tokens ? s.page_tokens / s.chunk_tokens : 1;
}

static uint32_t context_of(const scene *s) { return SINKS + s->n_chunks * s->shape.chunk_tokens; }

// A deferred sequence, number 1, with these tokens.
static void feed(scene *s, uint32_t index) {
    rig *r = &s->rigs[index];
    lk_sequence id;
    assert_int_equal(lk_sequence_add(r->cache, &id), LK_OK);
    assert_int_equal(id, 1);
    assert_int_equal(lk_sequence_defer(r->cache, id, LK_DEFER_REFUSE), LK_OK);
    if (s->features & ORIGINALS && index <= REFERENCE)
        assert_int_equal(lk_chunks_retain(r->cache, id, 64u << 20), LK_OK);
    for (uint32_t done = 0, n; done < s->length; done += n) {
        n = s->length - done < 200 ? s->length - done : 200;
        expect(s, rig_append_tokens(r, id, s->tokens + done, n), "a prompt");
    }
}

static void assign(scene *s, uint32_t index, uint32_t n, uint32_t n_context,
                   const lk_chunk_class *classes) {
    expect(s, lk_chunks_assign(s->rigs[index].cache, 1, n_context, n, classes, NULL), "classes");
}

// The cache does not reorder; its tokens come in the order of the other cache's blocks or in their
// own. A chunk of it is a page, with the class of the tokens that it holds.
static void open_other(scene *s, uint32_t index, uint32_t page_tokens) {
    lk_chunk_class classes[MAX_CHUNKS];
    const uint32_t n_rows = s->n_chunks * s->shape.chunk_tokens / page_tokens;
    for (uint32_t t = 0; t < s->n_chunks * s->shape.chunk_tokens; ++t) {
        const uint32_t place = t / s->shape.chunk_tokens;
        const uint32_t chunk = index == PLACED ? s->order[place] : place;
        s->tokens[SINKS + t] =
            (rig_token){1, SINKS + chunk * s->shape.chunk_tokens + t % s->shape.chunk_tokens};
        if (t % page_tokens == 0 && t / page_tokens < n_rows)
            classes[t / page_tokens] = s->stored[chunk];
    }
    open_rig(s, index, rig_host(), (shape){page_tokens, page_tokens}, 0);
    feed(s, index);
    assign(s, index, n_rows, SINKS + n_rows * page_tokens, classes);
}

static void step_all(scene *s, uint32_t n, const char *what) {
    char text[160];
    for (uint32_t i = 0; i < N_RIGS; ++i)
        if (s->is_open[i])
            expect(s, rig_step(&s->rigs[i], 1, 1, s->length, n, s->out[i]), what);
    assert_true(rig_stats(&s->rigs[FAST]).reserved_bytes <= BUDGET);
    for (uint32_t i = REFERENCE; i < N_RIGS; ++i) {
        if (!s->is_open[i])
            continue;
        const float distance =
            rig_distance(s->out[FAST], s->out[i], (size_t)n * rig_width(&s->rigs[FAST]));
        snprintf(text, sizeof text, "%s: outputs are %g from those of cache %u", what,
                 (double)distance, i);
        if (!(distance <= RIG_MOST))
            fail_scene(s, text);
    }
    s->length += n;
}

static lk_plan_size predict(const scene *s, const lk_plan *plan) {
    lk_chunk_mix mix;
    lk_plan_size size;
    uint32_t counts[4] = {0};
    for (uint32_t c = 0; c < s->n_chunks; ++c)
        ++counts[s->assigned[c]];
    assert_int_equal(lk_chunk_mix_init(&mix, sizeof mix), LK_OK);
    mix.n_low = counts[LK_CHUNK_LOW];
    mix.n_middle = counts[LK_CHUNK_MIDDLE];
    mix.n_high = counts[LK_CHUNK_HIGH];
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    expect(s, lk_plan_chunk_bytes(plan, s->length, 1, STEP_TOKENS, &mix, &size), "a prediction");
    return size;
}

static void compare_bytes(const scene *s, uint64_t is, uint64_t predicted, const char *what) {
    char text[128];
    snprintf(text, sizeof text, "%s: %llu bytes, %llu predicted", what, (unsigned long long)is,
             (unsigned long long)predicted);
    if (is != predicted)
        fail_scene(s, text);
}

// What is held is what the plan says, and so is the least budget that holds it.
static void check_bytes(scene *s) {
    rig *r = &s->rigs[FAST];
    const lk_plan_size size = predict(s, r->plan);
    const lk_cache_stats stats = rig_stats(r);
    compare_bytes(s, stats.payload_bytes, size.payload_bytes, "codes");
    compare_bytes(s, stats.metadata_bytes, size.metadata_bytes, "ranges and minima");
    compare_bytes(s, stats.recent_bytes, size.recent_bytes, "at 16 bits");
    if (s->features & LADDER)  // a lower one shrinks
        return;
    for (uint32_t i = FAST; i <= REFERENCE; ++i) {
        assert_int_equal(lk_cache_set_budget(s->rigs[i].cache, size.cache_bytes - 1), LK_E_BUDGET);
        expect(s, lk_cache_set_budget(s->rigs[i].cache, size.cache_bytes), "the least budget");
        assert_int_equal(lk_cache_set_budget(s->rigs[i].cache, BUDGET), LK_OK);
    }
}

static void compare_stats(const scene *s) {
    const lk_cache_stats a = rig_stats(&s->rigs[FAST]), b = rig_stats(&s->rigs[REFERENCE]);
    assert_memory_equal(a.plane_bytes, b.plane_bytes, sizeof a.plane_bytes);
    compare_bytes(s, a.pages_shrunk, b.pages_shrunk, "pages shrunk");
    // A device lays out many blocks at once, so its pages may lie in more extents.
    compare_bytes(s, a.reserved_bytes - a.fragmented_bytes, b.reserved_bytes - b.fragmented_bytes,
                  "reserved");
}

// Down the ladder: pages of every class go to what the rung makes of them.
static void shrink_all(scene *s) {
    for (uint32_t bits = 8; bits >= 2; bits /= 2) {
        for (uint32_t i = 0; i < N_RIGS; ++i)
            if (s->is_open[i])
                expect(s, lk_cache_shrink(s->rigs[i].cache, LK_ALL, bits), "a shrink");
        compare_stats(s);
        const uint8_t rungs[] = {16, 8, 4, 2};
        lk_plan *plan = NULL;
        assert_int_equal(lk_plan_copy(s->rigs[FAST].plan, &plan), LK_OK);
        assert_int_equal(lk_plan_set_ladder(plan, LK_ALL, rungs, 4, bits), LK_OK);
        if (!(s->features & (PACKS | IN_ORDER))) {  // packed after the context, or given back
            const lk_plan_size size = predict(s, plan);
            compare_bytes(s, rig_stats(&s->rigs[FAST]).payload_bytes, size.payload_bytes,
                          "codes after a shrink");
        }
        lk_plan_destroy(&plan);
        step_all(s, 3, "after a shrink");
    }
}

static void close_others(scene *s) {
    for (uint32_t i = PLACED; i < N_RIGS; ++i)
        if (s->is_open[i]) {
            rig_close(&s->rigs[i]);
            free(s->out[i]);
            s->is_open[i] = 0;
        }
}

// Another query's classes, and a cut within what they lie in.
static void assign_and_cut(scene *s, uint32_t *seed) {
    lk_chunk_class classes[MAX_CHUNKS];
    chunked_classes(seed, s->n_chunks, classes);
    for (uint32_t i = FAST; i <= REFERENCE; ++i)
        assign(s, i, s->n_chunks, context_of(s), classes);
    compare_stats(s);
    step_all(s, 3, "other classes");
    const uint32_t left = SINKS + s->n_chunks * 2 / 3 * s->shape.chunk_tokens + 5;
    lk_status status = LK_OK;
    for (uint32_t i = FAST; i <= REFERENCE; ++i) {
        const lk_status own = lk_sequence_truncate(s->rigs[i].cache, 1, left);
        assert_true(i == FAST || own == status);
        status = own;
    }
    if (s->features & IN_ORDER && status == LK_E_UNSUPPORTED)  // a window has given pages back
        return;
    expect(s, status, "a cut");
    s->length = left;
    compare_stats(s);
    step_all(s, 40, "after a cut");
}

static void count_context(scene *s) {
    s->n_chunks = 448 / s->shape.chunk_tokens > 3 ? 448 / s->shape.chunk_tokens : 3;
    // Pages after the context begin where those of all caches do; so do pages that shrink.
    if (s->features & (PACKS | LADDER))
        s->n_chunks -= s->n_chunks % block_chunks(s->shape);
    s->length = context_of(s) + 20;
    assert_true(s->n_chunks <= MAX_CHUNKS && s->length <= MAX_TOKENS);
}

// Are pages of the chunk's own size the same, whichever chunks are neighbours?
static uint32_t own_page(const scene *s) {
    const shape own = s->shape;
    if (own.chunk_tokens >= own.page_tokens)
        return own.page_tokens;
    return own.chunk_tokens < 32 || s->features & (BOOST | PACKS) ? 0 : own.chunk_tokens;
}

static void run_scene(uint32_t features, shape own) {
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    const uint32_t reorder = !(features & IN_ORDER);
    s->features = features;
    s->shape = reorder ? own : (shape){own.page_tokens, own.page_tokens};
    count_context(s);
    uint32_t seed = features * 31 + own.page_tokens + own.chunk_tokens;
    for (uint32_t t = 0; t < s->length; ++t)
        s->tokens[t] = (rig_token){1, t};
    lk_chunk_class first[MAX_CHUNKS];
    chunked_classes(&seed, s->n_chunks, first);
    chunked_classes(&seed, s->n_chunks, s->assigned);
    for (uint32_t i = FAST; i <= REFERENCE; ++i) {
        open_rig(s, i, i == FAST ? rig_default() : rig_host(), s->shape, reorder);
        feed(s, i);
        if (features & ORIGINALS)
            assign(s, i, s->n_chunks, context_of(s), first);
        assign(s, i, s->n_chunks, context_of(s), s->assigned);
    }
    assert_int_equal(
        lk_chunks_get(s->rigs[FAST].cache, 1, NULL, MAX_CHUNKS, NULL, s->stored, s->order), LK_OK);
    assert_int_equal(chunked_info(&s->rigs[FAST], 1).n_narrower, 0);
    check_bytes(s);
    if (reorder)
        open_other(s, PLACED, own.page_tokens);
    if (reorder && own_page(s))
        open_other(s, UNPERMUTED, own_page(s));
    step_all(s, 3, "a step");
    step_all(s, 70, "a long step");
    if (features & LADDER)
        shrink_all(s);
    close_others(s);
    assign_and_cut(s, &seed);
    for (uint32_t i = FAST; i <= REFERENCE; ++i) {
        rig_close(&s->rigs[i]);
        free(s->out[i]);
    }
    free(s);
}

static void every_feature_with_chunks(void **state) {
    (void)state;
    const int is_quick = rig_default() == rig_host();
    // Strides without common factors with the numbers of parts and shapes: both go round.
    const uint32_t n = (EVERYTHING + 1) * N_SHAPES;
    const uint32_t stride = g_full ? 11 : is_quick ? 997 : 4999;
    for (uint32_t i = 0; i < n; i += stride)
        run_scene(i / N_SHAPES, kShapes[i % N_SHAPES]);
}

static void each_feature_alone_and_all_together(void **state) {
    (void)state;
    for (uint32_t feature = 1; rig_default() == rig_host() && feature < EVERYTHING; feature *= 2)
        run_scene(feature, kShapes[0]);
    run_scene(EVERYTHING & ~IN_ORDER, kShapes[0]);
    run_scene(EVERYTHING & ~WIDE, kShapes[0]);
}

int main(int argc, char **argv) {
    g_full = argc > 1 && !strcmp(argv[argc - 1], "--full");
    rig_arguments(argc - g_full, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_feature_alone_and_all_together),
        cmocka_unit_test(every_feature_with_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
