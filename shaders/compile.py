# SPDX-License-Identifier: Apache-2.0
"""Compiles a shader, removes what it only writes, validates it, and writes it as a C++ file that defines a ShaderCode.

Arguments: glslc, spirv-val or '', name, source, C++ file, dependency file, options of glslc."""
import pathlib
import struct
import subprocess
import sys

WORDS_PER_LINE = 10
HEADER_WORDS = 5
FUNCTION = 7  # the storage class of local variables
# By opcode: the word with the id of a variable that the instruction defines, writes or decorates.
OP_VARIABLE, OP_STORE, OP_DECORATE = 59, 62, 71
VARIABLE_WORD = {OP_VARIABLE: 2, OP_STORE: 1, OP_DECORATE: 1}


def instructions(words):
    at = HEADER_WORDS
    while at < len(words):
        length = words[at] >> 16
        yield words[at] & 0xFFFF, words[at:at + length]
        at += length


def without_dead_locals(words):
    """SPIR-V without local variables that are written and never read, and without the writes.

    The optimizer of glslc keeps them in a module with physical storage buffers, where they are up to 40 % of a shader.
    A word that equals a variable's id counts as a read of it, also where it is a literal."""
    code = list(instructions(words))
    local, read = set(), set()
    for opcode, instruction in code:
        if opcode == OP_VARIABLE and instruction[3] == FUNCTION:
            local.add(instruction[2])
        read.update(instruction[VARIABLE_WORD.get(opcode, 0) + 1:])
    dead = local - read
    kept = [instruction for opcode, instruction in code
            if opcode not in VARIABLE_WORD or instruction[VARIABLE_WORD[opcode]] not in dead]
    return [*words[:HEADER_WORDS], *(word for instruction in kept for word in instruction)]


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
    code = binary.read_bytes()
    words = without_dead_locals(struct.unpack(f'<{len(code) // 4}I', code))
    binary.write_bytes(struct.pack(f'<{len(words)}I', *words))
    if validator and subprocess.run([validator, '--target-env', 'vulkan1.2', binary],
                                    check=False).returncode:
        return 1
    pathlib.Path(target).write_text(definition(name, words), encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
