/* Cost runs: every trial once, sums by kind of text, what is refused, bytes that go on, divergence
 * and texts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define XXH_INLINE_ALL
#include <math.h>
#include <xxhash.h>

#include "stats/stats_test.h"

enum { LAYERS = 2, KV_HEADS = 2, D = 64, KINDS = 2, DOCUMENTS = 2, CLIPS = 1 + LK_COST_CLIPS };
enum { PER_DOCUMENT = LAYERS * KV_HEADS * 2 * CLIPS, TRIALS = KINDS * DOCUMENTS * PER_DOCUMENT };

static const float clips[CLIPS] = {1, 0.85f, 0.7f};

static lk_cost_options options_of(uint64_t fingerprint) {
    lk_cost_options options;
    assert_int_equal(lk_cost_options_init(&options, sizeof options), LK_OK);
    assert_int_equal(options.n_kinds, LK_COST_TEXTS);
    options.n_kinds = KINDS;
    options.n_documents = DOCUMENTS;
    options.fingerprint = fingerprint;
    return options;
}

static lk_cost_run *make_run_of(uint32_t n_layers, const lk_cost_options *options) {
    struct model m;
    make_model(&m, n_layers, KV_HEADS, 2, D);
    lk_cost_run *run = NULL;
    if (lk_cost_run_create(&m.geometry, options, &run) != LK_OK)
        fail_msg("%s", sentence());
    return run;
}

static lk_cost_run *make_run(void) {
    const lk_cost_options options = options_of(7);
    return make_run_of(LAYERS, &options);
}

static lk_cost_trial trial_of(const lk_cost_run *run, uint32_t trial) {
    lk_cost_trial out;
    assert_int_equal(lk_cost_trial_init(&out, sizeof out), LK_OK);
    assert_int_equal(lk_cost_run_get_trial(run, trial, &out), LK_OK);
    return out;
}

/* Differs with everything that a trial is of; negative in the second kind for values of layer 1. */
static double bits_of(const lk_cost_trial *trial) {
    if (trial->is_value && trial->layer == 1 && trial->document >= DOCUMENTS)
        return -0.25;
    return 0.125 * (1 + trial->document) + trial->layer + 2 * trial->kv_head + 4 * trial->is_value +
           8 * (double)trial->clip;
}

/* Up to n trials. Returns how many. */
static uint32_t measure(lk_cost_run *run, uint32_t capacity, uint32_t n) {
    uint32_t done = 0;
    while (done < n) {
        uint32_t trials[64], count = 99;
        const uint32_t most = n - done < capacity ? n - done : capacity;
        assert_int_equal(lk_cost_run_next(run, most, trials, &count), LK_OK);
        assert_true(count <= most);
        if (!count)
            break;
        for (uint32_t i = 0; i < count; ++i) {
            const lk_cost_trial own = trial_of(run, trials[i]);
            assert_int_equal(own.document, trial_of(run, trials[0]).document);
            assert_int_equal(lk_cost_run_add(run, trials[i], bits_of(&own)), LK_OK);
        }
        done += count;
    }
    return done;
}

static uint32_t measured(const lk_cost_run *run) {
    uint32_t n_measured = 0, n_trials = 0;
    assert_int_equal(lk_cost_run_get_counts(run, &n_measured, &n_trials), LK_OK);
    assert_int_equal(n_trials, TRIALS);
    return n_measured;
}

static lk_cost_trial part(uint32_t layer, uint32_t head, uint32_t is_value, float clip) {
    const lk_cost_trial out = {sizeof out, 0, layer, head, is_value, clip};
    return out;
}

/* As the header says: documents of a kind add up, a negative sum counts 0, kinds add up. */
static double cost_of(lk_cost_trial trial) {
    double cost = 0;
    for (uint32_t kind = 0; kind < KINDS; ++kind) {
        double sum = 0;
        for (uint32_t d = 0; d < DOCUMENTS; ++d) {
            trial.document = kind * DOCUMENTS + d;
            sum += bits_of(&trial);
        }
        cost += sum > 0 ? sum : 0;
    }
    return cost;
}

