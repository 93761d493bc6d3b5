// SPDX-License-Identifier: Apache-2.0
#include "format/bulk_tmpl.h"

namespace lk {

namespace {

BulkKernels choose() {
    BulkKernels kernels = {hash, count_bad_of};
#if LK_HAVE_AVX2
    if (__builtin_cpu_supports("avx2"))
        kernels = kBulkAvx2;
#endif
#if LK_HAVE_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
        kernels = kBulkAvx512;
#endif
    return kernels;
}

const BulkKernels &kernels() {
    static const BulkKernels chosen = choose();
    return chosen;
}

}  // namespace

uint64_t hash_bytes(const void *data, uint64_t n_bytes) { return kernels().hash(data, n_bytes); }

uint64_t count_bad(Stored kind, const uint8_t *patterns, uint64_t n) {
    return kernels().count_bad(kind, patterns, n);
}

}  // namespace lk
