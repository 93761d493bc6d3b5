// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/decode_rules.h"

#include <algorithm>

#include "backend/device/cache_tables.h"

namespace lk {
namespace vulkan {

namespace {

constexpr uint32_t kMaxColumns = 16;    // of a KV head: each item of them reads all codes again
constexpr uint32_t kWorkers = 4;        // workgroups of a core
constexpr uint32_t kItemBytes = 32768;  // that a workgroup reads while an item begins and ends
constexpr uint32_t kNvidia = 0x10DE;    // VkPhysicalDeviceProperties.vendorID

// Pairs of strips when channels are in groups of `group`.
uint32_t value_steps_of(uint32_t head_dim, uint32_t group) {
    const uint32_t rest = head_dim % group;
    return head_dim / group * static_cast<uint32_t>(ceil_div(group, 2 * LK_STRIP_CHANNELS)) +
           static_cast<uint32_t>(ceil_div(rest, 2 * LK_STRIP_CHANNELS));
}

}  // namespace

bool DecodeRules::open(const CacheLayout &layout) {
    if (!layers_.resize(layout.n_layers))
        return false;
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
        const LayerView &view = layout.layers[l];
        Layer layer = {view.n_query_heads / view.n_kv_heads,        view.head_dim, true, false, 1,
                       value_steps_of(view.head_dim, view.head_dim)};
        const auto add = [&](uint16_t packed) {
            const HalfClass &half = layout.classes[packed];
            const ClassInfo info = device::class_info(half, half.permutation ? 1 : 0);
            layer.is_direct = layer.is_direct && info.is_direct && !info.n_shared;
            if (info.is_raw)
                return;
            layer.is_grouped = layer.is_grouped || info.number_bytes != 2 || info.n_groups > 1;
            if (info.is_value)
                layer.value_steps =
                    std::max(layer.value_steps, value_steps_of(view.head_dim, info.group));
            else
                layer.key_groups = std::max<uint32_t>(layer.key_groups, info.n_groups);
        };
        for (uint32_t head = 0; head < view.n_kv_heads; ++head) {
            const EntryClasses &entry = layout.entry_classes[layout.first_entries[l] + head];
            add(entry.packed_key);
            add(entry.packed_value);
        }
        for (uint32_t c = 0; layout.layer_classes && c < layout.layer_classes[l].n_classes; ++c)
            add(layout.layer_classes[l].classes[c]);
        layers_[l] = layer;
    }
    return true;
}

device::SplitLimits DecodeRules::limits() const {
    return {traits_.n_cores, kWorkers * traits_.n_cores, kMaxColumns,
            kMaxColumns,     LK_DECODE_MAX_COLUMNS,      0};
}

device::SplitShape DecodeRules::shape(uint32_t layer, uint32_t, uint32_t n_columns) const {
    const uint32_t columns = tile_columns(layer, n_columns);
    return {kWorkers * traits_.n_cores, threads(layer, columns) / LK_LANES, columns, kItemBytes};
}

bool DecodeRules::takes(uint32_t layer, uint32_t max_new) const {
    return takes(layer) && uint64_t{max_new} * layers_[layer].group <= kMaxColumns;
}

// Measured on one H200, kitty-pro, 8192 and 131072 tokens: FP32 98 and 346 us, matrices 148 and
// 347, FP16 171 and 1263.
DecodeUnit DecodeRules::unit() const {
    if (traits_.vendor_id == kNvidia)
        return DecodeUnit::kFloat32;
    return traits_.cooperative_matrix ? DecodeUnit::kMatrix
           : traits_.float16          ? DecodeUnit::kFloat16
                                      : DecodeUnit::kFloat32;
}

uint32_t DecodeRules::tile_columns(uint32_t layer, uint32_t n_columns) const {
    const uint32_t group = layers_[layer].group;
    return decode_columns(layers_[layer].head_dim, n_columns > group ? kMaxColumns : group, unit());
}

uint32_t DecodeRules::threads(uint32_t layer, uint32_t tile_columns) const {
    return decode_threads(layers_[layer].head_dim, tile_columns, unit(), traits_.subgroup);
}

}  // namespace vulkan
}  // namespace lk
