// A Qwen2-form decoder whose attention is someone else's: the host half of a model.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_MODEL_H
#define LLAMA_MODEL_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "linear.h"
#include "safetensors.h"
#include "workers.h"

namespace llama {

using Token = std::uint8_t;  // the vocabulary is bytes
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
    double rope_theta = 0;
};

// Attention of one layer: q [n_tokens][n_query_heads][head_dim] and k, v
// [n_tokens][n_kv_heads][head_dim] after RoPE to out, shaped as q.
using Attention = std::function<void(std::uint32_t layer, std::uint32_t n_tokens, float *q,
                                     float *k, float *v, float *out)>;

class Model {
  public:
    // Throws Error. n_threads 0 = usable_cpus().
    Model(const std::string &path, unsigned n_threads);
    unsigned n_threads() const { return workers_.n_threads(); }

    const Config &config() const { return config_; }

    // From now on token t is turned as if at position t * scale (positional interpolation).
    void stretch_positions(double scale);

    // Runs tokens at positions first_position, ... and returns the logits
    // [tokens.size() - first_row][n_vocabulary] of the rows from first_row on.
    std::vector<float> forward(const Tokens &tokens, std::size_t first_position,
                               std::size_t first_row, const Attention &attention);

  private:
    struct Layer {
        std::vector<float> input_norm, mlp_norm;
        Linear q, k, v, o, gate, up, down;
    };
    struct Scratch {
        std::vector<float> x, y, q, k, v, heads, gate, up;
    };

    void read_config(const SafetensorsFile &file);
    Layer read_layer(const SafetensorsFile &file, std::uint32_t index) const;
    void extend_rope(std::size_t n_positions);
    void rotate(float *x, std::size_t n_tokens, std::size_t n_heads, std::size_t first_position);
    void normalise(const float *x, const std::vector<float> &weight, float *y,
                   std::size_t n_tokens);
    void attend_block(std::uint32_t index, std::size_t n_tokens, std::size_t first_position,
                      const Attention &attention);
    void mlp_block(const Layer &layer, std::size_t n_tokens);
    void add_to_stream(std::size_t n_tokens);

    Config config_;
    Workers workers_;
    std::vector<float> embeddings_;
    std::vector<Layer> layers_;
    std::vector<float> final_norm_;
    Linear head_;
    double position_scale_ = 1;
    std::vector<float> cos_, sin_;  // [n_positions][head_dim / 2]
    Scratch scratch_;
};

// Index of the largest of row's n logits.
Token arg_max(const float *row, std::size_t n);

}  // namespace llama

#endif
