// Decode: what a warp reads, and its ring of asynchronous copies.
//
// A warp goes through its pieces, each keys first, then values. Both halves are copied in chunks of
// whole strips; while one chunk is multiplied the next one is on its way. Ranges and minima come
// with the first chunk of their half and have a place of their own.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_RING_CUH
#define LK_CUDA_DECODE_RING_CUH

#include "fragment.cuh"
#include "launch.h"

namespace lk {
namespace cuda {

constexpr uint32_t kRawStrips = 8;  // strips of a chunk of a tile of a raw row

// A half of a piece as it is copied: chunk_bytes of the payload at a time.
struct alignas(16) HalfPiece {
    uint64_t payload;
    uint64_t metadata;
    uint32_t bytes;  // of the payload
    uint16_t chunk_bytes;
    uint16_t metadata_bytes;
};

// A page, or a tile of a raw row. In shared memory; lanes read what they need as vectors, so the
// order of the members counts.
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
    uint8_t reserved[2];
    // 80: place
    uint32_t first_token;   // of the row
    uint32_t strip_stride;  // raw: bytes from strip to strip of the row
    uint8_t is_raw;
    uint8_t tile;
    uint8_t last[6];
};
static_assert(sizeof(Piece) == kPieceBytes, "the host sizes shared memory by it");

// A block's work item, the classes of its head's packed halves (keys, values), and a page of them.
struct Share {
    WorkItem item;
    ClassInfo classes[2];
    Piece page;
};

// What a packed half's class says; the addresses follow.
__device__ inline void fill_half(Piece *piece, const ClassInfo &c, uint32_t side) {
    // Chunks end between strips: sizes of strips divide them.
    const bool is_wide = c.strips[0] || c.strips[1];
    piece->half[side] = {0, 0, c.payload_bytes, static_cast<uint16_t>(is_wide ? 4096 : kChunkBytes),
                         static_cast<uint16_t>(c.is_raw ? 0 : c.metadata_bytes)};
    piece->minima_offset[side] = static_cast<uint16_t>(c.minima_offset);
    piece->n_groups[side] = c.is_raw ? 1 : static_cast<uint8_t>(c.n_groups);
    if (c.number_bytes == 1)
        piece->is_f8 = 1;
    if (side) {
        piece->value_bits = c.strips[0] ? 16 : c.strips[1] ? 8 : c.strips[2] ? 4 : 2;
        piece->value_group_strips = c.is_raw ? 255 : static_cast<uint8_t>(c.group / 16);
        return;
    }
    piece->end16 = c.strips[0];
    piece->end8 = c.strips[0] + c.strips[1];
    piece->end4 = piece->end8 + c.strips[2];
    piece->permutation_offset = c.permutes ? static_cast<uint16_t>(c.permutation_offset) : 0;
}

// Where a piece's bytes are: looked up before its classes are known.
struct PieceSource {
    RowInfo row;
    Entry entry;
};
__device__ __forceinline__ PieceSource find_piece(const DecodeArgs &args, const WorkItem &item,
                                                  uint32_t n_raw, uint32_t index) {
    uint32_t row = item.packed_begin + index - n_raw;
    if (index < n_raw) {
        row = index / kRowTiles;
        row = row < item.raw_count[0] ? item.raw_begin[0] + row
                                      : item.raw_begin[1] + row - item.raw_count[0];
    }
    PieceSource source;
    source.row = args.step.rows[item.first_row + row];
    source.entry =
        reinterpret_cast<const Entry *>(source.row.entries)[args.layer.first_entry + item.kv_head];
    return source;
}

__device__ inline void fill_piece(const DecodeArgs &args, const Share &share,
                                  const PieceSource &source, bool is_raw, uint32_t tile,
                                  uint32_t n_tokens, Piece *piece) {
    const Entry &entry = source.entry;
    if (!is_raw) {
        *piece = share.page;
        if (entry.key_class != share.item.key_class ||
            entry.value_class != share.item.value_class) {
            piece->is_f8 = 0;
            fill_half(piece, args.step.classes[entry.key_class], 0);
            fill_half(piece, args.step.classes[entry.value_class], 1);
        }
        piece->half[0].metadata = entry.key_metadata;
        piece->half[1].metadata = entry.value_metadata;
    } else {
        const uint32_t tiles = source.row.capacity_tokens / 16;
        const bool is_there = tile < tiles && source.row.first_token + tile * 16 < n_tokens;
        const uint32_t bytes = is_there ? args.layer.head_dim / 16 * 512 : 0;
        piece->half[0] = {0, 0, bytes, kRawStrips * 512, 0};
        piece->half[1] = {0, 0, bytes, kRawStrips * 512, 0};
        piece->strip_stride = tiles * 512;
        piece->is_raw = 1;
        piece->tile = static_cast<uint8_t>(tile);
    }
    const uint32_t offset = is_raw ? tile * 512 : 0;
    piece->half[0].payload = entry.key_payload + offset;
    piece->half[1].payload = entry.value_payload + offset;
    piece->first_token = source.row.first_token;
}

// Where a ring's copies arrive. Hopper copies whole runs with one instruction and counts bytes at a
// barrier in shared memory; before it, each lane copies 16 bytes at a time.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
class Arrivals {
  public:
    __device__ __forceinline__ Arrivals(uint32_t barriers, uint32_t lane)
        : barriers_(barriers), lane_(lane) {}
    static __device__ __forceinline__ void open(uint32_t barriers) {
        for (uint32_t i = 0; i < 2; ++i)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barriers + i * 8) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // Ordinary stores before it stay before copies behind the next barrier.
    static __device__ __forceinline__ void fence() {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __device__ __forceinline__ void expect(uint32_t slot, uint32_t bytes) const {
        if (lane_ == 0)
            asm volatile(
                "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barriers_ + slot * 8),
                "r"(bytes)
                : "memory");
    }
    __device__ __forceinline__ void copy(uint32_t slot, uint32_t to, uint64_t from,
                                         uint32_t bytes) const {
        if (lane_ == 0 && bytes)
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                "[%0],[%1],%2,[%3];" ::"r"(to),
                "l"(from), "r"(bytes), "r"(barriers_ + slot * 8)
                : "memory");
    }
    __device__ __forceinline__ void close() const {}
    // Until the copies of a slot, its use number `use`, are there.
    __device__ __forceinline__ void wait(uint32_t slot, uint32_t use) const {
        asm volatile(
            "{\n.reg .pred there;\nagain:\n"
            "mbarrier.try_wait.parity.shared.b64 there, [%0], %1;\n@!there bra again;\n}" ::"r"(
                barriers_ + slot * 8),
            "r"(use & 1u)
            : "memory");
    }

