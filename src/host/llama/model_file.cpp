// A model from its safetensors file.
//
// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace llama {
namespace {

constexpr double kLargestExtent = 1 << 20;

double number(const SafetensorsFile &file, const std::string &key) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end())
        throw Error("the model's metadata has no " + key);
    try {
        return std::stod(found->second);
    } catch (const std::exception &) {
        throw Error("the model's metadata has the bad " + key + " \"" + found->second + "\"");
    }
}

std::uint32_t extent(const SafetensorsFile &file, const std::string &key) {
    const double value = number(file, key);
    if (!(value >= 1 && value <= kLargestExtent) || value != std::floor(value)) {
        throw Error("the model's metadata has a " + key + " out of range");
    }
    return static_cast<std::uint32_t>(value);
}

std::vector<float> read_floats(const SafetensorsFile &file, const std::string &name,
                               std::initializer_list<std::uint64_t> shape) {
    const Tensor &tensor = file.at(name);
    if (!std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end())) {
        throw Error("tensor \"" + name + "\" does not have the shape that the metadata states");
    }
    return to_floats(tensor);
}

Linear read_linear(const SafetensorsFile &file, const std::string &name, std::size_t n_out,
                   std::size_t n_in, bool has_bias) {
    std::vector<float> bias;
    if (has_bias)
        bias = read_floats(file, name + ".bias", {n_out});
    return Linear(n_out, n_in, read_floats(file, name + ".weight", {n_out, n_in}), std::move(bias));
}

}  // namespace

Model::Model(const std::string &path, unsigned n_threads) : workers_(n_threads) {
    const SafetensorsFile file(path);
    read_config(file);
    embeddings_ =
        read_floats(file, "model.embed_tokens.weight", {config_.n_vocabulary, config_.width});
    for (std::uint32_t i = 0; i < config_.n_layers; ++i)
        layers_.push_back(read_layer(file, i));
    final_norm_ = read_floats(file, "model.norm.weight", {config_.width});
    head_ = read_linear(file, "lm_head", config_.n_vocabulary, config_.width, false);
}

void Model::read_config(const SafetensorsFile &file) {
    config_.n_vocabulary = extent(file, "vocab_size");
    config_.width = extent(file, "hidden_size");
    config_.n_layers = extent(file, "num_hidden_layers");
    config_.n_query_heads = extent(file, "num_attention_heads");
    config_.n_kv_heads = extent(file, "num_key_value_heads");
    config_.head_dim = extent(file, "head_dim");
    config_.hidden = extent(file, "intermediate_size");
    config_.max_tokens = extent(file, "max_position_embeddings");
    config_.norm_epsilon = number(file, "rms_norm_eps");
    config_.rope_theta = number(file, "rope_theta");
    if (config_.n_vocabulary != 256)
        throw Error("the model's vocabulary is not the 256 bytes");
    if (config_.head_dim % 2 != 0)
        throw Error("the model's head_dim is odd");
}

Model::Layer Model::read_layer(const SafetensorsFile &file, std::uint32_t index) const {
    const std::string name = "model.layers." + std::to_string(index) + ".";
    const std::size_t q_width = std::size_t{config_.n_query_heads} * config_.head_dim;
    const std::size_t kv_width = std::size_t{config_.n_kv_heads} * config_.head_dim;
    const std::size_t width = config_.width;
    Layer layer;
    layer.input_norm = read_floats(file, name + "input_layernorm.weight", {width});
    layer.mlp_norm = read_floats(file, name + "post_attention_layernorm.weight", {width});
    layer.q = read_linear(file, name + "self_attn.q_proj", q_width, width, true);
    layer.k = read_linear(file, name + "self_attn.k_proj", kv_width, width, true);
    layer.v = read_linear(file, name + "self_attn.v_proj", kv_width, width, false);
    layer.o = read_linear(file, name + "self_attn.o_proj", width, q_width, false);
    layer.gate = read_linear(file, name + "mlp.gate_proj", config_.hidden, width, false);
    layer.up = read_linear(file, name + "mlp.up_proj", config_.hidden, width, false);
    layer.down = read_linear(file, name + "mlp.down_proj", width, config_.hidden, false);
    return layer;
}

}  // namespace llama
