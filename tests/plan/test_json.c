/* Plans as text: exact round trips, and text that is hostile.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "plan_test.h"

/* A plan with every kind of member. */
static lk_plan *rich_plan(struct model *m) {
    make_model(m, 6, 4, 2, 64);
    m->layers[2].head_dim = 128;
    m->layers[3].window_tokens = 1024;
    m->layers[3].window_sink_tokens = 4;
    m->layers[4].scale = 0.08838834764f;
    m->layers[5].soft_cap = 1e-30f;
    lk_plan *plan = make_plan("kitty-pro", m);
    uint8_t classes[64];
    memset(classes, 2, sizeof classes);
    classes[1] = classes[40] = 3;
    classes[2] = classes[63] = 1;
    memset(classes + 8, 4, 16);
    lk_key_rule key;
    assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
    key.bits = 2;
    key.channel_bits = classes;
    key.one_bit = LK_ONE_BIT_RANGE;
    assert_int_equal(lk_plan_set_key(plan, 0, 3, &key), LK_OK);
    key.one_bit = LK_ONE_BIT_DEVIATION;
    assert_int_equal(lk_plan_set_key(plan, 1, 1, &key), LK_OK);
    key.channel_bits = NULL;
    key.axis = LK_AXIS_TOKEN;
    key.group = 48;
    assert_int_equal(lk_plan_set_key(plan, 2, LK_ALL, &key), LK_OK);
    key.axis = LK_AXIS_CHANNEL;
    key.group = 32;
    key.clip = 0.7f;
    key.boost_channels = 9;
    key.boost_bits = 8;
    key.boost_ranking = LK_RANKING_QUERY_RANGE;
    assert_int_equal(lk_plan_set_key(plan, 5, 0, &key), LK_OK);
    float centers[64];
    for (uint32_t c = 0; c < 64; ++c)
        centers[c] = (float)c / 7.0f - 3.0f;
    assert_int_equal(lk_plan_set_key_centers(plan, 1, 2, centers), LK_OK);
    lk_value_rule value;
    assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
    value.bits = 1;
    value.group = 32;
    value.one_bit = LK_ONE_BIT_RANGE;
    value.clip = 0.55f;
    assert_int_equal(lk_plan_set_value(plan, 4, 2, &value), LK_OK);
    const uint8_t rungs[] = {16, 8, 2};
    assert_int_equal(lk_plan_set_ladder(plan, 5, rungs, 3, 8), LK_OK);
    assert_int_equal(lk_plan_set_layer_budget(plan, 5, 12345678901), LK_OK);
    assert_int_equal(lk_plan_set_metadata(plan, 3, LK_METADATA_F8), LK_OK);
    assert_int_equal(lk_plan_set_key_rotation(plan, 3, LK_ROTATION_HADAMARD), LK_OK);
    assert_int_equal(lk_plan_set_key_rotation(plan, 5, LK_ROTATION_HADAMARD), LK_OK);
    assert_int_equal(lk_plan_set_pages(plan, 64), LK_OK);
    assert_int_equal(lk_plan_set_recent(plan, 48, 200), LK_OK);
    assert_int_equal(lk_plan_set_name(plan, "a \"rich\" plan\\ \xc3\xbc"), LK_OK);
    assert_int_equal(lk_plan_validate(plan, &m->geometry), LK_OK);
    return plan;
}

static void expect_round_trip(const lk_plan *plan, const struct model *m) {
    char *once = write_json(plan);
    lk_plan *again = NULL;
    const lk_status status = read_json(once, strlen(once), &again);
    if (status != LK_OK)
        fail_msg("%s: %s", lk_status_name(status), sentence());
    char *twice = write_json(again);
    assert_string_equal(once, twice);
    assert_int_equal(lk_plan_validate(again, &m->geometry), LK_OK);
    const lk_plan_size a = plan_size(plan, 5000, 2, 100);
    const lk_plan_size b = plan_size(again, 5000, 2, 100);
    assert_memory_equal(&a, &b, sizeof a);
    free(once);
    free(twice);
    lk_plan_destroy(&again);
}

