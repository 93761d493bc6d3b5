/* Plans with chunks: the rule, its text, and the width of a channel under a chunk's class.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "plan_test.h"

static lk_chunk_rule chunk_rule(uint32_t chunk_tokens) {
    lk_chunk_rule rule;
    assert_int_equal(lk_chunk_rule_init(&rule, sizeof rule), LK_OK);
    rule.chunk_tokens = chunk_tokens;
    return rule;
}

static lk_chunk_rule chunks_of(const lk_plan *plan) {
    lk_chunk_rule rule = chunk_rule(1);
    assert_int_equal(lk_plan_get_chunks(plan, &rule), LK_OK);
    return rule;
}

static void set_chunks(lk_plan *plan, const lk_chunk_rule *rule) {
    assert_int_equal(lk_plan_set_chunks(plan, rule), LK_OK);
}

static uint32_t width(const lk_plan *plan, uint32_t is_value, uint32_t channel, uint32_t rung,
                      lk_chunk_class chunk_class, uint32_t *boost_bits) {
    uint32_t bits = 0;
    uint32_t boost = 0;
    assert_int_equal(lk_plan_width(plan, 0, 0, is_value, channel, rung, chunk_class, &bits, &boost),
                     LK_OK);
    if (boost_bits)
        *boost_bits = boost;
    return bits;
}

static void the_preset_is_the_paper(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 2, 4, 128);
    lk_plan *plan = make_plan("cocktail", &m);
    const lk_chunk_rule rule = chunks_of(plan);
    assert_int_equal(rule.size, sizeof rule);
    assert_int_equal(rule.chunk_tokens, 32);
    assert_int_equal(rule.low_bits, 2);
    assert_int_equal(rule.middle_bits, 4);
    assert_int_equal(rule.high_bits, 16);
    assert_true(rule.alpha == 0.6f);
    assert_true(rule.beta == 0.1f);
    assert_int_equal(rule.reorder, 1);
    assert_int_equal(rule.hold, 1);
    uint32_t page = 0, sinks = 0;
    assert_int_equal(lk_plan_get_pages(plan, &page, &sinks, NULL), LK_OK);
    assert_int_equal(page, 128);
    assert_int_equal(sinks, 32);
    lk_key_rule key;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    assert_int_equal(lk_plan_get_key(plan, 1, 1, &key), LK_OK);
    assert_int_equal(key.axis, LK_AXIS_CHANNEL);
    assert_int_equal(key.group, 32);
    lk_value_rule value;
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    assert_int_equal(lk_plan_get_value(plan, 1, 1, &value), LK_OK);
    assert_int_equal(value.group, 0);
    assert_int_equal(lk_plan_validate(plan, &m.geometry), LK_OK);
    for (uint32_t is_value = 0; is_value < 2; ++is_value) {
        assert_int_equal(width(plan, is_value, 127, 0, LK_CHUNK_NONE, NULL), 16);
        assert_int_equal(width(plan, is_value, 127, 0, LK_CHUNK_LOW, NULL), 2);
        assert_int_equal(width(plan, is_value, 127, 0, LK_CHUNK_MIDDLE, NULL), 4);
        assert_int_equal(width(plan, is_value, 127, 0, LK_CHUNK_HIGH, NULL), 16);
    }
    lk_plan_destroy(&plan);
}

static void chunks_are_set_copied_and_removed(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_plan *plan = make_plan("kivi4", &m);
    const lk_chunk_rule none = chunks_of(plan);
    const lk_chunk_rule zero = {.size = sizeof zero};
    assert_memory_equal(&none, &zero, sizeof zero);
    lk_chunk_rule rule = chunk_rule(128);
    rule.low_bits = 4;
    rule.middle_bits = 8;
    rule.alpha = -0.0f;
    rule.beta = 0.25f;
    rule.reorder = 0;
    rule.hold = 0;
    set_chunks(plan, &rule);
    rule.alpha = 0.0f;
    lk_plan *copy = NULL;
    assert_int_equal(lk_plan_copy(plan, &copy), LK_OK);
    const lk_chunk_rule found = chunks_of(copy);
    assert_memory_equal(&found, &rule, sizeof rule);
    char *before = write_json(plan);
    char *same = write_json(copy);
    assert_string_equal(before, same);
    set_chunks(copy, &none);
    const lk_chunk_rule removed = chunks_of(copy);
    assert_memory_equal(&removed, &zero, sizeof zero);
    char *without = write_json(copy);
    assert_string_not_equal(before, without);
    assert_null(strstr(without, "chunks"));
    free(before);
    free(same);
    free(without);
    lk_plan_destroy(&copy);
    lk_plan_destroy(&plan);
}

static void expect_bad(lk_plan *plan, const lk_chunk_rule *rule, const char *part) {
    expect_failure(lk_plan_set_chunks(plan, rule), LK_E_ARGUMENT, part);
}

static void bad_rules_are_refused(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_plan *plan = make_plan("cocktail", &m);
    char *before = write_json(plan);
    lk_chunk_rule rule = chunk_rule(7);
    expect_bad(plan, &rule, "rule.chunk_tokens is 7, must be from 8 to 256");
    rule = chunk_rule(257);
    expect_bad(plan, &rule, "rule.chunk_tokens is 257");
    rule = chunk_rule(32);
    rule.low_bits = 3;
    expect_bad(plan, &rule, "rule.low_bits is 3, must be one of 2, 4, 8, 16");
    rule = chunk_rule(32);
    rule.middle_bits = 2;
    expect_bad(plan, &rule, "rule.middle_bits is 2, must be one of 2, 4, 8, 16 and above the");
    rule = chunk_rule(32);
    rule.high_bits = 4;
    expect_bad(plan, &rule, "rule.high_bits is 4");
    const float bad[][2] = {{-0.1f, 0.1f},          {0.1f, -0.1f},      {0.5f, 0.5f},
                            {1.0f, 0.0f},           {(float)NAN, 0.0f}, {0.0f, (float)NAN},
                            {(float)INFINITY, 0.0f}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        rule = chunk_rule(32);
        rule.alpha = bad[i][0];
        rule.beta = bad[i][1];
        expect_bad(plan, &rule, "must be from 0 with a sum below 1");
    }
    rule = chunk_rule(32);
    rule.reorder = 2;
    expect_bad(plan, &rule, "rule.reorder is 2, must be 0 or 1");
    rule = chunk_rule(32);
    rule.hold = 2;
    expect_bad(plan, &rule, "rule.hold is 2, must be 0 or 1");
    expect_bad(plan, NULL, "rule is NULL");
    expect_bad(NULL, &rule, "plan is NULL");
    expect_failure(lk_plan_get_chunks(plan, NULL), LK_E_ARGUMENT, "rule is NULL");
    expect_failure(lk_plan_get_chunks(NULL, &rule), LK_E_ARGUMENT, "plan is NULL");
    char *after = write_json(plan);
    assert_string_equal(before, after);
    free(before);
    free(after);
    lk_plan_destroy(&plan);
}

static void chunks_and_pages_must_fit(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 1, 1, 64);
    lk_plan *plan = make_plan("cocktail", &m);
    const uint32_t pages[] = {32, 64, 128};
    for (size_t p = 0; p < sizeof pages / sizeof *pages; ++p) {
        assert_int_equal(lk_plan_set_pages(plan, pages[p]), LK_OK);
        for (uint32_t tokens = 8; tokens <= 256; ++tokens) {
            lk_chunk_rule rule = chunk_rule(tokens);
            set_chunks(plan, &rule);
            if (pages[p] % tokens == 0 || tokens % pages[p] == 0)
                assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);
            else
                expect_failure(lk_plan_validate(plan, NULL), LK_E_ARGUMENT,
                               "must be a divisor or a multiple of /page_tokens");
            rule.reorder = 0;
            set_chunks(plan, &rule);
            if (tokens == pages[p])
                assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);
            else
                expect_failure(lk_plan_validate(plan, NULL), LK_E_ARGUMENT,
                               "with /chunks/reorder false");
        }
    }
    lk_plan_destroy(&plan);
}

static void meaningless_combinations_name_both_paths(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 4, 1, 1, 64);
    m.layers[2].window_tokens = 1024;
    lk_plan *plan = make_plan("cocktail", &m);
    expect_failure(lk_plan_validate(plan, NULL), LK_E_ARGUMENT,
                   "/chunks/reorder is true, must be false with /geometry/layers/1/window 1024 "
                   "(layer 2)");
    char *text = write_json(plan);
    lk_plan *again = NULL;
    expect_failure(read_json(text, strlen(text), &again), LK_E_CORRUPT,
                   "/chunks/reorder is true, must be false with /geometry/layers/1/window 1024");
    free(text);
    lk_chunk_rule rule = chunk_rule(128);
    rule.reorder = 0;
    set_chunks(plan, &rule);
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);

    lk_key_rule key;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    key.bits = 2;
    key.boost_channels = 16;
    key.boost_bits = 4;
    key.boost_ranking = LK_RANKING_QUERY_RANGE;
    assert_int_equal(lk_plan_set_key(plan, 1, 0, &key), LK_OK);
    expect_failure(lk_plan_validate(plan, NULL), LK_E_ARGUMENT,
                   "/layers/1/heads/0/key/boost/score is \"query-range\", must be \"key\" with "
                   "/chunks: the sums");
    key.boost_ranking = LK_RANKING_KEY;
    assert_int_equal(lk_plan_set_key(plan, 1, 0, &key), LK_OK);
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);

    /* A middle page is at 4 bits; rung 2 would take its 4-bit channels below those of 3. */
    uint8_t classes[64];
    memset(classes, 4, sizeof classes);
    memset(classes, 3, 16);
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    key.channel_bits = classes;
    assert_int_equal(lk_plan_set_key(plan, 1, 0, &key), LK_OK);
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);
    const uint8_t rungs[] = {16, 2};
    assert_int_equal(lk_plan_set_ladder(plan, 1, rungs, 2, 16), LK_OK);
    expect_failure(lk_plan_validate(plan, NULL), LK_E_ARGUMENT,
                   "must not with rung 2 in /layers/1/ladder and /chunks: they would shrink");
    lk_plan_destroy(&plan);
}

