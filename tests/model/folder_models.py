# SPDX-License-Identifier: Apache-2.0
"""Small random models as folders of transformers, and their logits once more in NumPy, from the definitions of the
architectures. Nothing of this comes from lowkey."""

from __future__ import annotations

import json
import math
import pathlib
import struct

import numpy as np

BASE = {'vocab_size': 300, 'hidden_size': 96, 'intermediate_size': 160, 'num_hidden_layers': 3,
        'num_attention_heads': 4, 'num_key_value_heads': 2, 'max_position_embeddings': 4096, 'rms_norm_eps': 1e-5,
        'rope_theta': 10000.0, 'hidden_act': 'silu', 'bos_token_id': 1, 'eos_token_id': 2, 'torch_dtype': 'bfloat16',
        'use_cache': True, 'attention_dropout': 0.0, 'transformers_version': '4.57.0'}
LLAMA3 = {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
          'original_max_position_embeddings': 64}
YARN = {'type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 64}
# name: architecture, config in addition to BASE, element type, files
MODELS = {
    'llama': ('LlamaForCausalLM', {'head_dim': 32, 'rope_scaling': LLAMA3, 'tie_word_embeddings': False}, 'BF16', 3),
    'llama-plain': ('LlamaForCausalLM', {'hidden_size': 128, 'rope_scaling': None, 'attention_bias': True}, 'F32', 1),
    'mistral': ('MistralForCausalLM', {'head_dim': 48, 'sliding_window': 64}, 'F16', 1),
    'qwen2': ('Qwen2ForCausalLM', {'hidden_size': 128, 'use_sliding_window': True, 'sliding_window': 48,
                                   'max_window_layers': 1, 'rope_scaling': YARN, 'tie_word_embeddings': True},
              'BF16', 2),
    'qwen3': ('Qwen3ForCausalLM', {'head_dim': 64, 'sliding_window': None, 'use_sliding_window': False,
                                   'layer_types': ['full_attention'] * 3,
                                   'rope_parameters': {'rope_type': 'linear', 'factor': 2.0, 'rope_theta': 20000.0}},
              'F32', 2),
}


def config_of(name: str) -> dict:
    kind, own, _, _ = MODELS[name]
    return {**BASE, 'architectures': [kind], 'model_type': kind[:-len('ForCausalLM')].lower(), **own}


def head_dim(config: dict) -> int:
    return config.get('head_dim') or config['hidden_size'] // config['num_attention_heads']


def random_weights(config: dict, seed: int) -> dict[str, np.ndarray]:
    """Weights of the size that keeps activations near 1, with norms and biases that matter."""
    random = np.random.default_rng(seed)
    kind, width, hidden = config['architectures'][0], config['hidden_size'], config['intermediate_size']
    q, kv = (config[f'num_{n}_heads'] * head_dim(config) for n in ('attention', 'key_value'))

    def linear(n_out: int, n_in: int, size: float = 1.0) -> np.ndarray:
        return random.normal(0, size / math.sqrt(n_in), (n_out, n_in))

    def norm(n: int) -> np.ndarray:
        return 1 + 0.3 * random.normal(size=n)

    tensors = {'model.embed_tokens.weight': random.normal(0, 1, (config['vocab_size'], width)),
               'model.norm.weight': norm(width)}
    if not config.get('tie_word_embeddings'):
        tensors['lm_head.weight'] = linear(config['vocab_size'], width, 3)
    for i in range(config['num_hidden_layers']):
        name = f'model.layers.{i}.'
        tensors |= {name + 'input_layernorm.weight': norm(width), name + 'post_attention_layernorm.weight': norm(width),
                    name + 'self_attn.q_proj.weight': linear(q, width, 2),
                    name + 'self_attn.k_proj.weight': linear(kv, width, 2),
                    name + 'self_attn.v_proj.weight': linear(kv, width),
                    name + 'self_attn.o_proj.weight': linear(width, q),
                    name + 'mlp.gate_proj.weight': linear(hidden, width),
                    name + 'mlp.up_proj.weight': linear(hidden, width),
                    name + 'mlp.down_proj.weight': linear(width, hidden)}
        biases = {'q': q, 'k': kv, 'v': kv} if kind == 'Qwen2ForCausalLM' else {}
        if config.get('attention_bias'):
            biases = {'q': q, 'k': kv, 'v': kv, 'o': width}
        tensors |= {f'{name}self_attn.{part}_proj.bias': random.normal(0, 0.5, n) for part, n in biases.items()}
        if kind == 'Qwen3ForCausalLM':
            tensors |= {f'{name}self_attn.{part}_norm.weight': norm(head_dim(config)) for part in 'qk'}
    return tensors


def stored(values: np.ndarray, dtype: str) -> tuple[bytes, np.ndarray]:
    """The bytes of values in a type, and the values that they are."""
    single = np.ascontiguousarray(values, np.float32)
    if dtype == 'BF16':  # cut, not rounded: any values do
        upper = (single.view(np.uint32) >> 16).astype(np.uint16)
        return upper.tobytes(), (upper.astype(np.uint32) << 16).view(np.float32)
    kept = single.astype(np.float16 if dtype == 'F16' else np.float32)
    return kept.tobytes(), kept.astype(np.float32)


def write_safetensors(path: pathlib.Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """Tensors of name: (type, shape, bytes)."""
    header, at = {'__metadata__': {'format': 'pt'}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {'dtype': dtype, 'shape': list(shape), 'data_offsets': [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack('<Q', len(text)) + text + b''.join(data for _, _, data in tensors.values()))


def read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    types = {'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'I64': np.int64}
    data = path.read_bytes()
    length, = struct.unpack_from('<Q', data)
    header, body = json.loads(data[8:8 + length]), data[8 + length:]
    return {name: np.frombuffer(body[slice(*entry['data_offsets'])], types[entry['dtype']]).reshape(entry['shape'])
            for name, entry in header.items() if name != '__metadata__'}


def write_model(folder: pathlib.Path, name: str) -> tuple[dict, dict[str, np.ndarray]]:
    """A model's folder; its config, and the weights as they are stored."""
    folder.mkdir()
    config, (_, _, dtype, n_files) = config_of(name), MODELS[name]
    values, entries = {}, {}
    for tensor, array in random_weights(config, sum(name.encode())).items():
        data, values[tensor] = stored(array, dtype)
        entries[tensor] = (dtype, array.shape, data)
    (folder / 'config.json').write_text(json.dumps(config))
    if n_files == 1:
        write_safetensors(folder / 'model.safetensors', entries)
        return config, values
    names = [f'model-{i + 1:05}-of-{n_files:05}.safetensors' for i in range(n_files)]
    index = {tensor: names[i % n_files] for i, tensor in enumerate(entries)}
    for shard in names:
        write_safetensors(folder / shard, {tensor: entries[tensor] for tensor in entries if index[tensor] == shard})
    (folder / 'model.safetensors.index.json').write_text(json.dumps({'metadata': {'total_size': 1},
                                                                     'weight_map': index}))
    return config, values


def frequencies(config: dict) -> tuple[np.ndarray, float]:
    """Of RoPE, with the amplitude."""
    n, scaling = head_dim(config), config.get('rope_parameters') or config.get('rope_scaling') or {}
    theta = scaling.get('rope_theta', config['rope_theta'])
    own = theta ** (-np.arange(0, n, 2) / n)
    kind, factor = scaling.get('rope_type', scaling.get('type')), scaling.get('factor', 1)
    if kind == 'linear':
        return own / factor, 1
    if kind == 'llama3':
        waves, old = 2 * math.pi / own, scaling['original_max_position_embeddings']
        low, high = scaling['low_freq_factor'], scaling['high_freq_factor']
        smooth = (old / waves - low) / (high - low)
        between = (1 - smooth) * own / factor + smooth * own
        return np.where(waves > old / low, own / factor, np.where(waves < old / high, own, between)), 1
    if kind == 'yarn':
        old = scaling['original_max_position_embeddings']
        low, high = (n * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (32, 1))
        low, high = max(math.floor(low), 0), min(math.ceil(high), n - 1)
        kept = 1 - np.clip((np.arange(n // 2) - low) / (high - low), 0, 1)
        return own / factor * (1 - kept) + own * kept, 0.1 * math.log(factor) + 1
    return own, 1


def windows(config: dict) -> list[int]:
    """Of each layer; 0 = all tokens."""
    n, kind, window = config['num_hidden_layers'], config['architectures'][0], config.get('sliding_window') or 0
    if kind == 'MistralForCausalLM':
        return [window] * n
    if kind == 'LlamaForCausalLM' or not config.get('use_sliding_window'):
        return [0] * n
    return [window if i >= config['max_window_layers'] else 0 for i in range(n)]


def _norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


class Forward:
    """One causal pass in FP64, whose keys and values are rounded to FP16 as in a cache."""

    def __init__(self, config: dict, weights: dict[str, np.ndarray], ids: list[int]):
        self._config, self._weights = config, {name: array.astype(np.float64) for name, array in weights.items()}
        self.keys: list[np.ndarray] = []  # of each layer, [tokens][heads][head_dim]
        own, amplitude = frequencies(config)
        angles = np.arange(len(ids))[:, None, None] * own
        self._cos, self._sin = np.cos(angles) * amplitude, np.sin(angles) * amplitude
        epsilon, x = config['rms_norm_eps'], self._weights['model.embed_tokens.weight'][ids]
        for i, window in enumerate(windows(config)):
            name = f'model.layers.{i}.'
            x = x + self._attention(name + 'self_attn.', _norm(x, self._get(name + 'input_layernorm'), epsilon), window)
            y = _norm(x, self._get(name + 'post_attention_layernorm'), epsilon)
            gate = self._linear(name + 'mlp.gate_proj', y)
            gate = gate / (1 + np.exp(-gate)) * self._linear(name + 'mlp.up_proj', y)
            x = x + self._linear(name + 'mlp.down_proj', gate)
        head = 'model.embed_tokens' if config.get('tie_word_embeddings') else 'lm_head'
        self.logits = _norm(x, self._get('model.norm'), epsilon) @ self._get(head).T

    def _get(self, name: str) -> np.ndarray:
        return self._weights[name + '.weight']

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self._get(name).T + self._weights.get(name + '.bias', 0)

    def _heads(self, name: str, x: np.ndarray) -> np.ndarray:
        y = self._linear(name, x)
        y = y.reshape(len(y), -1, head_dim(self._config))
        norm = self._weights.get(name.replace('_proj', '_norm') + '.weight')
        return y if norm is None else _norm(y, norm, self._config['rms_norm_eps'])

    def _turn(self, x: np.ndarray) -> np.ndarray:
        low, high = np.split(x, 2, -1)
        return np.concatenate([low * self._cos - high * self._sin, high * self._cos + low * self._sin], -1)

    def _attention(self, name: str, x: np.ndarray, window: int) -> np.ndarray:
        queries, keys = (self._turn(self._heads(f'{name}{part}_proj', x)) for part in 'qk')
        values = self._heads(name + 'v_proj', x)
        keys, values = (y.astype(np.float16).astype(np.float64) for y in (keys, values))
        self.keys.append(keys)
        group = queries.shape[1] // keys.shape[1]
        scores = np.einsum('ihc,jhc->hij', queries, keys.repeat(group, 1)) / math.sqrt(queries.shape[2])
        distance = np.arange(len(x))[:, None] - np.arange(len(x))
        scores[:, (distance < 0) | (distance >= (window or len(x)))] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        out = np.einsum('hij,jhc->ihc', shares, values.repeat(group, 1))
        return self._linear(name + 'o_proj', out.reshape(len(x), -1))
