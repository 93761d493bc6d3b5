// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/pack.h"

#include "backend/cpu/dequantize_fast.h"
#include "backend/cpu/element.h"
#include "backend/cpu/pack_fast.h"
#include "backend/cpu/pack_tiles.h"
#include "format/codec.h"
#include "format/rotation.h"

namespace lk {
namespace cpu {

namespace {

// Offset in FP16 values of (token, channel) in a 16 x 16 tile of 16-bit values.
struct TileOffsets {
    uint8_t at[2][16][16];  // [is value][token][channel]
};

constexpr TileOffsets make_tile_offsets() {
    TileOffsets offsets{};
    for (uint32_t side = 0; side < 2; ++side)
        for (uint32_t token = 0; token < 16; ++token)
            for (uint32_t channel = 0; channel < 16; ++channel) {
                const uint32_t row = side ? channel : token;
                const uint32_t k = side ? token : channel;
                offsets.at[side][token][channel] = static_cast<uint8_t>(
                    LK_TILE_LANE(row, k) * 8 + LK_TILE_REGISTER(row, k) * 2 + LK_TILE_HALF(k));
            }
    return offsets;
}
constexpr TileOffsets kTileOffsets = make_tile_offsets();
constexpr uint32_t kTileHalves = LK_STRIP_CHANNELS * LK_TILE_TOKENS;
constexpr float kNoLimit = __builtin_huge_valf();

// A raw page, by tokens. Runs of tokens are [token][head_dim]; whole tiles of them go the short
// way.
class RawPage {
  public:
    RawPage(const PageFormat &format, uint64_t payload)
        : halves_(reinterpret_cast<uint16_t *>(payload)),
          permutation_(format.permutation),
          head_dim_(format.layout.head_dim),
          tokens_(format.layout.page_tokens),
          is_value_(format.layout.side == Side::kValue) {}

    void write_run(uint32_t first, uint32_t n, const uint16_t *values) const {
        each_part(
            first, n, [&](uint32_t token, uint64_t at) { write_tiles(token, values + at); },
            [&](uint32_t token, uint64_t at) { write(token, values + at); });
    }
    void read_run(uint32_t first, uint32_t n, uint16_t *values) const {
        each_part(
            first, n, [&](uint32_t token, uint64_t at) { read_tiles(token, values + at); },
            [&](uint32_t token, uint64_t at) { read(token, values + at); });
    }

  private:
    // Calls of_tile(token, place in the run) for 16 tokens that are whole tiles, of_token for every
    // other one.
    template <class OfTile, class OfToken>
    void each_part(uint32_t first, uint32_t n, OfTile of_tile, OfToken of_token) const {
        for (uint32_t i = 0; i < n;) {
            const uint32_t token = first + i;
            const bool is_whole = token % LK_TILE_TOKENS == 0 && n - i >= LK_TILE_TOKENS;
            if (is_whole)
                of_tile(token, uint64_t{i} * head_dim_);
            else
                of_token(token, uint64_t{i} * head_dim_);
            i += is_whole ? LK_TILE_TOKENS : 1;
        }
    }
    void write(uint32_t token, const uint16_t *values) const {
        for (uint32_t first = 0; first < head_dim_; first += LK_STRIP_CHANNELS) {
            uint16_t *tile = tile_of(first, token);
            const uint8_t *offsets = kTileOffsets.at[is_value_][token % LK_TILE_TOKENS];
            for (uint32_t c = 0; c < LK_STRIP_CHANNELS; ++c)
                tile[offsets[c]] = values[channel(first + c)];
        }
    }
    void read(uint32_t token, uint16_t *values) const {
        for (uint32_t first = 0; first < head_dim_; first += LK_STRIP_CHANNELS) {
            uint16_t *tile = tile_of(first, token);
            const uint8_t *offsets = kTileOffsets.at[is_value_][token % LK_TILE_TOKENS];
            for (uint32_t c = 0; c < LK_STRIP_CHANNELS; ++c)
                values[channel(first + c)] = tile[offsets[c]];
        }
    }

