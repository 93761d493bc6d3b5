// Sink logits, centers and scales: the cache's own copies, one after the other, for all heads.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/pages/parameters.h"

#include "cache_rig.h"

namespace {

constexpr uint32_t kHeadDim = CacheRig::kHeadDim;

void two_heads(lk_layer *layer) { layer->n_query_heads = layer->n_kv_heads = 2; }

// Heads without centers have zeros next to heads with them; layers without have none.
void centers_are_copied(void **) {
    CacheRig rig(
        "kivi2", 16u << 20,
        [](lk_plan *plan) {
            const std::vector<float> centers(kHeadDim, 0.5f);
            assert_int_equal(lk_plan_set_key_centers(plan, 1, 1, centers.data()), LK_OK);
        },
        two_heads);
    const lk::LayerView &view = rig.cache->formats.layers[1].view;
    assert_null(rig.cache->formats.layers[0].view.key_centers);
    assert_non_null(view.key_centers);
    assert_true(view.key_centers[0] == 0.0f && view.key_centers[kHeadDim - 1] == 0.0f);
    assert_true(view.key_centers[kHeadDim] == 0.5f);
    assert_null(view.key_scales);
    assert_null(view.key_inverses);
}

void scales_have_inverses(void **) {
    CacheRig rig(
        "kivi2", 16u << 20,
        [](lk_plan *plan) {
            const std::vector<float> scales(kHeadDim, 3.0f);
            assert_int_equal(lk_plan_set_key_scales(plan, 0, 1, scales.data()), LK_OK);
        },
        two_heads);
    const lk::LayerView &view = rig.cache->formats.layers[0].view;
    assert_true(view.key_scales[0] == 1.0f && view.key_inverses[kHeadDim - 1] == 1.0f);
    assert_true(view.key_scales[kHeadDim] == 3.0f);
    assert_true(view.key_inverses[2 * kHeadDim - 1] == 1.0f / 3.0f);
    assert_null(view.key_centers);
    assert_null(rig.cache->formats.layers[1].view.key_scales);
}

// The channels of a block are the largest power of two that divides the head dim.
void rotations_have_their_blocks(void **) {
    CacheRig rig(
        "kivi2", 16u << 20,
        [](lk_plan *plan) {
            assert_int_equal(lk_plan_set_key_rotation(plan, 1, LK_ROTATION_HADAMARD), LK_OK);
        },
        two_heads);
    assert_int_equal(rig.cache->formats.layers[0].view.key_rotation, 0);
    assert_int_equal(rig.cache->formats.layers[1].view.key_rotation, kHeadDim & (0u - kHeadDim));
}

// The host's sink logits may go after the call.
void sink_logits_are_the_caches_own(void **) {
    float logits[] = {1.0f, 2.0f};
    CacheRig rig("kivi2", 16u << 20, {}, [&](lk_layer *layer) {
        two_heads(layer);
        layer->sink_logits = logits;
    });
    logits[0] = logits[1] = 9.0f;
    for (const lk::LayerInfo &layer : rig.cache->formats.layers) {
        assert_true(layer.view.sink_logits[0] == 1.0f);
        assert_true(layer.view.sink_logits[1] == 2.0f);
    }
    assert_ptr_equal(rig.cache->formats.layers[1].view.sink_logits,
                     rig.cache->formats.layers[0].view.sink_logits + 2);
}

void no_memory_is_a_status(void **) {
    CacheRig rig;
    lk::Plan &plan = rig.cache->plan.model;
    plan.runs[plan.layers[0].first_run].key.scales = 0;
    assert_true(rig.cache->plan.model.key_parameters.resize(kHeadDim));
    for (float &scale : rig.cache->plan.model.key_parameters)
        scale = 2.0f;
    rig.memory.give(0);
    assert_int_equal(lk::copy_parameters(rig.plan(), &rig.cache->formats), LK_E_NOMEM);
    sentence_has("128 centers and scales");
    rig.memory.give_all();
    assert_null(rig.cache->formats.layers[0].view.key_scales);
    assert_int_equal(lk::copy_parameters(rig.plan(), &rig.cache->formats), LK_OK);
    assert_true(rig.cache->formats.layers[0].view.key_inverses[kHeadDim - 1] == 0.5f);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(centers_are_copied),
        cmocka_unit_test(scales_have_inverses),
        cmocka_unit_test(rotations_have_their_blocks),
        cmocka_unit_test(sink_logits_are_the_caches_own),
        cmocka_unit_test(no_memory_is_a_status),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
