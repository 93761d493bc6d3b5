# SPDX-License-Identifier: Apache-2.0
"""Compiles each header of the library, the kernels and the shaders alone. The command's take a parser that
needs seconds for each, and are left out.

Arguments: the build folder, the C++ compiler, nvcc or '', glslc or ''. Without a compiler its headers are left out."""
import concurrent.futures
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
JOBS = 2
# Texts that work on arrays or push constants of their includer, which GLSL cannot declare beforehand.
TEMPLATES = {'shaders/decode/products.glsl', 'shaders/decode/teams.glsl', 'shaders/pack/keys.glsl',
             'shaders/pack/new_tokens.glsl'}
# What a file that is compiled defines before its first include.
SIMD = ['-DLK_SIMD_WIDTH=4', '-DLK_SIMD_TILE_VECTORS=2', '-DLK_SIMD_SUMS=8', '-Wno-psabi']
MATRIX = ['-DLK_SUBGROUPS', '-DLK_MATRIX']
FORMS = ['-DLK_FORMS']
SLOTS = ['-DLK_SUBGROUPS', '-DLK_SLOTS']
LATENT = ['-DLK_LATENT']
SHADER = '#version 460\n#extension GL_GOOGLE_include_directive : require\n'
PLATFORM = ['-I', str(ROOT / 'include'), '-I', str(ROOT / 'src'), '-I', str(ROOT)]


def commands(build, cxx, nvcc, glslc, folder):
    """Yields header and command for each header that has a compiler."""
    def source(header, suffix, text):
        file = folder / (header.replace('/', '_') + suffix)
        file.write_text(text, encoding='utf-8')
        return str(file)

    for path in sorted(p for top in ('src', 'cuda', 'shaders') for p in (ROOT / top).rglob('*')):
        header = path.relative_to(ROOT).as_posix()
        include = f'#include "{header}"\n'
        if header.startswith('src/cli/'):
            continue
        if header.startswith('src/backend/cuda/') and path.suffix == '.h':
            if nvcc:
                yield header, [nvcc, '-std=c++17', '-include', f'{build}/cuda/head_dims.h', *PLATFORM, '-c',
                               source(header, '.cpp', include), '-o', str(folder / 'out.o')]
        elif header.startswith('src/backend/vulkan/') and not glslc:
            continue
        elif path.suffix == '.h' and header.startswith(('src/', 'shaders/')):
            yield header, [cxx, '-std=c++17', '-fsyntax-only', *SIMD, *PLATFORM, '-I', f'{build}/shaders',
                           source(header, '.cpp', include)]
        elif path.suffix in {'.h', '.cuh'} and nvcc:
            # The pass for the device reads the code of the host too.
            yield header, [nvcc, '-std=c++17', '--expt-relaxed-constexpr', '-arch=sm_87', '-ptx',
                           '-include', f'{build}/cuda/head_dims.h', '-DLK_CUDA_HEAD_DIM=64', *PLATFORM,
                           source(header, '.cu', include), '-o', str(folder / 'out')]
        if path.suffix == '.glsl' and glslc and header not in TEMPLATES:
            yield header, [glslc, '--target-env=vulkan1.1', '-fshader-stage=compute', '-c', *PLATFORM,
                           *(MATRIX if 'matrix' in path.stem else []), *(FORMS if 'matrix_form' in header else []),
                           *(SLOTS if 'slot' in path.stem else []), *(LATENT if 'latent' in path.stem else []),
                           source(header, '.comp', SHADER + include + 'void main() {}\n'),
                           '-o', str(folder / 'out.spv')]


def main():
    build, cxx, nvcc, glslc = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        work = list(commands(build, cxx, nvcc, glslc, pathlib.Path(name)))
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            done = list(pool.map(lambda entry: (entry[0], subprocess.run(
                entry[1], check=False, capture_output=True, text=True)), work))
    faults = [f'{header} does not compile alone:\n{run.stderr}' for header, run in done if run.returncode]
    print('\n'.join(faults + [f'{len(done)} headers, {len(faults)} that need another']))
    return bool(faults) or not done


if __name__ == '__main__':
    sys.exit(main())
