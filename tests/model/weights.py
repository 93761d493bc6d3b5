# SPDX-License-Identifier: Apache-2.0
"""Weight files of the proving models: F16, the tensor names of transformers, and the config that transformers would write."""
from __future__ import annotations

import json
import pathlib

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import model as M

CLASSES = {"qwen3": "Qwen3ForCausalLM", "gpt_oss": "GptOssForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}


def layer_types(s: M.Shape) -> list[str]:
    return ["sliding_attention" if s.window_of(i) else "full_attention" for i in range(s.layers)]


def config(s: M.Shape, max_positions: int) -> dict:
    """config.json of a folder that transformers reads."""
    common = {
        "architectures": [CLASSES[s.family]], "model_type": s.family, "vocab_size": s.vocab, "hidden_size": s.width,
        "num_hidden_layers": s.layers, "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim,
        "intermediate_size": s.hidden, "rms_norm_eps": s.eps, "max_position_embeddings": max_positions, "attention_bias": bool(s.biased),
        "attention_dropout": 0.0, "torch_dtype": "float16", "tie_word_embeddings": s.gemma, "bos_token_id": 0, "use_cache": True,
    }
    if s.family == "qwen3":
        return common | {"hidden_act": "silu", "rope_theta": s.theta, "use_sliding_window": False, "sliding_window": None}
    common |= {"sliding_window": s.window, "layer_types": layer_types(s)}
    if s.gemma:
        return common | {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": s.head_dim, "attn_logit_softcapping": s.softcap,
                         "final_logit_softcapping": None, "rope_theta": s.theta, "rope_local_base_freq": s.window_theta}
    return common | {"hidden_act": "silu", "num_local_experts": 1, "num_experts_per_tok": 1, "swiglu_limit": M.CLAMP,
                     "rope_parameters": {"rope_type": "default", "rope_theta": s.theta}}


def experts(state: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    """The MLP of a layer as gpt-oss stores experts: one expert, gate and up interleaved, rows are inputs."""
    own, kept = f"model.layers.{layer}.mlp.", {}
    pair = {kind: torch.stack([state.pop(f"{own}{part}_proj.{kind}") for part in ("gate", "up")], 1).flatten(0, 1) for kind in ("weight", "bias")}
    kept[own + "experts.gate_up_proj"] = pair["weight"].t()[None]
    kept[own + "experts.gate_up_proj_bias"] = pair["bias"][None]
    kept[own + "experts.down_proj"] = state.pop(own + "down_proj.weight").t()[None]
    kept[own + "experts.down_proj_bias"] = state.pop(own + "down_proj.bias")[None]
    width = kept[own + "experts.down_proj"].shape[2]
    return kept | {own + "router.weight": torch.zeros(1, width), own + "router.bias": torch.zeros(1)}


def plain(state: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    """The inverse of experts()."""
    own = f"model.layers.{layer}.mlp."
    weight, bias = (state.pop(own + "experts.gate_up_proj" + end)[0] for end in ("", "_bias"))
    kept = {f"{own}{part}_proj.{kind}": values for i, part in enumerate(("gate", "up"))
            for kind, values in (("weight", weight[:, i::2].t()), ("bias", bias[i::2]))}
    kept[own + "down_proj.weight"] = state.pop(own + "experts.down_proj")[0].t()
    kept[own + "down_proj.bias"] = state.pop(own + "experts.down_proj_bias")[0]
    for part in ("weight", "bias"):
        del state[f"{own}router.{part}"]
    return kept


def metadata(name: str, s: M.Shape, seed: int, training: str, max_positions: int) -> dict[str, str]:
    """The first model states its shape in fields of its own, the others the config of transformers."""
    values = {"format": "pt", "seed": seed, "training": training}
    if s.family != "qwen2":
        return {k: str(v) for k, v in values.items()} | {"name": name, "config": json.dumps(config(s, max_positions))}
    values |= {
        "architecture": "qwen2", "vocab_size": s.vocab, "hidden_size": s.width, "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "intermediate_size": s.hidden,
        "rms_norm_eps": s.eps, "rope_theta": s.theta, "max_position_embeddings": max_positions,
    }
    return {k: str(v) for k, v in values.items()}


def save(model: M.Prover, name: str, path: pathlib.Path, seed: int, training: str, max_positions: int) -> None:
    s = model.shape
    tensors = {k: v.detach().to(torch.float16).cpu() for k, v in model.state_dict().items()}
    if s.family == "gpt_oss":
        for i in range(s.layers):
            tensors |= experts(tensors, i)
    whole = path.with_suffix(".part")
    save_file({k: v.to(torch.float16).contiguous() for k, v in tensors.items()}, whole, metadata(name, s, seed, training, max_positions))
    whole.replace(path)


def load(path: pathlib.Path, device: str) -> M.Prover:
    """Float32 copies of the F16 weights."""
    with safe_open(path, "pt") as file:
        name = file.metadata().get("name", "prover")
    model = M.Prover(M.SHAPES[name])
    tensors = {k: v.float() for k, v in load_file(path).items()}
    if model.shape.family == "gpt_oss":
        for i in range(model.shape.layers):
            tensors |= plain(tensors, i)
    model.load_state_dict(tensors)
    return model.to(device).eval().requires_grad_(False)
