# SPDX-License-Identifier: Apache-2.0
"""Speed of KV caches in llama.cpp, on random weights at Q4_0 in the geometries of Llama models: `./dev bench --llama`.

    bench.py --lowkey PREFIX --work FOLDER -o FILE.json [--cuda | --vulkan] [--models NAME...] [--layers N] [--threads N]
             [--tokens N...] [--caches NAME...] [--documents N] [--jobs N] [--append]

Each cache has a process of its own: prefill in micro-batches of 512 tokens, then decode of single tokens. Seconds are
CPU time of one thread; with several threads, and where all layers and caches are on a GPU, they are those of a clock on
the wall. The attention's share grows with the tokens and falls with the vocabulary, which has 256 tokens on the CPU and
128256 on a GPU. Then the proving model answers questions and predicts texts under each cache (answers.py)."""
import argparse
import json
import os
import pathlib
import subprocess
import sys

import answers
import gguf_models
import run

CACHES = ['f16', 'q8_0', 'q4_0', 'fp16', 'int8', 'kivi4', 'kitty-pro']
MODELS = {'cpu': ['Llama-3.2-1B', 'Qwen3-4B', 'Gemma-3-1B'], 'gpu': ['Llama-3.2-1B', 'Llama-3.1-8B']}
AUTO_BITS = 3
AUTO_TOKENS = 4096  # of the text of an `auto` plan's statistics
AUTO_DOCUMENTS = 1  # of each kind of text, of its costs


def cpu_name():
    lines = pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines()
    return next((line.split(': ')[1] for line in lines if line.startswith('model name')), 'unknown')


def gpu_name():
    done = subprocess.run(['nvidia-smi', '--query-gpu=name', '--format=csv,noheader'], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def auto_plan(model, work, threads):
    """The path of an `auto` plan for the model, made once by llama-lowkey-calibrate, costs included."""
    plan, text = model.with_suffix('.json'), work / 'text.txt'
    if not plan.exists():
        text.write_text(run.FILLER, encoding='utf-8')
        run.run(work / 'llama.cpp/bin/llama-lowkey-calibrate', model, text, '-o', plan, '--bits', AUTO_BITS, '--tokens',
                AUTO_TOKENS, '--costs', AUTO_DOCUMENTS, '-t', threads, stdout=sys.stderr)
    return plan


def measure(program, model, options, work):
    """A row of points for each cache."""
    for cache in options.caches:
        plan = auto_plan(model, work, options.threads) if cache == 'auto' else cache
        done = run.run(program, model, plan, options.threads, options.prompt_threads, options.decode, *options.tokens,
                       capture_output=True, env=dict(os.environ, LOWKEY_LLAMA_DEVICE=options.device))
        row = json.loads(done.stdout) | {'cache': cache}
        for point in row['points']:
            print(f'{cache:10}{point["tokens"]:7} tokens: prefill {point["tokens"] / point["prefill_s"]:8.1f}, decode '
                  f'{point["decoded"] / point["decode_s"]:7.2f} tokens/s', flush=True)
            if options.prompt_threads != options.threads:
                point['prefill_s'] = None  # it compares with no other row
        yield row


def measure_answers(work, options, flags):
    """A row of right answers and perplexity for each cache."""
    program = run.link(work / 'llama-test', run.TEST_SOURCES, flags)
    model = work / 'prover.gguf'
    gguf_models.prover(model)
    caches = {name: auto_plan(model, work, options.threads) if name == 'auto' else name for name in options.caches}
    for row in answers.measure(program, options.device, model, caches, options.documents, options.jobs):
        counts = ', '.join(f'{task} {sums["right"]} of {sums["questions"]}' for task, sums in row['tasks'].items())
        print(f'{row["cache"]:10}perplexity {row["perplexity"]:.4f}, {counts}', flush=True)
        yield row


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--lowkey', type=pathlib.Path, required=True)
    parser.add_argument('--work', type=pathlib.Path, required=True)
    parser.add_argument('-o', '--output', type=pathlib.Path, required=True)
    run.add_devices(parser)
    parser.add_argument('--models', nargs='+', choices=gguf_models.LARGE)
    parser.add_argument('--layers', type=int, help='of each model; default: all')
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--prompt-threads', type=int, help='of prefill; default: --threads')
    parser.add_argument('--decode', type=int)
    parser.add_argument('--tokens', type=int, nargs='+')
    parser.add_argument('--caches', nargs='+', help='of llama.cpp, or plans; auto is made for the model')
    parser.add_argument('--append', action='store_true', help='keep what FILE has of other models, layers and threads')
    parser.add_argument('--documents', type=int, default=6, help='of each task, with 8 questions each; 0: no answers')
    parser.add_argument('--jobs', type=int, default=len(os.sched_getaffinity(0)), help='documents at once')
    options = parser.parse_args()
    is_on_gpu = options.device != 'cpu'
    options.caches = options.caches or [*CACHES, *([] if is_on_gpu else ['auto'])]
    options.prompt_threads = options.prompt_threads or options.threads
    options.models = options.models or MODELS['gpu' if is_on_gpu else 'cpu']
    options.decode = options.decode or (128 if is_on_gpu else 32)
    options.tokens = options.tokens or ([8192, 32768] if is_on_gpu else [2048, 8192, 32768])
    return options


def joined(old, new):
    """A record of both; of equal models, layers and threads the new one, and the new answers if there are any."""
    for name in ('device', 'weights', 'vocabulary', 'llama_cpp'):
        if old[name] != new[name]:
            sys.exit(f'bench.py: --append: the record has the {name} {old[name]}, this run {new[name]}')
    keys = [(model['geometry'], model['layers'], model['threads']) for model in new['models']]
    kept = [model for model in old['models'] if (model['geometry'], model['layers'], model['threads']) not in keys]
    return old | new | {'models': kept + new['models']}


def main():
    options = parsed()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    pin = json.loads((run.ADAPTER / 'pin.json').read_text(encoding='utf-8'))
    flags = run.build(run.source(pin, work), options.lowkey.resolve(), work, options.device)
    program = run.link(work / 'llama-bench-cache', ['bench.cpp', 'session.cpp'], flags)
    is_on_gpu = options.device != 'cpu'
    n_vocab = 128256 if is_on_gpu else 256
    models = []
    for name in options.models:
        n_layers = options.layers or gguf_models.LARGE[name]['n_layers']
        path = work / f'{name}-{n_layers}-{n_vocab}.gguf'
        if not path.exists():
            gguf_models.large(path, name, n_layers=n_layers, n_vocab=n_vocab)
        models.append({'geometry': name, 'layers': n_layers, 'threads': options.threads,
                       'caches': list(measure(program, path, options, work))})
    record = {'device': gpu_name() if is_on_gpu else cpu_name(), 'weights': 'q4_0', 'vocabulary': n_vocab,
              'llama_cpp': pin['commit'], 'models': models}
    if options.documents:
        record['answers'] = list(measure_answers(work, options, flags))
    if options.append:
        record = joined(json.loads(options.output.read_text(encoding='utf-8')), record)
    options.output.write_text(json.dumps(record, indent=1) + '\n', encoding='utf-8')


if __name__ == '__main__':
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f'bench.py: {error}\n{(error.stderr or b"").decode("utf-8", "replace")}')