/* Classes of every cap are checked: 4-bit and 2-bit channels that close strips together do not
 * under the middle class. */
static void classes_must_fill_strips_under_every_cap(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_plan *plan = make_plan("cocktail", &m);
    uint8_t classes[64];
    memset(classes, 8, sizeof classes);
    memset(classes, 2, 8);
    lk_key_rule key;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    key.channel_bits = classes;
    assert_int_equal(lk_plan_set_key(plan, 0, 0, &key), LK_OK);
    const uint8_t rungs[] = {2};
    assert_int_equal(lk_plan_set_ladder(plan, 0, rungs, 1, 2), LK_OK);
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);
    const uint8_t wider[] = {16, 2};
    assert_int_equal(lk_plan_set_ladder(plan, 0, wider, 2, 16), LK_OK);
    expect_failure(lk_plan_validate(plan, NULL), LK_E_ARGUMENT,
                   "classes puts 56 channels at 4 bits at rung 4");
    lk_plan_destroy(&plan);
}

/* Every rule, rung and class: the lower one of rung and class caps the rule. */
static void widths_compose(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_plan *plan = make_plan("cocktail", &m);
    lk_chunk_rule chunks = chunk_rule(32);
    chunks.middle_bits = 8;
    set_chunks(plan, &chunks);
    const uint8_t rungs[] = {16, 8, 4, 2};
    assert_int_equal(lk_plan_set_ladder(plan, 0, rungs, 4, 8), LK_OK);
    const uint32_t caps[] = {16, 2, 8, 16}; /* by class */
    const uint8_t all_bits[] = {1, 2, 3, 4, 8, 16};
    for (size_t b = 0; b < sizeof all_bits; ++b) {
        uint8_t classes[64];
        memset(classes, all_bits[b], sizeof classes);
        lk_key_rule key;
        assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
        key.channel_bits = classes;
        assert_int_equal(lk_plan_set_key(plan, 0, 0, &key), LK_OK);
        lk_value_rule value;
        assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
        value.bits = all_bits[b];
        assert_int_equal(lk_plan_set_value(plan, 0, 0, &value), LK_OK);
        for (uint32_t r = 0; r < 5; ++r)
            for (lk_chunk_class c = LK_CHUNK_NONE; c <= LK_CHUNK_HIGH; ++c) {
                const uint32_t rung = r ? rungs[r - 1] : 8;
                const uint32_t cap = rung < caps[c] ? rung : caps[c];
                uint32_t expected = all_bits[b];
                if (cap == 16)
                    expected = 16;
                else if (expected >= 4 && expected > cap)
                    expected = cap;
                for (uint32_t is_value = 0; is_value < 2; ++is_value) {
                    uint32_t boost = 0;
                    assert_int_equal(width(plan, is_value, 63, r ? rung : 0, c, &boost), expected);
                    assert_int_equal(boost, expected);
                }
            }
    }
    lk_plan_destroy(&plan);
}

