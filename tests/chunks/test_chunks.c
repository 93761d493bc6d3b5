/* Scores and classes of chunks: edges, and every refusal. What they are in general is compared
 * with NumPy (tests/second_opinion/chunks.py).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "plan/plan_test.h"

#define N 6

static lk_tensor host(lk_dtype dtype, void *data, int64_t stride) {
    lk_tensor t;
    assert_int_equal(lk_tensor_init(&t, sizeof t), LK_OK);
    t.dtype = dtype;
    t.memory = LK_MEMORY_HOST;
    t.data = data;
    t.token_stride = stride;
    return t;
}

static void expect_classes(const lk_chunk_class *classes, const char *wanted) {
    for (uint32_t i = 0; wanted[i]; ++i)
        if (classes[i] != (lk_chunk_class)(wanted[i] - '0'))
            fail_msg("the class of chunk %u is %u, expected %c", i, classes[i], wanted[i]);
}

static void cosine_has_exact_cases(void **state) {
    (void)state;
    float embeddings[4][3] = {{1, 0, 0}, {0, -2, 0}, {-3, 0, 0}, {1e-20f, 0, 0}};
    float query[3] = {7, 0, 0};
    float scores[4] = {9, 9, 9, 9};
    const lk_tensor c = host(LK_F32, embeddings, 3);
    const lk_tensor q = host(LK_F32, query, 0);
    assert_int_equal(lk_chunks_cosine(&c, &q, 4, 3, scores), LK_OK);
    const float wanted[4] = {1, 0, -1, 1};
    assert_memory_equal(scores, wanted, sizeof wanted);
    uint16_t halfs[2] = {0x0001, 0x8001}; /* the smallest of FP16 */
    const lk_tensor h = host(LK_F16, halfs, 1);
    assert_int_equal(lk_chunks_cosine(&h, &q, 2, 1, scores), LK_OK);
    assert_true(scores[0] == 1 && scores[1] == -1);
}

static void cosine_names_the_chunk_at_fault(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    float embeddings[N * 300];
    float query[300];
    float scores[N];
    const lk_tensor c = host(LK_F32, embeddings, 300);
    const lk_tensor q = host(LK_F32, query, 0);
    for (size_t i = 0; i < 300; ++i)
        query[i] = 1;
    for (size_t i = 0; i < 300 * N; ++i)
        embeddings[i] = (float)(i % 7) + 1;
    for (uint32_t chunk = 0; chunk < N; ++chunk)
        for (uint32_t k = 0; k < 3; ++k) {
            float *at = &embeddings[chunk * 300 + 97 * (k + 1)];
            const float kept = *at;
            char sentence_part[64];
            *at = bad[k];
            scores[0] = 5;
            snprintf(sentence_part, sizeof sentence_part, "chunk %u has an element", chunk);
            expect_failure(lk_chunks_cosine(&c, &q, N, 300, scores), LK_E_DATA, sentence_part);
            assert_true(scores[0] == 5);
            *at = kept;
        }
    memset(embeddings + 4 * 300, 0, 300 * sizeof *embeddings);
    expect_failure(lk_chunks_cosine(&c, &q, N, 300, scores), LK_E_DATA, "chunk 4 is all zeros");
    assert_int_equal(lk_chunks_cosine(&c, &q, 4, 300, scores), LK_OK);
    query[299] = NAN;
    expect_failure(lk_chunks_cosine(&c, &q, 4, 300, scores), LK_E_DATA,
                   "the query's embedding has");
    memset(query, 0, sizeof query);
    expect_failure(lk_chunks_cosine(&c, &q, 4, 300, scores), LK_E_DATA, "the query's embedding is");
    uint16_t infinite[2] = {0x3C00, 0x7C00};
    uint16_t one[2] = {0x3C00, 0x3C00};
    const lk_tensor h = host(LK_F16, infinite, 2);
    const lk_tensor unit = host(LK_F16, one, 0);
    expect_failure(lk_chunks_cosine(&h, &unit, 1, 2, scores), LK_E_DATA, "chunk 0 has");
}

