// Functions over all bytes of a snapshot or a page file: their hash, and the search for bit
// patterns that the quantizer never stores. Every instruction set gives the same answers.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_BULK_H
#define LK_FORMAT_BULK_H

#include <cstdint>

namespace lk {

// The meaning of the bit patterns of an array.
enum class Stored { kF16Value, kF16Range, kF16Minimum, kF8Range, kF8Minimum };

// XXH3 of 64 bits, seed 0.
uint64_t hash_bytes(const void *data, uint64_t n_bytes);

// How many of n patterns are an infinity or a NaN, of ranges negative, of minima -0.
uint64_t count_bad(Stored kind, const uint8_t *patterns, uint64_t n);

// The functions above, compiled for an instruction set.
struct BulkKernels {
    uint64_t (*hash)(const void *data, uint64_t n_bytes);
    uint64_t (*count_bad)(Stored kind, const uint8_t *patterns, uint64_t n);
};
extern const BulkKernels kBulkAvx2;
extern const BulkKernels kBulkAvx512;

}  // namespace lk

#endif
