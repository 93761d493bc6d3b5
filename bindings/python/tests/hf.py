# SPDX-License-Identifier: Apache-2.0
"""Small models of transformers with random weights, and the cache that they are compared with."""

from __future__ import annotations

import os
import pathlib

import pytest
from families import FAMILIES, MIXING, RESTARTING, VALUE_DIMS

if os.environ.get('LOWKEY_REQUIRE_TRANSFORMERS'):  # a run that is for the adapter may not leave it out
    import torch
    import transformers
else:
    torch = pytest.importorskip('torch')
    transformers = pytest.importorskip('transformers', minversion='5.0')

from lowkey.transformers import LowkeyCache  # after torch, without which the tests are skipped

torch.set_num_threads(1)  # the models are small; other work may share the machine

COMMON = dict(vocab_size=89, hidden_size=128, intermediate_size=192, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=4096, pad_token_id=0, bos_token_id=1, eos_token_id=None)
WINDOW = 24
MIXED = ['sliding_attention', 'full_attention', 'sliding_attention', 'full_attention']
# A name: model type, layers, what the configuration adds.
MODELS = {
    'llama': ('llama', 3, {}),
    'llama-mha-64': ('llama', 2, dict(num_key_value_heads=4, head_dim=64)),
    'qwen3': ('qwen3', 3, dict(head_dim=64)),
    'qwen2': ('qwen2', 3, {}),
    'mistral': ('mistral', 3, dict(sliding_window=WINDOW, head_dim=32)),
    'gemma3': ('gemma3_text', 4, dict(sliding_window=WINDOW, head_dim=32, layer_types=MIXED,
                                      query_pre_attn_scalar=64)),
    'gemma2': ('gemma2', 4, dict(sliding_window=WINDOW, head_dim=32, layer_types=MIXED, query_pre_attn_scalar=32,
                                 attn_logit_softcapping=20.0)),
    'gpt-oss': ('gpt_oss', 4, dict(sliding_window=WINDOW, head_dim=32, layer_types=MIXED, num_local_experts=2,
                                   num_experts_per_tok=1)),
    # 24 query heads for each KV head, and 20 for one.
    'glm4': ('glm4', 2, dict(num_attention_heads=48, num_key_value_heads=2, head_dim=32)),
    'llama-mqa-20': ('llama', 2, dict(hidden_size=160, num_attention_heads=20, num_key_value_heads=1, head_dim=32)),
    # Layers whose values are their keys before norms and RoPE, of fewer and wider heads.
    'gemma4-k-eq-v': ('gemma4_text', 4, dict(sliding_window=WINDOW, head_dim=32, layer_types=MIXED,
                                             attention_k_eq_v=True, num_global_key_value_heads=1,
                                             global_head_dim=64, vocab_size_per_layer_input=89,
                                             hidden_size_per_layer_input=8)),
}
MODEL_FOLDER = pathlib.Path(__file__).parents[3] / 'tests/model'
DEVICES = ['cpu'] + (['cuda'] if torch.cuda.is_available() else [])


def make_model(name: str, device: str = 'cpu'):
    """A model with weights large enough for attention to prefer some tokens, and biases that are not zero."""
    kind, n_layers, options = {**MODELS, **FAMILIES, **VALUE_DIMS}[name]
    config = transformers.AutoConfig.for_model(kind, **{**COMMON, 'num_hidden_layers': n_layers, **options})
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=plain_attention(name)).eval()
    others = {('.bias', 'sinks', 'qk_norm.temp'): 0.5}
    if name in VALUE_DIMS:
        others[('kv_b_proj.weight', 'kv_a_proj_with_mqa.weight')] = 0.15
    if name in FAMILIES or name in VALUE_DIMS:
        others[MIXING] = 0.1
    sharpen(model, others)
    return model.to(device)


def sharpen(model, others):
    """Weights large enough for attention to prefer some tokens.

    others  the deviation of other weights, by the ends of their names"""
    with torch.no_grad():
        for label, weight in model.named_parameters():
            for ends, deviation in {('q_proj.weight', 'k_proj.weight', 'embed_tokens.weight'): 0.15, **others}.items():
                if label.endswith(ends):
                    weight.normal_(0, deviation)
                    break


def is_as_before(model, attention='sdpa'):
    """Whether no cache and no planner holds the model."""
    return model.config._attn_implementation == attention and all(p.requires_grad for p in model.parameters())


def cache_logits(model, plan, ids, n):
    """Logits of all tokens after the first n, which a LowkeyCache of a plan has."""
    with LowkeyCache(model.config, plan, '64MiB') as cache, torch.no_grad():
        model(ids[:, :n], past_key_values=cache, logits_to_keep=1)
        return model(ids[:, n:], past_key_values=cache).logits


