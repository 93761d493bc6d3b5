// A cache fed with seeded random keys and values, for checks and measurements.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_SYNTHETIC_H
#define CLI_SYNTHETIC_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "llama/handles.h"
#include "llama/tasks.h"
#include "llama/tensor_space.h"

namespace cli {

struct Shape {
    std::uint32_t n_query_heads;
    std::uint32_t n_kv_heads;
    std::uint32_t head_dim;
    std::vector<float> sink_logits = {};  // [n_query_heads] or empty
    std::uint32_t value_dim = 0;          // of values and outputs; 0 = head_dim
    bool is_latent = false;               // values are channels of the keys

    std::uint32_t output_dim() const { return value_dim == 0 ? head_dim : value_dim; }
    std::uint32_t stored_value_dim() const { return is_latent ? 0 : output_dim(); }
    // Of layers that are alike; without sinks.
    llama::Geometry geometry(std::uint32_t n_layers = 1) const;
};

// Queries, keys and values of one step.
struct StepData {
    StepData(const Shape &shape, std::uint32_t n_tokens);  // zeros
    StepData(const Shape &shape, std::uint32_t n_tokens, llama::Random &random);
    std::uint32_t n_tokens;
    std::vector<float> q, k, v;
};

struct StepResult {
    std::vector<float> out;  // [n_tokens][n_query_heads][output_dim()]
    std::vector<float> lse;  // [n_tokens][n_query_heads]
};

// What a cache is to hold.
struct CacheLimits {
    std::uint64_t max_tokens;       // of a sequence
    std::uint32_t max_step_tokens;  // of a step over all sequences
    std::uint32_t n_sequences = 1;
    std::uint64_t slab_bytes = std::uint64_t{4} << 20;
};

// A cache of one layer. Context and space are of one device and outlive it.
class SyntheticCache {
  public:
    SyntheticCache(lk_context *context, llama::TensorSpace &space, const lk_plan *plan,
                   const Shape &shape, const CacheLimits &limits);

    std::uint32_t n_sequences() const { return static_cast<std::uint32_t>(ids_.size()); }
    void begin(std::uint32_t n_tokens);                              // of each sequence
    void begin_one(std::uint32_t sequence, std::uint32_t n_tokens);  // of this one alone
    void append(StepData &data);
    void append(const lk_tensor &k, const lk_tensor &v);
    void attend(StepData &data, StepResult &result);  // result is sized by the call
    void attend(const lk_tensor &q, const lk_tensor &out);
    void commit();
    void discard();
    void shrink(std::uint32_t bits);
    void set_budget(std::uint64_t n_bytes);
    lk_cache_stats stats() const;
    lk_cache *get() const { return cache_.get(); }
    lk_sequence id(std::uint32_t sequence) const { return ids_[sequence]; }

  private:
    Shape shape_;
    llama::TensorSpace &space_;
    llama::CacheHandle cache_;
    std::vector<lk_sequence> ids_;
};

// Values of about unit variance, with a few channels of keys larger than the others, as in models.
void fill_random(std::vector<float> &values, std::uint32_t head_dim, bool has_large_channels,
                 llama::Random &random);

// As many FP16 numbers, of values as fill_random() makes them.
std::vector<std::uint16_t> random_halves(std::size_t count, std::uint32_t head_dim,
                                         bool has_large_channels, llama::Random &random);

// FP16, to the nearest, ties to even; of numbers below 65520.
std::uint16_t half_from_float(float value);

}  // namespace cli

#endif
