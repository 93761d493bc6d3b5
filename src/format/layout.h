// Where the bytes of a page lie. docs/FORMAT.md is the specification.
//
// A page holds the keys or the values of one layer and KV head for up to page_tokens tokens: a
// payload (planes of strips) and, below 16 bits, metadata (ranges, minima, and the channel
// permutation when the page has its own).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_LAYOUT_H
#define LK_FORMAT_LAYOUT_H

#include "format/rules.h"

namespace lk {

enum class Side : uint8_t { kKey, kValue };  // which of tokens and channels are tile rows
enum class Axis : uint8_t { kChannel = 1, kToken = 2 };  // as lk_axis

// What decides every offset. Stored channels are numbered through the planes in order; stored
// channel s of the page holds channel permutation[s].
struct PageLayout {
    Side side = Side::kKey;
    Axis axis = Axis::kChannel;
    Metadata metadata = Metadata::kF16;
    uint8_t permutes = 0;  // the metadata ends in the page's own permutation
    uint16_t head_dim = 0;
    uint16_t page_tokens = 0;           // capacity: 16 .. 1024 at 16 bits only, else 32, 64, 128
    uint16_t group = 0;                 // tokens (kChannel) or channels (kToken), never 0
    uint16_t n_shared = 0;              // pairs in the 2-bit plane: its first n_shared stored
                                        // channels are 1-bit partners, the next the outliers
    uint16_t strips[kPlaneCount] = {};  // sum = head_dim / 16

    bool is_absent() const { return !head_dim; }
    bool is_raw() const { return strips[kPlane16] * LK_STRIP_CHANNELS == head_dim; }
};

// Where a code lies in a strip: 32-bit word from the strip's start and bit in it.
struct BitPosition {
    uint32_t word;
    uint32_t bit;
};
// token 0 .. page_tokens-1, channel 0 .. 15 in the strip, bits of the plane or of its part.
BitPosition find_bit(Side side, uint32_t page_tokens, uint32_t bits, uint32_t token,
                     uint32_t channel);

uint64_t payload_bytes(const PageLayout &layout);

// Metadata. Groups along tokens (kChannel) or channels (kToken).
uint32_t n_groups(const PageLayout &layout);
// Number of (range, minimum) pairs: head_dim * groups or page_tokens * groups.
uint32_t n_parameters(const PageLayout &layout);
// Index in the ranges array, and likewise in the minima, of (stored channel, token).
uint32_t parameter_index(const PageLayout &layout, uint32_t stored, uint32_t token);
uint64_t ranges_offset_bytes(const PageLayout &layout);  // 0
uint64_t minima_offset_bytes(const PageLayout &layout);
uint64_t permutation_offset_bytes(const PageLayout &layout);
uint64_t metadata_bytes(const PageLayout &layout);  // 0 when raw

// Memory that a payload or metadata takes in the cache.
constexpr uint64_t slot_bytes(uint64_t bytes) {
    return (bytes + LK_SLOT_ALIGN - 1) / LK_SLOT_ALIGN * LK_SLOT_ALIGN;
}

// A 16-bit page of `tokens` tokens (sinks, recent tokens, raw layers).
PageLayout raw_layout(Side side, uint32_t head_dim, uint32_t tokens);
// The V page of a latent layer: a raw page of no channels and no bytes. No file has it.
PageLayout absent_layout(uint32_t tokens);

// Does the layout make sense? A sentence without the subject when it does not, else null.
const char *layout_error(const PageLayout &layout);

}  // namespace lk

#endif
