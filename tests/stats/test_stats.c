/* Samples, statistics and their bytes: what is read back, and every documented error.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "stats_test.h"

static void statistics_are_those_of_the_samples(void **state) {
    (void)state;
    float keys[3 * 2 * 32];
    for (uint32_t i = 0; i < 3 * 2 * 32; ++i)
        keys[i] = 0.5f;
    keys[0 * 64 + 32 + 5] = -4; /* head 1, channel 5 */
    keys[2 * 64 + 32 + 5] = 8;
    lk_calibrator *calibrator = make_calibrator(2, 4, 2, 32);
    add_keys(calibrator, 1, keys, 3);
    expect_channel(calibrator, 1, 1, LK_STATISTIC_KEY_MIN, 5, -4);
    expect_channel(calibrator, 1, 1, LK_STATISTIC_KEY_MAX, 5, 8);
    expect_channel(calibrator, 1, 1, LK_STATISTIC_KEY_RANGE, 5, 12);
    expect_channel(calibrator, 1, 1, LK_STATISTIC_KEY_MEAN, 5, 1.5f);
    expect_channel(calibrator, 1, 1, LK_STATISTIC_KEY_MAGNITUDE, 5, 12.5f / 3);
    expect_channel(calibrator, 1, 0, LK_STATISTIC_KEY_RANGE, 5, 0);
    expect_channel(calibrator, 1, 0, LK_STATISTIC_KEY_MEAN, 31, 0.5f);
    uint64_t n_keys = 9, n_queries = 9, n_rows = 9;
    assert_int_equal(lk_calibrator_get_counts(calibrator, 1, &n_keys, &n_queries, &n_rows), LK_OK);
    assert_int_equal(n_keys, 3);
    assert_int_equal(n_queries, 0);
    assert_int_equal(n_rows, 0);
    float queries[4 * 32];
    for (uint32_t i = 0; i < 4 * 32; ++i)
        queries[i] = i / 32 % 2 ? -3.0f : 1.0f; /* heads of a group: 1 and -3 */
    add_queries(calibrator, 1, queries, 1);
    expect_channel(calibrator, 1, 1, LK_STATISTIC_QUERY_MAGNITUDE, 9, 2);
    lk_calibrator_destroy(&calibrator);
    assert_null(calibrator);
    lk_calibrator_destroy(&calibrator);
    lk_calibrator_destroy(NULL);
}

/* One call, one per token, tokens backwards; strides; three element types: the same bytes. */
static void bytes_do_not_depend_on_how_samples_come(void **state) {
    (void)state;
    enum { T = 77, H = 3, D = 48 };
    float *keys = random_values(T * H * D, 11);
    uint16_t *halfs = malloc(T * H * D * sizeof *halfs);
    float *wide = calloc(T * H * D * 4, sizeof *wide);
    assert_true(halfs && wide);
    for (uint32_t i = 0; i < T * H * D; ++i) { /* whole numbers, exact in BF16 and FP16 */
        keys[i] = (float)(int)(keys[i] * 20);
        uint32_t bits;
        memcpy(&bits, keys + i, sizeof bits);
        halfs[i] = (uint16_t)(bits >> 16);
    }
    for (uint32_t t = 0; t < T; ++t) /* [H][T][D], each token in twice its space */
        for (uint32_t h = 0; h < H; ++h)
            memcpy(wide + (h * T + t) * 2 * D, keys + (t * H + h) * D, D * sizeof *wide);
    lk_calibrator *all[4];
    for (int i = 0; i < 4; ++i)
        all[i] = make_calibrator(1, H, H, D);
    add_keys(all[0], 0, keys, T);
    for (uint32_t t = T; t-- > 0;)
        add_keys(all[1], 0, keys + t * H * D, 1);
    lk_tensor tensor = host_tensor(LK_BF16, halfs, H, D);
    assert_int_equal(lk_calibrator_add_keys(all[2], 0, &tensor, T), LK_OK);
    tensor = host_tensor(LK_F32, wide, H, D);
    tensor.token_stride = 2 * D;
    tensor.head_stride = 2 * T * D;
    assert_int_equal(lk_calibrator_add_keys(all[3], 0, &tensor, T), LK_OK);
    struct bytes first = write_bytes(all[0]);
    for (int i = 1; i < 4; ++i) {
        struct bytes other = write_bytes(all[i]);
        assert_int_equal(other.n, first.n);
        assert_memory_equal(other.data, first.data, first.n);
        free(other.data);
    }
    for (int i = 0; i < 4; ++i)
        lk_calibrator_destroy(&all[i]);
    free(first.data);
    free(keys);
    free(halfs);
    free(wide);
}

