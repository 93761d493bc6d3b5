// The functions of bulk.h for the instruction set that the including file is compiled for.
// Everything is local to that file.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_BULK_TMPL_H
#define LK_FORMAT_BULK_TMPL_H

#include "format/bulk.h"

#include <cstring>

#if defined(__AVX512F__) && !defined(__clang__)
// GCC 12's own AVX-512 header passes undefined vectors where nothing of them is kept.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
// xxHash takes the widest registers that the compiler may use.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lk {
namespace {

uint64_t hash(const void *data, uint64_t n_bytes) { return XXH3_64bits(data, n_bytes); }

// Without a branch, and counted by blocks in as many bits as a pattern has, so that compilers do a
// register full of them at once.
template <class Bits, class IsBad>
uint64_t count(const uint8_t *patterns, uint64_t n, const IsBad &is_bad) {
    constexpr uint64_t kBlock = uint64_t{1} << (8 * sizeof(Bits) - 1);
    uint64_t n_bad = 0;
    for (uint64_t i = 0; i < n;) {
        const uint64_t end = n - i < kBlock ? n : i + kBlock;
        Bits of_block = 0;
        for (; i < end; ++i) {
            Bits bits;
            std::memcpy(&bits, patterns + i * sizeof bits, sizeof bits);
            of_block = static_cast<Bits>(of_block + (is_bad(bits) ? 1 : 0));
        }
        n_bad += of_block;
    }
    return n_bad;
}

bool is_not_finite(uint16_t bits) { return (bits & 0x7c00) == 0x7c00; }

uint64_t count_bad_of(Stored kind, const uint8_t *patterns, uint64_t n) {
    switch (kind) {
        case Stored::kF16Value:
            return count<uint16_t>(patterns, n, [](uint16_t bits) { return is_not_finite(bits); });
        case Stored::kF16Range:
            return count<uint16_t>(patterns, n, [](uint16_t bits) { return bits >= 0x7c00; });
        case Stored::kF16Minimum:
            return count<uint16_t>(
                patterns, n, [](uint16_t bits) { return is_not_finite(bits) || bits == 0x8000; });
        case Stored::kF8Range:
            return count<uint8_t>(patterns, n, [](uint8_t bits) { return bits >= 0x80; });
        case Stored::kF8Minimum:
            return count<uint8_t>(patterns, n, [](uint8_t bits) { return bits == 0x80; });
    }
    return n;  // unreachable
}

}  // namespace
}  // namespace lk

#endif
