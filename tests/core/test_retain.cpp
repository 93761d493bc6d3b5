// Originals: which blocks are kept, within which bytes, and how they come back.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/retain.h"

#include "chunk_rig.h"

namespace {

constexpr uint64_t kBlock = 2 * 2 * 32 * 32 * 2;  // bytes of a block at 16 bits

// A context of four chunks in two blocks, whose originals may be kept.
struct Retained {
    Retained() : rig(16 + 4 * 16) { rig.sequence->retain_bytes = 2 * kBlock; }
    ~Retained() { release(); }
    void release() {
        if (originals && !--originals->n_holders)
            lk::destroy(rig.context.allocator, originals);
        originals = nullptr;
    }
    lk_status keep(uint32_t n_chunks) {
        release();
        return lk::keep_originals(rig.cache, rig.sequence, n_chunks, &originals);
    }
    ChunkRig rig;
    lk::Originals *originals = nullptr;
};

// Fill the pages of a block with a number.
void fill(const CacheRig &rig, const lk::CacheBlock &block, int value) {
    for (uint32_t e = 0; e < block.n_entries; ++e)
        for (const uint64_t address :
             {block.entries[e].key_payload, block.entries[e].value_payload})
            std::memset(reinterpret_cast<void *>(address), value,
                        rig.cache->slots.bytes_at(address));
}

void blocks_go_and_come_back(void **) {
    Retained made;
    fill(made.rig, *made.rig.sequence->block(1), 5);
    fill(made.rig, *made.rig.sequence->block(2), 6);
    assert_int_equal(made.keep(4), LK_OK);
    assert_int_equal(made.originals->offsets.size(), 2);
    assert_int_equal(made.originals->bytes.size(), 2 * kBlock);
    assert_int_equal(made.originals->bytes[0], 5);
    assert_int_equal(made.originals->bytes[kBlock - 1], 5);
    assert_int_equal(made.originals->bytes[2 * kBlock - 1], 6);
    const lk::CacheBlock &target = *made.rig.sequence->block(1);
    assert_int_equal(lk::load_original(made.rig.cache, *made.originals, 1, target), LK_OK);
    for (const uint64_t address : {target.entries[0].key_payload, target.entries[1].value_payload})
        assert_int_equal(*reinterpret_cast<const uint8_t *>(address), 6);
    made.rig.device().fails_copies = true;
    assert_int_equal(lk::load_original(made.rig.cache, *made.originals, 1, target), LK_E_DEVICE);
}

void nothing_is_kept_unless_it_is_wanted(void **) {
    Retained made;
    made.rig.sequence->retain_bytes = 0;
    assert_int_equal(made.keep(4), LK_OK);
    assert_null(made.originals);
    made.rig.sequence->retain_bytes = 2 * kBlock;
    assert_int_equal(made.keep(0), LK_OK);
    assert_null(made.originals);
}

void refusals_keep_nothing(void **) {
    Retained made;
    made.rig.sequence->retain_bytes = 2 * kBlock - 1;
    assert_int_equal(made.keep(4), LK_E_BUDGET);
    sentence_has("originals of 4 chunks need 16384 bytes");
    assert_null(made.originals);
    made.rig.sequence->retain_bytes = 2 * kBlock;
    made.rig.device().fails_copies = true;
    assert_int_equal(made.keep(4), LK_E_DEVICE);
    assert_null(made.originals);
    made.rig.device().fails_copies = false;
    const uint64_t n_live = made.rig.memory.n_live;
    const uint64_t n_failed = made.rig.run_out_of_memory([&] {
        const lk_status status = made.keep(4);
        if (status) {
            assert_null(made.originals);
            assert_int_equal(made.rig.memory.n_live, n_live);
        }
        return status;
    });
    assert_int_equal(n_failed, 4);
}

// A block that was packed before has no original, and takes no bytes.
void packed_blocks_have_none(void **) {
    Retained made;
    made.rig.sequence->retain_bytes = 0;
    const std::vector<lk_chunk_class> classes = {LK_CHUNK_LOW, LK_CHUNK_LOW};
    assert_int_equal(made.rig.assign(classes), LK_OK);
    lk::release_chunks(made.rig.cache, made.rig.sequence->chunks);
    made.rig.sequence->chunks = nullptr;
    made.rig.sequence->retain_bytes = kBlock;
    assert_int_equal(made.keep(4), LK_OK);
    assert_int_equal(made.originals->offsets[0], lk::kNoOriginal);
    assert_int_equal(made.originals->offsets[1], 0);
    made.rig.sequence->originals = made.originals;
    made.rig.sequence->n_retained = 4;
    assert_false(lk::has_original(made.rig.cache, *made.rig.sequence, 1));
    assert_true(lk::has_original(made.rig.cache, *made.rig.sequence, 2));
    assert_false(lk::has_original(made.rig.cache, *made.rig.sequence, 4));
    made.rig.sequence->originals = nullptr;
}

void forks_share_them_until_the_last(void **) {
    Retained made;
    assert_int_equal(made.keep(4), LK_OK);
    made.rig.sequence->originals = made.originals;
    made.rig.sequence->n_retained = 4;
    lk::Sequence other(made.rig.memory.hooks());
    lk::share_originals(*made.rig.sequence, &other);
    assert_ptr_equal(other.originals, made.originals);
    assert_int_equal(made.originals->n_holders, 2);
    assert_int_equal(other.retain_bytes, 2 * kBlock);
    lk::cut_originals(made.rig.cache, &other, 3);
    assert_int_equal(other.n_retained, 3);
    assert_int_equal(made.rig.sequence->n_retained, 4);
    assert_false(lk::has_original(made.rig.cache, other, 3));
    lk::cut_originals(made.rig.cache, &other, 0);
    assert_null(other.originals);
    assert_int_equal(made.originals->n_holders, 1);
    made.originals = nullptr;
    lk::drop_originals(made.rig.cache, made.rig.sequence);
    assert_null(made.rig.sequence->originals);
}

void limits_are_set_by_the_host(void **) {
    Retained made;
    lk_cache *cache = made.rig.cache;
    const lk_sequence id = made.rig.sequence->id;
    assert_int_equal(lk_chunks_retain(cache, id, 2 * kBlock), LK_OK);
    assert_int_equal(made.rig.assign(std::vector<lk_chunk_class>(4, LK_CHUNK_LOW)), LK_OK);
    assert_int_equal(made.rig.sequence->n_retained, 4);
    assert_int_equal(lk_chunks_retain(cache, id, 2 * kBlock - 1), LK_E_BUDGET);
    assert_non_null(made.rig.sequence->originals);
    assert_int_equal(lk_chunks_retain(cache, id, 0), LK_OK);
    assert_null(made.rig.sequence->originals);
    assert_int_equal(made.rig.sequence->retain_bytes, 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(blocks_go_and_come_back),
        cmocka_unit_test(nothing_is_kept_unless_it_is_wanted),
        cmocka_unit_test(refusals_keep_nothing),
        cmocka_unit_test(packed_blocks_have_none),
        cmocka_unit_test(forks_share_them_until_the_last),
        cmocka_unit_test(limits_are_set_by_the_host),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
