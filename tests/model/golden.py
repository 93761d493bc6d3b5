# SPDX-License-Identifier: Apache-2.0
"""Writes golden.safetensors: what the shipped weights answer in float32, with K and V stored as FP16 (README.md lists the tensors)."""
from __future__ import annotations

import argparse
import pathlib

import torch
from safetensors.torch import save_file
from torch import Tensor

from data import HERE, Corpus, Question, Source, Task, key_value, needle, trace
from evaluate import forward
import model as M
import weights

GOLDEN = 9_000_000
EVERY = 8


def greedy(model: M.Prover, prompt: bytes, limit: int = 96) -> bytes:
    """Arg max continuation up to and including the terminator."""
    out, cache = forward(model, as_tokens(prompt))
    answer = b""
    while True:
        answer += bytes([int(out[0, -1].argmax())])
        if answer.endswith(b".") or len(answer) >= limit:
            return answer
        out, made = forward(model, as_tokens(answer[-1:]), cache)
        cache = [(torch.cat((a, c), 2), torch.cat((b, d), 2)) for (a, b), (c, d) in zip(cache, made)]


def as_tokens(text: bytes) -> Tensor:
    return torch.tensor([list(text)])


def as_tensor(text: bytes) -> Tensor:
    return torch.tensor(list(text), dtype=torch.int32)


def continuation(model: M.Prover, task: Task, question: Question) -> tuple[bytes, bytes]:
    prompt = task.context_bytes + question.prompt
    answer = greedy(model, prompt)
    print(f"{len(prompt)} tokens, {question.prompt!r}: {answer!r}, expected {question.answer!r}")
    return prompt, answer


def prompts(corpus: Corpus) -> list[tuple[Task, Question]]:
    source = lambda i: Source(corpus, [GOLDEN, i])
    long = needle(source(0), 4096, 24)
    short = [needle(source(1), 1024, 6), key_value(source(2), 1024, False), key_value(source(3), 1024, True), trace(source(4), 1024)]
    return [(long, long.questions[0]), (long, long.questions[1])] + [(t, t.questions[0]) for t in short]


def logits_item(model: M.Prover, corpus: Corpus) -> dict[str, Tensor]:
    """One 1024-token context with a question and its answer; logits at every 8th position and at all answer positions."""
    task = needle(Source(corpus, [GOLDEN, 9]), 1024, 6)
    question = task.questions[0]
    tokens = task.context_bytes + question.prompt + question.answer
    start = len(tokens) - len(question.answer) - 1
    positions = sorted(set(range(0, len(tokens), EVERY)) | set(range(start, len(tokens))))
    out, _ = forward(model, as_tokens(tokens))
    return {"tokens": as_tensor(tokens), "positions": torch.tensor(positions, dtype=torch.int32), "logits": out[0, positions].contiguous()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=pathlib.Path, default=HERE / "prover.safetensors")
    parser.add_argument("--corpus", type=pathlib.Path, default=HERE / "corpus.zip")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "golden.safetensors")
    args = parser.parse_args()
    model, corpus = weights.load(args.weights, "cpu"), Corpus(args.corpus, "held")
    with torch.inference_mode():
        tensors = logits_item(model, corpus)
        for i, (task, question) in enumerate(prompts(corpus)):
            prompt, answer = continuation(model, task, question)
            tensors |= {f"prompt.{i}": as_tensor(prompt), f"answer.{i}": as_tensor(answer), f"expected.{i}": as_tensor(question.answer)}
    save_file(tensors, args.out, {"arithmetic": "float32; F16 weights; post-RoPE K and V rounded to FP16", "continuations": str(i + 1)})
    print(f"{args.out}: {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