static void expect_costs(const lk_cost_run *run) {
    lk_calibrator *calibrator = make_calibrator(LAYERS, 2 * KV_HEADS, KV_HEADS, D);
    if (lk_cost_run_finish(run, calibrator) != LK_OK)
        fail_msg("%s", sentence());
    for (uint32_t l = 0; l < LAYERS; ++l) {
        double whole[KV_HEADS][2], clipped[KV_HEADS][2][LK_COST_CLIPS];
        assert_int_equal(lk_calibrator_get_costs(calibrator, l, &whole[0][0]), LK_OK);
        assert_int_equal(lk_calibrator_get_clip_costs(calibrator, l, &clipped[0][0][0]), LK_OK);
        for (uint32_t h = 0; h < KV_HEADS; ++h)
            for (uint32_t v = 0; v < 2; ++v) {
                assert_true(whole[h][v] == cost_of(part(l, h, v, 1)));
                for (uint32_t c = 0; c < LK_COST_CLIPS; ++c)
                    assert_true(clipped[h][v][c] == cost_of(part(l, h, v, clips[c + 1])));
            }
    }
    lk_calibrator_destroy(&calibrator);
}

static void every_trial_comes_once_and_costs_are_its_sums(void **state) {
    (void)state;
    for (uint32_t capacity = 1; capacity <= 64; capacity *= 4) {
        lk_cost_run *run = make_run();
        uint8_t seen[KINDS * DOCUMENTS][LAYERS][KV_HEADS][2][CLIPS] = {0};
        for (uint32_t t = 0; t < TRIALS; ++t) {
            const lk_cost_trial own = trial_of(run, t);
            uint32_t c = 0;
            while (c < CLIPS - 1 && own.clip != clips[c])
                ++c;
            ++seen[own.document][own.layer][own.kv_head][own.is_value][c];
            assert_int_equal(own.document, t / PER_DOCUMENT);
        }
        for (size_t i = 0; i < sizeof seen; ++i)
            assert_int_equal(((uint8_t *)seen)[i], 1);
        assert_int_equal(measure(run, capacity, TRIALS + 1), TRIALS);
        assert_int_equal(measured(run), TRIALS);
        expect_costs(run);
        lk_cost_run_destroy(&run);
        assert_null(run);
    }
}

static void without_clips_there_are_a_third_of_the_trials(void **state) {
    (void)state;
    lk_cost_options options = options_of(0);
    options.clips = 0;
    lk_cost_run *run = make_run_of(LAYERS, &options);
    assert_int_equal(measure(run, 64, TRIALS), TRIALS / CLIPS);
    lk_calibrator *calibrator = make_calibrator(LAYERS, 2 * KV_HEADS, KV_HEADS, D);
    double costs[KV_HEADS][2][LK_COST_CLIPS];
    assert_int_equal(lk_cost_run_finish(run, calibrator), LK_OK);
    assert_int_equal(lk_calibrator_get_costs(calibrator, 1, &costs[0][0][0]), LK_OK);
    assert_int_equal(lk_calibrator_get_clip_costs(calibrator, 1, &costs[0][0][0]), LK_E_STATE);
    lk_calibrator_destroy(&calibrator);
    lk_cost_run_destroy(&run);
}

static void a_plan_packs_one_part(void **state) {
    (void)state;
    lk_cost_run *run = make_run();
    for (uint32_t t = 0; t <= PER_DOCUMENT; ++t) {
        const uint32_t trial = t < PER_DOCUMENT ? t + PER_DOCUMENT : LK_COST_REFERENCE;
        const lk_cost_trial own = t < PER_DOCUMENT ? trial_of(run, trial) : part(LAYERS, 0, 0, 1);
        lk_plan *plan = NULL;
        assert_int_equal(lk_cost_run_plan(run, trial, &plan), LK_OK);
        assert_int_equal(lk_plan_validate(plan, NULL), LK_OK);
        uint32_t pages, sinks, recent;
        assert_int_equal(lk_plan_get_pages(plan, &pages, &sinks, &recent), LK_OK);
        assert_int_equal(pages, 128);
        if (t < PER_DOCUMENT)
            assert_true(sinks == 32 && recent == 128);
        for (uint32_t l = 0; l < LAYERS; ++l)
            for (uint32_t h = 0; h < KV_HEADS; ++h) {
                lk_key_rule key;
                lk_value_rule value;
                assert_int_equal(lk_key_rule_init(&key, sizeof key), LK_OK);
                assert_int_equal(lk_value_rule_init(&value, sizeof value), LK_OK);
                assert_int_equal(lk_plan_get_key(plan, l, h, &key), LK_OK);
                assert_int_equal(lk_plan_get_value(plan, l, h, &value), LK_OK);
                const int here = l == own.layer && h == own.kv_head;
                assert_int_equal(key.bits, here && !own.is_value ? 2 : 16);
                assert_int_equal(value.bits, here && own.is_value ? 2 : 16);
                if (key.bits == 2)
                    assert_true(key.group == 128 && key.clip == own.clip);
                if (value.bits == 2)
                    assert_true(value.group == D && value.clip == own.clip);
            }
        lk_plan_destroy(&plan);
    }
    lk_plan *plan = NULL;
    assert_int_equal(lk_cost_run_plan(run, TRIALS, &plan), LK_E_NOT_FOUND);
    assert_null(plan);
    lk_cost_run_destroy(&run);
}

