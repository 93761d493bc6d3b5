// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/pack_fast.h"

namespace lk {
namespace cpu {

namespace {

constexpr uint32_t kPartWidths = 4;  // bits of a plane or of its part: 1, 2, 4, 8

// Bit address of (token, channel) in a strip of a plane: tokens[token] + channels[channel]. The
// bits of an address come from disjoint bits of token and channel, so their addresses add up.
struct Addresses {
    uint16_t tokens[LK_MAX_PAGE_TOKENS];
    uint16_t channels[LK_STRIP_CHANNELS];
};

uint16_t bit_address(BitPosition at) { return static_cast<uint16_t>(at.word * 32 + at.bit); }

void fill_addresses(const PageLayout &layout, uint32_t bits, Addresses *addresses) {
    for (uint32_t t = 0; t < layout.page_tokens; ++t)
        addresses->tokens[t] = bit_address(find_bit(layout.side, layout.page_tokens, bits, t, 0));
    for (uint32_t c = 0; c < LK_STRIP_CHANNELS; ++c)
        addresses->channels[c] = bit_address(find_bit(layout.side, layout.page_tokens, bits, 0, c));
}

// Some bits of a code: (code >> shift & mask), in a strip at a channel.
struct Part {
    uint8_t *strip;
    const uint16_t *tokens;
    uint32_t channel;
    uint32_t shift;
    uint32_t mask;  // 0: no such part

    void write(uint32_t token, uint32_t code) const {
        const uint32_t address = tokens[token] + channel;
        uint8_t *at = strip + address / 32 * 4;
        uint32_t word;
        std::memcpy(&word, at, sizeof word);
        word |= ((code >> shift) & mask) << address % 32;
        std::memcpy(at, &word, sizeof word);
    }
};

struct Stored {
    uint32_t bits;
    uint32_t channel;  // of the input
    Part low;
    Part high;
};

class Packer {
  public:
    Packer(const PageLayout &layout, const RangeRule &rule, PageValues input,
           const uint8_t *permutation, uint8_t *payload, uint8_t *metadata)
        : layout_(layout), rule_(rule), input_(input), payload_(payload), metadata_(metadata) {
        for (uint32_t i = 0; i < kPartWidths; ++i)
            if (layout.page_tokens << i >= 64)
                fill_addresses(layout, 1u << i, &addresses_[i]);
        for (uint32_t stored = 0; stored < layout.head_dim; ++stored) {
            stored_[stored] = make_stored(stored);
            stored_[stored].channel =
                permutation ? load_channel(permutation, layout.head_dim, stored) : stored;
        }
    }

    void pack_channels() const {
        for (uint32_t stored = 0; stored < layout_.head_dim; ++stored)
            for (uint32_t first = 0; first < layout_.page_tokens; first += layout_.group)
                pack_channel_group(stored, first);
    }
    void pack_tokens() const {
        for (uint32_t token = 0; token < layout_.page_tokens; ++token)
            for (uint32_t first = 0; first < layout_.head_dim; first += layout_.group)
                pack_token_group(token, first);
    }

  private:
    const Addresses &addresses(uint32_t bits) const {
        return addresses_[bits == 1 ? 0 : bits == 2 ? 1 : bits == 4 ? 2 : 3];
    }

    Part part(uint64_t offset, uint32_t plane_bits, uint32_t channel, uint32_t shift,
              uint32_t mask) const {
        return {payload_ + offset, addresses(plane_bits).tokens,
                addresses(plane_bits).channels[channel], shift, mask};
    }

    Stored make_stored(uint32_t stored) const {
        const StripPosition at = find_strip(layout_, stored / LK_STRIP_CHANNELS);
        const uint32_t channel = stored % LK_STRIP_CHANNELS;
        const uint32_t bits = code_bits(layout_, stored);
        Stored out = {bits, 0, {}, {}};
        const uint32_t low_bits = LK_LOW_BITS(at.bits);
        const uint32_t high_bits = at.bits - low_bits;
        out.low =
            part(at.offset, low_bits, channel, 0, top_code(bits < low_bits ? bits : low_bits));
        if (high_bits) {
            out.high = part(at.high_offset, high_bits, channel, low_bits, top_code(high_bits));
        } else {
            if (bits > low_bits) {  // an outlier's highest bit is above its partner's code
                const uint32_t partner = stored - layout_.n_shared;
                const StripPosition low = find_strip(layout_, partner / LK_STRIP_CHANNELS);
                out.high = part(low.offset, 2, partner % LK_STRIP_CHANNELS, 2, 1);
                ++out.high.channel;
            }
        }
        return out;
    }