static void round_trips_are_exact(void **state) {
    (void)state;
    struct model m;
    for (uint32_t i = 0; lk_plan_preset_name(i); ++i) {
        make_model(&m, 7, 5, 3, 80);
        lk_plan *plan = make_plan(lk_plan_preset_name(i), &m);
        expect_round_trip(plan, &m);
        lk_plan_destroy(&plan);
    }
    lk_plan *plan = rich_plan(&m);
    expect_round_trip(plan, &m);
    lk_plan_destroy(&plan);
}

static void floats_read_back_identically(void **state) {
    (void)state;
    uint32_t bits = 1;
    for (uint32_t i = 0; i < 3000; ++i) {
        bits = (bits * 1664525u + 1013904223u) & 0x7fffffffu;
        if (bits >= 0x7f800000u)
            continue;
        struct model m;
        make_model(&m, 1, 1, 1, 32);
        memcpy(&m.layers[0].scale, &bits, sizeof bits);
        lk_plan *plan = make_plan("kivi2", &m);
        char *text = write_json(plan);
        lk_plan *again = NULL;
        assert_int_equal(read_json(text, strlen(text), &again), LK_OK);
        assert_int_equal(lk_plan_validate(again, &m.geometry), LK_OK);
        free(text);
        lk_plan_destroy(&again);
        lk_plan_destroy(&plan);
    }
}

static void numbers_of_keys_read_back_identically(void **state) {
    (void)state;
    uint32_t bits = 1;
    struct model m;
    make_model(&m, 1, 2, 1, 32);
    for (uint32_t i = 0; i < 200; ++i) {
        float centers[32], scales[32];
        for (uint32_t c = 0; c < 32; ++c) {
            bits = bits * 1664525u + 1013904223u;
            const uint32_t any = (0x33800000u + (bits >> 4) % 0x13ffe000u) | (bits & 0x80000000u);
            memcpy(&centers[c], &any, sizeof any);
            const float scale = fabsf(centers[c]);
            scales[c] = scale < 1e-4f ? 1e-4f : scale > 1e4f ? 1e4f : scale;
        }
        lk_plan *plan = make_plan("kivi2", &m);
        assert_int_equal(lk_plan_set_key_centers(plan, 0, 1, centers), LK_OK);
        assert_int_equal(lk_plan_set_key_scales(plan, 0, i % 2, scales), LK_OK);
        char *text = write_json(plan);
        lk_plan *again = NULL;
        assert_int_equal(read_json(text, strlen(text), &again), LK_OK);
        const float *found = centers;
        assert_int_equal(lk_plan_get_key_centers(again, 0, 0, &found), LK_OK);
        assert_null(found);
        assert_int_equal(lk_plan_get_key_centers(again, 0, 1, &found), LK_OK);
        assert_memory_equal(found, centers, sizeof centers);
        assert_int_equal(lk_plan_get_key_scales(again, 0, i % 2, &found), LK_OK);
        assert_memory_equal(found, scales, sizeof scales);
        assert_int_equal(lk_plan_get_key_scales(again, 0, 1 - i % 2, &found), LK_OK);
        assert_null(found);
        free(text);
        lk_plan_destroy(&again);
        lk_plan_destroy(&plan);
    }
}

