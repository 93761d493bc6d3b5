// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/decode_rules.h"

#include <algorithm>

#include "backend/gpu/cache_tables.h"
#include "cuda/instances.h"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kMaxBlocks = 2;       // of a multiprocessor
constexpr uint32_t kMaxColumns = 64;     // of a KV head that decode takes
constexpr uint32_t kItemBytes = 131072;  // that a thread block reads while an item begins and ends
constexpr uint32_t kPageBytes = 10300;   // that a page of 128 tokens costs besides its own
// Of a thread block's shared memory, in addition to decode_shared_bytes().
constexpr uint32_t static_bytes(uint32_t head_dim) { return head_dim > 128 ? 4096 : 2048; }
// An item of 512 channels leaves four times the partial results of one of 128.
constexpr uint32_t item_bytes(uint32_t team) { return team > 2 ? kItemBytes * team : kItemBytes; }

uint32_t rounded_metadata(const PageLayout &shape) {
    return shape.is_raw() ? 0 : static_cast<uint32_t>(round_up(metadata_bytes(shape), 16));
}

// Of an uneven layer's formats.
class PackedPages {
  public:
    void add(const PageFormat &format) {
        const PageLayout &layout = format.layout;
        if (layout.is_raw())
            return;
        const bool is_key = layout.side == Side::kKey;
        uint32_t &most = is_key ? key_bytes_ : value_bytes_;
        most =
            std::max(most, static_cast<uint32_t>(payload_bytes(layout)) + rounded_metadata(layout) +
                               (format.permutation ? permutation_bytes(layout.head_dim) : 0));
        page_tokens_ = layout.page_tokens;
        if (is_key && !latent_code_bits(gpu::format_info(format, format.permutation ? 1 : 0)))
            all_coded_ = false;
    }
    // A latent layer stores no values.
    RowsPages of(bool is_latent) const {
        return {is_latent && all_coded_ ? key_bytes_ : 0,
                key_bytes_ + (is_latent ? 0 : value_bytes_), page_tokens_};
    }

  private:
    uint32_t key_bytes_ = 0;
    uint32_t value_bytes_ = 0;
    uint32_t page_tokens_ = LK_MAX_PAGE_TOKENS;
    bool all_coded_ = true;
};

// Native formats, and two more: keys with strips of 1 bit, which kernels of split-k columns read,
// and values with many groups, of which each warp of a team has its share.
bool is_readable(const FormatInfo &info) {
    FormatInfo wider = info;
    if (!info.is_value && info.page_tokens == LK_MAX_PAGE_TOKENS)
        wider.strips[kPlane1] = 0;
    if (info.is_value && has_teams(info.head_dim))
        wider.n_groups = static_cast<uint16_t>(info.n_groups * kTeamChannels / info.head_dim);
    return is_native_format(wider);
}

// The kinds of kernels that can read all formats of a layer.
struct PossibleKinds {
    bool native = true;
    bool plain = true;
    bool narrow = true;  // keys and values of 4 and 2 bits, keys of at most kChunkBytes
    bool f8_plain = true;
    bool f8_by_32 = true;
    bool f8_narrow = true;
    bool f8_wide = true;
    bool fits_teams = true;  // groups of values end where the channels of a team's warps do
    bool f8 = true;
    bool f16 = true;
    uint32_t page_tokens = LK_MAX_PAGE_TOKENS;  // of packed pages, which a cache has of one length
    bool permutes = false;                      // pages have orders of channels of their own
    bool shares_slots = false;                  // pages have shared slots
    bool bit_keys = false;                      // keys have strips of 1 bit

    void add(const PageFormat &format) {
        const FormatInfo info = gpu::format_info(format, format.permutation ? 1 : 0);
        if (!is_readable(info))
            native = plain = f8_plain = f8_by_32 = f8_narrow = f8_wide = f8 = f16 = false;
        permutes = permutes || info.permutes;
        shares_slots = shares_slots || info.n_shared;
        const bool is_bit = info.strips[kPlane1];
        const bool has_wide = info.strips[kPlane8] || (info.is_value && info.strips[kPlane4]);
        narrow = narrow && !info.is_raw && !info.strips[kPlane16] && !info.strips[kPlane8] &&
                 !is_bit && (info.is_value || info.payload_bytes <= kChunkBytes);
        if (info.is_raw)
            return;
        page_tokens = info.page_tokens;
        const bool is_f8 = info.parameter_bytes == bytes_of_parameter(Metadata::kF8);
        const bool has_bit_keys = is_bit && !info.is_value;
        const bool is_plain = info.n_groups == 1 && !info.n_shared && !has_bit_keys;
        plain = plain && is_plain && !is_f8 && !is_bit;
        f8_plain = f8_plain && is_plain && is_f8;
        bit_keys = bit_keys || has_bit_keys;
        f8_by_32 = f8_by_32 && is_f8 && info.group == 32 && !info.permutes && !is_bit;
        f8_wide =
            f8_wide && is_f8 && (info.group % 32 == 0 || info.n_groups == 1) && !info.permutes;
        f8_narrow = f8_narrow && f8_wide && !has_wide;
        fits_teams =
            fits_teams && (!info.is_value || info.n_groups == 1 ||
                           info.group % kTeamChannels == 0 || kTeamChannels % info.group == 0);
        f8 = f8 && is_f8;
        f16 = f16 && !is_f8;
    }
    // A work item lays out its queries for one page format of keys; without shared slots that suits
    // all formats of a head.
    void add_more_formats() {
        if (shares_slots)
            f8_by_32 = f8_narrow = f8_wide = false;
    }

