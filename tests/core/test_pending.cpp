// Classes of chunks that are still to come: what they cost, which chunks a step lays out, and what
// a failure leaves.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/pending.h"

#include "chunk_rig.h"
#include "core/chunks/order.h"

namespace {

constexpr lk_chunk_class kLow = LK_CHUNK_LOW;
constexpr lk_chunk_class kHigh = LK_CHUNK_HIGH;
constexpr lk_chunk_class kNone = LK_CHUNK_NONE;

// An empty sequence with classes of a context of whole chunks.
struct PendingRig : ChunkRig {
    explicit PendingRig(const std::vector<lk_chunk_class> &classes) : ChunkRig(1) {
        assert_int_equal(lk_sequence_truncate(cache, sequence->id, 0), LK_OK);
        assert_int_equal(assign(classes), LK_OK);
        assert_non_null(sequence->pending);
    }
    lk_status lay() { return lk::lay_pending(cache, sequence); }
    // Tokens of so many chunks after the sinks; the step that follows them has laid out nothing.
    void reach(uint32_t n_chunks) {
        const uint64_t n_tokens = kSinks + n_chunks * kChunkTokens;
        grow(sequence, static_cast<uint32_t>(n_tokens - sequence->length));
    }
};

void lists_are_counted_while_they_live(void **) {
    ChunkRig rig(1);
    lk::Ledger &ledger = rig.cache->ledger;
    const uint64_t tables = ledger.table_bytes;
    const uint64_t limit = ledger.limit_bytes;
    lk::PendingChunks *pending = nullptr;
    ledger.limit_bytes = ledger.used_bytes() + lk::pending_bytes(9) - 1;
    assert_int_equal(lk::make_pending(rig.cache, 9, &pending), LK_E_BUDGET);
    sentence_has("a list of pending classes");
    ++ledger.limit_bytes;
    const uint64_t n_failed =
        rig.run_out_of_memory([&] { return lk::make_pending(rig.cache, 9, &pending); });
    assert_int_equal(n_failed, 4);
    ledger.limit_bytes = limit;
    assert_int_equal(pending->size(), 9);
    assert_int_equal(ledger.table_bytes, tables + lk::pending_bytes(9));
    lk::release_pending(rig.cache, pending);
    lk::release_pending(rig.cache, nullptr);
    assert_int_equal(ledger.table_bytes, tables);
}

void copies_have_lists_of_their_own(void **) {
    PendingRig rig({kHigh, kLow, kLow, kHigh});
    lk::Sequence copy(rig.memory.hooks());
    assert_int_equal(lk::copy_pending(rig.cache, *rig.sequence, &copy), LK_OK);
    assert_ptr_not_equal(copy.pending, rig.sequence->pending);
    const uint32_t order[] = {1, 2, 0, 3};
    assert_memory_equal(copy.pending->order.data(), order, sizeof order);
    assert_memory_equal(copy.pending->widths.data(), rig.sequence->pending->widths.data(), 4);
    assert_int_equal(copy.pending->n_context_tokens, 16 + 4 * 16);
    lk::release_pending(rig.cache, copy.pending);
}

// Chunks of 16 tokens, two in a block, and as many recent tokens as a block has.
void blocks_are_laid_out_as_they_are_complete(void **) {
    PendingRig rig({kHigh, kLow, kLow, kHigh, kLow, kLow});
    lk::Sequence &sequence = *rig.sequence;
    const uint64_t recent = rig.cache->plan.model.recent_tokens;
    assert_int_equal(recent, 32);
    rig.reach(5);  // of which two have left the recent tokens, and fill no block of a class
    assert_int_equal(lk::chunks_of_next_step(rig.cache, sequence), 0);
    assert_int_equal(rig.lay(), LK_OK);
    assert_null(sequence.chunks);
    assert_int_equal(rig.assign({kHigh, kLow, kLow, kHigh, kLow, kLow}), LK_OK);
    assert_int_equal(rig.sequence->pending->n_laid, 0);
    rig.step(rig.sequence, 15);  // the last chunk is one token short
    assert_int_equal(lk::chunks_of_next_step(rig.cache, sequence), 0);
    rig.step(rig.sequence, 1);
    assert_int_equal(lk::chunks_of_next_step(rig.cache, sequence), 6);
    assert_int_equal(rig.lay(), LK_OK);
    assert_null(sequence.pending);
    assert_true((rig.order() == std::vector<uint32_t>{1, 2, 4, 5, 0, 3}));
    assert_true((rig.classes() == std::vector<lk_chunk_class>{kLow, kLow, kHigh}));
    assert_int_equal(rig.lay(), LK_OK);  // nothing is left to do
}

void chunks_that_wait_keep_their_order(void **) {
    PendingRig rig({kHigh, kLow, kLow, kHigh, kLow, kLow, kLow, kHigh});
    rig.cache->plan.model.recent_tokens = 0;
    rig.reach(4);
    assert_int_equal(rig.lay(), LK_OK);
    assert_true((rig.order() == std::vector<uint32_t>{1, 2, 0, 3}));
    rig.reach(6);
    assert_int_equal(rig.lay(), LK_OK);
    // Low blocks come before the high one that was there.
    assert_true((rig.order() == std::vector<uint32_t>{1, 2, 4, 5, 0, 3}));
    assert_true((rig.classes() == std::vector<lk_chunk_class>{kLow, kLow, kHigh}));
    rig.cache->plan.model.recent_tokens = 32;
}

// A cut returns the block that loses a chunk to 16 bits, and is laid out when it is whole again.
void cuts_are_laid_out_again(void **) {
    PendingRig rig({kLow, kLow, kLow, kHigh, kLow, kHigh});
    rig.cache->plan.model.recent_tokens = 0;
    rig.reach(5);
    rig.step(rig.sequence, 1);
    assert_int_equal(rig.lay(), LK_OK);
    assert_int_equal(rig.sequence->pending->n_laid, 2);  // chunks 2 and 4 are a block
    assert_int_equal(lk_sequence_truncate(rig.cache, rig.sequence->id, 16 + 16), LK_OK);
    assert_int_equal(rig.sequence->pending->n_laid, 1);
    assert_true((rig.classes() == std::vector<lk_chunk_class>{kNone}));
    rig.reach(2);
    assert_int_equal(rig.lay(), LK_OK);
    assert_true((rig.classes() == std::vector<lk_chunk_class>{kLow}));
    rig.cache->plan.model.recent_tokens = 32;
}

// Bytes beyond those that are used with which work() succeeds, by whole extents.
uint64_t least_bytes(ChunkRig *rig, const std::function<lk_status()> &work) {
    lk::Ledger &ledger = rig->cache->ledger;
    const uint64_t limit = ledger.limit_bytes;
    const uint64_t used = ledger.used_bytes();
    for (uint64_t more = 64u << 10;; more += LK_EXTENT_BYTES) {
        ledger.limit_bytes = used + more;
        const lk_status status = work();
        ledger.limit_bytes = limit;
        if (!status)
            return more;
        assert_int_equal(status, LK_E_BUDGET);
    }
}

// Without bytes for all new blocks next to the old ones, fewer chunks are laid out at once.
void a_short_budget_lays_out_fewer(void **) {
    constexpr uint32_t kChunks = 512;
    constexpr uint64_t kTokens = 16 + kChunks * ChunkRig::kChunkTokens;
    std::vector<lk_chunk_class> classes;
    for (uint32_t c = 0; c < kChunks; ++c)
        classes.push_back(c % 2 ? kLow : kHigh);
    ChunkRig last(kTokens);
    const uint64_t at_once = least_bytes(&last, [&] { return last.assign(classes); });
    ChunkRig first(kTokens);
    assert_int_equal(lk_chunks_assign(first.cache, first.sequence->id, kTokens + 1, kChunks,
                                      classes.data(), nullptr),
                     LK_OK);
    first.step(first.sequence, 1);
    ChunkRig slow(kTokens);
    assert_int_equal(lk_chunks_assign(slow.cache, slow.sequence->id, kTokens + 1, kChunks,
                                      classes.data(), nullptr),
                     LK_OK);
    slow.cache->plan.model.recent_tokens = 0;
    const uint64_t in_parts =
        least_bytes(&slow, [&] { return lk::lay_pending(slow.cache, slow.sequence); });
    assert_true(in_parts < at_once);
    slow.cache->plan.model.recent_tokens = 32;
    slow.step(slow.sequence, 1);
    assert_int_equal(lk::lay_pending(slow.cache, slow.sequence), LK_OK);
    assert_int_equal(lk::lay_pending(first.cache, first.sequence), LK_OK);
    assert_true(slow.order() == last.order());
    assert_true(slow.classes() == first.classes());
}

void a_failing_device_leaves_16_bits(void **) {
    PendingRig rig({kLow, kLow});
    rig.reach(2);
    const Held before = rig.held();
    rig.device().packs = kDeviceFails;
    assert_int_equal(rig.lay(), LK_E_DEVICE);
    rig.assert_held(before);
    assert_null(rig.sequence->chunks);
    assert_non_null(rig.sequence->pending);
    rig.device().packs = {};
    assert_int_equal(rig.lay(), LK_OK);
    assert_true((rig.classes() == std::vector<lk_chunk_class>{kLow}));
}

void deferral_forgets_them(void **) {
    PendingRig rig({kLow, kLow});
    assert_int_equal(rig.sequence->deferral, LK_DEFER_OFF);
    rig.defer(LK_DEFER_OFF);
    assert_non_null(rig.sequence->pending);
    rig.defer(LK_DEFER_PACK);
    assert_null(rig.sequence->pending);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_counted_while_they_live),
        cmocka_unit_test(copies_have_lists_of_their_own),
        cmocka_unit_test(blocks_are_laid_out_as_they_are_complete),
        cmocka_unit_test(chunks_that_wait_keep_their_order),
        cmocka_unit_test(cuts_are_laid_out_again),
        cmocka_unit_test(a_short_budget_lays_out_fewer),
        cmocka_unit_test(a_failing_device_leaves_16_bits),
        cmocka_unit_test(deferral_forgets_them),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