static void capacities_are_kept(void **state) {
    (void)state;
    struct model m;
    lk_plan *plan = rich_plan(&m);
    size_t needed = 0;
    assert_int_equal(lk_plan_to_json(plan, NULL, 0, &needed), LK_OK);
    char *buffer = malloc(needed);
    assert_non_null(buffer);
    memset(buffer, 'x', needed);
    size_t again = 0;
    expect_failure(lk_plan_to_json(plan, buffer, needed - 1, &again), LK_E_ARGUMENT,
                   "capacity_bytes is");
    assert_int_equal(again, needed);
    for (size_t i = 0; i < needed; ++i)
        assert_int_equal(buffer[i], 'x');
    assert_int_equal(lk_plan_to_json(plan, buffer, needed, NULL), LK_OK);
    expect_failure(lk_plan_to_json(plan, NULL, 5, NULL), LK_E_ARGUMENT, "buffer is NULL");
    expect_failure(lk_plan_to_json(NULL, buffer, needed, NULL), LK_E_ARGUMENT, "plan is NULL");
    lk_plan *none = plan;
    expect_failure(lk_plan_from_json(NULL, 0, &none), LK_E_ARGUMENT, "text is NULL");
    assert_null(none);
    expect_failure(lk_plan_from_json(buffer, needed - 1, NULL), LK_E_ARGUMENT, "out is NULL");
    expect_failure(lk_plan_from_json(buffer, (64u << 20) + 1, &none), LK_E_ARGUMENT, "64 MiB");
    free(buffer);
    lk_plan_destroy(&plan);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    struct model m;
    lk_plan *plan = rich_plan(&m);
    char *text = write_json(plan);
    const size_t whole = strlen(text) - 1; /* the last byte is a line feed */
    for (size_t n = 0; n < whole; ++n) {
        lk_plan *read = plan;
        expect_failure(read_json(text, n, &read), LK_E_CORRUPT, "not JSON at byte");
        assert_null(read);
    }
    free(text);
    lk_plan_destroy(&plan);
}

/* Text with the first `from` replaced by `to`. */
static char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("\"%s\" is not in the text", from);
    const size_t before = (size_t)(at - text);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    assert_non_null(out);
    memcpy(out, text, before);
    memcpy(out + before, to, strlen(to));
    strcpy(out + before + strlen(to), at + strlen(from));
    return out;
}

struct change {
    const char *from;
    const char *to;
    lk_status status;
    const char *sentence;
};