    // 0 for both zeros.
    static uint16_t exact_half(float f) {
        bool saturated = false;
        return f == 0.0f ? uint16_t{0} : float_to_half(f, &saturated);
    }
    // Stored at (first_stored, token), and returned.
    Parameters parameters(const float *values, uint32_t n, uint32_t first_stored,
                          uint32_t token) const {
        const Parameters p =
            takes_deviation(layout_, rule_.one_bit, first_stored, n)
                ? make_deviation_parameters(values, n, layout_.metadata)
                : range_parameters(values, n, group_margin(layout_, rule_.clip, first_stored, n));
        const uint32_t index = parameter_index(layout_, first_stored, token);
        store_parameter(metadata_ + ranges_offset_bytes(layout_), index, p.range_bits);
        store_parameter(metadata_ + minima_offset_bytes(layout_), index, p.minimum_bits);
        return p;
    }
    Parameters range_parameters(const float *values, uint32_t n, float margin) const {
        float low = values[0];
        float high = values[0];
        for (uint32_t i = 1; i < n; ++i) {
            low = values[i] < low ? values[i] : low;
            high = values[i] > high ? values[i] : high;
        }
        return make_parameters({exact_half(low), exact_half(high)}, layout_.metadata, margin);
    }
    void store_parameter(uint8_t *array, uint32_t index, uint32_t bits) const {
        const uint32_t n_bytes = bytes_of_parameter(layout_.metadata);
        std::memcpy(array + uint64_t{index} * n_bytes, &bits, n_bytes);
    }

    // quantize() of format/quantize.h with the division taken out of the loop: the guess is off by
    // one at most, and the same comparisons settle it.
    struct Quantizer {
        Quantizer(const Parameters &p, uint32_t bits)
            : minimum(p.minimum),
              range(p.range),
              step(code_step(bits)),
              top(top_code(bits)),
              inverse(p.range > 0 ? static_cast<float>(top) / p.range : 0) {}
        float threshold(uint32_t k) const {
            return code_threshold(static_cast<float>(k) - 0.5f, range, step);
        }
        uint32_t code(float value) const {
            if (range == 0)
                return 0;
            const float distance = value - minimum;
            const float guess = distance * inverse + 0.5f;
            uint32_t c = guess <= 0                         ? 0
                         : guess >= static_cast<float>(top) ? top
                                                            : static_cast<uint32_t>(guess);
            c += c < top && distance >= threshold(c + 1);
            c -= c > 0 && distance < threshold(c);
            return c;
        }
        float minimum;
        float range;
        float step;
        uint32_t top;
        float inverse;
    };

    static void write(const Stored &stored, uint32_t token, uint32_t code) {
        stored.low.write(token, code);
        if (stored.high.mask)
            stored.high.write(token, code);
    }

    void pack_channel_group(uint32_t index, uint32_t first) const {
        const Stored &stored = stored_[index];
        float values[LK_MAX_PAGE_TOKENS];
        for (uint32_t i = 0; i < layout_.group; ++i)
            values[i] =
                half_to_float(input_.values[(first + i) * input_.token_stride + stored.channel]);
        const Quantizer quantizer(parameters(values, layout_.group, index, first), stored.bits);
        for (uint32_t i = 0; i < layout_.group; ++i)
            write(stored, first + i, quantizer.code(values[i]));
    }

    void pack_token_group(uint32_t token, uint32_t first) const {
        const uint32_t end =
            first + layout_.group < layout_.head_dim ? first + layout_.group : layout_.head_dim;
        float values[LK_MAX_HEAD_DIM];
        for (uint32_t stored = first; stored < end; ++stored)
            values[stored - first] =
                half_to_float(input_.values[token * input_.token_stride + stored_[stored].channel]);
        const Parameters p = parameters(values, end - first, first, token);
        for (uint32_t stored = first; stored < end;) {
            const uint32_t bits = stored_[stored].bits;
            const Quantizer quantizer(p, bits);
            for (; stored < end && stored_[stored].bits == bits; ++stored)
                write(stored_[stored], token, quantizer.code(values[stored - first]));
        }
    }

    const PageLayout &layout_;
    const RangeRule rule_;
    const PageValues input_;
    uint8_t *const payload_;
    uint8_t *const metadata_;
    Addresses addresses_[kPartWidths] = {};  // of 1, 2, 4 and 8 bits
    Stored stored_[LK_MAX_HEAD_DIM];
};

}  // namespace

void pack_page_fast(const PageLayout &layout, const RangeRule &rule, PageValues input,
                    const uint8_t *permutation, uint8_t *payload, uint8_t *metadata) {
    if (layout.strips[kPlane16]) {
        pack_page(layout, rule, input, permutation, payload, metadata);
        return;
    }
    std::memset(payload, 0, payload_bytes(layout));
    std::memset(metadata, 0, metadata_bytes(layout));
    const Packer packer(layout, rule, input, permutation, payload, metadata);
    if (layout.axis == Axis::kChannel)
        packer.pack_channels();
    else
        packer.pack_tokens();
    if (layout.permutes)
        std::memcpy(metadata + permutation_offset_bytes(layout), permutation,
                    permutation_bytes(layout.head_dim));
}

}  // namespace cpu
}  // namespace lk