    uint32_t channel(uint32_t stored) const {
        return permutation_ ? load_channel(permutation_, head_dim_, stored) : stored;
    }
    uint16_t *tile_of(uint32_t first_channel, uint32_t token) const {
        return halves_ + static_cast<uint64_t>(first_channel) * tokens_ +
               token / LK_TILE_TOKENS * kTileHalves;
    }
    // 16 tokens from `token` on, a strip at a time: 16 of its channels, and rows of values.
    void write_tiles(uint32_t token, const uint16_t *values) const {
        uint16_t strip[kTileHalves];
        uint16_t turned[kTileHalves];
        for (uint32_t first = 0; first < head_dim_; first += LK_STRIP_CHANNELS) {
            HalfRows rows = {values + first, head_dim_};
            if (permutation_) {
                for (uint32_t i = 0; i < kTileHalves; ++i)
                    strip[i] = values[uint64_t{i / 16} * head_dim_ + channel(first + i % 16)];
                rows = {strip, LK_STRIP_CHANNELS};
            }
            if (is_value_) {
                transpose_rows(rows, LK_TILE_TOKENS, LK_STRIP_CHANNELS, nullptr, turned);
                rows = {turned, LK_TILE_TOKENS};
            }
            write_raw_tile(rows, tile_of(first, token));
        }
    }
    void read_tiles(uint32_t token, uint16_t *values) const {
        uint16_t strip[kTileHalves];
        uint16_t turned[kTileHalves];
        for (uint32_t first = 0; first < head_dim_; first += LK_STRIP_CHANNELS) {
            const uint16_t *tile = tile_of(first, token);
            if (!is_value_ && !permutation_) {
                read_raw_tile(tile, values + first, head_dim_);
                continue;
            }
            read_raw_tile(tile, strip, LK_STRIP_CHANNELS);
            if (is_value_)
                transpose_rows({strip, LK_TILE_TOKENS}, LK_STRIP_CHANNELS, LK_TILE_TOKENS, nullptr,
                               turned);
            const uint16_t *from = is_value_ ? turned : strip;
            for (uint32_t i = 0; i < kTileHalves; ++i)
                values[uint64_t{i / 16} * head_dim_ + channel(first + i % 16)] = from[i];
        }
    }

