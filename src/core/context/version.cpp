// SPDX-License-Identifier: Apache-2.0
#include <lowkey/base.h>

#include <build_text.h>

#ifndef LK_HAVE_AVX2
#define LK_HAVE_AVX2 0
#endif
#ifndef LK_HAVE_AVX512
#define LK_HAVE_AVX512 0
#endif
#ifndef LK_HAVE_NEON
#define LK_HAVE_NEON 0
#endif

#define LK_TEXT2(x) #x
#define LK_TEXT(x) LK_TEXT2(x)
#define LK_RELEASE \
    LK_TEXT(LK_VERSION_MAJOR) "." LK_TEXT(LK_VERSION_MINOR) "." LK_TEXT(LK_VERSION_PATCH)

#if defined(__clang__)
#define LK_COMPILER \
    "clang " LK_TEXT(__clang_major__) "." LK_TEXT(__clang_minor__) "." LK_TEXT(__clang_patchlevel__)
#elif defined(__GNUC__)
#define LK_COMPILER "gcc " __VERSION__
#else
#define LK_COMPILER "another compiler"
#endif

#if LK_HAVE_AVX2
#define LK_TEXT_AVX2 " avx2"
#else
#define LK_TEXT_AVX2 ""
#endif
#if LK_HAVE_AVX512
#define LK_TEXT_AVX512 " avx512"
#else
#define LK_TEXT_AVX512 ""
#endif
#if LK_HAVE_NEON
#define LK_TEXT_NEON " neon"
#else
#define LK_TEXT_NEON ""
#endif

#ifdef NDEBUG
#define LK_TEXT_ASSERT "off"
#else
#define LK_TEXT_ASSERT "on"
#endif

extern "C" const char *lk_version(void) { return LK_RELEASE; }

extern "C" uint32_t lk_abi_version(void) { return LK_ABI_VERSION; }

extern "C" const char *lk_build_info(void) {
    return "lowkey " LK_RELEASE ", abi " LK_TEXT(LK_ABI_MAJOR) "." LK_TEXT(
        LK_ABI_MINOR) ", " LK_COMPILER
                      ", cpu paths: reference" LK_TEXT_AVX2 LK_TEXT_AVX512 LK_TEXT_NEON
                      ", cuda: " LK_CUDA_TEXT ", vulkan: " LK_VULKAN_TEXT
                      ", assertions " LK_TEXT_ASSERT;
}
