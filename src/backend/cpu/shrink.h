// Packed payloads that get narrower where they are, or move.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_SHRINK_H
#define LK_BACKEND_CPU_SHRINK_H

#include "backend/backend.h"

namespace lk {
namespace cpu {

void shrink_item(const ShrinkItem &item);

}  // namespace cpu
}  // namespace lk

#endif
