// Decode: which warps read a KV tile together.
//
// Up to 128 channels a warp reads a page by itself. A page of more channels is read by a team, a
// warp for each 128 of them: a member multiplies its strips of the keys, the members add up their
// logits in shared memory, and each multiplies its strips of the values by the same weights. So a
// warp needs the ring and the registers of 128 channels, and has its part of a page as if it were a
// page.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_TEAM_CUH
#define LK_CUDA_DECODE_TEAM_CUH

#include "cuda/fragment.cuh"
#include "cuda/kv_tile.h"
#include "cuda/launch.h"

namespace lk {
namespace cuda {

constexpr uint32_t kTeamStrips = kTeamChannels / 16;  // of a member

// The channels of stored channels in shared memory, as a permutation of kStrips strips has them.
template <int kStrips>
struct Slots {
    static constexpr uint32_t kBytes = bytes_of_channel(kStrips * 16);
    // Those for 16-bit pages follow those for packed pages: raw pages lie among packed ones, and
    // have no permutation.
    static constexpr uint32_t kRawOffset = kStrips * 16 > 256 ? permutation_bytes(kStrips * 16)
                                                              : 256;
    static constexpr bool kIsTeam = false;
    uint32_t address;

    static constexpr uint32_t first_strip() { return 0; }
    __device__ __forceinline__ uint32_t raw_offset() const { return kRawOffset; }
    template <class Keys>
    static constexpr uint32_t range_strips(const Keys &, bool) {
        return 0;
    }
    __device__ __forceinline__ uint32_t channel(uint32_t slot) const {
        return kBytes == 1 ? load_shared_byte(address + slot)
                           : load_shared_half(address + 2 * slot);
    }
};

template <int kStrips>
class OneWarp {
  public:
    static constexpr bool kIsTeam = false;
    static constexpr uint32_t kMostChannels = kStrips * 16;
    static constexpr uint32_t kSlotsBytes = 2 * Slots<kStrips>::kRawOffset;

    __device__ __forceinline__ OneWarp(uint32_t, uint32_t warp, uint32_t) : warp_(warp) {}

    static constexpr uint32_t head_dim() { return kMostChannels; }
    static constexpr uint32_t first_strip() { return 0; }
    static constexpr uint32_t raw_offset() { return Slots<kStrips>::kRawOffset; }
    static __device__ __forceinline__ Slots<kStrips> slots(uint32_t address) { return {address}; }
    // Which of the thread block's readers of KV tiles the warp is, or belongs to.
    __device__ __forceinline__ uint32_t reader() const { return warp_; }
    static __device__ __forceinline__ uint32_t readers(uint32_t n_warps) { return n_warps; }
    __device__ __forceinline__ void take_part(KvTile *) const {}
    static constexpr bool any(bool is_so) { return is_so; }

  private:
    const uint32_t warp_;
};

// The same of a member's strips of a head of any width.
struct TeamSlots {
    static constexpr bool kIsTeam = true;
    uint32_t address;
    uint32_t head_dim;
    uint32_t first;

    __device__ __forceinline__ uint32_t first_strip() const { return first; }
    __device__ __forceinline__ uint32_t raw_offset() const { return permutation_bytes(head_dim); }
    // Strips between where a range of the 2-bit plane would lie, were the plane whole, and where it
    // lies: those of outliers of the member's partners follow its ranges and its minima.
    template <class Keys>
    __device__ __forceinline__ uint32_t range_strips(const Keys &keys, bool is_partner) const {
        return is_partner ? 2 * kTeamChannels / 16 - keys.outlier_strip - keys.end4
                          : 0 - keys.plane2_strips;
    }
    __device__ __forceinline__ uint32_t channel(uint32_t slot) const {
        return bytes_of_channel(head_dim) == 1 ? load_shared_byte(address + slot)
                                               : load_shared_half(address + 2 * slot);
    }
};

// Quantization parameters or an order of channels, copied at once.
struct MetadataPart {
    uint32_t to;  // shared
    uint64_t from;
    uint32_t bytes;
};

// Teams of kStrips strips a member, for pages of plain kinds, kDecodeF8By32, kDecodeF8Wide or kinds
// of all formats.
template <int kStrips, DecodeKind kKind>
class WarpTeam {
  public:
    static constexpr bool kIsTeam = true;
    static constexpr uint32_t kMostChannels = kMostTeamChannels;
    static constexpr uint32_t kSlotsBytes = 2 * permutation_bytes(kMostChannels);
    static constexpr uint32_t kMetadataParts = reads_all_formats(kKind) ? 4 : 3;  // at most
    static_assert(kStrips == kTeamStrips, "the host sizes teams by it");