  private:
    const uint32_t barriers_;
    const uint32_t lane_;
};
#else
class Arrivals {
  public:
    __device__ __forceinline__ Arrivals(uint32_t, uint32_t lane) : lane_(lane) {}
    static __device__ __forceinline__ void open(uint32_t) {}
    static __device__ __forceinline__ void fence() {}
    __device__ __forceinline__ void expect(uint32_t, uint32_t) const {}
    __device__ __forceinline__ void copy(uint32_t, uint32_t to, uint64_t from,
                                         uint32_t bytes) const {
        const char *source = reinterpret_cast<const char *>(from);
#pragma unroll 2
        for (uint32_t at = lane_ * 16; at < bytes; at += kWarp * 16)
            copy_async(to + at, source + at);
    }
    __device__ __forceinline__ void close() const { commit_copies(); }
    __device__ __forceinline__ void wait(uint32_t, uint32_t) const {
        wait_copies<1>();
        __syncwarp();
    }

  private:
    const uint32_t lane_;
};
#endif

// Issues copies in the order in which chunks are used; everything is uniform in the warp.
class Ring {
  public:
    // pieces: shared, those of the item; the warp takes number warp, warp + n_warps, ... memory:
    // shared, two slots of kChunkBytes, then the metadata of keys, then of values. uses: chunks
    // that went through the ring before, of earlier items.
    __device__ __forceinline__ Ring(uint32_t pieces, uint32_t n_pieces, uint32_t memory,
                                    uint32_t key_metadata_bytes, const Arrivals &arrivals,
                                    uint32_t uses, uint32_t warp, uint32_t n_warps)
        : arrivals_(arrivals),
          memory_(memory),
          value_metadata_(memory + 2 * kChunkBytes + key_metadata_bytes),
          half_(pieces + warp * kPieceBytes),
          using_(half_),
          end_(pieces + n_pieces * kPieceBytes),
          stride_(n_warps * kPieceBytes),
          issued_(uses),
          used_(uses) {
#pragma unroll 1
        for (int i = 0; i < 2; ++i)
            issue();
    }

    __device__ __forceinline__ bool has_more() const { return using_ < end_; }
    __device__ __forceinline__ uint32_t piece() const { return using_; }
    __device__ __forceinline__ bool is_empty() const { return !load_shared1(using_ + 16); }
    __device__ __forceinline__ void next_piece() { using_ += stride_; }
    __device__ __forceinline__ uint32_t uses() const { return issued_; }

