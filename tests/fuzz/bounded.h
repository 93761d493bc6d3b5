// Calls of fuzz targets within the bound of cost_expect().
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_FUZZ_BOUNDED_H
#define LK_TESTS_FUZZ_BOUNDED_H

#include "cost/cost.h"

namespace bounded {

struct Bound {
    const char *what;
    uint64_t n_bytes;
    uint64_t free_bytes;
    uint64_t free_ns;
};

// What call() returns; aborts beyond the bound. A virtual machine that stands still looks like time
// of the thread, so a call that takes too long counts when two more do: undo() comes between them.
template <class Call, class Undo>
auto within(const Bound &bound, const Call &call, const Undo &undo) {
    for (int n_left = 2;; --n_left) {
        cost_begin();
        auto result = call();
        if (n_left && !cost_is_in_time(bound.n_bytes, bound.free_ns)) {
            undo();
            continue;
        }
        cost_expect(bound.what, bound.n_bytes, bound.free_bytes, bound.free_ns);
        return result;
    }
}

}  // namespace bounded

#endif
