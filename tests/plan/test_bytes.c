/* Exact bits and bytes of the presets by arithmetic of the test's own, and cache_bytes against a
 * replay that allocates and frees every slot one by one.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "plan_test.h"

enum { PAGE = 128, EXTENT = 262144, MAX_SLOTS = 1025, MAX_ROWS = 64, MAX_SEQUENCES = 4 };

struct preset {
    const char *name;
    uint32_t bits; /* of keys */
    uint32_t value_bits;
    uint32_t sixteenths; /* of the channels at 4 bits */
    uint32_t parameter_bytes;
    uint32_t sinks;
    uint32_t window;
};
static const struct preset presets[] = {
    {"fp16", 16, 16, 0, 2, 0, 0},       {"int8", 8, 8, 0, 2, 0, 128},
    {"kivi4", 4, 4, 0, 2, 0, 128},      {"kivi2", 2, 2, 0, 2, 0, 128},
    {"kitty", 2, 2, 2, 2, 32, 128},     {"kitty-pro", 2, 2, 4, 2, 32, 128},
    {"wide-keys", 2, 1, 6, 1, 32, 128}, {"wide-keys-pro", 2, 2, 6, 1, 32, 128},
};
enum { N_PRESETS = sizeof presets / sizeof *presets };

static uint64_t up(uint64_t n, uint64_t step) { return (n + step - 1) / step * step; }

/* Bytes of a packed page. */
static uint64_t key_payload(const struct preset *p, uint32_t d) {
    const uint64_t boosted = up((d * p->sixteenths + 15) / 16, 16);
    return (boosted * 4 + (d - boosted) * p->bits) * PAGE / 8;
}
static uint64_t key_metadata(const struct preset *p, uint32_t d) {
    return p->bits == 16 ? 0 : 2ull * p->parameter_bytes * d + (p->sixteenths ? d : 0);
}
static uint64_t value_payload(const struct preset *p, uint32_t d) {
    return d * p->value_bits * PAGE / 8;
}
static uint64_t value_metadata(const struct preset *p) {
    return p->value_bits == 16 ? 0 : 2ull * p->parameter_bytes * PAGE;
}

static void bits_per_value_are_exact(void **state) {
    (void)state;
    const double expected[] = {16, 8.25, 4.25, 2.25, 2.40625, 2.53125, 2.03125, 2.53125};
    struct model m;
    make_model(&m, 32, 8, 4, 128);
    for (uint32_t i = 0; i < N_PRESETS; ++i) {
        assert_string_equal(lk_plan_preset_name(i), presets[i].name);
        lk_plan *plan = make_plan(presets[i].name, &m);
        const lk_plan_size size = plan_size(plan, 131072, 1, 512);
        assert_true(size.bits_per_value == expected[i]);
        assert_true(size.bytes_per_token == expected[i] * 32 * 8 * 128 * 2 / 8);
        assert_int_equal(size.fp16_bytes, 131072ull * 32 * 8 * 128 * 2 * 2);
        lk_plan_destroy(&plan);
    }
    assert_string_equal(lk_plan_preset_name(N_PRESETS), "cocktail"); /* 16 bits at first */
    assert_null(lk_plan_preset_name(UINT32_MAX));
}

static void page_bytes_are_exact(void **state) {
    (void)state;
    const uint32_t dims[] = {32, 48, 64, 80, 96, 112, 128, 192, 240, 256};
    for (uint32_t i = 1; i < N_PRESETS; ++i)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; ++d) {
            struct model m;
            make_model(&m, 1, 1, 1, dims[d]);
            lk_plan *plan = make_plan(presets[i].name, &m);
            const lk_plan_size size = plan_size(plan, 4096, 3, 1);
            const uint64_t pages = (4095 - presets[i].sinks - presets[i].window) / PAGE;
            assert_int_equal(size.n_blocks, pages);
            assert_int_equal(size.payload_bytes, 3 * pages *
                                                     (key_payload(&presets[i], dims[d]) +
                                                      value_payload(&presets[i], dims[d])));
            assert_int_equal(
                size.metadata_bytes,
                3 * pages * (key_metadata(&presets[i], dims[d]) + value_metadata(&presets[i])));
            const uint64_t rows = (4096 - presets[i].sinks + PAGE - 1) / PAGE;
            assert_int_equal(size.recent_bytes,
                             3 * (presets[i].sinks + (rows - pages) * PAGE) * 4ull * dims[d]);
            lk_plan_destroy(&plan);
        }
}