static void cosine_refuses_wrong_arguments(void **state) {
    (void)state;
    float data[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    float scores[2];
    const lk_tensor good = host(LK_F32, data, 4);
    lk_tensor t = good;
    assert_int_equal(lk_chunks_cosine(NULL, NULL, 0, 4, NULL), LK_OK);
    expect_failure(lk_chunks_cosine(&good, &good, 2, 0, scores), LK_E_ARGUMENT, "n_channels");
    expect_failure(lk_chunks_cosine(&good, &good, 2, 4, NULL), LK_E_ARGUMENT, "scores");
    expect_failure(lk_chunks_cosine(NULL, &good, 2, 4, scores), LK_E_ARGUMENT, "embeddings");
    expect_failure(lk_chunks_cosine(&good, NULL, 2, 4, scores), LK_E_ARGUMENT, "query");
    t.memory = LK_MEMORY_CUDA;
    expect_failure(lk_chunks_cosine(&t, &good, 2, 4, scores), LK_E_ARGUMENT, "embeddings.memory");
    t = good;
    t.dtype = 9;
    expect_failure(lk_chunks_cosine(&good, &t, 2, 4, scores), LK_E_ARGUMENT, "query.dtype");
    t = good;
    t.token_stride = -4;
    expect_failure(lk_chunks_cosine(&t, &good, 2, 4, scores), LK_E_ARGUMENT, "token_stride -4");
    t.token_stride = INT64_MAX / 2;
    expect_failure(lk_chunks_cosine(&t, &good, 2, 4, scores), LK_E_ARGUMENT, "address space");
    t = good;
    t.data = (char *)data + 1;
    expect_failure(lk_chunks_cosine(&t, &good, 1, 4, scores), LK_E_ARGUMENT, "aligned");
}

static void bm25_ranks_the_chunk_with_the_rare_token(void **state) {
    (void)state;
    const uint32_t tokens[12] = {1, 1, 2, 9, 1, 2, 2, 1, 1, 2, 3, 3};
    const uint32_t query[2] = {1, 9};
    float scores[3];
    lk_bm25 options;
    assert_int_equal(lk_bm25_init(&options, sizeof options), LK_OK);
    assert_int_equal(options.chunk_tokens, 32);
    assert_true(options.k1 == 1.2 && options.b == 0.75);
    options.chunk_tokens = 4;
    assert_int_equal(lk_chunks_score_bm25(&options, tokens, NULL, 3, query, 2, scores), LK_OK);
    /* Equal lengths: l / mean l is 1. f is 2, 2, 1 of token 1 and 1, 0, 0 of token 9. */
    const double common = log(1 + 0.5 / 3.5);
    const double rare = log(1 + 2.5 / 1.5);
    assert_true(scores[0] == (float)(common * 2 * 2.2 / 3.2 + rare * 2.2 / 2.2));
    assert_true(scores[1] == (float)(common * 2 * 2.2 / 3.2));
    assert_true(scores[2] == (float)common);
    assert_int_equal(lk_chunks_score_bm25(&options, tokens, NULL, 3, NULL, 0, scores), LK_OK);
    assert_true(scores[0] == 0 && scores[1] == 0 && scores[2] == 0);
    const uint64_t empty[3] = {5, 5, 5};
    assert_int_equal(lk_chunks_score_bm25(&options, NULL, empty, 2, query, 2, scores), LK_OK);
    assert_true(scores[0] == 0 && scores[1] == 0);
    assert_int_equal(lk_chunks_score_bm25(&options, NULL, NULL, 0, NULL, 0, NULL), LK_OK);
}

static void bm25_refuses_wrong_arguments(void **state) {
    (void)state;
    const uint32_t tokens[4] = {1, 2, 3, 4};
    const uint64_t falling[3] = {0, 3, 2};
    const uint64_t huge[2] = {0, UINT64_MAX};
    float scores[2] = {7, 7};
    lk_bm25 good;
    lk_bm25 options;
    expect_failure(lk_bm25_init(NULL, sizeof good), LK_E_ARGUMENT, "options");
    expect_failure(lk_bm25_init(&good, 8), LK_E_ARGUMENT, "8 bytes");
    assert_int_equal(lk_bm25_init(&good, sizeof good), LK_OK);
    good.chunk_tokens = 2;
    expect_failure(lk_chunks_score_bm25(NULL, tokens, NULL, 2, tokens, 1, scores), LK_E_ARGUMENT,
                   "NULL");
    expect_failure(lk_chunks_score_bm25(&good, NULL, NULL, 2, tokens, 1, scores), LK_E_ARGUMENT,
                   "NULL");
    expect_failure(lk_chunks_score_bm25(&good, tokens, NULL, 2, NULL, 1, scores), LK_E_ARGUMENT,
                   "NULL");
    expect_failure(lk_chunks_score_bm25(&good, tokens, NULL, 2, tokens, 1, NULL), LK_E_ARGUMENT,
                   "NULL");
    expect_failure(lk_chunks_score_bm25(&good, tokens, falling, 2, tokens, 1, scores),
                   LK_E_ARGUMENT, "starts[2] is 2 after 3");
    expect_failure(lk_chunks_score_bm25(&good, tokens, huge, 1, tokens, 1, scores), LK_E_ARGUMENT,
                   "starts[1]");
    options = good;
    options.chunk_tokens = 0;
    expect_failure(lk_chunks_score_bm25(&options, tokens, NULL, 2, tokens, 1, scores),
                   LK_E_ARGUMENT, "chunk_tokens");
    options = good;
    options.k1 = NAN;
    expect_failure(lk_chunks_score_bm25(&options, tokens, NULL, 2, tokens, 1, scores),
                   LK_E_ARGUMENT, "k1");
    options = good;
    options.b = 1.5;
    expect_failure(lk_chunks_score_bm25(&options, tokens, NULL, 2, tokens, 1, scores),
                   LK_E_ARGUMENT, "options.b is 1.5");
    options = good;
    options.size = 8;
    expect_failure(lk_chunks_score_bm25(&options, tokens, NULL, 2, tokens, 1, scores),
                   LK_E_ARGUMENT, "size");
    assert_true(scores[0] == 7 && scores[1] == 7);
}

static void thresholds_are_strict(void **state) {
    (void)state;
    /* T_low is 5 and T_high 7.5, both exact. */
    const float scores[N] = {0, 5, 4.75f, 7.5f, 7.75f, 10};
    lk_chunk_class classes[N];
    double low;
    double high;
    assert_int_equal(lk_chunks_by_thresholds(scores, N, 0.5, 0.25, classes, &low, &high), LK_OK);
    assert_true(low == 5 && high == 7.5);
    expect_classes(classes, "121233");
    /* alpha 0: nothing is below the least; beta 0: nothing above the most. */
    assert_int_equal(lk_chunks_by_thresholds(scores, N, 0, 0.25, classes, NULL, NULL), LK_OK);
    expect_classes(classes, "222233");
    assert_int_equal(lk_chunks_by_thresholds(scores, N, 0.5, 0, classes, NULL, NULL), LK_OK);
    expect_classes(classes, "121222");
}

static void equal_scores_are_in_the_middle(void **state) {
    (void)state;
    const float values[] = {0, -1, 0.1f, 3e38f, 1e-45f};
    for (size_t v = 0; v < sizeof values / sizeof *values; ++v)
        for (uint32_t n = 1; n <= N; ++n) {
            float scores[N];
            lk_chunk_class classes[N + 1] = {0};
            for (uint32_t i = 0; i < n; ++i)
                scores[i] = values[v];
            assert_int_equal(lk_chunks_by_thresholds(scores, n, 0.6, 0.1, classes, NULL, NULL),
                             LK_OK);
            for (uint32_t i = 0; i < n; ++i)
                assert_int_equal(classes[i], LK_CHUNK_MIDDLE);
            assert_int_equal(classes[n], 0);
        }
    double low = 1;
    double high = 1;
    assert_int_equal(lk_chunks_by_thresholds(NULL, 0, 0.6, 0.1, NULL, &low, &high), LK_OK);
    assert_true(low == 0 && high == 0);
}

static void thresholds_refuse_wrong_arguments(void **state) {
    (void)state;
    float scores[N] = {1, 2, 3, 4, 5, 6};
    lk_chunk_class classes[N] = {9, 9, 9, 9, 9, 9};
    const double shares[][2] = {{0.6, 0.4},    {0.7, 0.31}, {1, 0},     {0, 1},
                                {-0.1, 0.5},   {0.5, -0.1}, {NAN, 0.1}, {0.1, NAN},
                                {INFINITY, 0}, {0.5, 0.5},  {-1, 1.5}};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; ++i)
        expect_failure(
            lk_chunks_by_thresholds(scores, N, shares[i][0], shares[i][1], classes, NULL, NULL),
            LK_E_ARGUMENT, "alpha is");
    expect_failure(lk_chunks_by_thresholds(NULL, N, 0.6, 0.1, classes, NULL, NULL), LK_E_ARGUMENT,
                   "scores is NULL");
    expect_failure(lk_chunks_by_thresholds(scores, N, 0.6, 0.1, NULL, NULL, NULL), LK_E_ARGUMENT,
                   "classes is NULL");
    const float bad[] = {NAN, INFINITY, -INFINITY};
    lk_chunk_quota quota;
    assert_int_equal(lk_chunk_quota_init(&quota, sizeof quota), LK_OK);
    for (uint32_t i = 0; i < N; ++i) {
        const float kept = scores[i];
        char part[40];
        scores[i] = bad[i % 3];
        snprintf(part, sizeof part, "the score of chunk %u is not finite", i);
        expect_failure(lk_chunks_by_thresholds(scores, N, 0.6, 0.1, classes, NULL, NULL), LK_E_DATA,
                       part);
        expect_failure(lk_chunks_by_quota(scores, N, &quota, classes, NULL), LK_E_DATA, part);
        scores[i] = kept;
    }
    expect_classes(classes, "999999");
}

