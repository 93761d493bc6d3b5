// The shape of a decoder of the families of kArchitectures, and its arithmetic next to attention.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_CONFIG_H
#define LLAMA_CONFIG_H

#include <cstdint>
#include <string>
#include <vector>

#include "safetensors.h"

namespace llama {

using Token = std::uint32_t;
using Tokens = std::vector<Token>;

enum class Activation {
    kSilu,
    kGelu,         // by tanh
    kClampedSilu,  // of gpt-oss: the gate below a limit, the other factor within limits and plus 1
};

struct Rotation {
    std::vector<double> frequencies;  // [head_dim / 2], radians a position
    double amplitude = 1;             // factor of turned queries and of turned keys
};

struct Config {
    std::uint32_t n_vocabulary = 0;
    std::uint32_t width = 0;
    std::uint32_t n_layers = 0;
    std::uint32_t n_query_heads = 0;
    std::uint32_t n_kv_heads = 0;
    std::uint32_t head_dim = 0;
    std::uint32_t hidden = 0;
    std::uint32_t max_tokens = 0;
    double norm_epsilon = 0;
    std::vector<Rotation> rotations;     // of all layers, or of those without and with a window
    std::vector<std::uint32_t> windows;  // [n_layers] sliding windows; 0 = all tokens
    double attention_scale = 0;          // factor of attention's logits; 0 = 1 / sqrt(head_dim)
    double soft_cap = 0;                 // of attention's logits; 0 = off
    double final_soft_cap = 0;           // of the model's logits; 0 = off
    double embedding_scale = 1;
    Activation activation = Activation::kSilu;
    double activation_slope = 0, activation_limit = 0;  // of kClampedSilu
    bool has_query_bias = false;                        // and a bias of keys
    bool has_value_bias = false;
    bool has_output_bias = false;
    bool has_head_norms = false;      // of queries and keys before RoPE
    bool has_branch_norms = false;    // of what attention and MLP add to the stream
    bool has_norms_from_one = false;  // a norm's factor is its weight plus 1
    bool has_learned_sinks = false;
    bool has_expert = false;     // the MLP is stored as gpt-oss's only expert
    bool has_tied_head = false;  // the embeddings are the head's weight
    Tokens prefix;               // what may begin a text: a BOS, or nothing

    std::size_t rotation_index(std::uint32_t layer) const {
        return windows[layer] == 0 ? 0 : rotations.size() - 1;
    }
};

// Of the metadata of a safetensors file: `config` is the text of a config.json, or, as in
// tests/model/prover.safetensors, each number has an entry. The vocabulary is the 256 bytes. where:
// the file's path, for sentences. Throws Error.
Config read_metadata(const SafetensorsFile &file, const std::string &where);

// Of a config.json of transformers. Throws Error, which names the field, for what is not an
// architecture of kArchitectures, for a value out of range, and for a field that requests
// what no Model does. where: the file's path, for sentences.
Config read_config(const std::string &text, const std::string &where);
extern const char *const kArchitectures;  // as a list in words

}  // namespace llama

#endif
