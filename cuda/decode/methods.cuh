// Decode: the ways to gather, behind one kernel. By halves: codes become FP16 numbers, for tiles of
// eight or sixteen query columns and for all direct classes. For up to four columns: by bytes, and
// by twins over pages with FP8 numbers.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_METHODS_CUH
#define LK_CUDA_DECODE_METHODS_CUH

#include "cuda/decode/byte_values.cuh"
#include "cuda/decode/merge.cuh"
#include "cuda/decode/split_k_values.cuh"

namespace lk {
namespace cuda {

template <int kStrips, int kTiles, DecodeKind kKind>
class ByHalves {
  public:
    static constexpr int kStripCount = kStrips;
    static constexpr uint32_t kColumns = kTiles * 8;
    static constexpr int kQueryShift = kNumberShift<kKind>;

    // A query in shared memory, in its copies.
    static __device__ __forceinline__ void put_query(__half *queries, uint32_t column,
                                                     uint32_t channel, float value) {
        constexpr uint32_t kCopy = kTiles * kStrips * 16 * 8;
        __half *to = queries + ((column / 8) * kStrips * 16 + channel) * 8 + column % 8;
        to[kPlain * kCopy] = __float2half_rn(value);
        to[kSixteenth * kCopy] = __float2half_rn(value * 0.0625f);
    }

    // The rest of a column, once all of its queries are there.
    static __device__ __forceinline__ void end_column(const PageTemplate &, __half *, uint32_t,
                                                      uint32_t) {}

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
                uint32_t weights[kTiles][2];
                weights_of(work, 0, 0, weights);
                multiply_raw_values<kStrips, kTiles>(ring, place, lane, n_tokens, weights, g_.o);
                continue;
            }
            const Keys keys = read_keys(piece);
            multiply_keys<kStrips, KeysByHalves<kTiles, kKind>>(ring, keys, queries, slots, lane,
                                                                work);
            const Values values = read_values(piece);
            if (kKind != kDecodePlain)
                value_group_strips_ = min(value_group_strips_, group_strips<kKind>(values));
            (void)ring.wait();
            weigh_packed<kStrips, kTiles, kKind>(keys, values, ring.value_metadata(),
                                                 place.first_token, lane, rules, work, g_);
            multiply_half_values<kStrips, kTiles, kKind>(ring, values, lane, work, g_);
        }
    }

    __device__ __forceinline__ void store(const WarpResults &to, uint32_t warp,
                                          uint32_t lane) const {
        store_warp<kStrips, kTiles, kKind>(g_, to, warp, lane, value_group_strips_);
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
    static constexpr int kQueryShift = 0;

    // As by halves, each query column twice: for the two columns of a B fragment of bytes.
    static __device__ __forceinline__ void put_query(__half *queries, uint32_t column,
                                                     uint32_t channel, float value) {
        constexpr uint32_t kCopy = kStrips * 16 * 4;
        auto *to = reinterpret_cast<__half2 *>(queries) + channel * 4 + column;
        to[kPlain * kCopy] = __float2half2_rn(value);
        to[kSixteenth * kCopy] = __float2half2_rn(value * 0.0625f);
    }

    static __device__ __forceinline__ void end_column(const PageTemplate &, __half *, uint32_t,
                                                      uint32_t) {}

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
            multiply_keys<kStrips, KeysByHalves<1, kDecodePlain>>(ring, keys, queries, slots,
                                                                  lane.lane, work);
            float x[kPageTiles * 2];
#pragma unroll
            for (int i = 0; i < kPageTiles * 2; ++i)
                x[i] = work.s[i / 2][0][i % 2 * 2];
            const LogitUnits units = logit_units<kStrips, kDecodePlain>(keys);
            const float even = units.all * factor;
            const float offset =
                fmaf(work.middle[0][0], factor, rules.sight.columns[lane.t()].offset);
            weigh_page(x, even, even * units.odd, offset, place.first_token, lane, rules, g_,
                       weights);
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
            multiply_raw_page_values(ring, weights, lane, g_);
    }

    ByteGathered<kStrips> g_;
};

template <int kStrips>
class ByTwins {
    static_assert(kTwinCopies * kTwinStripBytes * kStrips == decode_query_bytes(kStrips * 16, 4),
                  "the host sizes shared memory by it");

  public:
    static constexpr int kStripCount = kStrips;
    static constexpr uint32_t kColumns = 4;
    static constexpr int kQueryShift = kNumberShift<kDecodeF8By32>;

