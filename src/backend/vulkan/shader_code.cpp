// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/shader_code.h"

// Of stb_image only what reads zlib's format.
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_SUPPORT_ZLIB
#define STBI_NO_BMP
#define STBI_NO_GIF
#define STBI_NO_HDR
#define STBI_NO_JPEG
#define STBI_NO_PIC
#define STBI_NO_PNG
#define STBI_NO_PNM
#define STBI_NO_PSD
#define STBI_NO_TGA
#define STBI_NO_FAILURE_STRINGS
#define STBI_NO_LINEAR
#define STBI_NO_SIMD
#define STBI_NO_STDIO
#define STBI_NO_THREAD_LOCALS
#include <stb_image.h>

namespace lk {
namespace vulkan {

bool inflate(const ShaderCode &shader, Array<uint32_t> *words) {
    const size_t n = shader.n_words;
    Array<uint8_t> bytes;  // the lowest of all words, then the next ones
    if (!words->resize(n) || !bytes.resize(n * sizeof(uint32_t)))
        return false;
    const auto n_bytes = static_cast<int>(bytes.size());
    const auto *from = reinterpret_cast<const char *>(shader.deflated);
    if (stbi_zlib_decode_buffer(reinterpret_cast<char *>(bytes.data()), n_bytes, from,
                                static_cast<int>(shader.deflated_bytes)) != n_bytes)
        return false;
    for (size_t i = 0; i < bytes.size(); ++i)
        (*words)[i % n] |= uint32_t{bytes[i]} << (i / n * 8);
    return true;
}

}  // namespace vulkan
}  // namespace lk