static void a_batch_that_failed_comes_again(void **state) {
    (void)state;
    lk_cost_run *run = make_run();
    uint32_t first[8], other[8], n;
    assert_int_equal(lk_cost_run_next(run, 8, first, &n), LK_OK);
    assert_int_equal(n, 8);
    assert_int_equal(lk_cost_run_add(run, first[3], 1), LK_OK);
    assert_int_equal(measure(run, 8, TRIALS - 8), TRIALS - 8);
    assert_int_equal(lk_cost_run_next(run, 8, other, &n), LK_OK);
    assert_int_equal(n, 7);
    for (uint32_t i = 0; i < 7; ++i) {
        assert_int_equal(other[i], first[i < 3 ? i : i + 1]);
        assert_int_equal(lk_cost_run_add(run, other[i], 1), LK_OK);
    }
    assert_int_equal(lk_cost_run_next(run, 8, other, &n), LK_OK);
    assert_int_equal(n, 0);
    lk_cost_run_destroy(&run);
}

static void a_divergence_is_checked(void **state) {
    (void)state;
    lk_cost_run *run = make_run();
    uint32_t trials[4], n;
    assert_int_equal(lk_cost_run_add(run, 0, 1), LK_E_STATE);
    assert_non_null(strstr(sentence(), "was not handed out"));
    assert_int_equal(lk_cost_run_next(run, 4, trials, &n), LK_OK);
    assert_int_equal(lk_cost_run_add(run, trials[3] + 1, 1), LK_E_STATE);
    assert_int_equal(lk_cost_run_add(run, TRIALS, 1), LK_E_NOT_FOUND);
    const double bad[] = {NAN, INFINITY, -INFINITY, -1.5, 2e9};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i)
        assert_int_equal(lk_cost_run_add(run, trials[0], bad[i]), LK_E_DATA);
    assert_int_equal(measured(run), 0);
    assert_int_equal(lk_cost_run_add(run, trials[0], -0.5), LK_OK);
    assert_int_equal(lk_cost_run_add(run, trials[0], 1), LK_E_STATE);
    assert_non_null(strstr(sentence(), "already"));
    assert_int_equal(lk_cost_run_add(NULL, 0, 1), LK_E_ARGUMENT);
    assert_int_equal(lk_cost_run_next(run, 0, trials, &n), LK_E_ARGUMENT);
    assert_int_equal(lk_cost_run_next(run, 4, NULL, &n), LK_E_ARGUMENT);
    assert_int_equal(lk_cost_run_next(NULL, 4, trials, &n), LK_E_ARGUMENT);
    assert_int_equal(lk_cost_run_get_counts(NULL, &n, &n), LK_E_ARGUMENT);
    lk_cost_trial trial;
    assert_int_equal(lk_cost_trial_init(&trial, sizeof trial), LK_OK);
    assert_int_equal(lk_cost_run_get_trial(run, TRIALS, &trial), LK_E_NOT_FOUND);
    assert_int_equal(lk_cost_run_get_trial(run, 0, NULL), LK_E_ARGUMENT);
    lk_cost_run_destroy(&run);
    lk_cost_run_destroy(&run);
    lk_cost_run_destroy(NULL);
}