    static __device__ __forceinline__ void put_query(__half *queries, uint32_t column,
                                                     uint32_t channel, float value) {
        queries[twin_place<kStrips>(kTwinChannels, column, channel)] = __float2half_rn(value);
    }
    static __device__ __forceinline__ void end_column(const PageTemplate &page, __half *queries,
                                                      uint32_t column, uint32_t lane) {
        __syncwarp();
        arrange_twins<kStrips>(page, queries, column, lane);
    }

    __device__ __forceinline__ void clear() { g_.clear(); }

    __device__ __forceinline__ void gather(Ring &ring, uint32_t shared_queries, uint32_t slots,
                                           const LogitRules &rules, uint32_t n_tokens,
                                           uint32_t lane_index) {
        const ByteLane lane(lane_index);
        const Queries queries = {shared_queries, kStrips * kTwinStripBytes};
#pragma unroll 1
        for (; ring.has_more(); ring.next_piece()) {
            const uint32_t piece = ring.piece();
            const Place place = read_place(piece);
            if (ring.is_empty())
                continue;
            if (place.is_raw)
                gather_tile(ring, queries, place, lane, rules, n_tokens);
            else
                gather_page(ring, queries, slots, piece, place, lane, rules);
        }
    }

    __device__ __forceinline__ void store(const WarpResults &to, uint32_t warp,
                                          uint32_t lane) const {
        const uint32_t column = lane & 3u;
        const float lows = twin_sum(g_.low);
        float *out = to.outputs + (warp * to.n_columns + column) * to.stride + (lane >> 2);
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
            const float low = twin_sum_of(lows, s / kF8GroupStrips, lane);
            const float(&o)[4] = g_.o[s][0];
            if (column >= to.n_columns)
                continue;
            out[s * 16] = fmaf(o[0] + o[1], g_.unit, low);
            out[s * 16 + 8] = fmaf(o[2] + o[3], g_.unit, low);
        }
        if (lane < to.n_columns) {
            to.tops[warp * to.n_columns + column] = g_.top;
            to.sums[warp * to.n_columns + column] = g_.sum;
        }
    }

  private:
    __device__ __forceinline__ void gather_tile(Ring &ring, const Queries &queries,
                                                const Place &place, const ByteLane &lane,
                                                const LogitRules &rules, uint32_t n_tokens) {
        const uint32_t first = place.first_token + place.tile * 16u;
        const Column &column = rules.sight.columns[lane.t()];
        float x[2];
        multiply_raw_twin_keys<kStrips>(ring, queries, lane.lane, x);
        x[0] = fmaf(x[0], column.factor, column.offset);
        x[1] = fmaf(x[1], column.factor, column.offset);
        const bool is_masked = rules.sight.hides(first, first + 16);
        if (is_masked || rules.cap > 0)
            finish_logits<true>(x, rules, is_masked, first + (lane.lane >> 2), lane.t());
        gather_raw_twins(ring, place, lane, n_tokens, x, g_);
    }

    __device__ __forceinline__ void gather_page(Ring &ring, const Queries &queries, uint32_t slots,
                                                uint32_t piece, const Place &place,
                                                const ByteLane &lane, const LogitRules &rules) {
        uint32_t pairs[kPageTiles];
        Work<1> work;
        {
            const Keys keys = read_keys(piece);
            multiply_keys<kStrips, KeysByTwins>(ring, keys, queries, slots, lane.lane, work);
            const Values values = read_values(piece);
            float x[kPageTiles * 2];
            finish_twins<kStrips>(keys, work, place.first_token, lane, rules, x);
            float most[2] = {kHidden, kHidden};
#pragma unroll
            for (int i = 0; i < kPageTiles * 2; ++i)
                most[i % 2] = fmaxf(most[i % 2], x[i]);
            const float number = values.bits < 16 ? kNumberUnit<kDecodeF8By32> : 1.0f;
            g_.raise(fmaxf(most[0], most[1]), kTwinUnit * number * code_unit(values.bits));
            make_twin_weights<kPageTiles>(x, g_.top, pairs);
        }
        const Values values = read_values(piece);
        (void)ring.wait();
        add_twin_minima(pairs, values, ring.value_metadata(), lane, g_);
        multiply_twin_values(ring, values, pairs, lane, work, g_);
    }

    TwinGathered<kStrips> g_;
};

}  // namespace cuda
}  // namespace lk

#endif
