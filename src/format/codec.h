// Pack and dequantize pages, scalar: the written-out truth of docs/FORMAT.md.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_CODEC_H
#define LK_FORMAT_CODEC_H

#include "format/quantize.h"

namespace lk {

// Of a stored channel: partners and outliers are the two of a pair.
enum class Role { kOrdinary, kPartner, kOutlier };

// Where the codes of a stored channel lie.
struct CodePosition {
    StripPosition strip;
    uint32_t channel;  // 0..15 in the strip
    Role role;
    uint32_t index;  // of the pair

    // Of a code: 1 and 3 for the two of a pair.
    uint32_t bits() const {
        return role == Role::kPartner ? 1 : role == Role::kOutlier ? 3 : strip.bits;
    }
};
CodePosition find_code(const PageLayout &layout, uint32_t stored);

// Bits of a stored channel's codes.
inline uint32_t code_bits(const PageLayout &layout, uint32_t stored) {
    return find_code(layout, stored).bits();
}

// Set the code of a token, over zero bits or an earlier code. One of a pair changes its own bits
// alone.
void write_code(const PageLayout &layout, uint8_t *payload, const CodePosition &at, uint32_t token,
                uint32_t code);
inline void write_code(const PageLayout &layout, uint8_t *payload, uint32_t stored, uint32_t token,
                       uint32_t code) {
    write_code(layout, payload, find_code(layout, stored), token, code);
}

// A stored channel of a page that is read. What does not depend on the token is found once.
// metadata: null for a page of the 16-bit plane alone.
class StoredChannel {
  public:
    StoredChannel(const PageLayout &layout, const uint8_t *payload, const uint8_t *metadata,
                  uint32_t stored);
    uint32_t bits() const { return at_.bits(); }
    // The FP16 bits in the 16-bit plane.
    uint32_t code(uint32_t token) const;
    // Range and minimum, below 16 bits.
    Parameters parameters(uint32_t token) const;
    // The FP16 value of a 16-bit plane, else dequantize().
    float value(uint32_t token) const;

  private:
    const PageLayout &layout_;
    const uint8_t *payload_, *metadata_;
    uint64_t minima_offset_;
    uint32_t stored_;
    CodePosition at_, partner_;  // partner_: of an outlier, whose highest bit lies there
};

// The same for one (stored channel, token).
inline uint32_t read_code(const PageLayout &layout, const uint8_t *payload, uint32_t stored,
                          uint32_t token) {
    return StoredChannel(layout, payload, nullptr, stored).code(token);
}
inline Parameters read_parameters(const PageLayout &layout, const uint8_t *metadata,
                                  uint32_t stored, uint32_t token) {
    return StoredChannel(layout, nullptr, metadata, stored).parameters(token);
}
inline float unpack_value(const PageLayout &layout, const uint8_t *payload, const uint8_t *metadata,
                          uint32_t stored, uint32_t token) {
    return StoredChannel(layout, payload, metadata, stored).value(token);
}

// The channel of a stored channel, by the page's own permutation when the layout permutes, else by
// the fixed one, else (null) by the identity.
inline uint32_t channel_of(const PageLayout &layout, const uint8_t *metadata, const uint8_t *fixed,
                           uint32_t stored) {
    const uint8_t *own = layout.permutes ? metadata + permutation_offset_bytes(layout) : fixed;
    return own ? load_channel(own, layout.head_dim, stored) : stored;
}

// FP16 input of a page: value (token, channel) at values[token * token_stride + channel].
struct PageValues {
    const uint16_t *values;
    uint64_t token_stride;
};

// Quantize page_tokens tokens into payload_bytes() and metadata_bytes() bytes, all of which are
// written. permutation, permutation_bytes(), maps stored channels to channels, null for the
// identity; it is stored when the layout permutes.
void pack_page(const PageLayout &layout, const RangeRule &rule, PageValues input,
               const uint8_t *permutation, uint8_t *payload, uint8_t *metadata);

// Do the n values of a group take deviation parameters? first_stored: its first below 16 bits.
bool takes_deviation(const PageLayout &layout, OneBit one_bit, uint32_t first_stored, uint32_t n);
// What is cut off their range at each end, as a share of it: 0 unless all their codes have 2 bits.
float group_margin(const PageLayout &layout, float clip, uint32_t first_stored, uint32_t n);

// Rounded to FP16, tokens 0 .. n_tokens-1 into values [n_tokens][token_stride].
void unpack_page(const PageLayout &layout, const uint8_t *payload, const uint8_t *metadata,
                 const uint8_t *fixed_permutation, uint32_t n_tokens, uint16_t *values,
                 uint64_t token_stride);

// Order channels for a page that boosts n_ranked of them: those with the highest scores ascending,
// then the others ascending. permutation: permutation_bytes(head_dim). Ties go to the lower
// channel.
void rank_by_scores(const float *scores, uint32_t head_dim, uint32_t n_ranked,
                    uint8_t *permutation);
// RN32(RN32(query_stat) * RN32(high - low)), of a channel whose values these are the extremes of.
float query_range_score(uint64_t query_stat, Extremes extremes);
// Order channels for a page that boosts n_ranked of them: the boosted channels ascending, then the
// others ascending. permutation: permutation_bytes(head_dim). Ties go to the lower channel.
// By the sum of |K| over the page, FP32 in token order (Kitty):
void rank_by_key(PageValues input, uint32_t head_dim, uint32_t page_tokens, uint32_t n_ranked,
                 uint8_t *permutation);
// By RN32(RN32(query_stats[c]) * RN32(max - min of K's channel c over the page)); query_stats
// [head_dim] are sums of |Q| in units of 2^-24 (MixKVQ at Kitty's bytes):
void rank_by_query_range(PageValues input, uint32_t head_dim, uint32_t page_tokens,
                         const uint64_t *query_stats, uint32_t n_ranked, uint8_t *permutation);

// Shrink a plane's strip in place from 2b to b bits (b = 8, 4 or 2) by merging neighbouring words:
// words [strip_bytes(page_tokens, 2b) / 4]; the result fills the first 50 % of them.
void shrink_strip(uint32_t *words, uint32_t page_tokens, uint32_t bits);

}  // namespace lk

#endif