static void options_are_checked(void **state) {
    (void)state;
    struct model m;
    make_model(&m, LAYERS, KV_HEADS, 2, D);
    lk_cost_run *run = NULL;
    for (int i = 0; i < 7; ++i) {
        lk_cost_options options = options_of(0);
        uint32_t *const fields[] = {&options.n_kinds, &options.n_kinds,     &options.n_documents,
                                    &options.clips,   &options.n_documents, &options.sink_tokens,
                                    &options.size};
        const uint32_t bad[] = {0, 65, 0, 2, 1001, 100000, 4};
        *fields[i] = bad[i];
        assert_int_equal(lk_cost_run_create(&m.geometry, &options, &run), LK_E_ARGUMENT);
        assert_null(run);
    }
    assert_int_equal(lk_cost_run_create(NULL, NULL, &run), LK_E_ARGUMENT);
    assert_int_equal(lk_cost_run_create(&m.geometry, NULL, NULL), LK_E_ARGUMENT);
    make_model(&m, MAX_TEST_LAYERS, 1024, 1, D);
    lk_cost_options options = options_of(0);
    options.n_documents = 1000;
    assert_int_equal(lk_cost_run_create(&m.geometry, &options, &run), LK_E_ARGUMENT);
    assert_non_null(strstr(sentence(), "fewer documents"));
}

static void costs_need_all_trials_and_their_own_geometry(void **state) {
    (void)state;
    lk_cost_run *run = make_run();
    lk_calibrator *calibrator = make_calibrator(LAYERS, 2 * KV_HEADS, KV_HEADS, D);
    lk_calibrator *other = make_calibrator(LAYERS, 2 * KV_HEADS, KV_HEADS, 2 * D);
    double costs[KV_HEADS][2];
    assert_int_equal(measure(run, 16, TRIALS - 1), TRIALS - 1);
    assert_int_equal(lk_cost_run_finish(run, calibrator), LK_E_STATE);
    assert_non_null(strstr(sentence(), "1 of 96"));
    assert_int_equal(measure(run, 16, 1), 1);
    assert_int_equal(lk_cost_run_finish(run, other), LK_E_MISMATCH);
    assert_int_equal(lk_cost_run_finish(run, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_cost_run_finish(NULL, calibrator), LK_E_ARGUMENT);
    assert_int_equal(lk_calibrator_get_costs(calibrator, 0, &costs[0][0]), LK_E_STATE);
    assert_int_equal(lk_calibrator_get_costs(other, 0, &costs[0][0]), LK_E_STATE);
    lk_calibrator_destroy(&other);
    lk_calibrator_destroy(&calibrator);
    lk_cost_run_destroy(&run);
}

static struct bytes save(const lk_cost_run *run) {
    struct bytes out = {NULL, 0};
    assert_int_equal(lk_cost_run_to_bytes(run, NULL, 0, &out.n), LK_OK);
    assert_int_equal(out.n, 64 + 8 * TRIALS);
    out.data = malloc(out.n);
    assert_non_null(out.data);
    assert_int_equal(lk_cost_run_to_bytes(run, out.data, out.n - 1, &out.n), LK_E_ARGUMENT);
    assert_int_equal(lk_cost_run_to_bytes(run, out.data, out.n, &out.n), LK_OK);
    return out;
}

static void an_interrupted_run_goes_on(void **state) {
    (void)state;
    lk_cost_run *whole = make_run();
    assert_int_equal(measure(whole, 16, TRIALS), TRIALS);
    struct bytes want = save(whole);
    for (uint32_t n = 0; n <= TRIALS; n += 13) {
        lk_cost_run *run = make_run();
        assert_int_equal(measure(run, 5, n), n);
        struct bytes some = save(run);
        lk_cost_run_destroy(&run);
        run = make_run();
        assert_int_equal(lk_cost_run_resume(run, some.data, some.n), LK_OK);
        assert_int_equal(measured(run), n);
        assert_int_equal(measure(run, 16, TRIALS), TRIALS - n);
        struct bytes found = save(run);
        assert_memory_equal(found.data, want.data, want.n);
        expect_costs(run);
        free(found.data);
        free(some.data);
        lk_cost_run_destroy(&run);
    }
    free(want.data);
    lk_cost_run_destroy(&whole);
}

/* Two hosts measure other trials of one run. */
static void runs_can_be_joined(void **state) {
    (void)state;
    lk_cost_run *a = make_run(), *b = make_run();
    uint32_t trials[64], n;
    for (uint32_t left = TRIALS / 2; left; left -= n)
        assert_int_equal(lk_cost_run_next(b, left < 64 ? left : 64, trials, &n), LK_OK);
    assert_int_equal(measure(b, 16, TRIALS / 2), TRIALS / 2);
    assert_int_equal(measure(a, 16, TRIALS / 2 + 3), TRIALS / 2 + 3);
    struct bytes of_b = save(b);
    assert_int_equal(lk_cost_run_resume(a, of_b.data, of_b.n), LK_OK);
    assert_int_equal(measured(a), TRIALS);
    expect_costs(a);
    free(of_b.data);
    lk_cost_run_destroy(&a);
    lk_cost_run_destroy(&b);
}

static void damaged_bytes_are_refused(void **state) {
    (void)state;
    lk_cost_run *run = make_run();
    assert_int_equal(measure(run, 16, 20), 20);
    struct bytes bytes = save(run);
    lk_cost_run_destroy(&run);
    run = make_run();
    for (size_t n = 0; n < bytes.n; ++n) {
        assert_int_equal(lk_cost_run_resume(run, bytes.data, n), LK_E_CORRUPT);
        bytes.data[n] ^= 0x10;
        const lk_status status = lk_cost_run_resume(run, bytes.data, bytes.n);
        assert_int_equal(status, n >= 8 && n < 12 ? LK_E_MISMATCH : LK_E_CORRUPT);
        bytes.data[n] ^= 0x10;
    }
    uint32_t seed = 1;
    for (uint32_t i = 0; i < 2000; ++i) {
        uint8_t noise[256];
        for (size_t b = 0; b < sizeof noise; ++b)
            noise[b] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
        memcpy(noise, bytes.data, i % 2 ? 8 : 0);
        const lk_status status = lk_cost_run_resume(run, noise, seed % sizeof noise);
        assert_true(status == LK_E_CORRUPT || status == LK_E_MISMATCH);
    }
    assert_int_equal(lk_cost_run_resume(run, NULL, 0), LK_E_ARGUMENT);
    assert_int_equal(lk_cost_run_resume(NULL, bytes.data, bytes.n), LK_E_ARGUMENT);
    assert_int_equal(measured(run), 0);
    free(bytes.data);
    lk_cost_run_destroy(&run);
}

/* Bytes whose hash fits. */
static void restamp(struct bytes *bytes) {
    const uint64_t hash = XXH3_64bits(bytes->data, bytes->n - 8);
    memcpy(bytes->data + bytes->n - 8, &hash, sizeof hash);
}

static void divergences_out_of_range_are_refused(void **state) {
    (void)state;
    lk_cost_run *run = make_run();
    struct bytes bytes = save(run);
    const double bad[] = {-NAN, INFINITY, -INFINITY, -1.5, 2e9};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        memcpy(bytes.data + 56 + 8 * 5, &bad[i], sizeof bad[i]);
        restamp(&bytes);
        assert_int_equal(lk_cost_run_resume(run, bytes.data, bytes.n), LK_E_CORRUPT);
        assert_non_null(strstr(sentence(), "trial 5"));
    }
    assert_int_equal(measured(run), 0);
    const double good = 3;
    memcpy(bytes.data + 56 + 8 * 5, &good, sizeof good);
    restamp(&bytes);
    assert_int_equal(lk_cost_run_resume(run, bytes.data, bytes.n), LK_OK);
    assert_int_equal(measured(run), 1);
    free(bytes.data);
    lk_cost_run_destroy(&run);
}

