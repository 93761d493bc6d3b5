// Owners of lowkey's handles, and statuses as exceptions.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_HANDLES_H
#define LLAMA_HANDLES_H

#include <lowkey/lowkey.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config.h"

namespace llama {

// Throws Error with the library's sentence unless status is LK_OK.
void check(lk_status status);
void check_bytes_of(const std::string &file, lk_status status);  // the sentence names the file
std::string last_sentence();

struct CloseContext {
    void operator()(lk_context *context) const { (void)lk_context_close(&context); }
};
struct DestroyPlan {
    void operator()(lk_plan *plan) const { lk_plan_destroy(&plan); }
};
struct DestroyCalibrator {
    void operator()(lk_calibrator *calibrator) const { lk_calibrator_destroy(&calibrator); }
};
struct DestroyCostRun {
    void operator()(lk_cost_run *run) const { lk_cost_run_destroy(&run); }
};
struct DestroyCache {
    void operator()(lk_cache *cache) const { lk_cache_destroy(&cache); }
};
using ContextHandle = std::unique_ptr<lk_context, CloseContext>;
using PlanHandle = std::unique_ptr<lk_plan, DestroyPlan>;
using CalibratorHandle = std::unique_ptr<lk_calibrator, DestroyCalibrator>;
using CostRunHandle = std::unique_ptr<lk_cost_run, DestroyCostRun>;
using CacheHandle = std::unique_ptr<lk_cache, DestroyCache>;

// A geometry with its layers.
class Geometry {
  public:
    // sink_logits: of a config with learned sinks [n_layers][n_query_heads], which outlive this.
    Geometry(const Config &config, const float *sink_logits);
    Geometry(std::uint32_t n_layers, std::uint32_t n_query_heads, std::uint32_t n_kv_heads,
             std::uint32_t head_dim);
    Geometry(std::uint32_t n_layers, const lk_layer &layer) : layers_(n_layers, layer) {}
    lk_geometry view() const;  // valid as long as this object
    const lk_layer &layer() const { return layers_.front(); }
    std::uint32_t n_layers() const { return static_cast<std::uint32_t>(layers_.size()); }

  private:
    std::vector<lk_layer> layers_;
};

// n_threads 0 = all; cpu_mask LK_CPU_* bits
ContextHandle open_context(lk_backend backend, std::uint32_t device_index, std::uint32_t n_threads,
                           std::uint32_t cpu_mask);
PlanHandle make_preset(const std::string &name, const Geometry &geometry);
PlanHandle copy_plan(const lk_plan *plan);
// Every page of the plan stays at 16 bits.
void keep_all(lk_plan *plan);

// Does any head rank its channels by queries? Then a step must attend before it commits.
bool ranks_by_queries(const lk_plan *plan);

template <typename T>
T initialised(lk_status (*init)(T *, std::size_t)) {
    T value;
    check(init(&value, sizeof value));
    return value;
}

}  // namespace llama

#endif
