/* What reading a plan costs: at most 64 bytes of memory and 1 us for each byte of text, and 1 MiB.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <pthread.h>

#include "cost/cost.h"
#include "plan_test.h"

enum { MOST_BYTES = 64, MOST_NS = 1000, FREE_BYTES = 1 << 20, FREE_NS = 1 << 20, DIM = 256 };

/* Instrumented code gets a part of each text. */
static uint32_t part_of(uint32_t n) { return cost_slowness() == 1 ? n : n / 16; }

struct text {
    char *data;
    size_t n, capacity;
};

static void put(struct text *t, const char *part) {
    const size_t length = strlen(part);
    if (!length)
        return;
    if (t->n + length > t->capacity) {
        t->capacity = 2 * (t->n + length);
        t->data = realloc(t->data, t->capacity);
        assert_non_null(t->data);
    }
    memcpy(t->data + t->n, part, length);
    t->n += length;
}

static void put_times(struct text *t, const char *part, size_t n) {
    for (size_t i = 0; i < n; ++i)
        put(t, part);
}

/* Reads the text, frees it, and holds what that cost against the bound. */
static lk_plan *read_within(struct text *t, const char *what) {
    lk_plan *plan = NULL;
    cost_begin();
    const lk_status status = lk_plan_from_json(t->data, t->n, &plan);
    const struct cost cost = cost_end();
    const uint64_t bytes = MOST_BYTES * (uint64_t)t->n + FREE_BYTES;
    const uint64_t ns = (MOST_NS * (uint64_t)t->n + FREE_NS) * cost_slowness();
    printf("%-42s %9zu bytes of text: %10llu of memory, %8.3f ms, %s\n", what, t->n,
           (unsigned long long)cost.bytes, (double)cost.ns / 1e6, lk_status_name(status));
    if (cost.bytes > bytes || cost.ns > ns)
        fail_msg("%s: %llu bytes and %llu ns, at most %llu and %llu", what,
                 (unsigned long long)cost.bytes, (unsigned long long)cost.ns,
                 (unsigned long long)bytes, (unsigned long long)ns);
    assert_true((status == LK_OK) == (plan != NULL));
    free(t->data);
    *t = (struct text){0};
    return plan;
}

static void put_numbers(struct text *t, const char *name, const char *number) {
    put(t, ",\"");
    put(t, name);
    put(t, "\":[");
    put(t, number);
    for (int c = 1; c < DIM; ++c) {
        put(t, ",");
        put(t, number);
    }
    put(t, "]");
}

/* The beginning of a plan of n layers of n_heads KV heads, up to its layers. */
static void put_head(struct text *t, uint32_t n_layers, uint32_t n_heads) {
    lk_layer *layers = calloc(n_layers, sizeof *layers);
    assert_non_null(layers);
    for (uint32_t l = 0; l < n_layers; ++l) {
        assert_int_equal(lk_layer_init(&layers[l], sizeof layers[l]), LK_OK);
        layers[l].n_query_heads = layers[l].n_kv_heads = n_heads;
        layers[l].head_dim = DIM;
    }
    lk_geometry geometry;
    assert_int_equal(lk_geometry_init(&geometry, sizeof geometry), LK_OK);
    geometry.n_layers = n_layers;
    geometry.layers = layers;
    lk_plan *plan = NULL;
    assert_int_equal(lk_plan_preset("fp16", &geometry, &plan), LK_OK);
    char *json = write_json(plan);
    *strstr(json, "  \"layers\": [") = 0;
    put(t, json);
    free(json);
    free(layers);
    lk_plan_destroy(&plan);
}

static void put_head_run(struct text *t, uint32_t count, const char *center) {
    char begin[64];
    snprintf(begin, sizeof begin, "{\"count\":%u,\"key\":{\"bits\":2", count);
    put(t, begin);
    put_numbers(t, "classes", "2");
    put_numbers(t, "centers", center);
    put_numbers(t, "scales", "2");
    put(t, "},\"value\":{\"bits\":2}}");
}