static void bytes_of_another_run_are_refused(void **state) {
    (void)state;
    lk_cost_run *run = make_run();
    struct bytes bytes = save(run);
    lk_cost_options options[6];
    for (int i = 0; i < 6; ++i)
        options[i] = options_of(7);
    options[0].fingerprint = 8;
    options[1].n_kinds = DOCUMENTS * 2;
    options[1].n_documents = KINDS / 2;
    options[2].n_documents = 1;
    options[3].clips = 0;
    options[4].sink_tokens = 16;
    options[5].recent_tokens = 64;
    for (int i = 0; i < 6; ++i) {
        lk_cost_run *other = make_run_of(LAYERS, &options[i]);
        assert_int_equal(lk_cost_run_resume(other, bytes.data, bytes.n), LK_E_MISMATCH);
        lk_cost_run_destroy(&other);
    }
    options[0] = options_of(7);
    lk_cost_run *deeper = make_run_of(LAYERS + 1, &options[0]);
    assert_int_equal(lk_cost_run_resume(deeper, bytes.data, bytes.n), LK_E_MISMATCH);
    assert_non_null(strstr(sentence(), "geometry"));
    lk_cost_run_destroy(&deeper);
    free(bytes.data);
    lk_cost_run_destroy(&run);
}

static double divergence_of(lk_dtype dtype, void *exact, void *other, uint32_t rows, uint32_t n) {
    const lk_tensor a = host_tensor(dtype, exact, 1, n), b = host_tensor(dtype, other, 1, n);
    double bits = -7;
    if (lk_divergence(&a, &b, rows, n, &bits) != LK_OK)
        fail_msg("%s", sentence());
    return bits;
}

