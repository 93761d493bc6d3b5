// A packed page by its strips, as packing and dequantizing see it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_STRIP_PAGE_H
#define LK_BACKEND_CPU_STRIP_PAGE_H

#include "backend/cpu/kernels.h"
#include "backend/cpu/pack_tiles.h"
#include "format/codec.h"

namespace lk {
namespace cpu {

constexpr uint32_t kStripCodes = LK_MAX_PAGE_TOKENS * LK_STRIP_CHANNELS;

class StripPage {
  public:
    // row_stride: of rows of its values, keys by [token][stored], values by [stored][token].
    StripPage(const PageLayout &layout, uint64_t row_stride);

    uint32_t n_strips() const { return layout_.head_dim / LK_STRIP_CHANNELS; }
    uint32_t n_tiles() const { return layout_.page_tokens / LK_TILE_TOKENS; }
    uint32_t n_raw() const { return n_raw_; }  // strips at 16 bits, which come first
    bool is_value() const { return layout_.side == Side::kValue; }
    // Of a strip's values among those of the page, and between its tiles.
    uint64_t first_value(uint32_t strip) const {
        return uint64_t{strip} * LK_STRIP_CHANNELS * (is_value() ? row_stride_ : 1);
    }
    uint64_t tile_stride() const { return is_value() ? 16 : 16 * row_stride_; }

    // Channels [begin, end) below 16 bits of the group of channels that begins at `first`.
    struct Channels {
        uint32_t begin;
        uint32_t end;
    };
    Channels group_channels(uint32_t first) const;

    // Rules of a strip. minima, ranges: with ranges of channels [token group][16 channels], with
    // those of tokens [page_tokens].
    StripRules rules(uint32_t strip, const float *minima, const float *ranges) const;

    bool is_outlier(uint32_t stored) const {
        return stored >= shared_first_ + layout_.n_shared &&
               stored < shared_first_ + 2u * layout_.n_shared;
    }
    bool is_partner(uint32_t stored) const {
        return stored >= shared_first_ && stored < shared_first_ + layout_.n_shared;
    }
    // The highest bit of an outlier's code lies above its partner's code, whose strip is the same
    // or an earlier one: at bit high_bits(outlier) + token_bits(token) of the payload.
    uint64_t high_bits(uint32_t outlier) const;
    uint32_t token_bits(uint32_t token) const { return token_bits_[token]; }

  private:
    const PageLayout &layout_;
    const uint64_t row_stride_;
    const uint32_t n_raw_;
    const uint32_t shared_first_;
    uint32_t first_[LK_MAX_PAGE_TOKENS / LK_TILE_TOKENS];  // StripRules::first
    // Of pages with pairs, in a strip at 2 bits. A token and a channel decide different bits of a
    // place, so those of the two add up.
    uint16_t token_bits_[LK_MAX_PAGE_TOKENS];
};

}  // namespace cpu
}  // namespace lk

#endif
