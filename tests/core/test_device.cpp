// What the core passes to a device that runs next to the host, and what it makes of its reports.
//
// SPDX-License-Identifier: Apache-2.0
#include "cache_rig.h"

#include <lowkey/chunks.h>

namespace {

// Two sequences. Tensors lie over each other, since nothing runs.
struct Rig : CacheRig {
    explicit Rig(const char *preset = "kivi2", uint64_t budget_bytes = 16u << 20)
        : CacheRig(preset, budget_bytes), sequences{add(), add()} {}

    lk_status begin(uint32_t n, uint32_t m = 0) {
        return m ? CacheRig::begin({{sequences[0], n}, {sequences[1], m}})
                 : CacheRig::begin(sequences[0], n);
    }
    void step(uint32_t n, uint32_t m = 0) {
        assert_int_equal(begin(n, m), LK_OK);
        run_layers();
        assert_int_equal(lk_step_commit(cache, nullptr), LK_OK);
    }
    lk_status append(uint32_t layer) {
        const lk_tensor kv = tensor(0);
        return lk_append(cache, layer, &kv, &kv);
    }
    lk_status attend(uint32_t layer) {
        const lk_tensor q = tensor(0);
        const lk_tensor out = tensor(sizeof backend.tensors / 2);
        return lk_attend(cache, layer, &q, &out, nullptr);
    }
    void fault(bool is_earlier) {
        device().data.has_fault = 1;
        device().data.is_earlier = is_earlier;
        device().data.layer = 1;
        device().data.token = 3;
        device().data.sequence = sequences[0]->id;
    }

    lk::Sequence *sequences[2];
};

void blocks_are_reported(void **) {
    Rig rig;
    FakeDevice &device = rig.device();
    for (uint32_t i = 0; i < 40; ++i)
        rig.step(5, 7);
    rig.step(200, 1);
    assert_int_equal(device.n_stale, 0);
    assert_true(rig.backend.layout.max_blocks >= device.blocks.size());
    const uint32_t n_changes = device.n_changes;
    assert_int_equal(lk_sequence_truncate(rig.cache, rig.sequences[0]->id, 100), LK_OK);
    assert_int_equal(device.n_changes, n_changes + 1);
    rig.step(1, 65);
    const lk::Batch &batch = device.last_begin;
    assert_int_equal(batch.n_tokens, 66);
    assert_int_equal(batch.sequences[0].id, rig.sequences[0]->id);
    assert_int_equal(batch.sequences[0].n_attended, batch.sequences[0].n_blocks);
    assert_int_equal(batch.sequences[1].first_new, 1);
    assert_false(batch.sequences[1].new_in_blocks);
    assert_true(batch.sequences[1].n_attended < batch.sequences[1].n_blocks);
    assert_int_equal(lk_sequence_remove(rig.cache, rig.sequences[1]->id), LK_OK);
    assert_int_equal(device.n_stale, 0);
    lk_cache_stats stats;
    assert_int_equal(lk_cache_stats_init(&stats, sizeof stats), LK_OK);
    device.data.n_saturated = 9;
    assert_int_equal(lk_cache_get_stats(rig.cache, &stats), LK_OK);
    assert_int_equal(stats.values_saturated, 9);
    assert_int_equal(stats.device_bytes, 4321);
}

// The least budget holds what it can in packed blocks, and never more blocks than the device
// expects.
void blocks_stay_below_the_most(void **) {
    Rig rig("kivi2", 4u << 20);
    uint32_t n = 0;
    while (rig.begin(512) == LK_OK) {
        rig.run_layers();
        assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
        ++n;
    }
    assert_true(n > 4);
    assert_true(rig.device().blocks.size() <= rig.backend.layout.max_blocks);
    assert_true(rig.device().blocks.size() * 2 > rig.backend.layout.max_blocks);
}

void a_refused_begin_changes_nothing(void **) {
    Rig rig;
    FakeDevice &device = rig.device();
    rig.step(20);
    const size_t n_blocks = device.blocks.size();
    device.fails_begin = true;
    assert_int_equal(rig.begin(100), LK_E_DEVICE);
    device.fails_begin = false;
    assert_int_equal(device.blocks.size(), n_blocks);
    device.max_blocks = n_blocks + 1;
    assert_int_equal(rig.begin(100), LK_E_NOMEM);
    device.max_blocks = SIZE_MAX;
    assert_int_equal(device.blocks.size(), n_blocks);
    assert_int_equal(rig.sequences[0]->length, 20);
    const uint32_t one = 1;
    assert_int_equal(lk_step_begin(rig.cache, nullptr, 1, &rig.sequences[0]->id, &one, nullptr),
                     LK_E_ARGUMENT);
    device.capturing = true;
    assert_int_equal(rig.begin(1), LK_E_STATE);
    assert_int_equal(lk_sequence_truncate(rig.cache, rig.sequences[0]->id, 3), LK_E_STATE);
    sentence_has("captured");
    device.capturing = false;
    rig.queue.handle = &rig;
    rig.step(1);
    assert_ptr_equal(device.handle, &rig);
}

void tensors_are_the_devices(void **) {
    Rig rig;
    assert_int_equal(rig.begin(1), LK_OK);
    char host[64];
    lk_tensor here = rig.tensor(0);
    here.data = host;
    const lk_tensor there = rig.tensor(0);
    const lk_tensor out = rig.tensor(4096);
    assert_int_equal(lk_append(rig.cache, 0, &here, &there), LK_E_ARGUMENT);
    sentence_has("k.data");
    assert_int_equal(lk_append(rig.cache, 0, &there, &here), LK_E_ARGUMENT);
    assert_int_equal(rig.append(0), LK_OK);
    assert_int_equal(lk_attend(rig.cache, 0, &here, &out, nullptr), LK_E_ARGUMENT);
    sentence_has("q.data");
    assert_int_equal(lk_attend(rig.cache, 0, &there, &here, nullptr), LK_E_ARGUMENT);
    here = there;
    here.offset_bytes = 4;
    assert_int_equal(lk_attend(rig.cache, 0, &here, &out, nullptr), LK_E_ARGUMENT);
    sentence_has("CUDA memory");
    here.offset_bytes = 0;
    here.memory = LK_MEMORY_HOST;
    assert_int_equal(lk_attend(rig.cache, 0, &here, &out, nullptr), LK_E_UNSUPPORTED);
    assert_int_equal(rig.attend(0), LK_OK);
}

void a_fault_of_the_open_step_poisons_it(void **) {
    Rig rig;
    assert_int_equal(rig.begin(4), LK_OK);
    assert_int_equal(rig.append(0), LK_OK);
    assert_int_equal(lk_cache_poll(rig.cache), LK_OK);
    rig.fault(false);
    assert_int_equal(lk_cache_poll(rig.cache), LK_E_DATA);
    sentence_has("keys of layer 1, KV head 0, token 3");
    assert_int_equal(rig.attend(0), LK_E_DATA);
    sentence_has("sequence 1");
    assert_int_equal(rig.append(1), LK_E_DATA);
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_E_DATA);
    assert_int_equal(lk_step_replay(rig.cache), LK_E_DATA);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
    assert_int_equal(lk_cache_poll(rig.cache), LK_OK);
    assert_int_equal(rig.device().n_clears, 1);
    rig.step(4);
}