def own_model():
    """The model that ships with the project, as the Qwen2 that it is."""
    from safetensors import safe_open
    from safetensors.torch import load_file
    path = MODEL_FOLDER / 'prover.safetensors'
    with safe_open(path, 'pt') as file:
        about = file.metadata()
    numbers = {name: int(about[name]) for name in (
        'vocab_size', 'hidden_size', 'num_hidden_layers', 'num_attention_heads', 'num_key_value_heads',
        'intermediate_size', 'max_position_embeddings')}
    rope = {'rope_type': 'default', 'rope_theta': float(about['rope_theta'])}
    config = transformers.Qwen2Config(**numbers, head_dim=int(about['head_dim']), tie_word_embeddings=False,
                                      rms_norm_eps=float(about['rms_norm_eps']), pad_token_id=0, bos_token_id=0,
                                      eos_token_id=None, rope_parameters=rope)
    model = transformers.Qwen2ForCausalLM(config).eval()
    weights = {name: weight.float() for name, weight in load_file(path).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all(name.endswith('v_proj.bias') for name in missing)
    with torch.no_grad():
        for name in missing:
            model.get_parameter(name).zero_()
    return model


def plain_attention(name: str) -> str:
    """The attention of transformers that can compute the model: some know neither soft-cap nor sinks."""
    return 'eager' if name in ('gemma2', 'gpt-oss', 'mimo-v2') else 'sdpa'


class RoundedCache(transformers.DynamicCache):
    """transformers' own cache with keys and values rounded to FP16, as lowkey keeps them."""

    def update(self, key_states, value_states, *arguments, **options):
        return super().update(*(x.half().to(x.dtype) for x in (key_states, value_states)), *arguments, **options)


def feed(model, cache, *chunks, mask=None):
    """Logits of chunks that follow what the cache has, [batch, n_tokens, vocabulary]. Positions are named, because
    Bamba begins at 0 without them.

    mask  [batch, n_tokens] of all columns, those before the chunks included"""
    found = []
    with torch.no_grad():
        for chunk in chunks:
            first = cache.get_seq_length()
            end = first + chunk.shape[1]
            positions = torch.arange(first, end, device=chunk.device).expand(len(chunk), -1)
            found.append(model(chunk, position_ids=positions, past_key_values=cache,
                               attention_mask=None if mask is None else mask[:, :end]).logits)
    return torch.cat(found, 1).float()


EXACT = (None, RoundedCache)


def tokens(seed: int, *shape: int, device: str | torch.device = 'cpu'):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, COMMON['vocab_size'], shape, generator=generator).to(device)


def logits(model, cache, *chunks, **options):
    """Logits of a text that is fed in chunks, [batch, n_tokens, vocabulary]."""
    with torch.no_grad():
        return torch.cat([model(chunk, past_key_values=cache, **options).logits for chunk in chunks], 1).float()


def assert_padded_prompts_decode(model, open_cache, n_new, lengths):
    """Two prompts, one padded on the left, decode greedily as with transformers' own cache."""
    ids = tokens(3, 2, 30, device=model.device)
    mask = torch.ones_like(ids)
    mask[1, :13] = 0
    options = dict(attention_mask=mask, max_new_tokens=n_new, do_sample=False)
    want = model.generate(ids, **options)
    with open_cache(model) as cache:
        assert torch.equal(model.generate(ids, past_key_values=cache, **options), want)
        assert cache.lengths == lengths


def assert_within_rounding(got, want, rounded):
    """got differs from want by no more than rounding keys and values to FP16 explains. A GPU rounds queries and weights
    to FP16 too, as many numbers again, whose errors are independent of the others."""
    explained = (rounded - want).abs().max().item() * (2 ** 0.5 if got.is_cuda else 1)
    assert explained > 0, 'the models have keys that FP16 does not hold'
    error = (got - want).abs().max().item()
    assert error <= 3 * explained + 1e-5 * want.abs().max().item(), (error, explained)


def host_cache(model, kind=None):
    return (kind or transformers.DynamicCache)(config=model.config)


def chunks_of(name, ids, *lengths):
    """A text in chunks: after the first one single tokens, where the model knows no others."""
    if name in RESTARTING:
        lengths = (lengths[0], *[1] * sum(lengths[1:]))
    return ids[:, :sum(lengths)].split(list(lengths), 1)


def assert_like_hosts(model, got, *chunks, n_last):
    """The last logits are those of transformers' own cache after the same chunks."""
    want, rounded = (feed(model, host_cache(model, kind), *chunks)[:, -n_last:] for kind in EXACT)
    assert_within_rounding(got, want, rounded)
