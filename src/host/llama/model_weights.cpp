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
    if (c.has_learned_sinks)
        read_sinks();
    final_norm_ = read_norm("model.norm", c.width);
    head_ = c.has_tied_head ? Linear(*embeddings_, {}, is_unpacked_)
                            : read_linear("lm_head", c.n_vocabulary, c.width, false);
    stretch_positions(1);
}

Model::Model(const std::string &path, unsigned n_threads)
    : Model(read_model_file(path), n_threads) {}

std::vector<float> Model::read_floats(const std::string &name, std::size_t n) const {
    return to_floats(weights_.at(name, {n}));
}

// The factors of a norm.
std::vector<float> Model::read_norm(const std::string &name, std::size_t n) const {
    std::vector<float> factors = read_floats(name + ".weight", n);
    if (config_.has_norms_from_one)
        for (float &factor : factors)
            factor += 1;
    return factors;
}

Linear Model::read_linear(const std::string &name, std::size_t n_out, std::size_t n_in,
                          bool has_bias) const {
    std::vector<float> bias;
    if (has_bias)
        bias = read_floats(name + ".bias", n_out);
    return Linear(weights_.at(name + ".weight", {n_out, n_in}), std::move(bias), is_unpacked_);
}

void Model::read_norms(const std::string &name, Layer &layer) const {
    const Config &c = config_;
    layer.input_norm = read_norm(name + "input_layernorm", c.width);
    if (c.has_branch_norms) {
        layer.attention_end_norm = read_norm(name + "post_attention_layernorm", c.width);
        layer.mlp_norm = read_norm(name + "pre_feedforward_layernorm", c.width);
        layer.mlp_end_norm = read_norm(name + "post_feedforward_layernorm", c.width);
    } else {
        layer.mlp_norm = read_norm(name + "post_attention_layernorm", c.width);
    }
    if (c.has_head_norms) {
        layer.query_norm = read_norm(name + "self_attn.q_norm", c.head_dim);
        layer.key_norm = read_norm(name + "self_attn.k_norm", c.head_dim);
    }
}

void Model::read_mlp(const std::string &name, Layer &layer) const {
    const Config &c = config_;
    layer.gate = read_linear(name + "gate_proj", c.hidden, c.width, false);
    layer.up = read_linear(name + "up_proj", c.hidden, c.width, false);
    layer.down = read_linear(name + "down_proj", c.width, c.hidden, false);
}

// gpt-oss's rows are inputs, and gate and up take turns in the columns. The only expert gets the
// share 1, whatever the router says.
void Model::read_expert(const std::string &name, Layer &layer) const {
    const Config &c = config_;
    const std::size_t hidden = c.hidden, width = c.width;
    const auto read = [&](const std::string &own, std::size_t n_in, std::size_t n_columns,
                          std::size_t first, std::size_t step) {
        const std::size_t n_out = n_columns / step;
        const std::vector<float> rows = to_floats(weights_.at(own, {1, n_in, n_columns}));
        const std::vector<float> biases = to_floats(weights_.at(own + "_bias", {1, n_columns}));
        std::vector<float> weight(n_out * n_in), bias(n_out);
        for (std::size_t o = 0; o < n_out; ++o) {
            bias[o] = biases[first + o * step];
            for (std::size_t i = 0; i < n_in; ++i)
                weight[o * n_in + i] = rows[i * n_columns + first + o * step];
        }
        Tensor view;
        view.dtype = "F32";
        view.shape = {n_out, n_in};
        view.data = reinterpret_cast<const std::uint8_t *>(weight.data());
        return Linear(view, std::move(bias), true);
    };
    layer.gate = read(name + "gate_up_proj", width, 2 * hidden, 0, 2);
    layer.up = read(name + "gate_up_proj", width, 2 * hidden, 1, 2);
    layer.down = read(name + "down_proj", hidden, width, 0, 1);
}

void Model::read_sinks() {
    for (std::uint32_t i = 0; i < config_.n_layers; ++i) {
        const std::vector<float> own = read_floats(
            "model.layers." + std::to_string(i) + ".self_attn.sinks", config_.n_query_heads);
        sink_logits_.insert(sink_logits_.end(), own.begin(), own.end());
    }
}

Model::Layer Model::read_layer(std::uint32_t index) const {
    const Config &c = config_;
    const std::string name = "model.layers." + std::to_string(index) + ".";
    const std::size_t q_width = std::size_t{c.n_query_heads} * c.head_dim;
    const std::size_t kv_width = std::size_t{c.n_kv_heads} * c.head_dim;
    const std::size_t width = c.width;
    Layer layer;
    read_norms(name, layer);
    layer.q = read_linear(name + "self_attn.q_proj", q_width, width, c.has_query_bias);
    layer.k = read_linear(name + "self_attn.k_proj", kv_width, width, c.has_query_bias);
    layer.v = read_linear(name + "self_attn.v_proj", kv_width, width, c.has_value_bias);
    layer.o = read_linear(name + "self_attn.o_proj", width, q_width, c.has_output_bias);
    if (c.has_expert)
        read_expert(name + "mlp.experts.", layer);
    else
        read_mlp(name + "mlp.", layer);
    return layer;
}

}  // namespace llama
