// cmocka for C++.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_CORE_SUITE_H
#define LK_TESTS_CORE_SUITE_H

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {
#include <cmocka.h>
}

#endif
