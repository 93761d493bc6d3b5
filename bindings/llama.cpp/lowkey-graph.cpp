// The node of a layer's attention in ggml's graph.
//
// SPDX-License-Identifier: Apache-2.0
#include <ggml.h>
#include <llama-cparams.h>

#include <cstring>
#include <stdexcept>

#include "lowkey-hooks.h"
#include "lowkey-kv.h"

namespace lowkey {
namespace {

// A ggml tensor [head_dim, heads, tokens] with any strides between heads and tokens.
lk_tensor input_of(const ggml_tensor *tensor) {
    const int64_t element_bytes = static_cast<int64_t>(ggml_type_size(tensor->type));
    lk_tensor view;
    check(lk_tensor_init(&view, sizeof view));
    view.dtype = tensor->type == GGML_TYPE_F16 ? LK_F16 : LK_F32;
    view.memory = LK_MEMORY_HOST;
    view.data = tensor->data;
    view.head_stride = static_cast<int64_t>(tensor->nb[1]) / element_bytes;
    view.token_stride = static_cast<int64_t>(tensor->nb[2]) / element_bytes;
    return view;
}

// A ggml tensor [head_dim x heads, tokens].
lk_tensor output_of(const ggml_tensor *tensor, int64_t head_dim) {
    lk_tensor view;
    check(lk_tensor_init(&view, sizeof view));
    view.dtype = LK_F32;
    view.memory = LK_MEMORY_HOST;
    view.data = tensor->data;
    view.head_stride = head_dim;
    view.token_stride = static_cast<int64_t>(tensor->nb[1]) / static_cast<int64_t>(sizeof(float));
    return view;
}

void attend(const Node &node, ggml_tensor *out) {
    Store &store = node.cache->store();
    // A host may turn causal attention off for single batches, such as images.
    if (!node.is_causal)
        store.fail("attention that is not causal was requested");
    try {
        store.attend(node.layer, input_of(out->src[0]), input_of(out->src[1]),
                     input_of(out->src[2]), output_of(out, out->src[0]->ne[0]));
    } catch (const std::exception &error) {
        store.fail(error.what());
    }
    // The batch fails after its graph, which goes on with numbers.
    if (!store.fault().empty())
        std::memset(out->data, 0, ggml_nbytes(out));
}

// ggml calls this on each of its threads, and has a barrier after each node.
void compute(ggml_tensor *out, int thread, int n_threads, void *user) {
    const Node &node = *static_cast<const Node *>(user);
    node.cache->store().threads().run(static_cast<uint32_t>(thread),
                                      static_cast<uint32_t>(n_threads), [&] { attend(node, out); });
}

void check_input(const ggml_tensor *tensor, const char *name) {
    const bool is_known = tensor->type == GGML_TYPE_F32 || tensor->type == GGML_TYPE_F16;
    if (!is_known || tensor->nb[0] != ggml_type_size(tensor->type) || tensor->ne[3] != 1)
        throw std::runtime_error(std::string("lowkey cannot run this model: its ") + name +
                                 " have the type " + ggml_type_name(tensor->type) +
                                 " or strides that lowkey does not read");
}

}  // namespace
}  // namespace lowkey

bool lowkey_owns(const llama_memory_context_i *mctx) {
    return dynamic_cast<const lowkey::KvContext *>(mctx) != nullptr;
}

ggml_tensor *lowkey_attention(ggml_context *ctx, ggml_cgraph *graph,
                              const llama_memory_context_i *mctx, bool is_causal, ggml_tensor *q,
                              ggml_tensor *k, ggml_tensor *v, const ggml_tensor *kq_bias,
                              const ggml_tensor *sinks, const ggml_tensor *v_mla, float scale,
                              int il) {
    const auto *context = dynamic_cast<const lowkey::KvContext *>(mctx);
    if (context == nullptr)
        return nullptr;
    if (kq_bias != nullptr || v_mla != nullptr)
        throw std::runtime_error("lowkey cannot run this model: layer " + std::to_string(il) +
                                 " has a K-Q bias or multi-head latent attention");
    lowkey::check_input(q, "queries");
    lowkey::check_input(k, "keys");
    lowkey::check_input(v, "values");
    lowkey::Node *node = context->cache()->describe(il, is_causal, sinks, scale);
    ggml_tensor *inputs[] = {q, k, v};
    ggml_tensor *out = ggml_custom_4d(ctx, GGML_TYPE_F32, q->ne[0] * q->ne[1], q->ne[2], 1, 1,
                                      inputs, 3, lowkey::compute, GGML_N_TASKS_MAX, node);
    ggml_build_forward_expand(graph, out);
    return out;
}

bool lowkey_step_done(const llama_memory_context_i *mctx) {
    const auto *context = dynamic_cast<const lowkey::KvContext *>(mctx);
    return context == nullptr || context->cache()->finish();
}
