# SPDX-License-Identifier: Apache-2.0
"""The smallest program: a cache, a prompt and one new token, without any package besides lowkey.

    pip install lowkey
    python examples/python/hello.py
"""

import array
import random

import lowkey

GEOMETRY = lowkey.Geometry.uniform(n_layers=1, n_query_heads=8, n_kv_heads=2, head_dim=64)


def tensor(n_tokens, n_heads):
    """What a model computes: float32 [n_tokens, n_heads, 64]."""
    values = array.array('f', (random.gauss(0, 1) for _ in range(n_tokens * n_heads * 64)))
    return memoryview(values).cast('B').cast('f', (n_tokens, n_heads, 64))


def main():
    random.seed(1)
    with lowkey.Context() as context, lowkey.Cache(context, 'kitty-pro', '16MiB', geometry=GEOMETRY) as cache:
        sequence = cache.add()
        for n_tokens in (300, 1):
            with cache.step(sequence, n_tokens) as step:
                step.append(0, tensor(n_tokens, 2), tensor(n_tokens, 2))
                out = tensor(n_tokens, 8)
                step.attend(0, tensor(n_tokens, 8), out=out)
        values = out.tolist()[0][0]
        assert len(sequence) == 301 and len(values) == 64 and all(abs(value) < 1 for value in values)
        print(f'lowkey {lowkey.version()}: {len(sequence)} tokens in {cache.stats().reserved_bytes} bytes; '
              f'the new token\'s output begins with {values[0]:.6f}')


if __name__ == '__main__':
    main()