static void faults_are_named_and_change_nothing(void **state) {
    (void)state;
    enum { T = 40, H = 2, D = 32 };
    lk_calibrator *calibrator = make_calibrator(3, 4, H, D);
    float *values = random_values(T * 4 * D, 3);
    add_keys(calibrator, 2, values, T);
    add_queries(calibrator, 2, values, T);
    struct bytes before = write_bytes(calibrator);
    const float bad[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3; ++i) {
        values[(37 * H + 1) * D + 9] = bad[i];
        lk_tensor tensor = host_tensor(LK_F32, values, H, D);
        expect_failure(lk_calibrator_add_keys(calibrator, 2, &tensor, T), LK_E_DATA,
                       "K of layer 2, head 1, channel 9, token 37");
        tensor = host_tensor(LK_F32, values, 4, D);
        expect_failure(lk_calibrator_add_queries(calibrator, 2, &tensor, T), LK_E_DATA,
                       "Q of layer 2, head 3, channel 9, token 18");
    }
    uint16_t halfs[2 * D] = {0};
    halfs[D + 3] = 0xFC00;
    lk_tensor tensor = host_tensor(LK_F16, halfs, H, D);
    expect_failure(lk_calibrator_add_keys(calibrator, 2, &tensor, 1), LK_E_DATA,
                   "head 1, channel 3, token 0");
    halfs[D + 3] = 0x7E01;
    expect_failure(lk_calibrator_add_keys(calibrator, 0, &tensor, 1), LK_E_DATA, "layer 0, head 1");
    struct bytes after = write_bytes(calibrator);
    assert_int_equal(before.n, after.n);
    assert_memory_equal(before.data, after.data, before.n);
    free(before.data);
    free(after.data);
    free(values);
    lk_calibrator_destroy(&calibrator);
}

static void tensors_of_another_shape_are_refused(void **state) {
    (void)state;
    float values[2 * 2 * 32] = {0};
    lk_calibrator *calibrator = make_calibrator(1, 2, 2, 32);
    const lk_tensor good = host_tensor(LK_F32, values, 2, 32);
    lk_tensor bad = good;
    expect_failure(lk_calibrator_add_keys(NULL, 0, &good, 1), LK_E_ARGUMENT, "calibrator is NULL");
    expect_failure(lk_calibrator_add_keys(calibrator, 1, &good, 1), LK_E_NOT_FOUND, "layer is 1");
    expect_failure(lk_calibrator_add_keys(calibrator, 0, NULL, 1), LK_E_ARGUMENT, "keys is NULL");
    expect_failure(lk_calibrator_add_keys(calibrator, 0, &good, 0), LK_E_ARGUMENT, "n_tokens is 0");
    bad.size = 8;
    expect_failure(lk_calibrator_add_keys(calibrator, 0, &bad, 1), LK_E_ARGUMENT, "keys.size");
    bad = good;
    bad.dtype = 7;
    expect_failure(lk_calibrator_add_queries(calibrator, 0, &bad, 1), LK_E_ARGUMENT,
                   "queries.dtype is 7");
    bad = good;
    bad.memory = LK_MEMORY_CUDA;
    expect_failure(lk_calibrator_add_keys(calibrator, 0, &bad, 1), LK_E_ARGUMENT, "host memory");
    bad = good;
    bad.data = NULL;
    expect_failure(lk_calibrator_add_keys(calibrator, 0, &bad, 1), LK_E_ARGUMENT, "data is NULL");
    bad = good;
    bad.data = (char *)values + 2;
    expect_failure(lk_calibrator_add_keys(calibrator, 0, &bad, 1), LK_E_ARGUMENT, "aligned");
    bad = good;
    bad.head_stride = -32;
    expect_failure(lk_calibrator_add_keys(calibrator, 0, &bad, 1), LK_E_ARGUMENT, "address space");
    bad = good;
    bad.token_stride = INT64_MAX;
    expect_failure(lk_calibrator_add_keys(calibrator, 0, &bad, 3), LK_E_ARGUMENT, "address space");
    bad = good;
    bad.flags = 1;
    expect_failure(lk_calibrator_add_keys(calibrator, 0, &bad, 1), LK_E_ARGUMENT, "flags");
    lk_calibrator_destroy(&calibrator);
}

