// Decode: strips of keys with shared slots, where two slots of 2 bits hold a channel of 3 bits, the
// outlier, and one of 1 bit, its partner (docs/FORMAT.md, 5.3).
//
// Such a strip has one product more where partners are: bit 0 of a code counts for the partner, bit
// 1, which is bit 2 of the outlier's code, for the outlier that many slots further on. Elsewhere
// both bits count as in any strip, with the outliers' steps. The sums count in thirds of the range;
// the factor from a step to a third is multiplied into the queries.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_SHARED_KEYS_CUH
#define LK_CUDA_DECODE_SHARED_KEYS_CUH

#include "cuda/decode/keys.cuh"

namespace lk {
namespace cuda {

constexpr uint32_t kBit0 = 0x00010001u;
constexpr uint32_t kBit1 = 0x00020002u;

// Thirds of a range, as an FP16 number in the low half and the remainder in the high half.
enum SlotFactor : uint32_t {
    kOrdinaryFactor = 0x00003C00,
    kPartnerFactor = 0x00004200,      // 3: a range is a step of 1 bit
    kOutlierFactor = 0x06DB36DB,      // 3/7
    kOutlierHighFactor = 0x0ADB3ADB,  // 6/7: bit 1 stands for 4 steps where it counts 2
};

// Slots are counted in the 2-bit plane. Whose bit 1 does a slot have?
__device__ __forceinline__ uint32_t high_slot(const Keys &keys, uint32_t slot) {
    return slot < keys.n_shared ? slot + keys.n_shared : slot;
}
// The offset of a stored channel's range, in token group 0.
__device__ __forceinline__ uint32_t range_offset(const Keys &keys, uint32_t slot,
                                                 uint32_t n_groups) {
    return (keys.end4 + (slot >> 4)) * n_groups * 16 + (slot << 1 & 12u) + (slot >> 2 & 2u) +
           (slot & 1u);
}

// That of the range which a slot's bit 1 has. A team's member has ranges of its outliers apart.
template <class SlotsOf>
__device__ __forceinline__ uint32_t high_range(const SlotsOf &slots, const Keys &keys,
                                               uint32_t slot, uint32_t n_groups) {
    return range_offset(keys, high_slot(keys, slot), n_groups) +
           slots.range_strips(keys, slot < keys.n_shared) * n_groups * 16;
}

template <class SlotsOf, int kTiles, DecodeKind kKind>
class SharedKeyStrip : public KeyStrips<2, 1, kTiles, kKind, false> {
    using Base = KeyStrips<2, 1, kTiles, kKind, false>;
    using Base::folded_;
    using Base::keys_;
    using Base::lane_;
    using Base::metadata_;
    using Base::queries_;

  public:
    __device__ __forceinline__ SharedKeyStrip(const Keys &keys, const Queries &queries,
                                              uint32_t metadata, const SlotsOf &slots,
                                              uint32_t strip, uint32_t lane)
        : Base(keys, queries, metadata, slots, strip, lane),
          all_queries_(queries),
          slots_(slots),
          first_((strip - keys.end4 + keys.plane2_strips) * 16) {}

    __device__ __forceinline__ void multiply(Work<kTiles> &out, uint32_t words) {
        const uint4 w = load_shared4(words);
        const bool has_partners = first_ < keys_.n_shared;
        this->template add_lows<false>(out);
        scale(kPartnerFactor);
        multiply_bits(out, w, has_partners ? kBit0 : kMask2,
                      [&](uint32_t tile) { this->template fold_ranges<false>(tile, out); });
        if (!has_partners)
            return;
        const uint32_t slot = plane_begin() * 16 + high_slot(keys_, first_ + (lane_ & 15u));
        this->load_queries(all_queries_, slots_.channel(slot), 0);
        scale(kOutlierHighFactor);
        uint32_t positions[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t k = (lane_ & 3u) * 2 + i % 2 + i / 2 * 8;
            positions[i] = high_range(slots_, keys_, first_ + k, this->n_groups());
        }
        multiply_bits(out, w, kBit1, [&](uint32_t tile) { fold_ranges_of(positions, tile); });
    }

  private:
    // The 2-bit plane's first strip, counted from the first strip here: below 0 where members of a
    // team before this one have strips of the plane.
    __device__ __forceinline__ uint32_t plane_begin() const {
        return keys_.end4 - keys_.plane2_strips;
    }
    __device__ __forceinline__ uint32_t factor_of(uint32_t k, SlotFactor of_partners) const {
        const uint32_t slot = first_ + k;
        return slot < keys_.n_shared       ? of_partners
               : slot < 2 * keys_.n_shared ? kOutlierFactor
                                           : kOrdinaryFactor;
    }
    __device__ __forceinline__ void scale(SlotFactor of_partners) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t k = (lane_ & 3u) * 2 + half * 8;
            const uint32_t first = factor_of(k, of_partners);
            const uint32_t second = factor_of(k + 1, of_partners);
            const uint32_t factor = __byte_perm(first, second, 0x5410);
            const uint32_t rest = __byte_perm(first, second, 0x7632);
#pragma unroll
            for (int c = 0; c < kTiles; ++c) {
                uint32_t &q = queries_[0][c][half];
                q = as_word(
                    __hfma2(as_half2(q), as_half2(factor), as_half2(multiply_f16(q, rest))));
            }
        }
    }
    __device__ __forceinline__ void fold_ranges_of(const uint32_t (&positions)[4], uint32_t tile) {
        if (!this->begins_group(tile))
            return;
        const uint32_t group = this->group_of(tile) * 16;
        const uint32_t low =
            load_two_ranges<kKind>(metadata_, positions[0] + group, positions[1] + group);
        const uint32_t high =
            load_two_ranges<kKind>(metadata_, positions[2] + group, positions[3] + group);
#pragma unroll
        for (int c = 0; c < kTiles; ++c) {
            folded_[0][c][0] = multiply_f16(queries_[0][c][0], low);
            folded_[0][c][1] = multiply_f16(queries_[0][c][1], high);
        }
    }
    template <class Fold>
    __device__ __forceinline__ void multiply_bits(Work<kTiles> &out, const uint4 &w, uint32_t mask,
                                                  Fold fold) {
        const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int t = 0; t < kPageTiles; ++t) {
            fold(t);
            multiply_tile(out.s[t], word[t / 2], mask << t % 2 * 2, folded_[0]);
        }
    }

    const Queries &all_queries_;
    const SlotsOf slots_;
    const uint32_t first_;  // slot of the strip, in the plane
};

}  // namespace cuda
}  // namespace lk

#endif
