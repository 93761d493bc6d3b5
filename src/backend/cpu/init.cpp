// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/init.h"

#if LK_HAVE_AVX2 || LK_HAVE_AVX512
#include <cpuid.h>
#endif

#include <lowkey/context.h>

namespace lk {
namespace cpu {

namespace {

struct Level {
    const Kernels *kernels;
    const char *features;
};

#if LK_HAVE_AVX2 || LK_HAVE_AVX512
// __builtin_cpu_supports() of clang 14 does not know the name; avx2 has said that the system
// keeps the registers.
bool has_f16c() {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif
#if LK_HAVE_AVX2
bool runs_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
#endif
#if LK_HAVE_AVX512
bool runs_avx512() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
           __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

Level choose(uint32_t cpu_mask) {
    Level level = {nullptr, "reference"};
    if (cpu_mask & LK_CPU_REFERENCE_ONLY)
        return level;
    level = {&kGenericKernels, "baseline"};
#if LK_HAVE_AVX2
    if (!(cpu_mask & LK_CPU_NO_AVX2) && runs_avx2())
        level = {&kAvx2Kernels, "avx2 fma f16c"};
#endif
#if LK_HAVE_AVX512
    if (!(cpu_mask & LK_CPU_NO_AVX512) && runs_avx512())
        level = {&kAvx512Kernels, "avx512f avx512bw avx512vl avx512dq avx512vnni"};
#endif
#if LK_HAVE_NEON
    if (!(cpu_mask & LK_CPU_NO_NEON))
        level = {&kNeonKernels, "neon"};
#endif
    return level;
}

}  // namespace

const Kernels *choose_kernels(uint32_t cpu_mask) { return choose(cpu_mask).kernels; }
const char *describe_kernels(uint32_t cpu_mask) { return choose(cpu_mask).features; }

}  // namespace cpu
}  // namespace lk