static void what_was_not_fed_cannot_be_asked(void **state) {
    (void)state;
    float values[64] = {0};
    uint8_t classes[64];
    lk_calibrator *calibrator = make_calibrator(2, 2, 2, 32);
    expect_failure(lk_calibrator_get_channels(calibrator, 1, 0, LK_STATISTIC_KEY_MIN, values),
                   LK_E_STATE, "layer 1 has had no keys");
    expect_failure(
        lk_calibrator_get_channels(calibrator, 1, 0, LK_STATISTIC_QUERY_MAGNITUDE, values),
        LK_E_STATE, "layer 1 has had no queries");
    expect_failure(lk_calibrator_get_channels(calibrator, 1, 2, LK_STATISTIC_KEY_MIN, values),
                   LK_E_NOT_FOUND, "kv_head is 2");
    expect_failure(lk_calibrator_get_channels(calibrator, 1, 0, 7, values), LK_E_NOT_FOUND,
                   "statistic is 7");
    expect_failure(lk_calibrator_get_channels(calibrator, 1, 0, 1, NULL), LK_E_ARGUMENT, "values");
    expect_failure(lk_calibrator_get_classes(calibrator, 0, 0, LK_SCOPE_HEAD, classes, NULL),
                   LK_E_STATE, "no keys");
    expect_failure(lk_calibrator_get_classes(calibrator, 0, 0, 3, classes, NULL), LK_E_ARGUMENT,
                   "scope is 3");
    expect_failure(lk_calibrator_get_retrieval(calibrator, 0, 0, values), LK_E_STATE, "no probe");
    uint32_t n_layers = 0;
    lk_layer layers[2];
    expect_failure(lk_calibrator_get_geometry(calibrator, layers, 1, &n_layers), LK_E_ARGUMENT,
                   "capacity is 1");
    assert_int_equal(n_layers, 2);
    assert_int_equal(lk_layer_init(&layers[0], sizeof layers[0]), LK_OK);
    assert_int_equal(lk_calibrator_get_geometry(calibrator, layers, 2, &n_layers), LK_OK);
    assert_int_equal(layers[1].head_dim, 32);
    assert_int_equal(layers[1].size, sizeof layers[1]);
    lk_calibrator_destroy(&calibrator);
    struct model m;
    make_model(&m, 1, 2, 1, 32);
    m.layers[0].head_dim = 33;
    calibrator = (lk_calibrator *)&m;
    expect_failure(lk_calibrator_create(&m.geometry, &calibrator), LK_E_ARGUMENT, "head_dim is 33");
    assert_null(calibrator);
    const float logits[2] = {0, NAN};
    m.layers[0].head_dim = 32;
    m.layers[0].sink_logits = logits;
    expect_failure(lk_calibrator_create(&m.geometry, &calibrator), LK_E_ARGUMENT,
                   "geometry.layers[0].sink_logits[1]");
    expect_failure(lk_calibrator_create(NULL, &calibrator), LK_E_ARGUMENT, "geometry is NULL");
    expect_failure(lk_calibrator_create(&m.geometry, NULL), LK_E_ARGUMENT, "out is NULL");
}

