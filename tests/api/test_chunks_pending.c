// What calls do to a sequence whose context is still to come, with classes that are pending.
//
// SPDX-License-Identifier: Apache-2.0
#include "contexts.h"

// What is discarded or cut comes again, and gets the classes that it had.
static void cut_chunks_come_again(void **state) {
    (void)state;
    const shape shapes[] = {{64, 32}, {32, 64}, {32, 32}};
    for (uint32_t i = 0; i < 3; ++i) {
        rig r, last;
        const uint32_t reorder = i < 2;
        context_open(&r, &last, shapes[i], reorder, 0);
        const context c = context_make(shapes[i], 14, 5, 40 + i);
        const lk_sequence id = context_add(&r);
        rig_is_ok(context_assign(&r, id, &c, 1));
        rig_is_ok(context_feed(&r, id, 1, 0, c.n_tokens / 2, 60));
        const uint32_t n = 60;
        rig_is_ok(rig_begin(&r, 1, &id, &n, NULL));
        rig_is_ok(lk_step_discard(r.cache));
        rig_is_ok(context_feed(&r, id, 1, c.n_tokens / 2, c.n_tokens * 3 / 4, 60));
        context_touch(&r, id);
        const uint32_t cut = c.n_tokens / 3;
        rig_is_ok(lk_sequence_truncate(r.cache, id, cut));
        assert_true(chunked_info(&r, id).n_pending > 0);
        rig_is_ok(context_feed(&r, id, 1, cut, c.n_tokens, 60));
        context_touch(&r, id);
        assert_int_equal(chunked_prompt(&last, 1, c.n_tokens), id);
        rig_is_ok(context_assign(&last, id, &c, 1));
        // Codes were packed twice, so that only classes and order are the same.
        lk_chunk_class x[MAX_CHUNKS], y[MAX_CHUNKS];
        uint32_t order[2][MAX_CHUNKS];
        rig_is_ok(lk_chunks_get(r.cache, id, NULL, MAX_CHUNKS, NULL, x, order[0]));
        rig_is_ok(lk_chunks_get(last.cache, id, NULL, MAX_CHUNKS, NULL, y, order[1]));
        assert_memory_equal(x, y, c.n_chunks * sizeof *x);
        assert_memory_equal(order[0], order[1], c.n_chunks * sizeof *order[0]);
        assert_int_equal(rig_stats(&r).payload_bytes, rig_stats(&last).payload_bytes);
        // To nothing and again: the same bytes.
        rig_is_ok(lk_sequence_truncate(r.cache, id, 0));
        rig_is_ok(context_assign(&r, id, &c, 1));
        rig_is_ok(context_feed(&r, id, 1, 0, c.n_tokens / 2, 60));
        rig_is_ok(lk_sequence_truncate(r.cache, id, 0));
        rig_is_ok(context_feed(&r, id, 1, 0, c.n_tokens, 60));
        context_touch(&r, id);
        context_same(&r, &last);
        rig_close(&r);
        rig_close(&last);
    }
}

