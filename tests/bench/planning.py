#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The seconds that lowkey.transformers.plan() takes on whole models with random weights, and by how much the process's
memory on the host grows. Texts are random token ids: neither weights nor texts change times.

A job is METHOD or METHOD:DOCUMENTS, whose texts are so many documents of --document-tokens. Methods:

    auto       an `auto` plan; the largest of its costs are measured, as many as take cost_seconds, and the others estimated
    estimated  an `auto` plan whose costs are estimated
    measured   an `auto` plan whose costs are measured
    gradients  a PM-KVQ plan from gradients
"""

import argparse
import json
import pathlib
import sys
import time
import zlib

import torch
import transformers

import lowkey
from lowkey.transformers import plan
from systems import MODELS, random_model, say

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'docs'))
import results

METHODS = {
    'auto': {'method': 'auto', 'bits': 2.25},
    'estimated': {'method': 'auto', 'bits': 2.25, 'costs': 'estimated'},
    'measured': {'method': 'auto', 'bits': 2.25, 'costs': 'measured'},
    'gradients': {'method': 'pm-kvq', 'tokens': 131072, 'budget': '4GiB'},
}
STATUS = pathlib.Path('/proc/self/status')


def status_bytes(name: str) -> int:
    for line in STATUS.read_text(encoding='ascii').splitlines():
        if line.startswith(name + ':'):
            return int(line.split()[1]) << 10
    raise SystemExit(f'{STATUS} has no {name}')


def forget_peak() -> None:
    pathlib.Path('/proc/self/clear_refs').write_text('5', encoding='ascii')


class Model:
    """A model of a published geometry, on a device."""

    def __init__(self, name: str, device: str, dtype: torch.dtype):
        self.name, self.model = name, random_model(name, device, dtype)
        self.vocabulary = self.model.config.vocab_size

    def tokenize(self, text: str) -> dict[str, list[int]]:
        """A token for each word, for the sentences of the package."""
        return {'input_ids': [zlib.crc32(word.encode()) % self.vocabulary for word in text.split()]}

    def ids(self, n: int) -> list[int]:
        return torch.randint(self.vocabulary, (n,)).tolist()


def measure(model: Model, method: str, n_documents: int, document_tokens: int) -> dict:
    texts = [model.ids(document_tokens) for _ in range(n_documents)]
    cost_texts = [model.ids(2560) for _ in range(8)] if method != 'gradients' else None
    row = {'model': model.name, 'method': method, 'documents': n_documents, 'document_tokens': document_tokens}
    before = status_bytes('VmRSS')
    forget_peak()
    begin = time.perf_counter()
    made = plan(model.model, model.tokenize, texts=texts, cost_texts=cost_texts, document_tokens=document_tokens,
                text_tokens=n_documents * document_tokens, progress=False, **METHODS[method])
    row['seconds'] = time.perf_counter() - begin
    row['host_growth_bytes'] = status_bytes('VmHWM') - before
    row['bits_per_value'] = made.bytes(8192).bits_per_value
    say(f'{model.name} {method}, {n_documents} documents: {row["seconds"]:.0f} s, the host\'s memory grows by '
        f'{row["host_growth_bytes"] / 2**20:.0f} MiB')
    return row


def job(text: str) -> tuple[str, int]:
    method, _, n = text.partition(':')
    if method not in METHODS:
        raise argparse.ArgumentTypeError(f'{method!r} is none of {", ".join(METHODS)}')
    return method, int(n or 8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('jobs', type=job, nargs='+', metavar='METHOD[:DOCUMENTS]')
    parser.add_argument('--model', choices=list(MODELS), default='llama-3.1-8b')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda')
    parser.add_argument('--threads', type=int, default=0, help="PyTorch's, on the CPU; default: its own number")
    parser.add_argument('--document-tokens', type=int, default=2048)
    parser.add_argument('--record', type=pathlib.Path, help='add the rows to this JSON')
    options = parser.parse_args()
    is_gpu = options.device == 'cuda'
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.cuda.get_device_name(0) if is_gpu else f'CPU, {torch.get_num_threads()} threads'
    record = {'rows': []}
    if options.record and options.record.exists():
        record = json.loads(options.record.read_text(encoding='utf-8'))
    model = Model(options.model, options.device, torch.bfloat16 if is_gpu else torch.float32)
    for method, n_documents in options.jobs:
        row = {'device': device, 'torch': torch.__version__, 'transformers': transformers.__version__,
               'build': lowkey.build_info(), **measure(model, method, n_documents, options.document_tokens)}
        record['rows'].append(row)
        if options.record:
            options.record.write_text(json.dumps(record, indent=2) + '\n', encoding='utf-8')
    print(results.VIEWS['planning'](record))
    return 0


if __name__ == '__main__':
    sys.exit(main())
