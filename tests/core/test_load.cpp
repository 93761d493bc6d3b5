// Loading: what comes back is what was saved, and what is refused leaves the cache as it was.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/load.h"

#include "core/pages/pack.h"
#include "snapshot_rig.h"

namespace {

// A parent with sinks, two packed blocks and two at 16 bits, and a fork of it.
struct Saved {
    Saved() {
        parent = rig.add();
        rig.grow(parent, 16 + 3 * 32 + 32);
        assert_int_equal(lk::pack_due_blocks(rig.cache, parent), LK_OK);
        assert_int_equal(parent->first_open, 4);
        rig.step(parent, 3);
        rig.fork(parent, 16 + 3 * 32);
        bytes = save_all(&rig);
    }
    CacheRig rig;
    lk::Sequence *parent;
    std::vector<uint8_t> bytes;
    lk_sequence ids[4] = {};
};

void sequences_come_back(void **) {
    Saved saved;
    CacheRig other;
    other.step(other.add(), 7);
    uint32_t n = 0;
    assert_int_equal(load_all(&other, saved.bytes, saved.ids, 4, &n), LK_OK);
    assert_int_equal(n, 2);
    lk::Sequence *parent = other.cache->sequences.find(saved.ids[0]);
    lk::Sequence *child = other.cache->sequences.find(saved.ids[1]);
    assert_int_equal(saved.ids[0], 2);
    assert_int_equal(parent->length, saved.parent->length);
    assert_int_equal(child->length, 16 + 3 * 32);
    assert_int_equal(parent->block_table.size(), saved.parent->block_table.size());
    assert_int_equal(parent->first_open, 4);
    for (uint64_t i = 0; i < parent->block_table.size(); ++i) {
        assert_int_equal(parent->block(i)->n_packed, saved.parent->block(i)->n_packed);
        assert_int_equal(parent->block(i)->first_token, saved.parent->block(i)->first_token);
    }
    for (uint64_t i = 0; i < child->block_table.size(); ++i)
        assert_ptr_equal(child->block(i), parent->block(i));
    assert_int_equal(other.counts().n_tokens, 7 + parent->length + child->length);
    assert_int_equal(other.device().n_stale, 0);
    other.step({{parent, 1}, {child, 40}});
    assert_true(save_all(&other).size() > saved.bytes.size());
}

// Loaded into a fresh cache and saved once more, the bytes are the same.
void a_loaded_cache_saves_the_same(void **) {
    Saved saved;
    const lk::CacheBlock &block = *saved.parent->block(2);
    std::memset(reinterpret_cast<void *>(block.entries[1].key_payload), 0x5a, 64);
    saved.bytes = save_all(&saved.rig);
    CacheRig other;
    assert_int_equal(load_all(&other, saved.bytes, saved.ids, 4), LK_OK);
    assert_true(save_all(&other) == saved.bytes);
}

void sums_come_back(void **) {
    CacheRig rig("kivi2", 16u << 20, rank_by_queries);
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 16 + 40);
    const std::vector<uint8_t> bytes = save_all(&rig);
    CacheRig other("kivi2", 16u << 20, rank_by_queries);
    lk_sequence id = 0;
    assert_int_equal(load_all(&other, bytes, &id, 1), LK_OK);
    const lk::QueryStats &stats = *other.cache->sequences.find(id)->query_stats;
    assert_int_equal(stats.n_items(), sequence->query_stats->n_items());
    assert_int_equal(stats.item_block(1), 2);
}

void refused(Saved *saved, CacheRig *rig, lk_status expected, uint32_t capacity = 4) {
    const Held before = rig->held();
    assert_int_equal(load_all(rig, saved->bytes, saved->ids, capacity), expected);
    rig->assert_held(before);
    assert_int_equal(saved->ids[0], 0);
}

void there_must_be_space_for_the_sequences(void **) {
    Saved saved;
    CacheRig other;
    uint32_t n = 0;
    assert_int_equal(load_all(&other, saved.bytes, saved.ids, 1, &n), LK_E_ARGUMENT);
    assert_int_equal(n, 2);
    assert_int_equal(load_all(&other, saved.bytes, nullptr, 4), LK_E_ARGUMENT);
    refused(&saved, &other, LK_E_ARGUMENT, 1);
    for (int i = 0; i < 3; ++i)
        other.add();
    refused(&saved, &other, LK_E_BUDGET);
    sentence_has("the snapshot has 2 sequences, the cache has 3 of 4");
}

