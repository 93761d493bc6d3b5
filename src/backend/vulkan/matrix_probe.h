// Does a device keep cooperative matrices as packed tiles lie?
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_MATRIX_PROBE_H
#define LK_BACKEND_VULKAN_MATRIX_PROBE_H

#include "backend/vulkan/pipelines.h"

namespace lk {
namespace vulkan {

// Asks the device, where it has such matrices at all, and forbids them when it does not.
lk_status probe_matrices(Device *device, Pipelines *pipelines);

}  // namespace vulkan
}  // namespace lk

#endif