static const struct change changes[] = {
    {"\"lowkey_plan\": 1", "\"lowkey_plan\": 2", LK_E_MISMATCH, "/lowkey_plan is 2"},
    {"\"lowkey_plan\": 1", "\"lowkey_plan\": 1.0", LK_E_CORRUPT, "/lowkey_plan is not there"},
    {"\"lowkey_plan\": 1", "\"lowkey_plan\": 18446744073709551616", LK_E_CORRUPT, "lowkey_plan"},
    {"\"lowkey_plan\": 1,", "", LK_E_CORRUPT, "/lowkey_plan is not there"},
    {"\"lowkey_plan\": 1", "\"lowkey_plan\": 2, \"new\": 1", LK_E_MISMATCH, "/lowkey_plan is 2"},
    {"\"name\"", "\"nome\"", LK_E_CORRUPT, "/nome is not a key"},
    {"\"name\": \"", "\"name\": \"\\u0000", LK_E_CORRUPT, "zero byte"},
    {"\"name\": \"", "\"name\": \"\\n", LK_E_CORRUPT, "/name has 0x0a"},
    {"\"name\": \"kitty\"", "\"name\": \"\"", LK_E_CORRUPT, "/name has 0 bytes"},
    {"\"name\": \"kitty\"", "\"name\": 3", LK_E_CORRUPT, "/name is of type number"},
    {"\"name\": \"kitty\",", "", LK_E_CORRUPT, "/name is missing"},
    {"\"name\": \"kitty\"", "\"name\": \"\xff\"", LK_E_CORRUPT, "not JSON at byte"},
    {"\"hash\": \"", "\"hash\": \"0", LK_E_CORRUPT, "/geometry/hash is"},
    {"\"query_heads\": 8", "\"query_heads\": 16", LK_E_MISMATCH, "/geometry/hash is"},
    {"\"query_heads\": 8", "\"query_heads\": 9", LK_E_CORRUPT,
     "/geometry/layers/0/query_heads is 9"},
    {"\"kv_heads\": 4", "\"kv_heads\": 4294967296", LK_E_CORRUPT,
     "/geometry/layers/0/kv_heads is 4294967296"},
    {"\"kv_heads\": 4", "\"kv_heads\": -4", LK_E_CORRUPT, "kv_heads is of type number, must be a"},
    {"\"head_dim\": 64", "\"head_dim\": 64.0", LK_E_CORRUPT, "head_dim is of type number, must be"},
    {"\"head_dim\": 64", "\"head_dim\": \"64\"", LK_E_CORRUPT, "head_dim is of type string"},
    {"\"window_sinks\": 0", "\"window_sinks\": 1", LK_E_CORRUPT,
     "/geometry/layers/0/window_sinks is 1"},
    {"\"scale\": 0", "\"scale\": 1e39", LK_E_CORRUPT, "/geometry/layers/0/scale is 1e+39"},
    {"\"scale\": 0", "\"scale\": 1e999", LK_E_CORRUPT, "not JSON at byte"},
    {"\"scale\": 0", "\"scale\": -1", LK_E_CORRUPT, "/scale is -1"},
    {"\"scale\": 0", "\"scale\": null", LK_E_CORRUPT, "/scale is of type null"},
    {"\"scale\": 0", "\"scale\": NaN", LK_E_CORRUPT, "not JSON at byte"},
    {"\"count\": 3", "\"count\": 0", LK_E_CORRUPT, "/geometry/layers/0/count is 0"},
    {"\"count\": 3", "\"count\": 1025", LK_E_CORRUPT, "/geometry/layers/0/count is 1025"},
    {"\"count\": 3", "\"count\": 2", LK_E_MISMATCH, "/geometry/hash"},
    {"\"page_tokens\": 128", "\"page_tokens\": 100", LK_E_CORRUPT, "/page_tokens is 100"},
    {"\"sink_tokens\": 32", "\"sink_tokens\": 33", LK_E_CORRUPT, "/sink_tokens is 33"},
    {"\"window_tokens\": 128", "\"window_tokens\": 65537", LK_E_CORRUPT, "/window_tokens is 65537"},
    {"\"window_tokens\": 128", "\"window_tokens\": true", LK_E_CORRUPT,
     "/window_tokens is of type boolean"},
    {"{\"count\": 3, \"metadata\"", "{\"count\": 2, \"metadata\"", LK_E_CORRUPT,
     "/layers has 2 layers, the geometry has 3"},
    {"{\"count\": 3, \"metadata\"", "{\"count\": 4, \"metadata\"", LK_E_CORRUPT,
     "/layers/0/count is 4"},
    {"\"metadata\": \"f16\"", "\"metadata\": \"f32\"", LK_E_CORRUPT,
     "/layers/0/metadata is \"f32\", must be \"f16\" or \"f8\""},
    {"\"metadata\": \"f16\"", "\"key_rotation\": \"qr\"", LK_E_CORRUPT,
     "/layers/0/key_rotation is \"qr\", must be \"none\" or \"hadamard\""},
    {"\"metadata\": \"f16\"", "\"key_rotation\": 1", LK_E_CORRUPT,
     "/layers/0/key_rotation is of type number"},
    {"\"metadata\": \"f16\"", "\"metadata\": \"f16\", \"rung\": 4", LK_E_CORRUPT,
     "/layers/0/rung is 4"},
    {"\"metadata\": \"f16\"", "\"ladder\": [8, 9], \"rung\": 8", LK_E_CORRUPT,
     "/layers/0/ladder/1 is 9"},
    {"\"metadata\": \"f16\"", "\"ladder\": [], \"rung\": 8", LK_E_CORRUPT, "/layers/0/rung is 8"},
    {"\"metadata\": \"f16\"", "\"ladder\": [8, 256], \"rung\": 8", LK_E_CORRUPT,
     "/layers/0/ladder/1 is 256"},
    {"\"metadata\": \"f16\"", "\"ladder\": {}, \"rung\": 8", LK_E_CORRUPT,
     "/layers/0/ladder is of type object"},
    {"\"metadata\": \"f16\"", "\"budget_bytes\": 9", LK_E_CORRUPT,
     "/layers/0/budget_bytes is there without /layers/0/ladder"},
    {"\"metadata\": \"f16\"", "\"ladder\": [8], \"rung\": 8, \"budget_bytes\": 0", LK_E_CORRUPT,
     "/layers/0/budget_bytes is 0, must be from 1 to 2^53"},
    {"\"metadata\": \"f16\"", "\"ladder\": [8], \"rung\": 8, \"budget_bytes\": 9007199254740993",
     LK_E_CORRUPT, "/layers/0/budget_bytes is 9007199254740993, must be from 1 to 2^53"},
    {"\"metadata\": \"f16\"", "\"ladder\": [8], \"rung\": 8, \"budget_bytes\": 1.5", LK_E_CORRUPT,
     "/layers/0/budget_bytes is of type number, must be a whole number of at least 1"},
    {"\"metadata\": \"f16\"", "\"ladder\": [8], \"rung\": 8, \"budget_bytes\": -1", LK_E_CORRUPT,
     "/layers/0/budget_bytes is of type number"},
    {"\"metadata\": \"f16\"", "\"ladder\": [8], \"rung\": 8, \"budget_bytes\": \"9\"", LK_E_CORRUPT,
     "/layers/0/budget_bytes is of type string"},
    {"{\"count\": 4, \"key\"", "{\"count\": 3, \"key\"", LK_E_CORRUPT,
     "/layers/0/heads has 3 KV heads"},
    {"{\"count\": 4, \"key\"", "{\"count\": 5, \"key\"", LK_E_CORRUPT,
     "/layers/0/heads/0/count is 5"},
    {"{\"bits\": 2", "{\"bits\": 5", LK_E_CORRUPT,
     "/layers/0/heads/0/key/bits is 5, must be one of 1, 2, 3, 4, 8, 16"},
    {"{\"bits\": 2", "{\"bits\": 2, \"bits\": 2", LK_E_CORRUPT,
     "/layers/0/heads/0/key/bits is there twice"},
    {"{\"bits\": 2", "{\"bits\": 2, \"zero\": 2", LK_E_CORRUPT,
     "/layers/0/heads/0/key/zero is not a key"},
    {"\"axis\": \"channel\"", "\"axis\": \"both\"", LK_E_CORRUPT,
     "/layers/0/heads/0/key/axis is \"both\""},
    {"\"group\": 0", "\"group\": 24", LK_E_CORRUPT, "/layers/0/heads/0/key/group is 24"},
    {"\"channels\": 16", "\"channels\": 64", LK_E_CORRUPT,
     "/layers/0/heads/0/key/boost/channels is 64"},
    {"\"channels\": 16", "\"channels\": 0", LK_E_CORRUPT, "/layers/0/heads/0/key/boost/bits is 4"},
    {"\"bits\": 4", "\"bits\": 2", LK_E_CORRUPT, "/layers/0/heads/0/key/boost/bits is 2"},
    {"\"score\": \"key\"", "\"score\": \"\\u0001\x7f\"", LK_E_CORRUPT, "boost/score is \"??\""},
    {"}, \"value\"", ", \"classes\": [2]}, \"value\"", LK_E_CORRUPT,
     "/layers/0/heads/0/key/boost/channels is 16, must be absent"},
    {"\"value\": {\"bits\": 2", "\"value\": {\"bits\": 7", LK_E_CORRUPT,
     "/layers/0/heads/0/value/bits is 7"},
    {"\"value\": {\"bits\": 2, \"group\": 0", "\"value\": {\"bits\": 2, \"group\": 80",
     LK_E_CORRUPT, "/layers/0/heads/0/value/group is 80, must be at most head_dim 64"},
    {"\"value\"", "\"valu\"", LK_E_CORRUPT, "/layers/0/heads/0/valu is not a key"},
    {"}, \"value\"", ", \"centers\": [1]}, \"value\"", LK_E_CORRUPT,
     "/layers/0/heads/0/key/centers has 1 elements, must have one for each of head_dim 64"},
    {"}, \"value\"", ", \"centers\": [1, -65505]}, \"value\"", LK_E_CORRUPT,
     "/layers/0/heads/0/key/centers/1 is -65505, must be from -65504 to 65504"},
    {"}, \"value\"", ", \"scales\": [1]}, \"value\"", LK_E_CORRUPT,
     "/layers/0/heads/0/key/scales has 1 elements, must have one for each of head_dim 64"},
    {"}, \"value\"", ", \"scales\": [1, 0]}, \"value\"", LK_E_CORRUPT,
     "/layers/0/heads/0/key/scales/1 is 0, must be from 0.0001 to 10000"},
    {"}, \"value\"", ", \"scales\": [1e300]}, \"value\"", LK_E_CORRUPT,
     "/layers/0/heads/0/key/scales/0 is 3.40282e+38, must be from 0.0001 to 10000"},
    {"}, \"value\"", ", \"centers\": [null]}, \"value\"", LK_E_CORRUPT,
     "/layers/0/heads/0/key/centers/0 is of type null"},
    {"}, \"value\"", ", \"centers\": 0}, \"value\"", LK_E_CORRUPT,
     "/layers/0/heads/0/key/centers is of type number"},
    {"}, \"value\"", ", \"one_bit\": \"mean\"}, \"value\"", LK_E_CORRUPT,
     "/layers/0/heads/0/key/one_bit is \"mean\", must be \"deviation\" or \"range\""},
    {"\"value\": {", "\"value\": {\"one_bit\": 2, ", LK_E_CORRUPT,
     "/layers/0/heads/0/value/one_bit is of type number"},
    {"}, \"value\"", ", \"clip\": 0}, \"value\"", LK_E_CORRUPT,
     "/layers/0/heads/0/key/clip is 0, must be above 0 and at most 1"},
    {"\"value\": {", "\"value\": {\"clip\": 1.5, ", LK_E_CORRUPT,
     "/layers/0/heads/0/value/clip is 1.5, must be above 0 and at most 1"},
    {"\"value\": {", "\"value\": {\"clip\": \"most\", ", LK_E_CORRUPT,
     "/layers/0/heads/0/value/clip is of type string"},
    {"]}]\n}", "]}]\n} x", LK_E_CORRUPT, "not JSON at byte"},
};