    // addresses: shared, a word for each warp.
    __device__ __forceinline__ WarpTeam(uint32_t head_dim, uint32_t warp, uint32_t addresses)
        : head_dim_(head_dim), warp_(warp), addresses_(addresses) {}

    __device__ __forceinline__ uint32_t head_dim() const { return head_dim_; }
    // 256 or 512 channels: 2 or 4 warps.
    __device__ __forceinline__ uint32_t shift() const { return head_dim_ >> 8; }
    __device__ __forceinline__ uint32_t size() const { return head_dim_ / kTeamChannels; }
    __device__ __forceinline__ uint32_t member() const { return warp_ & (size() - 1); }
    __device__ __forceinline__ uint32_t first_strip() const { return member() * kStrips; }
    __device__ __forceinline__ uint32_t raw_offset() const { return permutation_bytes(head_dim_); }
    __device__ __forceinline__ TeamSlots slots(uint32_t address) const {
        return {address + first_strip() * 16 * bytes_of_channel(head_dim_), head_dim_,
                first_strip()};
    }
    __device__ __forceinline__ uint32_t reader() const { return warp_ >> shift(); }
    __device__ __forceinline__ uint32_t readers(uint32_t n_warps) const {
        return n_warps >> shift();
    }

    // A KV tile becomes that of the member's strips.
    __device__ __forceinline__ void take_part(KvTile *kv_tile) const;

    // The metadata of a member's keys, `bytes` in all, are three parts: ranges, minima, and
    // what else it needs: its part of the permutation, or ranges of outliers. Kinds of all formats
    // have a fourth part, the whole permutation. kv_tile: shared; from: of its ranges.
    __device__ __forceinline__ MetadataPart key_metadata(uint32_t kv_tile, uint32_t to,
                                                         uint64_t from, uint32_t bytes,
                                                         uint32_t i) const {
        const uint32_t each = load_shared_half(kv_tile + kMinimaOffset);
        const uint32_t more = load_shared_half(kv_tile + kPlane2Offset + 1);
        if (kHasAll) {
            const uint32_t permutation = load_shared_half(kv_tile + kPermutationOffset);
            if (i == 3)  // the page has it after all ranges and minima
                return {to + permutation, from + (2 * size() - member()) * each,
                        permutation ? bytes - permutation : 0};
            bytes = permutation ? permutation : bytes;
        }
        return {to + i * each, from + (i == 2 ? more : i * each * size()),
                i == 2 ? bytes - 2 * each : each};
    }
    // Those of its values: all of a plain page, ranges and minima of its groups of others.
    __device__ __forceinline__ MetadataPart value_metadata(uint32_t kv_tile, uint32_t to,
                                                           uint64_t from, uint32_t bytes,
                                                           uint32_t i) const {
        if (kIsPlainTeam)
            return {to, from, i ? 0 : bytes};
        const uint32_t n_groups = load_shared_byte(kv_tile + kPlane2Offset + 4);
        const uint32_t flags = load_shared_byte(kv_tile + kFlagsOffset);
        const uint32_t of_group = has_f8(flags, kHasF8Values) ? 128 : 256;
        return {to + i * (bytes / 2), from + i * n_groups * of_group, i < 2 ? bytes / 2 : 0};
    }

