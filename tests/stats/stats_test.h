/* What the tests of calibration share.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STATS_TEST_H
#define STATS_TEST_H

#include "plan/plan_test.h"

struct bytes {
    uint8_t *data;
    size_t n;
};

static inline lk_calibrator *make_calibrator(uint32_t n_layers, uint32_t query_heads,
                                             uint32_t kv_heads, uint32_t head_dim) {
    struct model m;
    make_model(&m, n_layers, kv_heads, query_heads / kv_heads, head_dim);
    lk_calibrator *calibrator = NULL;
    assert_int_equal(lk_calibrator_create(&m.geometry, &calibrator), LK_OK);
    assert_non_null(calibrator);
    return calibrator;
}

static inline lk_tensor host_tensor(lk_dtype dtype, void *data, uint32_t n_heads,
                                    uint32_t head_dim) {
    lk_tensor tensor;
    assert_int_equal(lk_tensor_init(&tensor, sizeof tensor), LK_OK);
    tensor.dtype = dtype;
    tensor.memory = LK_MEMORY_HOST;
    tensor.data = data;
    tensor.token_stride = (int64_t)n_heads * head_dim;
    tensor.head_stride = head_dim;
    return tensor;
}

/* Numbers from -1 to 1, the same for the same seed. */
static inline float *random_values(size_t n, uint32_t seed) {
    float *values = malloc(n * sizeof *values);
    assert_non_null(values);
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < n; ++i) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(int32_t)state / 2147483648.0f;
    }
    return values;
}

static inline lk_layer layer_of(const lk_calibrator *calibrator, uint32_t layer) {
    lk_layer layers[MAX_TEST_LAYERS];
    uint32_t n = 0;
    assert_int_equal(lk_layer_init(&layers[0], sizeof layers[0]), LK_OK);
    assert_int_equal(lk_calibrator_get_geometry(calibrator, layers, MAX_TEST_LAYERS, &n), LK_OK);
    assert_true(layer < n);
    return layers[layer];
}

/* [n_tokens][heads][head_dim] */
static inline void add_keys(lk_calibrator *calibrator, uint32_t layer, float *keys,
                            uint32_t n_tokens) {
    const lk_layer shape = layer_of(calibrator, layer);
    const lk_tensor tensor = host_tensor(LK_F32, keys, shape.n_kv_heads, shape.head_dim);
    assert_int_equal(lk_calibrator_add_keys(calibrator, layer, &tensor, n_tokens), LK_OK);
}

static inline void add_queries(lk_calibrator *calibrator, uint32_t layer, float *queries,
                               uint32_t n_tokens) {
    const lk_layer shape = layer_of(calibrator, layer);
    const lk_tensor tensor = host_tensor(LK_F32, queries, shape.n_query_heads, shape.head_dim);
    assert_int_equal(lk_calibrator_add_queries(calibrator, layer, &tensor, n_tokens), LK_OK);
}

static inline void expect_channel(const lk_calibrator *calibrator, uint32_t layer, uint32_t kv_head,
                                  lk_statistic statistic, uint32_t channel, float want) {
    float values[256];
    assert_int_equal(lk_calibrator_get_channels(calibrator, layer, kv_head, statistic, values),
                     LK_OK);
    if (values[channel] != want)
        fail_msg("statistic %u of channel %u is %.9g, expected %.9g", statistic, channel,
                 (double)values[channel], (double)want);
}

static inline struct bytes write_bytes(const lk_calibrator *calibrator) {
    struct bytes out = {NULL, 0};
    assert_int_equal(lk_calibrator_to_bytes(calibrator, NULL, 0, &out.n), LK_OK);
    out.data = malloc(out.n);
    assert_non_null(out.data);
    assert_int_equal(lk_calibrator_to_bytes(calibrator, out.data, out.n, &out.n), LK_OK);
    return out;
}

/* Where a tensor's bytes are in a file whose header is plain. */
static inline uint8_t *tensor_data(const struct bytes *bytes, const char *name) {
    char key[64];
    uint64_t header_bytes;
    memcpy(&header_bytes, bytes->data, sizeof header_bytes);
    char *header = malloc(header_bytes + 1);
    assert_non_null(header);
    memcpy(header, bytes->data + 8, header_bytes);
    header[header_bytes] = 0;
    snprintf(key, sizeof key, "\"%s\"", name);
    const char *at = strstr(header, key);
    assert_non_null(at);
    at = strstr(at, "data_offsets\":[");
    assert_non_null(at);
    const unsigned long long offset = strtoull(at + 15, NULL, 10);
    free(header);
    return bytes->data + 8 + header_bytes + offset;
}

#endif
