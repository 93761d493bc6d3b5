// Pieces of decode's work: a page, or a tile of a raw row. Kernels find them from templates that
// the host makes of a layer's classes.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PIECE_H
#define LK_CUDA_PIECE_H

#include "types.h"

#ifdef __CUDACC__
#define LK_PIECE_CALL __host__ __device__
#else
#define LK_PIECE_CALL
#endif

namespace lk {
namespace cuda {

constexpr uint32_t kValueChunkBytes = 4096;

// A half of a piece as it is copied: chunk_bytes of the payload at a time.
struct alignas(16) HalfPiece {
    uint64_t payload;
    uint64_t metadata;
    uint32_t bytes;  // of the payload
    uint16_t chunk_bytes;
    uint16_t metadata_bytes;
};

// In shared memory; lanes read what they need as vectors, so the order of the members counts.
struct alignas(16) Piece {
    HalfPiece half[2];  // keys, values; 32 bytes each with their padding
    // 64: keys
    uint16_t minima_offset[2];
    uint16_t permutation_offset;  // in the keys' metadata, 0 = none there
    uint8_t end16;                // strips of the keys before this one are 16 bits, and so on
    uint8_t end8;
    uint8_t end4;
    uint8_t is_f8;
    uint8_t n_groups[2];
    uint8_t value_group_strips;
    uint8_t value_bits;
    uint16_t n_shared;  // pairs of shared slots, the first ones of 2 bits
    // 80: place
    uint32_t first_token;   // of the row
    uint32_t strip_stride;  // raw: bytes from strip to strip of the row
    uint8_t is_raw;
    uint8_t tile;
    uint8_t last[6];
};
static_assert(sizeof(Piece) == kPieceBytes, "the host sizes shared memory by it");

// A packed page of one (layer, KV head), without its place.
struct alignas(16) PageTemplate {
    Piece piece;
    uint64_t permutation;  // u8 [head_dim] fixed slot -> channel of keys; 0 = identity
    uint16_t key_format;
    uint16_t value_format;
    uint32_t reserved;
};

// What a packed half's class says of it; the addresses follow.
LK_PIECE_CALL inline void fill_half(Piece *piece, const FormatInfo &c, uint32_t side) {
    // Chunks end between strips: sizes of strips divide them.
    const bool is_wide = side || c.strips[0] || c.strips[1];
    piece->half[side] = {0, 0, c.payload_bytes,
                         static_cast<uint16_t>(is_wide ? kValueChunkBytes : kChunkBytes),
                         static_cast<uint16_t>(c.is_raw ? 0 : c.metadata_bytes)};
    piece->minima_offset[side] = static_cast<uint16_t>(c.minima_offset);
    piece->n_groups[side] = c.is_raw ? 1 : static_cast<uint8_t>(c.n_groups);
    if (c.number_bytes == 1)
        piece->is_f8 = 1;
    if (side) {
        piece->value_bits = c.strips[0]   ? 16
                            : c.strips[1] ? 8
                            : c.strips[2] ? 4
                            : c.strips[4] ? 2
                                          : 1;
        piece->value_group_strips = c.is_raw ? 255 : static_cast<uint8_t>(c.group / 16);
        return;
    }
    piece->end16 = c.strips[0];
    piece->end8 = c.strips[0] + c.strips[1];
    piece->end4 = piece->end8 + c.strips[2];
    piece->n_shared = c.n_shared;
    piece->permutation_offset = c.permutes ? static_cast<uint16_t>(c.permutation_offset) : 0;
}

}  // namespace cuda
}  // namespace lk

#endif
