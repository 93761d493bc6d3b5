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
    if (!words->resize(shader.n_words))
        return false;
    const auto n_bytes = static_cast<int>(shader.n_words * sizeof(uint32_t));
    const auto *from = reinterpret_cast<const char *>(shader.deflated);
    return stbi_zlib_decode_buffer(reinterpret_cast<char *>(words->data()), n_bytes, from,
                                   static_cast<int>(shader.deflated_bytes)) == n_bytes;
}

}  // namespace vulkan
}  // namespace lk
