"""Speed of KV caches in llama.cpp, on random weights at Q4_0 in the geometries of Llama models: `./dev bench --llama`.

    bench.py --lowkey PREFIX --work FOLDER -o FILE.json [--cuda] [--models NAME...] [--layers N] [--threads N]
             [--tokens N...] [--caches NAME...]

Each cache has a process of its own: prefill in micro-batches of 512 tokens, then decode of single tokens. Seconds are CPU
time of all threads; with --cuda, where all layers and caches are on a GPU, they are those of a clock on the wall. The
attention's share grows with the tokens and falls with the vocabulary, which has 256 tokens on the CPU and 128256 on a
GPU."""
import argparse
import json
import os
import pathlib
import subprocess
import sys

import gguf_models
import run

CACHES = ['f16', 'q8_0', 'q4_0', 'fp16', 'int8', 'kivi4', 'kitty-pro']


def cpu_name():
    lines = pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines()
    return next((line.split(': ')[1] for line in lines if line.startswith('model name')), 'unknown')


def gpu_name():
    done = subprocess.run(['nvidia-smi', '--query-gpu=name', '--format=csv,noheader'], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def measure(program, model, options):
    """A row of points for each cache."""
    for cache in options.caches:
        done = run.run(program, model, cache, options.threads, options.decode, *options.tokens, capture_output=True,
                       env=dict(os.environ, LOWKEY_LLAMA_DEVICE='cuda' if options.cuda else 'cpu'))
        row = json.loads(done.stdout)
        for point in row['points']:
            print(f'{cache:10}{point["tokens"]:7} tokens: prefill {point["tokens"] / point["prefill_s"]:8.1f}, decode '
                  f'{point["decoded"] / point["decode_s"]:7.2f} tokens/s', flush=True)
        yield row


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--lowkey', type=pathlib.Path, required=True)
    parser.add_argument('--work', type=pathlib.Path, required=True)
    parser.add_argument('-o', '--output', type=pathlib.Path, required=True)
    parser.add_argument('--cuda', action='store_true')
    parser.add_argument('--models', nargs='+', choices=gguf_models.LARGE)
    parser.add_argument('--layers', type=int, help='of each model; default: all')
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--decode', type=int)
    parser.add_argument('--tokens', type=int, nargs='+')
    parser.add_argument('--caches', nargs='+', default=CACHES)
    options = parser.parse_args()
    options.models = options.models or list(gguf_models.LARGE)[:2 if options.cuda else 1]
    options.decode = options.decode or (128 if options.cuda else 32)
    options.tokens = options.tokens or ([8192, 32768] if options.cuda else [2048, 8192])
    return options


def main():
    options = parsed()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    pin = json.loads((run.ADAPTER / 'pin.json').read_text(encoding='utf-8'))
    flags = run.build(run.source(pin, work), options.lowkey.resolve(), work, options.cuda)
    program = run.link(work / 'llama-bench-cache', ['bench.cpp', 'session.cpp'], flags)
    n_vocab = 128256 if options.cuda else 256
    models = []
    for name in options.models:
        n_layers = options.layers or gguf_models.LARGE[name]['n_layers']
        path = work / f'{name}-{n_layers}-{n_vocab}.gguf'
        if not path.exists():
            gguf_models.large(path, name, n_layers=n_layers, n_vocab=n_vocab)
        models.append({'geometry': name, 'layers': n_layers, 'caches': list(measure(program, path, options))})
    record = {'device': gpu_name() if options.cuda else cpu_name(), 'weights': 'q4_0', 'vocabulary': n_vocab,
              'llama_cpp': pin['commit'], 'models': models}
    options.output.write_text(json.dumps(record, indent=1) + '\n', encoding='utf-8')


if __name__ == '__main__':
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f'bench.py: {error}\n{(error.stderr or b"").decode("utf-8", "replace")}')
