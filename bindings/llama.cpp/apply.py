#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts lowkey into a checkout of llama.cpp: copies the adapter's files and inserts calls of them.

    apply.py LLAMA_CPP             insert; a second time changes nothing
    apply.py LLAMA_CPP --check     change nothing; exit 0 if the hooks are in, or can be put in
    apply.py LLAMA_CPP --revert    remove files and hooks; llama.cpp's files get their bytes back

A hook is a line before or after an anchor, a line of llama.cpp that stands exactly once in its file.
Where an anchor is missing or stands there twice, the sentence names file and anchor, nothing is
changed, and the exit status is 1."""
import argparse
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# The adapter's files, by the folder of llama.cpp that gets them.
FILES = {
    'include': ['llama-lowkey.h'],
    'src': ['llama-lowkey-calibrate.cpp', 'llama-lowkey-costs.cpp', 'llama-lowkey-costs.h', 'llama-lowkey-tools.h',
            'lowkey-cells.cpp', 'lowkey-cells.h', 'lowkey-cuda.h', 'lowkey-device.cpp',
            'lowkey-device.h', 'lowkey-graph.cpp', 'lowkey-graph.h', 'lowkey-hooks.h', 'lowkey-kv.cpp', 'lowkey-kv.h',
            'lowkey-model.cpp', 'lowkey-model.h', 'lowkey-options.cpp', 'lowkey-options.h', 'lowkey-state.cpp',
            'lowkey-statistics.cpp', 'lowkey-statistics.h', 'lowkey-step.cpp', 'lowkey-store.cpp', 'lowkey-store.h',
            'lowkey-threads.cpp', 'lowkey-threads.h', 'lowkey-trials.cpp', 'lowkey-trials.h', 'lowkey-vulkan.h'],
    'ggml/src/ggml-cuda': ['lowkey-cuda.cuh', 'lowkey-cuda.h'],
    'ggml/src/ggml-vulkan': ['lowkey-vulkan.h', 'lowkey-vulkan.hpp'],
}
SOURCES = [name for name in FILES['src'] if name.startswith('lowkey-') and name.endswith('.cpp')]
INCLUDE = '#include "lowkey-hooks.h" // lowkey'

OPTIONS = '''\
    add_opt(common_arg({"--kv-plan"}, "NAME|FILE", "keep the KV cache in lowkey under this plan, a preset or a JSON file", // lowkey
        [](common_params &, const std::string & value) { // lowkey
            if (const char * why = llama_lowkey_set_plan(value.c_str())) { throw std::invalid_argument(why); } // lowkey
        }).set_env("LLAMA_ARG_KV_PLAN")); // lowkey
    add_opt(common_arg({"--kv-budget"}, "BYTES", "hard limit of lowkey's KV cache, such as 512M or 2GiB", // lowkey
        [](common_params &, const std::string & value) { // lowkey
            if (const char * why = llama_lowkey_set_budget(value.c_str())) { throw std::invalid_argument(why); } // lowkey
        }).set_env("LLAMA_ARG_KV_BUDGET")); // lowkey'''

BEFORE, AFTER = 'before', 'after'
CUDA = 'ggml/src/ggml-cuda/ggml-cuda.cu'
VULKAN = 'ggml/src/ggml-vulkan/ggml-vulkan.cpp'
# (file, anchor, side, lines)
HOOKS = [
    ('src/CMakeLists.txt', '    llama-kv-cache.cpp', AFTER, '    ' + ' '.join(SOURCES) + ' # lowkey'),
    ('src/CMakeLists.txt', 'target_link_libraries(llama PUBLIC ggml)', AFTER,
     'find_package(lowkey REQUIRED) # lowkey\ntarget_link_libraries(llama PRIVATE lowkey::lowkey) # lowkey\n'
     'add_executable(llama-lowkey-calibrate llama-lowkey-calibrate.cpp llama-lowkey-costs.cpp) # lowkey\n'
     'target_link_libraries(llama-lowkey-calibrate PRIVATE llama lowkey::lowkey) # lowkey'),
    ('src/llama-model.cpp', '#include "llama-model.h"', AFTER, INCLUDE),
    ('src/llama-model.cpp', '    llama_memory_i * res;', BEFORE,
     '    if (llama_memory_i * lowkey = lowkey_create_memory(*this, params, cparams)) { return lowkey; } // lowkey'),
    ('src/llama-context.cpp', '#include "llama-context.h"', AFTER, INCLUDE),
    ('src/llama-context.cpp', '    ggml_opt_free(opt_ctx);', AFTER, '    memory.reset(); // before the streams of backends // lowkey'),
    ('src/llama-context.cpp', '    ret = GGML_STATUS_SUCCESS;', BEFORE,
     '    if (!lowkey_step_done(mctx)) { ret = GGML_STATUS_FAILED; return nullptr; } // lowkey'),
    ('src/llama-graph.cpp', '#include "llama-graph.h"', AFTER, INCLUDE),
    ('src/llama-graph.cpp', '    if (cparams.training) {', BEFORE,
     '    if (lowkey_owns(mctx)) { k = k_cur; v = v_cur; } else // lowkey'),
    ('src/llama-graph.cpp', '    auto * v_rot = is_swa ? inp->self_v_rot_swa : inp->self_v_rot;', BEFORE,
     '    if (lowkey_owns(mctx)) { llm_graph_input_attn_no_cache none(hparams, cparams); return build_attn(&none, wo, wo_b,'
     ' wo_s, q_cur, k_cur, v_cur, kq_b, sinks, v_mla, kq_scale, il); } // lowkey'),
    ('src/llama-graph.cpp', '    const bool v_trans = v->nb[1] > v->nb[2];', BEFORE,
     '    if (ggml_tensor * lowkey = lowkey_attention(*this, q, k, v, kq_b, sinks, v_mla, kq_scale, il)) { return lowkey; }'
     ' // lowkey'),
    ('src/llama-graph.cpp', 'void llm_graph_input_mem_hybrid::set_input(const llama_ubatch * ubatch) {', AFTER,
     '    if (lowkey_owns(mctx)) { inp_rs->mctx = mctx->get_recr(); return inp_rs->set_input(ubatch); } // lowkey'),
    (CUDA, '#include "ggml-cuda.h"', AFTER, '#include "ggml-cuda/lowkey-cuda.cuh" // lowkey'),
    (CUDA, 'static bool ggml_cuda_compute_forward(ggml_backend_cuda_context & ctx, struct ggml_tensor * dst) {', AFTER,
     '    if (dst->op == GGML_OP_CUSTOM) { return lowkey_compute(dst, ctx.stream()); } // lowkey'),
    (CUDA, '        // [TAG_MUL_MAT_ID_CUDA_GRAPHS]', BEFORE,
     '        if (!lowkey_may_capture(node)) { return false; } // lowkey'),
    (CUDA, 'static bool ggml_backend_cuda_device_supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {', AFTER,
     '    if (op->op == GGML_OP_CUSTOM) { return lowkey_is_on(op, dev); } // lowkey'),
    (CUDA, 'static void * ggml_backend_cuda_reg_get_proc_address(ggml_backend_reg_t reg, const char * name) {', AFTER,
     '    if (strcmp(name, LOWKEY_CUDA_NAME) == 0) { return lowkey_cuda_calls([](ggml_backend_dev_t dev) { return'
     ' ggml_cuda_get_physical_device(((ggml_backend_cuda_device_context *) dev->context)->device); }); } // lowkey'),
    (VULKAN, '#include "ggml-vulkan-common.h"', AFTER, '#include "lowkey-vulkan.hpp" // lowkey'),
    (VULKAN, '        device->name = GGML_VK_NAME + std::to_string(idx);', AFTER,
     '        lowkey_prepare_device(device, device_extensions, device_features2); // lowkey'),
    (VULKAN, '        ggml_vk_opt_step_adamw(ctx, compute_ctx, node);', AFTER,
     '        break; case GGML_OP_CUSTOM: lowkey_record(ctx, compute_ctx, node); // lowkey'),
    (VULKAN, 'static bool ggml_backend_vk_device_supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {', AFTER,
     '    if (op->op == GGML_OP_CUSTOM) { return lowkey_is_on(op, dev); } // lowkey'),
    (VULKAN, '        return &reg;', BEFORE, '        reg.iface.get_proc_address = lowkey_proc_address; // lowkey'),
    ('common/arg.cpp', '#include "llama.h"', AFTER, '#include "llama-lowkey.h" // lowkey'),
    ('common/arg.cpp', '    ).set_env("LLAMA_ARG_CACHE_TYPE_V"));', AFTER, OPTIONS),
]


class Refused(Exception):
    """One sentence why nothing was changed."""


def place(name, rows, hook):
    """Where a hook's rows begin, or would begin, and whether they are in."""
    _, anchor, side, lines = hook
    n_found = rows.count(anchor)
    if n_found != 1:
        raise Refused(f'{name}: the anchor "{anchor.strip()}" stands there {n_found} times, not once: this version of '
                      'llama.cpp needs other hooks')
    block, at = lines.split('\n'), rows.index(anchor)
    begin = max(at - len(block), 0) if side == BEFORE else at + 1
    is_in = rows[begin:begin + len(block)] == block
    return (at if side == BEFORE and not is_in else begin), block, is_in


