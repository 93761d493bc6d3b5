// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/pack_fast.h"

namespace lk {
namespace cpu {

namespace {

constexpr uint32_t kPartWidths = 4;  // bits of a plane or of its part: 1, 2, 4, 8

// Bit address of (token, channel) in a strip of a plane: tokens[token] + channels[channel]. The
// bits of a place come from disjoint bits of token and channel, so their addresses add up.
struct Places {
    uint16_t tokens[LK_MAX_PAGE_TOKENS];
    uint16_t channels[LK_STRIP_CHANNELS];
};

uint16_t bit_address(BitPosition at) { return static_cast<uint16_t>(at.word * 32 + at.bit); }

void fill_places(const PageLayout &layout, uint32_t bits, Places *places) {
    for (uint32_t t = 0; t < layout.page_tokens; ++t)
        places->tokens[t] = bit_address(find_bit(layout.side, layout.page_tokens, bits, t, 0));
    for (uint32_t c = 0; c < LK_STRIP_CHANNELS; ++c)
        places->channels[c] = bit_address(find_bit(layout.side, layout.page_tokens, bits, 0, c));
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

struct Slot {
    uint32_t bits;
    uint32_t channel;  // of the input
    Part low;
    Part high;
};

class Packer {
  public:
    Packer(const PageLayout &layout, const RangeRule &rule, PageValues input,
           const uint8_t *permutation, uint8_t *payload, uint8_t *metadata)
        : shape_(layout), rule_(rule), input_(input), payload_(payload), metadata_(metadata) {
        for (uint32_t i = 0; i < kPartWidths; ++i)
            if (layout.page_tokens << i >= 64)
                fill_places(layout, 1u << i, &places_[i]);
        for (uint32_t slot = 0; slot < layout.head_dim; ++slot) {
            slots_[slot] = make_slot(slot);
            slots_[slot].channel = permutation ? permutation[slot] : slot;
        }
    }

    void pack_channels() const {
        for (uint32_t slot = 0; slot < shape_.head_dim; ++slot)
            for (uint32_t first = 0; first < shape_.page_tokens; first += shape_.group)
                pack_channel_group(slot, first);
    }
    void pack_tokens() const {
        for (uint32_t token = 0; token < shape_.page_tokens; ++token)
            for (uint32_t first = 0; first < shape_.head_dim; first += shape_.group)
                pack_token_group(token, first);
    }

  private:
    const Places &places(uint32_t bits) const {
        return places_[bits == 1 ? 0 : bits == 2 ? 1 : bits == 4 ? 2 : 3];
    }

    Part part(uint64_t offset, uint32_t plane_bits, uint32_t channel, uint32_t shift,
              uint32_t mask) const {
        return {payload_ + offset, places(plane_bits).tokens, places(plane_bits).channels[channel],
                shift, mask};
    }

    Slot make_slot(uint32_t slot) const {
        const StripPosition at = find_strip(shape_, slot / LK_STRIP_CHANNELS);
        const uint32_t channel = slot % LK_STRIP_CHANNELS;
        const uint32_t bits = code_bits(shape_, slot);
        Slot out = {bits, 0, {}, {}};
        const uint32_t low_bits = LK_LOW_BITS(at.bits);
        const uint32_t high_bits = at.bits - low_bits;
        out.low =
            part(at.offset, low_bits, channel, 0, top_code(bits < low_bits ? bits : low_bits));
        if (high_bits) {
            out.high = part(at.high_offset, high_bits, channel, low_bits, top_code(high_bits));
        } else {
            if (bits > low_bits) {  // an outlier's highest bit is above its partner's code
                const uint32_t partner = slot - shape_.n_shared;
                const StripPosition low = find_strip(shape_, partner / LK_STRIP_CHANNELS);
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
    // Stored at (first_slot, token), and returned.
    Parameters parameters(const float *values, uint32_t n, uint32_t first_slot,
                          uint32_t token) const {
        const Parameters p =
            takes_deviation(shape_, rule_.one_bit, first_slot, n)
                ? make_deviation_parameters(values, n, shape_.metadata)
                : range_parameters(values, n, group_margin(shape_, rule_.clip, first_slot, n));
        const uint32_t index = parameter_index(shape_, first_slot, token);
        store_parameter(metadata_ + ranges_offset_bytes(shape_), index, p.range_bits);
        store_parameter(metadata_ + minima_offset_bytes(shape_), index, p.minimum_bits);
        return p;
    }
    Parameters range_parameters(const float *values, uint32_t n, float margin) const {
        float low = values[0];
        float high = values[0];
        for (uint32_t i = 1; i < n; ++i) {
            low = values[i] < low ? values[i] : low;
            high = values[i] > high ? values[i] : high;
        }
        return make_parameters({exact_half(low), exact_half(high)}, shape_.metadata, margin);
    }
    void store_parameter(uint8_t *array, uint32_t index, uint32_t bits) const {
        const uint32_t n_bytes = bytes_of_parameter(shape_.metadata);
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

    static void write(const Slot &slot, uint32_t token, uint32_t code) {
        slot.low.write(token, code);
        if (slot.high.mask)
            slot.high.write(token, code);
    }

    void pack_channel_group(uint32_t index, uint32_t first) const {
        const Slot &slot = slots_[index];
        float values[LK_MAX_PAGE_TOKENS];
        for (uint32_t i = 0; i < shape_.group; ++i)
            values[i] =
                half_to_float(input_.values[(first + i) * input_.token_stride + slot.channel]);
        const Quantizer quantizer(parameters(values, shape_.group, index, first), slot.bits);
        for (uint32_t i = 0; i < shape_.group; ++i)
            write(slot, first + i, quantizer.code(values[i]));
    }

    void pack_token_group(uint32_t token, uint32_t first) const {
        const uint32_t end =
            first + shape_.group < shape_.head_dim ? first + shape_.group : shape_.head_dim;
        float values[LK_MAX_HEAD_DIM];
        for (uint32_t slot = first; slot < end; ++slot)
            values[slot - first] =
                half_to_float(input_.values[token * input_.token_stride + slots_[slot].channel]);
        const Parameters p = parameters(values, end - first, first, token);
        for (uint32_t slot = first; slot < end;) {
            const uint32_t bits = slots_[slot].bits;
            const Quantizer quantizer(p, bits);
            for (; slot < end && slots_[slot].bits == bits; ++slot)
                write(slots_[slot], token, quantizer.code(values[slot - first]));
        }
    }

    const PageLayout &shape_;
    const RangeRule rule_;
    const PageValues input_;
    uint8_t *const payload_;
    uint8_t *const metadata_;
    Places places_[kPartWidths] = {};  // of 1, 2, 4 and 8 bits
    Slot slots_[LK_MAX_HEAD_DIM];
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
        std::memcpy(metadata + permutation_offset_bytes(layout), permutation, layout.head_dim);
}

}  // namespace cpu
}  // namespace lk
