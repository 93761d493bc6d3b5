// A decoder of Llama's family whose attention is someone else's: the host half of a model.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_MODEL_H
#define LLAMA_MODEL_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config.h"
#include "handles.h"
#include "linear.h"
#include "weights.h"
#include "workers.h"

namespace llama {

// Attention of one layer: q [n_tokens][n_query_heads][head_dim] and k, v
// [n_tokens][n_kv_heads][head_dim] after RoPE to out, shaped as q.
using Attention = std::function<void(std::uint32_t layer, std::uint32_t n_tokens, float *q,
                                     float *k, float *v, float *out)>;

class Model {
  public:
    // Throws Error where a tensor is missing or is not as the config states. n_threads 0 =
    // usable_cpus().
    Model(ModelSource source, unsigned n_threads);
    Model(const std::string &path, unsigned n_threads);  // read_model_file()
    unsigned n_threads() const { return workers_.n_threads(); }

    const Config &config() const { return config_; }
    // Its learned sinks are the model's, which must outlive it.
    Geometry geometry() const { return Geometry(config_, sink_logits_.data()); }
    const Weights &weights() const { return weights_; }
    const std::string &config_text() const { return config_text_; }

    // From now on token t is turned as if at position t * scale (positional interpolation).
    void stretch_positions(double scale);

    // Runs tokens at positions first_position, ... and returns the logits
    // [tokens.size() - first_row][n_vocabulary] of the rows from first_row on.
    std::vector<float> forward(const Tokens &tokens, std::size_t first_position,
                               std::size_t first_row, const Attention &attention);
    // After the final norm, [rows of the logits][width] of the last forward(). Valid until the
    // next.
    const float *hidden_states() const { return scratch_.y.data(); }

  private:
    struct Layer {
        std::vector<float> input_norm, mlp_norm;
        std::vector<float> query_norm, key_norm;              // [head_dim] or empty
        std::vector<float> attention_end_norm, mlp_end_norm;  // [width] or empty
        Linear q, k, v, o, gate, up, down;
    };
    // Of a rotation, for the positions so far.
    struct Turns {
        std::vector<float> cos, sin;  // [n_positions][head_dim / 2]
    };
    struct Scratch {
        std::vector<float> x, y, q, k, v, heads, gate, up;
    };

    std::vector<float> read_floats(const std::string &name, std::size_t n) const;
    std::vector<float> read_norm(const std::string &name, std::size_t n) const;
    Linear read_linear(const std::string &name, std::size_t n_out, std::size_t n_in,
                       bool has_bias) const;
    void read_norms(const std::string &name, Layer &layer) const;
    void read_mlp(const std::string &name, Layer &layer) const;
    void read_expert(const std::string &name, Layer &layer) const;
    Layer read_layer(std::uint32_t index) const;
    void read_sinks();
    void extend_turns(std::size_t n_positions);
    void rotate(const Turns &turns, float *x, std::size_t n_tokens, std::size_t n_heads,
                std::size_t first_position) const;
    void normalise(const float *x, const std::vector<float> &weight, float *y, std::size_t n_rows);
    void attend_block(std::uint32_t index, std::size_t n_tokens, std::size_t first_position,
                      const Attention &attention);
    void mlp_block(const Layer &layer, std::size_t n_tokens);
    void activate(std::size_t first, std::size_t last);
    void add_to_stream(const std::vector<float> &end_norm, std::size_t n_tokens);

    Config config_;
    Weights weights_;
    std::string config_text_;
    bool is_unpacked_;
    Workers workers_;
    const Tensor *embeddings_;
    std::vector<Layer> layers_;
    std::vector<float> sink_logits_;  // [n_layers][n_query_heads] or empty
    std::vector<float> final_norm_;
    Linear head_;
    double position_scale_ = 1;
    std::vector<Turns> turns_;  // one for each of the config's rotations
    Scratch scratch_;
};

// Index of the largest of row's n logits.
Token arg_max(const float *row, std::size_t n);

}  // namespace llama

#endif