// A fork goes on with the context as its parent does, and each alone.
static void forks_have_pending_classes(void **state) {
    (void)state;
    for (uint32_t reorder = 0; reorder < 2; ++reorder) {
        rig r, last;
        const shape s = {32, reorder ? 16 : 32};
        context_open(&r, &last, s, reorder, 0);
        const context c = context_make(s, 21, 5, 3);
        lk_sequence ids[3] = {context_add(&r)};
        const uint32_t half = c.n_tokens / 2, third = c.n_tokens / 3;
        rig_is_ok(context_assign(&r, ids[0], &c, 0));
        rig_is_ok(context_feed(&r, ids[0], 1, 0, half, 40));
        rig_is_ok(lk_sequence_fork(r.cache, ids[0], LK_ALL_TOKENS, &ids[1]));
        rig_is_ok(lk_sequence_fork(r.cache, ids[0], third, &ids[2]));
        for (int i = 0; i < 3; ++i) {
            assert_true(chunked_info(&r, ids[i]).n_pending > 0);
            rig_is_ok(context_feed(&r, ids[i], 1, i == 2 ? third : half, c.n_tokens, 40));
            context_touch(&r, ids[i]);
            assert_int_equal(chunked_info(&r, ids[i]).n_pending, 0);
        }
        assert_int_equal(chunked_prompt(&last, 1, c.n_tokens), ids[0]);
        rig_is_ok(context_assign(&last, ids[0], &c, 0));
        lk_chunk_class x[MAX_CHUNKS], y[MAX_CHUNKS];
        for (int i = 0; i < 3; ++i) {
            rig_is_ok(lk_chunks_get(r.cache, ids[i], NULL, MAX_CHUNKS, NULL, x, NULL));
            rig_is_ok(lk_chunks_get(last.cache, ids[0], NULL, MAX_CHUNKS, NULL, y, NULL));
            assert_memory_equal(x, y, c.n_chunks * sizeof *x);
            rig_is_ok(rig_append_step(&r, ids[i], 2, c.n_tokens, 3));
        }
        rig_is_ok(lk_sequence_remove(r.cache, ids[1]));
        rig_is_ok(lk_sequence_remove(r.cache, ids[2]));
        rig_is_ok(lk_sequence_truncate(r.cache, ids[0], c.n_tokens));
        context_same(&r, &last);
        rig_close(&r);
        rig_close(&last);
    }
}

// Other classes while some are pending, a shorter context, and deferral, which forgets them.
static void pending_classes_are_replaced(void **state) {
    (void)state;
    rig r, last;
    const shape s = {64, 32};
    context_open(&r, &last, s, 1, 0);
    const context c = context_make(s, 20, 5, 3), other = context_make(s, 30, 1, 99);
    lk_sequence id = context_add(&r);
    rig_is_ok(context_assign(&r, id, &c, 0));
    rig_is_ok(context_assign(&r, id, &other, 1));  // before the first token
    rig_is_ok(context_feed(&r, id, 1, 0, other.n_tokens, 100));
    context_touch(&r, id);
    assert_int_equal(chunked_prompt(&last, 1, other.n_tokens), id);
    rig_is_ok(context_assign(&last, id, &other, 1));
    context_same(&r, &last);
    rig_is_ok(lk_sequence_remove(r.cache, id));
    rig_is_ok(lk_sequence_remove(last.cache, id));
    // After some tokens: chunks that are packed get the new class at once, if it is not wider.
    id = context_add(&r);
    rig_is_ok(context_assign(&r, id, &c, 0));
    rig_is_ok(context_feed(&r, id, 1, 0, SINKS + 12 * 32, 100));
    context_touch(&r, id);
    lk_chunk_class before[MAX_CHUNKS], after[MAX_CHUNKS];
    rig_is_ok(lk_chunks_get(r.cache, id, NULL, MAX_CHUNKS, NULL, before, NULL));
    rig_is_ok(context_assign(&r, id, &other, 0));
    assert_int_equal(lk_chunks_assign(r.cache, id, SINKS + 32, 1, c.classes, NULL), LK_E_ARGUMENT);
    rig_sentence("has classes for");
    rig_is_ok(context_feed(&r, id, 1, SINKS + 12 * 32, other.n_tokens, 100));
    context_touch(&r, id);
    rig_is_ok(lk_chunks_get(r.cache, id, NULL, MAX_CHUNKS, NULL, after, NULL));
    uint32_t n_wider = 0;
    for (uint32_t i = 0; i < other.n_chunks; ++i) {
        const lk_chunk_class least =
            i < 12 && before[i] < other.classes[i] ? before[i] : other.classes[i];
        assert_true(after[i] >= least);
        n_wider += after[i] > other.classes[i];
    }
    assert_true(n_wider <= 8);
    // The context ends sooner than it was to.
    const lk_sequence next = context_add(&r);
    rig_is_ok(context_assign(&r, next, &other, 0));
    rig_is_ok(context_feed(&r, next, 1, 0, c.n_tokens, 512));
    rig_is_ok(context_assign(&r, next, &c, 0));
    assert_int_equal(chunked_info(&r, next).n_pending, 0);
    assert_int_equal(chunked_info(&r, next).n_chunks, c.n_chunks);
    // Deferral forgets what is pending, and keeps what is laid out.
    const lk_sequence deferred = context_add(&r);
    rig_is_ok(context_assign(&r, deferred, &c, 0));
    rig_is_ok(context_feed(&r, deferred, 1, 0, SINKS + 10 * 32, 100));
    context_touch(&r, deferred);
    const uint64_t payload = rig_stats(&r).payload_bytes;
    rig_is_ok(lk_sequence_defer(r.cache, deferred, LK_DEFER_OFF));
    assert_true(chunked_info(&r, deferred).n_pending > 0);
    rig_is_ok(lk_sequence_defer(r.cache, deferred, LK_DEFER_REFUSE));
    assert_int_equal(chunked_info(&r, deferred).n_pending, 0);
    rig_is_ok(context_feed(&r, deferred, 1, SINKS + 10 * 32, c.n_tokens, 100));
    context_touch(&r, deferred);
    assert_int_equal(rig_stats(&r).payload_bytes, payload);
    rig_is_ok(context_assign(&r, deferred, &c, 0));
    rig_close(&r);
    rig_close(&last);
}

