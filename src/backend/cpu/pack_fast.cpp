// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/pack_fast.h"

#include "backend/cpu/pack_tiles.h"

namespace lk {
namespace cpu {

namespace {

constexpr uint32_t kStripCodes = LK_MAX_PAGE_TOKENS * LK_STRIP_CHANNELS;

// A page as rows and k of its tiles.
HalfRows orient_page(const PageLayout &layout, PageValues input, const uint8_t *permutation,
                     uint16_t *values) {
    const uint32_t head_dim = layout.head_dim;
    uint16_t channels[LK_MAX_HEAD_DIM];
    for (uint32_t stored = 0; permutation && stored < head_dim; ++stored)
        channels[stored] = static_cast<uint16_t>(load_channel(permutation, head_dim, stored));
    const HalfRows rows = {input.values, input.token_stride};
    if (layout.side == Side::kValue) {
        uint16_t places[LK_MAX_HEAD_DIM];
        for (uint32_t stored = 0; permutation && stored < head_dim; ++stored)
            places[channels[stored]] = static_cast<uint16_t>(stored);
        transpose_rows(rows, layout.page_tokens, head_dim, permutation ? places : nullptr, values);
        return {values, layout.page_tokens};
    }
    if (!permutation)
        return rows;
    for (uint32_t token = 0; token < layout.page_tokens; ++token)
        for (uint32_t stored = 0; stored < head_dim; ++stored)
            values[uint64_t{token} * head_dim + stored] =
                input.values[token * input.token_stride + channels[stored]];
    return {values, head_dim};
}

class Packer {
  public:
    Packer(const Kernels &kernels, const PageLayout &layout, const RangeRule &rule, HalfRows rows,
           uint8_t *payload, uint8_t *metadata)
        : kernels_(kernels),
          layout_(layout),
          rule_(rule),
          rows_(rows),
          n_raw_(layout.strips[kPlane16]),
          shared_first_(strips_before(layout.strips, kPlane2) * LK_STRIP_CHANNELS),
          payload_(payload),
          metadata_(metadata) {}

    void pack() {
        for (uint32_t token = 0; layout_.n_shared && token < layout_.page_tokens; ++token)
            token_bits_[token] = bit_in_strip(token, 0);
        for (uint32_t strip = 0; strip < n_raw_; ++strip)
            pack_raw_strip(strip);
        if (layout_.axis == Axis::kChannel)
            for (uint32_t strip = n_raw_; strip < n_strips(); ++strip)
                pack_channels(strip);
        else
            for (uint32_t first = 0; first < layout_.head_dim; first += layout_.group)
                pack_channel_group(first);
    }

  private:
    uint32_t n_strips() const { return layout_.head_dim / LK_STRIP_CHANNELS; }
    uint32_t n_tiles() const { return layout_.page_tokens / LK_TILE_TOKENS; }
    bool is_value() const { return layout_.side == Side::kValue; }
    HalfRows strip_rows(uint32_t strip) const {
        const uint64_t first = uint64_t{strip} * LK_STRIP_CHANNELS;
        return {rows_.values + (is_value() ? first * rows_.stride : first), rows_.stride};
    }
    uint64_t tile_stride() const { return is_value() ? 16 : 16 * rows_.stride; }

    void pack_raw_strip(uint32_t strip) const {
        const HalfRows rows = strip_rows(strip);
        auto *tiles = reinterpret_cast<uint16_t *>(payload_ + find_strip(layout_, strip).offset);
        for (uint32_t tile = 0; tile < n_tiles(); ++tile)
            write_raw_tile({rows.values + tile * tile_stride(), rows.stride},
                           tiles + tile * 16ull * 16);
    }

    // Of `count` groups, of stored channels from first_stored on or of tokens. n: a group's values.
    struct Group {
        uint32_t first_stored;
        uint32_t token;
        uint32_t n;
    };
    void store(const Group &group, const Parameters &p, float *minimum, float *range) const {
        const uint32_t index = parameter_index(layout_, group.first_stored, group.token);
        const uint32_t n_bytes = bytes_of_parameter(layout_.metadata);
        std::memcpy(metadata_ + ranges_offset_bytes(layout_) + uint64_t{index} * n_bytes,
                    &p.range_bits, n_bytes);
        std::memcpy(metadata_ + minima_offset_bytes(layout_) + uint64_t{index} * n_bytes,
                    &p.minimum_bits, n_bytes);
        *minimum = p.minimum;
        *range = p.range;
    }