static void probes_say_what_is_wrong(void **state) {
    (void)state;
    const uint32_t sentence[3] = {7, 8, 9}, prefix[1] = {1};
    uint32_t tokens[16];
    uint64_t n = 0;
    lk_probe probe;
    assert_int_equal(lk_probe_init(&probe, sizeof probe), LK_OK);
    assert_int_equal(probe.sink_tokens, 16);
    assert_int_equal(probe.local_tokens, 64);
    expect_failure(lk_probe_tokens(&probe, prefix, sentence, 2, tokens, 16, &n), LK_E_ARGUMENT,
                   "period_tokens is 0");
    probe.period_tokens = 3;
    expect_failure(lk_probe_tokens(&probe, prefix, sentence, 2, tokens, 16, &n), LK_E_ARGUMENT,
                   "local_tokens is 64, must be from 1 to 2");
    probe.local_tokens = 2;
    probe.prefix_tokens = 1;
    expect_failure(lk_probe_tokens(&probe, NULL, sentence, 2, tokens, 16, &n), LK_E_ARGUMENT,
                   "NULL");
    expect_failure(lk_probe_tokens(&probe, prefix, sentence, 1, tokens, 16, &n), LK_E_ARGUMENT,
                   "n_repeats is 1");
    expect_failure(lk_probe_tokens(&probe, prefix, sentence, UINT32_MAX, tokens, 16, &n),
                   LK_E_ARGUMENT, "32-bit");
    expect_failure(lk_probe_tokens(&probe, prefix, sentence, 3, tokens, 9, &n), LK_E_ARGUMENT,
                   "capacity is 9");
    assert_int_equal(n, 10);
    assert_int_equal(lk_probe_tokens(&probe, prefix, sentence, 3, tokens, 16, &n), LK_OK);
    const uint32_t want[10] = {1, 7, 8, 9, 7, 8, 9, 7, 8, 9};
    assert_memory_equal(tokens, want, sizeof want);
    float *values = random_values(2 * 10 * 32, 4);
    lk_calibrator *calibrator = make_calibrator(1, 2, 1, 32);
    const lk_tensor q = host_tensor(LK_F32, values, 2, 32), k = host_tensor(LK_F32, values, 1, 32);
    expect_failure(lk_calibrator_add_probe(calibrator, 0, &probe, &q, &k, 6), LK_E_ARGUMENT,
                   "n_tokens is 6");
    values[5 * 32 + 2] = NAN;
    expect_failure(lk_calibrator_add_probe(calibrator, 0, &probe, &q, &k, 10), LK_E_DATA,
                   "Q of layer 0, head 1, channel 2, token 2");
    values[5 * 32 + 2] = 0;
    float score = -1;
    expect_failure(lk_calibrator_get_retrieval(calibrator, 0, 0, &score), LK_E_STATE, "no probe");
    assert_int_equal(lk_calibrator_add_probe(calibrator, 0, &probe, &q, &k, 10), LK_OK);
    assert_int_equal(lk_calibrator_get_retrieval(calibrator, 0, 0, &score), LK_OK);
    assert_true(score >= 0 && score <= 1);
    free(values);
    lk_calibrator_destroy(&calibrator);
}

static lk_calibrator *fed_calibrator(void) {
    lk_calibrator *calibrator = make_calibrator(3, 4, 2, 32);
    float *values = random_values(24 * 4 * 32, 21);
    lk_probe probe;
    assert_int_equal(lk_probe_init(&probe, sizeof probe), LK_OK);
    probe.period_tokens = 8;
    probe.local_tokens = 4;
    probe.sink_tokens = 2;
    const lk_tensor q = host_tensor(LK_F32, values, 4, 32), k = host_tensor(LK_F32, values, 2, 32);
    for (uint32_t l = 0; l < 3; l += 2) {
        add_keys(calibrator, l, values, 24);
        add_queries(calibrator, l, values, 24);
        assert_int_equal(lk_calibrator_add_probe(calibrator, l, &probe, &q, &k, 24), LK_OK);
        assert_int_equal(lk_calibrator_add_gradients(calibrator, l, 0, &k, &k, 24), LK_OK);
        assert_int_equal(lk_calibrator_add_attention(calibrator, l, &q, &k, &k, 24), LK_OK);
    }
    assert_int_equal(lk_calibrator_add_gradients(calibrator, 1, 1, &k, &k, 24), LK_OK);
    free(values);
    return calibrator;
}

