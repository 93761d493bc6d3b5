// SPDX-License-Identifier: Apache-2.0
#include "lowkey-graph.h"

#include <ggml.h>
#include <llama-cparams.h>
#include <llama-graph.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lowkey-cuda.h"
#include "lowkey-hooks.h"
#include "lowkey-kv.h"
#include "lowkey-vulkan.h"

namespace lowkey {
namespace {

// What a node's parameters have after those of ggml's custom operations.
struct Parameters {
    Node *node;
    uint64_t shape;  // a CUDA graph holds steps of one shape, so ggml must see another one
};
constexpr size_t kParametersOffset = 32;
static_assert(kParametersOffset + sizeof(Parameters) <= GGML_MAX_OP_PARAMS);

void set_parameters(ggml_tensor *node, const Parameters &parameters) {
    std::memcpy(reinterpret_cast<char *>(node->op_params) + kParametersOffset, &parameters,
                sizeof parameters);
}

// The user data of a custom operation; nullptr = it is not one of lowkey.
Node *node_of(const ggml_tensor *node) {
    Parameters parameters;
    std::memcpy(&parameters, reinterpret_cast<const char *>(node->op_params) + kParametersOffset,
                sizeof parameters);
    return parameters.node;
}

// FNV-1a.
uint64_t hash_of(const std::vector<uint32_t> &shape) {
    uint64_t hash = 14695981039346656037u;
    for (const uint32_t n : shape)
        hash = (hash ^ n) * 1099511628211u;
    return hash;
}

// llama.cpp runs a graph again for other batches. lowkey's nodes are right for one shape of steps.
class ShapeInput final : public llm_graph_input_i {
  public:
    explicit ShapeInput(std::vector<uint32_t> shape) : shape_(std::move(shape)) {}
    void set_input(const llama_ubatch *) override {}
    bool can_reuse(const llm_graph_params &params) override {
        const auto *context = dynamic_cast<const KvContext *>(params.mctx);
        return context != nullptr && context->cache()->store().shape() == shape_;
    }

