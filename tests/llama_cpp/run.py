# SPDX-License-Identifier: Apache-2.0
"""Tests the adapter of llama.cpp: fetches the pinned source, applies the hooks, builds, runs.

    run.py --lowkey PREFIX --work FOLDER [--cuda | --vulkan | --asan] [--log FILE] [--requests N] [--only NAME...]

PREFIX holds an installed lowkey. FOLDER keeps the source, its build and the models for later runs. The source package
is fetched by pip and checked by the hash of bindings/llama.cpp/pin.json; LOWKEY_LLAMA_ARCHIVE names one that is there
already."""
import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import gguf_models
import server

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADAPTER = ROOT / 'bindings/llama.cpp'
HERE = pathlib.Path(__file__).resolve().parent
WORDS = (ROOT / 'tests/model/words.txt').read_text(encoding='utf-8').split()
FILLER = (ROOT / 'tests/model/texts/suite.txt').read_text(encoding='utf-8')
TEST_SOURCES = ['llama_test.cpp', 'windows_test.cpp', 'hybrid_test.cpp', 'text_test.cpp', 'trials_test.cpp',
                'device_test.cpp', 'session.cpp']
COMMON_CASES = ['logits', 'greedy', 'perplexity', 'answers', 'sequences', 'batches', 'drafts', 'states', 'windows',
                'hybrids', 'requests', 'refusals', 'environment']
CASES = {
    'cpu': [*COMMON_CASES, 'trials', 'plans', 'costs', 'threads'],
    'cuda': [*COMMON_CASES, 'graphs', 'placement'],
    'vulkan': [*COMMON_CASES, 'placement'],
}
# On a GPU ggml's own products are at F16 and TF32 by default, and the reference of `logits` is to be an exact one.
VARIABLES = {
    'cpu': {},
    'cuda': {'GGML_CUDA_CUBLAS_COMPUTE_TYPE': 'f32', 'NVIDIA_TF32_OVERRIDE': '0'},
    'vulkan': {'GGML_VK_DISABLE_F16': '1'},
}
CXX = shlex.split(os.environ.get('CXX', 'c++'))  # may be "ccache g++"
OFF = ['BUILD_TESTS', 'BUILD_EXAMPLES', 'BUILD_APP', 'BUILD_UI', 'USE_PREBUILT_UI', 'OPENSSL']


def run(*command, **options):
    print('+', *command, file=sys.stderr, flush=True)
    return subprocess.run([str(word) for word in command], check=True, **options)


def run_quietly(*command):
    """Shows the output of a command that fails, from the first failure of ninja on."""
    try:
        run(*command, stdout=subprocess.PIPE)
    except subprocess.CalledProcessError as error:
        text = error.stdout.decode('utf-8', 'replace')
        sys.exit(f'run.py: {error}\n{text[max(text.find("FAILED"), 0):][:8000]}')


def archive(pin, work):
    """The path of the pinned source package."""
    given = os.environ.get('LOWKEY_LLAMA_ARCHIVE')
    path = pathlib.Path(given) if given else work / 'archive' / pin['file']
    if not path.exists() and not given:
        run(shutil.which('pip') or 'pip3', 'download', '-q', '--no-deps', '--no-binary', ':all:', '-d', path.parent,
            f'{pin["package"]}=={pin["version"]}')
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != pin['sha256']:
        raise SystemExit(f'{path}: the SHA-256 is {found}, not {pin["sha256"]} as in pin.json')
    return path


def source(pin, work):
    """A checkout of the pinned llama.cpp with the hooks; a new one where an earlier run left other hooks."""
    folder = work / f'{pin["package"]}-{pin["version"]}'
    llama_cpp = folder / pin['llama_cpp']
    if folder.exists() and apply(llama_cpp)[0]:
        shutil.rmtree(folder)
    if not folder.exists():
        unpacked = folder.with_suffix('.part')
        shutil.rmtree(unpacked, ignore_errors=True)
        unpacked.mkdir(parents=True)
        run('tar', '-xf', archive(pin, work), '-C', unpacked)
        next(unpacked.iterdir()).rename(folder)
        unpacked.rmdir()
    status, said = apply(llama_cpp)
    assert status == 0, said
    return llama_cpp


