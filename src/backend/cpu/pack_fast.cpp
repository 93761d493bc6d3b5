// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/pack_fast.h"

#include "backend/cpu/strip_page.h"

namespace lk {
namespace cpu {

namespace {

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
          page_(layout, rows.stride),
          rule_(rule),
          rows_(rows),
          payload_(payload),
          metadata_(metadata) {}

    void pack() {
        for (uint32_t strip = 0; strip < page_.n_raw(); ++strip)
            pack_raw_strip(strip);
        if (layout_.axis == Axis::kChannel)
            for (uint32_t strip = page_.n_raw(); strip < page_.n_strips(); ++strip)
                pack_channels(strip);
        else
            for (uint32_t first = 0; first < layout_.head_dim; first += layout_.group)
                pack_channel_group(first);
    }

  private:
    HalfRows strip_rows(uint32_t strip) const {
        return {rows_.values + page_.first_value(strip), rows_.stride};
    }

    void pack_raw_strip(uint32_t strip) const {
        const HalfRows rows = strip_rows(strip);
        auto *tiles = reinterpret_cast<uint16_t *>(payload_ + find_strip(layout_, strip).offset);
        for (uint32_t tile = 0; tile < page_.n_tiles(); ++tile)
            write_raw_tile({rows.values + tile * page_.tile_stride(), rows.stride},
                           tiles + tile * 16ull * 16);
    }

    // A stored channel or a token, and how many values have its range.
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
        pack_strip(strip);
    }

    // Pages whose tokens have ranges: of a group of channels.
    void pack_channel_group(uint32_t first) {
        const StripPage::Channels channels = page_.group_channels(first);
        if (channels.begin >= channels.end)
            return;
        const uint32_t n = channels.end - channels.begin;
        const HalfRows rows = strip_rows(channels.begin / LK_STRIP_CHANNELS);
        const auto group_at = [&](uint32_t token) { return Group{channels.begin, token, n}; };
        if (page_.is_value())
            measure_columns(rows, n, layout_.page_tokens, 0, group_at);
        else
            measure_rows(rows, n, group_at);
        for (uint32_t stored = channels.begin; stored < channels.end; stored += LK_STRIP_CHANNELS)
            pack_strip(stored / LK_STRIP_CHANNELS);
    }

    // Out of line: both have much code and several callers.
    __attribute__((noinline)) Parameters parameters(const Group &group, uint16_t low,
                                                    uint16_t high) const {
        return make_parameters(Extremes{low, high}, layout_.metadata,
                               group_margin(layout_, rule_.clip, group.first_stored, group.n));
    }
    __attribute__((noinline)) Parameters deviation(float mean, float distance) const {
        return deviation_parameters(mean, distance, layout_.metadata);
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
                  is_deviation ? deviation(means_[i], deviations_[i])
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

    void pack_strip(uint32_t strip) {
        const StripPosition at = find_strip(layout_, strip);
        kernels_.quantize_strip(page_.rules(strip, minima_, ranges_), strip_rows(strip).values,
                                codes_);
        const uint32_t low_bits = LK_LOW_BITS(at.bits);
        write_plane(codes_, layout_.page_tokens, low_bits, 0, payload_ + at.offset);
        if (at.bits != low_bits)
            write_plane(codes_, layout_.page_tokens, LK_HIGH_BITS(at.bits), low_bits,
                        payload_ + at.high_offset);
        for (uint32_t k = 0; layout_.n_shared && k < LK_STRIP_CHANNELS; ++k)
            if (page_.is_outlier(strip * LK_STRIP_CHANNELS + k))
                write_high_bits(strip * LK_STRIP_CHANNELS + k);
    }

    void write_high_bits(uint32_t outlier) const {
        const uint64_t first = page_.high_bits(outlier);
        const uint16_t *codes = codes_ + outlier % LK_STRIP_CHANNELS;
        for (uint32_t token = 0; token < layout_.page_tokens; ++token) {
            const uint64_t bit = first + page_.token_bits(token);
            const uint32_t high = codes[token * LK_STRIP_CHANNELS] >> 2;
            payload_[bit / 8] = static_cast<uint8_t>(payload_[bit / 8] | high << bit % 8);
        }
    }

    const Kernels &kernels_;
    const PageLayout &layout_;
    const StripPage page_;
    const RangeRule rule_;
    const HalfRows rows_;
    uint8_t *const payload_;
    uint8_t *const metadata_;
    // Of the strip or the group of channels at hand.
    alignas(64) float minima_[LK_MAX_PAGE_TOKENS];
    alignas(64) float ranges_[LK_MAX_PAGE_TOKENS];
    uint16_t low_[LK_MAX_PAGE_TOKENS];
    uint16_t high_[LK_MAX_PAGE_TOKENS];
    float means_[LK_MAX_PAGE_TOKENS];
    float deviations_[LK_MAX_PAGE_TOKENS];
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