    uint32_t fastest(uint32_t head_dim) const {
        if (page_tokens < LK_MAX_PAGE_TOKENS)
            return !native || !has_short_pages(head_dim) ? kDecodeNone
                   : page_tokens == 64                   ? kDecodeF16Pages64
                                                         : kDecodeF16Pages32;
        if (has_teams(head_dim) && !fits_teams)
            return kDecodeNone;
        if (bit_keys)
            return native ? kDecodeF16 : kDecodeNone;
        const bool has_f8 = has_plain_f8(head_dim) || has_teams(head_dim);
        const bool has_special = has_special_f8(head_dim);
        const bool has_narrow = has_special && !has_teams(head_dim);
        const bool has_split = has_teams(head_dim) || has_split_k(head_dim, kDecodeF8Wide);
        return plain                                  ? kDecodePlain
               : f8_plain && has_f8                   ? kDecodeF8Plain
               : f8_by_32 && has_special              ? kDecodeF8By32
               : f8_narrow && has_split && has_narrow ? kDecodeF8Narrow
               : f8_wide && has_split                 ? kDecodeF8Wide
               : f8                                   ? kDecodeF8
               : f16                                  ? kDecodeF16
                                                      : kDecodeNone;
    }
};

}  // namespace

// A layer is run as the kind that all of its heads can be run as.
bool DecodeRules::open(const CacheLayout &layout, uint32_t n_sms, uint32_t shared_bytes) {
    n_sms_ = n_sms;
    shared_bytes_ = shared_bytes;
    if (!layers_.resize(layout.n_layers))
        return false;
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
        const LayerView &view = layout.layers[l];
        Layer layer{};
        layer.group = view.n_query_heads / view.n_kv_heads;
        layer.head_dim = view.head_dim;
        layer.is_raw = true;
        layer.is_uneven = view.is_uneven();
        PossibleKinds kinds;
        PackedPages packed;
        bool differs = false;  // in the order of a head's formats
        for (uint32_t head = 0; head < view.n_kv_heads; ++head) {
            const EntryFormats &entry = layout.entry_formats[layout.first_entries[l] + head];
            const PageFormat &key = layout.formats[entry.packed_key];
            const PageFormat &value = layout.formats[entry.packed_value];
            // A work item reads one order of channels for all pages that have none of their own.
            differs = differs || entry.ordered_key == kNoFormat;
            kinds.add(key);
            kinds.add(value);
            layer.is_raw = layer.is_raw && key.layout.is_raw() && value.layout.is_raw();
            packed.add(key);
            packed.add(value);
            layer.key_metadata_bytes =
                std::max(layer.key_metadata_bytes, rounded_metadata(key.layout));
            layer.value_metadata_bytes =
                std::max(layer.value_metadata_bytes, rounded_metadata(value.layout));
        }
        const LayerFormats more = layout.layer_formats ? layout.layer_formats[l] : LayerFormats{};
        for (uint32_t c = 0; c < more.n_formats; ++c) {
            const PageFormat &format = layout.formats[more.formats[c]];
            uint32_t &metadata = format.layout.side == Side::kKey ? layer.key_metadata_bytes
                                                                  : layer.value_metadata_bytes;
            packed.add(format);
            kinds.add(format);
            layer.is_raw = layer.is_raw && format.layout.is_raw();
            metadata = std::max(metadata, rounded_metadata(format.layout));
        }
        if (more.n_formats)
            kinds.add_more_formats();
        layer.rows_pages = packed.of(view.is_latent);
        const bool has_kind = !differs && !layer.is_uneven;
        layer.kind = has_kind ? kinds.fastest(view.head_dim) : kDecodeNone;
        share_metadata(kinds.shares_slots, kinds.permutes, &layer);
        layer.is_narrow =
            layer.kind == kDecodePlain && kinds.narrow && has_narrow_wide_items(view.head_dim);
        const bool has_orders = kinds.permutes || (more.n_formats && kinds.shares_slots);
        if (has_orders && reads_all_formats(layer.kind))
            layer.own_bytes =
                decode_own_query_bytes(view.head_dim, decode_team(view.head_dim, 4, layer.kind));
        if (widens_parameters(layer.kind) && !kinds.f16)
            layer.own_bytes +=
                decode_widened_bytes(layer.key_metadata_bytes, layer.value_metadata_bytes);
        layers_[l] = layer;
    }
    return true;
}

