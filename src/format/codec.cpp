// SPDX-License-Identifier: Apache-2.0
#include "format/codec.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <numeric>

namespace lk {

// Words are loaded and stored as they lie; a big-endian port has to swap here.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "pages are little endian");

namespace {

uint32_t load_word(const uint8_t *bytes, uint64_t index) {
    uint32_t word;
    std::memcpy(&word, bytes + 4 * index, sizeof word);
    return word;
}

void store_bits(uint8_t *bytes, BitPosition place, uint32_t shift, uint32_t width, uint32_t value) {
    const uint32_t low = place.bit + shift;
    const uint32_t mask = ((1u << width) - 1) << low;
    const uint32_t word = (load_word(bytes, place.word) & ~mask) | (value << low);
    std::memcpy(bytes + 4ull * place.word, &word, sizeof word);
}

uint32_t load_bits(const uint8_t *bytes, BitPosition place, uint32_t shift, uint32_t width) {
    return (load_word(bytes, place.word) >> (place.bit + shift)) & ((1u << width) - 1);
}

uint32_t first_of_two_bits(const PageLayout &layout) {
    return strips_before(layout.strips, kPlane2) * LK_STRIP_CHANNELS;
}

// The partner, whose upper bit is an outlier's highest bit.
CodePosition partner_of(const PageLayout &layout, uint32_t index) {
    return find_code(layout, first_of_two_bits(layout) + index);
}

BitPosition find_in(const PageLayout &layout, const CodePosition &at, uint32_t bits,
                    uint32_t token) {
    return find_bit(layout.side, layout.page_tokens, bits, token, at.channel);
}

uint32_t load_parameter(const PageLayout &layout, const uint8_t *array, uint32_t index) {
    const uint32_t n_bytes = bytes_of_parameter(layout.metadata);
    uint32_t bits = 0;
    std::memcpy(&bits, array + uint64_t{index} * n_bytes, n_bytes);
    return bits;
}

void store_parameter(const PageLayout &layout, uint8_t *array, uint32_t index, uint32_t bits) {
    const uint32_t n_bytes = bytes_of_parameter(layout.metadata);
    std::memcpy(array + uint64_t{index} * n_bytes, &bits, n_bytes);
}

uint32_t channel_of(const PageLayout &layout, const uint8_t *permutation, uint32_t stored) {
    return permutation ? load_channel(permutation, layout.head_dim, stored) : stored;
}

// The values of a stored channel of the 16-bit plane.
void copy_raw(const PageLayout &layout, PageValues input, const uint8_t *permutation,
              uint32_t stored, uint8_t *payload) {
    const uint32_t channel = channel_of(layout, permutation, stored);
    const CodePosition at = find_code(layout, stored);
    for (uint32_t token = 0; token < layout.page_tokens; ++token)
        write_code(layout, payload, at, token, input.values[token * input.token_stride + channel]);
}

// Of a group of n values, of which first_stored has the first.
Parameters group_parameters(const PageLayout &layout, const RangeRule &rule, uint32_t first_stored,
                            const uint16_t *values, uint64_t stride, uint32_t n) {
    if (!takes_deviation(layout, rule.one_bit, first_stored, n))
        return make_parameters(extremes(values, stride, n), layout.metadata,
                               group_margin(layout, rule.clip, first_stored, n));
    float floats[LK_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < n; ++i)
        floats[i] = half_to_float(values[i * stride]);
    return make_deviation_parameters(floats, n, layout.metadata);
}

void quantize_token_groups(const PageLayout &layout, const RangeRule &rule, PageValues input,
                           const uint8_t *permutation, uint32_t stored, uint8_t *payload,
                           uint8_t *metadata) {
    const uint16_t *values = input.values + channel_of(layout, permutation, stored);
    const CodePosition at = find_code(layout, stored);
    for (uint32_t first = 0; first < layout.page_tokens; first += layout.group) {
        const Parameters p =
            group_parameters(layout, rule, stored, values + first * input.token_stride,
                             input.token_stride, layout.group);
        const uint32_t index = parameter_index(layout, stored, first);
        store_parameter(layout, metadata + ranges_offset_bytes(layout), index, p.range_bits);
        store_parameter(layout, metadata + minima_offset_bytes(layout), index, p.minimum_bits);
        for (uint32_t token = first; token < first + layout.group; ++token)
            write_code(layout, payload, at, token,
                       quantize(half_to_float(values[token * input.token_stride]), p, at.bits()));
    }
}

// One token's groups of channels. Channels of the 16-bit plane in a group do not count.
void quantize_token(const PageLayout &layout, const RangeRule &rule, PageValues input,
                    const uint8_t *permutation, uint32_t token, uint8_t *payload,
                    uint8_t *metadata) {
    const uint16_t *row = input.values + token * input.token_stride;
    for (uint32_t first = 0; first < layout.head_dim; first += layout.group) {
        const uint32_t end =
            first + layout.group < layout.head_dim ? first + layout.group : layout.head_dim;
        uint16_t values[LK_MAX_HEAD_DIM];
        uint32_t n = 0;
        for (uint32_t stored = first; stored < end; ++stored)
            if (code_bits(layout, stored) < 16)
                values[n++] = row[channel_of(layout, permutation, stored)];
        if (!n)
            continue;
        const Parameters p = group_parameters(layout, rule, end - n, values, 1, n);
        const uint32_t index = parameter_index(layout, first, token);
        store_parameter(layout, metadata + ranges_offset_bytes(layout), index, p.range_bits);
        store_parameter(layout, metadata + minima_offset_bytes(layout), index, p.minimum_bits);
        for (uint32_t stored = first; stored < end; ++stored) {
            const CodePosition at = find_code(layout, stored);
            if (at.bits() < 16)
                write_code(layout, payload, at, token,
                           quantize(half_to_float(row[channel_of(layout, permutation, stored)]), p,
                                    at.bits()));
        }
    }
}

// Merge two words whose fields of `bits` bits (each holding a shrunk code at stride 2b) interleave.
uint32_t merge_words(uint32_t even, uint32_t odd, uint32_t bits) { return even | (odd << bits); }

// Shrink every 2b-bit field of a word to a b-bit code at the same bit.
uint32_t shrink_word(uint32_t word, uint32_t bits) {
    const uint32_t mask = top_code(2 * bits);
    uint32_t out = 0;
    for (uint32_t shift = 0; shift < 32; shift += 2 * bits)
        out |= shrink_code((word >> shift) & mask, bits) << shift;
    return out;
}

}  // namespace

CodePosition find_code(const PageLayout &layout, uint32_t stored) {
    CodePosition at;
    at.strip = find_strip(layout, stored / LK_STRIP_CHANNELS);
    at.channel = stored % LK_STRIP_CHANNELS;
    at.role = Role::kOrdinary;
    at.index = 0;
    if (at.strip.bits == 2 && layout.n_shared) {
        const uint32_t i = stored - first_of_two_bits(layout);
        if (i < 2u * layout.n_shared) {
            at.role = i < layout.n_shared ? Role::kPartner : Role::kOutlier;
            at.index = i % layout.n_shared;
        }
    }
    return at;
}

void write_code(const PageLayout &layout, uint8_t *payload, const CodePosition &at, uint32_t token,
                uint32_t code) {
    uint8_t *low = payload + at.strip.offset;
    const uint32_t low_bits = LK_LOW_BITS(at.strip.bits);
    const uint32_t high_bits = at.strip.bits - low_bits;
    if (high_bits) {
        store_bits(low, find_in(layout, at, low_bits, token), 0, low_bits,
                   code & top_code(low_bits));
        store_bits(payload + at.strip.high_offset, find_in(layout, at, high_bits, token), 0,
                   high_bits, code >> low_bits);
    } else if (at.role == Role::kOutlier) {
        const CodePosition partner = partner_of(layout, at.index);
        store_bits(low, find_in(layout, at, 2, token), 0, 2, code & 3u);
        store_bits(payload + partner.strip.offset, find_in(layout, partner, 2, token), 1, 1,
                   code >> 2);
    } else {
        store_bits(low, find_in(layout, at, low_bits, token), 0, at.bits(), code);
    }
}

StoredChannel::StoredChannel(const PageLayout &layout, const uint8_t *payload,
                             const uint8_t *metadata, uint32_t stored)
    : layout_(layout),
      payload_(payload),
      metadata_(metadata),
      minima_offset_(minima_offset_bytes(layout)),
      stored_(stored),
      at_(find_code(layout, stored)),
      partner_(at_.role == Role::kOutlier ? partner_of(layout, at_.index) : at_) {}

uint32_t StoredChannel::code(uint32_t token) const {
    const uint8_t *low = payload_ + at_.strip.offset;
    const uint32_t low_bits = LK_LOW_BITS(at_.strip.bits);
    const uint32_t high_bits = at_.strip.bits - low_bits;
    if (high_bits)
        return load_bits(low, find_in(layout_, at_, low_bits, token), 0, low_bits) |
               load_bits(payload_ + at_.strip.high_offset, find_in(layout_, at_, high_bits, token),
                         0, high_bits)
                   << low_bits;
    if (at_.role == Role::kOutlier)
        return load_bits(low, find_in(layout_, at_, 2, token), 0, 2) |
               load_bits(payload_ + partner_.strip.offset, find_in(layout_, partner_, 2, token), 1,
                         1)
                   << 2;
    return load_bits(low, find_in(layout_, at_, low_bits, token), 0, at_.bits());
}

Parameters StoredChannel::parameters(uint32_t token) const {
    const uint32_t index = parameter_index(layout_, stored_, token);
    Parameters p;
    p.range_bits = load_parameter(layout_, metadata_ + ranges_offset_bytes(layout_), index);
    p.minimum_bits = load_parameter(layout_, metadata_ + minima_offset_, index);
    p.range = parameter_to_float(p.range_bits, layout_.metadata);
    p.minimum = parameter_to_float(p.minimum_bits, layout_.metadata);
    return p;
}

float StoredChannel::value(uint32_t token) const {
    if (bits() == 16)
        return half_to_float(static_cast<uint16_t>(code(token)));
    const Parameters p = parameters(token);
    return dequantize(code(token), p.range, p.minimum, bits());
}

bool takes_deviation(const PageLayout &layout, OneBit one_bit, uint32_t first_stored, uint32_t n) {
    if (one_bit != OneBit::kDeviation || (n & (n - 1)))
        return false;
    if (layout.axis == Axis::kChannel)
        return code_bits(layout, first_stored) == 1;
    // Stored channels after the first of the 1-bit plane are of that plane too.
    return find_strip(layout, first_stored / LK_STRIP_CHANNELS).bits == 1;
}

float group_margin(const PageLayout &layout, float clip, uint32_t first_stored, uint32_t n) {
    if (clip == 1)
        return 0;
    // Between two stored channels of the 2-bit plane all are such, without pairs.
    const uint32_t last_stored =
        layout.axis == Axis::kChannel ? first_stored : first_stored + n - 1;
    const bool has_two_bits =
        code_bits(layout, first_stored) == 2 && code_bits(layout, last_stored) == 2;
    return has_two_bits ? clip_margin(clip) : 0;
}

void pack_page(const PageLayout &layout, const RangeRule &rule, PageValues input,
               const uint8_t *permutation, uint8_t *payload, uint8_t *metadata) {
    std::memset(payload, 0, payload_bytes(layout));
    if (metadata)
        std::memset(metadata, 0, metadata_bytes(layout));
    for (uint32_t stored = 0; stored < layout.head_dim; ++stored) {
        if (code_bits(layout, stored) == 16)
            copy_raw(layout, input, permutation, stored, payload);
        else if (layout.axis == Axis::kChannel)
            quantize_token_groups(layout, rule, input, permutation, stored, payload, metadata);
    }
    if (layout.axis == Axis::kToken && !layout.is_raw())
        for (uint32_t token = 0; token < layout.page_tokens; ++token)
            quantize_token(layout, rule, input, permutation, token, payload, metadata);
    if (layout.permutes)
        for (uint32_t stored = 0; stored < layout.head_dim; ++stored)
            store_channel(metadata + permutation_offset_bytes(layout), layout.head_dim, stored,
                          channel_of(layout, permutation, stored));
}

void unpack_page(const PageLayout &layout, const uint8_t *payload, const uint8_t *metadata,
                 const uint8_t *fixed_permutation, uint32_t n_tokens, uint16_t *values,
                 uint64_t token_stride) {
    for (uint32_t stored = 0; stored < layout.head_dim; ++stored) {
        const StoredChannel channel(layout, payload, metadata, stored);
        uint16_t *column = values + channel_of(layout, metadata, fixed_permutation, stored);
        for (uint32_t token = 0; token < n_tokens; ++token) {
            bool saturated = false;
            column[token * token_stride] = float_to_half(channel.value(token), &saturated);
        }
    }
}

void rank_by_scores(const float *scores, uint32_t head_dim, uint32_t n_ranked,
                    uint8_t *permutation) {
    uint16_t order[LK_MAX_HEAD_DIM];
    std::iota(order, order + head_dim, uint16_t{0});
    std::nth_element(order, order + n_ranked, order + head_dim, [&](uint16_t a, uint16_t b) {
        return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    });
    bool chosen[LK_MAX_HEAD_DIM] = {};
    for (uint32_t i = 0; i < n_ranked; ++i)
        chosen[order[i]] = true;
    uint32_t stored = 0;
    for (const bool want : {true, false})
        for (uint32_t c = 0; c < head_dim; ++c)
            if (chosen[c] == want)
                store_channel(permutation, head_dim, stored++, c);
}

float query_range_score(uint64_t query_stat, Extremes extremes) {
    const float range = half_to_float(extremes.high) - half_to_float(extremes.low);
    return static_cast<float>(query_stat) * range;
}

void rank_by_key(PageValues input, uint32_t head_dim, uint32_t page_tokens, uint32_t n_ranked,
                 uint8_t *permutation) {
    float scores[LK_MAX_HEAD_DIM] = {};
    for (uint32_t token = 0; token < page_tokens; ++token)
        for (uint32_t c = 0; c < head_dim; ++c)
            scores[c] += half_to_float(input.values[token * input.token_stride + c] & 0x7FFFu);
    rank_by_scores(scores, head_dim, n_ranked, permutation);
}

void rank_by_query_range(PageValues input, uint32_t head_dim, uint32_t page_tokens,
                         const uint64_t *query_stats, uint32_t n_ranked, uint8_t *permutation) {
    float scores[LK_MAX_HEAD_DIM];
    for (uint32_t c = 0; c < head_dim; ++c) {
        const Extremes e = extremes(input.values + c, input.token_stride, page_tokens);
        scores[c] = query_range_score(query_stats[c], e);
    }
    rank_by_scores(scores, head_dim, n_ranked, permutation);
}

void shrink_strip(uint32_t *words, uint32_t page_tokens, uint32_t bits) {
    const uint32_t wide = lane_words(page_tokens, 2 * bits);
    const uint32_t narrow = wide / 2;
    // The widest strip, 16 channels x 128 tokens at 8 bits, becomes 512 words.
    uint32_t merged[LK_STRIP_CHANNELS * LK_MAX_PAGE_TOKENS * 8 / 32];
    for (uint32_t lane = 0; lane < LK_LANES; ++lane)
        for (uint32_t w = 0; w < narrow; ++w) {
            const uint32_t even = shrink_word(words[strip_word_index(wide, lane, 2 * w)], bits);
            const uint32_t odd = shrink_word(words[strip_word_index(wide, lane, 2 * w + 1)], bits);
            merged[strip_word_index(narrow, lane, w)] = merge_words(even, odd, bits);
        }
    std::memcpy(words, merged, static_cast<size_t>(narrow) * LK_LANES * sizeof(uint32_t));
}

}  // namespace lk