/* Every slot of a cache, one by one. */
struct replay {
    uint64_t used[MAX_SLOTS]; /* by bytes / 64 */
    uint64_t extents;
    uint64_t tables;
    uint64_t replaced; /* of the block table that grows in this step, the old one */
    uint64_t peak;
};

static void note_peak(struct replay *r) {
    const uint64_t now = r->extents * EXTENT + r->tables + r->replaced;
    r->peak = now > r->peak ? now : r->peak;
}

static void take(struct replay *r, uint64_t bytes) {
    const uint64_t slot = up(bytes, 64);
    if (!slot)
        return;
    const uint64_t per = EXTENT / slot;
    r->extents += r->used[slot / 64]++ % per == 0;
    note_peak(r);
}

static void give(struct replay *r, uint64_t bytes) {
    const uint64_t slot = up(bytes, 64);
    const uint64_t per = EXTENT / slot;
    r->extents -= --r->used[slot / 64] % per == 0;
}

struct sequence {
    uint32_t n_rows;
    int packed[MAX_ROWS];
};

static uint64_t row_end(const struct preset *p, uint32_t row) {
    return p->sinks ? p->sinks + (uint64_t)row * PAGE : (uint64_t)(row + 1) * PAGE;
}
static uint64_t row_begin(const struct preset *p, uint32_t row) {
    return row ? row_end(p, row - 1) : 0;
}
static int is_sink(const struct preset *p, uint32_t row) { return p->sinks && !row; }
static int is_due(const struct preset *p, uint32_t row, uint64_t length) {
    return !is_sink(p, row) && row_end(p, row) + p->window <= length;
}

static void pack_row(struct replay *r, const struct preset *p, const struct model *m) {
    for (uint32_t l = 0; l < m->geometry.n_layers; ++l)
        for (uint32_t h = 0; h < m->layers[l].n_kv_heads; ++h) {
            const uint32_t d = m->layers[l].head_dim;
            take(r, key_payload(p, d));
            take(r, key_metadata(p, d));
            take(r, value_payload(p, d));
            take(r, value_metadata(p));
            give(r, 2ull * PAGE * d);
            give(r, 2ull * PAGE * d);
        }
}

static void add_row(struct replay *r, const struct preset *p, const struct model *m,
                    uint64_t tokens, int packed) {
    uint64_t entries = 0;
    for (uint32_t l = 0; l < m->geometry.n_layers; ++l)
        for (uint32_t h = 0; h < m->layers[l].n_kv_heads; ++h, ++entries) {
            const uint32_t d = m->layers[l].head_dim;
            take(r, packed ? key_payload(p, d) : 2 * tokens * d);
            take(r, packed ? key_metadata(p, d) : 0);
            take(r, packed ? value_payload(p, d) : 2 * tokens * d);
            take(r, packed ? value_metadata(p) : 0);
        }
    r->tables += 128 + 40 * entries;
    note_peak(r);
}

/* Space for so many rows: 8, 16, .. 64, 80, 96, 112, 128, 160, .. */
static uint32_t space_for(uint32_t n_rows) {
    uint32_t capacity = 8;
    for (uint32_t step = 8; capacity < n_rows; capacity += step)
        step = capacity < 64 ? 8 : capacity < 128 ? 16 : 32;
    return capacity;
}

/* A longer list of rows for the step, next to the old one. */
static void lengthen(struct replay *r, const struct preset *p, uint32_t n_rows, uint64_t length) {
    uint32_t after = 1;
    while (row_end(p, after - 1) < length)
        ++after;
    const uint32_t before = n_rows ? space_for(n_rows) : 0;
    if (after <= before)
        return;
    r->tables += 8 * (space_for(after) - before);
    if (8 * before > r->replaced)
        r->replaced = 8 * before;
}

static void pack_due(struct replay *r, struct sequence *s, const struct preset *p,
                     const struct model *m, uint64_t length) {
    if (p->bits == 16)
        return;
    for (uint32_t row = 0; row < s->n_rows; ++row)
        if (!s->packed[row] && is_due(p, row, length)) {
            pack_row(r, p, m);
            s->packed[row] = 1;
        }
}

