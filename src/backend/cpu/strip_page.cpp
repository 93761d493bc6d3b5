// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/strip_page.h"

namespace lk {
namespace cpu {

namespace {

// Of a strip at 2 bits.
uint32_t bit_in_strip(const PageLayout &layout, uint32_t token, uint32_t channel) {
    const BitPosition at = find_bit(layout.side, layout.page_tokens, 2, token, channel);
    return at.word * 32 + at.bit;
}

}  // namespace

StripPage::StripPage(const PageLayout &layout, uint64_t row_stride)
    : layout_(layout),
      row_stride_(row_stride),
      n_raw_(layout.strips[kPlane16]),
      shared_first_(strips_before(layout.strips, kPlane2) * LK_STRIP_CHANNELS) {
    for (uint32_t token = 0; layout.n_shared && token < layout.page_tokens; ++token)
        token_bits_[token] = static_cast<uint16_t>(bit_in_strip(layout, token, 0));
    for (uint32_t tile = 0; tile < n_tiles(); ++tile)
        first_[tile] = layout.axis == Axis::kChannel ? tile * 16 / layout.group * 16 : tile * 16;
}

StripPage::Channels StripPage::group_channels(uint32_t first) const {
    const uint32_t wanted = first + layout_.group;
    const uint32_t raw_end = n_raw_ * LK_STRIP_CHANNELS;
    return {first < raw_end ? raw_end : first,
            wanted < layout_.head_dim ? wanted : layout_.head_dim};
}

StripRules StripPage::rules(uint32_t strip, const float *minima, const float *ranges) const {
    const bool is_by_row = !is_value() && layout_.axis == Axis::kToken;
    StripRules rules = {row_stride_, tile_stride(), n_tiles(), is_by_row, minima,
                        ranges,      first_,        {},        {}};
    const uint32_t strip_bits = find_strip(layout_, strip).bits;
    for (uint32_t k = 0; k < LK_STRIP_CHANNELS; ++k) {
        const uint32_t stored = strip * LK_STRIP_CHANNELS + k;
        const uint32_t bits = is_partner(stored) ? 1 : is_outlier(stored) ? 3 : strip_bits;
        rules.tops[k] = static_cast<float>(top_code(bits));
        rules.steps[k] = code_step(bits);
    }
    return rules;
}

uint64_t StripPage::high_bits(uint32_t outlier) const {
    const uint32_t partner = outlier - layout_.n_shared;
    const uint64_t strip = find_strip(layout_, partner / LK_STRIP_CHANNELS).offset;
    return 8 * strip + bit_in_strip(layout_, 0, partner % LK_STRIP_CHANNELS) + 1;
}

}  // namespace cpu
}  // namespace lk
