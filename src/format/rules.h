// The rules of the codec that the host compiler and nvcc both compile: where codes lie, how
// quantization parameters are made, when a code begins. docs/FORMAT.md, bit for bit.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_RULES_H
#define LK_FORMAT_RULES_H

#include "format/format_const.h"
#include "format/fp16.h"
#include "format/parameter_formats.h"
#include "format/planes.h"

namespace lk {

// Where codes lie.

// Words of a lane in a strip of a plane part of `bits`, a power of two.
LK_BOTH constexpr uint32_t lane_words(uint32_t page_tokens, uint32_t bits) {
    return page_tokens * bits / 64;
}
LK_BOTH constexpr uint32_t strip_bytes(uint32_t page_tokens, uint32_t bits) {
    return LK_STRIP_CHANNELS * page_tokens * bits / 8;
}
// Index, in 32-bit words from the strip's start, of word `word` of `lane`.
LK_BOTH constexpr uint32_t strip_word_index(uint32_t n_words, uint32_t lane, uint32_t word) {
    return n_words < LK_VECTOR_WORDS
               ? lane * n_words + word
               : (word / LK_VECTOR_WORDS * LK_LANES + lane) * LK_VECTOR_WORDS +
                     word % LK_VECTOR_WORDS;
}

// Where a strip's codes lie in the payload.
struct alignas(16) StripPosition {
    uint32_t bits;         // of the plane; the low bits are at offset, the others at high_offset
    uint32_t offset;       // bytes
    uint32_t high_offset;  // of a strip of a split plane
    uint32_t in_plane;     // index among the strips of its plane
};
// strip counts through all planes. Layout is a PageLayout or a FormatInfo.
template <class Layout>
LK_BOTH StripPosition find_strip(const Layout &layout, uint32_t strip) {
    const uint32_t bit_bytes = 2u * layout.page_tokens;  // of a strip, for each bit of its width
    uint32_t offset = 0;
    uint32_t plane = 0;
    while (strip >= layout.strips[plane]) {
        strip -= layout.strips[plane];
        offset += bit_bytes * LK_PLANE_BITS(plane) * layout.strips[plane];
        ++plane;
    }
    const uint32_t bits = LK_PLANE_BITS(plane);
    const uint32_t low_bytes = bit_bytes * LK_LOW_BITS(bits);
    const uint32_t high_offset =
        offset + low_bytes * layout.strips[plane] + bit_bytes * LK_HIGH_BITS(bits) * strip;
    return {bits, offset + low_bytes * strip, high_offset, strip};
}

// Permutations: the channel of each stored channel, little endian.

LK_BOTH constexpr uint32_t bytes_of_channel(uint32_t head_dim) {
    return head_dim > LK_BYTE_CHANNELS ? 2 : 1;
}
LK_BOTH constexpr uint32_t permutation_bytes(uint32_t head_dim) {
    return head_dim * bytes_of_channel(head_dim);
}
constexpr uint32_t kMaxPermutationBytes = permutation_bytes(LK_MAX_HEAD_DIM);
// By bytes, since those of a file have any address.
LK_BOTH uint32_t load_channel(const uint8_t *permutation, uint32_t head_dim, uint32_t stored) {
    return head_dim > LK_BYTE_CHANNELS ? permutation[2 * stored] | permutation[2 * stored + 1] << 8
                                       : permutation[stored];
}
LK_BOTH void store_channel(uint8_t *permutation, uint32_t head_dim, uint32_t stored,
                           uint32_t channel) {
    if (head_dim > LK_BYTE_CHANNELS) {
        permutation[2 * stored] = static_cast<uint8_t>(channel);
        permutation[2 * stored + 1] = static_cast<uint8_t>(channel >> 8);
    } else {
        permutation[stored] = static_cast<uint8_t>(channel);
    }
}

// Quantization parameters.

#define LK_BYTES_OF_FORMAT(name, number, bytes, text) metadata == Metadata::k##name ? bytes:
LK_BOTH constexpr uint32_t bytes_of_parameter(Metadata metadata) {
    return LK_PARAMETER_FORMATS(LK_BYTES_OF_FORMAT) 0;
}
#undef LK_BYTES_OF_FORMAT

#define LK_TEXT_OF_FORMAT(name, number, bytes, text) metadata == Metadata::k##name ? #text:
constexpr const char *parameter_text(Metadata metadata) {
    return LK_PARAMETER_FORMATS(LK_TEXT_OF_FORMAT) "";
}
#undef LK_TEXT_OF_FORMAT

#define LK_IS_FORMAT(name, number_, bytes, text) number == number_ ||
constexpr bool is_parameter_format(uint32_t number) {
    return LK_PARAMETER_FORMATS(LK_IS_FORMAT) false;
}
#undef LK_IS_FORMAT

LK_BOTH float parameter_to_float(uint32_t bits, Metadata metadata) {
    return metadata == Metadata::kF8 ? f8_to_float(bits) : half_to_float(bits);
}

// A group's range and minimum as they are stored, and what they stand for.
struct Parameters {
    uint32_t range_bits;
    uint32_t minimum_bits;
    float range;
    float minimum;
};

// The nearest FP16 number, or the next FP8 number below; zero has no sign.
LK_BOTH void set_minimum(float minimum, Metadata metadata, Parameters *p) {
    constexpr uint32_t kMinusZero = 0x8000;
    bool saturated;
    p->minimum_bits = metadata == Metadata::kF8 ? round_to_f8(minimum, minimum < 0)
                                                : round_to_half(minimum, &saturated);
    p->minimum_bits = p->minimum_bits == kMinusZero ? 0 : p->minimum_bits;
    p->minimum = parameter_to_float(p->minimum_bits, metadata);
}

// The nearest FP16 number, or the next FP8 number above.
LK_BOTH void set_range(float range, Metadata metadata, Parameters *p) {
    bool saturated;
    p->range_bits =
        metadata == Metadata::kF8 ? round_to_f8(range, true) : round_to_half(range, &saturated);
    p->range = parameter_to_float(p->range_bits, metadata);
}

// low and high: FP16 bits of the group's lowest and highest value; margin: the share of the range
// that is cut off at each end.
LK_BOTH Parameters make_parameters(uint32_t low, uint32_t high, float margin, Metadata metadata) {
    const float cut =
        multiply_exact(subtract_exact(half_to_float(high), half_to_float(low)), margin);
    Parameters p;
    set_minimum(subtract_exact(half_to_float(low), -cut), metadata, &p);
    // An FP8 minimum that saturates can be above the highest value.
    const float spread = subtract_exact(subtract_exact(half_to_float(high), cut), p.minimum);
    set_range(spread > 0 ? spread : 0, metadata, &p);
    return p;
}

// Levels one mean absolute deviation below and above the mean.
LK_BOTH Parameters deviation_parameters(float mean, float deviation, Metadata metadata) {
    Parameters p;
    set_minimum(subtract_exact(mean, deviation), metadata, &p);
    set_range(2 * deviation, metadata, &p);
    return p;
}

// Codes.

constexpr uint32_t top_code(uint32_t bits) { return (1u << bits) - 1; }

// RN32(1 / (2^bits - 1)): the distance of neighbouring codes is RN32(range * code_step(bits)).
LK_BOTH constexpr float code_step(uint32_t bits) {
    return bits == 1   ? 1.0f
           : bits == 2 ? 1.0f / 3.0f
           : bits == 3 ? 1.0f / 7.0f
           : bits == 4 ? 1.0f / 15.0f
                       : 1.0f / 255.0f;
}
constexpr bool has_all_steps() {
    for (const uint32_t bits : kPlaneBits)
        if (bits < 16 && code_step(bits) != 1.0f / static_cast<float>(top_code(bits)))
            return false;
    return true;
}
static_assert(has_all_steps(), "a width without its step");

// A group's value is code k or above from RN32(value - minimum) >= threshold on. midpoint is
// k - 1/2: its product with a range is exact in FP32, 9 bits times 11 bits, and code_step()
// rounds as half of it does.
LK_BOTH float code_threshold(float midpoint, float range, float step) {
    return multiply_exact(multiply_exact(midpoint, range), step);
}

}  // namespace lk

#endif