    // Wait for the chunk that is used next; its place.
    __device__ __forceinline__ uint32_t wait() const {
        const uint32_t slot = used_ & 1u;
        arrivals_.wait(slot, used_ >> 1);
        return memory_ + slot * kChunkBytes;
    }
    // It is used up: copy another one over it.
    __device__ __forceinline__ void next() {
        __syncwarp();
        ++used_;
        issue();
    }
    __device__ __forceinline__ uint32_t key_metadata() const { return memory_ + 2 * kChunkBytes; }
    __device__ __forceinline__ uint32_t value_metadata() const { return value_metadata_; }

  private:
    // half_ is the place of a HalfPiece: the piece's, or 32 bytes behind it.
    __device__ __forceinline__ void issue() {
        if (!side_)
            skip_nothing();
        if (half_ >= end_) {
            // An empty turn, so that uses and slots go on in step.
            arrivals_.expect(issued_ & 1u, 0);
            arrivals_.close();
            ++issued_;
            return;
        }
        const uint32_t slot = issued_ & 1u;
        const uint32_t to = memory_ + slot * kChunkBytes;
        const uint32_t sizes = load_shared1(half_ + 20);
        const uint32_t chunk = sizes & 0xFFFFu;
        const uint64_t payload = load_shared_address(half_);
        const uint32_t total = load_shared1(half_ + 16);
        const uint32_t bytes = min(chunk, total - offset_);
        const uint32_t metadata_bytes = offset_ ? 0 : sizes >> 16;
        arrivals_.expect(slot, bytes + metadata_bytes);
        const bool is_values = side_;
        const uint32_t place = half_ - (is_values ? 32 : 0) + 80;
        if (load_shared1(place + 8) & 0xFFu) {
            copy_raw(slot, to, payload, bytes, place);
        } else {
            if (!offset_)
                arrivals_.copy(slot, is_values ? value_metadata_ : key_metadata(),
                               load_shared_address(half_ + 8), metadata_bytes);
            arrivals_.copy(slot, to, payload + offset_, bytes);
        }
        arrivals_.close();
        ++issued_;
        offset_ += bytes;
        if (offset_ == total) {
            offset_ = 0;
            half_ += is_values ? stride_ - 32 : 32;
            side_ = !is_values;
        }
    }
    // Tiles of raw rows may lie behind the last token.
    __device__ __forceinline__ void skip_nothing() {
#pragma unroll 1
        while (half_ < end_ && !load_shared1(half_ + 16))
            half_ += stride_;
    }
    __device__ __forceinline__ void copy_raw(uint32_t slot, uint32_t to, uint64_t payload,
                                             uint32_t bytes, uint32_t place) const {
        const uint32_t stride = load_shared1(place + 4);
        uint64_t from = payload + offset_ / 512 * stride;
#pragma unroll 1
        for (uint32_t done = 0; done < bytes; done += 512, from += stride)
            arrivals_.copy(slot, to + done, from, 512);
    }

    const Arrivals arrivals_;
    const uint32_t memory_;
    const uint32_t value_metadata_;
    uint32_t half_;   // of the next copy
    uint32_t using_;  // the piece at use
    const uint32_t end_;
    const uint32_t stride_;
    uint32_t offset_ = 0;  // of the next copy in its half
    bool side_ = false;
    uint32_t issued_;
    uint32_t used_;
};

// What the multiplying side needs of a piece.
struct Keys {
    uint32_t permutation_offset;
    uint32_t minima_offset;
    uint32_t end16, end8, end4;
    uint32_t n_groups;
    bool is_f8;
};
struct Values {
    uint32_t minima_offset;
    uint32_t bits;
    uint32_t n_groups;
    uint32_t group_strips;
    bool is_f8;
};
struct Place {
    uint32_t first_token;  // of the row
    uint32_t tile;
    bool is_raw;
};
__device__ __forceinline__ Place read_place(uint32_t piece) {
    const uint4 p = load_shared4(piece + 80);
    return {p.x, p.z >> 8 & 0xFFu, (p.z & 0xFFu) != 0};
}
__device__ __forceinline__ Keys read_keys(uint32_t piece) {
    const uint4 s = load_shared4(piece + 64);
    return {s.y & 0xFFFFu, s.x & 0xFFFFu,     s.y >> 16 & 0xFFu,      s.y >> 24,
            s.z & 0xFFu,   s.z >> 16 & 0xFFu, (s.z >> 8 & 0xFFu) != 0};
}
__device__ __forceinline__ Values read_values(uint32_t piece) {
    const uint4 s = load_shared4(piece + 64);
    return {s.x >> 16, s.w >> 8 & 0xFFu, s.z >> 24, s.w & 0xFFu, (s.z >> 8 & 0xFFu) != 0};
}

}  // namespace cuda
}  // namespace lk

#endif
