// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/pack_fast.h"

namespace lk {
namespace cpu {

void pack_half_fast(const HalfShape &shape, HalfValues input, const uint8_t *permutation, uint8_t *payload,
                    uint8_t *metadata) {
    pack_half(shape, input, permutation, payload, metadata);
}

}  // namespace cpu
}  // namespace lk
