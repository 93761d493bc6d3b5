// Random lengths side by side under one budget, which is held in every step, and the reference that
// does the same. --soak, the last argument, runs 200000 tokens over 64 sequences.
//
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "chunked.h"
#include "ladder.h"

#define SOAK_SEQUENCES 64u

static int g_soak;

static uint32_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

typedef struct soak {
    rig_pair p;
    lk_sequence ids[SOAK_SEQUENCES];
    uint32_t lengths[SOAK_SEQUENCES];
    uint32_t ends[SOAK_SEQUENCES];
    uint32_t contexts[SOAK_SEQUENCES];  // tokens before classes are assigned; 0: they are, or none
    uint32_t n_assigned, n_refused;
    int has_chunks;
    uint64_t seed;
} soak;

static void renew(soak *s, uint32_t i) {
    for (rig *r = &s->p.fast; r; r = r == &s->p.fast ? &s->p.reference : NULL) {
        if (s->ids[i])
            assert_int_equal(lk_sequence_remove(r->cache, s->ids[i]), LK_OK);
    }
    assert_int_equal(lk_sequence_add(s->p.fast.cache, &s->ids[i]), LK_OK);
    lk_sequence same;
    assert_int_equal(lk_sequence_add(s->p.reference.cache, &same), LK_OK);
    assert_int_equal(same, s->ids[i]);
    s->lengths[i] = 0;
    s->ends[i] = 200 + next_random(&s->seed) % 2600;
    s->contexts[i] = 0;
    if (!s->has_chunks)
        return;
    s->contexts[i] = 100 + next_random(&s->seed) % 900;
    for (rig *r = &s->p.fast; r; r = r == &s->p.fast ? &s->p.reference : NULL)
        assert_int_equal(lk_sequence_defer(r->cache, s->ids[i], LK_DEFER_PACK), LK_OK);
}

// A context of the sequence's first tokens has come: classes for its chunks.
static void assign_both(soak *s, uint32_t i) {
    uint32_t seed = next_random(&s->seed);
    lk_chunk_class classes[MAX_CHUNKS];
    lk_chunks_info info = chunked_info(&s->p.fast, s->ids[i]);
    assert_true(info.n_chunks <= MAX_CHUNKS);
    chunked_classes(&seed, info.n_chunks, classes);
    lk_status status = LK_OK;
    for (rig *r = &s->p.fast; r; r = r == &s->p.fast ? &s->p.reference : NULL) {
        const lk_status own =
            lk_chunks_assign(r->cache, s->ids[i], s->lengths[i], info.n_chunks, classes, NULL);
        assert_true(r == &s->p.fast || own == status);
        status = own;
        // Without bytes for new pages next to the old ones, the plan applies as it is.
        if (status)
            assert_int_equal(lk_sequence_defer(r->cache, s->ids[i], LK_DEFER_OFF), LK_OK);
    }
    assert_true(!status || status == LK_E_BUDGET);
    s->n_assigned += !status;
    s->n_refused += status != LK_OK;
    s->contexts[i] = 0;
}

static lk_status soak_step(rig *r, const soak *s, uint32_t i, uint32_t n, float *out) {
    return out ? rig_step(r, s->ids[i], i, s->lengths[i], n, out)
               : rig_append_step(r, s->ids[i], i, s->lengths[i], n);
}

// Random lengths side by side under one budget; a sequence that is done frees its bytes for
// another.
static void share_a_budget(const char *plan) {
    const uint64_t n_tokens = g_soak ? 200000 : 12000;
    const uint32_t n_sequences = g_soak ? SOAK_SEQUENCES : 6;
    const uint64_t budget = g_soak ? 40u << 20 : 6u << 20;
    soak s;
    memset(&s, 0, sizeof s);
    s.seed = 11;
    s.has_chunks = !strcmp(plan, "all families");
    rig_pair_open(&s.p, plan);
    assert_int_equal(rig_cache(&s.p.fast, n_sequences, 256, budget), LK_OK);
    assert_int_equal(rig_cache(&s.p.reference, n_sequences, 256, budget), LK_OK);
    for (uint32_t i = 0; i < n_sequences; ++i)
        renew(&s, i);
    uint64_t done = 0;
    uint32_t n_steps = 0, n_compared = 0;
    for (uint32_t turn = 0; done < n_tokens; ++turn, ++n_steps) {
        const uint32_t i = next_random(&s.seed) % n_sequences;
        const uint32_t n = 1 + next_random(&s.seed) % (turn % 3 ? 90 : 250);
        const int attends = turn % 10 == 0;
        const lk_status status = soak_step(&s.p.fast, &s, i, n, attends ? s.p.x : NULL);
        assert_int_equal(soak_step(&s.p.reference, &s, i, n, attends ? s.p.y : NULL), status);
        const lk_cache_stats stats = rig_stats(&s.p.fast);
        assert_true(stats.reserved_bytes <= budget);
        rig_pair_compare_stats(&s.p);
        if (status) {
            char sentence[512];
            lk_last_error(sentence, sizeof sentence, NULL);
            fail_msg("after %llu tokens: %s", (unsigned long long)done, sentence);
        }
        if (attends)
            rig_pair_compare(&s.p, n, "side by side");
        n_compared += (uint32_t)attends;
        done += n;
        s.lengths[i] += n;
        if (s.contexts[i] && s.lengths[i] >= s.contexts[i]) {
            assign_both(&s, i);
            assert_true(rig_stats(&s.p.fast).reserved_bytes <= budget);
            rig_pair_compare_stats(&s.p);
        }
        if (s.lengths[i] >= s.ends[i])
            renew(&s, i);
    }
    const lk_cache_stats stats = rig_stats(&s.p.fast);
    print_message(
        "%s: %llu tokens in %u steps, %u compared, %llu pages shrunk, %llu of %llu bytes "
        "reserved, %llu fragmented, %u contexts assigned, %u refused\n",
        plan, (unsigned long long)done, n_steps, n_compared, (unsigned long long)stats.pages_shrunk,
        (unsigned long long)stats.reserved_bytes, (unsigned long long)budget,
        (unsigned long long)stats.fragmented_bytes, s.n_assigned, s.n_refused);
    assert_true(stats.pages_shrunk > 0);
    assert_true(!s.has_chunks || s.n_assigned > 0);
    rig_pair_close(&s.p);
}

static void many_sequences_share_a_budget(void **state) {
    (void)state;
    share_a_budget("pm-kvq");
}

// Rungs of layers, classes of channels and boosts of pages in one plan.
static void families_share_a_budget(void **state) {
    (void)state;
    share_a_budget("families");
}

// The same plan with classes of chunks.
static void all_families_share_a_budget(void **state) {
    (void)state;
    share_a_budget("all families");
}

static void narrow_numbers_share_a_budget(void **state) {
    (void)state;
    share_a_budget("bytes of 32");
}

int main(int argc, char **argv) {
    g_soak = argc > 1 && !strcmp(argv[argc - 1], "--soak");
    rig_arguments(argc - g_soak, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_sequences_share_a_budget),
        cmocka_unit_test(families_share_a_budget),
        cmocka_unit_test(all_families_share_a_budget),
        cmocka_unit_test(narrow_numbers_share_a_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