    // Keys whose channels have ranges: of each group of tokens of a strip.
    void pack_channels(uint32_t strip) {
        const HalfRows rows = strip_rows(strip);
        const uint32_t first_stored = strip * LK_STRIP_CHANNELS;
        for (uint32_t first = 0, at = 0; first < layout_.page_tokens;
             first += layout_.group, at += LK_STRIP_CHANNELS)
            measure_columns({rows.values + first * rows.stride, rows.stride}, layout_.group,
                            LK_STRIP_CHANNELS, at, [&](uint32_t k) {
                                return Group{first_stored + k, first, layout_.group};
                            });
        for (uint32_t tile = 0; tile < n_tiles(); ++tile)
            first_[tile] = tile * 16 / layout_.group * 16;
        pack_strip(strip, false);
    }

    // Pages whose tokens have ranges: of a group of channels, but for those at 16 bits.
    void pack_channel_group(uint32_t first) {
        const uint32_t wanted = first + layout_.group;
        const uint32_t end = wanted < layout_.head_dim ? wanted : layout_.head_dim;
        const uint32_t raw_end = n_raw_ * LK_STRIP_CHANNELS;
        const uint32_t begin = first < raw_end ? raw_end : first;
        if (begin >= end)
            return;
        const HalfRows rows = strip_rows(begin / LK_STRIP_CHANNELS);
        const auto group_at = [&](uint32_t token) { return Group{begin, token, end - begin}; };
        if (is_value())
            measure_columns(rows, end - begin, layout_.page_tokens, 0, group_at);
        else
            measure_rows(rows, end - begin, group_at);
        for (uint32_t tile = 0; tile < n_tiles(); ++tile)
            first_[tile] = tile * 16;
        for (uint32_t strip = begin / LK_STRIP_CHANNELS; strip < end / LK_STRIP_CHANNELS; ++strip)
            pack_strip(strip, !is_value());
    }

    Parameters parameters(const Group &group, uint16_t low, uint16_t high) const {
        return make_parameters(Extremes{low, high}, layout_.metadata,
                               group_margin(layout_, rule_.clip, group.first_stored, group.n));
    }

    // Ranges and minima of n columns of n_rows values, to minima_ and ranges_ from `at` on.
    template <class GroupAt>
    void measure_columns(const HalfRows &rows, uint32_t n_rows, uint32_t n, uint32_t at,
                         GroupAt group_at) {
        // Only pairs differ from the other channels of their strip.
        const bool differ = layout_.n_shared && layout_.axis == Axis::kChannel;
        bool is_deviation =
            takes_deviation(layout_, rule_.one_bit, group_at(0).first_stored, n_rows);
        find_column_extremes(rows, n_rows, n, low_, high_);
        if (is_deviation || differ)
            kernels_.find_deviations(rows.values, rows.stride, n_rows, n, means_, deviations_);
        for (uint32_t i = 0; i < n; ++i) {
            const Group group = group_at(i);
            if (differ)
                is_deviation = takes_deviation(layout_, rule_.one_bit, group.first_stored, n_rows);
            store(group,
                  is_deviation ? deviation_parameters(means_[i], deviations_[i], layout_.metadata)
                               : parameters(group, low_[i], high_[i]),
                  minima_ + at + i, ranges_ + at + i);
        }
    }
    // The same of rows, one for each token.
    template <class GroupAt>
    void measure_rows(const HalfRows &rows, uint32_t n_columns, GroupAt group_at) {
        const bool is_deviation =
            takes_deviation(layout_, rule_.one_bit, group_at(0).first_stored, n_columns);
        if (!is_deviation)
            find_row_extremes(rows, layout_.page_tokens, n_columns, low_, high_);
        for (uint32_t token = 0; token < layout_.page_tokens; ++token)
            store(group_at(token),
                  is_deviation ? row_deviation(rows.values + token * rows.stride, n_columns)
                               : parameters(group_at(token), low_[token], high_[token]),
                  minima_ + token, ranges_ + token);
    }
    Parameters row_deviation(const uint16_t *row, uint32_t n) const {
        float values[LK_MAX_HEAD_DIM];
        for (uint32_t i = 0; i < n; ++i)
            values[i] = half_to_float(row[i]);
        return make_deviation_parameters(values, n, layout_.metadata);
    }

    bool is_shared(uint32_t stored) const {
        return stored >= shared_first_ && stored < shared_first_ + 2u * layout_.n_shared;
    }

