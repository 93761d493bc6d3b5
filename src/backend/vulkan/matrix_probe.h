// Does a device keep cooperative matrices as packed tiles lie?
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_MATRIX_PROBE_H
#define LK_BACKEND_VULKAN_MATRIX_PROBE_H

#include "backend/vulkan/pipelines.h"

namespace lk {
namespace vulkan {

// Tests a device that has such matrices, and forbids them when they lie otherwise.
lk_status probe_matrices(Device *device, Pipelines *pipelines);

}  // namespace vulkan
}  // namespace lk

#endif
