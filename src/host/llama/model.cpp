// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <algorithm>
#include <cmath>

namespace llama {
namespace {

constexpr std::size_t kRowsPerTask = 64;
constexpr float kGeluFactor = 0.79788456f;  // sqrt(2 / pi)
constexpr float kGeluCube = 0.044715f;

}  // namespace

void Model::stretch_positions(double scale) {
    position_scale_ = scale;
    turns_.assign(config_.rotations.size(), {});
}

void Model::extend_turns(std::size_t n_positions) {
    const std::size_t half = config_.head_dim / 2;
    for (std::size_t r = 0; r < turns_.size(); ++r) {
        const Rotation &rotation = config_.rotations[r];
        Turns &turns = turns_[r];
        for (std::size_t position = turns.cos.size() / half; position < n_positions; ++position) {
            for (std::size_t i = 0; i < half; ++i) {
                const double angle =
                    static_cast<double>(position) * position_scale_ * rotation.frequencies[i];
                turns.cos.push_back(static_cast<float>(rotation.amplitude * std::cos(angle)));
                turns.sin.push_back(static_cast<float>(rotation.amplitude * std::sin(angle)));
            }
        }
    }
}

// Rotates the pairs (i, i + head_dim / 2) of every head.
void Model::rotate(const Turns &turns, float *x, std::size_t n_tokens, std::size_t n_heads,
                   std::size_t first_position) const {
    const std::size_t half = config_.head_dim / 2;
    for (std::size_t t = 0; t < n_tokens; ++t) {
        const float *cosine = turns.cos.data() + (first_position + t) * half;
        const float *sine = turns.sin.data() + (first_position + t) * half;
        for (std::size_t h = 0; h < n_heads; ++h) {
            float *low = x + (t * n_heads + h) * 2 * half;
            float *high = low + half;
            for (std::size_t i = 0; i < half; ++i) {
                const float a = low[i], b = high[i];
                low[i] = a * cosine[i] - b * sine[i];
                high[i] = b * cosine[i] + a * sine[i];
            }
        }
    }
}

// x and y may be the same.
void Model::normalise(const float *x, const std::vector<float> &weight, float *y,
                      std::size_t n_rows) {
    const std::size_t width = weight.size();
    for (std::size_t t = 0; t < n_rows; ++t) {
        const float *in = x + t * width;
        double squares = 0;
        for (std::size_t i = 0; i < width; ++i)
            squares += double{in[i]} * double{in[i]};
        const float scale = static_cast<float>(
            1.0 / std::sqrt(squares / static_cast<double>(width) + config_.norm_epsilon));
        for (std::size_t i = 0; i < width; ++i)
            y[t * width + i] = in[i] * scale * weight[i];
    }
}

void Model::add_to_stream(const std::vector<float> &end_norm, std::size_t n_tokens) {
    if (!end_norm.empty())
        normalise(scratch_.y.data(), end_norm, scratch_.y.data(), n_tokens);
    for (std::size_t i = 0; i < n_tokens * config_.width; ++i)
        scratch_.x[i] += scratch_.y[i];
}

void Model::attend_block(std::uint32_t index, std::size_t n_tokens, std::size_t first_position,
                         const Attention &attention) {
    const Layer &layer = layers_[index];
    Scratch &s = scratch_;
    normalise(s.x.data(), layer.input_norm, s.y.data(), n_tokens);
    layer.q.apply(s.y.data(), n_tokens, s.q.data(), workers_);
    layer.k.apply(s.y.data(), n_tokens, s.k.data(), workers_);
    layer.v.apply(s.y.data(), n_tokens, s.v.data(), workers_);
    if (config_.has_head_norms) {
        normalise(s.q.data(), layer.query_norm, s.q.data(), n_tokens * config_.n_query_heads);
        normalise(s.k.data(), layer.key_norm, s.k.data(), n_tokens * config_.n_kv_heads);
    }
    const Turns &turns = turns_[config_.rotation_index(index)];
    rotate(turns, s.q.data(), n_tokens, config_.n_query_heads, first_position);
    rotate(turns, s.k.data(), n_tokens, config_.n_kv_heads, first_position);
    attention(index, static_cast<std::uint32_t>(n_tokens), s.q.data(), s.k.data(), s.v.data(),
              s.heads.data());
    layer.o.apply(s.heads.data(), n_tokens, s.y.data(), workers_);
    add_to_stream(layer.attention_end_norm, n_tokens);
}

// Of the elements [first, last) of gate, with those of up.
void Model::activate(std::size_t first, std::size_t last) {
    const auto each = [&](const auto &product) {
        for (std::size_t i = first; i < last; ++i)
            scratch_.gate[i] = product(scratch_.gate[i], scratch_.up[i]);
    };
    const float slope = static_cast<float>(config_.activation_slope);
    const float limit = static_cast<float>(config_.activation_limit);
    switch (config_.activation) {
        case Activation::kSilu:
            each([](float gate, float up) { return gate / (1.0f + std::exp(-gate)) * up; });
            break;
        case Activation::kGelu:
            each([](float gate, float up) {
                const float inner = kGeluFactor * (gate + kGeluCube * gate * gate * gate);
                return 0.5f * gate * (1.0f + std::tanh(inner)) * up;
            });
            break;
        case Activation::kClampedSilu:
            each([slope, limit](float gate, float up) {
                const float low = std::min(gate, limit);
                return low / (1.0f + std::exp(-slope * low)) *
                       (std::clamp(up, -limit, limit) + 1.0f);
            });
            break;
    }
}

void Model::mlp_block(const Layer &layer, std::size_t n_tokens) {
    Scratch &s = scratch_;
    normalise(s.x.data(), layer.mlp_norm, s.y.data(), n_tokens);
    layer.gate.apply(s.y.data(), n_tokens, s.gate.data(), workers_);
    layer.up.apply(s.y.data(), n_tokens, s.up.data(), workers_);
    const std::size_t n_tasks = (n_tokens + kRowsPerTask - 1) / kRowsPerTask;
    workers_.each(n_tasks, [&](std::size_t task) {
        const std::size_t first = task * kRowsPerTask * config_.hidden;
        const std::size_t last =
            std::min(first + kRowsPerTask * config_.hidden, n_tokens * config_.hidden);
        activate(first, last);
    });
    layer.down.apply(s.gate.data(), n_tokens, s.y.data(), workers_);
    add_to_stream(layer.mlp_end_norm, n_tokens);
}

std::vector<float> Model::forward(const Tokens &tokens, std::size_t first_position,
                                  std::size_t first_row, const Attention &attention) {
    const std::size_t n = tokens.size();
    const std::size_t width = config_.width;
    if (n == 0 || first_row > n)
        throw Error("a step needs at least one token");
    for (const Token token : tokens)
        if (token >= config_.n_vocabulary)
            throw Error("token " + std::to_string(token) + " is beyond the vocabulary of " +
                        std::to_string(config_.n_vocabulary));
    extend_turns(first_position + n);
    const auto grow = [](std::vector<float> &v, std::size_t size) {
        if (v.size() < size)
            v.resize(size);
    };
    Scratch &s = scratch_;
    grow(s.x, n * width);
    grow(s.y, n * width);
    grow(s.q, n * layers_[0].q.n_out());
    grow(s.heads, n * layers_[0].q.n_out());
    grow(s.k, n * layers_[0].k.n_out());
    grow(s.v, n * layers_[0].k.n_out());
    grow(s.gate, n * config_.hidden);
    grow(s.up, n * config_.hidden);
    for (std::size_t t = 0; t < n; ++t)
        to_floats(*embeddings_, std::uint64_t{tokens[t]} * width, width, s.x.data() + t * width);
    const float embedding_scale = static_cast<float>(config_.embedding_scale);
    for (std::size_t i = 0; i < n * width; ++i)
        s.x[i] *= embedding_scale;
    for (std::uint32_t l = 0; l < config_.n_layers; ++l) {
        attend_block(l, n, first_position, attention);
        mlp_block(layers_[l], n);
    }
    const std::size_t n_rows = n - first_row;
    std::vector<float> logits(n_rows * config_.n_vocabulary);
    normalise(s.x.data() + first_row * width, final_norm_, s.y.data(), n_rows);
    head_.apply(s.y.data(), n_rows, logits.data(), workers_);
    const float cap = static_cast<float>(config_.final_soft_cap);
    if (cap != 0)
        for (float &logit : logits)
            logit = cap * std::tanh(logit / cap);
    return logits;
}

Token arg_max(const float *row, std::size_t n) {
    return static_cast<Token>(std::max_element(row, row + n) - row);
}

}  // namespace llama
