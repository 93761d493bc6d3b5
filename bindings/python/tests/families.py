# SPDX-License-Identifier: Apache-2.0
"""Small configurations of model families whose layers are not all attention with keys of its own."""

from __future__ import annotations

STATE, FULL, SLIDING, CONV, HYBRID = 'linear_attention', 'full_attention', 'sliding_attention', 'conv', 'hybrid'
WINDOW = 24
_SHARING = dict(sliding_window=WINDOW, head_dim=32, num_kv_shared_layers=2, layer_types=[SLIDING, FULL] * 3,
                vocab_size_per_layer_input=89, hidden_size_per_layer_input=8)
_DELTA = dict(head_dim=32, linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=16,
              linear_num_key_heads=2, linear_num_value_heads=4)
_EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
_MAMBA = dict(mamba_n_heads=4, mamba_d_head=32, mamba_expand=1, mamba_d_state=16, mamba_n_groups=1, mamba_chunk_size=16)

# A name: model type, layers, what the configuration adds.
SHARING = {  # the last layers read the keys and values of earlier ones
    'gemma3n': ('gemma3n_text', 6, dict(_SHARING, intermediate_size=[192] * 6, activation_sparsity_pattern=[0.0] * 6,
                                        laurel_rank=8)),
    'gemma4': ('gemma4_text', 6, dict(_SHARING, global_head_dim=64)),  # heads of 32 and of 64 channels
    'gemma4-unified': ('gemma4_unified_text', 6, dict(_SHARING, global_head_dim=64)),
    # Heads as those of Gemma 4's own sizes.
    'gemma4-512': ('gemma4_text', 4, dict(_SHARING, num_attention_heads=8, num_key_value_heads=1, head_dim=256,
                                          global_head_dim=512, layer_types=[SLIDING, FULL] * 2)),
}
CONVOLUTIONS = {
    'lfm2': ('lfm2', 5, dict(layer_types=[CONV, FULL, CONV, FULL, CONV], block_auto_adjust_ff_dim=False)),
    'lfm2-moe': ('lfm2_moe', 4, dict(_EXPERTS, layer_types=[CONV, FULL] * 2, num_dense_layers=1)),
    'lfm3': ('lfm3', 5, dict(layer_types=[CONV, FULL, SLIDING, FULL, CONV], sliding_window=WINDOW, head_dim=32)),
}
RECURRENT = {
    'qwen3-next': ('qwen3_next', 4, dict(_DELTA, **_EXPERTS, shared_expert_intermediate_size=64)),
    'qwen3.5': ('qwen3_5_text', 5, dict(_DELTA, layer_types=[STATE, STATE, FULL, FULL, STATE])),
    'qwen3.5-moe': ('qwen3_5_moe_text', 4, dict(_DELTA, **_EXPERTS, shared_expert_intermediate_size=64)),
    'granite4': ('granitemoehybrid', 4, dict(_MAMBA, layer_types=[STATE, FULL] * 2, num_local_experts=2,
                                             num_experts_per_tok=1, shared_intermediate_size=64,
                                             attention_multiplier=0.1)),
    'granite4-state-last': ('granitemoehybrid', 3, dict(_MAMBA, layer_types=[STATE, FULL, STATE], num_local_experts=0,
                                                        shared_intermediate_size=64, attention_multiplier=0.1)),
    'falcon-h1': ('falcon_h1', 3, dict(_MAMBA, mamba_d_ssm=128, head_dim=32)),
    'nemotron-h': ('nemotron_h', 6, dict(layers_block_type=[STATE, 'moe', FULL, 'mlp', STATE, FULL], head_dim=32,
                                         mamba_num_heads=4, mamba_head_dim=32, ssm_state_size=16, n_groups=1,
                                         chunk_size=16, n_routed_experts=4, num_experts_per_tok=2,
                                         moe_intermediate_size=64, moe_shared_expert_intermediate_size=64)),
    'jamba': ('jamba', 5, dict(attn_layer_period=3, attn_layer_offset=1, mamba_d_state=8, num_experts=2,
                               num_experts_per_tok=1)),
    'bamba': ('bamba', 4, dict(_MAMBA, attn_layer_indices=[1, 3])),
    'zamba': ('zamba', 4, dict(layers_block_type=[STATE, HYBRID] * 2, mamba_d_state=8, n_mamba_heads=2,
                               num_key_value_heads=4)),
    'zamba2': ('zamba2', 4, dict(layers_block_type=[STATE, HYBRID] * 2, mamba_d_state=16, mamba_expand=1,
                                 n_mamba_heads=4, mamba_ngroups=1, chunk_size=16, num_key_value_heads=4,
                                 num_mem_blocks=1, use_mem_rope=True)),
    'zaya': ('zaya', 3, dict(head_dim=32, num_experts=2, moe_intermediate_size=64, router_hidden_size=16,
                             layer_types=[HYBRID, 'hybrid_sliding', HYBRID], sliding_window=WINDOW)),
    'olmo-hybrid': ('olmo_hybrid', 4, dict(layer_types=[STATE] * 3 + [FULL], linear_key_head_dim=16,
                                           linear_value_head_dim=32, linear_num_key_heads=4,
                                           linear_num_value_heads=4)),
}
# Weights of attention and of states, which decide little of the logits at the size that transformers begins with.
MIXING = ('v_proj.weight', 'v_proj_current.weight', 'v_proj_delayed.weight', 'o_proj.weight', 'in_proj.weight',
          'in_proj_qkv.weight', 'in_proj_qkvz.weight', 'out_proj.weight')
RESTARTING = ('jamba', 'zamba')  # these begin their states anew in each pass of several tokens
STATEFUL = {**CONVOLUTIONS, **RECURRENT}
FAMILIES = {**SHARING, **STATEFUL}