def apply(llama_cpp, *options):
    """Exit status and sentence of apply.py."""
    done = subprocess.run([sys.executable, '-B', ADAPTER / 'apply.py', llama_cpp, *options], capture_output=True,
                          text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def hashes(folder):
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob('*')) if path.is_file()}


def test_apply(llama_cpp):
    """On the real files: in, again, out; a changed anchor is named and nothing is written."""
    with tempfile.TemporaryDirectory() as temp:
        copy = pathlib.Path(temp)
        for folder in ('src', 'include', 'common', 'ggml/src/ggml-cuda', 'ggml/src/ggml-vulkan'):
            shutil.copytree(llama_cpp / folder, copy / folder)
        apply(copy, '--revert')  # the source of an earlier run has the hooks
        before = hashes(copy)
        assert apply(copy, '--check')[0] == 0 and hashes(copy) == before
        assert apply(copy)[0] == 0
        after = hashes(copy)
        status, said = apply(copy)
        assert status == 0 and 'the hooks are in' in said and hashes(copy) == after
        assert apply(copy, '--revert')[0] == 0 and hashes(copy) == before, 'the original bytes'
        graph = copy / 'src/llama-graph.cpp'
        graph.write_text(graph.read_text(encoding='utf-8').replace('const bool v_trans =', 'bool v_trans ='), encoding='utf-8')
        changed = hashes(copy)
        for options in ((), ('--check',)):
            status, said = apply(copy, *options)
            assert status == 1 and 'src/llama-graph.cpp' in said and 'v_trans' in said and hashes(copy) == changed, said


def build(llama_cpp, lowkey, work, device='cpu', is_asan=False):
    """Builds libllama and llama-server; returns what a program of the library is compiled with."""
    if device == 'vulkan':
        os.environ.setdefault('GGML_VK_VISIBLE_DEVICES', '0')  # ggml takes a device that is a CPU, such as Mesa's, if named
    folder = work / 'llama.cpp'
    library, headers = next(lowkey.rglob('liblowkey.so')), next(lowkey.rglob('include/lowkey')).parent
    launcher = [f'-DCMAKE_{language}_COMPILER_LAUNCHER=ccache' for language in ('C', 'CXX') if shutil.which('ccache')]
    run_quietly('cmake', '-G', 'Ninja', '-S', llama_cpp, '-B', folder, '-DCMAKE_BUILD_TYPE=Release',
        f'-DCMAKE_PREFIX_PATH={headers.parent}', f'-DCMAKE_PROJECT_llama.cpp_INCLUDE={HERE}/build.cmake', *launcher,
        *[f'-DLLAMA_{name}=OFF' for name in OFF], f'-DGGML_CUDA={"ON" if device == "cuda" else "OFF"}',
        f'-DGGML_VULKAN={"ON" if device == "vulkan" else "OFF"}', f'-DVulkan_GLSLC_EXECUTABLE={HERE}/glslc_few.sh',
        f'-DLLAMA_SANITIZE_ADDRESS={"ON" if is_asan else "OFF"}')
    run_quietly('ninja', '-C', folder, 'llama', 'llama-lowkey-calibrate', 'llama-server')
    sanitizer = ['-fsanitize=address'] if is_asan else []
    return [*sanitizer, f'-I{llama_cpp}/include', f'-I{llama_cpp}/ggml/include', f'-I{headers}', f'-L{folder}/bin', '-lllama', '-lggml-base',
            '-lggml', library, f'-Wl,-rpath,{folder}/bin:{library.parent}']


def test_joining(lowkey, work):
    """lowkey-threads without llama.cpp, under ThreadSanitizer."""
    program = work / 'threads-test'
    headers = next(lowkey.rglob('include/lowkey')).parent
    run(*CXX, '-std=c++17', '-O1', '-g', '-Wall', '-Wextra', '-Werror', '-fsanitize=thread', '-pthread', '-o', program,
        HERE / 'threads_test.cpp', ADAPTER / 'lowkey-threads.cpp', f'-I{ADAPTER}', f'-I{headers}')
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def link(program, sources, flags):
    """Compiles a program of this folder's sources."""
    run(*CXX, '-std=c++17', '-O1', '-Wall', '-Wextra', '-Werror', '-o', program,
        *[HERE / name for name in sources], *flags)
    return program