static void widths_of_a_boost(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_plan *plan = make_plan("kitty-pro", &m); /* 4 bits over 2 */
    lk_chunk_rule chunks = chunk_rule(32);
    set_chunks(plan, &chunks);
    const struct {
        lk_chunk_class chunk_class;
        uint32_t bits, boost_bits;
    } cases[] = {{LK_CHUNK_NONE, 2, 4},
                 {LK_CHUNK_LOW, 2, 2},
                 {LK_CHUNK_MIDDLE, 2, 4},
                 {LK_CHUNK_HIGH, 16, 16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        uint32_t boost = 0;
        assert_int_equal(width(plan, 0, 5, 0, cases[i].chunk_class, &boost), cases[i].bits);
        assert_int_equal(boost, cases[i].boost_bits);
    }
    lk_plan_destroy(&plan);
}

static void widths_that_are_not_there(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_plan *plan = make_plan("cocktail", &m);
    uint32_t bits = 77, boost = 77;
    expect_failure(lk_plan_width(plan, 0, 0, 0, 0, 16, LK_CHUNK_LOW, &bits, &boost), LK_E_NOT_FOUND,
                   "rung is 16, which the ladder of layer 0 has not");
    expect_failure(lk_plan_width(plan, 0, 0, 0, 0, 0, 4, &bits, &boost), LK_E_ARGUMENT,
                   "chunk_class is 4, must be at most 3");
    lk_plan *plain = make_plan("kivi2", &m);
    expect_failure(lk_plan_width(plain, 0, 0, 0, 0, 0, LK_CHUNK_LOW, &bits, &boost), LK_E_NOT_FOUND,
                   "chunk_class is 1, the plan has no chunks");
    assert_int_equal(bits, 77);
    assert_int_equal(boost, 77);
    lk_plan_destroy(&plain);
    lk_plan_destroy(&plan);
}

static lk_chunk_mix chunk_mix(uint32_t n_low, uint32_t n_middle, uint32_t n_high) {
    lk_chunk_mix mix;
    assert_int_equal(lk_chunk_mix_init(&mix, sizeof mix), LK_OK);
    mix.n_low = n_low;
    mix.n_middle = n_middle;
    mix.n_high = n_high;
    return mix;
}

static lk_plan_size mix_size(const lk_plan *plan, uint64_t n_tokens, uint32_t n_sequences,
                             lk_chunk_mix mix) {
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(lk_plan_chunk_bytes(plan, n_tokens, n_sequences, 512, &mix, &size), LK_OK);
    return size;
}

/* A cache of 3 sequences, every slot by hand: 13 low chunks are 3 pages, the rest joins 6 middle
 * ones in 1 page, the rest joins 3 high ones in 1 page, and 2 chunks stay with the tail. */
static void bytes_of_a_mix_are_exact(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 2, 4, 128);
    lk_plan *plan = make_plan("cocktail", &m);
    const uint64_t n_sequences = 3, heads = 2 * 2, page = 128, dim = 128;
    const uint64_t n_tokens = 32 + 22 * 32 + 70;
    const lk_plan_size size = mix_size(plan, n_tokens, 3, chunk_mix(13, 6, 3));
    const uint64_t low_page = page * dim * 2 / 8, middle_page = page * dim * 4 / 8;
    const uint64_t raw_page = page * dim * 2;
    const uint64_t key_metadata = dim * (page / 32) * 4, value_metadata = page * 4;
    assert_int_equal(size.n_blocks, 4);
    assert_int_equal(size.payload_bytes, n_sequences * heads * 2 * (3 * low_page + middle_page));
    assert_int_equal(size.metadata_bytes,
                     n_sequences * heads * 4 * (key_metadata + value_metadata));
    const uint64_t blocks = (n_tokens - 32 + page - 1) / page; /* after the sinks */
    const uint64_t raw_blocks = blocks - 4;
    assert_int_equal(size.recent_bytes,
                     n_sequences * heads * 2 * (raw_blocks * raw_page + 32 * dim * 2));
    assert_int_equal(size.fp16_bytes, n_sequences * heads * 2 * n_tokens * dim * 2);
    const double values = (double)(5 * 2 * page * dim);
    const double bits = (double)((3 * low_page + middle_page + raw_page) * 2 * 8 +
                                 4 * (key_metadata + value_metadata) * 8);
    assert_true(fabs(size.bits_per_value - bits / values) < 1e-12);
    const double token_values = (double)(heads * 2 * dim);
    assert_true(fabs(size.bytes_per_token - token_values * size.bits_per_value / 8) < 1e-9);
    const uint64_t tables = 512 * n_sequences * 2 * dim * 2 * 2 + n_sequences * 512 +
                            n_sequences * ((blocks + 1) * (128 + heads * 40) + 8 * 8) +
                            n_sequences * (128 + 22 * 5);
    assert_int_equal(size.table_bytes, tables);
    /* A page at 4 bits and the sinks' 32 tokens at 16 have slots of one size. */
    assert_int_equal(middle_page, 32 * dim * 2);
    const uint64_t n_pages = n_sequences * heads * 2;
    const uint64_t slots[][2] = {{low_page, 3 * n_pages},
                                 {middle_page, 2 * n_pages},
                                 {raw_page, raw_blocks * n_pages},
                                 {key_metadata, 4 * n_pages / 2},
                                 {value_metadata, 4 * n_pages / 2}};
    uint64_t extents = 0;
    for (size_t i = 0; i < sizeof slots / sizeof *slots; ++i) {
        const uint64_t per = 262144 / slots[i][0];
        extents += (slots[i][1] + per - 1) / per;
    }
    assert_int_equal(size.cache_bytes, tables + extents * 262144);
    lk_plan_destroy(&plan);
}

