// SPDX-License-Identifier: Apache-2.0
#include "core/step/faults.h"

#include "core/cache.h"

namespace lk {

bool has_fault(const DataReport &report) { return report.has_fault || report.is_wrong_shape; }

lk_status fail_data(const DataReport &report) {
    if (report.is_wrong_shape)
        return fail(
            LK_E_DATA,
            "a graph ran in a step of other counts than the step that it was captured from");
    return fail(LK_E_DATA,
                "%s of layer %u, KV head %u, token %u of the new ones of sequence %llu hold an "
                "infinity or a NaN%s",
                report.is_value ? "values" : "keys", report.layer, report.kv_head, report.token,
                ull{report.sequence}, report.is_earlier ? " in a step that was committed" : "");
}

lk_status find_fault(lk_cache *cache) {
    DataReport report{};
    cache->device->report(&report);
    if (!has_fault(report) || report.is_earlier)
        return LK_OK;
    cache->step.is_poisoned = true;
    return fail_data(report);
}

lk_status take_late_fault(lk_cache *cache) {
    DataReport report{};
    cache->device->report(&report);
    if (!has_fault(report))
        return LK_OK;
    report.is_earlier = 1;
    cache->device->clear_report();
    return fail_data(report);
}

void drop_fault(lk_cache *cache) {
    DataReport report{};
    cache->device->report(&report);
    if (!report.is_earlier)
        cache->device->clear_report();
}

lk_status check_open(lk_cache *cache) {
    if (!cache->step.is_open)
        return fail(LK_E_STATE, "no step is open");
    if (cache->step.is_poisoned)
        return fail(LK_E_DATA, "the step is poisoned: discard it");
    return find_fault(cache);
}

lk_status check_step(lk_cache *cache, uint32_t layer) {
    LK_TRY(check_open(cache));
    if (layer >= cache->formats.layers.size())
        return fail(LK_E_ARGUMENT, "layer is %u, the model has %zu", layer,
                    cache->formats.layers.size());
    return LK_OK;
}

}  // namespace lk
