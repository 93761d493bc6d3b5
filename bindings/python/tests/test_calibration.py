# SPDX-License-Identifier: Apache-2.0
"""What calibrate() writes is what the model computed."""

from __future__ import annotations

import pytest
from hf import make_model, tokens, torch, transformers

import lowkey
from lowkey.transformers import LowkeyCache, calibrate


def load(path):
    from safetensors import safe_open
    with safe_open(path, 'pt') as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def keys_of(model, ids, positions=None):
    """Keys and values after RoPE, by layer, as the host's own cache has them."""
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model(ids, past_key_values=cache, position_ids=positions)
    return [(layer.keys[0].transpose(0, 1), layer.values[0].transpose(0, 1)) for layer in cache.layers]


@pytest.mark.parametrize('name', ['llama', 'qwen3', 'gemma2'])
def test_keys_and_values(name, tmp_path):
    model, texts = make_model(name), [tokens(1, 40), tokens(2, 25).tolist()]
    shapes = calibrate(model, texts, out=tmp_path / 'dump.safetensors', dtype='float32')
    found, metadata = load(tmp_path / 'dump.safetensors')
    assert metadata['texts'] == '2' and {n: list(t.shape) for n, t in found.items()} == shapes
    assert not any('grad' in label or 'probe' in label for label in found)
    wanted = [keys_of(model, torch.as_tensor(text)[None]) for text in texts]
    for layer, passes in enumerate(zip(*wanted)):
        for i, label in enumerate('kv'):
            assert torch.allclose(found[f'layer.{layer}.{label}'], torch.cat([one[i] for one in passes]), atol=1e-4)
    assert found['layer.0.q'].shape == (65, 4, 32 if name != 'qwen3' else 64)


def test_gradients_are_derivatives(tmp_path):
    """Moving a value of the first layer by a little moves the loss by its gradient."""
    model, ids = make_model('llama').double(), tokens(3, 30)
    calibrate(model, [ids], out=tmp_path / 'dump.safetensors', gradients=True, dtype='float32')
    found, _ = load(tmp_path / 'dump.safetensors')
    gradient = found['layer.0.v_grad']
    assert all(found[f'layer.{layer}.{label}_grad'].abs().max() > 0 for layer in range(3) for label in 'kv')

    def loss(move):
        def hook(module, inputs, output):
            moved = output.clone()
            moved[0, 7, 5] += move  # token 7, channel 5 of the first KV head
            return moved
        handle = model.model.layers[0].self_attn.v_proj.register_forward_hook(hook)
        with torch.no_grad():
            value = model(ids[None], labels=ids[None]).loss.item()
        handle.remove()
        return value

    slope = (loss(0.05) - loss(-0.05)) / 0.1  # the loss is in single precision
    assert gradient[7, 0, 5].item() == pytest.approx(slope, rel=0.03)
    assert all(p.requires_grad and p.grad is None for p in model.parameters()), 'the model is as before'
    assert model.config._attn_implementation == 'sdpa'


def test_positional_interpolation(tmp_path):
    model, ids = make_model('llama'), tokens(4, 20)
    calibrate(model, [ids], out=tmp_path / 'dump.safetensors', position_scale=4, dtype='float32')
    found, metadata = load(tmp_path / 'dump.safetensors')
    assert metadata['position_scale'] == '4'
    stretched, plain = (keys_of(model, ids[None], torch.arange(20)[None] * scale) for scale in (4, 1))
    assert torch.allclose(found['layer.0.k'], stretched[0][0], atol=1e-4)
    assert (found['layer.0.k'] - plain[0][0]).abs().max() > 0.1


def test_probe(tmp_path):
    model, sentence = make_model('llama'), tokens(5, 9)
    calibrate(model, [], out=tmp_path / 'probe.safetensors', probe=sentence, probe_repeats=3, probe_prefix=[1])
    found, metadata = load(tmp_path / 'probe.safetensors')
    assert (metadata['probe_period'], metadata['probe_prefix'], metadata['texts']) == ('9', '1', '0')
    assert set(found) == {f'layer.{layer}.probe_{label}' for layer in range(3) for label in 'kq'}
    whole = torch.cat([torch.tensor([1]), sentence.repeat(3)])
    assert torch.allclose(found['layer.2.probe_k'].float(), keys_of(model, whole[None])[2][0], atol=5e-3)


def test_strings_and_limits(tmp_path):
    model, out = make_model('llama'), tmp_path / 'dump.safetensors'

    def tokenizer(text):
        return {'input_ids': [2 + ord(letter) % 80 for letter in text]}

    calibrate(model, ['to be or not to be'], out=out, tokenizer=tokenizer, max_tokens=6)
    assert load(out)[0]['layer.0.k'].shape == (6, 2, 32)
    for arguments, options, sentence in (
            ((['text'],), {}, 'give the tokenizer'), (([],), {}, 'neither texts nor a probe'),
            (([[5]],), {}, 'text 0 has 1 tokens'), (([[5, 6]],), {'dtype': 'int8'}, "'int8'"),
            (([[5, 6]],), {'position_scale': 0}, 'position_scale is 0')):
        with pytest.raises(lowkey.ArgumentError, match=sentence):
            calibrate(model, *arguments, out=tmp_path / 'none', **options)
    assert not (tmp_path / 'none').exists()
    with LowkeyCache(model.config, 'fp16', '64MiB'), pytest.raises(lowkey.ArgumentError, match='close it'):
        calibrate(model, [[5, 6]], out=out)
