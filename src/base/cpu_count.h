// How many CPUs this process may use.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BASE_CPU_COUNT_H
#define LK_BASE_CPU_COUNT_H

#include <cstdint>

namespace lk {

// The CPUs of the calling thread's affinity mask, and no more than quota_cpus(""); at least 1.
uint32_t usable_cpus();

// The least quota of the process's control groups (versions 1 and 2) and of the groups above them,
// in whole CPUs and at least 1; UINT32_MAX without one. A part of a CPU does not count: when a
// quota is used up, all threads stand still for the rest of its period. root is "", or a folder
// that stands for the root of the file system.
uint32_t quota_cpus(const char *root);

}  // namespace lk

#endif