static const struct change chunk_changes[] = {
    {"\"tokens\": 32", "\"tokens\": 7", LK_E_CORRUPT, "/chunks/tokens is 7, must be from 8 to 256"},
    {"\"tokens\": 32", "\"tokens\": 48", LK_E_CORRUPT,
     "/chunks/tokens is 48, must be a divisor or a multiple of /page_tokens 128"},
    {"\"tokens\": 32, ", "", LK_E_CORRUPT, "/chunks/tokens is missing"},
    {"\"low\": 2", "\"low\": 1", LK_E_CORRUPT, "/chunks/low is 1, must be one of 2, 4, 8, 16"},
    {"\"middle\": 4", "\"middle\": 16", LK_E_CORRUPT, "/chunks/high is 16, must be one of"},
    {"\"middle\": 4", "\"middle\": 4, \"mid\": 4", LK_E_CORRUPT, "/chunks/mid is not a key"},
    {"\"alpha\": 0", "\"alpha\": 1", LK_E_CORRUPT, "/chunks/alpha is 1.6 and beta 0.1"},
    {"\"alpha\": 0", "\"alpha\": -0", LK_E_CORRUPT, "/chunks/alpha is -0.6"},
    {"\"beta\": 0.1", "\"beta\": null, \"x\": 0.1", LK_E_CORRUPT, "/chunks/x is not a key"},
    {"\"reorder\": true", "\"reorder\": 1", LK_E_CORRUPT,
     "/chunks/reorder is of type number, must be true or false"},
    {"\"reorder\": true", "\"reorder\": false", LK_E_CORRUPT,
     "/chunks/tokens is 32, must be /page_tokens 128 with /chunks/reorder false"},
    {"\"hold\": true", "\"hold\": \"no\"", LK_E_CORRUPT, "/chunks/hold is of type string"},
    {"\"metadata\": \"f16\"", "\"ladder\": [8], \"rung\": 8, \"budget_bytes\": 9", LK_E_CORRUPT,
     "/layers/0/budget_bytes is 9, must not be there with /chunks"},
    {"\"chunks\": {", "\"chunk\": {", LK_E_CORRUPT, "/chunk is not a key"},
};

