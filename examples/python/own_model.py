# SPDX-License-Identifier: Apache-2.0
"""Plans for models of your own by every method, one call each, and what they take.

    LOWKEY_LIBRARY=build/src/liblowkey.so PYTHONPATH=bindings/python python3 examples/python/own_model.py

The models are small and have random weights; put one of AutoModelForCausalLM.from_pretrained() and its tokenizer in
their place. Needs torch and transformers.
"""

from __future__ import annotations

import sys

import torch
import transformers

from lowkey.transformers import LowkeyCache, plan, sink_logits_of

SMALL = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, pad_token_id=0, bos_token_id=1,
             eos_token_id=None)
LAYERS = ['sliding_attention', 'full_attention']
MODELS = {'Qwen3': ('qwen3', {}), 'Llama': ('llama', {}),
          'Gemma 3': ('gemma3_text', dict(sliding_window=512, layer_types=LAYERS)),
          'gpt-oss': ('gpt_oss', dict(sliding_window=512, layer_types=LAYERS, num_local_experts=2,
                                      num_experts_per_tok=1))}
# What a user would add to plan(model, tokenizer, METHOD). Small numbers, so that this ends in seconds.
LIMITS = {'auto': dict(bits=2.5, costs='estimated', cost_tokens=320, cost_documents=1, cost_samples=1),
          'chanmix': {}, 'pm-kvq': dict(budget='2MiB', tokens=1024), 'kitty': {}, 'kitty-pro': {}, 'cocktail': {}}


class Letters:
    """A tokenizer with a token for each letter."""

    bos_token_id = 1

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {'input_ids': [1] * add_special_tokens + [2 + ord(letter) % 95 for letter in text]}


def make(name: str) -> torch.nn.Module:
    """A model with random weights."""
    kind, options = MODELS[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, **options})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def main(names: list[str]) -> None:
    """Plan, generate, and print a line for each model and method."""
    text = 'The quick brown fox jumps over the lazy dog, again and again, until it is too dark to count. ' * 12
    prompt = torch.tensor([Letters()(text[:700])['input_ids']])
    print(f'{"model":8} {"method":10} {"bits":>6} {"of FP16":>8} {"packed":>7}  the plan generates')
    for name in names or MODELS:
        model = make(name)
        for method, limits in LIMITS.items():
            made = plan(model, Letters(), method, texts=text, text_tokens=1000, **limits)
            size = made.bytes(8192)
            with LowkeyCache(model.config, made, '64MiB', sink_logits=sink_logits_of(model)) as cache:
                tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), past_key_values=cache,
                                        max_new_tokens=6, do_sample=False)
                packed = cache.stats().pages_packed
            print(f'{name:8} {method:10} {size.bits_per_value:6.2f} {size.cache_bytes / size.fp16_bytes:8.0%} '
                  f'{packed:7}  {tokens[0, prompt.shape[1]:].tolist()}', flush=True)


if __name__ == '__main__':
    main(sys.argv[1:])
