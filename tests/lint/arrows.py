# SPDX-License-Identifier: Apache-2.0
"""Checks who may know whom: every #include against the table of CONTRIBUTING.md."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUFFIXES = {'.c', '.h', '.cpp', '.hpp', '.in', '.cu', '.cuh', '.comp', '.glsl'}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
STREAMS = {'iostream', 'sstream', 'fstream', 'ostream', 'istream', 'iomanip', 'regex', 'filesystem'}

# Folder or file (the longest match counts): what of ours it may include, besides itself.
# 'include' is the public headers.
ALLOWED = {
    'include/lowkey': set(),
    'src/base': {'include/lowkey/base.h'},
    'src/format': {'include/lowkey/base.h', 'src/base'},
    'src/plan': {'include', 'src/base', 'src/format'},
    'src/stats': {'include', 'src/base', 'src/format', 'src/plan'},
    'src/planner': {'include', 'src/base', 'src/format', 'src/plan', 'src/stats'},
    'src/chunks': {'include/lowkey/base.h', 'include/lowkey/chunks.h', 'src/base', 'src/format'},
    'src/core': {'include', 'src/base', 'src/format', 'src/plan', 'src/backend/backend.h'},
    'src/backend': {'include/lowkey/base.h', 'include/lowkey/context.h', 'src/base', 'src/format'},
    'src/backend/registry.cpp': {'include/lowkey/base.h', 'src/base', 'src/backend'},
    'src/backend/cpu': {'include/lowkey/base.h', 'include/lowkey/context.h', 'src/base',
                        'src/chunks/cosine.h', 'src/format', 'src/backend/backend.h'},
    'src/backend/gpu': {'include/lowkey/base.h', 'src/base', 'src/format',
                           'src/backend/backend.h'},
    'src/backend/vulkan': {'include/lowkey/base.h', 'include/lowkey/context.h',
                           'include/lowkey/vulkan.h', 'src/base', 'src/format',
                           'src/backend/backend.h', 'src/backend/gpu', 'shaders/push.h',
                           'shaders/decode/limits.h', 'shaders/pack/limits.h', 'shaders/prefill/limits.h'},
    'src/backend/cuda': {'include/lowkey/base.h', 'include/lowkey/context.h', 'src/base',
                         'src/format', 'src/backend/backend.h', 'src/backend/gpu',
                         'cuda/types.h', 'cuda/launch.h', 'cuda/instances.h', 'cuda/kv_tile.h',
                         'cuda/query_stats.h', 'cuda/append_pages.h'},
    'src/packaging': set(),
    'src/host': {'include'},
    'src/cli': {'include', 'src/host', 'cuda/bench.h'},
    'cuda': {'src/format/format_const.h', 'src/format/tables.h', 'src/format/rules.h',
             'src/format/rotation.h'},
    'shaders': {'src/format/format_const.h', 'src/format/widths.h'},
    'examples': {'include'},
    'examples/llama': {'include', 'src/host'},
    'examples/vulkan': {'include', 'src/host'},
    'bindings': {'include'},
    'tests/api': {'include', 'tests', 'src/host'},
    'tests/core': {'include', 'src', 'cuda', 'tests/hostile/child.h'},
    'tests/cuda': {'include', 'src', 'tests'},
    'tests/vulkan': {'include', 'src', 'tests', 'shaders'},
    'tests/install': {'include'},
    'tests/hostile': {'include', 'src', 'tests'},
    'tests/stateful': {'include', 'src', 'tests'},
    'tests/fuzz': {'include', 'src', 'tests'},
    'tests/lab': {'include', 'src/host', 'src/cli'},
    'tests': {'include', 'src', 'cuda'},
}
# The C ABI stands on these alone.
PUBLIC_SYSTEM = {'stddef.h', 'stdint.h'}
# A dependency that throws is contained in one file; the command may use it too.
JSON = 'nlohmann/json.hpp'
JSON_USERS = ('src/base/json_text.cpp', 'src/host/', 'src/cli/', 'tests/')


def rule_for(name):
    """The longest place of the table that holds name."""
    fits = [place for place in ALLOWED if name == place or name.startswith(place + '/')]
    return max(fits, key=len, default=None)


def resolve(file, target):
    """The file of ours that target means, or None for one of the system's."""
    for base in (file.parent, ROOT / 'src', ROOT / 'src/host', ROOT / 'include', ROOT / 'tests', ROOT / 'src/format', ROOT):
        path = (base / target).resolve()
        if path.is_file() and ROOT in path.parents:
            return path.relative_to(ROOT).as_posix()
    return None


def may(name, rule, target):
    own = target.startswith(rule + '/') and rule_for(target) == rule
    return own or any(target == a or target.startswith(a + '/') for a in ALLOWED[rule])


def check(file):
    """Yields one sentence for each include of a file that breaks a rule."""
    name = file.relative_to(ROOT).as_posix()
    rule = rule_for(name)
    if rule is None:
        yield f'{name}: in no folder of the table in tests/lint/arrows.py'
        return
    for number, line in enumerate(file.read_text(encoding='utf-8').splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match[2]
        ours = resolve(file, target)
        where = f'{name}:{number}: '
        if '..' in target.split('/'):
            yield where + f'{target} climbs out of its folder; name it from src'
        elif ours and not may(name, rule, ours):
            yield where + f'{rule} may not know {ours}'
        elif not ours and match[1] == '"' and '@' not in target and not line.rstrip().endswith('generated'):
            yield where + f'no such file: {target}'
        elif rule == 'include/lowkey' and not ours and target not in PUBLIC_SYSTEM:
            yield where + f'a public header may not include <{target}>'
        elif name.startswith('src/') and not name.startswith(('src/cli/', 'src/host/')) and target in STREAMS:
            yield where + f'the library does without <{target}>'
        elif target == JSON and not name.startswith(JSON_USERS):
            yield where + f'{target} throws: only the first files of JSON_USERS may include it'


def main():
    files = [f for top in ('include', 'src', 'cuda', 'shaders', 'examples', 'bindings', 'tests')
             for f in sorted((ROOT / top).rglob('*')) if f.suffix in SUFFIXES and f.is_file()]
    faults = [fault for file in files for fault in check(file)]
    print('\n'.join(faults + [f'{len(files)} files, {len(faults)} wrong includes']))
    return bool(faults) or not files


if __name__ == '__main__':
    sys.exit(main())
