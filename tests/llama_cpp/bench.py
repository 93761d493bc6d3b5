"""Speed of KV caches in llama.cpp, on random weights of Llama-3.2-1B's geometry: `./dev bench --llama`.

    bench.py --lowkey PREFIX --work FOLDER -o FILE.json [--layers N] [--threads N] [--tokens N...]

Each cache has a process of its own: prefill in micro-batches of 512 tokens, then decode of single tokens. Seconds are CPU
time of all threads. The attention's share grows with the tokens and falls with the vocabulary, which has 256 tokens here."""
import argparse
import json
import pathlib
import subprocess
import sys

import gguf_models
import run

CACHES = ['f16', 'q8_0', 'q4_0', 'fp16', 'int8', 'kivi4', 'kitty-pro']


def cpu_name():
    lines = pathlib.Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines()
    return next((line.split(': ')[1] for line in lines if line.startswith('model name')), 'unknown')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--lowkey', type=pathlib.Path, required=True)
    parser.add_argument('--work', type=pathlib.Path, required=True)
    parser.add_argument('-o', '--output', type=pathlib.Path, required=True)
    parser.add_argument('--layers', type=int, default=16)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--decode', type=int, default=32)
    parser.add_argument('--tokens', type=int, nargs='+', default=[2048, 8192])
    parser.add_argument('--caches', nargs='+', default=CACHES)
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    pin = json.loads((run.ADAPTER / 'pin.json').read_text(encoding='utf-8'))
    flags = run.build(run.source(pin, work), options.lowkey.resolve(), work)
    program = run.link(work / 'llama-bench-cache', ['bench.cpp', 'session.cpp'], flags)
    model = work / f'llama-1b-{options.layers}.gguf'
    if not model.exists():
        gguf_models.llama(model, n_layers=options.layers, n_embd=2048, n_heads=32, n_kv_heads=8, head_dim=64, n_ff=8192,
                          kind='q4_0', n_context=131072)
    caches = []
    for cache in options.caches:
        done = run.run(program, model, cache, options.threads, options.decode, *options.tokens, capture_output=True)
        caches.append(json.loads(done.stdout))
        for point in caches[-1]['points']:
            print(f'{cache:10}{point["tokens"]:7} tokens: prefill {point["tokens"] / point["prefill_cpu_s"]:8.1f}, decode '
                  f'{point["decoded"] / point["decode_cpu_s"]:7.2f} tokens/s of CPU time', flush=True)
    record = {'device': cpu_name(), 'geometry': 'Llama-3.2-1B', 'layers': options.layers, 'weights': 'q4_0', 'vocabulary': 256,
              'llama_cpp': pin['commit'], 'caches': caches}
    options.output.write_text(json.dumps(record, indent=1) + '\n', encoding='utf-8')


if __name__ == '__main__':
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f'bench.py: {error}\n{(error.stderr or b"").decode("utf-8", "replace")}')