static void add_tokens(struct replay *r, struct sequence *s, const struct preset *p,
                       const struct model *m, uint64_t length, uint64_t n) {
    while (!s->n_rows || row_end(p, s->n_rows - 1) < length + n) {
        const uint32_t row = s->n_rows++;
        const int packed = p->bits < 16 && n > LK_DRAFT_TOKENS && row_begin(p, row) >= length &&
                           is_due(p, row, length + n);
        assert_true(s->n_rows < MAX_ROWS);
        s->packed[row] = packed;
        add_row(r, p, m, row_end(p, row) - row_begin(p, row), packed);
    }
}

static uint64_t replay_peak(const struct preset *p, const struct model *m, uint64_t n_tokens,
                            uint32_t n_sequences, uint64_t step) {
    struct replay r = {{0}, 0, 0, 0, 0};
    struct sequence s[MAX_SEQUENCES] = {{0, {0}}};
    for (uint64_t length = 0; length < n_tokens; length += step) {
        const uint64_t n = n_tokens - length < step ? n_tokens - length : step;
        for (uint32_t i = 0; i < n_sequences; ++i)
            pack_due(&r, &s[i], p, m, length);
        for (uint32_t i = 0; i < n_sequences; ++i)
            lengthen(&r, p, s[i].n_rows, length + n);
        for (uint32_t i = 0; i < n_sequences; ++i)
            add_tokens(&r, &s[i], p, m, length, n);
        r.replaced = 0;
    }
    return r.peak;
}

static void expect_replay(const struct preset *p, const struct model *m, uint64_t n_tokens,
                          uint32_t n_sequences, uint32_t step) {
    uint64_t widest = 0;
    for (uint32_t l = 0; l < m->geometry.n_layers; ++l) {
        const uint64_t width = (uint64_t)m->layers[l].n_kv_heads * m->layers[l].head_dim;
        widest = width > widest ? width : widest;
    }
    const uint64_t fixed = up((uint64_t)n_sequences * step * widest * 4, 64) + 512ull * n_sequences;
    lk_plan *plan = make_plan(p->name, m);
    const lk_plan_size size = plan_size(plan, n_tokens, n_sequences, step);
    const uint64_t expected = fixed + replay_peak(p, m, n_tokens, n_sequences, step);
    if (size.cache_bytes != expected)
        fail_msg(
            "%s: %llu tokens of %u sequences in steps of %u: %llu bytes, the replay needs %llu",
            p->name, (unsigned long long)n_tokens, n_sequences, step,
            (unsigned long long)size.cache_bytes, (unsigned long long)expected);
    lk_plan_destroy(&plan);
}

static void cache_bytes_equal_a_replay(void **state) {
    (void)state;
    const uint32_t steps[] = {1, 7, 48, 64, 65, 100, 128, 200, 333, 1000, 5000};
    const uint64_t lengths[] = {1, 31, 32, 33, 160, 288, 289, 700, 1023, 2048, 4097};
    struct model m;
    make_model(&m, 5, 3, 2, 128);
    m.layers[1].head_dim = 48;
    m.layers[3].head_dim = 256;
    m.layers[3].n_kv_heads = 1;
    m.layers[3].n_query_heads = 1;
    for (uint32_t i = 0; i < N_PRESETS; ++i)
        for (size_t s = 0; s < sizeof steps / sizeof *steps; ++s)
            for (size_t n = 0; n < sizeof lengths / sizeof *lengths; ++n)
                for (uint32_t sequences = 1; sequences <= MAX_SEQUENCES; sequences += 3)
                    expect_replay(&presets[i], &m, lengths[n], sequences, steps[s]);
}

static void one_small_head_equals_a_replay(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 32);
    for (uint32_t i = 0; i < N_PRESETS; ++i)
        for (uint32_t step = 1; step < 400; step += 13)
            for (uint64_t n = 1; n < 7000; n = n * 3 + 5)
                expect_replay(&presets[i], &m, n, 3, step);
}

