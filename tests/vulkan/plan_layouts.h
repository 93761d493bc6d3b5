// Cache layouts of whole plans, as the core hands them to a backend; no device is needed.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_VULKAN_PLAN_LAYOUTS_H
#define LK_TESTS_VULKAN_PLAN_LAYOUTS_H

#include "auto_layers.h"
#include "core/cache.h"
#include "core/fake_device.h"

#include <lowkey/cache.h>

#include <string>
#include <vector>

// 32 query heads and 8 KV heads of 128 channels; heads without channels of a preset.
struct NamedPlan {
    std::string name;
    const char *preset;                      // or null: the heads of `layers`
    std::vector<auto_layers::Layer> layers;  // with FP8 parameters
};

// One layer of each plan whose decode has a kernel of its own.
std::vector<NamedPlan> measured_plans();
// Plans of n_layers that repeat one recorded layer of `auto`, and one that takes them in turn.
std::vector<NamedPlan> auto_plans(uint32_t n_layers);

// A cache of a plan on a device that does no work.
class PlanLayout {
  public:
    explicit PlanLayout(const NamedPlan &plan);
    ~PlanLayout();
    PlanLayout(const PlanLayout &) = delete;
    PlanLayout &operator=(const PlanLayout &) = delete;

    // Null, or why there is no layout.
    const char *failure() const { return failure_.empty() ? nullptr : failure_.c_str(); }
    const lk::CacheLayout &layout() const { return backend_.layout; }
    // Bytes of a packed block of one layer: payload and metadata.
    uint64_t packed_bytes(uint32_t layer) const;

  private:
    lk_status open(const NamedPlan &plan);

    FakeDeviceBackend backend_;
    lk_context context_;
    lk_plan *plan_ = nullptr;
    lk_cache *cache_ = nullptr;
    std::string failure_;
};

#endif