// A deferred sequence that has a part of its context, packed in part by a budget or not.
static void classes_come_with_the_first_tokens(void **state) {
    (void)state;
    rig r, last;
    const shape s = {64, 32};
    context_open(&r, &last, s, 1, 0);
    const context c = context_make(s, 20, 5, 17);
    const lk_sequence id = chunked_prompt(&r, 1, SINKS + 7 * 32 + 9);
    rig_is_ok(context_assign(&r, id, &c, 1));
    rig_is_ok(context_feed(&r, id, 1, SINKS + 7 * 32 + 9, c.n_tokens, 90));
    context_touch(&r, id);
    assert_int_equal(chunked_prompt(&last, 1, c.n_tokens), id);
    rig_is_ok(context_assign(&last, id, &c, 1));
    context_same(&r, &last);
    rig_close(&r);
    rig_close(&last);
}

// Originals of a context that came after its classes are those of one that came before them.
static void originals_are_kept_as_chunks_come(void **state) {
    (void)state;
    const shape shapes[] = {{64, 32}, {32, 64}};
    for (uint32_t i = 0; i < 2; ++i) {
        rig r, last;
        context_open(&r, &last, shapes[i], 1, 0);
        const context c = context_make(shapes[i], 15, 5, 17 + i);
        context again = c;
        for (uint32_t k = 0; k < c.n_chunks; ++k)
            again.classes[k] = LK_CHUNK_LOW + LK_CHUNK_HIGH - c.classes[k];
        const lk_sequence id = context_add(&r);
        rig_is_ok(lk_chunks_retain(r.cache, id, 64));
        assert_int_equal(context_assign(&r, id, &c, 0), LK_E_BUDGET);
        rig_sentence("may be retained");
        assert_int_equal(chunked_info(&r, id).is_assigned, 0);
        rig_is_ok(lk_chunks_retain(r.cache, id, 16u << 20));
        rig_is_ok(context_assign(&r, id, &c, 0));
        rig_is_ok(context_feed(&r, id, 1, 0, c.n_tokens, 77));
        context_touch(&r, id);
        assert_int_equal(chunked_prompt(&last, 1, c.n_tokens), id);
        rig_is_ok(lk_chunks_retain(last.cache, id, 16u << 20));
        rig_is_ok(context_assign(&last, id, &c, 0));
        assert_int_equal(chunked_info(&r, id).retained_bytes,
                         chunked_info(&last, id).retained_bytes);
        rig_is_ok(context_assign(&r, id, &again, 0));
        rig_is_ok(context_assign(&last, id, &again, 0));
        assert_int_equal(chunked_info(&r, id).n_narrower, 0);
        context_same(&r, &last);
        rig_close(&r);
        rig_close(&last);
    }
}

