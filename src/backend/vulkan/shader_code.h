// The shaders of this build: one constant for each line of the table in shaders/meson.build.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_SHADER_CODE_H
#define LK_BACKEND_VULKAN_SHADER_CODE_H

#include <shader_list.h>  // generated

#include <cstddef>
#include <cstdint>

#include "base/memory.h"

namespace lk {
namespace vulkan {

struct ShaderCode {
    const char *name;
    const uint8_t *deflated;  // SPIR-V in zlib's format: the lowest bytes of all words first
    size_t deflated_bytes;
    uint32_t n_words;
};

// The SPIR-V of a shader. False without memory.
bool inflate(const ShaderCode &shader, Array<uint32_t> *words);

namespace shaders {
#define LK_SHADER(name) extern const ShaderCode name;
LK_SHADERS(LK_SHADER)
#undef LK_SHADER
}  // namespace shaders

}  // namespace vulkan
}  // namespace lk

#endif