static void expect_refusals(const char *preset, const struct change *list, size_t n) {
    struct model m;
    make_model(&m, 3, 4, 2, 64);
    lk_plan *plan = make_plan(preset, &m);
    char *text = write_json(plan);
    for (size_t i = 0; i < n; ++i) {
        char *bad = replaced(text, list[i].from, list[i].to);
        lk_plan *read = plan;
        const lk_status status = read_json(bad, strlen(bad), &read);
        if (status != list[i].status || !strstr(sentence(), list[i].sentence))
            fail_msg("%s for %s: %s \"%s\"", list[i].to, list[i].from, lk_status_name(status),
                     sentence());
        assert_null(read);
        free(bad);
    }
    free(text);
    lk_plan_destroy(&plan);
}

static void wrong_values_are_named_by_their_path(void **state) {
    (void)state;
    expect_refusals("kitty", changes, sizeof changes / sizeof *changes);
    expect_refusals("cocktail", chunk_changes, sizeof chunk_changes / sizeof *chunk_changes);
}

static void classes_are_checked(void **state) {
    (void)state;
    struct model m;
    lk_plan *plan = rich_plan(&m);
    char *text = write_json(plan);
    const struct change wrong[] = {
        {"\"classes\": [2, 3, 1", "\"classes\": [2, 3, 2", LK_E_CORRUPT,
         "/layers/0/heads/1/key/classes puts 2 channels at 3 bits"},
        {"\"classes\": [2, 3, 1", "\"classes\": [2, 3", LK_E_CORRUPT,
         "key/classes has 63 elements, must have one for each of head_dim 64"},
        {"\"classes\": [2, 3, 1", "\"classes\": [2, 3, 6", LK_E_CORRUPT,
         "/layers/0/heads/1/key/classes/2 is 6"},
        {"\"classes\": [2, 3, 1", "\"classes\": [2, 3, [1]", LK_E_CORRUPT,
         "/layers/0/heads/1/key/classes/2 is of type array"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        char *bad = replaced(text, wrong[i].from, wrong[i].to);
        lk_plan *read = NULL;
        expect_failure(read_json(bad, strlen(bad), &read), wrong[i].status, wrong[i].sentence);
        free(bad);
    }
    free(text);
    lk_plan_destroy(&plan);
}

/* prefix, n times middle, suffix */
static void expect_repeated(const char *prefix, const char *middle, size_t n, const char *suffix,
                            const char *part) {
    const size_t length = strlen(middle);
    char *text = malloc(strlen(prefix) + n * length + strlen(suffix) + 1);
    assert_non_null(text);
    strcpy(text, prefix);
    char *end = text + strlen(prefix);
    for (size_t i = 0; i < n; ++i, end += length)
        memcpy(end, middle, length);
    strcpy(end, suffix);
    lk_plan *read = NULL;
    expect_failure(read_json(text, strlen(text), &read), LK_E_CORRUPT, part);
    assert_null(read);
    free(text);
}

static void depth_and_size_are_bounded(void **state) {
    (void)state;
    expect_repeated("", "[", 1000000, "", "nested deeper than 32");
    expect_repeated("", "{\"a\":", 1000000, "", "nested deeper than 32");
    expect_repeated("{\"lowkey_plan\":1,\"name\":", "[", 31, "", "not JSON at byte");
    expect_repeated("{\"lowkey_plan\":1,\"name\":", "[", 32, "", "nested deeper than 32");
    expect_repeated("[", "1,", 1000000, "1]", "/lowkey_plan is not there");
    expect_repeated("{\"lowkey_plan\":1,\"name\":\"", "n", 1000000, "\"}", "has 1000000 bytes");
    expect_repeated("{\"lowkey_plan\":", "9", 1000000, "}", "");
    expect_repeated("{\"lowkey_plan\":1,\"", "k", 1000000, "\":1}", "kkk... is not a key");
    char *text = malloc(64 * 1024);
    assert_non_null(text);
    size_t n = (size_t)sprintf(text, "{\"lowkey_plan\":1");
    for (int i = 0; i < 1000; ++i)
        n += (size_t)sprintf(text + n, ",\"k%d\":0", i);
    lk_plan *read = NULL;
    expect_failure(read_json(text, n, &read), LK_E_CORRUPT, "more than 64 keys");
    free(text);
    const char *nothing[] = {"",   " ", "null",           "1",  "\"a\"", "[]",
                             "{}", "{", "\xef\xbb\xbf{}", "\0{"};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; ++i)
        assert_int_equal(read_json(nothing[i], strlen(nothing[i]), &read), LK_E_CORRUPT);
}