class Cases:
    """The test program's cases, one at a time."""

    def __init__(self, program, models, work, device='cpu'):
        self.program, self.models, self.work, self.device = program, models, work, device
        self.variables = {'TMPDIR': str(work), 'LOWKEY_LLAMA_DEVICE': device} | VARIABLES[device]

    def case(self, name, *arguments, **variables):
        done = subprocess.run([self.program, name, *map(str, arguments)], capture_output=True, check=False,
                              env=dict(os.environ, **self.variables | variables))
        assert done.returncode == 0, done.stderr.decode('utf-8', 'replace') or f'exit status {done.returncode}'
        return done.stdout

    def logits(self):
        names = 'llama', 'prover', 'gemma2', 'gemma3', 'gpt-oss', 'lfm2', 'qwen35', 'falcon-h1'
        print(self.case('logits', *[self.models[name] for name in names]).decode(), end='')

    def windows(self):
        self.case('windows', *[self.models[name] for name in ('gemma2', 'gemma3', 'gpt-oss')])

    def hybrids(self):
        print(self.case('hybrids', *[self.models[name] for name in ('lfm2', 'qwen35', 'falcon-h1')]).decode(), end='')

    def sequences(self):
        self.case('sequences', self.models['llama'])

    def batches(self):
        self.case('batches', self.models['llama'])

    def drafts(self):
        self.case('drafts', self.models['llama'])

    def states(self):
        self.case('states', self.models['llama'])

    def requests(self):
        self.case('requests', self.models['llama'])

    def threads(self):
        self.case('threads', self.models['llama'])

    def refusals(self):
        self.case('refusals', self.models['llama'], f'{self.models["head-24"]}=head_dim',
                  f'{self.models["alibi"]}=ALiBi', f'{self.models["chunked"]}=chunked windows',
                  f'{self.models["recurrent"]}=recurrent',
                  f'{self.models["lfm2-windows"]}=sliding windows next to recurrent layers')

    def environment(self):
        """Variables stand for settings that nobody has made."""
        arguments = 'generate', self.models['llama'], 'environment', 20, 'a text'
        own, ours = self.case(*arguments), self.case(*arguments, LLAMA_KV_PLAN='fp16', LLAMA_KV_BUDGET='64MiB')
        assert len(own) == len(ours) == 20
        for variables, words in (({'LLAMA_KV_PLAN': 'kitten'}, 'is no preset'),
                                 ({'LLAMA_KV_PLAN': 'fp16', 'LLAMA_KV_BUDGET': '64K'}, 'is too small')):
            try:
                self.case(*arguments, **variables)
            except AssertionError as error:
                assert words in str(error), error
            else:
                raise AssertionError(f'{variables}: not refused')

    def greedy(self):
        """Plan fp16 continues a text as llama.cpp's F16 cache does, byte for byte."""
        for begin in (0, 5000, 20000):
            text = FILLER[begin:begin + 700]
            theirs, ours = (self.case('generate', self.models['prover'], plan, 250, text) for plan in ('', 'fp16'))
            assert len(theirs) == 250 and theirs == ours, f'{theirs}\n{ours}'

    def perplexity(self):
        """Plan fp16 predicts texts as llama.cpp's F16 cache does, to three decimals."""
        texts = [FILLER[begin:begin + 2047].encode('ascii', 'replace').decode() for begin in (0, 9000, 18000, 27000)]
        theirs, ours = (float(self.case('perplexity', self.models['prover'], cache, *texts)) for cache in ('f16', 'fp16'))
        print(f'perplexity: f16 {theirs:.5f}, fp16 {ours:.5f}')
        assert abs(theirs - ours) < 0.0005 and 1 < theirs < 20, f'f16 {theirs}, fp16 {ours}'

    def graphs(self):
        """Steps that ggml replays have the bits of steps without CUDA graphs."""
        arguments = 'graphs', self.models['llama'], self.models['gemma3']
        replayed = [line.split() for line in self.case(*arguments).decode().splitlines()]
        plain = [line.split() for line in self.case(*arguments, GGML_CUDA_DISABLE_GRAPHS='1').decode().splitlines()]
        assert [hash_ for hash_, _ in replayed] == [hash_ for hash_, _ in plain], f'{replayed}\n{plain}'
        assert all(int(n) >= 60 for _, n in replayed) and not any(int(n) for _, n in plain), f'{replayed}\n{plain}'

    def placement(self):
        self.case('placement', self.models['llama'])

    def right_answers(self, plan):
        """How many of 16 facts that 4096 tokens hide the proving model finds."""
        source_of = random.Random(26)
        words = source_of.sample(WORDS, 16)
        facts = {word: f'{source_of.randrange(10 ** 6):06}' for word in words}
        size = 4095 - sum(len(f'The code of {word} is {facts[word]}. ') for word in words)
        begin = FILLER.index(' ', 1000) + 1
        text = ''.join(c if ' ' <= c <= '~' or c == '\n' else ' ' for c in FILLER[begin:begin + size])
        for word in words:
            at = source_of.choice([i for i in range(1, len(text)) if text[i - 1] in ' \n'])
            text = f'{text[:at]}The code of {word} is {facts[word]}. {text[at:]}'
        questions = [f'\nThe code of {word} is ' for word in words]
        said = self.case('answers', self.models['prover'], plan, text, *questions).decode().split('\n')
        return sum(answer == facts[word] + '.' for answer, word in zip(said, words))

    def answers(self):
        for plan in ('kitty-pro', 'kivi4', 'int8'):
            right = self.right_answers(plan)
            assert right >= 15, f'{plan}: {right} of 16 answers are right'

    def calibrate(self, *arguments):
        """Exit status and text of llama-lowkey-calibrate."""
        program = self.work / 'llama.cpp/bin/llama-lowkey-calibrate'
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def trials(self):
        self.case('trials', self.models['llama'])

    def costs(self):
        """Costs of a model's keys and values: measured, kept, gone on with, and in the plan's statistics."""
        text, plan = self.work / 'text.txt', self.work / 'costs.json'
        text.write_text(FILLER, encoding='utf-8')
        journal, statistics = self.work / 'costs.json.costs', self.work / 'costs.json.stats'
        journal.unlink(missing_ok=True)
        arguments = self.models['llama'], text, '-o', plan, '-t', 1, '--tokens', 3000, '--bits', 3
        status, said = self.calibrate(*arguments)
        assert status == 0, said
        without = statistics.read_bytes(), plan.read_text(encoding='utf-8')
        status, said = self.calibrate(*arguments, '--costs', 1)
        n_trials = 4 * 2 * 2 * 2  # kinds of text, layers, KV heads, keys and values
        assert status == 0 and f'{n_trials} of {n_trials} trials' in said, said
        measured, of_costs = journal.read_bytes(), (statistics.read_bytes(), plan.read_text(encoding='utf-8'))
        assert len(measured) == 64 + 8 * n_trials and of_costs[0] != without[0] and of_costs[1] != without[1]
        bits = struct.unpack(f'<{n_trials}d', measured[56:-8])  # docs/costs.md has the layout
        assert all(1e-3 < b < 1e4 for b in bits), bits
        journal.write_bytes(b'x' * len(measured))
        status, said = self.calibrate(*arguments, '--costs', 1)
        assert status == 1 and plan.read_text(encoding='utf-8') == of_costs[1], said
        journal.write_bytes(measured)
        status, said = self.calibrate(*arguments, '--costs', 1)
        assert status == 0 and 'trials' not in said and plan.read_text(encoding='utf-8') == of_costs[1], said
        status, said = self.calibrate(*arguments, '--costs', 2)
        assert status == 1 and journal.read_bytes() == measured, said

    def plans(self):
        """Plans from statistics of the very model: they run, and are as good as their bits."""
        text, plan = self.work / 'text.txt', self.work / 'plan.json'
        text.write_text(FILLER[:9000], encoding='utf-8')
        for options, name, most_bits in (((), 'chanmix', 4.5), (('--bits', 3), 'auto', 3)):
            status, said = self.calibrate(self.models['prover'], text, '-o', plan, '-t', 1, *options)
            assert status == 0, said
            bits = float(re.search(r'([0-9.]+) bits a value', said)[1])
            assert json.loads(plan.read_text(encoding='utf-8'))['name'] == name and 2 < bits <= most_bits, said
            right = self.right_answers(plan)
            print(f'{name} from llama.cpp, {bits} bits: {right} of 16 answers')
            assert right >= 14, f'{name}: {right} of 16 answers are right'
        for model in ('gemma3', 'gpt-oss'):
            status, said = self.calibrate(self.models[model], text, '-o', plan, '-t', 1, '--tokens', 3000)
            assert status == 0, said
            assert len(self.case('generate', self.models[model], plan, 20, 'a text')) == 20
        short = self.work / 'short.txt'
        short.write_text('too short', encoding='utf-8')
        for arguments, words in (((self.models['prover'], short, '-o', plan), 'a plan needs at least'),
                                 ((short, text, '-o', plan), 'cannot load it'),
                                 ((self.models['alibi'], text, '-o', plan), 'ALiBi'),
                                 ((self.models['prover'], self.work / 'none', '-o', plan), 'cannot be read'),
                                 ((self.models['prover'], text), 'usage: '),
                                 ((self.models['prover'], text, '-o', plan, '--bits', 'x'), 'needs a number')):
            status, said = self.calibrate(*arguments)
            assert status == 1 and words in said, said


