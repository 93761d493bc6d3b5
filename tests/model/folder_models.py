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
LINEAR = {'rope_type': 'linear', 'factor': 8.0}
GELU = {'hidden_activation': 'gelu_pytorch_tanh', 'tie_word_embeddings': True}
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
    'gemma2': ('Gemma2ForCausalLM', {'head_dim': 32, 'sliding_window': 64, 'query_pre_attn_scalar': 24,
                                     'attn_logit_softcapping': 4.0, 'final_logit_softcapping': 6.0,
                                     'cache_implementation': 'hybrid', **GELU}, 'BF16', 2),
    'gemma3': ('Gemma3ForCausalLM', {'head_dim': 48, 'sliding_window': 64, 'query_pre_attn_scalar': 12,
                                     'attn_logit_softcapping': 1.5, 'sliding_window_pattern': 2,
                                     'rope_theta': 50.0, 'rope_local_base_freq': 100.0, 'rope_scaling': LINEAR,
                                     **GELU}, 'F32', 1),
    'gemma3-parts': ('Gemma3ForCausalLM', {
        'vocab_size': 256, 'head_dim': 32, 'query_pre_attn_scalar': 12, 'sliding_window': 48,
        'layer_types': ['sliding_attention', 'full_attention', 'sliding_attention'], **GELU,
        'rope_parameters': {'full_attention': {'rope_theta': 50.0, **LINEAR},
                            'sliding_attention': {'rope_theta': 100.0, 'rope_type': 'default'}}}, 'F16', 1),
    'gpt-oss': ('GptOssForCausalLM', {'head_dim': 32, 'sliding_window': 64, 'num_local_experts': 1,
                                      'num_experts_per_tok': 1, 'attention_bias': True, 'swiglu_limit': 1.5,
                                      'rope_parameters': {'rope_type': 'default', 'rope_theta': 5000.0}}, 'F16', 1),
}


def config_of(name: str) -> dict:
    kind, own, _, _ = MODELS[name]
    return {**BASE, 'architectures': [kind], 'model_type': kind[:-len('ForCausalLM')].lower(), **own}


def family(config: dict) -> str:
    return config['architectures'][0][:-len('ForCausalLM')]


def is_gemma(config: dict) -> bool:
    return family(config).startswith('Gemma')


def head_dim(config: dict) -> int:
    return config.get('head_dim') or config['hidden_size'] // config['num_attention_heads']


def random_weights(config: dict, seed: int) -> dict[str, np.ndarray]:
    """Weights of the size that keeps activations near 1, with norms and biases that matter."""
    random = np.random.default_rng(seed)
    kind, width, hidden = family(config), config['hidden_size'], config['intermediate_size']
    q, kv = (config[f'num_{n}_heads'] * head_dim(config) for n in ('attention', 'key_value'))

    def linear(n_out: int, n_in: int, size: float = 1.0) -> np.ndarray:
        return random.normal(0, size / math.sqrt(n_in), (n_out, n_in))

    def norm(n: int) -> np.ndarray:
        return 0.3 * random.normal(size=n) + (0 if is_gemma(config) else 1)

    size = 3 / math.sqrt(width) if config.get('tie_word_embeddings') and is_gemma(config) else 1
    tensors = {'model.embed_tokens.weight': random.normal(0, size, (config['vocab_size'], width)),
               'model.norm.weight': norm(width)}
    if not config.get('tie_word_embeddings'):
        tensors['lm_head.weight'] = linear(config['vocab_size'], width, 3)
    for i in range(config['num_hidden_layers']):
        name = f'model.layers.{i}.'
        tensors |= {name + 'input_layernorm.weight': norm(width), name + 'post_attention_layernorm.weight': norm(width),
                    name + 'self_attn.q_proj.weight': linear(q, width, 2),
                    name + 'self_attn.k_proj.weight': linear(kv, width, 2),
                    name + 'self_attn.v_proj.weight': linear(kv, width),
                    name + 'self_attn.o_proj.weight': linear(width, q)}
        if kind == 'GptOss':
            tensors |= {name + 'self_attn.sinks': random.normal(0, 2, config['num_attention_heads']),
                        name + 'mlp.experts.gate_up_proj': linear(2 * hidden, width, 2).T[None],
                        name + 'mlp.experts.gate_up_proj_bias': random.normal(0, 0.5, (1, 2 * hidden)),
                        name + 'mlp.experts.down_proj': linear(width, hidden).T[None],
                        name + 'mlp.experts.down_proj_bias': random.normal(0, 0.5, (1, width)),
                        name + 'mlp.router.weight': linear(1, width), name + 'mlp.router.bias': random.normal(size=1)}
        else:
            tensors |= {name + 'mlp.gate_proj.weight': linear(hidden, width),
                        name + 'mlp.up_proj.weight': linear(hidden, width),
                        name + 'mlp.down_proj.weight': linear(width, hidden)}
        if is_gemma(config):
            tensors |= {f'{name}{which}_feedforward_layernorm.weight': norm(width) for which in ('pre', 'post')}
        biases = {'q': q, 'k': kv, 'v': kv} if kind == 'Qwen2' else {}
        if config.get('attention_bias'):
            biases = {'q': q, 'k': kv, 'v': kv, 'o': width}
        tensors |= {f'{name}self_attn.{part}_proj.bias': random.normal(0, 0.5, n) for part, n in biases.items()}
        if kind in ('Qwen3', 'Gemma3'):
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


