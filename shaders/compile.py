# SPDX-License-Identifier: Apache-2.0
"""Compiles a shader, validates it, and writes it as a C++ file that defines a ShaderCode.

Arguments: glslc, spirv-val or '', name, source, C++ file, dependency file, options of glslc."""
import pathlib
import struct
import subprocess
import sys

WORDS_PER_LINE = 10


def definition(name, words):
    lines = [', '.join(f'0x{word:08x}' for word in words[i:i + WORDS_PER_LINE])
             for i in range(0, len(words), WORDS_PER_LINE)]
    body = ',\n    '.join(lines)
    return f'''#include "backend/vulkan/shader_code.h"

namespace {{
// The section keeps shaders apart from code when the library is measured.
__attribute__((section(".lk_shaders"))) const uint32_t words[] = {{
    {body}}};
}}  // namespace

const lk::vulkan::ShaderCode lk::vulkan::shaders::{name} = {{"{name}", words, sizeof words}};
'''


def main():
    glslc, validator, name, source, target, dependencies, *options = sys.argv[1:]
    binary = pathlib.Path(target).with_suffix('.spv')
    compiled = subprocess.run([glslc, *options, '-MD', '-MF', dependencies, '-MT', target,
                               source, '-o', binary], check=False)
    if compiled.returncode:
        return compiled.returncode
    if validator and subprocess.run([validator, '--target-env', 'vulkan1.2', binary],
                                    check=False).returncode:
        return 1
    code = binary.read_bytes()
    words = struct.unpack(f'<{len(code) // 4}I', code)
    pathlib.Path(target).write_text(definition(name, words), encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
