// Decode: the keys of a KV tile, strip by strip.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_PAGE_KEYS_CUH
#define LK_CUDA_DECODE_PAGE_KEYS_CUH

#include "cuda/decode/shared_keys.cuh"

namespace lk {
namespace cuda {

// The types that multiply strips: kCount strips of kBits, and a strip with shared slots.
template <int kColumnTiles, DecodeKind kOfKind, bool kOfPairs = false>
struct KeysByF16 {
    static constexpr int kTiles = kColumnTiles;
    static constexpr int kTokenTiles = kTilesOf<kOfKind>;
    static constexpr DecodeKind kKind = kOfKind;
    static constexpr bool kHasPairs = kOfPairs;  // columns 2h and 2h + 1 are a column pair
    template <int kBits, int kCount>
    using Strips = KeyStrips<kBits, kCount, kTiles, kKind, kOfPairs>;
    template <class SlotsOf>
    using SharedStrip = SharedKeyStrip<SlotsOf, kTiles, kKind>;
    static constexpr bool kHasBytes = true;      // strips of 8 bits
    static constexpr uint32_t kSlotsOfPair = 2;  // that need such a strip
};

template <class By>
using WorkOf = Work<By::kTiles, By::kTokenTiles>;

// A chunk of packed keys goes through the widths that it holds. Strips [strip, end) are of kBits,
// as far as the chunk has them: two at a time, which keeps more products in flight, then a last
// one.
template <int kBits, class By, class SlotsOf>
__device__ __forceinline__ void multiply_width(const Keys &keys, const Queries &queries,
                                               uint32_t metadata, const SlotsOf &slots,
                                               uint32_t end, uint32_t lane, uint32_t chunk_end,
                                               uint32_t &strip, uint32_t &words, WorkOf<By> &work) {
    constexpr int kCount = kBits <= 4 && By::kTiles == 1 ? 2 : 1;
    using Strips = typename By::template Strips<kBits, kCount>;
    using Strip = typename By::template Strips<kBits, 1>;
    constexpr uint32_t kBytes = kStripBytes<kBits, By::kTokenTiles>;
    const uint32_t lane_offset = lane * kLaneBytes<kBits, By::kTokenTiles>;
    end = min(end, strip + (chunk_end - words) / kBytes);
#pragma unroll 1
    for (; strip + kCount <= end; strip += kCount, words += kCount * kBytes)
        Strips(keys, queries, metadata, slots, strip, lane).multiply(work, words + lane_offset);
    if (kCount > 1 && strip < end) {
        Strip(keys, queries, metadata, slots, strip, lane).multiply(work, words + lane_offset);
        ++strip;
        words += kBytes;
    }
}

// The first strips of the 2-bit plane, where slots are shared in a way that takes more.
template <class By, class SlotsOf>
__device__ __forceinline__ void multiply_shared(const Keys &keys, const Queries &queries,
                                                uint32_t metadata, const SlotsOf &slots,
                                                uint32_t lane, uint32_t chunk_end, uint32_t &strip,
                                                uint32_t &words, WorkOf<By> &work) {
    using Strip = typename By::template SharedStrip<SlotsOf>;
#pragma unroll 1
    for (; strip >= keys.end4 &&
           (strip - keys.end4 + keys.plane2_strips) * 16 < By::kSlotsOfPair * keys.n_shared &&
           (!SlotsOf::kIsTeam || strip < kTeamStrips) && words < chunk_end;
         ++strip, words += kStripBytes<2, By::kTokenTiles>)
        Strip(keys, queries, metadata, slots, strip, lane)
            .multiply(work, words + lane * kLaneBytes<2, By::kTokenTiles>);
}

// The sums of wider strips, on the scale of strips of 2 bits.
template <class By>
__device__ __forceinline__ void scale_to_2(const Keys &keys, WorkOf<By> &work) {
    constexpr DecodeKind kKind = By::kKind;
    const float from = keys.end4 > keys.end8    ? kKeyScale<kKind, 4>
                       : keys.end8 > keys.end16 ? kKeyScale<kKind, 8>
                                                : kKeyScale<kKind, 16>;
    work.scale(from / kKeyScale<kKind, 2>, 4.0f * (from / kKeyScale<kKind, 2>));
}

// The sums of wider strips, on the scale of strips of 1 bit, from that of 2 bits.
template <class By>
__device__ __forceinline__ void scale_to_1(WorkOf<By> &work) {
    constexpr float kEven = kKeyScale<By::kKind, 2> / kKeyScale<By::kKind, 1>;
#pragma unroll
    for (int t = 0; t < By::kTokenTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            work.s[t][0][i] *= t / 2 % 2 ? 2.0f * kEven : kEven;
}

// The first column of a pair has the sums of both.
template <class By>
__device__ __forceinline__ void add_pairs(WorkOf<By> &work) {
    static_assert(By::kTiles == 1, "pairs leave no columns for a second tile");
#pragma unroll
    for (int t = 0; t < By::kTokenTiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; i += 2)
            work.s[t][0][i] += work.s[t][0][i + 1];
}

// A member's sums of a page become those of its team, as logits but for the columns' factors.
template <int kStrips, class By, class Team>
__device__ __forceinline__ void add_up_keys(Ring<Team> &ring, const Keys &keys, uint32_t end2,
                                            uint32_t lane, WorkOf<By> &work) {
    constexpr int kEach = By::kHasPairs ? 2 : 4;
    constexpr int kSums = By::kTokenTiles * kEach;
    // Rows 8-15 of the minima are of groups, too.
    constexpr int kLows = kHasAllFormats<By::kKind> ? 4 : kEach / 2;
    const LogitScales scales = logit_scales<kStrips, By::kKind>(keys, end2);
    if constexpr (By::kHasPairs)
        add_pairs<By>(work);
    work.scale(scales.all, scales.all * scales.odd);
    if (kHasBitKeys<By::kKind>)
#pragma unroll
        for (int t = 0; t < By::kTokenTiles; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                work.s[t][0][i] *= t / 2 % 2 ? scales.second : 1.0f;
#pragma unroll
    for (int c = 0; c < By::kTiles; ++c)
        ring.template add_up<kSums + kLows>(lane, [&](int i) -> float & {
            return i < kSums ? work.s[i / kEach][c][i % kEach * (4 / kEach)]
                             : work.midpoint[c][i - kSums];
        });
}

// Keys of a packed page. order: shared, the channels of stored channels.
template <int kStrips, class By, class Team>
__device__ __forceinline__ void multiply_keys(Ring<Team> &ring, Keys keys, const Queries &queries,
                                              uint32_t order, uint32_t lane, WorkOf<By> &work) {
    constexpr DecodeKind kKind = By::kKind;
    uint32_t metadata = ring.key_metadata();
    const uint32_t chunk_bytes = keys.end8 ? 4096 : kChunkBytes;
    auto slots = ring.team().slots(order);
    if constexpr (Team::kIsTeam && kHasAllFormats<kKind>)
        if (keys.has_own_order)
            slots.first = keys.plane2_strips;  // see arrange_own_split_k()
    if (keys.permutation_offset)
        slots.address = metadata + keys.permutation_offset;
    else if (Team::kIsTeam ? keys.is_raw_page : keys.end16 == kStrips)
        slots.address += slots.raw_offset();
    if (kWidens<kKind> && keys.is_f8) {
        (void)ring.wait();
        uint32_t n_bytes = 2 * keys.minima_offset;
        if (Team::kIsTeam && kHasAllFormats<kKind>)
            n_bytes = keys.permutation_offset
                          ? keys.permutation_offset
                          : load_shared_half(ring.kv_tile() + kKeyMetadataBytesOffset);
        const F16Parameters parameters =
            widened({metadata, keys.minima_offset}, ring.widened_keys(), n_bytes, lane);
        metadata = parameters.ranges;
        keys.minima_offset = parameters.minima_offset;
    }
    const uint32_t end2 =
        kHasBitKeys<kKind> ? load_shared_byte(ring.kv_tile() + kEnd2Offset) : kStrips;
    work.clear();
    uint32_t strip = 0;
#pragma unroll 1
    while (true) {
        uint32_t words = ring.wait();
        const uint32_t end = words + chunk_bytes;
        if (keys.end8) {
            multiply_width<16, By>(keys, queries, metadata, slots, keys.end16, lane, end, strip,
                                   words, work);
            if constexpr (By::kHasBytes) {
                if (strip && strip == keys.end16 && words < end && strip < keys.end8)
                    work.scale(1.0f / kKeyScale<kKind, 8>, 1.0f / kKeyScale<kKind, 8>);
                multiply_width<8, By>(keys, queries, metadata, slots, keys.end8, lane, end, strip,
                                      words, work);
            }
            if (strip == keys.end8 && words < end && strip < keys.end4) {
                const float from =
                    keys.end16 == keys.end8 ? kKeyScale<kKind, 16> : kKeyScale<kKind, 8>;
                const float factor = from / kKeyScale<kKind, 4>;
                work.scale(factor, factor);
            }
        }
        multiply_width<4, By>(keys, queries, metadata, slots, keys.end4, lane, end, strip, words,
                              work);
        if (strip && strip == keys.end4 && words < end && strip < kStrips)
            scale_to_2<By>(keys, work);
        if constexpr (!kIsPlain<kKind>)
            multiply_shared<By>(keys, queries, metadata, slots, lane, end, strip, words, work);
        multiply_width<2, By>(keys, queries, metadata, slots, end2, lane, end, strip, words, work);
        if constexpr (kHasBitKeys<kKind>) {
            if (strip && strip == end2 && words < end && strip < kStrips)
                scale_to_1<By>(work);
            if (strip >= end2)
                multiply_width<1, By>(keys, queries, metadata, slots, kStrips, lane, end, strip,
                                      words, work);
        }
        if constexpr (Team::kIsTeam)
            if (strip == kStrips)
                add_up_keys<kStrips, By>(ring, keys, end2, lane, work);
        ring.next();
        if (strip == kStrips)
            break;
    }
    if constexpr (By::kHasPairs && !Team::kIsTeam)
        add_pairs<By>(work);
}

// Keys of a tile of a raw block.
template <int kStrips, int kTiles, class Team>
__device__ __forceinline__ void multiply_raw_keys(Ring<Team> &ring, const Queries &queries,
                                                  uint32_t lane, float (&s)[kTiles][4]) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            s[c][i] = 0;
    uint32_t row = queries.address + ring.team().first_strip() * 256 + (lane & 15u) * 16;
    uint32_t strip = 0;
#pragma unroll 1
    while (true) {
        uint32_t words = ring.wait() + lane * 16;
        const uint32_t end = min(strip + kRawStrips, uint32_t{kStrips});
#pragma unroll 1
        for (; strip < end; ++strip, words += 512, row += 256) {
            uint32_t b[kTiles][2];
#pragma unroll
            for (int c = 0; c < kTiles; ++c) {
                uint32_t r[4];
                load_matrices_transposed(r, row + c * queries.tile_bytes);
                b[c][0] = r[0];
                b[c][1] = r[1];
            }
            multiply_f16_tile(s, load_shared4(words), b);
        }
        if constexpr (Team::kIsTeam)
            if (strip == kStrips)
                ring.template add_up<kTiles * 4>(lane,
                                                 [&](int i) -> float & { return s[i / 4][i % 4]; });
        ring.next();
        if (strip == kStrips)
            return;
    }
}

}  // namespace cuda
}  // namespace lk

#endif