// A warp of a team has the metadata of its part of a page; those of plain values are not cut, nor
// those of keys where single warps read them too, nor permutations under kinds of all formats.
void DecodeRules::share_metadata(bool shares_slots, bool permutes, Layer *layer) {
    const uint32_t team = decode_team(layer->head_dim, 4, layer->kind);
    layer->key_metadata_bytes /= team;
    if (team == 1 || layer->kind == kDecodePlain || layer->kind == kDecodeF8Plain)
        return;
    // Of a group of values.
    const uint32_t group_bytes = (layer->kind == kDecodeF16 ? 4 : 2) * LK_MAX_PAGE_TOKENS;
    layer->value_metadata_bytes = std::max(layer->value_metadata_bytes / team, group_bytes);
    layer->key_metadata_bytes += shares_slots ? decode_outlier_bytes(layer->kind) : 0;
    layer->key_metadata_bytes += permutes ? permutation_bytes(layer->head_dim) : 0;
}

uint32_t DecodeRules::tile_columns(const Layer &of, uint32_t n_columns) {
    const bool has_wide = has_wide_items(of.head_dim);
    const bool is_team = has_teams(of.head_dim);
    const bool needs_eight = n_columns > 4 || !(is_team || has_split_k(of.head_dim, of.kind));
    if (of.kind == kDecodeF8By32)
        return needs_eight && (has_wide || is_team) ? 8 : 4;
    if (of.kind == kDecodeF8Plain && is_team)
        return n_columns <= 4 ? 4 : 8;
    if (of.kind != kDecodePlain)
        return 4;
    return n_columns <= 4 ? 4 : n_columns <= 8 || !has_wide ? 8 : 16;
}

uint32_t DecodeRules::kind_of(const Layer &of, uint32_t columns) {
    // Teams have no kernel of four columns for groups of 32 alone.
    if (of.kind == kDecodeF8By32 && columns == 4 && has_teams(of.head_dim))
        return kDecodeF8Wide;
    return of.is_narrow && columns > 8 ? kDecodePlainNarrow : of.kind;
}

gpu::SplitLimits DecodeRules::limits() const {
    return {n_sms_, kMaxBlocks * n_sms_, kMaxColumns, kMaxColumns / 4, 16, kMaxBlocks * n_sms_, 1};
}

gpu::SplitShape DecodeRules::shape(uint32_t layer, uint32_t n_work_tiles,
                                   uint32_t n_columns) const {
    const Layer &of = layers_[layer];
    const uint32_t columns = tile_columns(of, n_columns);
    const DecodeShape blocks =
        decode_shape(of.head_dim, columns, kind_of(of, columns), n_work_tiles >= n_sms_);
    const uint32_t team = decode_team(of.head_dim, columns, of.kind);
    return {n_sms_ * blocks.n_blocks,
            warps(of, columns, blocks) / team,
            columns,
            item_bytes(team),
            false,
            kPageBytes * decode_page_tokens(of.kind) / LK_MAX_PAGE_TOKENS,
            team > 1 ? kPageBytes * team : 0};
}

// The warps of a thread block for which registers and shared memory suffice, in whole teams.
uint32_t DecodeRules::warps(const Layer &of, uint32_t columns, const DecodeShape &blocks) const {
    const uint32_t shared_bytes = shared_bytes_ / blocks.n_blocks - static_bytes(of.head_dim);
    const uint32_t ring_bytes =
        decode_ring_bytes(of.key_metadata_bytes, of.value_metadata_bytes, of.own_bytes);
    const uint32_t team = decode_team(of.head_dim, columns, of.kind);
    uint32_t n_warps = blocks.n_warps;
    if (shared_bytes_ <= kSmallSharedBytes)
        n_warps = std::min(n_warps, kSmallSharedWarps / blocks.n_blocks);
    while (n_warps > 1 &&
           decode_shared_bytes(of.head_dim, columns, of.kind, n_warps, ring_bytes) > shared_bytes)
        --n_warps;
    return std::max(n_warps - n_warps % team, team);
}

bool DecodeRules::takes(uint32_t layer, uint32_t max_new) const {
    const Layer &of = layers_[layer];
    return of.kind != kDecodeNone && decode_has_instance(of.head_dim) &&
           max_new * of.group <= kMaxColumns;
}

void DecodeRules::fill(uint32_t layer, const gpu::Split &split, DecodeArgs *args) const {
    const Layer &of = layers_[layer];
    args->n_warps =
        split.shape.n_readers * decode_team(of.head_dim, split.shape.tile_columns, of.kind);
    args->n_blocks = split.shape.n_workers;
    args->tile_columns = split.shape.tile_columns;
    args->own_bytes = of.own_bytes;
    args->key_metadata_bytes = of.key_metadata_bytes;
    args->value_metadata_bytes = of.value_metadata_bytes;
    args->kind = kind_of(of, split.shape.tile_columns);
}

}  // namespace cuda
}  // namespace lk
