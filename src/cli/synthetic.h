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

namespace cli {

struct Shape {
    std::uint32_t n_query_heads;
    std::uint32_t n_kv_heads;
    std::uint32_t head_dim;
};

// Queries, keys and values of one step.
struct StepData {
    StepData(const Shape &shape, std::uint32_t n_tokens, llama::Random &random);
    std::uint32_t n_tokens;
    std::vector<float> q, k, v;
};

struct StepResult {
    std::vector<float> out;  // [n_tokens][n_query_heads][head_dim]
    std::vector<float> lse;  // [n_tokens][n_query_heads]
};

// A cache of one layer and one sequence.
class SyntheticCache {
  public:
    SyntheticCache(lk_context *context, const lk_plan *plan, const Shape &shape,
                   std::uint64_t max_tokens, std::uint32_t max_step_tokens);

    void begin(std::uint32_t n_tokens);
    void append(StepData &data);
    void attend(StepData &data, StepResult &result);  // result is sized by the call
    void commit();
    void discard();
    lk_cache_stats stats() const;

  private:
    Shape shape_;
    llama::CacheHandle cache_;
    lk_sequence id_ = 0;
};

// Values of about unit variance, with a few channels of keys larger than the others, as in models.
void fill_random(std::vector<float> &values, std::uint32_t head_dim, bool has_large_channels,
                 llama::Random &random);

}  // namespace cli

#endif