def add_devices(parser):
    """Options that choose the device of all layers and caches."""
    for name in ('cuda', 'vulkan'):
        parser.add_argument(f'--{name}', dest='device', action='store_const', const=name, default='cpu',
                            help=f'with both built for {name}, on its first device')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--lowkey', type=pathlib.Path, required=True)
    parser.add_argument('--work', type=pathlib.Path, required=True)
    parser.add_argument('--log', type=pathlib.Path)
    parser.add_argument('--requests', type=int, default=200, help='of the load on llama-server')
    add_devices(parser)
    parser.add_argument('--asan', action='store_true', help='build llama.cpp with AddressSanitizer; PREFIX has it too')
    parser.add_argument('--only', nargs='+')
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    pin = json.loads((ADAPTER / 'pin.json').read_text(encoding='utf-8'))
    llama_cpp = source(pin, work)
    lowkey = options.lowkey.resolve()
    flags = build(llama_cpp, lowkey, work, options.device, options.asan)
    program = link(work / 'llama-test', TEST_SOURCES, flags)
    models = gguf_models.all_models(work / 'models')
    cases = Cases(program, models, work, options.device)
    tests = {'apply': lambda: test_apply(llama_cpp), 'joining': lambda: test_joining(lowkey, work)}
    tests |= {name: getattr(cases, name) for name in CASES[options.device]}
    tests['server'] = lambda: server.check(work / 'llama.cpp/bin/llama-server', models, work, options.requests,
                                           options.asan)
    results = []
    for name, test in tests.items():
        if options.only and name not in options.only:
            continue
        begin, said = time.monotonic(), ''
        try:
            test()
        except (AssertionError, subprocess.CalledProcessError) as error:
            said = str(error)
        results.append({'name': f'llama {name}', 'result': 'FAIL' if said else 'OK', 'stdout': said,
                        'duration': time.monotonic() - begin})
        print(f'{results[-1]["result"]:5}{name:10}{results[-1]["duration"]:6.1f} s', said, flush=True)
    if options.log:
        options.log.parent.mkdir(parents=True, exist_ok=True)
        options.log.write_text(''.join(json.dumps(result) + '\n' for result in results), encoding='utf-8')
    return any(result['result'] != 'OK' for result in results)


if __name__ == '__main__':
    sys.exit(main())
