// Attention scores of chunks: a request's life over steps, and the memory that it holds.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/attention_scores.h"

#include "cache_rig.h"

#include <vector>

namespace {

constexpr uint32_t kContext = 16 + 64;  // sinks and two chunks of 32

// A sequence with its context, and a request for the scores of its two chunks by two queries.
struct Requested {
    Requested() : rig("fp16") {
        sequence = rig.add();
        rig.grow(sequence, kContext);
        tables = rig.cache->ledger.table_bytes;
        request();
    }
    void request() {
        lk_chunk_attention from;
        assert_int_equal(lk_chunk_attention_init(&from, sizeof from), LK_OK);
        from.n_query_tokens = 2;
        from.n_chunks = 2;
        assert_int_equal(lk_chunks_score_attention(rig.cache, sequence->id, &from), LK_OK);
    }
    lk::AttentionScores &scores() { return *sequence->attention_scores; }
    lk_status read(std::vector<float> *out) {
        return lk_chunks_attention_scores(rig.cache, sequence->id,
                                          static_cast<uint32_t>(out->size()), out->data());
    }
    CacheRig rig;
    lk::Sequence *sequence;
    uint64_t tables;
};

void memory_is_counted_until_it_goes(void **) {
    Requested made;
    lk_cache *cache = made.rig.cache;
    assert_true(made.scores().counted_bytes > made.scores().memory.bytes);
    assert_int_equal(cache->ledger.table_bytes, made.tables + made.scores().counted_bytes);
    made.request();
    assert_int_equal(cache->ledger.table_bytes, made.tables + made.scores().counted_bytes);
    lk::drop_attention_scores(cache, made.sequence);
    assert_null(made.sequence->attention_scores);
    assert_int_equal(cache->ledger.table_bytes, made.tables);
}

void a_committed_step_gives_scores(void **) {
    Requested made;
    std::vector<float> read(2);
    assert_int_equal(made.read(&read), LK_E_STATE);
    assert_int_equal(made.rig.begin(made.sequence, 3), LK_OK);
    assert_true(made.scores().is_open);
    assert_int_equal(made.scores().first_query, 1);
    made.rig.run_layers();
    assert_int_equal(made.scores().n_attended, CacheRig::kLayers);
    assert_int_equal(lk_step_commit(made.rig.cache, nullptr), LK_OK);
    assert_int_equal(made.scores().n_scored, CacheRig::kLayers);
    auto *sums = reinterpret_cast<float *>(made.scores().memory.address);
    sums[0] = 0.5f;
    sums[1] = 1.5f;
    assert_int_equal(made.read(&read), LK_OK);
    assert_true(read[0] == 0.25f && read[1] == 0.75f);
    std::vector<float> more(3);
    assert_int_equal(made.read(&more), LK_E_ARGUMENT);
    // The next step scores nothing.
    made.rig.step(made.sequence, 2);
    assert_int_equal(made.rig.device().n_chunk_attentions, CacheRig::kLayers);
}

void a_discarded_step_is_waited_for_again(void **) {
    Requested made;
    assert_int_equal(made.rig.begin(made.sequence, 2), LK_OK);
    made.rig.run_layers();
    assert_int_equal(lk_step_discard(made.rig.cache), LK_OK);
    assert_false(made.scores().is_open);
    assert_int_equal(made.scores().n_scored, 0);
    made.rig.step(made.sequence, 2);
    assert_int_equal(made.scores().n_scored, CacheRig::kLayers);
}

void a_step_must_hold_the_query(void **) {
    Requested made;
    assert_int_equal(made.rig.begin(made.sequence, 1), LK_E_ARGUMENT);
    sentence_has("the query that scores has 2");
    assert_int_equal(lk_sequence_truncate(made.rig.cache, made.sequence->id, kContext - 1), LK_OK);
    assert_int_equal(made.rig.begin(made.sequence, 2), LK_E_ARGUMENT);
    sentence_has("before the end of the");
    assert_int_equal(made.rig.begin(made.sequence, 3), LK_OK);
}

// Scores go with the context that they are of; a request without scores waits on.
void a_cut_context_ends_scores(void **) {
    Requested made;
    lk::cut_attention_scores(made.rig.cache, made.sequence, kContext - 1);
    assert_non_null(made.sequence->attention_scores);
    made.rig.step(made.sequence, 2);
    lk::cut_attention_scores(made.rig.cache, made.sequence, kContext);
    assert_non_null(made.sequence->attention_scores);
    lk::cut_attention_scores(made.rig.cache, made.sequence, kContext - 1);
    assert_null(made.sequence->attention_scores);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_counted_until_it_goes),
        cmocka_unit_test(a_committed_step_gives_scores),
        cmocka_unit_test(a_discarded_step_is_waited_for_again),
        cmocka_unit_test(a_step_must_hold_the_query),
        cmocka_unit_test(a_cut_context_ends_scores),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
