// KV tiles of decode: a packed page, or a tile of a raw block. Kernels fill them from templates
// that the host makes of the page formats of a layer.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_KV_TILE_H
#define LK_CUDA_KV_TILE_H

#include <cstddef>

#include "cuda/types.h"
#include "format/rules.h"

namespace lk {
namespace cuda {

constexpr uint32_t kValueChunkBytes = 4096;

// The K page or the V page of a KV tile as it is copied: chunk_bytes of the payload at a time.
struct alignas(16) KvTileSide {
    uint64_t payload;
    uint64_t metadata;
    uint32_t bytes;  // of the payload
    uint16_t chunk_bytes;
    uint16_t metadata_bytes;
};

enum KvTileFlag : uint8_t {
    kHasOwnOrder = 1,  // queries laid out for the head's common format do not fit
    kHasF8Keys = 2,    // parameters of keys
    kHasF8Values = 4,
    kIsRawPage = 8,  // of a team: all of its keys are 16 bits
};
// What KvTile.is_raw says.
enum RawKvTile : uint8_t {
    kRawTile = 1,
    kRawPage = 2,  // of a kind whose ring does not copy these
};

// In shared memory; lanes read what they need as vectors, so the order of the members counts.
struct alignas(16) KvTile {
    KvTileSide side[2];  // keys, values; 32 bytes each with their padding
    // 64: keys
    uint16_t minima_offset[2];
    uint16_t permutation_offset;  // in the keys' metadata, 0 = none there
    uint8_t end16;                // strips of the keys before this one are 16 bits, and so on
    uint8_t end8;
    uint8_t end4;
    uint8_t flags;  // KvTileFlag
    uint8_t n_groups[2];
    uint8_t value_group_strips;
    uint8_t value_bits;
    uint16_t n_shared;  // pairs of shared slots, the first ones of 2 bits
    // 80: position
    uint32_t first_token;   // of the block
    uint32_t strip_stride;  // raw: bytes from strip to strip of the page
    uint8_t is_raw;
    uint8_t tile;
    uint8_t end2;  // strips of the keys from this one on are 1 bit
    // Of a member's part of a page, see decode/team.cuh:
    uint8_t plane2_strips;   // of the keys' 2-bit plane before the member's
    uint16_t more_metadata;  // bytes from the member's ranges to what follows its minima
    uint8_t outlier_strip;   // of that plane: the first whose ranges follow the member's minima
    uint8_t value_groups;    // of the page; n_groups are the member's
};
static_assert(sizeof(KvTile) == kKvTileBytes, "the host sizes shared memory by it");
constexpr uint32_t kRawOffset = 88;
constexpr uint32_t kEnd2Offset = 90;
static_assert(offsetof(KvTile, is_raw) == kRawOffset, "kernels read it by itself");
static_assert(offsetof(KvTile, end2) == kEnd2Offset, "kernels read it by itself");
constexpr uint32_t kMinimaOffset = 64;
constexpr uint32_t kPermutationOffset = 68;
constexpr uint32_t kFlagsOffset = 73;
static_assert(offsetof(KvTile, permutation_offset) == kPermutationOffset, "kernels read it");
constexpr uint32_t kKeyMetadataBytesOffset = 22;
static_assert(offsetof(KvTileSide, metadata_bytes) == kKeyMetadataBytesOffset, "kernels read it");
static_assert(offsetof(KvTile, flags) == kFlagsOffset, "kernels read it by itself");
constexpr uint32_t kPlane2Offset = 91;
static_assert(offsetof(KvTile, plane2_strips) == kPlane2Offset, "kernels read it with the others");
static_assert(offsetof(KvTile, more_metadata) == kPlane2Offset + 1, "kernels read it");
static_assert(offsetof(KvTile, outlier_strip) == kPlane2Offset + 3, "kernels read it");
static_assert(offsetof(KvTile, value_groups) == kPlane2Offset + 4, "kernels read it");
static_assert(offsetof(KvTile, minima_offset) == kMinimaOffset, "kernels read it by itself");

// The packed pages of one (layer, KV head), without their addresses.
struct alignas(16) KvTileTemplate {
    KvTile kv_tile;
    uint64_t permutation;  // u8 [head_dim] fixed slot -> channel of keys; 0 = identity
    uint16_t key_format;
    uint16_t value_format;
    uint32_t reserved;
};

// The members that follow from a page's format; the addresses come later.
LK_BOTH void fill_side(KvTile *kv_tile, const FormatInfo &c, uint32_t side) {
    // Chunks end between strips: sizes of strips divide them.
    const bool is_wide = side || c.strips[kPlane16] || c.strips[kPlane8];
    kv_tile->side[side] = {0, 0, c.payload_bytes,
                           static_cast<uint16_t>(is_wide ? kValueChunkBytes : kChunkBytes),
                           static_cast<uint16_t>(c.is_raw ? 0 : c.metadata_bytes)};
    kv_tile->minima_offset[side] = static_cast<uint16_t>(c.minima_offset);
    const uint32_t f8 = side ? kHasF8Values : kHasF8Keys;
    const bool is_f8 = !c.is_raw && c.parameter_bytes == 1;
    kv_tile->flags = static_cast<uint8_t>((kv_tile->flags & ~f8) | (is_f8 ? f8 : 0));
    kv_tile->n_groups[side] = c.is_raw ? 1 : static_cast<uint8_t>(c.n_groups);
    if (side) {
        kv_tile->value_bits = c.strips[kPlane16]  ? 16
                              : c.strips[kPlane8] ? 8
                              : c.strips[kPlane4] ? 4
                              : c.strips[kPlane2] ? 2
                                                  : 1;
        kv_tile->value_group_strips = c.is_raw ? 255 : static_cast<uint8_t>(c.group / 16);
        return;
    }
    kv_tile->end16 = c.strips[kPlane16];
    kv_tile->end8 = c.strips[kPlane16] + c.strips[kPlane8];
    kv_tile->end4 = kv_tile->end8 + c.strips[kPlane4];
    kv_tile->end2 = kv_tile->end4 + c.strips[kPlane2];
    kv_tile->n_shared = c.n_shared;
    kv_tile->permutation_offset = c.permutes ? static_cast<uint16_t>(c.permutation_offset) : 0;
    kv_tile->flags = static_cast<uint8_t>((kv_tile->flags & ~uint32_t{kHasOwnOrder}) |
                                          (c.permutes ? kHasOwnOrder : 0));
}

}  // namespace cuda
}  // namespace lk

#endif
