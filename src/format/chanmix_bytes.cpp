// SPDX-License-Identifier: Apache-2.0
#include "format/chanmix_bytes.h"

namespace lk {

uint32_t chanmix_places(const uint8_t *bits, uint32_t n, uint8_t *byte, uint8_t *shift) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; ++i) {
        if (sum % 8 + bits[i] > 8)
            return 0;
        sum += bits[i];
        byte[i] = static_cast<uint8_t>((sum - 1) / 8);
        shift[i] = static_cast<uint8_t>((8 - sum % 8) % 8);
    }
    return sum % 8 ? 0 : sum / 8;
}

}  // namespace lk