static void every_changed_byte_is_survived(void **state) {
    (void)state;
    struct model m;
    lk_plan *plan = rich_plan(&m);
    char *text = write_json(plan);
    const size_t length = strlen(text);
    const char bytes[] = {0, '0', '9', '"', ',', '{', ']', '-', (char)0x80, (char)0xff};
    for (size_t at = 0; at < length; ++at) {
        const char kept = text[at];
        for (size_t b = 0; b < sizeof bytes; ++b) {
            text[at] = bytes[b];
            lk_plan *read = NULL;
            const lk_status status = read_json(text, length, &read);
            if (status == LK_OK)
                assert_int_equal(lk_plan_validate(read, NULL), LK_OK);
            else
                assert_true(!read && (status == LK_E_CORRUPT || status == LK_E_MISMATCH));
            lk_plan_destroy(&read);
        }
        text[at] = kept;
    }
    free(text);
    lk_plan_destroy(&plan);
}

static void optional_members_have_defaults(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 1, 1, 1, 64);
    lk_plan *plan = make_plan("kivi2", &m);
    char *text = write_json(plan);
    const char *hash = strstr(text, "\"hash\": \"") + 9;
    char brief[512];
    snprintf(
        brief, sizeof brief,
        "{\"lowkey_plan\":1,\"name\":\"kivi2\",\"page_tokens\":128,\"sink_tokens\":0,"
        "\"window_tokens\":128,\"geometry\":{\"hash\":\"%.16s\",\"layers\":[{\"query_heads\":1,"
        "\"kv_heads\":1,\"head_dim\":64}]},\"layers\":[{\"heads\":[{\"key\":{\"bits\":2},"
        "\"value\":{\"bits\":2}}]}]}",
        hash);
    lk_plan *read = NULL;
    assert_int_equal(read_json(brief, strlen(brief), &read), LK_OK);
    char *again = write_json(read);
    assert_string_equal(text, again);
    free(text);
    free(again);
    lk_plan_destroy(&read);
    lk_plan_destroy(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips_are_exact),
        cmocka_unit_test(floats_read_back_identically),
        cmocka_unit_test(numbers_of_keys_read_back_identically),
        cmocka_unit_test(capacities_are_kept),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(wrong_values_are_named_by_their_path),
        cmocka_unit_test(classes_are_checked),
        cmocka_unit_test(depth_and_size_are_bounded),
        cmocka_unit_test(every_changed_byte_is_survived),
        cmocka_unit_test(optional_members_have_defaults),
    };
    return cmocka_run_group_tests_name("plan json", tests, NULL, NULL);
}
