# SPDX-License-Identifier: Apache-2.0
"""Models whose images see themselves both ways: a small Gemma 3 with a vision tower, against transformers' own cache."""

from __future__ import annotations

import pytest
from hf import COMMON, DEVICES, WINDOW, sharpen, torch, transformers

import lowkey
from lowkey.transformers import LowkeyCache

IMAGE, PER_IMAGE = 80, 16
VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=56,
              patch_size=14)


def make_model(device: str = 'cpu', window: int = WINDOW):
    text = dict(COMMON, num_hidden_layers=4, head_dim=32, sliding_window=window, query_pre_attn_scalar=64,
                layer_types=['sliding_attention', 'full_attention'] * 2)
    config = transformers.Gemma3Config(text_config=transformers.Gemma3TextConfig(**text),
                                       vision_config=transformers.SiglipVisionConfig(**VISION),
                                       mm_tokens_per_image=PER_IMAGE, image_token_index=IMAGE, image_token_id=IMAGE,
                                       boi_token_index=81, eoi_token_index=82)
    torch.manual_seed(1)
    model = transformers.Gemma3ForConditionalGeneration._from_config(config, attn_implementation='eager').eval()
    sharpen(model, {('mm_input_projection_weight',): 1.0})
    return model.to(device)


def make_prompts(n_images: list[int], device: str = 'cpu', seed: int = 0) -> dict:
    """A row of text for each number of images, with images in between; short rows are padded on the left."""
    torch.manual_seed(seed)
    rows = []
    for n in n_images:
        row = torch.randint(2, 70, (7,)).tolist()
        for _ in range(n):
            row += [IMAGE] * PER_IMAGE + torch.randint(2, 70, (5,)).tolist()
        rows.append(row)
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    pixels = torch.randn(sum(n_images), 3, VISION['image_size'], VISION['image_size'])
    return {name: x.to(device) for name, x in dict(input_ids=ids, attention_mask=mask, pixel_values=pixels,
                                                   token_type_ids=(ids == IMAGE).long()).items()}


def open_cache(model, **options) -> LowkeyCache:
    return LowkeyCache(model.config.get_text_config(), 'fp16', '64MiB', **options)


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('window', [WINDOW, 10])  # an image fits, or reaches beyond it
def test_logits_are_those_of_the_own_cache(device, window):
    model = make_model(device, window)
    prompt = make_prompts([2], device)
    with torch.no_grad():
        wanted = model(**prompt, use_cache=False).logits
        causal = model(**dict(prompt, token_type_ids=torch.zeros_like(prompt['input_ids'])), use_cache=False).logits
        with open_cache(model) as cache:
            found = model(**prompt, past_key_values=cache).logits
    assert apart(found, wanted) < 5e-3 < apart(causal, wanted)


def test_padded_prompts_have_spans_of_their_own():
    model = make_model()
    prompts = make_prompts([1, 2])
    with torch.no_grad():
        wanted = model(**prompts, use_cache=False).logits
        with open_cache(model, max_sequences=2) as cache:
            found = model(**prompts, past_key_values=cache).logits
            assert cache.lengths == [7 + 21, 7 + 42]
    real = prompts['attention_mask'].bool()
    assert apart(found[real], wanted[real]) < 5e-3


@pytest.mark.parametrize('options', [{}, {'num_beams': 3}], ids=['greedy', 'beams'])
def test_generate(options):
    model = make_model()
    prompt = make_prompts([2], seed=3)
    want = model.generate(**prompt, max_new_tokens=12, do_sample=False, **options)
    with open_cache(model, max_sequences=3) as cache:
        assert torch.equal(model.generate(**prompt, max_new_tokens=12, do_sample=False, past_key_values=cache,
                                          **options), want)


def test_chunks_of_whole_images():
    """A pass that follows another one has spans after committed tokens."""
    model = make_model()
    prompt = make_prompts([2])
    cut = 7 + PER_IMAGE + 2
    with torch.no_grad():
        wanted = model(**prompt, use_cache=False).logits
        with open_cache(model) as cache:
            parts = []
            for n, (first, end) in enumerate(((0, cut), (cut, prompt['input_ids'].shape[1]))):
                parts.append(model(input_ids=prompt['input_ids'][:, first:end],
                                   attention_mask=prompt['attention_mask'][:, :end],
                                   pixel_values=prompt['pixel_values'][n:n + 1],
                                   token_type_ids=prompt['token_type_ids'][:, :end], past_key_values=cache).logits)
    assert apart(torch.cat(parts, 1), wanted) < 5e-3


def make_gemma4():
    """Without pixels: the types of tokens alone decide the masks."""
    text = dict(COMMON, num_hidden_layers=4, head_dim=32, global_head_dim=64, sliding_window=WINDOW,
                layer_types=['sliding_attention', 'full_attention'] * 2, num_kv_shared_layers=0,
                vocab_size_per_layer_input=89, hidden_size_per_layer_input=8, use_bidirectional_attention='vision')
    vision = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                  num_key_value_heads=2, head_dim=16)
    config = transformers.Gemma4Config(text_config=transformers.Gemma4TextConfig(**text),
                                       vision_config=transformers.Gemma4VisionConfig(**vision), audio_config=None)
    torch.manual_seed(2)
    model = transformers.Gemma4ForConditionalGeneration._from_config(config, attn_implementation='eager').eval()
    sharpen(model, {})
    return model


def test_gemma4_has_spans_in_windows_alone():
    model = make_gemma4()
    torch.manual_seed(4)
    ids = torch.randint(2, 70, (1, 60))
    kinds = torch.zeros_like(ids)
    kinds[:, 5:21] = kinds[:, 30:46] = 1
    with torch.no_grad():
        wanted = model(input_ids=ids, mm_token_type_ids=kinds, use_cache=False).logits
        causal = model(input_ids=ids, mm_token_type_ids=torch.zeros_like(ids), use_cache=False).logits
        with open_cache(model) as cache:
            found = model(input_ids=ids, mm_token_type_ids=kinds, past_key_values=cache).logits
    assert apart(found, wanted) < 5e-3 < apart(causal, wanted)


def test_other_masks_are_refused():
    from lowkey.transformers.spans import Spans
    causal = torch.ones(1, 1, 6, 9, dtype=torch.bool).tril(3)
    assert Spans(causal, 0).ranges([True]) == [] and Spans(causal, 0).padding() is None
    image = causal.clone()
    image[..., 1:4, 4:7] = True
    assert Spans(image, 0).ranges([True]) == [(0, 1, 4)]
    for change in ((2, 1), (5, 0), (2, 6), (3, 8)):  # tokens that are hidden, twice earlier ones; a later one
        wrong = image.clone()
        wrong[0, 0][change] ^= True
        with pytest.raises(lowkey.UnsupportedError, match='neither causal'):
            Spans(wrong, 0)
    spans = Spans(image, 0)
    with pytest.raises(lowkey.UnsupportedError, match='neither causal'):
        spans.check(causal, 0)
    with pytest.raises(lowkey.UnsupportedError, match='neither causal'):
        spans.check(None, 0)
