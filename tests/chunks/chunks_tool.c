/* Lets another program score and class chunks: numbers as text on stdin, answers on stdout.
 *
 *   cosine DTYPE N D PAD query... embeddings...   scores; PAD elements stand between embeddings
 *   bm25 K1 B N STARTS... N_TOKENS tokens... N_QUERY query...
 *                                                 scores; N + 1 starts
 *   thresholds ALPHA BETA N scores...             T_low, T_high, classes
 *   quota ROW LOW HIGH BUDGET B_LOW B_MIDDLE B_HIGH N scores...
 *                                                 bytes, classes
 *   speed                                         CPU ms of 4096 x 768 cosines, by element type
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text_tool.h"

static void *zeroed(size_t n, size_t bytes) {
    void *memory = calloc(n ? n : 1, bytes);
    if (!memory)
        exit(1);
    return memory;
}

static float *floats(size_t n) {
    float *values = zeroed(n, sizeof *values);
    for (size_t i = 0; i < n; ++i)
        values[i] = (float)number();
    return values;
}

static uint32_t *wholes(size_t n) {
    uint32_t *values = zeroed(n, sizeof *values);
    for (size_t i = 0; i < n; ++i)
        values[i] = whole();
    return values;
}

/* Elements of 16 bits are given as their bits. */
static void *elements(lk_dtype dtype, size_t n) {
    if (dtype == LK_F32)
        return floats(n);
    uint16_t *bits = zeroed(n, sizeof *bits);
    for (size_t i = 0; i < n; ++i)
        bits[i] = (uint16_t)number();
    return bits;
}

static lk_tensor tensor(lk_dtype dtype, void *data, int64_t stride) {
    lk_tensor t;
    check(lk_tensor_init(&t, sizeof t));
    t.dtype = dtype;
    t.memory = LK_MEMORY_HOST;
    t.data = data;
    t.token_stride = stride;
    return t;
}

static void print_floats(const float *values, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i)
        printf("%.9g\n", (double)values[i]);
}

static void print_classes(const lk_chunk_class *classes, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i)
        printf("%u\n", classes[i]);
}

static void cosine(void) {
    const lk_dtype dtype = whole();
    const uint32_t n = whole();
    const uint32_t d = whole();
    const uint32_t stride = d + whole();
    void *q = elements(dtype, d);
    void *c = elements(dtype, (size_t)n * stride);
    float *scores = zeroed(n, sizeof *scores);
    const lk_tensor query = tensor(dtype, q, 0);
    const lk_tensor embeddings = tensor(dtype, c, stride);
    check(lk_chunks_cosine(&embeddings, &query, n, d, scores));
    print_floats(scores, n);
    free(q);
    free(c);
    free(scores);
}

static void bm25(void) {
    lk_bm25 options;
    check(lk_bm25_init(&options, sizeof options));
    options.k1 = number();
    options.b = number();
    const uint32_t n = whole();
    uint64_t *starts = zeroed((size_t)n + 1, sizeof *starts);
    for (uint32_t i = 0; i <= n; ++i)
        starts[i] = (uint64_t)number();
    const uint32_t n_tokens = whole();
    uint32_t *tokens = wholes(n_tokens);
    const uint32_t n_query = whole();
    uint32_t *query = wholes(n_query);
    float *scores = zeroed(n, sizeof *scores);
    check(lk_chunks_score_bm25(&options, tokens, starts, n, query, n_query, scores));
    print_floats(scores, n);
    free(starts);
    free(tokens);
    free(query);
    free(scores);
}

static void thresholds(void) {
    const double alpha = number();
    const double beta = number();
    const uint32_t n = whole();
    float *scores = floats(n);
    lk_chunk_class *classes = zeroed(n, sizeof *classes);
    double low;
    double high;
    check(lk_chunks_by_thresholds(scores, n, alpha, beta, classes, &low, &high));
    printf("%.17g\n%.17g\n", low, high);
    print_classes(classes, n);
    free(scores);
    free(classes);
}

static void by_quota(void) {
    lk_chunk_quota quota;
    check(lk_chunk_quota_init(&quota, sizeof quota));
    quota.block_chunks = whole();
    quota.low_share = number();
    quota.high_share = number();
    quota.budget_bytes = (uint64_t)number();
    quota.low_bytes = (uint64_t)number();
    quota.middle_bytes = (uint64_t)number();
    quota.high_bytes = (uint64_t)number();
    const uint32_t n = whole();
    float *scores = floats(n);
    lk_chunk_class *classes = zeroed(n, sizeof *classes);
    uint64_t bytes;
    check(lk_chunks_by_quota(scores, n, &quota, classes, &bytes));
    printf("%llu\n", (unsigned long long)bytes);
    print_classes(classes, n);
    free(scores);
    free(classes);
}

/* Processor time of this process: other programs of the machine do not count. */
static double cpu_ms(void) { return (double)clock() * 1e3 / CLOCKS_PER_SEC; }

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void speed(void) {
    enum { CHUNKS = 4096, CHANNELS = 768, RUNS = 41 };
    static const char *const names[] = {"", "f16", "bf16", "f32"};
    static float scores[CHUNKS];
    for (lk_dtype dtype = LK_F16; dtype <= LK_F32; ++dtype) {
        const size_t n = (size_t)(CHUNKS + 1) * CHANNELS;
        uint16_t *data = zeroed(n, 4);
        for (size_t i = 0; i < 2 * n; ++i) /* from 1 to 2 of each type */
            data[i] = dtype == LK_F16 ? (uint16_t)(0x3C00 + i % 999) : (uint16_t)(0x3F80 + i % 127);
        const size_t width = dtype == LK_F32 ? 2 : 1;
        const lk_tensor query = tensor(dtype, data, 0);
        const lk_tensor embeddings = tensor(dtype, data + CHANNELS * width, CHANNELS);
        double times[RUNS];
        for (int run = 0; run < RUNS; ++run) {
            const double start = cpu_ms();
            check(lk_chunks_cosine(&embeddings, &query, CHUNKS, CHANNELS, scores));
            times[run] = cpu_ms() - start;
        }
        qsort(times, RUNS, sizeof *times, compare);
        printf("%s: median %.3f ms, least %.3f ms of %d runs\n", names[dtype], times[RUNS / 2],
               times[0], RUNS);
        free(data);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } commands[] = {{"cosine", cosine},
                    {"bm25", bm25},
                    {"thresholds", thresholds},
                    {"quota", by_quota},
                    {"speed", speed}};
    for (size_t i = 0; argc == 2 && i < sizeof commands / sizeof *commands; ++i)
        if (!strcmp(argv[1], commands[i].name)) {
            commands[i].run();
            return 0;
        }
    fprintf(stderr, "usage: chunks-tool cosine|bm25|thresholds|quota|speed\n");
    return 2;
}