static void a_chunk_may_be_a_page_or_several(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_plan *plan = make_plan("cocktail", &m);
    lk_chunk_rule rule = chunk_rule(256);
    set_chunks(plan, &rule);
    assert_int_equal(mix_size(plan, 4096, 1, chunk_mix(3, 2, 1)).n_blocks, 10);
    rule = chunk_rule(128);
    rule.reorder = 0;
    set_chunks(plan, &rule);
    assert_int_equal(mix_size(plan, 4096, 1, chunk_mix(3, 2, 1)).n_blocks, 5);
    rule.high_bits = 8;
    set_chunks(plan, &rule);
    assert_int_equal(mix_size(plan, 4096, 1, chunk_mix(3, 2, 1)).n_blocks, 6);
    lk_plan_destroy(&plan);
}

/* The same state by two functions: nothing has a class, and nothing is packed. On the way there a
 * sequence's ninth block has replaced its list of 8. */
static void a_mix_of_nothing_is_all_at_16_bits(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 2, 2, 80);
    lk_plan *plan = make_plan("cocktail", &m);
    const lk_plan_size mixed = mix_size(plan, 1000, 2, chunk_mix(0, 0, 0));
    const lk_plan_size plain = plan_size(plan, 1000, 2, 512);
    assert_int_equal(mixed.cache_bytes + 8 * 8, plain.cache_bytes);
    assert_int_equal(mixed.recent_bytes, plain.recent_bytes);
    assert_int_equal(mixed.table_bytes, plain.table_bytes);
    assert_int_equal(mixed.payload_bytes, 0);
    assert_true(mixed.bits_per_value == 0);
    /* Low and middle chunks that fill no page stay at 16 bits too, but for what their order takes.
     */
    const lk_plan_size few = mix_size(plan, 1000, 2, chunk_mix(2, 1, 0));
    assert_int_equal(few.recent_bytes, plain.recent_bytes);
    assert_int_equal(few.table_bytes, plain.table_bytes + 2 * (128 + 3 * 5));
    lk_plan_destroy(&plan);
}

