# SPDX-License-Identifier: Apache-2.0
"""Compares the interface of the headers with that of the last release, which tests/abi/released.abi describes.

interface.py COMPILER...           the test: exit status 77 (skipped) without libabigail's abidw and abidiff
interface.py --record COMPILER...  make the headers' interface the one that later changes are compared with

A program that was compiled with the released headers must run on the library of today: a function that is gone, a
parameter or field that changed, a constant or macro with another value is a fault unless LK_ABI_MAJOR is higher than in
the release. Functions, fields at the end of structs and constants may be added; LK_ABI_MINOR is higher then."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
RELEASED = pathlib.Path(__file__).with_name('released.abi')
SKIPPED = 77
INCLUDES = '#include <lowkey/lowkey.h>\n#include <lowkey/vulkan.h>\n'
FREE = re.compile(r'LK_(ABI|VERSION)_|LK_API$')
CHANGES = (4, 8, 12)  # abidiff's status: ABI changed, and incompatibly


def run(*command, ok=(0,), given=''):
    done = subprocess.run([str(word) for word in command], input=given, capture_output=True, text=True, check=False)
    if done.returncode not in ok:
        sys.exit(f'{" ".join(map(str, command))} ended with status {done.returncode}:\n{done.stdout}{done.stderr}')
    return done


def declarations(include):
    """Every function that the headers declare, without its semicolon."""
    for header in sorted((include / 'lowkey').glob('*.h')):
        text = re.sub(r'/\*.*?\*/|^#[^\n]*', '', header.read_text(encoding='utf-8'), flags=re.S | re.M)
        yield from re.findall(r'^LK_API\s+([^;{]+);', text, re.M)


def describe(include, compiler, folder):
    """The XML of headers: of a library whose functions do nothing, with all types that the headers declare."""
    bodies = ''.join(f'{declaration} {{ __builtin_trap(); }}\n' for declaration in declarations(include))
    source, library, described = folder / 'stubs.c', folder / 'stubs.so', folder / 'stubs.abi'
    source.write_text(INCLUDES + bodies, encoding='utf-8')
    run(*compiler, '-std=c11', '-g', '-gdwarf-4', '-w', '-fno-eliminate-unused-debug-types', '-fPIC', '-shared',
        '-nostdlib', '-I', include, source, '-o', library)
    run('abidw', '--load-all-types', '--no-show-locs', '--no-corpus-path', '--no-comp-dir-path', '--out-file',
        described, library)
    macros = run(*compiler, '-E', '-dM', '-I', include, '-x', 'c', '-', given=INCLUDES).stdout
    tree = ElementTree.fromstring(described.read_text(encoding='utf-8'))
    for name, value in sorted(re.findall(r'^#define (LK_\w+) (.+)$', macros, re.M)):
        ElementTree.SubElement(tree, 'lowkey-macro', name=name, value=value).tail = '\n'
    return tree


def constants(tree):
    """Values of enumerators and macros by name."""
    found = {entry.get('name'): entry.get('value') for entry in tree.iter('enumerator')}
    found.update((entry.get('name'), entry.get('value')) for entry in tree.iter('lowkey-macro'))
    return found


def version(tree):
    return [int(constants(tree)[f'LK_ABI_{part}']) for part in ('MAJOR', 'MINOR')]


def cut(described, released):
    """The XML without fields that follow the released ones: a struct whose first field is its size may get more."""
    shorter = ElementTree.fromstring(ElementTree.tostring(described))
    old = {entry.get('name'): entry for entry in released.iter('class-decl') if entry.get('size-in-bits')}
    for entry in shorter.iter('class-decl'):
        model, fields = old.get(entry.get('name')), entry.findall('data-member')
        if model is None or not fields or fields[0].find('var-decl').get('name') != 'size':
            continue
        for field in fields[len(model.findall('data-member')):]:
            entry.remove(field)
        if len(fields) > len(entry.findall('data-member')):
            entry.set('size-in-bits', model.get('size-in-bits'))
    return shorter


def abidiff(released, described, folder, *options):
    """abidiff's report, '' where it finds nothing."""
    for name, tree in (('released.abi', released), ('now.abi', described)):
        bare = ElementTree.fromstring(ElementTree.tostring(tree))
        for macro in bare.findall('lowkey-macro'):
            bare.remove(macro)
        ElementTree.ElementTree(bare).write(folder / name)
    done = run('abidiff', *options, folder / 'released.abi', folder / 'now.abi', ok=(0, *CHANGES))
    return done.stdout if done.returncode else ''