    void pack_strip(uint32_t strip, bool is_by_row) {
        const StripPosition at = find_strip(layout_, strip);
        const HalfRows rows = strip_rows(strip);
        StripValues values = {rows.values, rows.stride, tile_stride(), n_tiles(), is_by_row,
                              minima_,     ranges_,     first_,        {},        {}};
        for (uint32_t k = 0; k < LK_STRIP_CHANNELS; ++k) {
            const uint32_t stored = strip * LK_STRIP_CHANNELS + k;
            const uint32_t bits = is_shared(stored) ? code_bits(layout_, stored) : at.bits;
            values.tops[k] = static_cast<float>(top_code(bits));
            values.steps[k] = code_step(bits);
        }
        kernels_.quantize_strip(values, codes_);
        const uint32_t low_bits = LK_LOW_BITS(at.bits);
        write_plane(codes_, layout_.page_tokens, low_bits, 0, payload_ + at.offset);
        if (at.bits != low_bits)
            write_plane(codes_, layout_.page_tokens, LK_HIGH_BITS(at.bits), low_bits,
                        payload_ + at.high_offset);
        if (layout_.n_shared && at.bits == 2)
            for (uint32_t k = 0; k < LK_STRIP_CHANNELS; ++k)
                write_high_bits(strip * LK_STRIP_CHANNELS + k);
    }

    // The highest bit of an outlier's codes lies above its partner's code, whose strip is written
    // by now: it is the same or an earlier one.
    void write_high_bits(uint32_t stored) const {
        if (stored < shared_first_ + layout_.n_shared || !is_shared(stored))
            return;
        const uint32_t partner = stored - layout_.n_shared;
        uint8_t *strip = payload_ + find_strip(layout_, partner / LK_STRIP_CHANNELS).offset;
        const uint32_t first_bit = bit_in_strip(0, partner % LK_STRIP_CHANNELS) + 1;
        const uint16_t *codes = codes_ + stored % LK_STRIP_CHANNELS;
        for (uint32_t token = 0; token < layout_.page_tokens; ++token) {
            const uint32_t bit = first_bit + token_bits_[token];
            const uint32_t high = codes[token * LK_STRIP_CHANNELS] >> 2;
            strip[bit / 8] = static_cast<uint8_t>(strip[bit / 8] | high << bit % 8);
        }
    }
    // Of a strip at 2 bits. A token and a channel decide different bits of the number, so those of
    // the two add up.
    uint16_t bit_in_strip(uint32_t token, uint32_t channel) const {
        const BitPosition at = find_bit(layout_.side, layout_.page_tokens, 2, token, channel);
        return static_cast<uint16_t>(at.word * 32 + at.bit);
    }

    const Kernels &kernels_;
    const PageLayout &layout_;
    const RangeRule rule_;
    const HalfRows rows_;
    const uint32_t n_raw_;  // strips
    const uint32_t shared_first_;
    uint8_t *const payload_;
    uint8_t *const metadata_;
    // Of the strip or the group of channels at hand.
    alignas(64) float minima_[LK_MAX_PAGE_TOKENS];
    alignas(64) float ranges_[LK_MAX_PAGE_TOKENS];
    uint16_t low_[LK_MAX_PAGE_TOKENS];
    uint16_t high_[LK_MAX_PAGE_TOKENS];
    float means_[LK_MAX_PAGE_TOKENS];
    float deviations_[LK_MAX_PAGE_TOKENS];
    uint32_t first_[LK_MAX_PAGE_TOKENS / LK_TILE_TOKENS];
    uint16_t token_bits_[LK_MAX_PAGE_TOKENS];  // bit_in_strip(token, 0), of pages with pairs
    alignas(64) uint16_t codes_[kStripCodes];
};

}  // namespace

void pack_page_fast(const Kernels &kernels, const PageLayout &layout, const RangeRule &rule,
                    PageValues input, const uint8_t *permutation, uint16_t *values,
                    uint8_t *payload, uint8_t *metadata) {
    std::memset(metadata, 0, metadata_bytes(layout));
    Packer(kernels, layout, rule, orient_page(layout, input, permutation, values), payload,
           metadata)
        .pack();
    if (layout.permutes)
        std::memcpy(metadata + permutation_offset_bytes(layout), permutation,
                    permutation_bytes(layout.head_dim));
}

}  // namespace cpu
}  // namespace lk