/* Classes before the prefill: 96 x 4 tokens wait in 3 blocks, with up to 127 of the next one, 70
 * recent ones and the step of 512; 4 blocks more while chunks are laid out. */
static void bytes_of_a_prefill_are_told(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 2, 4, 128);
    lk_plan *plan = make_plan("cocktail", &m);
    assert_int_equal(lk_plan_set_recent(plan, 32, 70), LK_OK);
    const uint64_t n_sequences = 3, heads = 2 * 2, page = 128, dim = 128, n_chunks = 120;
    const lk_chunk_mix mix = chunk_mix(72, 36, 12); /* 18, 9 and 3 blocks */
    const uint64_t n_tokens = 32 + n_chunks * 32;
    uint64_t budget = 0;
    assert_int_equal(lk_plan_chunk_prefill_bytes(plan, n_tokens, 3, 512, &mix, &budget), LK_OK);
    const uint64_t held = (4 * 96 + 127 + 70 + 512 + page - 1) / page, laid = 4;
    const uint64_t blocks = 1 + 30 + held; /* with the sinks */
    const uint64_t tables =
        512 * n_sequences * 2 * dim * 2 * 2 + n_sequences * 512 +
        n_sequences * (blocks * (128 + heads * 40) + 40 * 8) + laid * (128 + heads * 40) + 40 * 8 +
        (n_sequences + 1) * (128 + n_chunks * 5) + n_sequences * (192 + n_chunks * 6);
    const uint64_t n_pages = n_sequences * heads * 2;
    const uint64_t slots[][2] = {{page * dim * 2 / 8, 18 * n_pages},
                                 {page * dim * 4 / 8, 10 * n_pages}, /* and sinks */
                                 {page * dim * 2, (3 + held) * n_pages + laid * heads * 2},
                                 {dim * (page / 32) * 4, 27 * n_pages / 2},
                                 {page * 4, 27 * n_pages / 2}};
    uint64_t extents = 0;
    for (size_t i = 0; i < sizeof slots / sizeof *slots; ++i) {
        const uint64_t per = 262144 / slots[i][0];
        extents += (slots[i][1] + per - 1) / per;
    }
    assert_int_equal(budget, tables + extents * 262144);
    /* In order nothing waits for others, and no chunk moves. */
    lk_chunk_rule rule = chunk_rule(128);
    rule.reorder = 0;
    set_chunks(plan, &rule);
    const lk_chunk_mix pages = chunk_mix(18, 9, 3);
    uint64_t in_order = 0;
    assert_int_equal(lk_plan_chunk_prefill_bytes(plan, n_tokens, 3, 512, &pages, &in_order), LK_OK);
    assert_true(in_order < budget && in_order > mix_size(plan, n_tokens, 3, pages).cache_bytes);
    lk_plan_destroy(&plan);
}

