// Captured steps: their shapes, and the calls of each.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/step/replay.h"

#include "core/step/step.h"
#include "counted_memory.h"
#include "suite.h"

#include <initializer_list>

namespace {

// Members with these numbers of new tokens.
struct Members {
    Members(std::initializer_list<uint32_t> counts) {
        for (const uint32_t n : counts) {
            lk::StepSequence member{};
            member.n_new = n;
            assert_true(list.push(member));
        }
    }
    lk::Array<lk::StepSequence> list;
};

void a_shape_is_all_its_counts(void **) {
    lk::ReplayShapes shapes(lk::default_allocator());
    assert_null(shapes.calls(Members{1}.list));
    assert_int_equal(shapes.add(Members{3, 2}.list, 2), LK_OK);
    assert_int_equal(shapes.add(Members{1}.list, 2), LK_OK);
    assert_non_null(shapes.calls(Members{3, 2}.list));
    assert_non_null(shapes.calls(Members{1}.list));
    assert_null(shapes.calls(Members{2, 3}.list));
    assert_null(shapes.calls(Members{3}.list));
    assert_null(shapes.calls(Members{3, 2, 1}.list));
    assert_null(shapes.calls(Members{2}.list));
}

void shapes_are_kept_once(void **) {
    CountedMemory memory;
    memory.give(2);
    const lk::Allocator allocator = memory.hooks();
    lk::ReplayShapes shapes(allocator);
    for (int i = 0; i < 3; ++i)
        assert_int_equal(shapes.add(Members{5, 6}.list, 2), LK_OK);
    assert_int_equal(shapes.add(Members{7}.list, 2), LK_E_NOMEM);
    assert_non_null(shapes.calls(Members{5, 6}.list));
    assert_null(shapes.calls(Members{7}.list));
}

void each_shape_has_its_own_calls(void **) {
    lk::ReplayShapes shapes(lk::default_allocator());
    assert_int_equal(shapes.add(Members{3, 2}.list, 2), LK_OK);
    assert_int_equal(shapes.add(Members{1}.list, 2), LK_OK);
    shapes.calls(Members{3, 2}.list)[1] |= lk::kCapturedAppend;
    shapes.calls(Members{1}.list)[0] |= lk::kCapturedAttend;
    assert_int_equal(shapes.add(Members{4}.list, 2), LK_OK);
    const uint8_t *pair = shapes.calls(Members{3, 2}.list), *one = shapes.calls(Members{1}.list),
                  *last = shapes.calls(Members{4}.list);
    assert_true(pair[0] == 0 && pair[1] == lk::kCapturedAppend);
    assert_true(one[0] == lk::kCapturedAttend && one[1] == 0);
    assert_true(last[0] == 0 && last[1] == 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_shape_is_all_its_counts),
        cmocka_unit_test(shapes_are_kept_once),
        cmocka_unit_test(each_shape_has_its_own_calls),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