static void divergence_is_that_of_the_softmax(void **state) {
    (void)state;
    /* 1/2, 1/2 and 3/4, 1/4: log2(4/3) / 2 - 1/2 + 1 / 2 bits more; then equal rows. */
    float exact[2][3] = {{5, 5, -INFINITY}, {1, 2, 3}};
    float other[2][3] = {{logf(3), 0, -INFINITY}, {1, 2, 3}};
    const double want = 0.5 * log2(0.5 / 0.75) + 0.5 * log2(0.5 / 0.25);
    assert_true(fabs(divergence_of(LK_F32, exact, other, 2, 3) - want) < 1e-6);
    assert_true(divergence_of(LK_F32, exact, exact, 2, 3) == 0);
    /* Numbers that all types have. */
    const float few[2][4] = {{0, 1, -2, 0.5f}, {4, 0, 1, -8}};
    const uint16_t half[2][4] = {{0, 0x3C00, 0xC000, 0x3800}, {0x4400, 0, 0x3C00, 0xC800}};
    const uint16_t upper[2][4] = {{0, 0x3F80, 0xC000, 0x3F00}, {0x4080, 0, 0x3F80, 0xC100}};
    float f[2][4];
    uint16_t h[2][4], u[2][4];
    memcpy(f, few, sizeof f);
    memcpy(h, half, sizeof h);
    memcpy(u, upper, sizeof u);
    const double bits = divergence_of(LK_F32, f[0], f[1], 1, 4);
    assert_true(bits > 1 && bits < 10);
    assert_true(divergence_of(LK_F16, h[0], h[1], 1, 4) == bits);
    assert_true(divergence_of(LK_BF16, u[0], u[1], 1, 4) == bits);
}

static void divergence_refuses_numbers_without_softmax(void **state) {
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    float good[2][2] = {{0, 1}, {2, 3}}, rows[2][2];
    const lk_tensor a = host_tensor(LK_F32, good, 1, 2), b = host_tensor(LK_F32, rows, 1, 2);
    double bits = -7;
    for (size_t i = 0; i < 3; ++i) {
        memcpy(rows, good, sizeof rows);
        rows[1][0] = bad[i];
        assert_int_equal(lk_divergence(&a, &b, 2, 2, &bits), LK_E_DATA);
        assert_non_null(strstr(sentence(), "row 1"));
        /* A token that cannot come in the reference counts nothing. */
        assert_int_equal(lk_divergence(&b, &a, 2, 2, &bits), i < 2 ? LK_E_DATA : LK_OK);
        assert_true(i < 2 ? bits == -7 : bits > 0);
    }
    rows[1][0] = rows[1][1] = -INFINITY;
    assert_int_equal(lk_divergence(&b, &b, 2, 2, &bits), LK_E_DATA);
    assert_int_equal(lk_divergence(&a, &a, 0, 2, &bits), LK_E_ARGUMENT);
    assert_int_equal(lk_divergence(&a, &a, 2, 0, &bits), LK_E_ARGUMENT);
    assert_int_equal(lk_divergence(NULL, &a, 2, 2, &bits), LK_E_ARGUMENT);
    assert_int_equal(lk_divergence(&a, &a, 2, 2, NULL), LK_E_ARGUMENT);
}

enum { TEXT_BYTES = 1500 };

/* Words "abaa", "abab" ..., in which letters count up, `n` different ones, twice. */
static char *words_text(uint32_t n, size_t *n_bytes) {
    char *text = malloc(16 * n + 64);
    assert_non_null(text);
    size_t at = (size_t)sprintf(text, "An Ox is LOUD; extraordinarily so. ");
    for (uint32_t i = 0; i < 2 * n; ++i)
        at += (size_t)sprintf(text + at, "ab%c%c%s", 'a' + i % n / 26, 'a' + i % n % 26,
                              i % 7 ? " " : ".\n");
    *n_bytes = at;
    return text;
}