/* 131072 tokens of 32 layers at 60, 30 and 10 % in steps of 2048: at most 1.05 times the final
 * bytes and one layer of the context at 16 bits. */
static void a_prefill_takes_less_than_a_layer_more(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 32, 8, 4, 128);
    lk_plan *plan = make_plan("cocktail", &m);
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    const lk_chunk_mix mix = chunk_mix(2457, 1228, 410);
    uint64_t budget = 0;
    assert_int_equal(lk_plan_chunk_prefill_bytes(plan, 131072, 1, 2048, &mix, &budget), LK_OK);
    assert_int_equal(lk_plan_chunk_bytes(plan, 131072, 1, 2048, &mix, &size), LK_OK);
    assert_true(budget <= size.cache_bytes * 105 / 100 + size.fp16_bytes / 32);
    lk_plan_destroy(&plan);
}

static void bad_mixes_are_refused(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_plan *plan = make_plan("cocktail", &m);
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    lk_chunk_mix mix = chunk_mix(10, 1, 0);
    assert_int_equal(lk_plan_chunk_bytes(plan, 32 + 11 * 32, 1, 1, &mix, &size), LK_OK);
    expect_failure(lk_plan_chunk_bytes(plan, 31 + 11 * 32, 1, 1, &mix, &size), LK_E_ARGUMENT,
                   "mix has 352 tokens of chunks after 32 sinks, n_tokens is 383");
    expect_failure(lk_plan_chunk_bytes(plan, 0, 1, 1, &mix, &size), LK_E_ARGUMENT, "n_tokens is 0");
    expect_failure(lk_plan_chunk_bytes(plan, 1024, 1, 1, NULL, &size), LK_E_ARGUMENT,
                   "mix is NULL");
    expect_failure(lk_plan_chunk_bytes(plan, 1024, 1, 1, &mix, NULL), LK_E_ARGUMENT, "out is NULL");
    expect_failure(lk_plan_chunk_bytes(NULL, 1024, 1, 1, &mix, &size), LK_E_ARGUMENT,
                   "plan is NULL");
    expect_failure(lk_plan_chunk_bytes(plan, 1ull << 60, 1, 1, &mix, &size), LK_E_ARGUMENT,
                   "do not fit 64 bits");
    uint64_t budget = 7;
    expect_failure(lk_plan_chunk_prefill_bytes(plan, 31 + 11 * 32, 1, 1, &mix, &budget),
                   LK_E_ARGUMENT, "n_tokens is 383");
    expect_failure(lk_plan_chunk_prefill_bytes(plan, 1024, 0, 1, &mix, &budget), LK_E_ARGUMENT,
                   "n_sequences is 0");
    expect_failure(lk_plan_chunk_prefill_bytes(plan, 1024, 1, 1, NULL, &budget), LK_E_ARGUMENT,
                   "mix is NULL");
    expect_failure(lk_plan_chunk_prefill_bytes(plan, 1024, 1, 1, &mix, NULL), LK_E_ARGUMENT,
                   "budget_bytes is NULL");
    expect_failure(lk_plan_chunk_prefill_bytes(NULL, 1024, 1, 1, &mix, &budget), LK_E_ARGUMENT,
                   "plan is NULL");
    expect_failure(lk_plan_chunk_prefill_bytes(plan, 1ull << 60, 1, 1, &mix, &budget),
                   LK_E_ARGUMENT, "do not fit 64 bits");
    assert_int_equal(budget, 7);
    lk_plan *plain = make_plan("kivi2", &m);
    expect_failure(lk_plan_chunk_bytes(plain, 1024, 1, 1, &mix, &size), LK_E_ARGUMENT,
                   "the plan has no chunks");
    lk_plan_destroy(&plain);
    lk_plan_destroy(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_preset_is_the_paper),
        cmocka_unit_test(chunks_are_set_copied_and_removed),
        cmocka_unit_test(bad_rules_are_refused),
        cmocka_unit_test(chunks_and_pages_must_fit),
        cmocka_unit_test(meaningless_combinations_name_both_paths),
        cmocka_unit_test(classes_must_fill_strips_under_every_cap),
        cmocka_unit_test(widths_compose),
        cmocka_unit_test(widths_of_a_boost),
        cmocka_unit_test(widths_that_are_not_there),
        cmocka_unit_test(bytes_of_a_mix_are_exact),
        cmocka_unit_test(a_chunk_may_be_a_page_or_several),
        cmocka_unit_test(a_mix_of_nothing_is_all_at_16_bits),
        cmocka_unit_test(bytes_of_a_prefill_are_told),
        cmocka_unit_test(a_prefill_takes_less_than_a_layer_more),
        cmocka_unit_test(bad_mixes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