void a_fault_of_a_committed_step_is_reported_once(void **) {
    Rig rig;
    rig.step(4);
    rig.fault(false);
    assert_int_equal(lk_cache_poll(rig.cache), LK_E_DATA);
    assert_int_equal(rig.begin(1), LK_E_DATA);
    sentence_has("committed");
    assert_int_equal(lk_cache_poll(rig.cache), LK_OK);
    assert_int_equal(rig.begin(1), LK_OK);
    rig.fault(true);
    rig.run_layers();
    assert_int_equal(lk_cache_poll(rig.cache), LK_E_DATA);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
    assert_int_equal(rig.begin(1), LK_E_DATA);
    rig.step(1);
    assert_int_equal(rig.sequences[0]->length, 5);
}

void a_graph_of_another_shape_is_a_fault(void **) {
    Rig rig;
    assert_int_equal(rig.begin(4), LK_OK);
    rig.device().data.is_wrong_shape = 1;
    assert_int_equal(lk_cache_poll(rig.cache), LK_E_DATA);
    sentence_has("graph");
    assert_int_equal(rig.append(0), LK_E_DATA);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
    rig.step(4);
}

void capture(Rig *rig, uint32_t n, uint32_t m = 0) {
    assert_int_equal(rig->begin(n, m), LK_OK);
    rig->device().capturing = true;
    rig->run_layers();
    rig->device().capturing = false;
    assert_int_equal(lk_step_commit(rig->cache, nullptr), LK_OK);
}

void captured_shapes_replay(void **) {
    Rig rig;
    assert_int_equal(lk_step_replay(nullptr), LK_E_ARGUMENT);
    assert_int_equal(lk_step_replay(rig.cache), LK_E_STATE);
    rig.step(3, 2);
    capture(&rig, 3, 2);
    capture(&rig, 1);
    const uint32_t n_appends = rig.device().n_appends;
    for (const bool is_pair : {true, false, true}) {
        assert_int_equal(is_pair ? rig.begin(3, 2) : rig.begin(1), LK_OK);
        assert_int_equal(lk_step_replay(rig.cache), LK_OK);
        assert_int_equal(rig.append(0), LK_E_STATE);
        assert_int_equal(rig.attend(0), LK_E_STATE);
        assert_int_equal(lk_step_replay(rig.cache), LK_OK);  // nothing is left to declare
        assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
    }
    assert_int_equal(rig.device().n_appends, n_appends);
    assert_int_equal(rig.sequences[0]->length, 3 + 3 + 1 + 3 + 1 + 3);
    const uint32_t others[][2] = {{2, 3}, {3, 0}, {2, 0}, {3, 3}};
    for (const uint32_t *counts : others) {
        assert_int_equal(rig.begin(counts[0], counts[1]), LK_OK);
        assert_int_equal(lk_step_replay(rig.cache), LK_E_STATE);
        sentence_has("captured");
        assert_int_equal(lk_step_discard(rig.cache), LK_OK);
    }
}

