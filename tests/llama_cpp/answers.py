# SPDX-License-Identifier: Apache-2.0
"""Questions of the proving model's tasks in llama.cpp, and its perplexity, under any KV cache.

A document of a task has 4096 bytes, and a question comes after the document alone. An answer is right if the greedy
continuation up to the first full stop is equal to it."""
import concurrent.futures
import os
import subprocess
import sys
import types

import run

sys.path.insert(0, str(run.ROOT / 'tests/model'))
import data  # noqa: E402

TASKS = {'needle': lambda source: data.needle(source, DOCUMENT_BYTES, 24),
         'kv-hard': lambda source: data.key_value(source, DOCUMENT_BYTES, hard=True),
         'trace': lambda source: data.trace(source, DOCUMENT_BYTES)}
DOCUMENT_BYTES = 4096
DOCUMENT_QUESTIONS = 8
TEXTS, TEXT_BYTES = 4, 2047  # of the perplexity


def corpus():
    """Running text as tests/model/data.py reads it, in printable characters."""
    text = bytes(byte if 32 <= byte < 127 or byte == 10 else 32 for byte in run.FILLER.encode('utf-8'))
    return types.SimpleNamespace(texts=[text], sizes=[len(text)], words=[word.encode() for word in run.WORDS])


def document(task, seed):
    """(text, [(question, answer)]) of a task, without the token that begins a text."""
    made = TASKS[task](data.Source(corpus(), [26, list(TASKS).index(task), seed]))
    text = made.context_bytes[1:].decode('ascii')
    return text, [(question.prompt.decode('ascii'), question.answer.decode('ascii'))
                  for question in made.questions[:DOCUMENT_QUESTIONS]]


def said(program, device, *arguments):
    """The output of a case of llama-test."""
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, check=True,
                          env=dict(os.environ, LOWKEY_LLAMA_DEVICE=device))
    return done.stdout.decode('latin-1')


def right_answers(program, device, model, cache, task, seed):
    """How many of a document's questions are answered rightly, and how many it has."""
    text, questions = document(task, seed)
    lines = said(program, device, 'answers', model, cache, text, *[question for question, _ in questions]).split('\n')
    return sum(line == answer for line, (_, answer) in zip(lines, questions)), len(questions)


def perplexity(program, device, model, cache):
    """Of the later 1024 tokens of some texts, 2048 tokens each."""
    text = corpus().texts[0].decode('ascii')
    begins = [len(text) // TEXTS * i for i in range(TEXTS)]
    return float(said(program, device, 'perplexity', model, cache, *[text[begin:begin + TEXT_BYTES] for begin in begins]))


def measure(program, device, model, caches, n_documents, n_jobs):
    """A row for each cache, given as {name: name or plan file}: right answers of each task, and perplexity."""
    with concurrent.futures.ThreadPoolExecutor(n_jobs) as pool:
        texts = {name: pool.submit(perplexity, program, device, model, cache) for name, cache in caches.items()}
        parts = {(name, task): [pool.submit(right_answers, program, device, model, cache, task, seed)
                                for seed in range(n_documents)] for name, cache in caches.items() for task in TASKS}
        for name in caches:
            counts = {task: [part.result() for part in parts[name, task]] for task in TASKS}
            yield {'cache': name, 'perplexity': texts[name].result(),
                   'tasks': {task: {'right': sum(n for n, _ in rows), 'questions': sum(n for _, n in rows)}
                             for task, rows in counts.items()}}
