// Shapes of captured steps.
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
    assert_false(shapes.has(Members{1}.list));
    assert_int_equal(shapes.add(Members{3, 2}.list), LK_OK);
    assert_int_equal(shapes.add(Members{1}.list), LK_OK);
    assert_true(shapes.has(Members{3, 2}.list));
    assert_true(shapes.has(Members{1}.list));
    assert_false(shapes.has(Members{2, 3}.list));
    assert_false(shapes.has(Members{3}.list));
    assert_false(shapes.has(Members{3, 2, 1}.list));
    assert_false(shapes.has(Members{2}.list));
}

void shapes_are_kept_once(void **) {
    CountedMemory memory;
    memory.give(1);
    const lk::Allocator allocator = memory.hooks();
    lk::ReplayShapes shapes(allocator);
    for (int i = 0; i < 3; ++i)
        assert_int_equal(shapes.add(Members{5, 6}.list), LK_OK);
    assert_int_equal(shapes.add(Members{7}.list), LK_E_NOMEM);
    assert_true(shapes.has(Members{5, 6}.list));
    assert_false(shapes.has(Members{7}.list));
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_shape_is_all_its_counts),
        cmocka_unit_test(shapes_are_kept_once),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
