// Where the bytes of a half page lie. docs/FORMAT.md is the specification.
//
// A half page holds the keys or the values of one (layer, KV head) for up to page_tokens
// tokens: a payload slot (planes of strips) and, below 16 bits, a metadata slot (ranges,
// minima, and the channel permutation when the page chose it).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_LAYOUT_H
#define LK_FORMAT_LAYOUT_H

#include "format/format_const.h"

#include <cstdint>

namespace lk {

enum class Side : uint8_t { kKey, kValue };  // which of tokens and channels are tile rows
enum class Axis : uint8_t { kChannel = 1, kToken = 2 };  // as lk_axis
enum class Metadata : uint8_t { kF16 = 1, kF8 = 2 };     // as lk_metadata

// The planes of a half, in the order in which they lie. kPlane3 is a 2-bit plane followed by a
// 1-bit plane of the same slots.
enum Plane : uint8_t { kPlane16, kPlane8, kPlane4, kPlane3, kPlane2, kPlane1, kPlaneCount };
constexpr uint32_t kPlaneBits[kPlaneCount] = {16, 8, 4, 3, 2, 1};

// What decides every offset. Slots are numbered through the planes in order; slot s of the half
// holds channel permutation[s].
struct PageLayout {
    Side side = Side::kKey;
    Axis axis = Axis::kChannel;
    Metadata metadata = Metadata::kF16;
    uint8_t permutes = 0;  // the metadata slot ends in a u8 [head_dim] permutation
    uint16_t head_dim = 0;
    uint16_t page_tokens = 0;           // capacity: 16 .. 1024 at 16 bits only, else 32, 64, 128
    uint16_t group = 0;                 // tokens (kChannel) or channels (kToken), never 0
    uint16_t n_shared = 0;              // (3,1) pairs in the 2-bit plane: its first n_shared slots
                                        // are 1-bit partners, the next n_shared the outliers
    uint16_t strips[kPlaneCount] = {};  // sum = head_dim / 16

    bool is_raw() const { return strips[kPlane16] * LK_STRIP_CHANNELS == head_dim; }
};

// Words of a lane in a strip of a plane of `bits` (a power of two): page_tokens * bits / 64.
constexpr uint32_t lane_words(uint32_t page_tokens, uint32_t bits) {
    return page_tokens * bits / 64;
}
constexpr uint32_t strip_bytes(uint32_t page_tokens, uint32_t bits) {
    return LK_STRIP_CHANNELS * page_tokens * bits / 8;
}

// Index, in 32-bit words from the strip's start, of word `word` of `lane`.
constexpr uint32_t strip_word_index(uint32_t n_words, uint32_t lane, uint32_t word) {
    return n_words < LK_VECTOR_WORDS
               ? lane * n_words + word
               : (word / LK_VECTOR_WORDS * LK_LANES + lane) * LK_VECTOR_WORDS +
                     word % LK_VECTOR_WORDS;
}

// A code's place in a strip: 32-bit word from the strip's start and bit in it.
struct BitPlace {
    uint32_t word;
    uint32_t bit;
};
// token 0 .. page_tokens-1, channel 0 .. 15 in the strip, bits of the plane.
BitPlace strip_place(Side side, uint32_t page_tokens, uint32_t bits, uint32_t token,
                     uint32_t channel);

uint64_t payload_bytes(const PageLayout &layout);
// Strip index 0 .. head_dim/16-1 over all planes: byte offset of its (low) plane part, its plane,
// and for kPlane3 the offset of its 1-bit part.
struct StripPlace {
    Plane plane;
    uint32_t index_in_plane;
    uint64_t offset_bytes;
    uint64_t high_offset_bytes;  // kPlane3 only, else 0
};
StripPlace strip_at(const PageLayout &layout, uint32_t strip);

// Metadata. Groups along tokens (kChannel) or channels (kToken).
uint32_t n_groups(const PageLayout &layout);
// Number of (range, minimum) pairs: head_dim * groups or page_tokens * groups.
uint32_t n_parameters(const PageLayout &layout);
// Index in the ranges array, and likewise in the minima, of (slot, token).
uint32_t parameter_index(const PageLayout &layout, uint32_t slot, uint32_t token);
uint64_t ranges_offset_bytes(const PageLayout &layout);  // 0
uint64_t minima_offset_bytes(const PageLayout &layout);
uint64_t permutation_offset_bytes(const PageLayout &layout);
uint64_t metadata_bytes(const PageLayout &layout);  // 0 when raw

// Memory that a part takes in the cache.
constexpr uint64_t slot_bytes(uint64_t bytes) {
    return (bytes + LK_SLOT_ALIGN - 1) / LK_SLOT_ALIGN * LK_SLOT_ALIGN;
}

// A 16-bit half of `tokens` tokens (sinks, tail, raw layers).
PageLayout raw_layout(Side side, uint32_t head_dim, uint32_t tokens);

// Does the layout make sense? A sentence without the subject when it does not, else null.
const char *layout_error(const PageLayout &layout);

}  // namespace lk

#endif
