/* Runs the calibrator for another program: numbers as text on stdin, results on stdout.
 *
 *   clusters N r...            classes and centroids of channel ranges (a head of N channels)
 *   probe HQ HKV D T PREFIX PERIOD SINKS LOCAL WINDOW WINDOW_SINKS SCALE SOFT_CAP HAS_LOGITS
 *         logits... q... k...  the retrieval scores of the KV heads
 *   stats HQ HKV D T q... k... the bytes of the statistics
 *   sensitivity HQ HKV D T q... k... v... gk... gv...
 *                              for each KV head at 8, 4 and 2 bits: by gradients of K, of V, and by
 *                              the output with K, with V
 *   rope INTERLEAVED CHANNELS BASE SCALE H D T x...
 *                              x turned to positions t * SCALE, and turned back
 *   scales HQ HKV D T KEY_BITS VALUE_BITS STEP q... k... v...
 *                              the error of each exponent, the best exponent, its scales
 *   speed                      GB/s of keys of 8 heads of 128 channels, by element type
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text_tool.h"

static float *numbers(size_t n) {
    float *values = malloc(n * sizeof *values);
    if (!values)
        exit(1);
    for (size_t i = 0; i < n; ++i)
        values[i] = (float)number();
    return values;
}

static lk_tensor tensor(float *data, uint32_t n_heads, uint32_t head_dim) {
    lk_tensor t;
    check(lk_tensor_init(&t, sizeof t));
    t.dtype = LK_F32;
    t.memory = LK_MEMORY_HOST;
    t.data = data;
    t.token_stride = (int64_t)n_heads * head_dim;
    t.head_stride = head_dim;
    return t;
}

static lk_calibrator *open_model(lk_layer *layer) {
    lk_geometry geometry;
    lk_calibrator *calibrator;
    check(lk_geometry_init(&geometry, sizeof geometry));
    geometry.n_layers = 1;
    geometry.layers = layer;
    check(lk_calibrator_create(&geometry, &calibrator));
    return calibrator;
}

static lk_layer read_layer(void) {
    lk_layer layer;
    check(lk_layer_init(&layer, sizeof layer));
    layer.n_query_heads = whole();
    layer.n_kv_heads = whole();
    layer.head_dim = whole();
    return layer;
}

static void clusters(void) {
    lk_layer layer;
    check(lk_layer_init(&layer, sizeof layer));
    layer.n_query_heads = layer.n_kv_heads = 1;
    layer.head_dim = whole();
    float *keys = calloc(2 * (size_t)layer.head_dim, sizeof *keys);
    if (!keys)
        exit(1);
    for (uint32_t c = 0; c < layer.head_dim; ++c)
        keys[layer.head_dim + c] = (float)number();
    lk_calibrator *calibrator = open_model(&layer);
    const lk_tensor t = tensor(keys, 1, layer.head_dim);
    uint8_t classes[256];
    float centroids[3];
    check(lk_calibrator_add_keys(calibrator, 0, &t, 2));
    check(lk_calibrator_get_classes(calibrator, 0, 0, LK_SCOPE_HEAD, classes, centroids));
    for (uint32_t c = 0; c < layer.head_dim; ++c)
        printf("%u ", classes[c]);
    printf("%.9g %.9g %.9g\n", (double)centroids[0], (double)centroids[1], (double)centroids[2]);
    lk_calibrator_destroy(&calibrator);
    free(keys);
}

static void probe(void) {
    lk_layer layer = read_layer();
    const uint32_t n_tokens = whole();
    lk_probe how;
    check(lk_probe_init(&how, sizeof how));
    how.prefix_tokens = whole();
    how.period_tokens = whole();
    how.sink_tokens = whole();
    how.local_tokens = whole();
    layer.window_tokens = whole();
    layer.window_sink_tokens = whole();
    layer.scale = (float)number();
    layer.soft_cap = (float)number();
    float *logits = whole() ? numbers(layer.n_query_heads) : NULL;
    layer.sink_logits = logits;
    float *q = numbers((size_t)n_tokens * layer.n_query_heads * layer.head_dim);
    float *k = numbers((size_t)n_tokens * layer.n_kv_heads * layer.head_dim);
    lk_calibrator *calibrator = open_model(&layer);
    const lk_tensor queries = tensor(q, layer.n_query_heads, layer.head_dim);
    const lk_tensor keys = tensor(k, layer.n_kv_heads, layer.head_dim);
    check(lk_calibrator_add_probe(calibrator, 0, &how, &queries, &keys, n_tokens));
    for (uint32_t h = 0; h < layer.n_kv_heads; ++h) {
        float score;
        check(lk_calibrator_get_retrieval(calibrator, 0, h, &score));
        printf("%.9g ", (double)score);
    }
    printf("\n");
    lk_calibrator_destroy(&calibrator);
    free(logits);
    free(q);
    free(k);
}

static void stats(void) {
    lk_layer layer = read_layer();
    const uint32_t n_tokens = whole();
    float *q = numbers((size_t)n_tokens * layer.n_query_heads * layer.head_dim);
    float *k = numbers((size_t)n_tokens * layer.n_kv_heads * layer.head_dim);
    lk_calibrator *calibrator = open_model(&layer);
    const lk_tensor queries = tensor(q, layer.n_query_heads, layer.head_dim);
    const lk_tensor keys = tensor(k, layer.n_kv_heads, layer.head_dim);
    check(lk_calibrator_add_queries(calibrator, 0, &queries, n_tokens));
    check(lk_calibrator_add_keys(calibrator, 0, &keys, n_tokens));
    size_t n_bytes;
    check(lk_calibrator_to_bytes(calibrator, NULL, 0, &n_bytes));
    void *bytes = malloc(n_bytes);
    if (!bytes)
        exit(1);
    check(lk_calibrator_to_bytes(calibrator, bytes, n_bytes, &n_bytes));
    fwrite(bytes, 1, n_bytes, stdout);
    lk_calibrator_destroy(&calibrator);
    free(bytes);
    free(q);
    free(k);
}

static void sensitivity(void) {
    lk_layer layer = read_layer();
    const uint32_t n_tokens = whole();
    const uint32_t heads[5] = {layer.n_query_heads, layer.n_kv_heads, layer.n_kv_heads,
                               layer.n_kv_heads, layer.n_kv_heads};
    float *data[5];
    lk_tensor t[5];
    for (int i = 0; i < 5; ++i) {
        data[i] = numbers((size_t)n_tokens * heads[i] * layer.head_dim);
        t[i] = tensor(data[i], heads[i], layer.head_dim);
    }
    lk_calibrator *calibrator = open_model(&layer);
    check(lk_calibrator_add_attention(calibrator, 0, &t[0], &t[1], &t[2], n_tokens));
    check(lk_calibrator_add_gradients(calibrator, 0, 0, &t[1], &t[3], n_tokens));
    check(lk_calibrator_add_gradients(calibrator, 0, 1, &t[2], &t[4], n_tokens));
    for (uint32_t h = 0; h < layer.n_kv_heads; ++h)
        for (lk_sensitivity kind = LK_SENSITIVITY_GRADIENT; kind <= LK_SENSITIVITY_OUTPUT; ++kind)
            for (uint32_t is_value = 0; is_value < 2; ++is_value)
                for (uint32_t bits = 8; bits >= 2; bits /= 2) {
                    double value;
                    check(lk_calibrator_get_sensitivity(calibrator, 0, h, is_value, kind, bits,
                                                        &value));
                    printf("%.12g ", value);
                }
    printf("\n");
    lk_calibrator_destroy(&calibrator);
    for (int i = 0; i < 5; ++i)
        free(data[i]);
}

static void print(const float *values, size_t n) {
    for (size_t i = 0; i < n; ++i)
        printf("%.9g ", (double)values[i]);
}

static void turn(void) {
    lk_rope how;
    check(lk_rope_init(&how, sizeof how));
    how.pairing = whole() ? LK_ROPE_INTERLEAVED : LK_ROPE_HALVES;
    how.channels = whole();
    how.base = number();
    const double scale = number();
    const uint32_t n_heads = whole(), head_dim = whole(), n_tokens = whole();
    const size_t n = (size_t)n_tokens * n_heads * head_dim;
    float *x = numbers(n);
    const lk_tensor t = tensor(x, n_heads, head_dim);
    check(lk_rope_apply(&how, &t, n_tokens, n_heads, head_dim, 0, scale, x));
    print(x, n);
    check(lk_rope_invert(&how, &t, n_tokens, n_heads, head_dim, 0, scale, x));
    print(x, n);
    printf("\n");
    free(x);
}

static void scales(void) {
    lk_layer layer = read_layer();
    const uint32_t n_tokens = whole();
    lk_scale_search search;
    check(lk_scale_search_init(&search, sizeof search));
    search.key_bits = whole();
    search.value_bits = whole();
    search.query_step = whole();
    float *q = numbers((size_t)n_tokens * layer.n_query_heads * layer.head_dim);
    float *k = numbers((size_t)n_tokens * layer.n_kv_heads * layer.head_dim);
    float *v = numbers((size_t)n_tokens * layer.n_kv_heads * layer.head_dim);
    const lk_tensor queries = tensor(q, layer.n_query_heads, layer.head_dim);
    const lk_tensor keys = tensor(k, layer.n_kv_heads, layer.head_dim);
    const lk_tensor values = tensor(v, layer.n_kv_heads, layer.head_dim);
    lk_calibrator *calibrator = open_model(&layer);
    check(lk_calibrator_add_keys(calibrator, 0, &keys, n_tokens));
    check(
        lk_calibrator_add_scale_search(calibrator, 0, &search, &queries, &keys, &values, n_tokens));
    double error, exponent;
    for (uint32_t i = 0; i < LK_SCALE_EXPONENTS; ++i) {
        check(lk_calibrator_get_scale_error(calibrator, 0, i, NULL, &error));
        printf("%.9g ", error);
    }
    float best[256];
    check(lk_calibrator_get_key_scales(calibrator, 0, 0, NULL, &exponent));
    printf("%.9g ", exponent);
    for (uint32_t h = 0; h < layer.n_kv_heads; ++h) {
        check(lk_calibrator_get_key_scales(calibrator, 0, h, best, NULL));
        print(best, layer.head_dim);
    }
    printf("\n");
    lk_calibrator_destroy(&calibrator);
    free(q);
    free(k);
    free(v);
}

/* Rows, tokens of the vocabulary, logits of the reference, others -> bits. */
static void divergence(void) {
    const uint32_t n_rows = whole(), n = whole();
    float *rows[2];
    for (int i = 0; i < 2; ++i) {
        rows[i] = malloc((size_t)n_rows * n * sizeof(float));
        if (!rows[i])
            exit(1);
        for (size_t at = 0; at < (size_t)n_rows * n; ++at)
            rows[i][at] = (float)number();
    }
    const lk_tensor exact = tensor(rows[0], 1, n), other = tensor(rows[1], 1, n);
    double bits = 0;
    check(lk_divergence(&exact, &other, n_rows, n, &bits));
    printf("%.17g\n", bits);
    free(rows[0]);
    free(rows[1]);
}