    // Give the others kCount floats, at(i) each, by kCount * 128 bytes of shared memory at `own`.
    template <int kCount, class At>
    __device__ __forceinline__ void give(uint32_t own, uint32_t lane, At at) const {
        __syncwarp();
#pragma unroll
        for (int i = 0; i + 4 <= kCount; i += 4)
            *static_cast<float4 *>(__cvta_shared_to_generic(own + i * 128 + lane * 16)) =
                make_float4(at(i), at(i + 1), at(i + 2), at(i + 3));
#pragma unroll
        for (int i = kCount / 4 * 4; i < kCount; ++i)
            *static_cast<float *>(__cvta_shared_to_generic(own + i * 128 + lane * 4)) = at(i);
        if (lane == 0)
            *static_cast<uint32_t *>(__cvta_shared_to_generic(addresses_ + warp_ * 4)) = own;
    }
    // Replace them by the members' sums, which are added in the same order for each member.
    template <int kCount, class At>
    __device__ __forceinline__ void take_sums(uint32_t lane, At at) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            at(i) = 0;
        const uint32_t first = addresses_ + (warp_ - member()) * 4;
#pragma unroll 1
        for (uint32_t m = 0; m < size(); ++m) {
            const uint32_t from = load_shared1(first + m * 4);
#pragma unroll
            for (int i = 0; i + 4 <= kCount; i += 4) {
                const float4 x = load_shared<float4>(from + i * 128 + lane * 16);
                at(i) += x.x;
                at(i + 1) += x.y;
                at(i + 2) += x.z;
                at(i + 3) += x.w;
            }
#pragma unroll
            for (int i = kCount / 4 * 4; i < kCount; ++i)
                at(i) += load_shared<float>(from + i * 128 + lane * 4);
        }
    }
    // Wait for the members.
    __device__ __forceinline__ void meet() const {
        __syncwarp();
        asm volatile("bar.sync %0, %1;" ::"r"(reader() + 1), "r"(size() * kWarp) : "memory");
    }
    // Is it so for a member?
    __device__ __forceinline__ bool any(bool is_so) const {
        uint32_t is_any;
        __syncwarp();
        asm volatile(
            "{\n.reg .pred own, all;\n"
            "setp.ne.u32 own, %1, 0;\n"
            "bar.red.or.pred all, %2, %3, own;\n"
            "selp.u32 %0, 1, 0, all;\n}"
            : "=r"(is_any)
            : "r"(uint32_t{is_so}), "r"(reader() + 1), "r"(size() * kWarp)
            : "memory");
        return is_any;
    }

  private:
    static constexpr bool kIsPlainTeam = kKind == kDecodePlain || kKind == kDecodeF8Plain;
    static constexpr bool kHasAll = reads_all_formats(kKind);
    static __device__ __forceinline__ bool has_f8(uint32_t flags, KvTileFlag flag) {
        return (!kIsPlainTeam && kKind != kDecodeF16) || (flags & flag);
    }

    // The metadata of the member's keys and values, of packed pages.
    __device__ __forceinline__ void take_key_metadata(KvTile *kv_tile) const;
    __device__ __forceinline__ void take_value_groups(KvTile *kv_tile) const;

