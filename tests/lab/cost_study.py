#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What costs give `auto`, and what the texts of the costs give the other methods: the suite's tasks at equal bits for
plans from statistics of several kinds. JSON on the standard output.

usage: cost_study.py --lowkey build/lowkey --lab build/tests/lab/lowkey-lab --library build/src/liblowkey.so.0 \\
           --stats STATS --work DIR [--transformers PYTHON]

--stats are the suite's statistics: costs on running text, repeated words, values of words and assignments. With
--transformers, an interpreter that has torch, transformers and safetensors, the study also has `auto` from statistics
that lowkey.transformers.plan() takes, and PM-KVQ from gradients.
"""

import argparse
import concurrent.futures
import ctypes
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / 'tests/model/prover.safetensors'
TEXTS = ROOT / 'tests/model/texts'
TEXT_TOKENS, SEED = 8192, 1
COST_TOKENS, N_DOCUMENTS = 2048, 8
DOCUMENT_TOKENS = COST_TOKENS + COST_TOKENS // 4
LIMITS = '2.25,2.54'
TASKS = (('trace-2', 40), ('repeat-512', 4), ('trace,kv-hard', 8))
CONTEXT_TOKENS = 4096


def cost_texts(library: pathlib.Path, text: bytes) -> bytes:
    """The documents that `lowkey calibrate --costs` makes of a text, one after the other."""
    call = ctypes.CDLL(str(library)).lk_cost_texts
    call.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64,
                     ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
    needed = ctypes.c_size_t()
    arguments = (text, len(text), N_DOCUMENTS // 4, DOCUMENT_TOKENS, SEED)
    if call(*arguments, None, 0, ctypes.byref(needed)):
        raise SystemExit('lk_cost_texts() failed')
    buffer = ctypes.create_string_buffer(needed.value)
    if call(*arguments, buffer, needed.value, ctypes.byref(needed)):
        raise SystemExit('lk_cost_texts() failed')
    return buffer.raw


def ids(word: str, text: bytes) -> str:
    """A line of a file of token ids: the model's tokens are bytes, and 0 is its BOS."""
    return ' '.join([*word.split(), '0', *map(str, text)]) + '\n'


class Study:
    def __init__(self, options: argparse.Namespace):
        self.options, self.work = options, options.work
        self.text = (TEXTS / 'suite-statistics.txt').read_bytes()
        self.work.mkdir(parents=True, exist_ok=True)

    def calibrate(self, name: str, *arguments) -> pathlib.Path:
        """Statistics of the model, kept from an earlier run."""
        path = self.work / f'{name}.safetensors'
        if not path.exists():
            part = path.with_suffix('.part')
            subprocess.run([self.options.lowkey, 'calibrate', '--model', MODEL, '--scales', *map(str, arguments), '-o',
                            part], check=True, stdout=sys.stderr)
            part.replace(path)
        return path

    def statistics(self) -> dict[str, tuple[pathlib.Path, str]]:
        """Files of statistics by name, and the families that are made from them."""
        text = ('--text', TEXTS / 'suite-statistics.txt', '--tokens', TEXT_TOKENS)
        prose, both = self.work / 'prose.ids', self.work / 'both.txt'
        documents = [self.text[i * DOCUMENT_TOKENS:(i + 1) * DOCUMENT_TOKENS] for i in range(N_DOCUMENTS)]
        prose.write_text(ids('', self.text) + ''.join(ids('cost', document) for document in documents),
                         encoding='ascii')
        costs = cost_texts(self.options.library, self.text)
        both.write_bytes(self.text[:TEXT_TOKENS] + costs)
        found = {
            'costs of four kinds of text': (self.options.stats, 'auto,chanmix,pm-kvq,pm-kvq-progressive'),
            'costs of running text alone': (self.calibrate(
                'prose', '--token-ids', prose, '--tokens', TEXT_TOKENS, '--costs', '--costs-documents', N_DOCUMENTS,
                '--costs-resume', self.work / 'prose.lkcosts'), 'auto'),
            'no costs': (self.calibrate('plain', *text), 'auto'),
            'no costs, keys and queries of the four kinds too': (self.calibrate(
                'both', '--text', both, '--tokens', TEXT_TOKENS + len(costs)), 'auto,chanmix,pm-kvq'),
        }
        if self.options.transformers:
            auto, gradients = self.through_transformers()
            found |= {'costs of four kinds of text, through transformers': (auto, 'auto'),
                      'gradients, through transformers': (gradients, 'pm-kvq-gradients')}
        return found

    def through_transformers(self) -> tuple[pathlib.Path, pathlib.Path]:
        """Statistics by the Python package, kept from an earlier run."""
        auto, gradients = self.work / 'transformers-auto.safetensors', self.work / 'gradients.safetensors'
        if not gradients.exists():
            package = ROOT / 'bindings/python'
            environment = {**os.environ, 'LOWKEY_LIBRARY': str(self.options.library),
                           'PYTHONPATH': f'{package}:{package / "tests"}'}
            subprocess.run([self.options.transformers, '-B', ROOT / 'tests/lab/transformers_statistics.py',
                            TEXTS / 'suite-statistics.txt', auto, gradients], check=True, env=environment)
        return auto, gradients

    def part(self, record: pathlib.Path, statistics: pathlib.Path, families: str, tasks: str, seed: int,
             n_questions: int) -> None:
        """One seed of some tasks, kept in a record."""
        subprocess.run([self.options.lab, 'suite', '--limits', LIMITS, '--families', families, '--stats', statistics,
                        '--text', TEXTS / 'suite.txt', '--record', record, '--per-document', '4', '--tasks', tasks,
                        '--contexts', str(CONTEXT_TOKENS), '--seeds', str(seed), '--questions', str(n_questions),
                        '--device', self.options.device, '--threads', str(self.options.threads)], check=True,
                       stdout=subprocess.DEVNULL)

    def suite(self, number: int, statistics: pathlib.Path, families: str) -> list[dict]:
        """The suite's plans of these families, over all tasks and seeds, as many parts at once as --jobs."""
        parts = [(self.work / f'{number}-{tasks.replace(",", "-")}-{seed}.json', statistics, families, tasks, seed, n)
                 for tasks, n in TASKS for seed in self.options.seeds]
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            list(pool.map(lambda part: self.part(*part), parts))
        out = subprocess.run([self.options.lab, 'tables', '--record', ','.join(str(part[0]) for part in parts),
                              '--json'], check=True, stdout=subprocess.PIPE).stdout
        found = json.loads(out)
        self.origin = {key: found[key] for key in ('origin', 'build', 'device')}
        return found['plans']

    def run(self) -> dict:
        rows = [{'statistics': name, 'plans': self.suite(number, path, families)}
                for number, (name, (path, families)) in enumerate(self.statistics().items())]
        return {**self.origin, 'seeds': self.options.seeds, 'rows': rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ('--lowkey', '--lab', '--library', '--stats', '--work'):
        parser.add_argument(name, type=pathlib.Path, required=True)
    parser.add_argument('--seeds', type=int, nargs='+', default=[67, 68])
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--jobs', type=int, default=1, help='parts of the suite at once')
    parser.add_argument('--threads', type=int, default=0, help='of each part; default: all CPUs')
    parser.add_argument('--transformers', metavar='PYTHON', help='also rows of the Python package')
    print(json.dumps(Study(parser.parse_args()).run(), indent=1))
    return 0


if __name__ == '__main__':
    sys.exit(main())