static void bytes_come_back(void **state) {
    (void)state;
    lk_calibrator *calibrator = fed_calibrator();
    struct bytes bytes = write_bytes(calibrator);
    assert_int_equal(bytes.n % 8, 0);
    lk_calibrator *again = NULL;
    /* Not aligned. */
    uint8_t *moved = malloc(bytes.n + 1);
    assert_non_null(moved);
    memcpy(moved + 1, bytes.data, bytes.n);
    assert_int_equal(lk_calibrator_from_bytes(moved + 1, bytes.n, &again), LK_OK);
    struct bytes twice = write_bytes(again);
    assert_int_equal(twice.n, bytes.n);
    assert_memory_equal(twice.data, bytes.data, bytes.n);
    float scores[2];
    assert_int_equal(lk_calibrator_get_retrieval(calibrator, 2, 1, &scores[0]), LK_OK);
    assert_int_equal(lk_calibrator_get_retrieval(again, 2, 1, &scores[1]), LK_OK);
    assert_memory_equal(&scores[0], &scores[1], sizeof *scores);
    size_t needed = 0;
    expect_failure(lk_calibrator_to_bytes(again, moved, 16, &needed), LK_E_ARGUMENT,
                   "capacity_bytes is 16");
    assert_int_equal(needed, bytes.n);
    free(moved);
    free(bytes.data);
    free(twice.data);
    lk_calibrator_destroy(&calibrator);
    lk_calibrator_destroy(&again);
}

/* Every prefix, and every byte of the header flipped: a clear end, never a crash. */
static void broken_bytes_are_refused(void **state) {
    (void)state;
    lk_calibrator *calibrator = fed_calibrator();
    struct bytes bytes = write_bytes(calibrator);
    lk_calibrator *out = calibrator;
    uint64_t header_bytes;
    memcpy(&header_bytes, bytes.data, sizeof header_bytes);
    for (size_t n = 0; n < bytes.n; n += n < header_bytes + 16 ? 1 : 61) {
        uint8_t *cut = malloc(n + !n);
        assert_non_null(cut);
        memcpy(cut, bytes.data, n);
        assert_int_equal(lk_calibrator_from_bytes(cut, n, &out), LK_E_CORRUPT);
        assert_null(out);
        free(cut);
    }
    for (size_t at = 0; at < 8 + header_bytes; ++at) {
        const uint8_t old = bytes.data[at];
        bytes.data[at] = (uint8_t)(old ^ (1 + at % 127));
        if (lk_calibrator_from_bytes(bytes.data, bytes.n, &out) == LK_OK)
            lk_calibrator_destroy(&out);
        assert_null(out);
        bytes.data[at] = old;
    }
    free(bytes.data);
    lk_calibrator_destroy(&calibrator);
}

static void expect_corrupt(const char *header, const char *data, size_t n_data, lk_status status,
                           const char *part) {
    static uint8_t file[4096];
    const uint64_t n = strlen(header);
    memcpy(file, &n, sizeof n);
    memcpy(file + 8, header, n);
    memcpy(file + 8 + n, data, n_data);
    lk_calibrator *out = NULL;
    expect_failure(lk_calibrator_from_bytes(file, 8 + n + n_data, &out), status, part);
    assert_null(out);
}

#define META "\"__metadata__\":{\"format\":\"lowkey-statistics\",\"version\":\"1\"}"

