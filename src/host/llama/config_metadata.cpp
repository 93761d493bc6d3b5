// The config of a model in one file, from the metadata of its safetensors file.
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "config.h"
#include "rope.h"

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

Config read_numbers(const SafetensorsFile &file) {
    Config config;
    config.n_vocabulary = extent(file, "vocab_size");
    config.width = extent(file, "hidden_size");
    config.n_layers = extent(file, "num_hidden_layers");
    config.n_query_heads = extent(file, "num_attention_heads");
    config.n_kv_heads = extent(file, "num_key_value_heads");
    config.head_dim = extent(file, "head_dim");
    config.hidden = extent(file, "intermediate_size");
    config.max_tokens = extent(file, "max_position_embeddings");
    config.norm_epsilon = number(file, "rms_norm_eps");
    Rope rope;
    rope.theta = number(file, "rope_theta");
    rope.head_dim = config.head_dim;
    config.rotations = {rope.rotation()};
    config.windows.assign(config.n_layers, 0);
    config.has_query_bias = true;
    config.prefix = {0};
    if (config.head_dim % 2 != 0)
        throw Error("the model's head_dim is odd");
    return config;
}

}  // namespace

Config read_metadata(const SafetensorsFile &file, const std::string &where) {
    const auto text = file.metadata().find("config");
    Config config =
        text == file.metadata().end() ? read_numbers(file) : read_config(text->second, where);
    if (config.n_vocabulary != 256)
        throw Error("the model's vocabulary is not the 256 bytes");
    return config;
}

}  // namespace llama