  private:
    const std::vector<uint32_t> shape_;
};

// Where a tensor is: at its own address, or on Vulkan in a buffer.
void locate(lk_tensor &view, const ggml_tensor *tensor, lk_memory_kind memory,
            const lowkey_vulkan_bytes *bytes) {
    view.memory = memory;
    if (memory != LK_MEMORY_VULKAN) {
        view.data = tensor->data;
        return;
    }
    view.buffer = bytes->buffer;
    view.offset_bytes = bytes->offset_bytes;
}

// A ggml tensor [head_dim, heads, tokens] with any strides between heads and tokens.
lk_tensor input_of(const ggml_tensor *tensor) {
    const int64_t element_bytes = static_cast<int64_t>(ggml_type_size(tensor->type));
    lk_tensor view;
    check(lk_tensor_init(&view, sizeof view));
    view.dtype = tensor->type == GGML_TYPE_F16 ? LK_F16 : LK_F32;
    view.head_stride = static_cast<int64_t>(tensor->nb[1]) / element_bytes;
    view.token_stride = static_cast<int64_t>(tensor->nb[2]) / element_bytes;
    return view;
}

// A ggml tensor [head_dim x heads, tokens].
lk_tensor output_of(const ggml_tensor *tensor, int64_t head_dim) {
    lk_tensor view;
    check(lk_tensor_init(&view, sizeof view));
    view.dtype = LK_F32;
    view.head_stride = head_dim;
    view.token_stride = static_cast<int64_t>(tensor->nb[1]) / static_cast<int64_t>(sizeof(float));
    return view;
}

// False if the step has a fault. queue: as in Store::attend(). bytes: on Vulkan those of the
// queries, keys, values and the output.
bool attend(const Node &node, ggml_tensor *out, lk_memory_kind memory, void *queue,
            const lowkey_vulkan_bytes *bytes) {
    Store &store = node.cache->store();
    // A host may turn causal attention off for single batches, such as images.
    if (!node.is_causal)
        store.fail("attention that is not causal was requested");
    try {
        const ggml_tensor *tensors[] = {out->src[0], out->src[1], out->src[2], out};
        lk_tensor views[] = {input_of(tensors[0]), input_of(tensors[1]), input_of(tensors[2]),
                             output_of(out, out->src[0]->ne[0])};
        for (size_t i = 0; i < LOWKEY_VULKAN_TENSORS; ++i)
            locate(views[i], tensors[i], memory, bytes != nullptr ? &bytes[i] : nullptr);
        store.attend(node.layer, views[0], views[1], views[2], views[3], queue);
    } catch (const std::exception &error) {
        store.fail(error.what());
    }
    return store.fault().empty();
}

// ggml calls this on each of its threads, and has a barrier after each node. A batch with a fault
// fails after its graph, which goes on with numbers.
void compute(ggml_tensor *out, int thread, int n_threads, void *user) {
    const Node &node = *static_cast<const Node *>(user);
    node.cache->store().threads().run(static_cast<uint32_t>(thread),
                                      static_cast<uint32_t>(n_threads), [&] {
                                          if (!attend(node, out, LK_MEMORY_HOST, nullptr, nullptr))
                                              std::memset(out->data, 0, ggml_nbytes(out));
                                      });
}

bool is_on(const ggml_tensor *node, ggml_backend_device *device) {
    const Node *ours = node_of(node);
    return ours != nullptr && ours->cache->device().of_ggml == device;
}

bool compute_on_cuda(ggml_tensor *node, void *stream) {
    return attend(*node_of(node), node, LK_MEMORY_CUDA, stream, nullptr);
}

bool record_on_vulkan(ggml_tensor *node, void *commands, const lowkey_vulkan_bytes *tensors,
                      uint64_t n_destroyed) {
    KvCache &cache = *node_of(node)->cache;
    try {
        cache.use_buffers(tensors, n_destroyed);
    } catch (const std::exception &error) {
        cache.store().fail(error.what());
    }
    return attend(*node_of(node), node, LK_MEMORY_VULKAN, commands, tensors);
}

bool may_capture(const ggml_tensor *node) { return node_of(node)->cache->store().may_capture(); }

void check_input(const ggml_tensor *tensor, const char *name) {
    const bool is_known = tensor->type == GGML_TYPE_F32 || tensor->type == GGML_TYPE_F16;
    if (!is_known || tensor->nb[0] != ggml_type_size(tensor->type) || tensor->ne[3] != 1)
        throw std::runtime_error(std::string("lowkey cannot run this model: its ") + name +
                                 " have the type " + ggml_type_name(tensor->type) +
                                 " or strides that lowkey does not read");
}

}  // namespace

void set_node_calls(lowkey_cuda &calls) {
    calls.is_on = is_on;
    calls.compute = compute_on_cuda;
    calls.may_capture = may_capture;
}

void set_node_calls(lowkey_vulkan &calls) {
    calls.is_on = is_on;
    calls.record = record_on_vulkan;
}

}  // namespace lowkey

bool lowkey_owns(const llama_memory_context_i *mctx) {
    return dynamic_cast<const lowkey::KvContext *>(mctx) != nullptr;
}

ggml_tensor *lowkey_attention(const llm_graph_context &graph, ggml_tensor *q, ggml_tensor *k,
                              ggml_tensor *v, const ggml_tensor *kq_bias, const ggml_tensor *sinks,
                              const ggml_tensor *v_mla, float scale, int il) {
    const auto *context = dynamic_cast<const lowkey::KvContext *>(graph.mctx);
    if (context == nullptr)
        return nullptr;
    if (kq_bias != nullptr || v_mla != nullptr)
        throw std::runtime_error("lowkey cannot run this model: layer " + std::to_string(il) +
                                 " has a K-Q bias or multi-head latent attention");
    lowkey::check_input(q, "queries");
    lowkey::check_input(k, "keys");
    lowkey::check_input(v, "values");
    lowkey::KvCache &cache = *context->cache();
    lowkey::Node *node = cache.describe(il, graph.cparams.causal_attn, sinks, scale);
    ggml_tensor *inputs[] = {q, k, v};
    ggml_tensor *out = ggml_custom_4d(graph.ctx0, GGML_TYPE_F32, q->ne[0] * q->ne[1], q->ne[2], 1,
                                      1, inputs, 3, lowkey::compute, GGML_N_TASKS_MAX, node);
    const std::vector<uint32_t> shape = cache.store().shape();
    lowkey::set_parameters(out, {node, lowkey::hash_of(shape)});
    if (node->layer == 0)
        graph.res->add_input(std::make_unique<lowkey::ShapeInput>(shape));
    lowkey::pin(graph.sched, out, cache.device());
    ggml_build_forward_expand(graph.gf, out);
    return out;
}

bool lowkey_step_done(const llama_memory_context_i *mctx) {
    const auto *context = dynamic_cast<const lowkey::KvContext *>(mctx);
    return context == nullptr || context->cache()->finish();
}
