// Hashes and searches of every instruction set that this machine has, against plain statements of
// them: at lengths around blocks and registers, at any address.
//
// SPDX-License-Identifier: Apache-2.0
#include "suite.h"

#include "format/bulk.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <vector>

using namespace lk;

namespace {

constexpr Stored kKinds[] = {Stored::kF16Value, Stored::kF16Range, Stored::kF16Minimum,
                             Stored::kF8Range, Stored::kF8Minimum};

std::vector<BulkKernels> all_kernels() {
    std::vector<BulkKernels> kernels = {{hash_bytes, count_bad}};
#if LK_HAVE_AVX2
    if (__builtin_cpu_supports("avx2"))
        kernels.push_back(kBulkAvx2);
#endif
#if LK_HAVE_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
        kernels.push_back(kBulkAvx512);
#endif
    return kernels;
}

bool is_bad(Stored kind, uint32_t bits) {
    const bool is_f16_special = (bits >> 10 & 31) == 31;
    switch (kind) {
        case Stored::kF16Value: return is_f16_special;
        case Stored::kF16Range: return is_f16_special || bits >> 15;
        case Stored::kF16Minimum: return is_f16_special || bits == 0x8000;
        case Stored::kF8Range: return bits >> 7;
        case Stored::kF8Minimum: return bits == 0x80;
    }
    return false;
}

bool is_f8(Stored kind) { return kind == Stored::kF8Range || kind == Stored::kF8Minimum; }

uint64_t plain_count(Stored kind, const uint8_t *bytes, uint64_t n) {
    uint64_t n_bad = 0;
    for (uint64_t i = 0; i < n; ++i)
        n_bad += is_bad(kind, is_f8(kind) ? bytes[i] : bytes[2 * i] | bytes[2 * i + 1] << 8);
    return n_bad;
}

// Every pattern once.
void every_pattern_is_known(void **) {
    std::vector<uint8_t> bytes(2 << 16);
    for (uint32_t i = 0; i < 1 << 16; ++i) {
        bytes[2 * i] = static_cast<uint8_t>(i);
        bytes[2 * i + 1] = static_cast<uint8_t>(i >> 8);
    }
    for (const BulkKernels &kernels : all_kernels())
        for (const Stored kind : kKinds)
            for (uint32_t i = 0; i < (is_f8(kind) ? 1u << 8 : 1u << 16); ++i)
                assert_int_equal(kernels.count_bad(kind, bytes.data() + 2 * i, 1),
                                 is_bad(kind, i) ? 1 : 0);
}

void all_sets_agree(void **) {
    constexpr uint64_t kLengths[] = {0,    1,    2,    15,    16,    17,    63,    64,
                                     65,   127,  128,  129,   240,   241,   255,   1023,
                                     1024, 1025, 4097, 32767, 32768, 32769, 65537, 131071};
    std::vector<uint8_t> bytes(2 * 131071 + 3);
    uint32_t random = 12345;
    for (uint8_t &byte : bytes)
        byte = static_cast<uint8_t>((random = random * 1664525 + 1013904223) >> 24);
    for (const BulkKernels &kernels : all_kernels())
        for (const uint64_t n : kLengths)
            for (uint32_t offset = 0; offset < 3; ++offset) {
                const uint8_t *at = bytes.data() + offset;
                assert_true(kernels.hash(at, n) == XXH3_64bits(at, n));
                for (const Stored kind : kKinds)
                    assert_true(kernels.count_bad(kind, at, n) == plain_count(kind, at, n));
            }
}

// More bad ones than a block's counter holds, were it one bit narrower.
void all_may_be_bad(void **) {
    const std::vector<uint8_t> f16(2 * 100000, 0xff);
    const std::vector<uint8_t> f8(100000, 0x80);
    for (const BulkKernels &kernels : all_kernels())
        for (const Stored kind : kKinds)
            assert_int_equal(kernels.count_bad(kind, is_f8(kind) ? f8.data() : f16.data(), 100000),
                             100000);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {cmocka_unit_test(every_pattern_is_known),
                                cmocka_unit_test(all_sets_agree), cmocka_unit_test(all_may_be_bad)};
    return cmocka_run_group_tests_name("format bulk", tests, nullptr, nullptr);
}