static lk_chunk_quota quota_of(uint32_t block_chunks, double low_share, double high_share) {
    lk_chunk_quota quota;
    assert_int_equal(lk_chunk_quota_init(&quota, sizeof quota), LK_OK);
    quota.block_chunks = block_chunks;
    quota.low_share = low_share;
    quota.high_share = high_share;
    return quota;
}

static void quota_gives_ties_to_the_earlier_chunk(void **state) {
    (void)state;
    const float scores[N] = {1, 2, 1, 2, 1, -0.0f};
    lk_chunk_class classes[N];
    lk_chunk_quota quota = quota_of(1, 0.5, 1.0 / 6);
    assert_int_equal(lk_chunks_by_quota(scores, N, &quota, classes, NULL), LK_OK);
    expect_classes(classes, "231211");
    /* Rows of 4: the boundaries go to whole rows, the rest of two chunks is high. */
    quota = quota_of(4, 0.5, 0.5);
    assert_int_equal(lk_chunks_by_quota(scores, N, &quota, classes, NULL), LK_OK);
    expect_classes(classes, "131311");
    quota = quota_of(4, 1, 0);
    assert_int_equal(lk_chunks_by_quota(scores, 3, &quota, classes, NULL), LK_OK);
    expect_classes(classes, "333");
    quota = quota_of(1, 1, 0);
    assert_int_equal(lk_chunks_by_quota(scores, 1, &quota, classes, NULL), LK_OK);
    expect_classes(classes, "1");
    assert_int_equal(lk_chunks_by_quota(NULL, 0, &quota, NULL, NULL), LK_OK);
}

