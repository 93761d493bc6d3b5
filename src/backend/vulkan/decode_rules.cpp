// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/decode_rules.h"

#include <algorithm>

#include "backend/gpu/cache_tables.h"
#include "shaders/push.h"

namespace lk {
namespace vulkan {

namespace {

constexpr uint32_t kMaxColumns = 16;      // of a KV head: each item of them reads all codes again
constexpr uint32_t kMaxTiles = 8;         // likewise, of the query heads of one token
constexpr uint32_t kWorkers = 4;          // workgroups of a core
constexpr uint32_t kMatrixWorkers = 3;    // of a core, by the registers that it takes
constexpr uint32_t kFormTeams = 8;        // of a core, likewise, of pushed forms and FP32 vectors
constexpr uint32_t kFormWorkers = 2;      // likewise, at least
constexpr uint32_t kSharedBytes = 16384;  // of a workgroup: what every device has
constexpr uint32_t kWideSharedBytes = 29696;  // likewise, of a core that has no other
constexpr uint32_t kFormSharedBytes = 40960;  // likewise, where forms are pushed
constexpr uint32_t kFoldSharedBytes = 16384;  // likewise, where each form has several token groups
constexpr uint32_t kPassSharedBytes = 12288;  // likewise, in two passes
constexpr uint32_t kVectorSharedBytes = 24576;  // likewise, without matrices: two of a core
constexpr uint32_t kHalfSharedBytes = 20480;    // likewise, in FP16
constexpr uint32_t kPageSharedBytes = 32768;    // likewise, where teams share pages
constexpr uint32_t kGroupSharedBytes = 26624;   // likewise, in FP16 where pages have several groups
// Without matrices instructions bound a page, and all pages of a layer run the same.
constexpr uint32_t kVectorBytePercent = 0;
constexpr uint32_t kManyVectors = 3;    // of a strip, on average: those of keys and of values
constexpr uint32_t kItemBytes = 32768;  // that a workgroup reads while an item begins and ends
constexpr uint32_t kNvidia = 0x10DE;    // VkPhysicalDeviceProperties.vendorID
constexpr uint32_t kFewFolds = 4;       // several token groups of keys have pipelines for as many
constexpr uint32_t kFewForms = 4;       // of a plan, which may be constants of pipelines
constexpr uint32_t kMostForms = 16;     // of a layer whose pages change their form

// Pairs of strips when channels are in groups of `group`.
uint32_t value_steps_of(uint32_t value_dim, uint32_t group) {
    const uint32_t rest = value_dim % group;
    return value_dim / group * static_cast<uint32_t>(ceil_div(group, 2 * LK_STRIP_CHANNELS)) +
           static_cast<uint32_t>(ceil_div(rest, 2 * LK_STRIP_CHANNELS));
}

// Pages of one token group have pipelines without loops over groups.
constexpr uint32_t folds_of(uint32_t key_groups) {
    return key_groups > 1 && key_groups < kFewFolds ? kFewFolds : key_groups;
}

// Whole pairs of strips.
constexpr uint32_t high_slots_of(uint32_t n_shared) {
    return static_cast<uint32_t>(round_up(n_shared, 2 * LK_STRIP_CHANNELS));
}

constexpr uint32_t field(uint32_t value, uint32_t first, uint32_t) { return value << first; }

// Of all formats that kernels of matrices read alike, one number: the fields of the form of which a
// key's format has some and a value's the others, their width, and what the pipeline is made for.
uint64_t shape_of(const FormatInfo &info) {
    const uint32_t end8 = info.strips[kPlane8];
    const uint32_t form =
        info.is_value
            ? field(info.group / LK_STRIP_CHANNELS, LK_FORM_VALUE_STRIPS)
            : field(end8, LK_FORM_KEY_END8) | field(end8 + info.strips[kPlane4], LK_FORM_KEY_END4) |
                  field(info.n_shared, LK_FORM_SHARED) | field(info.n_groups, LK_FORM_KEY_GROUPS);
    const uint32_t permutation = info.permutes      ? LK_PERMUTATION_OF_PAGE
                                 : info.permutation ? LK_PERMUTATION_OF_FORMAT
                                                    : LK_PERMUTATION_NONE;
    const uint32_t bits = info.is_value ? widest_width(info.strips) : 0;
    return uint64_t{form} | uint64_t{bits} << 32 | uint64_t{permutation} << 40 |
           uint64_t{info.parameter_bytes} << 44 | uint64_t{info.is_value} << 48;
}
uint32_t form_of_shape(uint64_t shape) { return static_cast<uint32_t>(shape); }
uint32_t bits_of_shape(uint64_t shape) { return shape >> 32 & 0xFF; }
uint32_t permutation_of_shape(uint64_t shape) { return shape >> 40 & 0xF; }
uint32_t parameter_bytes_of_shape(uint64_t shape) { return shape >> 44 & 0xF; }

// Where the kernels look for the ranges and the minima of a packed format, which they can multiply.
bool suits_matrices(const FormatInfo &info) {
    const uint32_t n_parameters =
        info.n_groups * (info.is_value ? LK_MAX_PAGE_TOKENS : uint32_t{info.head_dim});
    return info.is_native && info.head_dim <= LK_MATRIX_HEAD_DIM && !info.strips[kPlane16] &&
           (info.is_value || !info.strips[kPlane1]) &&
           info.minima_offset == n_parameters * info.parameter_bytes &&
           info.group % LK_STRIP_CHANNELS == 0;
}

// LK_SPEC_WIDTHS of a packed format.
uint32_t widths_of(const FormatInfo &info) {
    uint32_t widths = 0;
    for (uint32_t plane = 0; plane < kPlaneCount; ++plane)
        if (info.strips[plane] && kPlaneBits[plane] < 16)
            widths |=
                info.is_value ? LK_VALUES_OF(kPlaneBits[plane]) : LK_KEYS_OF(kPlaneBits[plane]);
    return widths;
}

FormatInfo info_of(const PageFormat &format) {
    return gpu::format_info(format, format.permutation ? 1 : 0);
}

// The form of a layer whose pages are all raw.
constexpr PageForm kRawForm = {0, 0, 0, 2, LK_PERMUTATION_NONE, 2, 0, 1, 0, 0, 0};

// Calls call(format) for each packed format of a layer. False when a call was.
template <class Call>
bool for_each_format(const CacheLayout &layout, uint32_t layer, const Call &call) {
    bool is_done = true;
    for (uint32_t head = 0; head < layout.layers[layer].n_kv_heads; ++head) {
        const EntryFormats &entry = layout.entry_formats[layout.first_entries[layer] + head];
        is_done = is_done && call(entry.packed_key) && call(entry.packed_value);
    }
    for (uint32_t c = 0; layout.layer_formats && c < layout.layer_formats[layer].n_formats; ++c)
        is_done = is_done && call(layout.layer_formats[layer].formats[c]);
    return is_done;
}

}  // namespace

bool has_same_pipeline(const PageForm &a, const PageForm &b) {
    return a.key_folds == b.key_folds && a.key_end8 == b.key_end8 && a.key_end4 == b.key_end4 &&
           a.value_bits == b.value_bits && a.permutation == b.permutation &&
           a.parameter_bytes == b.parameter_bytes && a.high_slots == b.high_slots &&
           a.passes == b.passes && a.only_form == b.only_form;
}

bool DecodeRules::number_formats(const CacheLayout &layout) {
    if (!format_forms_.resize(layout.n_formats))
        return false;
    for (uint32_t c = 0; c < layout.n_formats; ++c) {
        const FormatInfo info = info_of(layout.formats[c]);
        if (info.is_raw || !suits_matrices(info))
            continue;
        const uint64_t shape = shape_of(info);
        size_t i = 0;
        while (i < shapes_.size() && shapes_[i] != shape)
            ++i;
        if (i == shapes_.size() && !shapes_.push(shape))
            return false;
        format_forms_[c] = static_cast<uint16_t>(i + 1);
    }
    return true;
}

// Kernels of matrices have one dim for keys and for values.
bool DecodeRules::can_have_matrices(const LayerView &view) const {
    return traits_.cooperative_matrix && !view.is_uneven() && view.head_dim <= LK_MATRIX_HEAD_DIM;
}

DecodeRules::Layer DecodeRules::make_layer(const CacheLayout &layout, uint32_t index) const {
    const LayerView &view = layout.layers[index];
    Layer layer = {view.n_query_heads / view.n_kv_heads,
                   {view.head_dim, view.value_dim},
                   !view.is_latent,
                   false,
                   false,
                   can_have_matrices(view),
                   1,
                   value_steps_of(view.value_dim, view.value_dim),
                   bytes_of_parameter(Metadata::kF16),
                   0,
                   0,
                   0,
                   1,
                   1};
    bool is_first = true;
    for_each_format(layout, index, [&](uint16_t packed) {
        const FormatInfo info = info_of(layout.formats[packed]);
        layer.is_native = layer.is_native && info.is_native;
        if (info.is_raw)
            return true;
        if (is_first || layer.parameter_bytes != info.parameter_bytes)
            layer.parameter_bytes = is_first ? info.parameter_bytes : 0;
        is_first = false;
        layer.widths |= widths_of(info);
        layer.has_matrices = layer.has_matrices && format_forms_[packed];
        layer.has_shared = layer.has_shared || info.n_shared;
        layer.is_grouped = layer.is_grouped || info.parameter_bytes != 2 || info.n_groups > 1;
        if (info.is_value)
            layer.value_steps =
                std::max(layer.value_steps, value_steps_of(view.value_dim, info.group));
        else
            layer.key_groups = std::max<uint32_t>(layer.key_groups, info.n_groups);
        return true;
    });
    // Those kernels look for codes of both sides in each packed page.
    if (layout.layer_formats && layout.layer_formats[index].has_half_raw)
        layer.has_matrices = false;
    return layer;
}

// Without matrices: has a workgroup of one team, which is the least, the shared memory that it
// takes?
bool DecodeRules::has_room(uint32_t layer) const {
    const Layer &of = layers_[layer];
    return of.has_matrices || decode_shared_bytes(of.dims, tile_columns(layer, UINT32_MAX), 1,
                                                  arithmetic(layer), traits_.subgroup, folds(layer),
                                                  higher_slots(layer)) <= traits_.max_shared_bytes;
}

// A page of these formats. Where all pages of a layer are alike and plain, add_forms() makes
// constants of what is pushed otherwise.
bool DecodeRules::add_form(const CacheLayout &layout, uint16_t key_format, uint16_t value_format,
                           Layer *layer) {
    if (layout.formats[key_format].layout.is_raw() || layout.formats[value_format].layout.is_raw())
        return true;
    const uint32_t formats = formats_of(key_format, value_format);
    for (uint32_t i = 0; i < layer->n_forms; ++i)
        if (forms_[layer->first_form + i].formats == formats)
            return true;
    const uint64_t key = shapes_[format_forms_[key_format] - 1];
    const uint64_t value = shapes_[format_forms_[value_format] - 1];
    const bool is_of_page = permutation_of_shape(key) == LK_PERMUTATION_OF_PAGE;
    // One format of parameters in both: a plan has it by layers.
    layer->has_matrices =
        layer->has_matrices && parameter_bytes_of_shape(key) == parameter_bytes_of_shape(value);
    const uint32_t folds = folds_of(info_of(layout.formats[key_format]).n_groups);
    ++layer->n_forms;
    return forms_.push({folds, 0, 0, bits_of_shape(value),
                        is_of_page ? LK_PERMUTATION_OF_PAGE : LK_PERMUTATION_OF_FORMAT,
                        parameter_bytes_of_shape(key),
                        high_slots_of(info_of(layout.formats[key_format]).n_shared), 1, 0,
                        form_of_shape(key) | form_of_shape(value), formats});
}

// The forms of a layer's pages: of each head's, and where pages change their formats, of any keys
// with any values.
bool DecodeRules::add_forms(const CacheLayout &layout, uint32_t index, Layer *layer) {
    layer->n_forms = 0;
    const LayerView &view = layout.layers[index];
    bool is_done = true;
    for (uint32_t head = 0; head < view.n_kv_heads; ++head) {
        const EntryFormats &entry = layout.entry_formats[layout.first_entries[index] + head];
        is_done = is_done && add_form(layout, entry.packed_key, entry.packed_value, layer);
    }
    const bool changes = layout.layer_formats && layout.layer_formats[index].n_formats;
    if (changes)
        is_done = is_done && for_each_format(layout, index, [&](uint16_t key) {
                      return layout.formats[key].layout.side != Side::kKey ||
                             for_each_format(layout, index, [&](uint16_t value) {
                                 return layout.formats[value].layout.side != Side::kValue ||
                                        layer->n_forms > kMostForms ||
                                        add_form(layout, key, value, layer);
                             });
                  });
    layer->max_forms = (changes ? layer->n_forms : 1) + 1;
    if (changes && layer->n_forms > kMostForms)
        layer->has_matrices = false;
    return is_done;
}

// A layer's only form as constants of its pipeline, where no more has to be pushed.
void DecodeRules::make_plain(uint32_t head_dim, PageForm *form) const {
    const uint64_t key = shapes_[(form->formats & 0xFFFF) - 1];
    const uint32_t one_group =
        field(1, LK_FORM_KEY_GROUPS) | field(head_dim / LK_STRIP_CHANNELS, LK_FORM_VALUE_STRIPS);
    const uint32_t end8 = form->form & 31;
    const uint32_t end4 = form->form >> 5 & 31;
    const uint32_t plain =
        one_group | field(end8, LK_FORM_KEY_END8) | field(end4, LK_FORM_KEY_END4);
    if (form->form != plain || form->value_bits == 1 ||
        form->parameter_bytes != bytes_of_parameter(Metadata::kF16))
        return;
    form->key_folds = 0;
    form->key_end8 = end8;
    form->key_end4 = end4;
    form->permutation = permutation_of_shape(key);
}

// Forms that differ in nothing else share a pipeline, so workgroups of all layers are as large.
void DecodeRules::find_high_slots() {
    for (PageForm &form : forms_) {
        for (const PageForm &other : forms_)
            if (form.key_folds == other.key_folds)
                form.high_slots = std::max(form.high_slots, other.high_slots);
        most_folds_ = std::max(most_folds_, form.key_folds / form.passes);
        has_single_fold_ = has_single_fold_ || form.key_folds == 1;
        most_high_slots_ = std::max(most_high_slots_, form.high_slots);
    }
}

// A plan of few forms has them as constants of its pipelines. Keys of several token groups gain by
// two passes there; with pushed forms some layers of `auto` lose as much as others gain.
void DecodeRules::find_constants() {
    uint32_t n_different = 0;
    for (size_t i = 0; i < forms_.size(); ++i) {
        bool is_new = forms_[i].key_folds;
        for (size_t j = 0; is_new && j < i; ++j)
            is_new = forms_[j].form != forms_[i].form || !has_same_pipeline(forms_[j], forms_[i]);
        n_different += is_new;
    }
    has_few_forms_ = n_different <= kFewForms;
    for (PageForm &form : forms_)
        if (has_few_forms_ && form.key_folds) {
            form.only_form = form.form;
            form.passes = form.key_folds > 1 ? 2 : 1;
        }
}

bool DecodeRules::open(const CacheLayout &layout) {
    if (!layers_.resize(layout.n_layers) || !number_formats(layout))
        return false;
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
        Layer layer = make_layer(layout, l);
        widths_ |= layer.widths;
        layer.first_form = static_cast<uint32_t>(forms_.size());
        if (layer.has_matrices && !add_forms(layout, l, &layer))
            return false;
        if (!layer.has_matrices) {
            (void)forms_.resize(layer.first_form);
            layer.n_forms = layer.max_forms = 1;
        } else if (!layer.n_forms) {
            layer.n_forms = 1;
            if (!forms_.push(kRawForm))
                return false;
        } else if (layer.n_forms == 1) {
            make_plain(layer.dims.keys, &forms_[layer.first_form]);
        }
        for (uint32_t i = 0; layer.has_matrices && i < layer.n_forms; ++i)
            layer.key_folds = std::max(layer.key_folds, forms_[layer.first_form + i].key_folds);
        max_forms_ = std::max(max_forms_, layer.max_forms);
        layers_[l] = layer;
        layers_[l].is_native = layer.is_native && has_room(l);
    }
    find_constants();
    find_high_slots();
    return true;
}

uint32_t DecodeRules::form_of(uint32_t layer, uint16_t key_format, uint16_t value_format) const {
    const Layer &of = layers_[layer];
    const uint32_t formats = formats_of(key_format, value_format);
    for (uint32_t i = 1; i < of.n_forms; ++i)
        if (forms_[of.first_form + i].formats == formats)
            return i;
    return 0;
}

gpu::SplitLimits DecodeRules::limits() const {
    return {traits_.n_cores, kWorkers * traits_.n_cores, kMaxTiles * LK_DECODE_MAX_COLUMNS,
            kMaxTiles,       LK_DECODE_MAX_COLUMNS,      0,
            max_forms_};
}

gpu::SplitShape DecodeRules::shape(uint32_t layer, uint32_t, uint32_t n_columns) const {
    const uint32_t columns = tile_columns(layer, n_columns);
    const bool has_matrices = arithmetic(layer) == DecodeArithmetic::kMatrix;
    const uint32_t n_workers = core_workers(layer, columns) * traits_.n_cores;
    const uint32_t n_teams = page_teams(layer, columns);
    // A page that teams share takes them as long whatever its widths, so an item has a block less
    // or more.
    const DecodeDims &dims = layers_[layer].dims;
    const uint32_t raw_page_bytes = 2 * LK_MAX_PAGE_TOKENS * (dims.keys + dims.values);
    gpu::SplitShape shape = {n_workers,
                             threads(layer, columns) / LK_LANES / n_teams,
                             columns,
                             kItemBytes,
                             has_matrices,
                             0,
                             n_teams > 1 ? raw_page_bytes : 0};
    if (!has_matrices)
        shape.byte_percent = kVectorBytePercent;
    shape.n_idle = n_variants(layer, columns) - 1;
    for (uint32_t i = 0; i < shape.n_idle; ++i) {
        const DecodeVariant idle = variant(layer, columns, i + 1);
        const uint32_t n_readers = idle.threads / LK_LANES;
        shape.idle[i] = {n_readers > shape.n_readers ? traits_.n_cores : n_workers, n_readers,
                         idle.page_parts};
    }
    return shape;
}

bool DecodeRules::takes(uint32_t layer, uint32_t max_new) const {
    const uint32_t group = layers_[layer].group;
    const uint32_t most =
        max_new > 1 ? kMaxColumns : std::max(kMaxColumns, kMaxTiles * tile_columns(layer, group));
    return takes(layer) && uint64_t{max_new} * group <= most;
}

// NVIDIA's compiler keeps sums of FP32 arithmetic in registers, and not always those of FP16.
DecodeArithmetic DecodeRules::arithmetic(uint32_t layer) const {
    if (layers_[layer].has_matrices)
        return DecodeArithmetic::kMatrix;
    return traits_.float16 && traits_.vendor_id != kNvidia ? DecodeArithmetic::kFloat16
                                                           : DecodeArithmetic::kFloat32;
}

uint32_t DecodeRules::tile_columns(uint32_t layer, uint32_t n_columns) const {
    const uint32_t group = layers_[layer].group;
    return decode_columns(layers_[layer].dims, n_columns > group ? kMaxColumns : group,
                          arithmetic(layer));
}

// Workgroups of few teams, of which a core runs several, have larger ones for steps that leave
// cores idle. Else two teams take a plain page of few vectors: both load all of them, so pages of
// many take as long.
uint32_t DecodeRules::n_variants(uint32_t layer, uint32_t tile_columns) const {
    const Layer &of = layers_[layer];
    if (!of.has_matrices || !of.widths || has_pushed_forms(layer))
        return 1;
    if (has_wide_workgroups(layer, tile_columns))
        return 3;
    const PageForm &form = forms_[of.first_form];
    const uint32_t n_strips = of.dims.keys / LK_STRIP_CHANNELS;
    const uint32_t n_vectors =
        n_strips + 2 * form.key_end8 + form.key_end4 + n_strips * form.value_bits / 2;
    const bool has_teams = threads(layer, tile_columns) > LK_LANES;
    return has_teams && n_vectors < kManyVectors * n_strips ? 2 : 1;
}

DecodeVariant DecodeRules::variant(uint32_t layer, uint32_t tile_columns, uint32_t i) const {
    const bool is_wide = i && has_wide_workgroups(layer, tile_columns);
    return {
        is_wide ? threads_in(layer, tile_columns, kWideSharedBytes) : threads(layer, tile_columns),
        is_wide ? i : i + 1};
}

bool DecodeRules::has_wide_workgroups(uint32_t layer, uint32_t tile_columns) const {
    return threads_in(layer, tile_columns, kWideSharedBytes) > threads(layer, tile_columns);
}

uint32_t DecodeRules::threads_in(uint32_t layer, uint32_t tile_columns,
                                 uint32_t shared_bytes) const {
    return decode_threads(layers_[layer].dims, tile_columns, arithmetic(layer), traits_.subgroup,
                          folds(layer), higher_slots(layer),
                          std::min(shared_bytes, traits_.max_shared_bytes));
}

uint32_t DecodeRules::threads(uint32_t layer, uint32_t tile_columns) const {
    return threads_in(layer, tile_columns, wanted_shared_bytes(layer));
}

uint32_t DecodeRules::page_teams(uint32_t layer, uint32_t tile_columns) const {
    return decode_shares_pages(layers_[layer].dims, arithmetic(layer))
               ? threads(layer, tile_columns) / LK_LANES
               : 1;
}

// Of a workgroup, which has as many teams as fit.
uint32_t DecodeRules::wanted_shared_bytes(uint32_t layer) const {
    const Layer &of = layers_[layer];
    if (of.has_matrices)
        return !has_pushed_forms(layer) ? kSharedBytes
               : has_single_fold_       ? kFormSharedBytes
               : has_few_forms_         ? kPassSharedBytes
                                        : kFoldSharedBytes;
    if (decode_shares_pages(of.dims, arithmetic(layer)))
        return kPageSharedBytes;
    if (arithmetic(layer) == DecodeArithmetic::kFloat32)
        return kVectorSharedBytes;
    return of.is_grouped ? kGroupSharedBytes : kHalfSharedBytes;
}

// Layers with pushed forms share pipelines, so their workgroups are cut for the form that needs
// most.
uint32_t DecodeRules::folds(uint32_t layer) const {
    if (!layers_[layer].has_matrices)
        return vector_folds(layer);
    return has_pushed_forms(layer) ? most_folds_ : 0;
}
uint32_t DecodeRules::vector_folds(uint32_t layer) const {
    return layers_[layer].is_grouped ? folds_of(layers_[layer].key_groups) : 0;
}
uint32_t DecodeRules::higher_slots(uint32_t layer) const {
    return has_pushed_forms(layer) ? most_high_slots_ : 0;
}

// Workgroups that a core takes at once.
uint32_t DecodeRules::core_workers(uint32_t layer, uint32_t tile_columns) const {
    const Layer &of = layers_[layer];
    if (of.has_matrices && !has_pushed_forms(layer))
        return kMatrixWorkers;
    if (arithmetic(layer) == DecodeArithmetic::kFloat16)
        return kWorkers;
    const uint32_t n_teams = threads(layer, tile_columns) / LK_LANES;
    const uint32_t bytes = decode_shared_bytes(of.dims, tile_columns, n_teams, arithmetic(layer),
                                               traits_.subgroup, folds(layer), higher_slots(layer));
    const uint32_t fit = std::min(kFormTeams / n_teams, traits_.max_shared_bytes / bytes);
    return std::min(std::max(fit, kFormWorkers), kWorkers);
}

}  // namespace vulkan
}  // namespace lk
