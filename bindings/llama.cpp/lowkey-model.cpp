// SPDX-License-Identifier: Apache-2.0
#include "lowkey-model.h"

#include <llama-arch.h>
#include <llama-cparams.h>
#include <llama-memory.h>
#include <llama-model.h>

#include <cstdio>
#include <stdexcept>

namespace lowkey {
namespace {

// Hybrid models whose recurrent layers have llama.cpp's llama_memory_recurrent, and nothing else.
bool has_known_states(llm_arch arch) {
    switch (arch) {
        case LLM_ARCH_FALCON_H1:
        case LLM_ARCH_GRANITE_HYBRID:
        case LLM_ARCH_JAMBA:
        case LLM_ARCH_LFM2:
        case LLM_ARCH_LFM2MOE:
        case LLM_ARCH_NEMOTRON_H:
        case LLM_ARCH_NEMOTRON_H_MOE:
        case LLM_ARCH_PLAMO2:
        case LLM_ARCH_QWEN3NEXT:
        case LLM_ARCH_QWEN35:
        case LLM_ARCH_QWEN35MOE: return true;
        default: return false;
    }
}

// Of a hybrid model: whether the layer is recurrent and has no attention. Each layer of Falcon-H1
// has both.
bool is_recurrent(const llama_model &model, uint32_t il) {
    return llm_arch_is_hybrid(model.arch) && model.arch != LLM_ARCH_FALCON_H1 &&
           model.hparams.is_recr(il);
}

// A sentence why lowkey cannot run the model, or nullptr.
const char *refusal_of_model(const llama_model &model) {
    const llama_hparams &hparams = model.hparams;
    if (llm_arch_is_recurrent(model.arch))
        return "a recurrent model has no keys and values";
    if (llm_arch_is_hybrid(model.arch) && !has_known_states(model.arch))
        return "what its recurrent layers keep is not supported";
    if (llm_arch_is_hybrid(model.arch) && hparams.swa_type != LLAMA_SWA_TYPE_NONE)
        return "sliding windows next to recurrent layers are not supported";
    if (llama_model_has_encoder(&model) || hparams.n_rel_attn_bkts > 0)
        return "models with an encoder or a K-Q bias are not supported";
    if (!hparams.causal_attn)
        return "the model's attention is not causal";
    if (hparams.swa_type == LLAMA_SWA_TYPE_CHUNKED)
        return "chunked windows are not supported";
    if (hparams.swa_type == LLAMA_SWA_TYPE_SYMMETRIC)
        return "windows that include later tokens are not supported";
    if (hparams.use_alibi || hparams.f_max_alibi_bias > 0)
        return "ALiBi is not supported";
    if (hparams.is_mla())
        return "multi-head latent attention (MLA) is not supported";
    if (hparams.indexer_top_k > 0 || hparams.indexer_head_size > 0 || hparams.dsv4_hc_mult > 0)
        return "sparse attention with an indexer is not supported";
    if (hparams.router_layer >= 0 || hparams.ple_n_heads > 0 || model.arch == LLM_ARCH_GROK)
        return "the model computes attention in a way of its own";
    return nullptr;
}

const char *refusal_of_context(const llama_memory_params &params, const llama_cparams &cparams) {
    if (params.type_k != GGML_TYPE_F16 || params.type_v != GGML_TYPE_F16)
        return "a type of the KV cache and a plan were both requested: the plan states the widths";
    if (params.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT || cparams.ctx_other != nullptr)
        return "contexts of draft heads inside a model are not supported";
    if (!cparams.causal_attn)
        return "attention that is not causal was requested";
    return nullptr;
}

}  // namespace

void check_model(const llama_model &model, const llama_memory_params &params,
                 const llama_cparams &cparams) {
    const char *reason = refusal_of_model(model);
    if (reason == nullptr)
        reason = refusal_of_context(params, cparams);
    if (reason != nullptr)
        throw std::runtime_error(std::string("lowkey cannot run this model (") +
                                 llm_arch_name(model.arch) + "): " + reason);
}

Geometry geometry_of(const llama_model &model) {
    const llama_hparams &hparams = model.hparams;
    Geometry geometry;
    for (uint32_t il = 0; il < hparams.n_layer(); ++il) {
        const uint32_t n_kv_heads =
            hparams.has_kv(il) && !is_recurrent(model, il) ? hparams.n_head_kv(il) : 0;
        if (!hparams.has_kv(il))
            throw std::runtime_error("lowkey cannot run this model: layer " + std::to_string(il) +
                                     " reads keys and values of another layer");
        if (n_kv_heads == 0) {
            geometry.index.push_back(kNoLayer);
            continue;
        }
        if (hparams.n_embd_head_k(il) != hparams.n_embd_head_v(il))
            throw std::runtime_error("lowkey cannot run this model: layer " + std::to_string(il) +
                                     " has keys of " + std::to_string(hparams.n_embd_head_k(il)) +
                                     " channels and values of " +
                                     std::to_string(hparams.n_embd_head_v(il)));
        geometry.index.push_back(static_cast<uint32_t>(geometry.layers.size()));
        geometry.layers.push_back(
            Layer{hparams.n_head(il), n_kv_heads, hparams.n_embd_head_k(il),
                  hparams.attn_soft_cap ? hparams.f_attn_logit_softcapping : 0.0f});
        geometry.layers.back().scale =
            factor_of(hparams.f_attention_scale, hparams.n_embd_head_k(il));
        if (hparams.swa_type == LLAMA_SWA_TYPE_STANDARD && hparams.is_swa(il))
            geometry.layers.back().window_tokens = hparams.n_swa;
    }
    if (geometry.layers.empty())
        throw std::runtime_error("lowkey cannot run this model: it has no attention layer");
    return geometry;
}

std::string fingerprint_of(const llama_model &model, const llama_cparams &cparams) {
    char numbers[160];
    std::snprintf(
        numbers, sizeof numbers, " %llu elements %llu bytes rope %.9g %.9g yarn %.9g %.9g %u",
        static_cast<unsigned long long>(model.n_elements()),
        static_cast<unsigned long long>(model.size()), static_cast<double>(cparams.rope_freq_base),
        static_cast<double>(cparams.rope_freq_scale), static_cast<double>(cparams.yarn_ext_factor),
        static_cast<double>(cparams.yarn_attn_factor), cparams.n_ctx_orig_yarn);
    return std::string("llama.cpp ") + llm_arch_name(model.arch) + numbers;
}

}  // namespace lowkey