static void query_sums_are_counted(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 4, 1, 64);
    lk_plan *plan = make_plan("kitty", &m);
    const lk_plan_size before = plan_size(plan, 1000, 3, 1);
    lk_key_rule rule;
    assert_int_equal(lk_key_rule_init(&rule, sizeof rule), LK_OK);
    assert_int_equal(lk_plan_get_key(plan, 0, 0, &rule), LK_OK);
    rule.boost_ranking = LK_RANKING_QUERY_RANGE;
    assert_int_equal(lk_plan_set_key(plan, 1, LK_ALL, &rule), LK_OK);
    const lk_plan_size after = plan_size(plan, 1000, 3, 1);
    /* Four heads; one sum of packed blocks and one for each of 2 x 1 + 4 other blocks; a list. */
    const uint64_t sums = 4 * 64 * 8 * (1 + 2 + 4) + 128 + 32 * (1 + 2 + 4);
    assert_int_equal(after.cache_bytes - before.cache_bytes, 3 * sums);
    assert_int_equal(after.table_bytes - before.table_bytes, 3 * sums);
    lk_plan_destroy(&plan);
}

static void ladders_keep_a_metadata_slot(void **state) {
    (void)state;
    const uint8_t rungs[] = {16, 8, 4};
    struct model m;
    make_model(&m, 1, 1, 1, 128);
    lk_plan *plan = make_plan("kivi4", &m);
    assert_int_equal(lk_plan_set_ladder(plan, LK_ALL, rungs, 3, 16), LK_OK);
    const lk_plan_size raw = plan_size(plan, 4096, 1, 1);
    assert_true(raw.bits_per_value == 16);
    assert_int_equal(raw.payload_bytes, 0);
    assert_int_equal(raw.recent_bytes, 4096 * 128 * 4);
    /* 64 payload slots of 32 KiB, 64 of 512 bytes in one more extent, and a spare one. */
    assert_int_equal(raw.cache_bytes, 512 + 512 + 32 * (128 + 40 + 8) + 10 * EXTENT);
    assert_int_equal(lk_plan_set_ladder(plan, LK_ALL, rungs, 3, 4), LK_OK);
    assert_true(plan_size(plan, 4096, 1, 1).bits_per_value == 4.25);
    assert_int_equal(lk_plan_set_ladder(plan, LK_ALL, NULL, 0, 0), LK_OK);
    assert_true(plan_size(plan, 4096, 1, 1).bits_per_value == 4.25);
    lk_plan_destroy(&plan);
}

static void many_sinks_take_many_rows(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 256);
    lk_plan *plan = make_plan("fp16", &m);
    assert_int_equal(lk_plan_set_recent(plan, 1008, 0), LK_OK);
    const lk_plan_size size = plan_size(plan, 1000, 1, 1000);
    /* Seven rows of 128 tokens and one of 112, slots of 64 and 56 KiB. */
    assert_int_equal(size.recent_bytes, 1008 * 256 * 4);
    assert_int_equal(size.cache_bytes, 1000 * 256 * 4 + 512 + 8 * (168 + 8) + (4 + 1) * EXTENT);
    lk_plan_destroy(&plan);
}

static void huge_requests_are_refused_or_quick(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 8, 1, 128);
    lk_plan *plan = make_plan("kitty", &m);
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    expect_failure(lk_plan_bytes(plan, UINT64_MAX, 1, 1, &size), LK_E_ARGUMENT, "64 bits");
    expect_failure(lk_plan_bytes(plan, UINT64_MAX, UINT32_MAX, UINT32_MAX, &size), LK_E_ARGUMENT,
                   "64 bits");
    expect_failure(lk_plan_bytes(plan, 1, UINT32_MAX, UINT32_MAX, &size), LK_E_ARGUMENT, "64 bits");
    assert_int_equal(size.cache_bytes, 0);
    assert_int_equal(lk_plan_bytes(plan, 1ull << 40, 1, 127, &size), LK_OK);
    assert_int_equal(lk_plan_bytes(plan, 1ull << 24, 65536, 1, &size), LK_OK);
    assert_true(size.cache_bytes < size.fp16_bytes / 6);
    lk_plan_destroy(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_per_value_are_exact),
        cmocka_unit_test(page_bytes_are_exact),
        cmocka_unit_test(cache_bytes_equal_a_replay),
        cmocka_unit_test(one_small_head_equals_a_replay),
        cmocka_unit_test(query_sums_are_counted),
        cmocka_unit_test(ladders_keep_a_metadata_slot),
        cmocka_unit_test(many_sinks_take_many_rows),
        cmocka_unit_test(huge_requests_are_refused_or_quick),
    };
    return cmocka_run_group_tests_name("plan bytes", tests, NULL, NULL);
}