static void counts_are_kept_as_counts(void **state) {
    (void)state;
    struct text t = {0};
    put_head(&t, 1024, 1024);
    put(&t, "\"layers\":[{\"count\":1024,\"heads\":[");
    put_head_run(&t, 1024, "1");
    put(&t, "]}]}");
    lk_plan *plan = read_within(&t, "1024 x 1024 heads with numbers of channels");
    assert_non_null(plan);
    assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);
    const float *first = NULL, *last = NULL;
    assert_int_equal(lk_plan_get_key_centers(plan, 0, 0, &first), LK_OK);
    assert_int_equal(lk_plan_get_key_centers(plan, 1023, 1023, &last), LK_OK);
    assert_true(first[0] == 1 && last[DIM - 1] == 1);
    char *json = write_json(plan);
    assert_true(strlen(json) < 8000);
    free(json);
    lk_plan_destroy(&plan);
}

static void heads_of_a_run_of_layers_are_read_once(void **state) {
    (void)state;
    struct text t = {0};
    put_head(&t, 1024, 1024);
    put(&t, "\"layers\":[{\"count\":1024,\"heads\":[");
    for (int h = 0; h < 1024; ++h) {
        put(&t, h ? "," : "");
        put_head_run(&t, 1, h % 2 ? "1" : "3");
    }
    put(&t, "]}]}");
    lk_plan *plan = read_within(&t, "1024 layers of 1024 heads that differ");
    assert_non_null(plan);
    lk_plan_destroy(&plan);
    put_head(&t, part_of(1024), 1024);
    put(&t, "\"layers\":[");
    for (uint32_t l = 0; l < part_of(1024); ++l) {
        put(&t, l ? ",{\"heads\":[" : "{\"heads\":[");
        put_times(&t, "{\"key\":{\"bits\":2},\"value\":{\"bits\":2}},", 511);
        put_times(&t, "{\"key\":{\"bits\":4},\"value\":{\"bits\":2}},", 512);
        put(&t, "{\"key\":{\"bits\":8},\"value\":{\"bits\":2}}]}");
    }
    put(&t, "]}");
    plan = read_within(&t, "1024 x 1024 elements of heads");
    assert_non_null(plan);
    lk_plan_destroy(&plan);
}

static void layers_of_one_element_have_one_shape(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 2, 1, 1, 64);
    m.layers[1].head_dim = 128;
    lk_plan *plan = make_plan("fp16", &m);
    char *json = write_json(plan);
    char *layers = strstr(json, "  \"layers\": [\n");
    assert_non_null(layers);
    struct text t = {0};
    *layers = 0;
    put(&t, json);
    put(&t,
        "\"layers\":[{\"count\":2,\"heads\":[{\"key\":{\"bits\":2},\"value\":{\"bits\":2}}]}]}");
    lk_plan *read = NULL;
    expect_failure(lk_plan_from_json(t.data, t.n, &read), LK_E_CORRUPT,
                   "/layers/0/heads is for layers of head_dim 64 and 128");
    free(t.data);
    free(json);
    lk_plan_destroy(&plan);
}

