// cmocka for C++ and what the format tests share.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_FORMAT_SUITE_H
#define LK_TESTS_FORMAT_SUITE_H

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include <csetjmp>

extern "C" {
#include <cmocka.h>
}

namespace lk_test {

// --full takes the whole grid where the plain run takes every n-th point.
inline bool &full_grid() {
    static bool full = false;
    return full;
}
inline void read_arguments(int argc, char **argv) {
    for (int i = 1; i < argc; ++i)
        full_grid() = full_grid() || std::strcmp(argv[i], "--full") == 0;
}

}  // namespace lk_test

#endif