// A graph of some layers: a replay declares those, and the host makes the calls of the others.
void captured_layers_replay_beside_calls(void **) {
    static_assert(Rig::kLayers == 2);
    Rig rig;
    rig.step(5);
    assert_int_equal(rig.begin(1), LK_OK);
    assert_int_equal(rig.append(0), LK_OK);
    assert_int_equal(rig.attend(0), LK_OK);
    rig.device().capturing = true;
    assert_int_equal(rig.append(1), LK_OK);
    rig.device().capturing = false;
    assert_int_equal(rig.attend(1), LK_OK);
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);

    assert_int_equal(rig.begin(1), LK_OK);
    assert_int_equal(lk_step_replay(rig.cache), LK_OK);
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_E_STATE);  // layer 0 is in no graph
    sentence_has("layer 0 has no keys");
    assert_int_equal(rig.append(1), LK_E_STATE);
    assert_int_equal(rig.append(0), LK_OK);
    assert_int_equal(rig.attend(0), LK_OK);
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);

    // The other way round, after the calls, and the attention of layer 1 is captured too.
    for (const bool is_captured : {true, false}) {
        assert_int_equal(rig.begin(1), LK_OK);
        assert_int_equal(rig.append(0), LK_OK);
        assert_int_equal(rig.attend(0), LK_OK);
        if (is_captured) {
            rig.device().capturing = true;
            assert_int_equal(rig.append(1), LK_OK);
            assert_int_equal(rig.attend(1), LK_OK);
            rig.device().capturing = false;
        } else {
            assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_E_STATE);
            assert_int_equal(lk_step_replay(rig.cache), LK_OK);
            assert_int_equal(rig.attend(1), LK_E_STATE);
            sentence_has("attended in this step already");
        }
        assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
    }
    // Layers that ran without a graph stay as they are.
    rig.step(1);
    assert_int_equal(rig.sequences[0]->length, 5 + 5);
}

void long_steps_are_not_captured(void **) {
    Rig rig;
    assert_int_equal(rig.begin(1, 65), LK_OK);
    rig.device().capturing = true;
    assert_int_equal(rig.append(0), LK_E_UNSUPPORTED);
    sentence_has("65");
    assert_int_equal(rig.device().n_appends, 0);
    rig.device().capturing = false;
    assert_int_equal(lk_step_replay(rig.cache), LK_E_STATE);
    rig.run_layers();
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
}

void steps_that_score_chunks_are_in_no_graph(void **) {
    Rig rig("fp16");
    rig.step(16 + 64 + 10);
    capture(&rig, 2);
    lk_chunk_attention request;
    assert_int_equal(lk_chunk_attention_init(&request, sizeof request), LK_OK);
    request.n_query_tokens = 2;
    request.n_chunks = 2;
    rig.device().capturing = true;
    assert_int_equal(lk_chunks_score_attention(rig.cache, rig.sequences[0]->id, &request),
                     LK_E_STATE);
    rig.device().capturing = false;
    assert_int_equal(lk_chunks_score_attention(rig.cache, rig.sequences[0]->id, &request), LK_OK);
    assert_int_equal(rig.begin(2), LK_OK);
    assert_int_equal(lk_step_replay(rig.cache), LK_E_STATE);
    sentence_has("which no graph does");
    rig.device().capturing = true;
    assert_int_equal(rig.append(0), LK_OK);
    assert_int_equal(rig.attend(0), LK_E_STATE);
    sentence_has("which no graph does");
    rig.device().capturing = false;
    assert_int_equal(rig.device().n_chunk_attentions, 0);
    assert_int_equal(rig.attend(0), LK_OK);
    assert_int_equal(rig.device().n_chunk_attentions, 1);
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
    rig.step(2);
    assert_int_equal(rig.device().n_chunk_attentions, 1 + Rig::kLayers);
    capture(&rig, 2);
    assert_int_equal(rig.begin(2), LK_OK);
    assert_int_equal(lk_step_replay(rig.cache), LK_OK);
    assert_int_equal(lk_step_commit(rig.cache, nullptr), LK_OK);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_reported),
        cmocka_unit_test(blocks_stay_below_the_most),
        cmocka_unit_test(a_refused_begin_changes_nothing),
        cmocka_unit_test(tensors_are_the_devices),
        cmocka_unit_test(a_fault_of_the_open_step_poisons_it),
        cmocka_unit_test(a_fault_of_a_committed_step_is_reported_once),
        cmocka_unit_test(a_graph_of_another_shape_is_a_fault),
        cmocka_unit_test(captured_shapes_replay),
        cmocka_unit_test(captured_layers_replay_beside_calls),
        cmocka_unit_test(long_steps_are_not_captured),
        cmocka_unit_test(steps_that_score_chunks_are_in_no_graph),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
