# SPDX-License-Identifier: Apache-2.0
"""Tests bindings/llama.cpp/apply.py on made-up files that hold its anchors among other lines."""
import contextlib
import hashlib
import io
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'bindings/llama.cpp'))
sys.dont_write_bytecode = True
import apply as adapter  # noqa: E402


def checkout(folder, end='\n'):
    """A tree with each file of the hooks; the files end without a line end."""
    for name in {hook[0] for hook in adapter.HOOKS}:
        lines = ['first line', '  x' + adapter.HOOKS[0][1]]
        for hook in adapter.HOOKS:
            lines += [f'before {len(lines)}', hook[1]] if hook[0] == name else []
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((end.join(lines) + end + 'last line').encode())
    (folder / 'include').mkdir(exist_ok=True)
    return folder


def hashes(folder):
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob('*') if path.is_file()}


def apply(folder, *options):
    with io.StringIO() as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        return adapter.main([str(folder), *options]), said.getvalue()


def test_round_trip(folder, end):
    root = checkout(folder, end)
    before = hashes(root)
    assert apply(root, '--check')[0] == 0 and hashes(root) == before
    assert apply(root)[0] == 0
    after = hashes(root)
    assert len(after) == len(before) + sum(map(len, adapter.FILES.values()))
    status, said = apply(root)
    assert status == 0 and 'the hooks are in' in said and hashes(root) == after
    status, said = apply(root, '--check')
    assert status == 0 and 'the hooks are in' in said
    text = (root / 'src/llama-graph.cpp').read_bytes()
    assert text.count(b'\r\n') == (text.count(b'\n') if end == '\r\n' else 0)
    assert apply(root, '--revert')[0] == 0 and hashes(root) == before
    status, said = apply(root, '--revert')
    assert status == 0 and 'nothing to revert' in said


def test_anchors(folder):
    """Each anchor that is missing, stands there twice, or as part of a line alone."""
    for name, anchor, _, _ in adapter.HOOKS:
        for text in ('', f'{anchor}\n{anchor}\n', f'{anchor} // more\n'):
            root = checkout(folder)
            path = root / name
            path.write_text(path.read_text().replace(f'{anchor}\n', text))
            before = hashes(root)
            try:
                adapter.inserted(root)
                raise AssertionError(f'{name}: {anchor}: not refused')
            except adapter.Refused as error:
                assert name in str(error) and anchor.strip() in str(error), error
            assert hashes(root) == before
    status, said = apply(root)
    assert status == 1 and name in said and hashes(root) == before, said


def test_changed(folder):
    """Hooks that somebody edited, half of the hooks, a file of another owner, a missing file."""
    root = checkout(folder)
    assert apply(root)[0] == 0
    graph = root / 'src/llama-graph.cpp'
    text = graph.read_text()
    graph.write_text(text.replace('lowkey_owns(mctx)', 'lowkey_owns(nullptr)'))
    before = hashes(root)
    for options in ((), ('--check',), ('--revert',)):
        assert apply(root, *options)[0] == 1 and hashes(root) == before, options
    graph.write_text(text)
    assert apply(root, '--revert')[0] == 0
    (root / 'src/lowkey-kv.h').write_text('of another owner')
    before = hashes(root)
    status, said = apply(root)
    assert status == 1 and 'lowkey-kv.h' in said and hashes(root) == before, said
    (root / 'src/lowkey-kv.h').unlink()
    (root / 'common/arg.cpp').unlink()
    before = hashes(root)
    status, said = apply(root)
    assert status == 1 and 'arg.cpp' in said and hashes(root) == before, said


def main():
    tests = {'round trip': lambda folder: test_round_trip(folder, '\n'),
             'round trip of CRLF': lambda folder: test_round_trip(folder, '\r\n'),
             'anchors': test_anchors, 'changed': test_changed}
    for name, test in tests.items():
        with tempfile.TemporaryDirectory() as folder:
            test(pathlib.Path(folder))
        print(f'ok: {name}')


if __name__ == '__main__':
    main()
