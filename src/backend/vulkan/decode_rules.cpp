// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/decode_rules.h"

#include <algorithm>

#include "backend/gpu/cache_tables.h"

namespace lk {
namespace vulkan {

namespace {

constexpr uint32_t kMaxColumns = 16;      // of a KV head: each item of them reads all codes again
constexpr uint32_t kWorkers = 4;          // workgroups of a core
constexpr uint32_t kMatrixWorkers = 3;    // of a core, by the registers that it takes
constexpr uint32_t kItemBytes = 32768;    // that a workgroup reads while an item begins and ends
constexpr uint32_t kNvidia = 0x10DE;      // VkPhysicalDeviceProperties.vendorID
constexpr uint32_t kNoForm = UINT32_MAX;  // key_end4 before the first page format of keys

// Pairs of strips when channels are in groups of `group`.
uint32_t value_steps_of(uint32_t head_dim, uint32_t group) {
    const uint32_t rest = head_dim % group;
    return head_dim / group * static_cast<uint32_t>(ceil_div(group, 2 * LK_STRIP_CHANNELS)) +
           static_cast<uint32_t>(ceil_div(rest, 2 * LK_STRIP_CHANNELS));
}

PageForm form_of_keys(const FormatInfo &info) {
    PageForm form{};
    form.key_end8 = info.strips[kPlane8];
    form.key_end4 = form.key_end8 + info.strips[kPlane4];
    form.permutation = info.permutes      ? LK_PERMUTATION_OF_PAGE
                       : info.permutation ? LK_PERMUTATION_OF_FORMAT
                                          : LK_PERMUTATION_NONE;
    form.permutation_bytes = info.permutes ? info.permutation_offset : 0;
    return form;
}

bool is_like(const PageForm &a, const PageForm &b) {
    return a.key_end8 == b.key_end8 && a.key_end4 == b.key_end4 && a.permutation == b.permutation &&
           a.permutation_bytes == b.permutation_bytes;
}

// Narrows a form down to one that this page format has too.
void join_form(const FormatInfo &info, PageForm *form) {
    const uint32_t n_parameters = info.is_value ? LK_MAX_PAGE_TOKENS : info.head_dim;
    const bool is_plain =
        info.is_native && info.parameter_bytes == bytes_of_parameter(Metadata::kF16) &&
        info.n_groups == 1 && !info.n_shared && !info.strips[kPlane16] && !info.strips[kPlane1] &&
        info.minima_offset == n_parameters * info.parameter_bytes;
    form->is_one = form->is_one && is_plain;
    if (info.is_value) {
        const uint32_t bits = widest_width(info.strips);
        form->is_one = form->is_one && (!form->value_bits || form->value_bits == bits);
        form->value_bits = bits;
        return;
    }
    PageForm own = form_of_keys(info);
    form->is_one = form->is_one && (form->key_end4 == kNoForm || is_like(own, *form));
    own.is_one = form->is_one;
    own.value_bits = form->value_bits;
    *form = own;
}

}  // namespace

bool DecodeRules::open(const CacheLayout &layout) {
    if (!layers_.resize(layout.n_layers))
        return false;
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
        const LayerView &view = layout.layers[l];
        Layer layer = {view.n_query_heads / view.n_kv_heads,
                       view.head_dim,
                       true,
                       false,
                       1,
                       value_steps_of(view.head_dim, view.head_dim),
                       {}};
        layer.form = {true, 0, kNoForm, 0, 0, 0};
        const auto add = [&](uint16_t packed) {
            const PageFormat &format = layout.formats[packed];
            const FormatInfo info = gpu::format_info(format, format.permutation ? 1 : 0);
            layer.is_native = layer.is_native && info.is_native && !info.n_shared;
            if (info.is_raw)
                return;
            join_form(info, &layer.form);
            layer.is_grouped = layer.is_grouped || info.parameter_bytes != 2 || info.n_groups > 1;
            if (info.is_value)
                layer.value_steps =
                    std::max(layer.value_steps, value_steps_of(view.head_dim, info.group));
            else
                layer.key_groups = std::max<uint32_t>(layer.key_groups, info.n_groups);
        };
        for (uint32_t head = 0; head < view.n_kv_heads; ++head) {
            const EntryFormats &entry = layout.entry_formats[layout.first_entries[l] + head];
            layer.form.is_one =
                layer.form.is_one && layout.formats[entry.packed_key].layout.is_raw() ==
                                         layout.formats[entry.packed_value].layout.is_raw();
            add(entry.packed_key);
            add(entry.packed_value);
        }
        for (uint32_t c = 0; layout.layer_formats && c < layout.layer_formats[l].n_formats; ++c)
            add(layout.layer_formats[l].formats[c]);
        if (layer.form.key_end4 == kNoForm) {
            layer.form.key_end4 = 0;
            layer.form.value_bits = 2;
        }
        layers_[l] = layer;
    }
    return true;
}

gpu::SplitLimits DecodeRules::limits() const {
    return {traits_.n_cores, kWorkers * traits_.n_cores, kMaxColumns,
            kMaxColumns,     LK_DECODE_MAX_COLUMNS,      0};
}

gpu::SplitShape DecodeRules::shape(uint32_t layer, uint32_t, uint32_t n_columns) const {
    const uint32_t columns = tile_columns(layer, n_columns);
    const bool has_matrices = arithmetic(layer) == DecodeArithmetic::kMatrix;
    const uint32_t n_workers = (has_matrices ? kMatrixWorkers : kWorkers) * traits_.n_cores;
    return {n_workers, threads(layer, columns) / LK_LANES, columns, kItemBytes, has_matrices};
}

bool DecodeRules::takes(uint32_t layer, uint32_t max_new) const {
    return takes(layer) && uint64_t{max_new} * layers_[layer].group <= kMaxColumns;
}

// NVIDIA's compiler keeps sums of FP32 arithmetic in registers, and not always those of FP16.
DecodeArithmetic DecodeRules::arithmetic(uint32_t layer) const {
    if (traits_.cooperative_matrix && layers_[layer].form.is_one)
        return DecodeArithmetic::kMatrix;
    return traits_.float16 && traits_.vendor_id != kNvidia ? DecodeArithmetic::kFloat16
                                                           : DecodeArithmetic::kFloat32;
}

uint32_t DecodeRules::tile_columns(uint32_t layer, uint32_t n_columns) const {
    const uint32_t group = layers_[layer].group;
    return decode_columns(layers_[layer].head_dim, n_columns > group ? kMaxColumns : group,
                          arithmetic(layer));
}

uint32_t DecodeRules::threads(uint32_t layer, uint32_t tile_columns) const {
    return decode_threads(layers_[layer].head_dim, tile_columns, arithmetic(layer),
                          traits_.subgroup);
}

}  // namespace vulkan
}  // namespace lk
