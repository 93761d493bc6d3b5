# SPDX-License-Identifier: Apache-2.0
"""An agent that tries two tool calls from one prompt, keeps the better one, and saves it.

    LOWKEY_LIBRARY=build/src/liblowkey.so PYTHONPATH=bindings/python python3 examples/python/agent.py

The model is synthetic: q, k and v come from a random projection of the tokens. What a real one would do with lowkey
is all here: prefill, decode, fork, a draft that is partly kept, a snapshot.
"""

from __future__ import annotations

import numpy as np

import lowkey

N_LAYERS, N_QUERY_HEADS, N_KV_HEADS, HEAD_DIM, VOCABULARY = 2, 8, 2, 64, 50
GEOMETRY = lowkey.Geometry.uniform(N_LAYERS, N_QUERY_HEADS, N_KV_HEADS, HEAD_DIM)


class Model:
    """Stands for the host's model: everything but attention and its cache."""

    def __init__(self, seed: int = 0):
        rng = np.random.default_rng(seed)
        width = (N_QUERY_HEADS + 2 * N_KV_HEADS) * HEAD_DIM
        self.embedding = rng.standard_normal((VOCABULARY, 64), np.float32)
        self.project = rng.standard_normal((N_LAYERS, 64, width), np.float32) / 8
        self.back = rng.standard_normal((N_LAYERS, N_QUERY_HEADS * HEAD_DIM, 64), np.float32) / 20

    def run(self, step: lowkey.Step, tokens: list[int]) -> np.ndarray:
        """Logits of the new tokens of a step, [n_tokens, VOCABULARY]."""
        x = self.embedding[tokens]
        for layer in range(N_LAYERS):
            qkv = (x @ self.project[layer]).reshape(len(tokens), -1, HEAD_DIM)
            q, k, v = np.split(qkv, [N_QUERY_HEADS, N_QUERY_HEADS + N_KV_HEADS], axis=1)  # views: strides are passed
            step.append(layer, k, v)
            x = x + step.attend(layer, q).reshape(len(tokens), -1) @ self.back[layer]
        return x @ self.embedding.T


def feed(cache: lowkey.Cache, model: Model, sequence: lowkey.Sequence, tokens: list[int]) -> np.ndarray:
    """Commit tokens and return the logits of the last one."""
    with cache.step(sequence, len(tokens)) as step:
        return model.run(step, tokens)[-1]


def decode(cache: lowkey.Cache, model: Model, sequence: lowkey.Sequence, logits: np.ndarray,
           n_tokens: int) -> tuple[list[int], float]:
    """Greedy tokens and the mean of their log probabilities."""
    tokens, total = [], 0.0
    for _ in range(n_tokens):
        tokens.append(int(logits.argmax()))
        total += float(logits.max() - np.log(np.exp(logits - logits.max()).sum()) - logits.max())
        logits = feed(cache, model, sequence, tokens[-1:])
    return tokens, total / n_tokens


def verify(cache: lowkey.Cache, model: Model, sequence: lowkey.Sequence, draft: list[int]) -> int:
    """Speculative decoding: run a draft in one step and keep what the model agrees with."""
    with cache.step(sequence, len(draft)) as step:
        wanted = model.run(step, draft).argmax(-1)
        kept = 1
        while kept < len(draft) and draft[kept] == wanted[kept - 1]:
            kept += 1
        step.commit(keep=[kept])
    return kept


def main() -> None:
    model, rng = Model(), np.random.default_rng(1)
    with lowkey.Context() as context:
        print(context.device.name, '|', context.device.features)
        plan = lowkey.Plan.preset('kitty-pro', GEOMETRY)
        budget = plan.bytes(4096, n_sequences=3, step_tokens=512).cache_bytes
        with lowkey.Cache(context, plan, budget, max_sequences=3, max_step_tokens=1536) as cache:
            prompt = cache.add()
            for chunk in np.split(rng.integers(0, VOCABULARY, 1024), 2):
                logits = feed(cache, model, prompt, chunk.tolist())

            answers = {}
            for tool in (7, 23):  # both continue the prompt's own pages
                branch = prompt.fork()
                answers[branch] = decode(cache, model, branch, feed(cache, model, branch, [tool]), 16)
            best = max(answers, key=lambda branch: answers[branch][1])
            stats = cache.stats()
            print(f'{stats.n_tokens} tokens in {stats.n_sequences} sequences: {stats.reserved_bytes >> 10} KiB of '
                  f'{budget >> 10} KiB, {stats.shared_bytes >> 10} KiB of them shared')
            for branch in answers:
                if branch is not best:
                    branch.remove()

            draft = [int(logits.argmax()), *answers[best][0][:3]]
            kept = verify(cache, model, prompt, draft)
            print(f'{kept} of {len(draft)} drafted tokens kept, the prompt has {len(prompt)}')

            saved = cache.save(sequences=[best], fingerprint=b'synthetic 0')
            assert saved is not None
            again, = cache.load(saved, fingerprint=b'synthetic 0')
            same = np.array_equal(feed(cache, model, best, [3]), feed(cache, model, again, [3]))
            print(f'{len(saved) >> 10} KiB saved; the copy answers {"the same" if same else "OTHERWISE"}')


if __name__ == '__main__':
    main()
