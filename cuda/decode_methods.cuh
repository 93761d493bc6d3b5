// Decode: the two ways to gather, behind one kernel. By halves: codes become FP16 numbers, for
// tiles of eight or sixteen query columns and for all direct classes. By bytes: for up to four
// columns.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_METHODS_CUH
#define LK_CUDA_DECODE_METHODS_CUH

#include "decode_byte_values.cuh"
#include "decode_merge.cuh"

namespace lk {
namespace cuda {

template <int kStrips, int kTiles, bool kGrouped>
class ByHalves {
  public:
    static constexpr int kStripCount = kStrips;
    static constexpr uint32_t kColumns = kTiles * 8;

    // A query in shared memory, in its copies.
    static __device__ __forceinline__ void put_query(__half *queries, uint32_t column,
                                                     uint32_t channel, float value) {
        constexpr uint32_t kCopy = kTiles * kStrips * 16 * 8;
        __half *to = queries + ((column / 8) * kStrips * 16 + channel) * 8 + column % 8;
        to[kPlain * kCopy] = __float2half_rn(value);
        to[kSixteenth * kCopy] = __float2half_rn(value * 0.0625f);
    }

    __device__ __forceinline__ void clear() {
        g_.clear();
        value_group_strips_ = 255;
    }

    __device__ __forceinline__ void gather(Ring &ring, uint32_t shared_queries, uint32_t slots,
                                           const LogitRules &rules, uint32_t n_tokens,
                                           uint32_t lane) {
        const Queries queries = {shared_queries, kStrips * 256};
#pragma unroll 1
        for (; ring.has_more(); ring.next_piece()) {
            Work<kTiles> work;
            const uint32_t piece = ring.piece();
            const Place place = read_place(piece);
            if (ring.is_empty())
                continue;
            if (place.is_raw) {
                multiply_raw_keys<kStrips>(ring, queries, lane, work.s[0]);
                weigh_raw(place, lane, rules, work, g_);
                multiply_raw_values(ring, place, lane, n_tokens, work, g_);
                continue;
            }
            const Keys keys = read_keys(piece);
            multiply_keys<kStrips, kTiles, kGrouped>(ring, keys, queries, slots, lane, work);
            const Values values = read_values(piece);
            if (kGrouped)
                value_group_strips_ = min(value_group_strips_, values.group_strips);
            (void)ring.wait();
            weigh_packed<kStrips, kTiles, kGrouped>(keys, values, ring.value_metadata(),
                                                    place.first_token, lane, rules, work, g_);
            multiply_values<kStrips, kTiles, kGrouped>(ring, values, lane, work, g_);
        }
    }

    __device__ __forceinline__ void store(const WarpResults &to, uint32_t warp,
                                          uint32_t lane) const {
        store_warp<kStrips, kTiles, kGrouped>(g_, to, warp, lane, value_group_strips_);
    }

  private:
    Gathered<kStrips, kTiles> g_;
    uint32_t value_group_strips_;
};

template <int kStrips>
class ByBytes {
  public:
    static constexpr int kStripCount = kStrips;
    static constexpr uint32_t kColumns = 4;

    // As by halves, each query column twice: for the two columns of a B fragment of bytes.
    static __device__ __forceinline__ void put_query(__half *queries, uint32_t column,
                                                     uint32_t channel, float value) {
        constexpr uint32_t kCopy = kStrips * 16 * 4;
        auto *to = reinterpret_cast<__half2 *>(queries) + channel * 4 + column;
        to[kPlain * kCopy] = __float2half2_rn(value);
        to[kSixteenth * kCopy] = __float2half2_rn(value * 0.0625f);
    }

    __device__ __forceinline__ void clear() { g_.clear(); }

    __device__ __forceinline__ void gather(Ring &ring, uint32_t shared_queries, uint32_t slots,
                                           const LogitRules &rules, uint32_t n_tokens,
                                           uint32_t lane_index) {
        const ByteLane lane(lane_index);
        const Queries queries = {shared_queries, kStrips * 256};
        const float factor = rules.sight.columns[lane.t()].factor;
#pragma unroll 1
        for (; ring.has_more(); ring.next_piece()) {
            const uint32_t piece = ring.piece();
            const Place place = read_place(piece);
            if (ring.is_empty())
                continue;
            if (place.is_raw)
                gather_tile(ring, queries, place, lane, rules, n_tokens, factor);
            else
                gather_page(ring, queries, slots, piece, place, lane, rules, factor);
        }
    }

    __device__ __forceinline__ void store(const WarpResults &to, uint32_t warp,
                                          uint32_t lane) const {
        const float low = g_.middle + __shfl_xor_sync(kAllLanes, g_.middle, 16) - g_.below;
        const uint32_t column = lane & 3u;
        if (column >= to.n_columns)
            return;
        float *out = to.outputs + (warp * to.n_columns + column) * to.stride + (lane >> 2);
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
            out[s * 16] = g_.o[s][0] + low;
            out[s * 16 + 8] = g_.o[s][1] + low;
        }
        if (lane < 4) {
            to.tops[warp * to.n_columns + column] = g_.top;
            to.sums[warp * to.n_columns + column] = g_.sum;
        }
    }

  private:
    __device__ __forceinline__ void gather_tile(Ring &ring, const Queries &queries,
                                                const Place &place, const ByteLane &lane,
                                                const LogitRules &rules, uint32_t n_tokens,
                                                float factor) {
        float s[1][4];
        uint32_t b[2];
        multiply_raw_keys<kStrips>(ring, queries, lane.lane, s);
        float x[2] = {s[0][0], s[0][2]};
        const float weight =
            weigh_raw_tile(x, place.first_token + place.tile * 16u, lane, rules, factor, g_, b);
        multiply_raw_tile_values(ring, place, lane, n_tokens, b, weight, g_);
    }

    __device__ __forceinline__ void gather_page(Ring &ring, const Queries &queries, uint32_t slots,
                                                uint32_t piece, const Place &place,
                                                const ByteLane &lane, const LogitRules &rules,
                                                float factor) {
        PageWeights weights;
        {
            const Keys keys = read_keys(piece);
            Work<1> work;
            multiply_keys<kStrips, 1, false>(ring, keys, queries, slots, lane.lane, work);
            float x[kPageTiles * 2];
#pragma unroll
            for (int i = 0; i < kPageTiles * 2; ++i)
                x[i] = work.s[i / 2][0][i % 2 * 2];
            const LogitUnits units = logit_units<kStrips>(keys);
            const float even = units.all * factor;
            weigh_page(x, even, even * units.odd, work.middle[0][0] * factor, place.first_token,
                       lane, rules, g_, weights);
        }
        const Values values = read_values(piece);
        (void)ring.wait();
        add_middles(weights, values.bits == 16 ? 0 : ring.value_metadata(), values.minima_offset,
                    lane, g_);
        if (values.bits == 2)
            multiply_byte_values<2>(ring, weights, lane, g_);
        else if (values.bits == 4)
            multiply_byte_values<4>(ring, weights, lane, g_);
        else if (values.bits == 8)
            multiply_byte_values<8>(ring, weights, lane, g_);
        else
            multiply_half_values(ring, weights, lane, g_);
    }

    ByteGathered<kStrips> g_;
};

}  // namespace cuda
}  // namespace lk

#endif
