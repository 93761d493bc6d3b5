// A model's layers, from the tensors of its files.
//
// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <utility>

namespace llama {

Model::Model(ModelSource source, unsigned n_threads)
    : config_(std::move(source.config)),
      weights_(std::move(source.weights)),
      config_text_(std::move(source.config_text)),
      is_unpacked_(source.is_unpacked),
      workers_(n_threads) {
    const Config &c = config_;
    embeddings_ = &weights_.at("model.embed_tokens.weight", {c.n_vocabulary, c.width});
    for (std::uint32_t i = 0; i < c.n_layers; ++i)
        layers_.push_back(read_layer(i));
    final_norm_ = read_floats("model.norm.weight", c.width);
    head_ = c.has_tied_head ? Linear(*embeddings_, {}, is_unpacked_)
                            : read_linear("lm_head", c.n_vocabulary, c.width, false);
}

Model::Model(const std::string &path, unsigned n_threads)
    : Model(read_model_file(path), n_threads) {}

std::vector<float> Model::read_floats(const std::string &name, std::size_t n) const {
    return to_floats(weights_.at(name, {n}));
}

Linear Model::read_linear(const std::string &name, std::size_t n_out, std::size_t n_in,
                          bool has_bias) const {
    std::vector<float> bias;
    if (has_bias)
        bias = read_floats(name + ".bias", n_out);
    return Linear(weights_.at(name + ".weight", {n_out, n_in}), std::move(bias), is_unpacked_);
}

Model::Layer Model::read_layer(std::uint32_t index) const {
    const Config &c = config_;
    const std::string name = "model.layers." + std::to_string(index) + ".";
    const std::size_t q_width = std::size_t{c.n_query_heads} * c.head_dim;
    const std::size_t kv_width = std::size_t{c.n_kv_heads} * c.head_dim;
    const std::size_t width = c.width;
    Layer layer;
    layer.input_norm = read_floats(name + "input_layernorm.weight", width);
    layer.mlp_norm = read_floats(name + "post_attention_layernorm.weight", width);
    if (c.has_head_norms) {
        layer.query_norm = read_floats(name + "self_attn.q_norm.weight", c.head_dim);
        layer.key_norm = read_floats(name + "self_attn.k_norm.weight", c.head_dim);
    }
    layer.q = read_linear(name + "self_attn.q_proj", q_width, width, c.has_query_bias);
    layer.k = read_linear(name + "self_attn.k_proj", kv_width, width, c.has_query_bias);
    layer.v = read_linear(name + "self_attn.v_proj", kv_width, width, c.has_value_bias);
    layer.o = read_linear(name + "self_attn.o_proj", width, q_width, c.has_output_bias);
    layer.gate = read_linear(name + "mlp.gate_proj", c.hidden, width, false);
    layer.up = read_linear(name + "mlp.up_proj", c.hidden, width, false);
    layer.down = read_linear(name + "mlp.down_proj", width, c.hidden, false);
    return layer;
}

}  // namespace llama
