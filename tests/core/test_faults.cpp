// Faults that a device reports: of the open step, and of one that was committed.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/step/faults.h"

#include "cache_rig.h"

namespace {

void set_fault(CacheRig *rig, bool is_earlier) {
    rig->device().data.has_fault = 1;
    rig->device().data.is_earlier = is_earlier;
    rig->device().data.layer = 1;
}

void the_open_step_is_poisoned(void **) {
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    assert_int_equal(lk::check_open(rig.cache), LK_E_STATE);
    assert_int_equal(rig.begin(sequence, 1), LK_OK);
    assert_int_equal(lk::check_step(rig.cache, CacheRig::kLayers - 1), LK_OK);
    assert_int_equal(lk::check_step(rig.cache, CacheRig::kLayers), LK_E_ARGUMENT);
    set_fault(&rig, false);
    assert_int_equal(lk::find_fault(rig.cache), LK_E_DATA);
    assert_true(rig.cache->step.is_poisoned);
    rig.device().data.has_fault = 0;
    assert_int_equal(lk::check_open(rig.cache), LK_E_DATA);
    sentence_has("poisoned");
    assert_int_equal(lk_step_discard(rig.cache), LK_OK);
}

void a_late_fault_is_reported_once(void **) {
    CacheRig rig;
    assert_int_equal(lk::take_late_fault(rig.cache), LK_OK);
    set_fault(&rig, false);
    assert_int_equal(lk::take_late_fault(rig.cache), LK_E_DATA);
    sentence_has("in a step that was committed");
    assert_int_equal(lk::take_late_fault(rig.cache), LK_OK);
    assert_int_equal(rig.device().n_clears, 1);
}

// A discard forgets the open step's fault; the one of a committed step is still to be reported.
void a_discard_forgets_its_own_fault(void **) {
    CacheRig rig;
    set_fault(&rig, true);
    assert_int_equal(lk::find_fault(rig.cache), LK_OK);
    lk::drop_fault(rig.cache);
    assert_true(rig.device().data.has_fault);
    rig.device().data.is_earlier = 0;
    lk::drop_fault(rig.cache);
    assert_false(rig.device().data.has_fault);
}

void sentences_name_the_place_of_a_fault(void **) {
    lk::DataReport report{};
    assert_false(lk::has_fault(report));
    report.has_fault = 1;
    report.layer = 3;
    report.kv_head = 2;
    report.token = 7;
    report.sequence = 9;
    report.is_value = 1;
    assert_true(lk::has_fault(report));
    assert_int_equal(lk::fail_data(report), LK_E_DATA);
    sentence_has("values of layer 3, KV head 2, token 7 of the new ones of sequence 9");
    report = {};
    report.is_wrong_shape = 1;
    assert_true(lk::has_fault(report));
    assert_int_equal(lk::fail_data(report), LK_E_DATA);
    sentence_has("graph");
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(the_open_step_is_poisoned),
        cmocka_unit_test(a_late_fault_is_reported_once),
        cmocka_unit_test(a_discard_forgets_its_own_fault),
        cmocka_unit_test(sentences_name_the_place_of_a_fault),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
