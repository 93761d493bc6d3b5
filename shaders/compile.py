# SPDX-License-Identifier: Apache-2.0
"""Compiles a shader, removes what it only writes, numbers its ids anew, validates it, and writes it, in zlib's format,
as a C++ file that defines a ShaderCode.
With -DLK_MATRIX_USES its cooperative matrices become those of VK_KHR_cooperative_matrix, which old glslc do not know.

Arguments: glslc, spirv-opt or '', spirv-val or '', name, source, C++ file, dependency file, options of glslc."""
import pathlib
import struct
import subprocess
import sys
import zlib

BYTES_PER_LINE = 30
HEADER_WORDS = 5
FUNCTION = 7  # the storage class of local variables
# By opcode: the word with the id of a variable that the instruction defines, writes or decorates.
OP_VARIABLE, OP_STORE, OP_DECORATE = 59, 62, 71
VARIABLE_WORD = {OP_VARIABLE: 2, OP_STORE: 1, OP_DECORATE: 1}


OP_EXTENSION, OP_CAPABILITY, OP_INT, OP_FLOAT, OP_TRUE, OP_CONSTANT = 10, 17, 21, 22, 41, 43
OP_MATRIX_NV, OP_LOAD_NV, _, OP_MULTIPLY_NV, OP_LENGTH_NV = range(5358, 5363)
OP_MATRIX, OP_LOAD, _, OP_MULTIPLY, OP_LENGTH = range(4456, 4461)
MATRICES_NV, MATRICES = 5357, 6022  # capabilities
EXTENSION_NV, EXTENSION = b'SPV_NV_cooperative_matrix\0', b'SPV_KHR_cooperative_matrix\0'
USE_A, USE_B, USE_SUM = range(3)
ROWS, COLUMNS = range(2)  # orders of memory


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


def text_words(text):
    text += bytes(-len(text) % 4)
    return list(struct.unpack(f'<{len(text) // 4}I', text))


def with_matrix_uses(words):
    """SPIR-V with matrices of SPV_KHR_cooperative_matrix in place of SPV_NV_cooperative_matrix, whose operands lie as
    the products want them. 16 x 16 is an A, 16 x 8 a B, or a sum in FP32."""
    code = list(instructions(words))
    if not any(opcode == OP_MATRIX_NV for opcode, _ in code):
        return words
    uint = next(w[1] for opcode, w in code if opcode == OP_INT and list(w[2:]) == [32, 0])
    sums = {w[1] for opcode, w in code if opcode == OP_FLOAT and w[2] == 32}
    values = {w[2]: w[3] for opcode, w in code if opcode == OP_CONSTANT}
    true = {w[2] for opcode, w in code if opcode == OP_TRUE}
    first = words[3]  # ids from here on are free: the constants 0, 1 and 2
    changed = []

    def add(opcode, *operands):
        changed.extend([len(operands) + 1 << 16 | opcode, *operands])

    has_constants = False
    for opcode, w in code:
        if opcode == OP_CAPABILITY and w[1] == MATRICES_NV:
            add(OP_CAPABILITY, MATRICES)
        elif opcode == OP_EXTENSION and list(w[1:]) == text_words(EXTENSION_NV):
            add(OP_EXTENSION, *text_words(EXTENSION))
        elif opcode == OP_MATRIX_NV:
            for value in range(0 if has_constants else 3):
                add(OP_CONSTANT, uint, first + value, value)
            has_constants = True
            use = USE_SUM if w[2] in sums else USE_A if values[w[5]] == 16 else USE_B
            add(OP_MATRIX, *w[1:], first + use)
        elif opcode == OP_LOAD_NV:
            add(OP_LOAD, *w[1:4], first + (COLUMNS if w[5] in true else ROWS), w[4], *w[6:])
        elif opcode in {OP_MULTIPLY_NV, OP_LENGTH_NV}:
            add(OP_MULTIPLY if opcode == OP_MULTIPLY_NV else OP_LENGTH, *w[1:])
        else:
            changed.extend(w)
    return [*words[:3], first + 3, *words[4:HEADER_WORDS], *changed]


def read_words(binary):
    code = binary.read_bytes()
    return struct.unpack(f'<{len(code) // 4}I', code)


def definition(name, words):
    code = struct.pack(f'<{len(words)}I', *words)
    # The lowest bytes of all words come first, then the next ones: the high bytes of ids are alike.
    deflated = zlib.compress(b''.join(code[byte::4] for byte in range(4)), 9)
    lines = [','.join(map(str, deflated[i:i + BYTES_PER_LINE])) for i in range(0, len(deflated), BYTES_PER_LINE)]
    body = ',\n    '.join(lines)
    return f'''#include "backend/vulkan/shader_code.h"

namespace {{
// The section keeps shaders apart from code when the library is measured.
__attribute__((section(".lk_shaders"))) const uint8_t deflated[] = {{
    {body}}};
}}  // namespace

const lk::vulkan::ShaderCode lk::vulkan::shaders::{name} = {{"{name}", deflated, sizeof deflated, {len(words)}}};
'''


def main():
    glslc, optimizer, validator, name, source, target, dependencies, *options = sys.argv[1:]
    binary = pathlib.Path(target).with_suffix('.spv')
    compiled = subprocess.run([glslc, *options, '-MD', '-MF', dependencies, '-MT', target,
                               source, '-o', binary], check=False)
    if compiled.returncode:
        return compiled.returncode
    words = without_dead_locals(read_words(binary))
    binary.write_bytes(struct.pack(f'<{len(words)}I', *words))
    # glslc leaves numbers of ids out, up to ten times as many as there are, and drivers have tables of them.
    if optimizer:
        subprocess.run([optimizer, '--compact-ids', binary, '-o', binary], check=True)
        words = read_words(binary)
    if validator and subprocess.run([validator, '--target-env', 'vulkan1.2', binary],
                                    check=False).returncode:
        return 1
    if '-DLK_MATRIX_USES' in options:
        words = with_matrix_uses(words)
    pathlib.Path(target).write_text(definition(name, words), encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
