# SPDX-License-Identifier: Apache-2.0
"""Models as GGUF files: the proving model, and random ones of chosen shapes. Needs NumPy alone.

    gguf_models.py FOLDER        writes all models of the tests into FOLDER
"""
import json
import pathlib
import struct
import sys

import numpy as np

PROVER = pathlib.Path(__file__).resolve().parents[1] / 'model/prover.safetensors'
ALIGNMENT = 32
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
# Tensor types: (number, values of a block, bytes of a block)
TYPES = {'f32': (0, 1, 4), 'f16': (1, 1, 2), 'q4_0': (2, 32, 18)}


def q4_0(rows):
    """Blocks of 32 values of a row: a 16-bit scale, then 4-bit codes, value i next to value i + 16."""
    blocks = rows.reshape(-1, 32).astype(np.float32)
    peak = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    scale = peak / -8
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    codes = np.clip(np.floor(blocks * inverse + 8.5), 0, 15).astype(np.uint8)
    return np.concatenate([scale.astype(np.float16).view(np.uint8), codes[:, :16] | codes[:, 16:] << 4], 1).tobytes()


class Gguf:
    """Collects fields and tensors, then writes a file of version 3."""

    def __init__(self, architecture):
        self.architecture = architecture
        self.fields = []
        self.tensors = []
        self.add('general.architecture', architecture)

    @staticmethod
    def text(value):
        data = value.encode('utf-8')
        return struct.pack('<Q', len(data)) + data

    def value(self, value):
        if isinstance(value, bool):
            return BOOL, struct.pack('<?', value)
        if isinstance(value, int):
            return U32, struct.pack('<I', value)
        if isinstance(value, float):
            return F32, struct.pack('<f', value)
        if isinstance(value, str):
            return STRING, self.text(value)
        items = [(I32, struct.pack('<i', item)) if isinstance(item, int) else self.value(item) for item in value]
        return ARRAY, struct.pack('<IQ', items[0][0], len(items)) + b''.join(data for _, data in items)

    def add(self, key, value):
        kind, data = self.value(value)
        self.fields.append(self.text(key) + struct.pack('<I', kind) + data)

    def set(self, **values):
        """Fields of the architecture; a double underscore in a name becomes a dot."""
        for name, value in values.items():
            self.add(f'{self.architecture}.{name.replace("__", ".")}', value)

    def byte_tokens(self, n_vocab=256):
        """Token b is byte b in GPT-2's alphabet, later ones have no text; no two tokens merge. Token 0 begins and ends a
        text."""
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in plain]
        letters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
        self.add('tokenizer.ggml.model', 'gpt2')
        self.add('tokenizer.ggml.pre', 'gpt-2')
        self.add('tokenizer.ggml.tokens', [letters[i] if i < 256 else f'<{i}>' for i in range(n_vocab)])
        self.add('tokenizer.ggml.token_type', [3] + [1] * 255 + [5] * (n_vocab - 256))
        self.add('tokenizer.ggml.merges', [f'{letters[0]} {letters[0]}'])
        self.add('tokenizer.ggml.bos_token_id', 0)
        self.add('tokenizer.ggml.eos_token_id', 0)
        self.add('tokenizer.ggml.add_bos_token', True)

    def tensor(self, name, data, kind=None):
        kind = kind or ('f32' if data.ndim == 1 else 'f16')
        packed = q4_0(data) if kind == 'q4_0' else data.astype({'f32': '<f4', 'f16': '<f2'}[kind]).tobytes()
        self.packed(name, data.shape, kind, packed)

    def packed(self, name, shape, kind, data):
        self.tensors.append((name, shape, kind, data))

    def write(self, path):
        infos, offset = [], 0
        for name, shape, kind, packed in self.tensors:
            infos.append(self.text(name) + struct.pack('<I', len(shape)) +
                         struct.pack(f'<{len(shape)}Q', *reversed(shape)) + struct.pack('<IQ', TYPES[kind][0], offset))
            offset += -(-len(packed) // ALIGNMENT) * ALIGNMENT
        head = struct.pack('<4sIQQ', b'GGUF', 3, len(infos), len(self.fields)) + b''.join(self.fields + infos)
        with open(path, 'wb') as file:
            file.write(head + bytes(-len(head) % ALIGNMENT))
            for _, _, _, packed in self.tensors:
                file.write(packed)
                file.write(bytes(-len(packed) % ALIGNMENT))


def prover(path, source=PROVER):
    """The proving model: seed_oss has its shape, with biases on queries and keys alone."""
    data = source.read_bytes()
    n_head = struct.unpack('<Q', data[:8])[0]
    header = json.loads(data[8:8 + n_head])
    about = header.pop('__metadata__')

    def weight(name):
        begin, end = header[name]['data_offsets']
        values = np.frombuffer(data[8 + n_head + begin:8 + n_head + end], '<f2')
        return values.reshape(header[name]['shape']).astype(np.float32)

    model = Gguf('seed_oss')
    head_dim = int(about['head_dim'])
    model.set(block_count=int(about['num_hidden_layers']), context_length=int(about['max_position_embeddings']),
              embedding_length=int(about['hidden_size']), feed_forward_length=int(about['intermediate_size']),
              attention__head_count=int(about['num_attention_heads']),
              attention__head_count_kv=int(about['num_key_value_heads']), attention__key_length=head_dim,
              attention__value_length=head_dim, rope__freq_base=float(about['rope_theta']), rope__dimension_count=head_dim,
              attention__layer_norm_rms_epsilon=float(about['rms_norm_eps']))
    model.byte_tokens()
    model.tensor('token_embd.weight', weight('model.embed_tokens.weight'))
    model.tensor('output.weight', weight('lm_head.weight'))
    model.tensor('output_norm.weight', weight('model.norm.weight'))
    for i in range(int(about['num_hidden_layers'])):
        theirs, ours = f'model.layers.{i}.', f'blk.{i}.'
        model.tensor(ours + 'attn_norm.weight', weight(theirs + 'input_layernorm.weight'))
        model.tensor(ours + 'post_attention_norm.weight', weight(theirs + 'post_attention_layernorm.weight'))
        for name in 'qkv':
            model.tensor(f'{ours}attn_{name}.weight', weight(f'{theirs}self_attn.{name}_proj.weight'))
        for name in 'qk':
            model.tensor(f'{ours}attn_{name}.bias', weight(f'{theirs}self_attn.{name}_proj.bias'))
        model.tensor(ours + 'attn_output.weight', weight(theirs + 'self_attn.o_proj.weight'))
        for name in ('gate', 'up', 'down'):
            model.tensor(f'{ours}ffn_{name}.weight', weight(f'{theirs}mlp.{name}_proj.weight'))
    model.write(path)


N_REPEATED_BLOCKS = 65521  # a prime, so that no rows are equal


class Random(Gguf):
    """A model of random weights, small enough for logits of moderate size. Matrices of a large model repeat a few blocks,
    which takes seconds where numbers of their own would take minutes."""

    def __init__(self, architecture, seed=1, kind='f16', n_vocab=256, is_large=False):
        super().__init__(architecture)
        self.random = np.random.default_rng(seed)
        self.kind = kind
        self.n_vocab = n_vocab
        self.is_large = is_large
        self.repeated = {}  # by n_in
        self.byte_tokens(n_vocab)

    def repeated_q4_0(self, n_out, n_in):
        """The bytes of a matrix of repeated blocks."""
        n_bytes = n_out * n_in // 32 * 18
        known = self.repeated.get(n_in, b'')
        if len(known) < n_bytes:
            weights = self.random.standard_normal((N_REPEATED_BLOCKS, 32), np.float32) / np.float32(np.sqrt(n_in))
            blocks = known[:N_REPEATED_BLOCKS * 18] or q4_0(weights)
            known = self.repeated[n_in] = blocks * -(-n_bytes // len(blocks))
        return memoryview(known)[:n_bytes]

    def matrix(self, name, n_out, n_in, kind=None):
        if self.is_large:
            self.packed(name, (n_out, n_in), 'q4_0', self.repeated_q4_0(n_out, n_in))
            return
        weights = self.random.standard_normal((n_out, n_in), np.float32) / np.float32(np.sqrt(n_in))
        self.tensor(name, weights, kind or self.kind)

    def experts(self, name, n_experts, n_out, n_in):
        weights = self.random.standard_normal((n_experts, n_out, n_in), np.float32) / np.float32(np.sqrt(n_in))
        self.tensor(name + '.weight', weights, 'f16')
        self.tensor(name + '.bias', 0.1 * self.random.standard_normal((n_experts, n_out)), 'f32')

    def norm(self, name, n, mean=1.0):
        self.tensor(name, (mean + 0.1 * self.random.standard_normal(n)).astype(np.float32))


def shape(model, n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_context=8192, last_norm='output_norm'):
    """n_kv_heads may be a list, of each layer."""
    model.set(block_count=n_layers, context_length=n_context, embedding_length=n_embd, feed_forward_length=n_ff,
              attention__head_count=n_heads, attention__head_count_kv=n_kv_heads, attention__key_length=head_dim,
              attention__value_length=head_dim, rope__dimension_count=head_dim,
              attention__layer_norm_rms_epsilon=1e-5)
    model.matrix('token_embd.weight', model.n_vocab, n_embd, 'f16')
    model.norm(f'{last_norm}.weight', n_embd)


def feed_forward(model, name, n_embd, n_ff):
    model.matrix(name + 'ffn_gate.weight', n_ff, n_embd)
    model.matrix(name + 'ffn_up.weight', n_ff, n_embd)
    model.matrix(name + 'ffn_down.weight', n_embd, n_ff)


def layer_matrices(model, name, n_embd, n_heads, n_kv_heads, head_dim, n_ff):
    model.matrix(name + 'attn_q.weight', n_heads * head_dim, n_embd)
    model.matrix(name + 'attn_k.weight', n_kv_heads * head_dim, n_embd)
    model.matrix(name + 'attn_v.weight', n_kv_heads * head_dim, n_embd)
    model.matrix(name + 'attn_output.weight', n_embd, n_heads * head_dim)
    feed_forward(model, name, n_embd, n_ff)


def head_norms(model, name, head_dim):
    for part in 'qk':
        model.norm(f'{name}attn_{part}_norm.weight', head_dim)


def llama(path, n_layers=2, n_embd=256, n_heads=8, n_kv_heads=2, head_dim=64, n_ff=512, kind='f16', n_context=8192,
          architecture='llama', n_vocab=256, is_large=False, has_output=False, **values):
    model = Random(architecture, kind=kind, n_vocab=n_vocab, is_large=is_large)
    model.set(rope__freq_base=500000.0, **values)
    shape(model, n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_context)
    if has_output:
        model.matrix('output.weight', n_vocab, n_embd)
    for i in range(n_layers):
        name = f'blk.{i}.'
        model.norm(name + 'attn_norm.weight', n_embd)
        model.norm(name + 'ffn_norm.weight', n_embd)
        if architecture == 'qwen3':
            head_norms(model, name, head_dim)
        layer_matrices(model, name, n_embd, n_heads, n_kv_heads, head_dim, n_ff)
    model.write(path)


# Geometries of real models, without their rotation's factors.
LARGE = {
    'Llama-3.2-1B': {'n_layers': 16, 'n_embd': 2048, 'n_heads': 32, 'n_kv_heads': 8, 'head_dim': 64, 'n_ff': 8192},
    'Llama-3.1-8B': {'n_layers': 32, 'n_embd': 4096, 'n_heads': 32, 'n_kv_heads': 8, 'head_dim': 128, 'n_ff': 14336,
                     'has_output': True},
    'Qwen3-4B': {'architecture': 'qwen3', 'n_layers': 36, 'n_embd': 2560, 'n_heads': 32, 'n_kv_heads': 8, 'head_dim': 128,
                 'n_ff': 9728},
    'Gemma-3-1B': {'architecture': 'gemma3', 'window': 512, 'n_layers': 26, 'n_embd': 1152, 'n_heads': 4, 'n_kv_heads': 1,
                   'head_dim': 256, 'n_ff': 6912},
}


def large(path, name, n_vocab=128256, **values):
    """Random weights at Q4_0 in the geometry of a model of LARGE."""
    maker = gemma if name.startswith('Gemma') else llama
    maker(path, **LARGE[name] | values, n_context=131072, n_vocab=n_vocab, is_large=True)


def chunked(path):
    """Llama 4, whose windows are chunks; no layer has experts."""
    llama(path, architecture='llama4', interleave_moe_layer_step=0, expert_count=2, expert_used_count=1,
          expert_feed_forward_length=64)


def alibi(path, n_embd=128, n_heads=2):
    """MPT, whose logits have ALiBi's bias."""
    model = Random('mpt')
    model.set(block_count=1, context_length=2048, embedding_length=n_embd, feed_forward_length=256,
              attention__head_count=n_heads, attention__head_count_kv=n_heads, attention__layer_norm_epsilon=1e-5,
              attention__max_alibi_bias=8.0)
    model.matrix('token_embd.weight', 256, n_embd)
    model.norm('output_norm.weight', n_embd)
    model.norm('blk.0.attn_norm.weight', n_embd)
    model.norm('blk.0.ffn_norm.weight', n_embd)
    model.matrix('blk.0.attn_qkv.weight', 3 * n_embd, n_embd)
    model.matrix('blk.0.attn_output.weight', n_embd, n_embd)
    model.matrix('blk.0.ffn_up.weight', 256, n_embd)
    model.matrix('blk.0.ffn_down.weight', n_embd, 256)
    model.write(path)


def gemma(path, architecture, window, n_layers, n_embd=128, n_heads=4, n_kv_heads=1, head_dim=64, n_ff=256, n_context=8192,
          n_vocab=256, is_large=False, **values):
    """Layers with a sliding window between layers without."""
    model = Random(architecture, n_vocab=n_vocab, is_large=is_large)
    model.set(attention__sliding_window=window, **values)
    shape(model, n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_context)
    for i in range(n_layers):
        name = f'blk.{i}.'
        for norm in ('attn_norm', 'post_attention_norm', 'ffn_norm', 'post_ffw_norm'):
            model.norm(f'{name}{norm}.weight', n_embd)
        if architecture == 'gemma3':
            head_norms(model, name, head_dim)
        layer_matrices(model, name, n_embd, n_heads, n_kv_heads, head_dim, n_ff)
    model.write(path)


def gemma2(path):
    """Every second layer has a window; logits are capped, at a value that random ones reach."""
    gemma(path, 'gemma2', 96, 4, n_kv_heads=2, head_dim=128, attn_logit_softcapping=2.0, final_logit_softcapping=30.0)


def gemma3(path):
    """Five layers with a window, then one without."""
    gemma(path, 'gemma3', 128, 7, rope__freq_base=1000000.0)


def gpt_oss(path, n_layers=4, n_embd=128, n_heads=8, n_kv_heads=1, head_dim=64, n_ff=64, n_experts=4):
    """Every second layer has a window, every head a learned sink. All experts count, so that no rounding chooses one."""
    model = Random('gpt-oss')
    model.set(attention__sliding_window=128, rope__freq_base=150000.0, expert_count=n_experts,
              expert_used_count=n_experts,
              expert_feed_forward_length=n_ff)
    shape(model, n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff)
    model.matrix('output.weight', model.n_vocab, n_embd)
    for i in range(n_layers):
        name = f'blk.{i}.'
        model.norm(name + 'attn_norm.weight', n_embd)
        model.norm(name + 'post_attention_norm.weight', n_embd)
        for part, n_out, n_in in (('q', n_heads * head_dim, n_embd), ('k', n_kv_heads * head_dim, n_embd),
                                  ('v', n_kv_heads * head_dim, n_embd), ('output', n_embd, n_heads * head_dim)):
            model.matrix(f'{name}attn_{part}.weight', n_out, n_in)
            model.norm(f'{name}attn_{part}.bias', n_out, 0.0)
        model.norm(name + 'attn_sinks.weight', n_heads, 2.0)
        model.matrix(name + 'ffn_gate_inp.weight', n_experts, n_embd, 'f32')
        model.norm(name + 'ffn_gate_inp.bias', n_experts, 0.0)
        for part, n_out, n_in in (('gate', n_ff, n_embd), ('up', n_ff, n_embd), ('down', n_embd, n_ff)):
            model.experts(f'{name}ffn_{part}_exps', n_experts, n_out, n_in)
    model.write(path)


def recurrent(path, n_embd=64, n_state=16, n_rank=4, n_kernel=4):
    """Mamba, which keeps no keys and values."""
    inner = 2 * n_embd
    model = Random('mamba')
    model.set(block_count=1, context_length=2048, embedding_length=n_embd, feed_forward_length=0, attention__head_count=0,
              ssm__conv_kernel=n_kernel, ssm__inner_size=inner, ssm__state_size=n_state, ssm__time_step_rank=n_rank,
              attention__layer_norm_rms_epsilon=1e-5)
    model.matrix('token_embd.weight', 256, n_embd)
    model.norm('output_norm.weight', n_embd)
    model.norm('blk.0.attn_norm.weight', n_embd)
    model.matrix('blk.0.ssm_in.weight', 2 * inner, n_embd)
    model.matrix('blk.0.ssm_conv1d.weight', inner, n_kernel, 'f32')
    model.norm('blk.0.ssm_conv1d.bias', inner)
    model.matrix('blk.0.ssm_x.weight', n_rank + 2 * n_state, inner)
    model.matrix('blk.0.ssm_dt.weight', inner, n_rank, 'f32')
    model.norm('blk.0.ssm_dt.bias', inner)
    model.tensor('blk.0.ssm_a', -np.ones((inner, n_state), np.float32), 'f32')
    model.norm('blk.0.ssm_d', inner)
    model.matrix('blk.0.ssm_out.weight', n_embd, inner)
    model.write(path)


def lfm2(path, n_embd=256, n_heads=4, head_dim=64, n_ff=256, n_kernel=3, **values):
    """Short convolutions, with attention in two of five layers."""
    kv_heads = [0, 0, 2, 0, 2]
    model = Random('lfm2')
    model.set(shortconv__l_cache=n_kernel, rope__freq_base=1000000.0, **values)
    shape(model, len(kv_heads), n_embd, n_heads, kv_heads, head_dim, n_ff, last_norm='token_embd_norm')
    for i, n_kv_heads in enumerate(kv_heads):
        name = f'blk.{i}.'
        model.norm(name + 'attn_norm.weight', n_embd)
        model.norm(name + 'ffn_norm.weight', n_embd)
        if n_kv_heads:
            head_norms(model, name, head_dim)
            layer_matrices(model, name, n_embd, n_heads, n_kv_heads, head_dim, n_ff)
        else:
            model.matrix(name + 'shortconv.conv.weight', n_embd, n_kernel, 'f32')
            model.matrix(name + 'shortconv.in_proj.weight', 3 * n_embd, n_embd)
            model.matrix(name + 'shortconv.out_proj.weight', n_embd, n_embd)
            feed_forward(model, name, n_embd, n_ff)
    model.write(path)


def qwen35(path, n_layers=4, n_embd=128, n_heads=4, n_kv_heads=1, head_dim=64, n_ff=256, n_state=32, n_keys=2, n_values=4):
    """Gated delta nets, with gated attention in every second layer, and positions of several dimensions."""
    keys, values = n_state * n_keys, n_state * n_values
    model = Random('qwen35')
    model.set(ssm__conv_kernel=4, ssm__inner_size=values, ssm__state_size=n_state, ssm__time_step_rank=n_values,
              ssm__group_count=n_keys, full_attention_interval=2, rope__dimension_sections=[12, 10, 10, 0])
    shape(model, n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff)
    for i in range(n_layers):
        name = f'blk.{i}.'
        model.norm(name + 'attn_norm.weight', n_embd)
        model.norm(name + 'post_attention_norm.weight', n_embd)
        feed_forward(model, name, n_embd, n_ff)
        if i % 2:
            head_norms(model, name, head_dim)
            model.matrix(name + 'attn_q.weight', 2 * n_heads * head_dim, n_embd)  # queries and gates
            model.matrix(name + 'attn_k.weight', n_kv_heads * head_dim, n_embd)
            model.matrix(name + 'attn_v.weight', n_kv_heads * head_dim, n_embd)
            model.matrix(name + 'attn_output.weight', n_embd, n_heads * head_dim)
        else:
            model.matrix(name + 'attn_qkv.weight', 2 * keys + values, n_embd)
            model.matrix(name + 'attn_gate.weight', values, n_embd)
            model.matrix(name + 'ssm_conv1d.weight', 2 * keys + values, 4, 'f32')
            model.matrix(name + 'ssm_alpha.weight', n_values, n_embd)
            model.matrix(name + 'ssm_beta.weight', n_values, n_embd)
            model.matrix(name + 'ssm_out.weight', n_embd, values)
            model.norm(name + 'ssm_dt.bias', n_values, 0.0)
            model.norm(name + 'ssm_a', n_values, -1.0)
            model.norm(name + 'ssm_norm.weight', n_state)
    model.write(path)


def falcon_h1(path, n_layers=2, n_embd=128, n_heads=4, n_kv_heads=2, head_dim=64, n_ff=256, inner=256, n_state=128,
              n_ssm_heads=4):
    """Attention and Mamba 2 in each layer."""
    channels = inner + 2 * n_state
    model = Random('falcon-h1')
    model.set(ssm__conv_kernel=4, ssm__inner_size=inner, ssm__state_size=n_state, ssm__time_step_rank=n_ssm_heads,
              ssm__group_count=1)
    shape(model, n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff)
    for i in range(n_layers):
        name = f'blk.{i}.'
        model.norm(name + 'attn_norm.weight', n_embd)
        model.norm(name + 'ffn_norm', n_embd)
        layer_matrices(model, name, n_embd, n_heads, n_kv_heads, head_dim, n_ff)
        model.matrix(name + 'ssm_in.weight', inner + channels + n_ssm_heads, n_embd)
        model.matrix(name + 'ssm_conv1d.weight', channels, 4, 'f32')
        model.norm(name + 'ssm_conv1d.bias', channels, 0.0)
        model.norm(name + 'ssm_dt.bias', n_ssm_heads, 0.0)
        model.tensor(name + 'ssm_a', -np.ones((n_ssm_heads, 1), np.float32), 'f32')
        model.tensor(name + 'ssm_d', np.ones((n_ssm_heads, 1), np.float32), 'f32')
        model.matrix(name + 'ssm_out.weight', n_embd, inner)
    model.write(path)


def all_models(folder):
    """Writes the models of the tests; returns their paths by name."""
    makers = {
        'prover': prover,
        'llama': llama,
        'head-24': lambda path: llama(path, n_layers=1, n_embd=96, n_heads=4, n_kv_heads=2, head_dim=24),
        'alibi': alibi,
        'chunked': chunked,
        'gemma2': gemma2,
        'gemma3': gemma3,
        'gpt-oss': gpt_oss,
        'recurrent': recurrent,
        'lfm2': lfm2,
        'lfm2-windows': lambda path: lfm2(path, attention__sliding_window=128),
        'qwen35': qwen35,
        'falcon-h1': falcon_h1,
    }
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f'{name}.gguf' for name in makers}
    for name, path in paths.items():
        makers[name](path)
    return paths


if __name__ == '__main__':
    print('\n'.join(map(str, all_models(sys.argv[1]).values())))
