// Saving: what is measured is what is written, in an order that depends on the sequences alone.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/save.h"

#include "format/codec.h"
#include "format/snapshot_frame.h"
#include "snapshot_rig.h"

namespace {

// Bytes of the pages of a whole block at 16 bits.
constexpr uint64_t kBlock = 2 * 2 * 32 * 32 * 2;

lk::SnapshotHeader header_of(const std::vector<uint8_t> &bytes) {
    lk::SnapshotHeader header;
    assert_int_equal(lk::read_header(bytes.data(), bytes.size(), &header), LK_OK);
    return header;
}

void headers_count_what_follows(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 16 + 2 * 32 + 3);
    rig.step(rig.add(), 5);
    const Held before = rig.held();
    const lk::SnapshotHeader header = header_of(save_all(&rig));
    rig.assert_held(before);
    assert_int_equal(header.n_sequences, 2);
    assert_int_equal(header.n_tokens, 16 + 2 * 32 + 3 + 5);
    assert_int_equal(header.n_blocks, 4 + 1);
    assert_int_equal(header.n_entries, 2);
    assert_int_equal(header.page_tokens, 32);
    assert_int_equal(header.sink_tokens, 16);
    assert_int_equal(header.n_formats, rig.cache->formats.table.size());
}

// Blocks that all forks have in full come once; the one in which a fork ends comes again.
void shared_blocks_are_written_once(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 16 + 2 * 32);
    const size_t alone = save_all(&rig).size();
    rig.fork(sequence);
    const std::vector<uint8_t> whole = save_all(&rig);
    assert_int_equal(header_of(whole).n_blocks, 3);
    assert_true(whole.size() < alone + 200);
    rig.fork(sequence, 16 + 40);
    const std::vector<uint8_t> more = save_all(&rig);
    assert_int_equal(header_of(more).n_blocks, 4);
    assert_true(more.size() > whole.size() + kBlock);
}

// Of a block in which a sequence ends, tokens that are not the sequence's are zeros.
void tokens_of_others_are_not_saved(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.step(sequence, 16 + 17);
    std::vector<std::vector<uint8_t>> saved;
    for (const uint32_t number : {0x11u, 0x22u}) {
        // Token 16 of the block and those before it are equal, the others are not.
        const lk::CacheBlock &block = *sequence->block(1);
        for (uint32_t e = 0; e < block.n_entries; ++e)
            for (const bool is_value : {false, true}) {
                const lk::PageEntry &entry = block.entries[e];
                const lk::PageFormat &page =
                    rig.cache->formats[is_value ? entry.value_format : entry.key_format];
                auto *payload =
                    reinterpret_cast<uint8_t *>(is_value ? entry.value_payload : entry.key_payload);
                for (uint32_t token = 0; token < 32; ++token)
                    for (uint32_t channel = 0; channel < 32; ++channel)
                        lk::write_code(page.layout, payload, channel, token,
                                       token < 17 ? 0x3c00 : number);
            }
        saved.push_back(save_all(&rig));
    }
    assert_int_equal(saved[0].size(), saved[1].size());
    assert_memory_equal(saved[0].data(), saved[1].data(), saved[0].size());
}

void chosen_sequences_are_checked(void **) {
    CacheRig rig;
    const lk_sequence first = rig.add()->id;
    const lk_sequence second = rig.add()->id;
    uint64_t n_bytes = 0;
    const auto measure = [&](std::vector<lk_sequence> ids, uint32_t n) {
        return lk::snapshot_bytes(rig.cache, {n, ids.empty() ? nullptr : ids.data(), nullptr},
                                  &n_bytes);
    };
    assert_int_equal(measure({second, first}, 2), LK_OK);
    assert_int_equal(measure({}, 1), LK_E_ARGUMENT);
    assert_int_equal(measure({first}, 0), LK_E_ARGUMENT);
    assert_int_equal(measure({first, second, 9}, 3), LK_E_ARGUMENT);
    assert_int_equal(measure({first, 9}, 2), LK_E_NOT_FOUND);
    assert_int_equal(measure({first, first}, 2), LK_E_ARGUMENT);
    sentence_has("named twice");
}

// A sink that has memory for n chunks, and refuses the one after.
class ShortSink final : public lk::SnapshotSink {
  public:
    uint8_t *reserve(uint64_t n_bytes) override {
        bytes.resize(n_bytes);
        return n_chunks == n_reserved ? nullptr : bytes.data();
    }
    lk_status put(uint64_t) override {
        ++n_chunks;
        return n_chunks == n_put ? refuse(LK_E_IO, "the sink is full") : LK_OK;
    }
    std::vector<uint8_t> bytes;
    uint32_t n_chunks = 0;
    uint32_t n_reserved = UINT32_MAX;
    uint32_t n_put = UINT32_MAX;
};

void every_failure_ends_the_save(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 16 + 32 + 3);
    rig.fork(sequence);
    const Held before = rig.held();
    const lk::SnapshotChoice all = {0, nullptr, nullptr};
    ShortSink whole;
    assert_int_equal(lk::save_snapshot(rig.cache, all, &whole), LK_OK);
    assert_int_equal(whole.n_chunks, 4 + 2 + 4);  // the header and three; sequences; blocks
    for (uint32_t n = 0; n < whole.n_chunks; ++n) {
        ShortSink without_memory;
        without_memory.n_reserved = n;
        assert_int_equal(lk::save_snapshot(rig.cache, all, &without_memory), LK_E_NOMEM);
        ShortSink full;
        full.n_put = n + 1;
        assert_int_equal(lk::save_snapshot(rig.cache, all, &full), LK_E_IO);
        assert_int_equal(full.n_chunks, n + 1);
    }
    rig.device().fails_copies = true;
    ShortSink sink;
    assert_int_equal(lk::save_snapshot(rig.cache, all, &sink), LK_E_DEVICE);
    rig.device().fails_copies = false;
    assert_true(rig.run_out_of_memory([&] {
        ShortSink each;
        return lk::save_snapshot(rig.cache, all, &each);
    }) >= 4);
    rig.assert_held(before);
}

int32_t note_progress(void *user, uint64_t done_bytes, uint64_t total_bytes) {
    auto *seen = static_cast<std::vector<uint64_t> *>(user);
    if (!seen->empty())
        assert_true(done_bytes > seen->back());
    seen->push_back(done_bytes);
    return done_bytes < total_bytes ? 0 : 3;
}

void progress_ends_at_the_whole(void **) {
    CacheRig rig;
    rig.step(rig.add(), 16 + 40);
    const size_t whole = save_all(&rig).size();
    std::vector<uint64_t> seen;
    lk_snapshot_desc desc;
    assert_int_equal(lk_snapshot_desc_init(&desc, sizeof desc), LK_OK);
    desc.progress = note_progress;
    desc.progress_user = &seen;
    ShortSink sink;
    assert_int_equal(lk::save_snapshot(rig.cache, {0, nullptr, &desc}, &sink), LK_E_IO);
    sentence_has("the progress callback ended it with 3");
    assert_int_equal(seen.back(), whole);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(headers_count_what_follows),
        cmocka_unit_test(shared_blocks_are_written_once),
        cmocka_unit_test(tokens_of_others_are_not_saved),
        cmocka_unit_test(chosen_sequences_are_checked),
        cmocka_unit_test(every_failure_ends_the_save),
        cmocka_unit_test(progress_ends_at_the_whole),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