static void quota_fills_the_budget(void **state) {
    (void)state;
    const float scores[N] = {3, 6, 1, 4, 2, 5};
    lk_chunk_class classes[N];
    uint64_t bytes;
    lk_chunk_quota quota = quota_of(1, 0.6, 0.1);
    quota.low_bytes = 3;
    quota.middle_bytes = 5;
    quota.high_bytes = 16;
    const struct {
        uint64_t budget;
        uint64_t bytes;
        const char *classes;
    } cases[] = {{18, 18, "111111"}, {19, 18, "111111"}, {20, 20, "121111"}, {28, 28, "221222"},
                 {31, 31, "131111"}, {34, 33, "131112"}, {41, 41, "232222"}, {52, 52, "232223"},
                 {96, 96, "333333"}, {99, 96, "333333"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        quota.budget_bytes = cases[i].budget;
        assert_int_equal(lk_chunks_by_quota(scores, N, &quota, classes, &bytes), LK_OK);
        expect_classes(classes, cases[i].classes);
        assert_int_equal(bytes, cases[i].bytes);
    }
    quota.budget_bytes = 17;
    expect_failure(lk_chunks_by_quota(scores, N, &quota, classes, &bytes), LK_E_BUDGET, "take 18");
    /* Rows of 4: two chunks are in the last row, so high. */
    quota.block_chunks = 4;
    quota.budget_bytes = 43;
    expect_failure(lk_chunks_by_quota(scores, N, &quota, classes, &bytes), LK_E_BUDGET, "take 44");
    quota.budget_bytes = 52;
    assert_int_equal(lk_chunks_by_quota(scores, N, &quota, classes, &bytes), LK_OK);
    expect_classes(classes, "232223");
}

static void quota_refuses_wrong_arguments(void **state) {
    (void)state;
    const float scores[N] = {0};
    lk_chunk_class classes[N] = {9, 9, 9, 9, 9, 9};
    lk_chunk_quota quota = quota_of(0, 0.6, 0.1);
    expect_failure(lk_chunk_quota_init(NULL, sizeof quota), LK_E_ARGUMENT, "quota");
    expect_failure(lk_chunks_by_quota(scores, N, NULL, classes, NULL), LK_E_ARGUMENT, "quota");
    expect_failure(lk_chunks_by_quota(scores, N, &quota, classes, NULL), LK_E_ARGUMENT,
                   "block_chunks");
    const double shares[][2] = {{0.6, 0.5}, {-0.1, 0.5}, {0.5, -0.1}, {NAN, 0}, {0, NAN}};
    for (size_t i = 0; i < sizeof shares / sizeof *shares; ++i) {
        quota = quota_of(1, shares[i][0], shares[i][1]);
        expect_failure(lk_chunks_by_quota(scores, N, &quota, classes, NULL), LK_E_ARGUMENT,
                       "quota.low_share");
    }
    const uint64_t bytes[][3] = {{0, 1, 2}, {2, 2, 3}, {1, 3, 3}, {3, 2, 1}};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; ++i) {
        quota = quota_of(1, 0.6, 0.1);
        quota.budget_bytes = 100;
        quota.low_bytes = bytes[i][0];
        quota.middle_bytes = bytes[i][1];
        quota.high_bytes = bytes[i][2];
        expect_failure(lk_chunks_by_quota(scores, N, &quota, classes, NULL), LK_E_ARGUMENT,
                       "must ascend");
    }
    quota.low_bytes = UINT64_MAX / 2;
    quota.middle_bytes = UINT64_MAX - 1;
    quota.high_bytes = UINT64_MAX;
    expect_failure(lk_chunks_by_quota(scores, N, &quota, classes, NULL), LK_E_ARGUMENT, "64 bits");
    quota.budget_bytes = 0;
    expect_failure(lk_chunks_by_quota(scores, N, &quota, classes, NULL), LK_E_ARGUMENT, "64 bits");
    expect_classes(classes, "999999");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cosine_has_exact_cases),
        cmocka_unit_test(cosine_names_the_chunk_at_fault),
        cmocka_unit_test(cosine_refuses_wrong_arguments),
        cmocka_unit_test(bm25_ranks_the_chunk_with_the_rare_token),
        cmocka_unit_test(bm25_refuses_wrong_arguments),
        cmocka_unit_test(thresholds_are_strict),
        cmocka_unit_test(equal_scores_are_in_the_middle),
        cmocka_unit_test(thresholds_refuse_wrong_arguments),
        cmocka_unit_test(quota_gives_ties_to_the_earlier_chunk),
        cmocka_unit_test(quota_fills_the_budget),
        cmocka_unit_test(quota_refuses_wrong_arguments),
    };
    return cmocka_run_group_tests_name("chunks", tests, NULL, NULL);
}
