// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/cache_pipelines.h"

#include <algorithm>

#include "base/status.h"
#include "shaders/decode/limits.h"
#include "shaders/pack/limits.h"
#include "shaders/prefill/limits.h"
#include "shaders/push.h"

namespace lk {
namespace vulkan {

namespace {

constexpr uint32_t kJobThreads = 128;
constexpr uint32_t kMergeThreads = 128;
constexpr uint32_t kManySplitsThreads = 512;  // few columns with many splits
constexpr uint32_t kUnpackThreads = 256;
constexpr uint32_t kLatentThreads = LK_LANES * LK_LATENT_TEAMS;
constexpr uint32_t kFewChannels = 256;        // of a head, for which all devices can pack pages
constexpr uint32_t kManySharedBytes = 32768;  // that the others need

// form: of a pipeline with matrices.
const ShaderCode &decode_shader(DecodeArithmetic arithmetic, bool has_subgroups,
                                const PageForm *form) {
    switch (arithmetic) {
        case DecodeArithmetic::kMatrix:
            return form->only_form   ? shaders::attend_decode_few_forms
                   : form->key_folds ? shaders::attend_decode_forms
                                     : shaders::attend_decode_matrix;
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
uint32_t matrix_columns(const Traits &traits, const LayerView &layer) {
    return traits.cooperative_matrix && !layer.is_uneven() && layer.head_dim <= LK_MATRIX_HEAD_DIM
               ? matrix_tile_columns(layer.head_dim, traits.max_shared_bytes)
               : 0;
}

bool has_latent_matrices(const Traits &traits, const LayerView &layer) {
    return layer.is_latent && traits.matrix_uses && traits.float16 &&
           traits.max_workgroup_size >= kLatentThreads &&
           latent_matrix_shared_bytes(layer.head_dim) <= traits.max_shared_bytes;
}

// Of a workgroup over latents; 0 where the device has too little shared memory.
uint32_t most_latent_columns(const Traits &traits, const LayerView &layer) {
    return has_latent_matrices(traits, layer)
               ? LK_LATENT_MATRIX_COLUMNS
               : latent_columns(layer.head_dim, traits.max_shared_bytes, traits.max_workgroup_size);
}

uint32_t many_splits_threads(const Traits &traits) {
    return traits.max_workgroup_size < kManySplitsThreads ? kMergeThreads : kManySplitsThreads;
}

PipelineSpec merge_spec(const ShaderCode &shader, uint32_t head_dim, uint32_t columns,
                        uint32_t n_threads = kMergeThreads) {
    return make_spec(
        shader,
        {{LK_SPEC_THREADS, n_threads}, {LK_SPEC_HEAD_DIM, head_dim}, {LK_SPEC_COLUMNS, columns}},
        0);
}

}  // namespace

uint32_t prefill_columns(const Traits &traits, const LayerView &layer, uint32_t n_columns) {
    return layer.is_latent ? most_latent_columns(traits, layer)
                           : tile_columns(std::max(layer.head_dim, layer.value_dim), n_columns,
                                          matrix_columns(traits, layer));
}

bool has_slot_pipelines(const Traits &traits, const LayerView &layer) {
    return traits.matrix_uses && !layer.window_tokens && !layer.is_uneven() &&
           layer.head_dim <= LK_SLOT_HEAD_DIM && traits.max_workgroup_size >= LK_SLOT_THREADS &&
           slot_shared_bytes(layer.head_dim) <= traits.max_shared_bytes;
}

CachePipelines::~CachePipelines() {
    for (const VkPipeline pipeline : taken_)
        pipelines_->give(pipeline);
}

lk_status CachePipelines::check_device() const {
    if (traits_->max_workgroup_size < LK_TILE_THREADS)
        return fail(LK_E_UNSUPPORTED,
                    "the device runs workgroups of up to %u invocations, attention needs %u",
                    traits_->max_workgroup_size, LK_TILE_THREADS);
    if (most_channels_ > kFewChannels && traits_->max_shared_bytes < kManySharedBytes)
        return fail(LK_E_UNSUPPORTED,
                    "the device has %u bytes of shared memory, head dims above %u need %u",
                    traits_->max_shared_bytes, kFewChannels, kManySharedBytes);
    for (uint32_t l = 0; l < layout_->n_layers; ++l) {
        const LayerView &layer = layout_->layers[l];
        if (layer.is_latent && !most_latent_columns(*traits_, layer))
            return fail(LK_E_UNSUPPORTED,
                        "the device has %u bytes of shared memory, latents of %u channels need %u",
                        traits_->max_shared_bytes, layer.head_dim,
                        latent_shared_bytes(layer.head_dim, 8));
    }
    return LK_OK;
}

// Room for the layer's pipelines, none of which is made.
bool CachePipelines::place_layer(uint32_t layer) {
    Layer *of = &layers_[layer];
    for (const uint32_t size : {0, 1}) {
        const uint32_t n_columns = size ? UINT32_MAX : 1;
        of->tile[size].columns = prefill_columns(*traits_, layout_->layers[layer], n_columns);
        if (!rules_->takes(layer))
            continue;
        of->decode[size].columns = rules_->tile_columns(layer, n_columns);
        of->decode[size].first_form = static_cast<uint32_t>(forms_.size());
        const uint32_t n_variants = rules_->n_variants(layer, of->decode[size].columns);
        if (!forms_.resize(forms_.size() + rules_->n_forms(layer) * n_variants))
            return false;
    }
    return true;
}

// What most caches run soon: one at a time, the kernels of a first prompt and of the first tokens
// after it would keep a host waiting once for each.
bool CachePipelines::want_first(uint32_t layer) {
    bool has_memory = true;
    const uint32_t n_forms = rules_->takes(layer) ? rules_->n_certain_forms(layer) : 0;
    const uint32_t columns = layers_[layer].decode[0].columns;
    for (uint32_t form = 0; form < n_forms; ++form)
        for (uint32_t i = 0; has_memory && i < rules_->n_variants(layer, columns); ++i)
            has_memory = want_decode(layer, columns, form, i);
    if (layout_->max_step_tokens <= kDraftTokens)
        return has_memory;
    if (has_slot_pipelines(*traits_, layout_->layers[layer]))
        has_memory = has_memory && want_slots(layer);
    return has_memory && want_append_pages(layer);
}

// Ranges of a packed page of a head dim, at most, and a power of two: few pipelines are made.
uint32_t CachePipelines::most_entries(uint32_t head_dim) const {
    uint32_t most = 0;
    for (uint32_t i = 0; i < layout_->n_formats; ++i) {
        const PageLayout &page = layout_->formats[i].layout;
        if (!page.is_raw() && page.head_dim == head_dim)
            most = std::max(most, n_parameters(page));
    }
    uint32_t n = LK_MAX_PAGE_TOKENS;
    while (n < most)
        n *= 2;
    return n;
}

bool CachePipelines::want_append_pages(uint32_t layer) {
    const uint32_t head_dim = layout_->layers[layer].head_dim;
    const uint32_t n_entries = most_entries(head_dim);
    if (layout_->layers[layer].is_uneven() || head_dim > LK_SLICE_TILES * LK_STRIP_CHANNELS ||
        append_pages_shared_bytes(head_dim, n_entries) > traits_->max_shared_bytes ||
        traits_->max_workgroup_size < LK_APPEND_PAGES_THREADS)
        return true;
    return want(make_spec(shaders::append_pages,
                          {{LK_SPEC_THREADS, LK_APPEND_PAGES_THREADS},
                           {LK_SPEC_HEAD_DIM, head_dim},
                           {LK_SPEC_ENTRIES, n_entries}},
                          0),
                &layers_[layer].append_pages);
}

lk_status CachePipelines::open(const CacheLayout &layout, const DecodeRules &rules,
                               const Traits &traits, Pipelines *pipelines) {
    layout_ = &layout;
    rules_ = &rules;
    traits_ = &traits;
    pipelines_ = pipelines;
    most_channels_ = kFewChannels;
    for (uint32_t l = 0; l < layout.n_layers; ++l)
        if (std::max(layout.layers[l].head_dim, layout.layers[l].value_dim) > kFewChannels)
            most_channels_ = LK_MAX_HEAD_DIM;
    LK_TRY(check_device());
    bool has_memory = layers_.resize(layout.n_layers);
    for (uint32_t l = 0; has_memory && l < layout.n_layers; ++l)
        has_memory = place_layer(l);
    for (uint32_t l = 0; has_memory && l < layout.n_layers; ++l)
        has_memory = want_first(l);
    bool is_needed[kFixedKernels] = {};
    is_needed[kPackKernel] = true;
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
        is_needed[append_kernel(layout.layers[l])] = true;
        is_needed[kRotateQueriesKernel] |= layout.layers[l].key_rotation != 0;
    }
    for (uint32_t kernel = 0; has_memory && kernel < kFixedKernels; ++kernel)
        if (is_needed[kernel])
            has_memory = want(fixed_spec(static_cast<FixedKernel>(kernel)), &fixed_[kernel]);
    if (!has_memory)
        return fail(LK_E_NOMEM, "no memory for the pipelines of %u layers", layout.n_layers);
    return make_wanted();
}

PipelineSpec CachePipelines::fixed_spec(FixedKernel kernel) const {
    switch (kernel) {
        case kAppendKernel:
        case kAppendRotatedKernel:
        case kAppendLatentKernel:
            return make_spec(shaders::append,
                             {{LK_SPEC_THREADS, append_threads(kernel == kAppendLatentKernel)},
                              {LK_SPEC_ROTATES, kernel == kAppendRotatedKernel}},
                             0);
        case kPackKernel:
            return make_spec(shaders::pack,
                             {{LK_SPEC_THREADS, kJobThreads}, {LK_SPEC_HEAD_DIM, most_channels_}},
                             0);
        case kDequantizeKernel:
            return make_spec(shaders::dequantize, {{LK_SPEC_THREADS, kJobThreads}}, 0);
        case kMoveKernel: return make_spec(shaders::move, {}, 0);
        case kShrinkKernel: return make_spec(shaders::shrink, {}, 0);
        case kRotateQueriesKernel: return make_spec(shaders::rotate_queries, {}, 0);
        case kSumQueriesKernel: return make_spec(shaders::query_stats, {}, 0);
        default: return make_spec(shaders::add_query_stats, {}, 0);
    }
}

lk_status CachePipelines::fixed(FixedKernel kernel, VkPipeline *out) {
    if (!want(fixed_spec(kernel), &fixed_[kernel]))
        return fail(LK_E_NOMEM, "no memory for a pipeline");
    LK_TRY(make_wanted());
    *out = fixed_[kernel];
    return LK_OK;
}

PipelineSpec CachePipelines::decode_spec(uint32_t layer, uint32_t columns, uint32_t form,
                                         uint32_t variant) const {
    const LayerView &view = layout_->layers[layer];
    const DecodeArithmetic arithmetic = rules_->arithmetic(layer);
    const uint32_t subgroup = traits_->subgroup ? team_subgroup(*traits_) : 0;
    const bool has_matrices = arithmetic == DecodeArithmetic::kMatrix;
    const ShaderCode &shader = decode_shader(arithmetic, traits_->subgroup,
                                             has_matrices ? &rules_->form(layer, form) : nullptr);
    const uint32_t required = traits_->subgroup_size_control ? subgroup : 0;
    const DecodeVariant workgroups = rules_->variant(layer, columns, variant);
    const Constant threads = {LK_SPEC_THREADS, workgroups.threads};
    if (!has_matrices)
        return make_spec(shader,
                         {threads,
                          {LK_SPEC_HEAD_DIM, view.head_dim},
                          {LK_SPEC_SUBGROUP, subgroup},
                          {LK_SPEC_COLUMNS, columns},
                          {LK_SPEC_VALUE_DIM, view.value_dim},
                          {LK_SPEC_GROUPED, rules_->is_grouped(layer)},
                          {LK_SPEC_SHARED, rules_->has_shared(layer)},
                          {LK_SPEC_KEY_FOLDS, std::max(rules_->vector_folds(layer), 1u)},
                          {LK_SPEC_PARAMETER_BYTES, rules_->parameter_bytes(layer)},
                          {LK_SPEC_WIDTHS, rules_->widths()},
                          {LK_SPEC_PAGE_TEAMS, rules_->page_teams(layer, columns)},
                          {LK_SPEC_ROTATION, view.key_rotation}},
                         required);
    const PageForm &of = rules_->form(layer, form);
    return make_spec(shader,
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
                      {LK_SPEC_PARAMETER_BYTES, of.parameter_bytes},
                      {LK_SPEC_HIGH_SLOTS, of.high_slots},
                      {LK_SPEC_FORM, of.only_form},
                      {LK_SPEC_PASSES, of.passes},
                      {LK_SPEC_PAGE_PARTS, workgroups.page_parts},
                      {LK_SPEC_ROTATION, view.key_rotation}},
                     required);
}

// Matrices have a size of their own.
PipelineSpec CachePipelines::tile_spec(const LayerView &layer, uint32_t columns) const {
    const ShaderCode *shader = &shaders::attend_prefill;
    uint32_t threads = LK_TILE_THREADS;
    bool has_matrices = columns == matrix_columns(*traits_, layer);
    if (has_matrices) {
        shader = &shaders::attend_prefill_matrix;
        threads = 2 * columns;
    } else if (has_latent_matrices(*traits_, layer)) {
        shader = &shaders::attend_prefill_latent_matrix;
        threads = kLatentThreads;
        has_matrices = true;
    } else if (layer.is_latent) {
        shader = &shaders::attend_prefill_latent;
        threads = LK_LATENT_COLUMN_THREADS * columns;
    }
    const uint32_t subgroup = has_matrices ? team_subgroup(*traits_) : 0;
    return make_spec(*shader,
                     {{LK_SPEC_THREADS, threads},
                      {LK_SPEC_HEAD_DIM, layer.head_dim},
                      {LK_SPEC_SUBGROUP, subgroup},
                      {LK_SPEC_COLUMNS, columns},
                      {LK_SPEC_VALUE_DIM, layer.value_dim}},
                     traits_->subgroup_size_control ? subgroup : 0);
}

bool CachePipelines::want(const PipelineSpec &spec, VkPipeline *out) {
    return *out || wanted_.push({spec, out});
}

bool CachePipelines::want_decode(uint32_t layer, uint32_t columns, uint32_t form,
                                 uint32_t variant) {
    AttendPipelines *of = &layers_[layer].decode[size_of(layers_[layer].decode, columns)];
    VkPipeline *attend = &forms_[form_index(layer, *of, form, variant)];
    const uint32_t value_dim = layout_->layers[layer].value_dim;
    return (*attend || want(decode_spec(layer, columns, form, variant), attend)) &&
           (of->merge || want(merge_spec(shaders::attend_decode_merge, value_dim, columns,
                                         many_splits_threads(*traits_)),
                              &of->merge));
}

bool CachePipelines::want_tile(uint32_t layer, uint32_t columns) {
    AttendPipelines *of = &layers_[layer].tile[size_of(layers_[layer].tile, columns)];
    const LayerView &view = layout_->layers[layer];
    const uint32_t merge_threads = view.is_latent ? many_splits_threads(*traits_) : kMergeThreads;
    return of->merge ||
           (want(tile_spec(view, columns), &of->attend) &&
            want(merge_spec(shaders::attend_prefill_merge, view.value_dim, columns, merge_threads),
                 &of->merge));
}

bool CachePipelines::want_slots(uint32_t layer) {
    SlotPipelines *of = &layers_[layer].slots;
    if (of->merge)
        return true;
    const uint32_t head_dim = layout_->layers[layer].head_dim;
    const uint32_t subgroup = team_subgroup(*traits_);
    return want(make_spec(shaders::prefill_unpack,
                          {{LK_SPEC_THREADS, kUnpackThreads}, {LK_SPEC_HEAD_DIM, head_dim}}, 0),
                &of->unpack) &&
           want(make_spec(head_dim == LK_SLOT_HEAD_DIM ? shaders::attend_prefill_slots_128
                                                       : shaders::attend_prefill_slots,
                          {{LK_SPEC_THREADS, LK_SLOT_THREADS},
                           {LK_SPEC_HEAD_DIM, head_dim},
                           {LK_SPEC_SUBGROUP, subgroup},
                           {LK_SPEC_COLUMNS, LK_SLOT_COLUMNS}},
                          traits_->subgroup_size_control ? subgroup : 0),
                &of->attend) &&
           want(merge_spec(shaders::attend_prefill_slots_merge, head_dim, LK_SLOT_COLUMNS),
                &of->merge);
}

// All wanted pipelines are there afterwards, or none.
lk_status CachePipelines::make_wanted() {
    const auto n = static_cast<uint32_t>(wanted_.size());
    if (!n)
        return LK_OK;
    specs_.clear();
    bool has_memory = specs_.reserve(n) && made_.resize(n) && taken_.reserve(taken_.size() + n);
    for (const Wanted &wanted : wanted_)
        has_memory = has_memory && specs_.push(wanted.spec);
    const lk_status status = has_memory ? pipelines_->take(specs_.data(), n, made_.data())
                                        : fail(LK_E_NOMEM, "no memory for %u pipelines", n);
    for (uint32_t i = 0; !status && i < n; ++i)
        *wanted_[i].out = *taken_.extend(1) = made_[i];
    wanted_.clear();
    return status;
}

lk_status CachePipelines::score_attention(AttentionScoresPipelines *out) const {
    const PipelineSpec specs[] = {make_spec(shaders::attention_partials, {}, 0),
                                  make_spec(shaders::attention_totals, {}, 0),
                                  make_spec(shaders::attention_scores, {}, 0)};
    VkPipeline made[3] = {};
    LK_TRY(pipelines_->get(specs, 3, made));
    *out = {made[0], made[1], made[2]};
    return LK_OK;
}

}  // namespace vulkan
}  // namespace lk