static void hostile_headers_are_named(void **state) {
    (void)state;
    const char zeros[256] = {0};
    expect_corrupt("[]", zeros, 0, LK_E_CORRUPT, "not an object");
    expect_corrupt("{}", zeros, 0, LK_E_CORRUPT, "lowkey-statistics");
    expect_corrupt("{\"__metadata__\":{\"format\":\"lowkey-statistics\",\"version\":\"2\"}}", zeros,
                   0, LK_E_MISMATCH, "version is \"2\"");
    expect_corrupt("{" META "}", zeros, 0, LK_E_CORRUPT, "\"geometry\" is missing");
    expect_corrupt("{" META, zeros, 0, LK_E_CORRUPT, "not JSON at byte");
    expect_corrupt("{" META ",\"x\":[[[[[[]]]]]]}", zeros, 0, LK_E_CORRUPT, "nested");
    /* A model of 2^60 layers in 100 bytes allocates nothing. */
    expect_corrupt("{" META
                   ",\"geometry\":{\"dtype\":\"I64\",\"shape\":[1152921504606846976,5],"
                   "\"data_offsets\":[0,0]}}",
                   zeros, 0, LK_E_CORRUPT, "must be from 1 to 1024");
    expect_corrupt("{" META
                   ",\"geometry\":{\"dtype\":\"I64\",\"shape\":[1,5],"
                   "\"data_offsets\":[0,40]}}",
                   zeros, 40, LK_E_CORRUPT, "\"geometry_real\" is missing");
    expect_corrupt(
        "{" META
        ",\"geometry\":{\"dtype\":\"I64\",\"shape\":[1,5],\"data_offsets\":[0,40]},"
        "\"geometry_real\":{\"dtype\":\"F64\",\"shape\":[1,2],\"data_offsets\":[40,56]}}",
        zeros, 56, LK_E_CORRUPT, "layer 0: n_kv_heads is 0");
    expect_corrupt("{" META
                   ",\"geometry\":{\"dtype\":\"I64\",\"shape\":[1,5],\"data_offsets\":[0,41]}}",
                   zeros, 41, LK_E_CORRUPT, "not I64 [1][5]");
    expect_corrupt("{" META
                   ",\"geometry\":{\"dtype\":\"I64\",\"shape\":[1,5],\"data_offsets\":[8,48]}}",
                   zeros, 48, LK_E_CORRUPT, "hole");
    expect_corrupt("{" META
                   ",\"geometry\":{\"dtype\":\"I64\",\"shape\":[1,5],\"data_offsets\":[0,40]}}",
                   zeros, 48, LK_E_CORRUPT, "no tensor owns");
    expect_corrupt("{" META
                   ",\"geometry\":{\"dtype\":\"I64\",\"shape\":[-1,5],\"data_offsets\":[0,40]}}",
                   zeros, 40, LK_E_CORRUPT, "no whole number");
    expect_failure(lk_calibrator_from_bytes(NULL, 0, &(lk_calibrator *){NULL}), LK_E_ARGUMENT,
                   "NULL");
}

/* Statistics that no samples can have. */
static void impossible_statistics_are_refused(void **state) {
    (void)state;
    lk_calibrator *calibrator = fed_calibrator();
    struct bytes bytes = write_bytes(calibrator);
    lk_calibrator_destroy(&calibrator);
    const double bad[] = {NAN, INFINITY, 1e300};
    for (int i = 0; i < 3; ++i) {
        const char *const tensors[] = {"layer.0.key_sum",          "layer.0.key_abs_sum",
                                       "layer.2.query_abs_sum",    "layer.2.retrieval_sum",
                                       "layer.2.key_gradient_sum", "layer.0.output_square_sum"};
        for (int t = 0; t < 6; ++t) {
            if (t > 3 && i == 2)
                continue;
            uint8_t *at = tensor_data(&bytes, tensors[t]);
            double old;
            memcpy(&old, at + 8, sizeof old);
            memcpy(at + 8, &bad[i], sizeof old);
            expect_failure(lk_calibrator_from_bytes(bytes.data, bytes.n, &calibrator), LK_E_CORRUPT,
                           t < 2 ? "layer 0, KV head 0, channel 1" : tensors[t]);
            memcpy(at + 8, &old, sizeof old);
        }
    }
    uint8_t *low = tensor_data(&bytes, "layer.0.key_min");
    const uint16_t infinity = 0x7C00;
    memcpy(low, &infinity, sizeof infinity);
    expect_failure(lk_calibrator_from_bytes(bytes.data, bytes.n, &calibrator), LK_E_CORRUPT,
                   "KV head 0, channel 0");
    free(bytes.data);
}