def compare(released, described, folder):
    """One sentence for each fault of an interface that follows a released one."""
    report = abidiff(released, cut(described, released), folder, '--no-added-syms', '--redundant')
    before, after = constants(released), constants(described)
    broken = [f'{name} was {value} and is {after.get(name, "gone")}' for name, value in before.items()
              if after.get(name) != value and not FREE.match(name)]
    broken += [report] if report else []
    is_longer = bool(after.keys() - before.keys() or abidiff(released, described, folder))
    if broken and version(described)[0] <= version(released)[0]:
        yield from broken
        yield 'a program of the last release would break: take the change back, or raise LK_ABI_MAJOR'
    elif is_longer and version(described) <= version(released):
        yield 'the interface has grown since the last release: raise LK_ABI_MINOR'


# What the comparison must find: a name, the header, a text of it and what a mistake makes of it, and the fault's words.
MISTAKES = (
    ('a function is gone', 'step.h', r'LK_API lk_status lk_step_discard\([^;]*;', '', 'lk_step_discard'),
    ('a parameter is wider', 'step.h', r'(lk_step_begin\([^;]*?)uint32_t n_sequences', r'\1uint64_t n_sequences',
     'lk_step_begin'),
    ('a field is wider', 'base.h', r'lk_dtype dtype;', 'uint64_t dtype;', 'lk_tensor'),
    ('fields change places', 'base.h', r'( *int64_t token_stride;[^\n]*\n)( *int64_t head_stride;[^\n]*\n)', r'\2\1',
     'lk_tensor'),
    ('a status has another value', 'base.h', r'LK_E_STATE = -2', 'LK_E_STATE = -20', 'LK_E_STATE was -2 and is -20'),
    ('a macro has another value', 'base.h', r'LK_MAX_STRUCT_BYTES 4096', 'LK_MAX_STRUCT_BYTES 64',
     'LK_MAX_STRUCT_BYTES was 4096 and is 64'),
    ('a constant is new', 'base.h', r'LK_E_STATE = -2,', 'LK_E_STATE = -2, LK_E_NEW = -99,', 'raise LK_ABI_MINOR'),
)
GROWTH = (('#define LK_ABI_MINOR ', '#define LK_ABI_MINOR 9'),
          ('LK_E_STATE = -2,', 'LK_E_STATE = -2, LK_E_NEW = -99,'),
          ('LK_API lk_status lk_tensor_init(', 'typedef struct lk_new { uint32_t size; } lk_new;\n'
           'LK_API int lk_new_get(lk_new *made);\nLK_API lk_status lk_tensor_init('),
          ('} lk_tensor;', '    uint64_t added;\n} lk_tensor;'))


def changed(compiler, folder, header, change):
    """The XML of today's headers with one of them changed."""
    include = folder / 'include'
    shutil.rmtree(include, ignore_errors=True)
    shutil.copytree(ROOT / 'include', include)
    path = include / 'lowkey' / header
    text = path.read_text(encoding='utf-8')
    path.write_text(change(text), encoding='utf-8')
    if path.read_text(encoding='utf-8') == text:
        sys.exit(f'{header} has no such text: this test needs another mistake')
    return describe(include, compiler, folder)


def grown(text):
    for old, new in GROWTH:
        text = text.replace(old, new)
    return text


def unnoticed(compiler, folder, today):
    """Mistakes that the comparison does not find, and growth that it refuses."""
    for name, header, pattern, mistake, words in MISTAKES:
        tree = changed(compiler, folder, header, lambda text: re.sub(pattern, mistake, text, count=1, flags=re.S))
        if words not in '\n'.join(compare(today, tree, folder)):
            yield f'not found: {name}'
    for fault in compare(today, changed(compiler, folder, 'base.h', grown), folder):
        yield f'a function, a constant and a field more with a higher LK_ABI_MINOR: {fault}'


def main():
    compiler = [word for word in sys.argv[1:] if word != '--record']
    if not (shutil.which('abidw') and shutil.which('abidiff')):
        print('skipped: abidw and abidiff of libabigail are missing (abigail-tools of Debian)')
        return SKIPPED
    with tempfile.TemporaryDirectory() as temp:
        folder = pathlib.Path(temp)
        today = describe(ROOT / 'include', compiler, folder)
        if '--record' in sys.argv:
            ElementTree.ElementTree(today).write(RELEASED)
            return 0
        released = ElementTree.parse(RELEASED).getroot()
        if released.get('architecture') != today.get('architecture'):
            print(f'skipped: the release is described for {released.get("architecture")}')
            return SKIPPED
        faults = [*compare(released, today, folder), *unnoticed(compiler, folder, today)]
    print('\n'.join([*faults, f'{sum(1 for _ in declarations(ROOT / "include"))} functions, {len(faults)} faults']))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main())
