// lk_chunks_score_cosine() against sums in double precision, and what it refuses. --bench, the last
// argument, prints the time of 4096 chunks of 768 channels instead.
//
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "rig.h"

#define CHUNKS 37
#define PAD 8
#define GUARD 7.25f

static float random_value(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)((int32_t)(*state >> 20) - 2048) / 512;  // what FP16 and BF16 hold nearly
}

// What the element type holds of f.
static float held(float f, lk_dtype dtype) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits &= dtype == LK_BF16 ? 0xFFFF0000u : dtype == LK_F16 ? 0xFFFFE000u : 0xFFFFFFFFu;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void place(rig *r, lk_tensor *tensor, lk_dtype dtype, const float *values, size_t n,
                  uint32_t stride) {
    rig_tensor(r, tensor, rig_place_values(r, values, n, dtype), 1, stride);
    tensor->dtype = dtype;
}

typedef struct cosine_case {
    uint32_t n_chunks;
    uint32_t n_channels;
    float *chunks;  // [n_chunks][n_channels + PAD]
    float *query;
    lk_tensor embeddings;
    lk_tensor query_tensor;
    lk_tensor scores;  // every second element is a guard
} cosine_case;

static void open_case(rig *r, cosine_case *c, uint32_t n_chunks, uint32_t n_channels) {
    c->n_chunks = n_chunks;
    c->n_channels = n_channels;
    const size_t n = (size_t)n_chunks * (n_channels + PAD);
    c->chunks = malloc(n * sizeof(float));
    c->query = malloc(n_channels * sizeof(float));
    assert_true(c->chunks && c->query);
    uint32_t state = n_channels;
    for (size_t i = 0; i < n; ++i)
        c->chunks[i] = random_value(&state);
    for (uint32_t i = 0; i < n_channels; ++i)
        c->query[i] = random_value(&state);
    memset(r, 0, sizeof *r);
    rig_open(r);
}

static void place_case(rig *r, cosine_case *c, lk_dtype dtype, lk_dtype query_dtype) {
    const uint32_t stride = c->n_channels + PAD;
    place(r, &c->embeddings, dtype, c->chunks, (size_t)c->n_chunks * stride, stride);
    place(r, &c->query_tensor, query_dtype, c->query, c->n_channels, 0);
    float *guards = malloc(2 * c->n_chunks * sizeof *guards);
    assert_non_null(guards);
    for (uint32_t i = 0; i < 2 * c->n_chunks; ++i)
        guards[i] = GUARD;
    rig_tensor(r, &c->scores, rig_place(r, guards, 2 * c->n_chunks * sizeof *guards), 1, 2);
    free(guards);
}

static lk_status score(rig *r, const cosine_case *c) {
    return lk_chunks_score_cosine(r->context, r->device->queue, &c->embeddings, &c->query_tensor,
                                  c->n_chunks, c->n_channels, &c->scores);
}

static void read_scores(rig *r, const cosine_case *c, float *scores) {
    float *pairs = malloc(2 * c->n_chunks * sizeof *pairs);
    assert_non_null(pairs);
    r->device->get(pairs, rig_first(r, &c->scores), 2 * c->n_chunks * sizeof *pairs);
    for (uint32_t i = 0; i < c->n_chunks; ++i) {
        scores[i] = pairs[2 * i];
        assert_true(pairs[2 * i + 1] == GUARD);
    }
    free(pairs);
}

static void close_case(rig *r, cosine_case *c) {
    rig_close(r);
    free(c->chunks);
    free(c->query);
}

static void compare(rig *r, const cosine_case *c, lk_dtype dtype, lk_dtype query_dtype) {
    float scores[CHUNKS];
    assert_int_equal(score(r, c), LK_OK);
    read_scores(r, c, scores);
    for (uint32_t i = 0; i < c->n_chunks; ++i) {
        double dot = 0, squares = 0, query_squares = 0;
        for (uint32_t k = 0; k < c->n_channels; ++k) {
            const double x = (double)held(c->chunks[i * (c->n_channels + PAD) + k], dtype);
            const double q = (double)held(c->query[k], query_dtype);
            dot += x * q;
            squares += x * x;
            query_squares += q * q;
        }
        // A lane adds n / 32 or more terms, and each is rounded.
        const double bound = (c->n_channels / 16.0 + 16) * 0x1p-24;
        const double wanted = dot / sqrt(squares * query_squares);
        if (!(fabs((double)scores[i] - wanted) <= bound))
            fail_msg("%u channels of types %u and %u: the score of chunk %u is %g, expected %g",
                     c->n_channels, dtype, query_dtype, i, (double)scores[i], wanted);
    }
}

static void scores_are_cosines(void **state) {
    (void)state;
    static const uint32_t channels[] = {1, 31, 768, 1030};
    for (size_t d = 0; d < sizeof channels / sizeof *channels; ++d) {
        rig r;
        cosine_case c;
        open_case(&r, &c, CHUNKS, channels[d]);
        for (lk_dtype dtype = LK_F16; dtype <= LK_F32; ++dtype) {
            const lk_dtype query_dtype = dtype == LK_F32 ? LK_F16 : dtype + 1;
            place_case(&r, &c, dtype, query_dtype);
            compare(&r, &c, dtype, query_dtype);
        }
        close_case(&r, &c);
    }
}