def write_safetensors(path: pathlib.Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]],
                      **metadata: str) -> None:
    """Tensors of name: (type, shape, bytes)."""
    header, at = {'__metadata__': {'format': 'pt', **metadata}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {'dtype': dtype, 'shape': list(shape), 'data_offsets': [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack('<Q', len(text)) + text + b''.join(data for _, _, data in tensors.values()))


def read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    types = {'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'I64': np.int64, 'BF16': np.uint16}
    data = path.read_bytes()
    length, = struct.unpack_from('<Q', data)
    header, body = json.loads(data[8:8 + length]), data[8 + length:]
    tensors = {}
    for name, entry in header.items():
        if name == '__metadata__':
            continue
        array = np.frombuffer(body[slice(*entry['data_offsets'])], types[entry['dtype']]).reshape(entry['shape'])
        tensors[name] = (array.astype(np.uint32) << 16).view(np.float32) if entry['dtype'] == 'BF16' else array
    return tensors


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
        write_safetensors(folder / 'model.safetensors', entries, config=json.dumps(config))
        return config, values
    names = [f'model-{i + 1:05}-of-{n_files:05}.safetensors' for i in range(n_files)]
    index = {tensor: names[i % n_files] for i, tensor in enumerate(entries)}
    for shard in names:
        write_safetensors(folder / shard, {tensor: entries[tensor] for tensor in entries if index[tensor] == shard})
    (folder / 'model.safetensors.index.json').write_text(json.dumps({'metadata': {'total_size': 1},
                                                                     'weight_map': index}))
    return config, values


def frequencies(config: dict, window: int) -> tuple[np.ndarray, float]:
    """Of RoPE in a layer, with the amplitude."""
    n, scaling = head_dim(config), config.get('rope_parameters') or config.get('rope_scaling') or {}
    if 'full_attention' in scaling:
        scaling = scaling['sliding_attention' if window else 'full_attention']
    elif family(config) == 'Gemma3' and window:
        scaling = {'rope_theta': config['rope_local_base_freq']}
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
    n, kind, window = config['num_hidden_layers'], family(config), config.get('sliding_window') or 0
    if kind == 'Mistral':
        return [window] * n
    if is_gemma(config) or kind == 'GptOss':
        period = config.get('sliding_window_pattern', 2)  # which layer_types of a model here state too
        return [0 if (i + 1) % period == 0 else window for i in range(n)]
    if kind == 'Llama' or not config.get('use_sliding_window'):
        return [0] * n
    return [window if i >= config['max_window_layers'] else 0 for i in range(n)]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _capped(x: np.ndarray, cap: float | None) -> np.ndarray:
    return cap * np.tanh(x / cap) if cap else x


class Forward:
    """One causal pass in FP64, whose keys and values are rounded to FP16 as in a cache."""

    def __init__(self, config: dict, weights: dict[str, np.ndarray], ids: list[int]):
        self._config, self._weights = config, {name: array.astype(np.float64) for name, array in weights.items()}
        self.keys: list[np.ndarray] = []  # of each layer, [tokens][heads][head_dim]
        x = self._weights['model.embed_tokens.weight'][ids]
        if is_gemma(config):
            x = x * math.sqrt(config['hidden_size'])
        for i, window in enumerate(windows(config)):
            own, amplitude = frequencies(config, window)
            angles = np.arange(len(ids))[:, None, None] * own
            self._cos, self._sin = np.cos(angles) * amplitude, np.sin(angles) * amplitude
            x = self._layer(f'model.layers.{i}.', x, window)
        head = 'model.embed_tokens' if config.get('tie_word_embeddings') else 'lm_head'
        logits = self._norm('model.norm', x) @ self._get(head).T
        self.logits = _capped(logits, config.get('final_logit_softcapping'))

    def _layer(self, name: str, x: np.ndarray, window: int) -> np.ndarray:
        out = self._attention(name + 'self_attn.', self._norm(name + 'input_layernorm', x), window)
        if not is_gemma(self._config):
            x = x + out
            return x + self._mlp(name + 'mlp.', self._norm(name + 'post_attention_layernorm', x))
        x = x + self._norm(name + 'post_attention_layernorm', out)
        out = self._mlp(name + 'mlp.', self._norm(name + 'pre_feedforward_layernorm', x))
        return x + self._norm(name + 'post_feedforward_layernorm', out)

    def _get(self, name: str) -> np.ndarray:
        return self._weights[name + '.weight']

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        weight = self._get(name) + is_gemma(self._config)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self._config['rms_norm_eps']) * weight

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self._get(name).T + self._weights.get(name + '.bias', 0)

    def _mlp(self, name: str, x: np.ndarray) -> np.ndarray:
        if family(self._config) == 'GptOss':
            return self._expert(name + 'experts.', x)
        gate, up = self._linear(name + 'gate_proj', x), self._linear(name + 'up_proj', x)
        if is_gemma(self._config):
            gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate ** 3)))
        else:
            gate = gate * _sigmoid(gate)
        return self._linear(name + 'down_proj', gate * up)

    def _expert(self, name: str, x: np.ndarray) -> np.ndarray:
        """The only one, whose share is 1."""
        both, out = ((self._weights[name + part][0], self._weights[f'{name}{part}_bias'][0])
                     for part in ('gate_up_proj', 'down_proj'))
        y, limit = x @ both[0] + both[1], self._config['swiglu_limit']
        gate, up = np.minimum(y[:, ::2], limit), np.clip(y[:, 1::2], -limit, limit)
        return (up + 1) * gate * _sigmoid(1.702 * gate) @ out[0] + out[1]

    def _heads(self, name: str, x: np.ndarray) -> np.ndarray:
        y = self._linear(name, x)
        y = y.reshape(len(y), -1, head_dim(self._config))
        norm = name.replace('_proj', '_norm')
        return self._norm(norm, y) if norm + '.weight' in self._weights else y

    def _turn(self, x: np.ndarray) -> np.ndarray:
        low, high = np.split(x, 2, -1)
        return np.concatenate([low * self._cos - high * self._sin, high * self._cos + low * self._sin], -1)

    def _attention(self, name: str, x: np.ndarray, window: int) -> np.ndarray:
        queries, keys = (self._turn(self._heads(f'{name}{part}_proj', x)) for part in 'qk')
        values = self._heads(name + 'v_proj', x)
        keys, values = (y.astype(np.float16).astype(np.float64) for y in (keys, values))
        self.keys.append(keys)
        group = queries.shape[1] // keys.shape[1]
        scale = 1 / math.sqrt(self._config.get('query_pre_attn_scalar', queries.shape[2]))
        scores = _capped(np.einsum('ihc,jhc->hij', queries, keys.repeat(group, 1)) * scale,
                         self._config.get('attn_logit_softcapping'))
        distance = np.arange(len(x))[:, None] - np.arange(len(x))
        scores[:, (distance < 0) | (distance >= (window or len(x)))] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        sums = shares.sum(-1, keepdims=True)
        if name + 'sinks' in self._weights:
            sums += np.exp(self._weights[name + 'sinks'][:, None, None] - scores.max(-1, keepdims=True))
        out = np.einsum('hij,jhc->ihc', shares / sums, values.repeat(group, 1))
        return self._linear(name + 'o_proj', out.reshape(len(x), -1))
