// What the kernels that append and pack new tokens are pushed.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_APPEND_PUSH_H
#define LK_BACKEND_VULKAN_APPEND_PUSH_H

#include "backend/backend.h"
#include "shaders/push.h"

namespace lk {
namespace vulkan {

// Tokens that a workgroup takes: those that its threads hold at once, several times in long steps.
uint32_t append_step(const LayerView &layer, uint32_t n_tokens, uint32_t n_cores);
// Workgroups that take all tokens of a step.
uint32_t n_append_groups(const AppendPush &push);

// Can pages be packed from the tensors as they are?
bool can_pack_rows(const AppendArgs &args, const AppendPush &push);
// Rows of the staging area.
PushTensor staged_tensor(Address area, const AppendArgs &args);

}  // namespace vulkan
}  // namespace lk

#endif