// A snapshot has what is laid out; the host assigns the rest again.
static void snapshots_are_deferred(void **state) {
    (void)state;
    rig r, loaded;
    const shape s = {64, 32};
    context_open(&r, &loaded, s, 1, 0);
    const context c = context_make(s, 20, 5, 23);
    const lk_sequence id = context_add(&r);
    rig_is_ok(context_assign(&r, id, &c, 0));
    rig_is_ok(context_feed(&r, id, 1, 0, c.n_tokens / 2, 77));
    context_touch(&r, id);
    const bytes saved = snapshot_save(&r, NULL);
    lk_sequence got;
    uint32_t n;
    rig_is_ok(lk_snapshot_load_memory(loaded.cache, NULL, saved.data, saved.n, 1, &got, &n));
    free(saved.data);
    lk_chunks_info info = chunked_info(&loaded, got);
    assert_int_equal(info.deferral, LK_DEFER_REFUSE);
    assert_int_equal(info.n_pending, 0);
    assert_true(info.n_low + info.n_middle > 0);
    rig_is_ok(context_assign(&loaded, got, &c, 0));
    rig_is_ok(context_feed(&loaded, got, 1, c.n_tokens / 2, c.n_tokens, 77));
    rig_is_ok(context_feed(&r, id, 1, c.n_tokens / 2, c.n_tokens, 77));
    context_touch(&loaded, got);
    context_touch(&r, id);
    info = chunked_info(&loaded, got);
    assert_int_equal(info.n_pending, 0);
    assert_int_equal(info.n_chunks, c.n_chunks);
    assert_int_equal(info.n_narrower, 0);
    rig_close(&r);
    rig_close(&loaded);
}

// Pages that a window has left are given back as those of an assignment at the end are.
static void windows_free_pages_as_they_come(void **state) {
    (void)state;
    rig r, last;
    const shape s = {32, 32};
    rig *const both[] = {&r, &last};
    for (int i = 0; i < 2; ++i) {
        chunked_open(both[i], rig_default(), 0, s, 0);
        chunked_window(both[i], s, "cocktail");
        rig_is_ok(rig_cache(both[i], 2, 512, CONTEXT_BUDGET));
    }
    const context c = context_make(s, 20, 5, 29);
    const lk_sequence id = context_add(&r);
    rig_is_ok(context_assign(&r, id, &c, 0));
    rig_is_ok(context_feed(&r, id, 1, 0, c.n_tokens + 3, 50));
    assert_int_equal(chunked_prompt(&last, 1, c.n_tokens), id);
    rig_is_ok(context_assign(&last, id, &c, 0));
    rig_is_ok(context_feed(&last, id, 1, c.n_tokens, c.n_tokens + 3, 3));
    context_touch(&r, id);
    context_touch(&last, id);
    context_same(&r, &last);
    rig_close(&r);
    rig_close(&last);
}

// Attention scores are of the order that a step begins with, and end when chunks move.
static void attention_scores_follow_the_layout(void **state) {
    (void)state;
    rig r;
    const shape s = {64, 32};
    chunked_open(&r, rig_default(), 0, s, 1);
    rig_is_ok(rig_cache(&r, 2, 512, CONTEXT_BUDGET));
    const context c = context_make(s, 8, 0, 5);
    const lk_sequence id = context_add(&r);
    rig_is_ok(context_assign(&r, id, &c, 0));
    rig_is_ok(context_feed(&r, id, 1, 0, SINKS + 6 * 32, 100));
    lk_chunk_attention attention;
    rig_is_ok(lk_chunk_attention_init(&attention, sizeof attention));
    attention.n_query_tokens = 2;
    attention.n_chunks = 3;
    rig_is_ok(lk_chunks_score_attention(r.cache, id, &attention));
    float *out = malloc(64 * rig_width(&r) * sizeof *out);
    assert_non_null(out);
    assert_int_equal(rig_step(&r, id, 1, SINKS + 6 * 32, 2, out), LK_E_ARGUMENT);
    rig_sentence("score all of these");
    attention.n_chunks = 6;
    rig_is_ok(lk_chunks_score_attention(r.cache, id, &attention));
    rig_is_ok(rig_step(&r, id, 1, SINKS + 6 * 32, 64, out));
    free(out);
    float scores[6], sum = 0;
    rig_is_ok(lk_chunks_attention_scores(r.cache, id, 6, scores));
    for (int i = 0; i < 6; ++i)
        sum += scores[i];
    assert_true(sum > 0.98f && sum < 1.02f);
    context_touch(&r, id);  // the last chunks come
    assert_int_equal(lk_chunks_attention_scores(r.cache, id, 6, scores), LK_E_STATE);
    rig_close(&r);
}