void other_models_are_refused(void **) {
    Saved saved;
    CacheRig plan("kivi4");
    refused(&saved, &plan, LK_E_MISMATCH);
    sentence_has("the snapshot is of plan kivi2");
    CacheRig rotated("kivi2", 16u << 20, [](lk_plan *own) {
        assert_int_equal(lk_plan_set_key_rotation(own, 1, LK_ROTATION_HADAMARD), LK_OK);
    });
    refused(&saved, &rotated, LK_E_MISMATCH);
    sentence_has("keys of layer 1 are not rotated in the snapshot (plan kivi2) and rotated in");
    CacheRig geometry("kivi2", 16u << 20, {}, [](lk_layer *layer) { layer->n_query_heads = 2; });
    refused(&saved, &geometry, LK_E_MISMATCH);
    sentence_has("the snapshot is of geometry");
    CacheRig same;
    lk_snapshot_desc desc;
    assert_int_equal(lk_snapshot_desc_init(&desc, sizeof desc), LK_OK);
    desc.fingerprint = "model";
    desc.fingerprint_bytes = 5;
    assert_int_equal(load_all(&same, saved.bytes, saved.ids, 4, nullptr, &desc), LK_E_MISMATCH);
    sentence_has("fingerprint of 0 bytes");
    saved.bytes = save_all(&saved.rig, &desc);
    refused(&saved, &same, LK_E_MISMATCH);
    assert_int_equal(load_all(&same, saved.bytes, saved.ids, 4, nullptr, &desc), LK_OK);
}

// Wherever the bytes end or are wrong.
void damaged_bytes_leave_the_cache_as_it_was(void **) {
    Saved saved;
    CacheRig other;
    const std::vector<uint8_t> whole = saved.bytes;
    for (size_t i = 0; i < whole.size(); i += 1 + whole.size() / 150) {
        saved.bytes = whole;
        saved.bytes[i] ^= 1;
        const Held before = other.held();
        const lk_status status = load_all(&other, saved.bytes, saved.ids, 4);
        assert_true(status == LK_E_CORRUPT || status == LK_E_MISMATCH);
        other.assert_held(before);
        saved.bytes.assign(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(i));
        refused(&saved, &other, LK_E_CORRUPT);
    }
}

// A stream shows its end only when all of its sequences were read.
void bytes_after_the_end_are_refused_too(void **) {
    Saved saved;
    CacheRig other;
    struct Reading {
        const std::vector<uint8_t> &bytes;
        size_t at;

        static int64_t read(void *self, void *data, size_t n_bytes) {
            auto *reading = static_cast<Reading *>(self);
            const size_t left = reading->bytes.size() - reading->at;
            const size_t n = n_bytes < left ? n_bytes : left;
            std::memcpy(data, reading->bytes.data() + reading->at, n);
            reading->at += n;
            return static_cast<int64_t>(n);
        }
    };
    const auto load = [&] {
        Reading reading{saved.bytes, 0};
        lk::CallbackSource source(lk::default_allocator(), Reading::read, &reading, 0);
        return lk::load_snapshot(other.cache, {nullptr, 4, saved.ids, nullptr}, &source);
    };
    const Held before = other.held();
    saved.bytes.push_back(0);
    assert_int_equal(load(), LK_E_CORRUPT);
    sentence_has("bytes after its end");
    other.assert_held(before);
    assert_int_equal(saved.ids[0], 0);
    saved.bytes.pop_back();
    assert_int_equal(load(), LK_OK);
}

void failures_on_the_way_leave_the_cache_as_it_was(void **) {
    Saved saved;
    CacheRig other;
    assert_int_equal(other.cache->sequences.next_id, 1);
    other.device().fails_copies = true;
    refused(&saved, &other, LK_E_DEVICE);
    other.device().fails_copies = false;
    other.device().max_blocks = 3;
    refused(&saved, &other, LK_E_NOMEM);
    other.device().max_blocks = SIZE_MAX;
    const uint64_t limit = other.cache->ledger.limit_bytes;
    for (uint64_t more = 0; more < 2; ++more) {
        other.cache->ledger.limit_bytes =
            other.cache->ledger.used_bytes() + more * (LK_EXTENT_BYTES + 1000);
        refused(&saved, &other, LK_E_BUDGET);
    }
    other.cache->ledger.limit_bytes = limit;
    assert_true(
        other.run_out_of_memory([&] { return load_all(&other, saved.bytes, saved.ids, 4); }) > 10);
    assert_int_equal(saved.ids[0], 1);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(sequences_come_back),
        cmocka_unit_test(a_loaded_cache_saves_the_same),
        cmocka_unit_test(sums_come_back),
        cmocka_unit_test(there_must_be_space_for_the_sequences),
        cmocka_unit_test(other_models_are_refused),
        cmocka_unit_test(damaged_bytes_leave_the_cache_as_it_was),
        cmocka_unit_test(bytes_after_the_end_are_refused_too),
        cmocka_unit_test(failures_on_the_way_leave_the_cache_as_it_was),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
