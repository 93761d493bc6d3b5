# SPDX-License-Identifier: Apache-2.0
"""What the build script of lowkey-sys says to Cargo: where each way finds the library, and the sentences of refusals.
pkg-config and Meson are stand-ins that record their arguments. Argument: rustc."""
import pathlib
import subprocess
import sys
import tempfile

CRATE = pathlib.Path(__file__).resolve().parents[2] / 'bindings/rust/lowkey-sys'
PKG_CONFIG = """#!/bin/sh
echo "$@" >>"$LOG"
[ -n "$FLAGS" ] && echo "$FLAGS"
"""
# Answers `meson setup BUILD SOURCE --prefix PREFIX ...`, and installs the description alone.
MESON = """#!/bin/sh
echo "$@" >>"$LOG"
if [ "$1" = setup ]; then echo "$5" >"$LOG.prefix"; fi
if [ "$1" = install ]; then
    prefix=$(cat "$LOG.prefix") && mkdir -p "$prefix/lib/pkgconfig" &&
        echo 'Libs: ${libdir}/liblowkey.a -lstdc++ -lm' >"$prefix/lib/pkgconfig/lowkey-static.pc"
fi
"""


class Script:
    """The compiled build script in a folder with stand-ins."""

    def __init__(self, rustc, folder):
        self.folder, self.log = folder, folder / 'log'
        self.program = folder / 'build-script'
        subprocess.run([rustc, '--edition', '2021', '-o', self.program, CRATE / 'build.rs'], check=True)
        for name, text in {'pkg-config': PKG_CONFIG, 'meson': MESON}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def run(self, **env):
        """Lines for Cargo that link, the log of the stand-ins, and the refusal."""
        self.log.unlink(missing_ok=True)
        done = subprocess.run([self.program], text=True, capture_output=True, env={
            'PATH': f'{self.folder}:/usr/bin:/bin', 'LOG': str(self.log), 'OUT_DIR': str(self.folder / 'out'),
            'CARGO_MANIFEST_DIR': str(CRATE), 'HOST': 'x86_64-unknown-linux-gnu', 'TARGET': 'x86_64-unknown-linux-gnu',
            **env})
        lines = [line[6:] for line in done.stdout.splitlines() if line.startswith(('cargo:rustc-link', 'cargo:include'))]
        log = self.log.read_text() if self.log.exists() else ''
        return lines, log, done.stderr if done.returncode else ''


def expect(found, wanted):
    if found != wanted:
        sys.exit(f'the build script says {found}, wanted {wanted}')


def refused(script, *words, **env):
    lines, _, sentence = script.run(**env)
    if lines or not all(word in sentence for word in words):
        sys.exit(f'{env} gives {lines} and the refusal {sentence!r}, wanted {words}')


def installed(script, folder):
    lines, log, _ = script.run(FLAGS='-L/x -llowkey')
    expect((lines, log), (['rustc-link-search=native=/x', 'rustc-link-lib=lowkey'], '--libs lowkey >= 0.2\n'))
    lines, log, _ = script.run(FLAGS='/p/lib/liblowkey.a -L/c -lcudart_static -lstdc++', LOWKEY_STATIC='1')
    expect(lines, ['rustc-link-search=native=/p/lib', 'rustc-link-lib=static=lowkey', 'rustc-link-search=native=/c',
                   'rustc-link-lib=cudart_static', 'rustc-link-lib=stdc++'])
    expect(log, '--libs lowkey-static >= 0.2\n')
    refused(script, 'does not know lowkey', 'LOWKEY_LIB_DIR', 'vendored')
    refused(script, 'does not run', PKG_CONFIG='/nonexistent')
    expect(script.run(LOWKEY_LIB_DIR='/y', CARGO_FEATURE_VENDORED='1')[0],
           ['rustc-link-search=native=/y', 'rustc-link-lib=lowkey'])
    refused(script, '/y/pkgconfig/lowkey-static.pc', LOWKEY_LIB_DIR='/y', LOWKEY_STATIC='1')
    (folder / 'lib/pkgconfig').mkdir(parents=True)
    (folder / 'lib/pkgconfig/lowkey-static.pc').write_text('Name: lowkey\nLibs: ${libdir}/liblowkey.a -lm\n')
    expect(script.run(LOWKEY_LIB_DIR=str(folder / 'lib'), LOWKEY_STATIC='1')[0],
           [f'rustc-link-search=native={folder}/lib', 'rustc-link-lib=static=lowkey', 'rustc-link-lib=m'])
    expect(script.run(DOCS_RS='1'), ([], '', ''))


def vendored(script, folder):
    lines, log, _ = script.run(CARGO_FEATURE_VENDORED='1', NUM_JOBS='3', LOWKEY_MESON_ARGS='-Dvulkan=enabled --werror')
    prefix = folder / 'out/prefix'
    expect(lines, [f'include={prefix}/include', f'rustc-link-search=native={prefix}/lib', 'rustc-link-lib=static=lowkey',
                   'rustc-link-lib=stdc++', 'rustc-link-lib=m'])
    setup, build, install = log.splitlines()
    if f' {CRATE.parents[2]} ' not in setup or not setup.endswith(' --wrap-mode=nodownload -Dvulkan=enabled --werror'):
        sys.exit(f'Meson gets {setup}')
    expect(build, f'compile -j 3 -C {folder}/out/build')
    expect(install, f'install --no-rebuild --quiet -C {folder}/out/build')
    other = 'aarch64-unknown-linux-gnu'
    refused(script, other, '--cross-file', CARGO_FEATURE_VENDORED='1', TARGET=other)
    expect(script.run(CARGO_FEATURE_VENDORED='1', TARGET=other, LOWKEY_MESON_ARGS='--cross-file x')[0], lines)
    refused(script, 'no sources', CARGO_FEATURE_VENDORED='1', CARGO_MANIFEST_DIR=str(folder))
    (folder / 'meson').write_text('#!/bin/sh\necho no compiler\nexit 1\n')
    refused(script, 'no compiler', 'pip install meson', CARGO_FEATURE_VENDORED='1')
    refused(script, 'meson does not run', 'pip install meson', CARGO_FEATURE_VENDORED='1', PATH='/nonexistent')


def main():
    with tempfile.TemporaryDirectory() as temp:
        folder = pathlib.Path(temp).resolve()
        script = Script(sys.argv[1], folder)
        installed(script, folder)
        vendored(script, folder)


if __name__ == '__main__':
    main()
