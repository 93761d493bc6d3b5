// What the kernel says of the machine.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BASE_PROC_H
#define LK_BASE_PROC_H

#include <cstddef>
#include <cstdint>

namespace lk {

// The value of "key   : value" in a file of such lines; false when it is not there.
bool find_line(const char *path, const char *key, char *value, size_t value_bytes);

// Bytes of a line of /proc/meminfo, 0 when it is not there.
uint64_t memory_line(const char *key);

}  // namespace lk

#endif