static void text_without_a_plan_is_cheap(void **state) {
    (void)state;
    const struct {
        const char *begin, *part, *what;
    } cases[] = {
        {"[", "{},", "{},{},..."},
        {"[", "[],", "[],[],..."},
        {"[", "0,", "0,0,..."},
        {"[", "-1,", "-1,-1,..."},
        {"[", "\"\",", "\"\",\"\",..."},
        {"[", "{\"\":0},", "{\"\":0},..."},
        {"[", "{\"\":{\"\":{}}},", "{\"\":{\"\":{}}},..."},
        {"\"", "a", "a long string"},
        {"\"", "\\u0041", "a long string of escapes"},
        {"", "1", "a long number"},
        {"", "[", "a deep array"},
        {"{\"lowkey_plan\":1,\"name\":[", "{},", "{},{},... as a name"},
        {"{\"lowkey_plan\":1,\"name\":\"a\",\"page_tokens\":128,\"sink_tokens\":0,"
         "\"window_tokens\":0,\"geometry\":{\"hash\":\"0123456789abcdef\",\"layers\":[",
         "{\"query_heads\":1,\"kv_heads\":1,\"head_dim\":32},", "layers without an end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
        for (int ends = 0; ends < 2; ++ends) {
            struct text t = {0};
            put(&t, cases[i].begin);
            put_times(&t, cases[i].part, part_of(8u << 20) / strlen(cases[i].part));
            if (ends)
                put(&t, *cases[i].begin == '{' ? "0]}" : "0]");
            assert_null(read_within(&t, cases[i].what));
        }
}

/* Setters write rules anew; what they no longer refer to does not add up. */
static void setters_hold_little(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 4, 8, 1, 64);
    float centers[64] = {0};
    lk_key_rule key;
    uint8_t bits[64];
    cost_begin();
    lk_plan *plan = make_plan("kivi2", &m);
    for (uint32_t i = 0; i < 20000; ++i) {
        centers[i % 64] = (float)(i % 1000);
        memset(bits, i % 2 ? 2 : 4, sizeof bits);
        assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
        key.channel_bits = bits;
        assert_int_equal(lk_plan_set_key(plan, i % 4, i / 4 % 8, &key), LK_OK);
        assert_int_equal(lk_plan_set_key_centers(plan, i % 4, i / 4 % 8, centers), LK_OK);
        assert_int_equal(lk_plan_set_key_scales(plan, LK_ALL, i % 8, NULL), LK_OK);
    }
    const struct cost cost = cost_end();
    lk_plan_destroy(&plan);
    if (cost.bytes > 128 << 10)
        fail_msg("20000 changes took %llu bytes", (unsigned long long)cost.bytes);
}

/* Bytes of a thread's stack that lk_plan_bytes() touches. */
enum { STACK = 512 << 10, PAINT = 0xa5 };

static void *sizes_on_a_small_stack(void *given) {
    lk_plan_size size;
    if (lk_plan_size_init(&size, sizeof size) != LK_OK ||
        lk_plan_bytes(given, 100000, 4, 512, &size) != LK_OK)
        return given;
    return NULL;
}

static void *nothing(void *given) {
    (void)given;
    return NULL;
}

/* Bytes of stack that a thread touches, those of its start and of its libraries' own data included.
 */
static size_t stack_of(void *(*run)(void *), void *given) {
    unsigned char *stack = aligned_alloc(4096, STACK);
    assert_non_null(stack);
    memset(stack, PAINT, STACK);
    pthread_attr_t attr;
    pthread_t thread;
    void *failed = NULL;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstack(&attr, stack, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attr, run, given), 0);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    size_t untouched = 0;
    while (untouched < STACK && stack[untouched] == PAINT)
        ++untouched;
    pthread_attr_destroy(&attr);
    free(stack);
    return STACK - untouched;
}

static void sizes_take_little_stack(void **state) {
    (void)state;
    struct model m;
    make_model(&m, 3, 4, 2, 64);
    m.layers[1].window_tokens = 1024;
    lk_plan *plan = make_plan("pm-kvq", &m);
    const size_t idle = stack_of(nothing, NULL);
    const size_t used = stack_of(sizes_on_a_small_stack, plan);
    printf("lk_plan_bytes() takes %zu bytes of stack\n", used - idle);
    if (cost_slowness() == 1) /* a sanitizer's frames are larger */
        assert_true(used - idle <= 16 << 10);
    lk_plan_destroy(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_kept_as_counts),
        cmocka_unit_test(heads_of_a_run_of_layers_are_read_once),
        cmocka_unit_test(layers_of_one_element_have_one_shape),
        cmocka_unit_test(text_without_a_plan_is_cheap),
        cmocka_unit_test(setters_hold_little),
        cmocka_unit_test(sizes_take_little_stack),
    };
    return cmocka_run_group_tests_name("plan cost", tests, NULL, NULL);
}