static char *make_texts(uint32_t n_documents, uint64_t seed, size_t *n) {
    size_t n_text, needed = 0;
    char *text = words_text(100, &n_text);
    assert_int_equal(lk_cost_texts(text, n_text, n_documents, TEXT_BYTES, seed, NULL, 0, n), LK_OK);
    char *out = malloc(*n);
    assert_non_null(out);
    assert_int_equal(lk_cost_texts(text, n_text, n_documents, TEXT_BYTES, seed, out, *n, &needed),
                     LK_OK);
    assert_int_equal(needed, *n);
    free(text);
    return out;
}

static void texts_are_of_four_kinds(void **state) {
    (void)state;
    size_t n, n_again, n_text;
    char *texts = make_texts(2, 1, &n), *again = make_texts(2, 1, &n_again);
    assert_int_equal(n, LK_COST_TEXTS * 2 * TEXT_BYTES);
    assert_memory_equal(texts, again, n);
    free(again);
    again = make_texts(2, 2, &n_again);
    assert_memory_not_equal(texts, again, n);
    free(again);
    /* Of what lowkey.transformers makes of this text and seed, a token a byte. */
    assert_true(XXH3_64bits(texts, n) == UINT64_C(0x36d9268d7c4f762c));
    char *text = words_text(100, &n_text);
    char piece[65] = {0};
    memcpy(piece, texts + 100, 64);
    assert_non_null(strstr(text, piece));
    const char *const marks[LK_COST_TEXTS] = {NULL, " ab", ": ", " := "};
    for (uint32_t kind = 1; kind < LK_COST_TEXTS; ++kind)
        for (uint32_t d = 0; d < 2; ++d) {
            char document[TEXT_BYTES + 1] = {0};
            memcpy(document, texts + (kind * 2 + d) * TEXT_BYTES, TEXT_BYTES);
            uint32_t n_marks = 0;
            for (const char *at = document; (at = strstr(at, marks[kind])) != NULL; ++at)
                ++n_marks;
            assert_true(n_marks > 20);
        }
    free(text);
    free(texts);
}

static void texts_need_words(void **state) {
    (void)state;
    size_t n_text, needed = 5;
    char *text = words_text(59, &n_text), out[16];
    assert_int_equal(lk_cost_texts(text, n_text, 1, 100, 1, NULL, 0, &needed), LK_E_ARGUMENT);
    assert_non_null(strstr(sentence(), "59 different words of 3 to 8 letters, costs need 60"));
    free(text);
    text = words_text(60, &n_text);
    assert_int_equal(lk_cost_texts(text, n_text, 1, 100, 1, NULL, 0, &needed), LK_OK);
    assert_int_equal(needed, 400);
    assert_int_equal(lk_cost_texts(text, n_text, 1, 100, 1, out, sizeof out, &needed),
                     LK_E_ARGUMENT);
    assert_int_equal(lk_cost_texts(text, n_text, 0, 100, 1, NULL, 0, &needed), LK_E_ARGUMENT);
    assert_int_equal(lk_cost_texts(text, n_text, 1, 0, 1, NULL, 0, &needed), LK_E_ARGUMENT);
    assert_int_equal(lk_cost_texts(NULL, n_text, 1, 100, 1, NULL, 0, &needed), LK_E_ARGUMENT);
    assert_int_equal(lk_cost_texts(text, n_text, 1, 100, 1, NULL, 0, NULL), LK_E_ARGUMENT);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_trial_comes_once_and_costs_are_its_sums),
        cmocka_unit_test(without_clips_there_are_a_third_of_the_trials),
        cmocka_unit_test(a_plan_packs_one_part),
        cmocka_unit_test(a_batch_that_failed_comes_again),
        cmocka_unit_test(a_divergence_is_checked),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(costs_need_all_trials_and_their_own_geometry),
        cmocka_unit_test(an_interrupted_run_goes_on),
        cmocka_unit_test(runs_can_be_joined),
        cmocka_unit_test(damaged_bytes_are_refused),
        cmocka_unit_test(divergences_out_of_range_are_refused),
        cmocka_unit_test(bytes_of_another_run_are_refused),
        cmocka_unit_test(divergence_is_that_of_the_softmax),
        cmocka_unit_test(divergence_refuses_numbers_without_softmax),
        cmocka_unit_test(texts_are_of_four_kinds),
        cmocka_unit_test(texts_need_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
