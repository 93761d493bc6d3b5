// The list of a context's chunks: what it counts, what it costs, and how its chunks lie.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/chunks.h"

#include "chunk_rig.h"

namespace {

void whole_chunks_after_the_sinks_count(void **) {
    ChunkRig rig(1);
    assert_int_equal(lk::first_chunk_token(rig.cache), 16);
    assert_int_equal(lk::count_chunks(rig.cache, 0), 0);
    assert_int_equal(lk::count_chunks(rig.cache, 16), 0);
    assert_int_equal(lk::count_chunks(rig.cache, 16 + 15), 0);
    assert_int_equal(lk::count_chunks(rig.cache, 16 + 16), 1);
    assert_int_equal(lk::count_chunks(rig.cache, 16 + 5 * 16 + 1), 5);
}

void only_sequences_of_plans_with_chunks_are_found(void **) {
    ChunkRig rig(1);
    lk::Sequence *found = nullptr;
    assert_int_equal(lk::find_chunked(rig.cache, rig.sequence->id, &found), LK_OK);
    assert_ptr_equal(found, rig.sequence);
    assert_int_equal(lk::find_chunked(rig.cache, rig.sequence->id + 1, &found), LK_E_NOT_FOUND);
    CacheRig without;
    assert_int_equal(lk::find_chunked(without.cache, without.add()->id, &found), LK_E_UNSUPPORTED);
    sentence_has("lk_plan_set_chunks()");
}

void lists_are_counted_while_they_live(void **) {
    ChunkRig rig(1);
    lk::Ledger &ledger = rig.cache->ledger;
    const uint64_t tables = ledger.table_bytes;
    const uint64_t limit = ledger.limit_bytes;
    lk::ChunkList *chunks = nullptr;
    ledger.limit_bytes = ledger.used_bytes() + lk::chunks_bytes(9) - 1;
    assert_int_equal(lk::make_chunks(rig.cache, 9, &chunks), LK_E_BUDGET);
    sentence_has("a list of chunks");
    ++ledger.limit_bytes;
    const uint64_t n_failed =
        rig.run_out_of_memory([&] { return lk::make_chunks(rig.cache, 9, &chunks); });
    assert_int_equal(n_failed, 3);
    ledger.limit_bytes = limit;
    assert_int_equal(chunks->size(), 9);
    assert_int_equal(ledger.table_bytes, tables + lk::chunks_bytes(9));
    // What was counted is given back, though the list was cut.
    chunks->order.pop();
    lk::release_chunks(rig.cache, chunks);
    lk::release_chunks(rig.cache, nullptr);
    assert_int_equal(ledger.table_bytes, tables);
}

void copies_have_lists_of_their_own(void **) {
    ChunkRig rig(16 + 64);
    assert_int_equal(rig.assign({LK_CHUNK_HIGH, LK_CHUNK_LOW, LK_CHUNK_LOW, LK_CHUNK_HIGH}), LK_OK);
    rig.defer(LK_DEFER_PACK);
    lk::Sequence copy(rig.memory.hooks());
    assert_int_equal(lk::copy_chunks(rig.cache, *rig.sequence, &copy), LK_OK);
    assert_int_equal(copy.deferral, LK_DEFER_PACK);
    assert_ptr_not_equal(copy.chunks, rig.sequence->chunks);
    assert_memory_equal(copy.chunks->order.data(), rig.sequence->chunks->order.data(),
                        4 * sizeof(uint32_t));
    assert_memory_equal(copy.chunks->assigned.data(), rig.sequence->chunks->assigned.data(), 4);
    lk::release_chunks(rig.cache, copy.chunks);
}

// As they lie, and those after the list in order and at 16 bits.
void chunks_are_read_as_they_lie(void **) {
    ChunkRig rig(16 + 6 * 16);
    assert_int_equal(rig.assign({LK_CHUNK_HIGH, LK_CHUNK_LOW, LK_CHUNK_LOW, LK_CHUNK_HIGH}), LK_OK);
    lk::ChunkOrder order(lk::default_allocator());
    assert_int_equal(lk::read_chunks(rig.cache, *rig.sequence, 6, &order), LK_OK);
    const uint32_t lying[] = {1, 2, 0, 3, 4, 5};
    assert_memory_equal(order.order.data(), lying, sizeof lying);
    const uint8_t raw = lk::kAt16Bits;
    const uint8_t kept_at[] = {LK_CHUNK_HIGH, LK_CHUNK_LOW, LK_CHUNK_LOW, LK_CHUNK_HIGH, raw, raw};
    assert_memory_equal(order.kept_at.data(), kept_at, sizeof kept_at);
}

// Where the budget ended before the first page was packed, the block has all its bits.
void a_class_counts_when_its_pages_are_packed(void **) {
    ChunkRig rig(16 + 32);
    lk::CacheBlock *block = rig.sequence->block(1);
    assert_int_equal(lk::width_of(rig.cache, *block), lk::kAt16Bits);
    block->chunk_class = LK_CHUNK_LOW;
    assert_int_equal(lk::width_of(rig.cache, *block), lk::kAt16Bits);
    block->chunk_class = LK_CHUNK_NONE;
    assert_int_equal(rig.assign({LK_CHUNK_LOW, LK_CHUNK_LOW}), LK_OK);
    block = rig.sequence->block(1);
    assert_int_equal(lk::width_of(rig.cache, *block), LK_CHUNK_LOW);
    block->n_packed = 1;
    assert_int_equal(lk::width_of(rig.cache, *block), LK_CHUNK_LOW);
    block->n_packed = block->n_entries;
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(whole_chunks_after_the_sinks_count),
        cmocka_unit_test(only_sequences_of_plans_with_chunks_are_found),
        cmocka_unit_test(lists_are_counted_while_they_live),
        cmocka_unit_test(copies_have_lists_of_their_own),
        cmocka_unit_test(chunks_are_read_as_they_lie),
        cmocka_unit_test(a_class_counts_when_its_pages_are_packed),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