/* Bytes per second of one core's time, so that other programs do not count. */
static void speed(void) {
    enum { T = 65536, H = 8, D = 128 };
    static const char *const names[] = {"", "F16", "BF16", "F32"};
    const size_t n = (size_t)T * H * D;
    uint8_t *data = malloc(n * 4);
    if (!data)
        exit(1);
    lk_layer layer;
    check(lk_layer_init(&layer, sizeof layer));
    layer.n_query_heads = layer.n_kv_heads = H;
    layer.head_dim = D;
    for (lk_dtype dtype = LK_F16; dtype <= LK_F32; ++dtype) {
        for (size_t i = 0; i < n; ++i) { /* 1 to 2 and -1 to -2 in each type */
            const uint32_t bits = (uint32_t)i * 2654435761u;
            if (dtype == LK_F32)
                ((uint32_t *)data)[i] = 0x3F800000u | bits >> 9 | (bits & 1) << 31;
            else
                ((uint16_t *)data)[i] =
                    (uint16_t)((dtype == LK_F16 ? 0x3C00u | bits >> 22 : 0x3F80u | bits >> 25) |
                               (bits & 1) << 15);
        }
        lk_calibrator *calibrator = open_model(&layer);
        lk_tensor t = tensor((float *)data, H, D);
        t.dtype = dtype;
        double best = 1e9;
        for (int i = 0; i < 5; ++i) {
            const clock_t begin = clock();
            check(lk_calibrator_add_keys(calibrator, 0, &t, T));
            const double taken = (double)(clock() - begin) / CLOCKS_PER_SEC;
            best = taken < best ? taken : best;
        }
        printf("%-4s %.2f GB/s\n", names[dtype],
               (double)n * (dtype == LK_F32 ? 4 : 2) / best / 1e9);
        lk_calibrator_destroy(&calibrator);
    }
    free(data);
}

int main(int argc, char **argv) {
    const char *command = argc == 2 ? argv[1] : "";
    if (!strcmp(command, "clusters"))
        clusters();
    else if (!strcmp(command, "probe"))
        probe();
    else if (!strcmp(command, "stats"))
        stats();
    else if (!strcmp(command, "sensitivity"))
        sensitivity();
    else if (!strcmp(command, "rope"))
        turn();
    else if (!strcmp(command, "scales"))
        scales();
    else if (!strcmp(command, "divergence"))
        divergence();
    else if (!strcmp(command, "speed"))
        speed();
    else
        return 2;
    return 0;
}
