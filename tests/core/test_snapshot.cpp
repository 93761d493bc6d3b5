// What saves, loads and inspections have in common: their description, the plan's text, and the
// header against the plan.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/snapshot.h"

#include "cache_rig.h"

#include <string>

namespace {

void descriptions_are_checked(void **) {
    lk_snapshot_desc out;
    std::memset(&out, 0xff, sizeof out);
    assert_int_equal(lk::import_snapshot_desc(nullptr, &out), LK_OK);
    assert_int_equal(out.fingerprint_bytes, 0);
    assert_true(out.progress == nullptr);
    const uint8_t bytes[257] = {};
    lk_snapshot_desc from;
    assert_int_equal(lk_snapshot_desc_init(&from, sizeof from), LK_OK);
    from.fingerprint_bytes = 256;
    assert_int_equal(lk::import_snapshot_desc(&from, &out), LK_E_ARGUMENT);
    sentence_has("fingerprint is NULL");
    from.fingerprint = bytes;
    assert_int_equal(lk::import_snapshot_desc(&from, &out), LK_OK);
    assert_ptr_equal(out.fingerprint, bytes);
    from.fingerprint_bytes = 257;
    assert_int_equal(lk::import_snapshot_desc(&from, &out), LK_E_ARGUMENT);
    sentence_has("at most 256");
}

void progress_may_end_it(void **) {
    lk_snapshot_desc desc{};
    assert_int_equal(lk::report_progress(desc, 1, 2), LK_OK);
    uint64_t seen[2] = {};
    desc.progress_user = seen;
    desc.progress = [](void *user, uint64_t done_bytes, uint64_t total_bytes) {
        static_cast<uint64_t *>(user)[0] = done_bytes;
        static_cast<uint64_t *>(user)[1] = total_bytes;
        return int32_t{done_bytes > 6 ? -4 : 0};
    };
    assert_int_equal(lk::report_progress(desc, 6, 9), LK_OK);
    assert_int_equal(seen[0], 6);
    assert_int_equal(seen[1], 9);
    assert_int_equal(lk::report_progress(desc, 7, 9), LK_E_IO);
    sentence_has("ended it with -4 after 7 of 9 bytes");
}

void only_a_quiet_cache_is_settled(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    assert_int_equal(lk::settle_cache(rig.cache, "saved"), LK_OK);
    assert_int_equal(rig.device().n_queues, 0);
    assert_int_equal(rig.begin(sequence, 1), LK_OK);
    assert_int_equal(lk::settle_cache(rig.cache, "saved"), LK_E_BUSY);
    sentence_has("before the cache is saved");
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
    rig.device().capturing = true;
    assert_int_equal(lk::settle_cache(rig.cache, "loaded into"), LK_E_STATE);
    rig.device().capturing = false;
    // What was recorded is the host's to submit, so the device is left without that queue.
    rig.backend.own_traits.recorded_queue = LK_QUEUE_CUDA_STREAM;
    rig.step(sequence, 1);
    const uint32_t n_queues = rig.device().n_queues;
    assert_int_equal(lk::settle_cache(rig.cache, "saved"), LK_OK);
    assert_int_equal(rig.device().n_queues, n_queues + 1);
    assert_null(rig.device().handle);
}

std::string text_of(const lk::Plan &plan) {
    lk::Array<uint8_t> text;
    assert_int_equal(lk::plan_text(plan, lk::default_allocator(), &text), LK_OK);
    return {text.begin(), text.end()};
}

// A cache that has shrunk has the text of one that has not.
void texts_are_of_the_first_rung(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_ladders);
    const std::string text = text_of(rig.plan());
    assert_int_equal(text.front(), '{');
    assert_int_not_equal(text.back(), 0);
    rig.cache->plan.model.layers[1].rung = 4;
    assert_true(text_of(rig.plan()) == text);
    assert_int_equal(rig.plan().layers[1].rung, 4);
    rig.cache->plan.model.layers[1].rung = 16;
    lk::Array<uint8_t> out(rig.context.allocator);
    assert_true(rig.run_out_of_memory(
                    [&] { return lk::plan_text(rig.plan(), rig.context.allocator, &out); }) >= 3);
}

void texts_are_read_back_and_checked(void **) {
    CacheRig rig("kitty");
    lk::Array<uint8_t> text;
    assert_int_equal(lk::plan_text(rig.plan(), lk::default_allocator(), &text), LK_OK);
    lk::Plan read;
    assert_int_equal(lk::parse_plan_text(text, &read), LK_OK);
    assert_int_equal(lk::geometry_hash(read), lk::geometry_hash(rig.plan()));
    assert_true(text_of(read) == text_of(rig.plan()));
    for (const uint64_t n_bytes : {text.size() - 3, text.size() / 2}) {
        assert_true(text.resize(n_bytes));
        lk::Plan cut;
        assert_int_not_equal(lk::parse_plan_text(text, &cut), LK_OK);
    }
}

void headers_state_what_the_plan_does(void **) {
    CacheRig rig;
    lk::SnapshotHeader header{};
    header.geometry_hash = lk::geometry_hash(rig.plan());
    header.n_entries = 2;
    header.page_tokens = 32;
    header.sink_tokens = 16;
    assert_int_equal(lk::check_header_plan(header, rig.plan()), LK_OK);
    for (uint32_t lk::SnapshotHeader::*member :
         {&lk::SnapshotHeader::n_entries, &lk::SnapshotHeader::page_tokens,
          &lk::SnapshotHeader::sink_tokens}) {
        lk::SnapshotHeader wrong = header;
        ++(wrong.*member);
        assert_int_equal(lk::check_header_plan(wrong, rig.plan()), LK_E_CORRUPT);
    }
    sentence_has("after 17 sinks");
    ++header.geometry_hash;
    assert_int_equal(lk::check_header_plan(header, rig.plan()), LK_E_CORRUPT);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(descriptions_are_checked),
        cmocka_unit_test(progress_may_end_it),
        cmocka_unit_test(only_a_quiet_cache_is_settled),
        cmocka_unit_test(texts_are_of_the_first_rung),
        cmocka_unit_test(texts_are_read_back_and_checked),
        cmocka_unit_test(headers_state_what_the_plan_does),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
