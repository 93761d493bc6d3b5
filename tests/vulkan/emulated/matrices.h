// What emulated products of matrices take of a device.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_VULKAN_EMULATED_MATRICES_H
#define LK_TESTS_VULKAN_EMULATED_MATRICES_H

#include <cstdint>

constexpr uint32_t kEmulationBytes = 10240;  // of shared memory: operands of 256 lanes

#endif
