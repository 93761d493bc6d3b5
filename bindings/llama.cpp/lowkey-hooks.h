// What the hooks in llama.cpp's files call. apply.py inserts the calls.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_HOOKS_H
#define LOWKEY_HOOKS_H

struct ggml_tensor;
struct llama_cparams;
struct llama_memory_context_i;
struct llama_memory_i;
struct llama_memory_params;
struct llama_model;
struct llm_graph_context;

// In llama_model::create_memory(): the memory of a context, or nullptr if the process has chosen no
// plan. Throws std::runtime_error with one sentence if lowkey cannot run the model or the context.
llama_memory_i *lowkey_create_memory(const llama_model &model, const llama_memory_params &params,
                                     const llama_cparams &cparams);

// In the graph: whether a batch or a reservation belongs to lowkey's memory.
bool lowkey_owns(const llama_memory_context_i *mctx);

// In llm_graph_context::build_attn_mha(): append and attend of layer il as one node, or nullptr if
// the memory is not lowkey's. q, k and v have llama.cpp's shape [head_dim, heads, tokens]; the
// result is [head_dim x query heads, tokens]. Throws std::runtime_error for attention that lowkey
// does not compute, and while the context is made also if its cache cannot be created.
ggml_tensor *lowkey_attention(const llm_graph_context &graph, ggml_tensor *q, ggml_tensor *k,
                              ggml_tensor *v, const ggml_tensor *kq_bias, const ggml_tensor *sinks,
                              const ggml_tensor *v_mla, float scale, int il);

// After the graph of a batch has run: false, with a sentence in the log, if lowkey's work failed.
// Ends the step.
bool lowkey_step_done(const llama_memory_context_i *mctx);

#endif