    uint16_t *halves_;
    const uint8_t *permutation_;
    uint32_t head_dim_;
    uint32_t tokens_;
    bool is_value_;
};

// How keys are changed before they are rounded.
struct KeyChange : RowChange {
    uint32_t rotation;  // channels of a block that is rotated last, 0 = none
};

Element element_of(lk_dtype dtype) {
    return dtype == LK_F32 ? Element::kF32 : dtype == LK_F16 ? Element::kF16 : Element::kBf16;
}

// FP16 values that stay as they are. Returns whether all are finite.
bool copy_values(const uint8_t *row, uint32_t n, uint16_t *out) {
    std::memcpy(out, row, n * sizeof *out);
    uint32_t n_bad = 0;
    for (uint32_t c = 0; c < n; ++c)
        n_bad += !half_is_finite(out[c]);
    return n_bad == 0;
}

bool load_row_plainly(const uint8_t *row, lk_dtype dtype, uint32_t n, const RowChange &change,
                      float *out) {
    bool is_finite = true;
    for (uint32_t c = 0; c < n; ++c) {
        float f = load_element(row, dtype, c);
        is_finite &= float_is_finite(f);
        if (change.centers)
            f -= change.centers[c];
        if (change.limit == kRotationLimit)
            f = cut_for_rotation(f);
        out[c] = change.inverses ? f * change.inverses[c] : f;
    }
    return is_finite;
}

uint32_t round_row_plainly(const float *values, uint32_t n, uint16_t *out) {
    uint32_t n_saturated = 0;
    for (uint32_t c = 0; c < n; ++c) {
        bool saturated = false;
        out[c] = float_to_half(values[c], &saturated);
        n_saturated += saturated;
    }
    return n_saturated;
}

// One row of n elements to FP16. Returns whether all were finite; saturated ones count only then.
bool convert_row(const Kernels *kernels, const uint8_t *row, lk_dtype dtype, uint32_t n,
                 const KeyChange &change, uint16_t *out, uint64_t *n_saturated) {
    const bool is_kept = dtype == LK_F16 && !change.centers && !change.inverses && !change.rotation;
    if (is_kept && copy_values(row, n, out))
        return true;
    alignas(64) float values[LK_MAX_HEAD_DIM];
    const bool is_finite = kernels ? kernels->load_row(row, element_of(dtype), n, change, values)
                                   : load_row_plainly(row, dtype, n, change, values);
    if (change.rotation)
        rotate_blocks(values, n, change.rotation);
    const uint32_t beyond =
        kernels ? kernels->round_row(values, n, out) : round_row_plainly(values, n, out);
    *n_saturated += is_finite ? beyond : 0;
    return is_finite;
}

// rank_by_key() and rank_by_query_range() of format/codec.h.
void choose_permutation(const Kernels &kernels, const PackItem &item, PageValues source,
                        uint8_t *permutation) {
    const PageLayout &layout = item.target->layout;
    const auto *query_stats = reinterpret_cast<const uint64_t *>(item.query_stats);
    float scores[LK_MAX_HEAD_DIM];
    if (item.target->ranking == Ranking::kKey) {
        kernels.sum_magnitudes(source.values, source.token_stride, layout.page_tokens,
                               layout.head_dim, scores);
    } else {
        uint16_t low[LK_MAX_HEAD_DIM];
        uint16_t high[LK_MAX_HEAD_DIM];
        find_column_extremes({source.values, source.token_stride}, layout.page_tokens,
                             layout.head_dim, low, high);
        for (uint32_t c = 0; c < layout.head_dim; ++c)
            scores[c] = query_range_score(query_stats[c], {low[c], high[c]});
    }
    rank_by_scores(scores, layout.head_dim, item.target->n_ranked, permutation);
}

void choose_permutation_plainly(const PackItem &item, PageValues source, uint8_t *permutation) {
    const PageLayout &layout = item.target->layout;
    if (item.target->ranking == Ranking::kKey)
        rank_by_key(source, layout.head_dim, layout.page_tokens, item.target->n_ranked,
                    permutation);
    else
        rank_by_query_range(source, layout.head_dim, layout.page_tokens,
                            reinterpret_cast<const uint64_t *>(item.query_stats),
                            item.target->n_ranked, permutation);
}

}  // namespace

void convert_token(const Kernels *kernels, const AppendArgs &args, uint32_t token,
                   uint64_t *n_saturated, uint64_t *bad) {
    const uint32_t dims[2] = {args.layer.head_dim, args.layer.stored_value_dim()};
    for (uint32_t head = 0; head < args.layer.n_kv_heads; ++head) {
        const uint32_t rotation = args.layer.key_rotation;
        const KeyChange changes[2] = {{{head_numbers(args.layer, args.layer.key_centers, head),
                                        head_numbers(args.layer, args.layer.key_inverses, head),
                                        rotation ? kRotationLimit : kNoLimit},
                                       rotation},
                                      {{nullptr, nullptr, kNoLimit}, 0}};
        const uint64_t at = static_cast<uint64_t>(head) * args.staging.n_tokens + token;
        for (uint32_t is_value = 0; is_value < 2 && dims[is_value]; ++is_value) {
            const TensorView &tensor = is_value ? args.v : args.k;
            uint16_t *out = (is_value ? args.staging.v : args.staging.k) + at * dims[is_value];
            const uint8_t *row = tensor_row(tensor, token, head);
            if (convert_row(kernels, row, tensor.dtype, dims[is_value], changes[is_value], out,
                            n_saturated))
                continue;
            const uint64_t code = bad_code(token, args.layer.n_kv_heads, head, is_value);
            *bad = code < *bad ? code : *bad;
        }
    }
}

void store_part(const AppendArgs &args, const PageFormat *classes, const BlockPart &part,
                uint32_t kv_head) {
    const PageEntry &entry = part.block->entries[args.first_entry + kv_head];
    const uint64_t first =
        static_cast<uint64_t>(kv_head) * args.staging.n_tokens + part.first_staged;
    RawPage(classes[entry.key_format], entry.key_payload)
        .write_run(part.token_in_block, part.n_tokens,
                   args.staging.k + first * args.layer.head_dim);
    if (!args.layer.is_latent)
        RawPage(classes[entry.value_format], entry.value_payload)
            .write_run(part.token_in_block, part.n_tokens,
                       args.staging.v + first * args.layer.value_dim);
}

void pack_part(const Kernels *kernels, const AppendArgs &args, const PageFormat *classes,
               const BlockPart &part, uint32_t kv_head, bool is_value, uint16_t *scratch) {
    if (is_value && args.layer.is_latent)
        return;
    const PackItem item =
        staged_page(args, classes, part.block->entries[args.first_entry + kv_head], kv_head,
                    part.first_staged, is_value);
    if (!is_ranked_by_queries(item))
        pack_item(kernels, item, scratch);
}

void pack_item(const Kernels *kernels, const PackItem &item, uint16_t *scratch) {
    const PageLayout &layout = item.target->layout;
    PageValues source = {reinterpret_cast<const uint16_t *>(item.source), layout.head_dim};
    if (item.source_format) {
        RawPage(*item.source_format, item.source).read_run(0, layout.page_tokens, scratch);
        source.values = scratch;
    }
    if (layout.is_raw()) {
        RawPage(*item.target, item.payload).write_run(0, layout.page_tokens, source.values);
        return;
    }
    uint8_t own[kMaxPermutationBytes];
    const uint8_t *permutation = item.target->permutation;
    if (item.target->ranking != Ranking::kNone) {
        if (kernels)
            choose_permutation(*kernels, item, source, own);
        else
            choose_permutation_plainly(item, source, own);
        permutation = own;
    }
    auto *payload = reinterpret_cast<uint8_t *>(item.payload);
    auto *metadata = reinterpret_cast<uint8_t *>(item.metadata);
    if (kernels)
        pack_page_fast(*kernels, layout, item.target->ranges, source, permutation,
                       scratch + kPageValues, payload, metadata);
    else
        pack_page(layout, item.target->ranges, source, permutation, payload, metadata);
}

void dequantize_item(const Kernels *kernels, const DequantizeItem &item, uint16_t *scratch) {
    const PageLayout &layout = item.source->layout;
    const auto *payload = reinterpret_cast<const uint8_t *>(item.source_payload);
    const auto *metadata = reinterpret_cast<const uint8_t *>(item.source_metadata);
    const uint8_t *permutation = item.source->permutation;
    const RawPage target(*item.target, item.target_payload);
    if (layout.is_raw()) {  // of any length
        const RawPage source(*item.source, item.source_payload);
        for (uint32_t first = 0; first < item.n_tokens; first += LK_MAX_PAGE_TOKENS) {
            const uint32_t rest = item.n_tokens - first;
            const uint32_t n = rest < LK_MAX_PAGE_TOKENS ? rest : LK_MAX_PAGE_TOKENS;
            source.read_run(first, n, scratch);
            target.write_run(first, n, scratch);
        }
        return;
    }
    if (kernels)
        dequantize_page_fast(*kernels, layout, payload, metadata, permutation,
                             scratch + kPageValues, scratch);
    else
        unpack_page(layout, payload, metadata, permutation, item.n_tokens, scratch,
                    layout.head_dim);
    target.write_run(0, item.n_tokens, scratch);
}

// Tokens that follow each other move together.
void move_item(const MoveItem &item, uint16_t *scratch) {
    const RawPage source(*item.source_format, item.source);
    const RawPage target(*item.target_format, item.target);
    uint32_t target_token = item.first_target;
    for (uint32_t i = 0; i < 64;) {
        uint32_t n = 0;
        while (i + n < 64 && item.mask >> (i + n) & 1)
            ++n;
        source.read_run(item.first_source + i, n, scratch);
        target.write_run(target_token, n, scratch);
        target_token += n;
        i += n ? n : 1;
    }
}

void sum_queries(const Kernels *kernels, const QueryStatArgs &args, const QueryStatRun &run,
                 uint32_t i, uint32_t head, uint64_t *sums) {
    const LayerView &layer = args.layer;
    const uint32_t group_size = layer.n_query_heads / layer.n_kv_heads;
    const uint32_t kv_head = run.first_head + head;
    const KeyChange change = {{nullptr, head_numbers(layer, layer.key_scales, kv_head),
                               layer.key_rotation ? kRotationLimit : kNoLimit},
                              layer.key_rotation};
    const uint32_t first = i * run.tokens_per_sum;
    const uint32_t n_left = run.n_tokens - first;
    const uint32_t n = n_left < run.tokens_per_sum ? n_left : run.tokens_per_sum;
    uint64_t n_saturated = 0;  // of queries nobody counts them
    std::memset(sums, 0, layer.head_dim * sizeof *sums);
    for (uint32_t t = 0; t < n; ++t)
        for (uint32_t h = 0; h < group_size; ++h) {
            const uint8_t *row = tensor_row(args.q, uint64_t{run.first_token} + first + t,
                                            uint64_t{kv_head} * group_size + h);
            uint16_t values[LK_MAX_HEAD_DIM];
            (void)convert_row(kernels, row, args.q.dtype, layer.head_dim, change, values,
                              &n_saturated);
            for (uint32_t c = 0; c < layer.head_dim; ++c) {
                const uint32_t exponent = (values[c] >> 10) & 0x1Fu;
                const uint64_t mantissa = values[c] & 0x3FFu;
                sums[c] += exponent ? (mantissa | 0x400u) << (exponent - 1) : mantissa;
            }
        }
}

void add_sum(const StatItem &item) {
    auto *target = reinterpret_cast<uint64_t *>(item.target);
    if (item.flags & kStatReplaces)
        std::memset(target, 0, item.n_channels * sizeof *target);
    for (uint64_t mask = item.mask, at = item.source; mask; mask >>= 1, at += item.stride_bytes) {
        auto *source = reinterpret_cast<uint64_t *>(at);
        if (!(mask & 1u))
            continue;
        for (uint32_t c = 0; c < item.n_channels; ++c)
            target[c] += source[c];
        if (item.flags & kStatClears)
            std::memset(source, 0, item.n_channels * sizeof *source);
    }
}

}  // namespace cpu
}  // namespace lk