// Squares beyond FP32's range, at both ends, of chunks and of the query.
static void any_scale_scores(void **state) {
    (void)state;
    static const float scales[] = {1e-24f, 1e-30f, 1e21f, 1e36f};
    for (size_t s = 0; s < sizeof scales / sizeof *scales; ++s) {
        rig r;
        cosine_case c;
        open_case(&r, &c, CHUNKS, 100);
        for (uint32_t i = 0; i < CHUNKS * (100 + PAD); ++i)
            c.chunks[i] *= scales[s];
        place_case(&r, &c, LK_F32, LK_F32);
        compare(&r, &c, LK_F32, LK_F32);
        for (uint32_t i = 0; i < 100; ++i)
            c.query[i] *= scales[s];
        place_case(&r, &c, LK_F32, LK_F32);
        compare(&r, &c, LK_F32, LK_F32);
        close_case(&r, &c);
    }
}

// The CPU refuses them, a device gives NaN, which the classes refuse.
static void chunks_without_direction_are_reported(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, 0};
    for (size_t b = 0; b < 3; ++b) {
        rig r;
        cosine_case c;
        open_case(&r, &c, CHUNKS, 70);
        if (bad[b] == 0)
            memset(c.chunks + 5 * (70 + PAD), 0, 70 * sizeof(float));
        else
            c.chunks[5 * (70 + PAD) + 66] = bad[b];
        place_case(&r, &c, LK_F32, LK_F32);
        float scores[CHUNKS];
        if (r.device->backend == LK_BACKEND_CPU) {
            assert_int_equal(score(&r, &c), LK_E_DATA);
            rig_sentence("the embedding of chunk 5");
        } else {
            lk_chunk_class classes[CHUNKS];
            assert_int_equal(score(&r, &c), LK_OK);
            read_scores(&r, &c, scores);
            for (uint32_t i = 0; i < CHUNKS; ++i)
                assert_int_equal(isnan(scores[i]) != 0, i == 5);
            assert_int_equal(lk_chunks_by_thresholds(scores, CHUNKS, 0.6, 0.1, classes, NULL, NULL),
                             LK_E_DATA);
            rig_sentence("chunk 5");
        }
        close_case(&r, &c);
    }
}

static void expect_refusal(rig *r, const cosine_case *c, lk_status status, const char *part) {
    assert_int_equal(score(r, c), status);
    rig_sentence(part);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    rig r;
    cosine_case good;
    open_case(&r, &good, CHUNKS, 16);
    place_case(&r, &good, LK_F32, LK_F32);
    assert_int_equal(lk_chunks_score_cosine(NULL, NULL, &good.embeddings, &good.query_tensor, 1, 1,
                                            &good.scores),
                     LK_E_ARGUMENT);
    cosine_case c = good;
    c.n_chunks = 0;
    expect_refusal(&r, &c, LK_E_ARGUMENT, "n_chunks is 0");
    c = good;
    c.n_channels = 0;
    expect_refusal(&r, &c, LK_E_ARGUMENT, "n_channels is 0");
    c = good;
    c.embeddings.dtype = 7;
    expect_refusal(&r, &c, LK_E_ARGUMENT, "embeddings.dtype");
    c = good;
    c.query_tensor.memory = rig_other_memory();
    expect_refusal(&r, &c, LK_E_UNSUPPORTED, "query.memory");
    c = good;
    c.scores.dtype = LK_F16;
    expect_refusal(&r, &c, LK_E_ARGUMENT, "scores.dtype is 1, not LK_F32");
    c = good;
    c.scores.token_stride = 0;
    expect_refusal(&r, &c, LK_E_ARGUMENT, "scores with token_stride 0");
    c = good;
    c.scores = c.embeddings;
    expect_refusal(&r, &c, LK_E_ARGUMENT, "scores overlaps embeddings");
    compare(&r, &good, LK_F32, LK_F32);
    close_case(&r, &good);
}

static double now_us(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare_times(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

// Many calls, then one read that waits: the time of a call among others.
static void bench(void) {
    enum { N = 4096, D = 768, RUNS = 21, CALLS = 50 };
    for (lk_dtype dtype = LK_F16; dtype <= LK_F32; ++dtype) {
        rig r;
        cosine_case c;
        double times[RUNS];
        open_case(&r, &c, N, D);
        place_case(&r, &c, dtype, dtype);
        float *scores = malloc(N * sizeof *scores);
        assert_non_null(scores);
        for (uint32_t run = 0; run < RUNS; ++run) {
            read_scores(&r, &c, scores);
            const double start = now_us();
            for (uint32_t i = 0; i < CALLS; ++i)
                assert_int_equal(score(&r, &c), LK_OK);
            read_scores(&r, &c, scores);
            times[run] = (now_us() - start) / CALLS;
        }
        qsort(times, RUNS, sizeof *times, compare_times);
        printf("%-4s 4096 x 768: median %.1f us, least %.1f us\n",
               dtype == LK_F16    ? "f16"
               : dtype == LK_BF16 ? "bf16"
                                  : "f32",
               times[RUNS / 2], times[0]);
        free(scores);
        close_case(&r, &c);
    }
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    if (!strcmp(argv[argc - 1], "--bench")) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_cosines),
        cmocka_unit_test(any_scale_scores),
        cmocka_unit_test(chunks_without_direction_are_reported),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests_name("cosine", tests, NULL, NULL);
}
