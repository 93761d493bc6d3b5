// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/cache_pipelines.h"

#include "base/status.h"
#include "shaders/decode/limits.h"
#include "shaders/prefill/limits.h"
#include "shaders/push.h"

namespace lk {
namespace vulkan {

namespace {

constexpr uint32_t kJobThreads = 128;
constexpr uint32_t kMergeThreads = 128;
constexpr uint32_t kUnpackThreads = 256;
constexpr uint32_t kFewChannels = 256;        // of a head, for which all devices can pack pages
constexpr uint32_t kManySharedBytes = 32768;  // that the others need

const ShaderCode &decode_shader(DecodeArithmetic arithmetic, bool has_subgroups, bool has_forms) {
    switch (arithmetic) {
        case DecodeArithmetic::kMatrix:
            return has_forms ? shaders::attend_decode_forms : shaders::attend_decode_matrix;
        case DecodeArithmetic::kFloat16:
            return has_subgroups ? shaders::attend_decode_f16_subgroups
                                 : shaders::attend_decode_f16;
        default: return has_subgroups ? shaders::attend_decode_subgroups : shaders::attend_decode;
    }
}

// Teams of LK_LANES inside of a subgroup are fastest.
uint32_t team_subgroup(const Traits &traits) {
    const bool can_choose = traits.subgroup_size_control && traits.min_subgroup_size <= LK_LANES &&
                            traits.max_subgroup_size >= LK_LANES;
    return can_choose ? LK_LANES : traits.subgroup_size;
}

// Of a workgroup of prefill by matrices; 0 without.
uint32_t matrix_columns(const Traits &traits, uint32_t head_dim) {
    return traits.cooperative_matrix && head_dim <= LK_MATRIX_HEAD_DIM
               ? matrix_tile_columns(head_dim, traits.max_shared_bytes)
               : 0;
}

}  // namespace

uint32_t prefill_columns(const Traits &traits, uint32_t head_dim, uint32_t n_columns) {
    return tile_columns(head_dim, n_columns, matrix_columns(traits, head_dim));
}

bool has_slot_pipelines(const Traits &traits, const LayerView &layer) {
    return traits.cooperative_matrix && !layer.window_tokens &&
           layer.head_dim <= LK_SLOT_HEAD_DIM && traits.max_workgroup_size >= LK_SLOT_THREADS &&
           slot_shared_bytes(layer.head_dim) <= traits.max_shared_bytes;
}

CachePipelines::~CachePipelines() {
    for (const VkPipeline pipeline : taken_)
        pipelines_->give(pipeline);
}

lk_status CachePipelines::take(const ShaderCode &shader, Constants constants,
                               uint32_t subgroup_size, VkPipeline *out) {
    const lk_status status = pipelines_->take(shader, constants, subgroup_size, out);
    if (!status)
        *taken_.extend(1) = *out;
    return status;
}

lk_status CachePipelines::open_merge(const ShaderCode &shader, uint32_t head_dim, uint32_t columns,
                                     AttendPipelines *out) {
    out->columns = columns;
    return take(shader,
                {{LK_SPEC_THREADS, kMergeThreads},
                 {LK_SPEC_HEAD_DIM, head_dim},
                 {LK_SPEC_COLUMNS, columns}},
                0, &out->merge);
}

lk_status CachePipelines::open_form(const DecodeRules &rules, uint32_t layer, uint32_t form,
                                    const LayerView &view, uint32_t columns, const Traits &traits,
                                    VkPipeline *out) {
    const DecodeArithmetic arithmetic = rules.arithmetic(layer);
    const uint32_t subgroup = traits.subgroup ? team_subgroup(traits) : 0;
    const ShaderCode &shader =
        decode_shader(arithmetic, traits.subgroup, rules.has_pushed_forms(layer));
    const uint32_t required = traits.subgroup_size_control ? subgroup : 0;
    const Constant threads = {LK_SPEC_THREADS, rules.threads(layer, columns)};
    if (arithmetic != DecodeArithmetic::kMatrix)
        return take(shader,
                    {threads,
                     {LK_SPEC_HEAD_DIM, view.head_dim},
                     {LK_SPEC_SUBGROUP, subgroup},
                     {LK_SPEC_COLUMNS, columns},
                     {LK_SPEC_GROUPED, rules.is_grouped(layer)},
                     {LK_SPEC_SHARED, rules.has_shared(layer)}},
                    required, out);
    const PageForm &of = rules.form(layer, form);
    return take(shader,
                {threads,
                 {LK_SPEC_HEAD_DIM, view.head_dim},
                 {LK_SPEC_SUBGROUP, subgroup},
                 {LK_SPEC_COLUMNS, columns},
                 {LK_SPEC_KEY_END8, of.key_end8},
                 {LK_SPEC_KEY_END4, of.key_end4},
                 {LK_SPEC_VALUE_BITS, of.value_bits},
                 {LK_SPEC_SOFT_CAP, view.soft_cap > 0},
                 {LK_SPEC_PERMUTATION, of.permutation},
                 {LK_SPEC_KEY_FOLDS, of.key_folds},
                 {LK_SPEC_PARAMETER_BYTES, of.parameter_bytes}},
                required, out);
}

// Forms of one kernel have one pipeline.
lk_status CachePipelines::open_decode(const DecodeRules &rules, uint32_t layer,
                                      const LayerView &view, uint32_t columns, const Traits &traits,
                                      AttendPipelines *out) {
    const uint32_t n_forms = rules.n_forms(layer);
    out->first_form = static_cast<uint32_t>(forms_.size());
    if (!taken_.reserve(taken_.size() + n_forms + kMostOfLayer) ||
        !forms_.resize(out->first_form + n_forms))
        return fail(LK_E_NOMEM, "no memory for the pipelines of %u forms of pages", n_forms);
    lk_status status = LK_OK;
    for (uint32_t i = 0; !status && i < n_forms; ++i)
        status = open_form(rules, layer, i, view, columns, traits, &forms_[out->first_form + i]);
    out->attend = forms_[out->first_form];
    return status ? status : open_merge(shaders::attend_decode_merge, view.head_dim, columns, out);
}

// Matrices have a size of their own.
lk_status CachePipelines::open_tile(uint32_t head_dim, uint32_t columns, const Traits &traits,
                                    AttendPipelines *out) {
    const bool has_matrices = columns == matrix_columns(traits, head_dim);
    const lk_status status = take(
        has_matrices ? shaders::attend_prefill_matrix : shaders::attend_prefill,
        {{LK_SPEC_THREADS, has_matrices ? 2 * columns : LK_TILE_THREADS},
         {LK_SPEC_HEAD_DIM, head_dim},
         {LK_SPEC_SUBGROUP, has_matrices ? team_subgroup(traits) : 0},
         {LK_SPEC_COLUMNS, columns}},
        has_matrices && traits.subgroup_size_control ? team_subgroup(traits) : 0, &out->attend);
    return status ? status : open_merge(shaders::attend_prefill_merge, head_dim, columns, out);
}

lk_status CachePipelines::open_layer(const DecodeRules &rules, uint32_t layer,
                                     const LayerView &view, const Traits &traits) {
    lk_status status = LK_OK;
    for (const uint32_t size : {0, 1}) {
        const uint32_t n_columns = size ? UINT32_MAX : 1;
        if (!status)
            status = open_tile(view.head_dim, prefill_columns(traits, view.head_dim, n_columns),
                               traits, &layers_[layer].tile[size]);
        if (!status && rules.takes(layer))
            status = open_decode(rules, layer, view, rules.tile_columns(layer, n_columns), traits,
                                 &layers_[layer].decode[size]);
    }
    return status;
}

lk_status CachePipelines::open(const CacheLayout &layout, const DecodeRules &rules,
                               const Traits &traits, Pipelines *pipelines) {
    if (traits.max_workgroup_size < LK_TILE_THREADS)
        return fail(LK_E_UNSUPPORTED,
                    "the device runs workgroups of up to %u invocations, attention needs %u",
                    traits.max_workgroup_size, LK_TILE_THREADS);
    uint32_t most_channels = kFewChannels;
    for (uint32_t l = 0; l < layout.n_layers; ++l)
        if (layout.layers[l].head_dim > kFewChannels)
            most_channels = LK_MAX_PLAIN_DIM;
    if (most_channels > kFewChannels && traits.max_shared_bytes < kManySharedBytes)
        return fail(LK_E_UNSUPPORTED,
                    "the device has %u bytes of shared memory, head dims above %u need %u",
                    traits.max_shared_bytes, kFewChannels, kManySharedBytes);
    pipelines_ = pipelines;
    if (!layers_.resize(layout.n_layers) ||
        !taken_.reserve(uint64_t{kMostOfLayer} * layout.n_layers))
        return fail(LK_E_NOMEM, "no memory for the pipelines of %u layers", layout.n_layers);
    lk_status status =
        pipelines->get(shaders::append, {{LK_SPEC_THREADS, kAppendThreads}}, 0, &append_);
    if (!status)
        status = pipelines->get(shaders::pack,
                                {{LK_SPEC_THREADS, kJobThreads}, {LK_SPEC_HEAD_DIM, most_channels}},
                                0, &pack_);
    if (!status)
        status =
            pipelines->get(shaders::dequantize, {{LK_SPEC_THREADS, kJobThreads}}, 0, &dequantize_);
    if (!status)
        status = pipelines->get(shaders::move, {}, 0, &move_);
    if (!status)
        status = pipelines->get(shaders::shrink, {}, 0, &shrink_);
    if (!status && layout.n_ranked_channels) {
        status = pipelines->get(shaders::query_stats, {}, 0, &query_stats_);
        if (!status)
            status = pipelines->get(shaders::add_query_stats, {}, 0, &add_query_stats_);
    }
    for (uint32_t l = 0; l < layout.n_layers; ++l)
        if (!status)
            status = open_layer(rules, l, layout.layers[l], traits);
    return status;
}

lk_status CachePipelines::slots(uint32_t head_dim, const Traits &traits, SlotPipelines *out) const {
    const uint32_t subgroup = team_subgroup(traits);
    lk_status status = pipelines_->get(
        shaders::prefill_unpack, {{LK_SPEC_THREADS, kUnpackThreads}, {LK_SPEC_HEAD_DIM, head_dim}},
        0, &out->unpack);
    if (!status)
        status = pipelines_->get(shaders::attend_prefill_slots,
                                 {{LK_SPEC_THREADS, LK_SLOT_THREADS},
                                  {LK_SPEC_HEAD_DIM, head_dim},
                                  {LK_SPEC_SUBGROUP, subgroup},
                                  {LK_SPEC_COLUMNS, LK_SLOT_COLUMNS}},
                                 traits.subgroup_size_control ? subgroup : 0, &out->attend);
    if (!status)
        status = pipelines_->get(shaders::attend_prefill_slots_merge,
                                 {{LK_SPEC_THREADS, kMergeThreads},
                                  {LK_SPEC_HEAD_DIM, head_dim},
                                  {LK_SPEC_COLUMNS, LK_SLOT_COLUMNS}},
                                 0, &out->merge);
    return status;
}

lk_status CachePipelines::score_attention(AttentionScoresPipelines *out) const {
    lk_status status = pipelines_->get(shaders::attention_partials, {}, 0, &out->partials);
    if (!status)
        status = pipelines_->get(shaders::attention_totals, {}, 0, &out->totals);
    if (!status)
        status = pipelines_->get(shaders::attention_scores, {}, 0, &out->scores);
    return status;
}

}  // namespace vulkan
}  // namespace lk