def with_hook(name, rows, hook):
    """The rows with a hook, or None if it is in already."""
    begin, block, is_in = place(name, rows, hook)
    return None if is_in else rows[:begin] + block + rows[begin:]


def without_hook(name, rows, hook):
    """The rows without a hook, which must be in."""
    begin, block, is_in = place(name, rows, hook)
    if not is_in:
        raise Refused(f'{name}: the hook at "{hook[1].strip()}" was changed: take it out by hand')
    return rows[:begin] + rows[begin + len(block):]


def marks(rows):
    return sum(row.endswith(('// lowkey', '# lowkey')) for row in rows)


def read(path):
    try:
        return path.read_bytes().decode('utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f'{path}: cannot be read: {error}') from error


def hooked_files(root):
    """(path, rows, line end, hooks) of each file with hooks."""
    for name in dict.fromkeys(hook[0] for hook in HOOKS):
        text = read(root / name)
        end = '\r\n' if '\r\n' in text else '\n'
        yield name, text.split(end), end, [hook for hook in HOOKS if hook[0] == name]


def own_files(root):
    """(path in llama.cpp, bytes) of each of the adapter's files."""
    for folder, names in FILES.items():
        if not (root / folder).is_dir():
            raise Refused(f'{root / folder}: no such folder: is {root} a checkout of llama.cpp?')
        for name in names:
            yield root / folder / name, (HERE / name).read_bytes()


def inserted(root):
    """The new bytes of all files that change, and whether all hooks were in before."""
    changes = {}
    n_missing = 0
    for name, was, end, hooks in hooked_files(root):
        rows = was
        for hook in hooks:
            new = with_hook(name, rows, hook)
            n_missing += new is not None
            rows = rows if new is None else new
        if rows != was and marks(was):
            raise Refused(f'{name}: holds hooks of another version of apply.py: revert with that version first')
        if rows != was:
            changes[root / name] = end.join(rows).encode('utf-8')
    for path, data in own_files(root):
        if not path.exists() or path.read_bytes() != data:
            if path.exists() and b'lowkey' not in path.read_bytes()[:4096]:
                raise Refused(f'{path}: is there already, and not one of lowkey')
            changes[path] = data
    return changes, n_missing == 0


def reverted(root):
    """The bytes to give back; None removes a file."""
    changes = {}
    for name, rows, end, hooks in hooked_files(root):
        if not marks(rows):
            continue
        for hook in reversed(hooks):
            rows = without_hook(name, rows, hook)
        changes[root / name] = end.join(rows).encode('utf-8')
    for path, _ in own_files(root):
        if path.exists():
            changes[path] = None
    return changes


def write(changes):
    """All files, or none: new bytes lie next to the files before the first one is replaced."""
    staged, done = {}, []
    try:
        for path, data in changes.items():
            if data is not None:
                handle, temporary = tempfile.mkstemp(dir=path.parent, prefix='.lowkey-')
                staged[path] = temporary
                with os.fdopen(handle, 'wb') as file:
                    file.write(data)
                os.chmod(temporary, path.stat().st_mode & 0o7777 if path.exists() else 0o644)
        for path, data in changes.items():
            old = path.read_bytes() if path.exists() else None
            done.append((path, old))
            if data is None:
                path.unlink()
            else:
                os.replace(staged.pop(path), path)
    except OSError as error:
        for path, old in reversed(done):
            if old is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(old)
        raise Refused(f'{error.filename}: cannot be written: {error.strerror}') from error
    finally:
        for temporary in staged.values():
            os.unlink(temporary)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('llama_cpp', type=pathlib.Path, help='a checkout of llama.cpp')
    verb = parser.add_mutually_exclusive_group()
    verb.add_argument('--check', action='store_true', help='change nothing')
    verb.add_argument('--revert', action='store_true', help='remove files and hooks')
    options = parser.parse_args(arguments)
    try:
        if options.revert:
            changes = reverted(options.llama_cpp)
            write(changes)
            print(f'{len(changes)} files reverted' if changes else 'nothing to revert')
            return 0
        changes, is_in = inserted(options.llama_cpp)
        if not options.check:
            write(changes)
        state = 'the hooks are in' if is_in and not changes else \
            'the hooks can be put in' if options.check else f'{len(changes)} files written'
        print(f'{options.llama_cpp}: {state}')
        return 0
    except Refused as error:
        print(f'apply.py: {error}', file=sys.stderr)
        return 1


if __name__ == '__main__':
    sys.exit(main())
