# SPDX-License-Identifier: Apache-2.0
"""The Go module, as a zip of the form that module proxies serve."""

from __future__ import annotations

import json
import pathlib
import re
import zipfile

from workspace import Refused, Workspace

FOLDER = 'bindings/go/lowkey'
MODULE = re.compile(r'^module (\S+)$', re.M)
TIME = (1980, 1, 1, 0, 0, 0)  # proxies state no times
HELLO = """package main

import (
	"fmt"
	"log"

	"%(path)s"
)

func main() {
	context, err := lowkey.Open(lowkey.ContextOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer context.Close()
	fmt.Println(lowkey.BuildInfo())
}
"""


def build(work: Workspace) -> list[pathlib.Path]:
    tree = work.tree('go')
    folder = tree / FOLDER
    path = work.out / f'lowkey-go-{work.version}.zip'
    root = f'{_module(folder)}@v{work.version}'
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob('*') if file.is_file()}
    # A module in a subfolder gets the license of its repository, as `go` makes it.
    files.setdefault('LICENSE', tree / 'LICENSE')
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, file in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(f'{root}/{name}', TIME), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return [path]


def check(work: Workspace) -> None:
    """A clean system with the installed library gets the module from a proxy, runs its tests and a program."""
    path = work.out / f'lowkey-go-{work.version}.zip'
    if not path.exists():
        build(work)
    with work.chroot() as system:
        system.install('golang-go', 'gcc', 'g++', 'meson', 'ninja-build', 'pkg-config', 'nlohmann-json3-dev',
                       'libxxhash-dev', 'xz-utils')
        system.install_library('-Doptimization=1')  # compiles sooner
        module = _proxy(path, work.version, system.root / 'srv/proxy')
        hello = system.root / 'srv/hello'
        hello.mkdir()
        (hello / 'main.go').write_text(HELLO % {'path': module})
        # A fresh GOPATH; the proxy is a folder, which no checksum database knows.
        go = ['env', '-C', '/srv/hello', 'GOPROXY=file:///srv/proxy', 'GOSUMDB=off', 'GOFLAGS=-mod=mod', 'go']
        system.run(*go, 'mod', 'init', 'hello')
        system.run(*go, 'get', f'{module}@v{work.version}')
        system.run(*go, 'mod', 'verify')
        system.run(*go, 'vet', module)
        system.run(*go, 'test', module)
        said = system.run(*go, 'run', '.', capture=True)
        if work.version not in said:
            raise Refused(f'hello says {said}')
        print(said, end='')


def _module(folder: pathlib.Path) -> str:
    return MODULE.search((folder / 'go.mod').read_text())[1]


def _proxy(archive: pathlib.Path, version: str, folder: pathlib.Path) -> str:
    """The folder of a proxy that has this version alone; the answer is the module's path."""
    with zipfile.ZipFile(archive) as files:
        name = next(name for name in files.namelist() if name.endswith('/go.mod'))
        text = files.read(name).decode()
    module = MODULE.search(text)[1]
    # Proxies write capital letters as an exclamation mark and the small letter.
    place = folder / re.sub('[A-Z]', lambda letter: '!' + letter[0].lower(), module) / '@v'
    place.mkdir(parents=True)
    (place / 'list').write_text(f'v{version}\n')
    (place / f'v{version}.info').write_text(json.dumps({'Version': f'v{version}', 'Time': '2000-01-01T00:00:00Z'}))
    (place / f'v{version}.mod').write_text(text)
    (place / f'v{version}.zip').write_bytes(archive.read_bytes())
    return module