    const uint32_t head_dim_;
    const uint32_t warp_;
    const uint32_t addresses_;
};

template <int kStrips, DecodeKind kKind>
__device__ __forceinline__ void WarpTeam<kStrips, kKind>::take_part(KvTile *kv_tile) const {
    KvTileSide &keys = kv_tile->side[0];
    KvTileSide &values = kv_tile->side[1];
    const uint32_t first = first_strip();
    if (kv_tile->is_raw) {
        if (!keys.bytes)
            return;
        keys.payload += first * kv_tile->strip_stride;
        values.payload += first * kv_tile->strip_stride;
        keys.bytes = values.bytes = kStrips * 512;
        return;
    }
    if (kv_tile->end16 * 16u == head_dim_)
        kv_tile->flags |= kIsRawPage;
    const auto offset_of = [&](uint32_t strip) {
        const uint32_t wide = min(strip, uint32_t{kv_tile->end4}) +
                              2 * min(strip, uint32_t{kv_tile->end8}) +
                              4 * min(strip, uint32_t{kv_tile->end16});
        const uint32_t bits = has_bit_keys(kKind) ? strip - min(strip, uint32_t{kv_tile->end2}) : 0;
        return 512 * (strip + wide) - 256 * bits;
    };
    const uint32_t value_bytes = kStrips * 256 * kv_tile->value_bits;
    values.payload += member() * value_bytes;
    values.bytes = value_bytes;
    keys.payload += offset_of(first);
    keys.bytes = offset_of(first + kStrips) - offset_of(first);
    if (keys.metadata_bytes)
        take_key_metadata(kv_tile);
    if (!kIsPlainTeam && values.metadata_bytes)
        take_value_groups(kv_tile);
    kv_tile->plane2_strips =
        static_cast<uint8_t>(max(first, uint32_t{kv_tile->end4}) - kv_tile->end4);
    const auto part_of = [&](uint32_t end) {
        return static_cast<uint8_t>(min(max(end, first) - first, uint32_t{kStrips}));
    };
    kv_tile->end16 = part_of(kv_tile->end16);
    kv_tile->end8 = part_of(kv_tile->end8);
    kv_tile->end4 = part_of(kv_tile->end4);
    if (has_bit_keys(kKind))
        kv_tile->end2 = part_of(kv_tile->end2);
    keys.chunk_bytes = static_cast<uint16_t>(kv_tile->end8 ? kValueChunkBytes : kChunkBytes);
}

template <int kStrips, DecodeKind kKind>
__device__ __forceinline__ void WarpTeam<kStrips, kKind>::take_key_metadata(KvTile *kv_tile) const {
    const uint32_t first = first_strip();
    // Bytes of ranges of a strip.
    const uint32_t of_strip =
        (kIsPlainTeam ? 1u : kv_tile->n_groups[0]) * (has_f8(kv_tile->flags, kHasF8Keys) ? 16 : 32);
    const uint32_t ranges = first * of_strip;
    uint32_t bytes = 2 * kStrips * of_strip;
    if (kIsPlainTeam && kv_tile->permutation_offset) {
        const uint32_t of_channel = bytes_of_channel(head_dim_);
        bytes += kTeamChannels * of_channel;
        kv_tile->more_metadata =
            static_cast<uint16_t>(kv_tile->permutation_offset + first * 16 * of_channel - ranges);
        kv_tile->permutation_offset = static_cast<uint16_t>(2 * kStrips * of_strip);
    }
    // Outliers lie n_shared channels after their partners, so those of kStrips strips lie in one
    // strip more.
    const uint32_t begin = max(first, uint32_t{kv_tile->end4});
    const uint32_t partners = kv_tile->n_shared + 16 * kv_tile->end4;
    if (!kIsPlainTeam && begin * 16 < partners && begin < first + kStrips) {
        const uint32_t outliers = begin + kv_tile->n_shared / 16;
        bytes += min(kStrips + 1u, head_dim_ / 16 - outliers) * of_strip;
        kv_tile->more_metadata = static_cast<uint16_t>(outliers * of_strip - ranges);
        kv_tile->outlier_strip = static_cast<uint8_t>(outliers - kv_tile->end4);
    }
    if (kHasAll && kv_tile->permutation_offset) {
        kv_tile->permutation_offset = static_cast<uint16_t>(bytes);
        bytes += permutation_bytes(head_dim_);
    }
    kv_tile->side[0].metadata += ranges;
    kv_tile->side[0].metadata_bytes = static_cast<uint16_t>(bytes);
    kv_tile->minima_offset[0] = static_cast<uint16_t>(kStrips * of_strip);
}

// Groups of channels either end where a member's channels do, or are those of several members.
template <int kStrips, DecodeKind kKind>
__device__ __forceinline__ void WarpTeam<kStrips, kKind>::take_value_groups(KvTile *kv_tile) const {
    const uint32_t group_strips = kv_tile->value_group_strips;
    const uint32_t n_groups = max(kStrips / group_strips, 1u);
    kv_tile->value_groups = kv_tile->n_groups[1];
    kv_tile->n_groups[1] = static_cast<uint8_t>(n_groups);
    const uint32_t of_group = has_f8(kv_tile->flags, kHasF8Values) ? 128 : 256;
    kv_tile->side[1].metadata += first_strip() / group_strips * of_group;
    kv_tile->side[1].metadata_bytes = static_cast<uint16_t>(2 * n_groups * of_group);
    kv_tile->minima_offset[1] = static_cast<uint16_t>(n_groups * of_group);
}

}  // namespace cuda
}  // namespace lk

#endif
