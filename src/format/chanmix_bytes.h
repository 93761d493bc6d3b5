// ChanMix's own byte order, in which its kernels keep codes: all channels of a token together, the
// first channel of a byte in its highest bits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_CHANMIX_BYTES_H
#define LK_FORMAT_CHANMIX_BYTES_H

#include <cstdint>

namespace lk {

// Offsets of the codes of n channels of widths bits [n], in that order: with the running sum of
// widths, byte (sum - 1) / 8 and shift (8 - sum % 8) % 8. Returns the bytes of a token, or 0 when a
// channel would need two bytes or the last byte is not full.
uint32_t chanmix_places(const uint8_t *bits, uint32_t n, uint8_t *byte, uint8_t *shift);

}  // namespace lk

#endif
