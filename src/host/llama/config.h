// The shape of a decoder of Llama's family, and how it turns positions.
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
    std::vector<double> rope_frequencies;  // [head_dim / 2], radians a position
    double rope_amplitude = 1;             // factor of turned queries and of turned keys
    std::vector<std::uint32_t> windows;    // [n_layers] sliding windows; 0 = all tokens
    bool has_query_bias = false;           // and a bias of keys
    bool has_value_bias = false;
    bool has_output_bias = false;
    bool has_head_norms = false;  // of queries and keys before RoPE
    bool has_tied_head = false;   // the embeddings are the head's weight
    Tokens prefix;                // what may begin a text: a BOS, or nothing
};

// Of a safetensors file of the form of tests/model/prover.safetensors, whose vocabulary is the 256
// bytes. Throws Error.
Config read_metadata(const SafetensorsFile &file);

// Of a config.json of transformers. Throws Error, which names the field, for what is not an
// architecture of kArchitectures, for a value out of range, and for a field that requests
// what no Model does. where: the file's path, for sentences.
Config read_config(const std::string &text, const std::string &where);
extern const char *const kArchitectures;  // as a list in words

}  // namespace llama

#endif