static void without_memory(void **state) {
    (void)state;
    rig r;
    const shape s = {64, 32};
    chunked_open(&r, NULL, 0, s, 1);
    rig_is_ok(rig_cache(&r, 2, 512, CONTEXT_BUDGET));
    const context c = context_make(s, 14, 5, 31);
    const lk_sequence id = chunked_prompt(&r, 1, SINKS + 3 * 32);
    rig_is_ok(lk_chunks_retain(r.cache, id, 16u << 20));
    for (int what = 0; what < 2; ++what) {
        lk_status status = LK_E_NOMEM;
        for (int64_t nth = 1; status; ++nth) {
            const lk_cache_stats before = rig_stats(&r);
            const uint32_t one = 1;
            r.memory.fail_at = r.memory.n_calls + nth;
            status = what ? rig_begin(&r, 1, &id, &one, NULL) : context_assign(&r, id, &c, 0);
            r.memory.fail_at = 0;
            if (status) {
                assert_int_equal(status, LK_E_NOMEM);
                lk_cache_stats after = rig_stats(&r);
                assert_int_equal(after.n_tokens, before.n_tokens);
                assert_int_equal(chunked_info(&r, id).is_assigned, what);
            }
            assert_true(nth < 500);
        }
        if (what)
            rig_is_ok(lk_step_discard(r.cache));
        else
            rig_is_ok(context_feed(&r, id, 1, SINKS + 3 * 32, c.n_tokens, 512));
    }
    assert_int_equal(chunked_info(&r, id).n_pending, 0);
    assert_int_equal(chunked_info(&r, id).n_narrower, 0);
    rig_close(&r);
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    rig r;
    const shape s = {64, 32};
    chunked_open(&r, NULL, 0, s, 1);
    rig_is_ok(rig_cache(&r, 2, 512, CONTEXT_BUDGET));
    const lk_sequence id = context_add(&r);
    const lk_chunk_class classes[2] = {LK_CHUNK_LOW, 4};
    assert_int_equal(lk_chunks_assign(r.cache, id, UINT64_MAX, 2, classes, NULL), LK_E_ARGUMENT);
    assert_int_equal(lk_chunks_assign(r.cache, id, SINKS + 64, 1, classes, NULL), LK_E_ARGUMENT);
    rig_sentence("are 2 chunks");
    assert_int_equal(lk_chunks_assign(r.cache, id, SINKS + 64, 2, classes, NULL), LK_E_ARGUMENT);
    rig_sentence("the class of chunk 1");
    const uint32_t one = 1;
    rig_is_ok(rig_begin(&r, 1, &id, &one, NULL));
    assert_int_equal(lk_chunks_assign(r.cache, id, SINKS + 32, 1, classes, NULL), LK_E_BUSY);
    rig_is_ok(lk_step_discard(r.cache));
    assert_int_equal(chunked_info(&r, id).is_assigned, 0);
    // A context without a chunk: all of it stays at 16 bits.
    rig_is_ok(lk_chunks_assign(r.cache, id, SINKS + 31, 0, NULL, NULL));
    rig_is_ok(context_feed(&r, id, 1, 0, SINKS + 200, 50));
    context_touch(&r, id);
    assert_int_equal(chunked_info(&r, id).is_assigned, 1);
    assert_int_equal(chunked_info(&r, id).n_chunks, 0);
    assert_int_equal(rig_stats(&r).payload_bytes, 0);
    rig_close(&r);
}

int main(int argc, char **argv) {
    rig_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_chunks_come_again),
        cmocka_unit_test(forks_have_pending_classes),
        cmocka_unit_test(pending_classes_are_replaced),
        cmocka_unit_test(classes_come_with_the_first_tokens),
        cmocka_unit_test(originals_are_kept_as_chunks_come),
        cmocka_unit_test(snapshots_are_deferred),
        cmocka_unit_test(windows_free_pages_as_they_come),
        cmocka_unit_test(attention_scores_follow_the_layout),
        cmocka_unit_test(without_memory),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