static void sensitivities_fall_with_bits(void **state) {
    (void)state;
    lk_calibrator *calibrator = fed_calibrator();
    for (lk_sensitivity kind = LK_SENSITIVITY_GRADIENT; kind <= LK_SENSITIVITY_OUTPUT; ++kind) {
        double last = -1;
        for (uint32_t bits = 16; bits >= 2; bits /= 2) {
            double value = -1;
            assert_int_equal(lk_calibrator_get_sensitivity(calibrator, 2, 1, 0, kind, bits, &value),
                             LK_OK);
            assert_true(bits == 16 ? value == 0 : value > 2 * last);
            last = value;
        }
    }
    double value = -1;
    expect_failure(lk_calibrator_get_sensitivity(calibrator, 2, 1, 1, 1, 8, &value), LK_E_STATE,
                   "layer 2 has had no gradients of V");
    expect_failure(lk_calibrator_get_sensitivity(calibrator, 1, 1, 1, 2, 8, &value), LK_E_STATE,
                   "layer 1 has had no attention");
    expect_failure(lk_calibrator_get_sensitivity(calibrator, 2, 1, 0, 1, 3, &value), LK_E_ARGUMENT,
                   "bits is 3");
    expect_failure(lk_calibrator_get_sensitivity(calibrator, 2, 1, 2, 1, 8, &value), LK_E_ARGUMENT,
                   "is_value is 2");
    expect_failure(lk_calibrator_get_sensitivity(calibrator, 2, 1, 0, 3, 8, &value), LK_E_NOT_FOUND,
                   "kind is 3");
    expect_failure(lk_calibrator_get_sensitivity(calibrator, 2, 2, 0, 1, 8, &value), LK_E_NOT_FOUND,
                   "kv_head is 2");
    assert_true(value == -1);
    float values[4 * 32] = {0};
    values[33] = NAN;
    const lk_tensor good = host_tensor(LK_F32, values + 64, 2, 32);
    const lk_tensor bad = host_tensor(LK_F32, values, 2, 32);
    struct bytes before = write_bytes(calibrator);
    expect_failure(lk_calibrator_add_gradients(calibrator, 0, 0, &good, &bad, 1), LK_E_DATA,
                   "the gradient of K of layer 0, head 1, channel 1, token 0");
    expect_failure(lk_calibrator_add_gradients(calibrator, 0, 1, &bad, &good, 1), LK_E_DATA,
                   "V of layer 0, head 1");
    float queries[4 * 32] = {0};
    const lk_tensor q = host_tensor(LK_F32, queries, 4, 32);
    expect_failure(lk_calibrator_add_attention(calibrator, 0, &q, &good, &bad, 1), LK_E_DATA,
                   "V of layer 0, head 1");
    struct bytes after = write_bytes(calibrator);
    assert_int_equal(before.n, after.n);
    assert_memory_equal(before.data, after.data, before.n);
    free(before.data);
    free(after.data);
    lk_calibrator_destroy(&calibrator);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_are_those_of_the_samples),
        cmocka_unit_test(bytes_do_not_depend_on_how_samples_come),
        cmocka_unit_test(faults_are_named_and_change_nothing),
        cmocka_unit_test(tensors_of_another_shape_are_refused),
        cmocka_unit_test(what_was_not_fed_cannot_be_asked),
        cmocka_unit_test(probes_say_what_is_wrong),
        cmocka_unit_test(bytes_come_back),
        cmocka_unit_test(broken_bytes_are_refused),
        cmocka_unit_test(hostile_headers_are_named),
        cmocka_unit_test(impossible_statistics_are_refused),
        cmocka_unit_test(sensitivities_fall_with_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
