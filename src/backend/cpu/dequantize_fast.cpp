// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/dequantize_fast.h"

#include "backend/cpu/strip_page.h"

namespace lk {
namespace cpu {

namespace {

class Dequantizer {
  public:
    Dequantizer(const Kernels &kernels, const PageLayout &layout, const uint8_t *payload,
                const uint8_t *metadata, uint16_t *values)
        : kernels_(kernels),
          layout_(layout),
          page_(layout, layout.side == Side::kValue ? layout.page_tokens : layout.head_dim),
          payload_(payload),
          metadata_(metadata),
          values_(values) {}

    void dequantize() {
        for (uint32_t strip = 0; strip < page_.n_raw(); ++strip)
            read_raw_strip(strip);
        if (layout_.axis == Axis::kChannel)
            for (uint32_t strip = page_.n_raw(); strip < page_.n_strips(); ++strip)
                read_channels(strip);
        else
            for (uint32_t first = 0; first < layout_.head_dim; first += layout_.group)
                read_channel_group(first);
    }

  private:
    void read_raw_strip(uint32_t strip) const {
        const auto *tiles =
            reinterpret_cast<const uint16_t *>(payload_ + find_strip(layout_, strip).offset);
        const uint64_t stride = page_.is_value() ? layout_.page_tokens : layout_.head_dim;
        for (uint32_t tile = 0; tile < page_.n_tiles(); ++tile)
            read_raw_tile(tiles + tile * 16ull * 16,
                          values_ + page_.first_value(strip) + tile * page_.tile_stride(), stride);
    }

    void load(uint32_t stored, uint32_t token, uint32_t at) {
        const uint32_t index = parameter_index(layout_, stored, token);
        ranges_[at] = parameter(ranges_offset_bytes(layout_), index);
        minima_[at] = parameter(minima_offset_bytes(layout_), index);
    }
    float parameter(uint64_t offset_bytes, uint32_t index) const {
        const uint32_t n_bytes = bytes_of_parameter(layout_.metadata);
        uint32_t bits = 0;
        std::memcpy(&bits, metadata_ + offset_bytes + uint64_t{index} * n_bytes, n_bytes);
        return parameter_to_float(bits, layout_.metadata);
    }

    void read_channels(uint32_t strip) {
        for (uint32_t first = 0, at = 0; first < layout_.page_tokens;
             first += layout_.group, at += LK_STRIP_CHANNELS)
            for (uint32_t k = 0; k < LK_STRIP_CHANNELS; ++k)
                load(strip * LK_STRIP_CHANNELS + k, first, at + k);
        read_strip(strip);
    }
    void read_channel_group(uint32_t first) {
        const StripPage::Channels channels = page_.group_channels(first);
        if (channels.begin >= channels.end)
            return;
        for (uint32_t token = 0; token < layout_.page_tokens; ++token)
            load(channels.begin, token, token);
        for (uint32_t stored = channels.begin; stored < channels.end; stored += LK_STRIP_CHANNELS)
            read_strip(stored / LK_STRIP_CHANNELS);
    }

    void read_strip(uint32_t strip) {
        const StripPosition at = find_strip(layout_, strip);
        const uint32_t low_bits = LK_LOW_BITS(at.bits);
        read_plane(payload_ + at.offset, layout_.page_tokens, low_bits, 0, codes_);
        if (at.bits != low_bits)
            read_plane(payload_ + at.high_offset, layout_.page_tokens, LK_HIGH_BITS(at.bits),
                       low_bits, codes_);
        for (uint32_t k = 0; layout_.n_shared && k < LK_STRIP_CHANNELS; ++k)
            split_pairs(strip * LK_STRIP_CHANNELS + k);
        kernels_.dequantize_strip(page_.rules(strip, minima_, ranges_), codes_,
                                  values_ + page_.first_value(strip));
    }

    // A partner's codes have 1 bit, and an outlier's third bit lies above its partner's.
    void split_pairs(uint32_t stored) {
        uint16_t *codes = codes_ + stored % LK_STRIP_CHANNELS;
        const bool is_outlier = page_.is_outlier(stored);
        if (!is_outlier && !page_.is_partner(stored))
            return;
        const uint64_t first = is_outlier ? page_.high_bits(stored) : 0;
        for (uint32_t token = 0; token < layout_.page_tokens; ++token) {
            uint16_t &code = codes[token * LK_STRIP_CHANNELS];
            const uint64_t bit = first + page_.token_bits(token);
            code = static_cast<uint16_t>(
                is_outlier ? code | (payload_[bit / 8] >> bit % 8 & 1u) << 2 : code & 1u);
        }
    }

    const Kernels &kernels_;
    const PageLayout &layout_;
    const StripPage page_;
    const uint8_t *const payload_;
    const uint8_t *const metadata_;
    uint16_t *const values_;
    alignas(64) float minima_[LK_MAX_PAGE_TOKENS];
    alignas(64) float ranges_[LK_MAX_PAGE_TOKENS];
    alignas(64) uint16_t codes_[kStripCodes];
};

}  // namespace

void dequantize_page_fast(const Kernels &kernels, const PageLayout &layout, const uint8_t *payload,
                          const uint8_t *metadata, const uint8_t *fixed_permutation,
                          uint16_t *scratch, uint16_t *values) {
    const uint32_t head_dim = layout.head_dim;
    const bool is_value = layout.side == Side::kValue;
    const bool is_permuted = layout.permutes || fixed_permutation;
    // Values are transposed after, and channels are put in order last.
    const bool keeps_order = !is_value && !is_permuted;
    Dequantizer(kernels, layout, payload, metadata, keeps_order ? values : scratch).dequantize();
    if (keeps_order)
        return;
    uint16_t places[LK_MAX_HEAD_DIM];
    for (uint32_t stored = 0; stored < head_dim; ++stored)
        places[stored] =
            static_cast<uint16_t>(channel_of(layout, metadata, fixed_permutation, stored));
    if (!is_value) {
        for (uint32_t token = 0; token < layout.page_tokens; ++token)
            for (uint32_t stored = 0; stored < head_dim; ++stored)
                values[uint64_t{token} * head_dim + places[stored]] =
                    scratch[uint64_t{token} * head_dim + stored];
        return;
    }
    transpose_rows({scratch, layout.page_tokens}, head_dim, layout.page_tokens, nullptr, values);
    for (uint32_t token = 0; is_permuted && token < layout.page_tokens; ++token) {
        uint16_t *row = values + uint64_t{token} * head_dim;
        uint16_t ordered[LK_MAX_HEAD_DIM];
        for (uint32_t stored = 0; stored < head_dim; ++stored)
            ordered[places[stored]] = row[stored];
        std::memcpy(row, ordered, head_dim * sizeof *row);
    }
}

}  // namespace cpu
}  // namespace lk
