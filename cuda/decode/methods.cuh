// Decode: the methods of accumulation, one interface for one kernel. ByF16 makes FP16 numbers of
// codes, for tiles of eight or sixteen query columns. ByBytes and, over pages with several groups
// or FP8 parameters, BySplitK serve up to four columns.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_METHODS_CUH
#define LK_CUDA_DECODE_METHODS_CUH

#include "cuda/decode/byte_values.cuh"
#include "cuda/decode/merge.cuh"
#include "cuda/decode/split_k_values.cuh"

namespace lk {
namespace cuda {

template <int kStrips, int kTiles, DecodeKind kKind, class OfTeam = OneWarp<kStrips>>
class ByF16 {
  public:
    using Team = OfTeam;
    static constexpr int kStripCount = kStrips;
    static constexpr uint32_t kColumns = kTiles * 8;
    static constexpr int kTokenTiles = kPageTiles;
    static constexpr bool kSkipsRawPages = false;
    static constexpr bool kLooksUpInLoop = kStrips <= 16;  // see BySplitK
    static constexpr int kQueryShift = kParameterShift<kKind>;

    // A query in shared memory, in its copies.
    static __device__ __forceinline__ void put_query(__half *queries, uint32_t head_dim,
                                                     uint32_t column, uint32_t channel,
                                                     float value) {
        const uint32_t copy = kTiles * head_dim * 8;
        __half *to = queries + ((column / 8) * head_dim + channel) * 8 + column % 8;
        to[kPlain * copy] = __float2half_rn(value);
        to[kSixteenth * copy] = __float2half_rn(value * 0.0625f);
    }

    // The rest of a column, once all of its queries are there.
    static __device__ __forceinline__ void end_column(const KvTileTemplate &, __half *, uint32_t,
                                                      uint32_t, uint32_t) {}

    __device__ __forceinline__ void clear() { g_.clear(); }

    __device__ __forceinline__ void accumulate(Ring<Team> &ring, uint32_t shared_queries,
                                               uint32_t slots, const LogitRules &rules,
                                               uint32_t n_tokens, uint32_t lane) {
        const Queries queries = {shared_queries, ring.team().head_dim() * 16};
#pragma unroll 1
        for (; ring.has_more(); ring.next_kv_tile()) {
            Work<kTiles> work;
            const uint32_t kv_tile = ring.kv_tile();
            const Position position = read_position(kv_tile);
            if (ring.is_empty())
                continue;
            if (position.is_raw) {
                multiply_raw_keys<kStrips>(ring, queries, lane, work.s[0]);
                weigh_raw(position, lane, rules, work, g_);
                uint32_t weights[kTiles][2];
                weights_of(work, 0, 0, weights);
                multiply_raw_values<kStrips, kTiles>(ring, position, lane, n_tokens, weights, g_.o);
                continue;
            }
            const Keys keys = read_keys<Team>(kv_tile);
            multiply_keys<kStrips, KeysByF16<kTiles, kKind>>(ring, keys, queries, slots, lane,
                                                             work);
            Values values = read_values(kv_tile);
            (void)ring.wait();
            uint32_t metadata = ring.value_metadata();
            if (kWidens<kKind> && values.is_f8) {
                const F16Parameters parameters =
                    widened({metadata, values.minima_offset}, ring.widened_values(), lane);
                metadata = parameters.ranges;
                values.minima_offset = parameters.minima_offset;
            }
            weigh_packed<Team, kStrips, kTiles, kKind>(keys, values, metadata, position.first_token,
                                                       lane, rules, work, g_);
            multiply_f16_values<kStrips, kTiles, kKind>(ring, values, metadata, lane, work, g_);
        }
    }

    __device__ __forceinline__ void store(const WarpResults &to, uint32_t warp,
                                          uint32_t lane) const {
        store_warp<kStrips, kTiles, kKind>(g_, to, warp, lane);
    }

  private:
    Accumulator<kStrips, kTiles> g_;
};

template <int kStrips, DecodeKind kKind, class OfTeam = OneWarp<kStrips>>
class ByBytes {
  public:
    using Team = OfTeam;
    static constexpr int kStripCount = kStrips;
    static constexpr uint32_t kColumns = 4;
    static constexpr int kTokenTiles = kPageTiles;
    static constexpr bool kSkipsRawPages = false;
    static constexpr bool kLooksUpInLoop = true;
    static constexpr int kQueryShift = 0;

    // As ByF16 does, but each query column twice: for the two columns of a B fragment of bytes.
    static __device__ __forceinline__ void put_query(__half *queries, uint32_t head_dim,
                                                     uint32_t column, uint32_t channel,
                                                     float value) {
        const uint32_t copy = head_dim * 4;
        auto *to = reinterpret_cast<__half2 *>(queries) + channel * 4 + column;
        to[kPlain * copy] = __float2half2_rn(value);
        to[kSixteenth * copy] = __float2half2_rn(value * 0.0625f);
    }

    static __device__ __forceinline__ void end_column(const KvTileTemplate &, __half *, uint32_t,
                                                      uint32_t, uint32_t) {}

    __device__ __forceinline__ void clear() { g_.clear(); }

    __device__ __forceinline__ void accumulate(Ring<Team> &ring, uint32_t shared_queries,
                                               uint32_t slots, const LogitRules &rules,
                                               uint32_t n_tokens, uint32_t lane_index) {
        const ByteLane lane(lane_index);
        const Queries queries = {shared_queries, ring.team().head_dim() * 16};
        const float factor = rules.mask.columns[lane.t()].factor;
#pragma unroll 1
        for (; ring.has_more(); ring.next_kv_tile()) {
            const uint32_t kv_tile = ring.kv_tile();
            const Position position = read_position(kv_tile);
            if (ring.is_empty())
                continue;
            if (position.is_raw)
                accumulate_tile(ring, queries, position, lane, rules, n_tokens, factor);
            else
                accumulate_page(ring, queries, slots, kv_tile, position, lane, rules, factor);
        }
    }

    __device__ __forceinline__ void store(const WarpResults &to, uint32_t warp,
                                          uint32_t lane) const {
        const float low = g_.midpoint + __shfl_xor_sync(kAllLanes, g_.midpoint, 16) - g_.below;
        const uint32_t column = lane & 3u;
        if (column >= to.n_columns)
            return;
        float *out = to.outputs + (warp * to.n_columns + column) * to.stride + (lane >> 2);
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
            out[s * 16] = g_.o[s][0] + low;
            out[s * 16 + 8] = g_.o[s][1] + low;
        }
        if (lane < 4 && to.has_stats) {
            to.row_maxes[warp * to.n_columns + column] = g_.row_max;
            to.row_sums[warp * to.n_columns + column] = g_.row_sum;
        }
    }

  private:
    __device__ __forceinline__ void accumulate_tile(Ring<Team> &ring, const Queries &queries,
                                                    const Position &position, const ByteLane &lane,
                                                    const LogitRules &rules, uint32_t n_tokens,
                                                    float factor) {
        float s[1][4];
        uint32_t b[2];
        multiply_raw_keys<kStrips>(ring, queries, lane.lane, s);
        float x[2] = {s[0][0], s[0][2]};
        const float weight = weigh_raw_tile(x, position.first_token + position.tile * 16u, lane,
                                            rules, factor, g_, b);
        multiply_raw_tile_values(ring, position, lane, n_tokens, b, weight, g_);
    }

    __device__ __forceinline__ void accumulate_page(Ring<Team> &ring, const Queries &queries,
                                                    uint32_t slots, uint32_t kv_tile,
                                                    const Position &position, const ByteLane &lane,
                                                    const LogitRules &rules, float factor) {
        PageWeights weights;
        {
            const Keys keys = read_keys<Team>(kv_tile);
            Work<1> work;
            multiply_keys<kStrips, KeysByF16<1, kKind, true>>(ring, keys, queries, slots, lane.lane,
                                                              work);
            float x[kPageTiles * 2];
#pragma unroll
            for (int i = 0; i < kPageTiles * 2; ++i)
                x[i] = work.s[i / 2][0][i % 2 * 2];
            const LogitScales scales = page_scales<Team, kStrips, kKind>(keys);
            const float even = scales.all * factor;
            const float offset =
                fmaf(work.midpoint[0][0], factor, rules.mask.columns[lane.t()].offset);
            weigh_page(x, even, even * scales.odd, offset, position.first_token, lane, rules, g_,
                       weights);
        }
        const Values values = read_values(kv_tile);
        (void)ring.wait();
        F16Parameters parameters = {ring.value_metadata(), values.minima_offset};
        if (kWidens<kKind> && values.is_f8)
            parameters = widened(parameters, ring.widened_values(), lane.lane);
        const uint32_t ranges = parameters.ranges;
        add_midpoints(weights, {values.bits == 16 ? 0 : ranges, parameters.minima_offset}, lane,
                      g_);
        if (kWidens<kKind> && values.bits == 1)
            multiply_byte_values<1>(ring, weights, ranges, lane, g_);
        else if (values.bits == 2)
            multiply_byte_values<2>(ring, weights, ranges, lane, g_);
        else if (values.bits == 4)
            multiply_byte_values<4>(ring, weights, ranges, lane, g_);
        else if (values.bits == 8)
            multiply_byte_values<8>(ring, weights, ranges, lane, g_);
        else
            multiply_raw_page_values(ring, weights, lane, g_);
    }

    ByteAccumulator<kStrips> g_;
};

template <int kStrips, DecodeKind kKind, class OfTeam = OneWarp<kStrips>>
class BySplitK {
    static_assert(kSplitKCopies * kSplitKStripBytes * kStrips +
                          kPairStripBytes * (kStrips + (kStrips + 1) / 2) ==
                      decode_query_bytes(kStrips * 16, 4),
                  "the host sizes shared memory by it");

  public:
    using Team = OfTeam;
    static constexpr int kStripCount = kStrips;
    static constexpr uint32_t kColumns = 4;
    static constexpr int kTokenTiles = kTilesOf<kKind>;
    static constexpr bool kSkipsRawPages = false;
    // In line once it would take registers from the loop over pages of these kinds.
    static constexpr bool kLooksUpInLoop = kKind != kDecodeF8By32 && kKind != kDecodeF8Narrow;
    static constexpr int kQueryShift = kParameterShift<kKind>;

    static __device__ __forceinline__ void put_query(__half *queries, uint32_t head_dim,
                                                     uint32_t column, uint32_t channel,
                                                     float value) {
        queries[split_k_offset(head_dim, kSplitKChannels, column, channel)] =
            __float2half_rn(value);
    }
    static __device__ __forceinline__ void end_column(const KvTileTemplate &page, __half *queries,
                                                      uint32_t head_dim, uint32_t column,
                                                      uint32_t lane) {
        __syncwarp();
        const auto *fixed = reinterpret_cast<const uint8_t *>(page.permutation);
        arrange_split_k<kKind>(
            {0, head_dim, page.kv_tile.end4 * 16u, page.kv_tile.n_shared}, queries, queries,
            [&](uint32_t slot) { return fixed ? load_channel(fixed, head_dim, slot) : slot; },
            column, lane);
    }

    __device__ __forceinline__ void clear() {
        g_.clear();
        value_group_strips_ = 255;
    }

    __device__ __forceinline__ void accumulate(Ring<Team> &ring, uint32_t shared_queries,
                                               uint32_t slots, const LogitRules &rules,
                                               uint32_t n_tokens, uint32_t lane_index) {
        const ByteLane lane(lane_index);
        const Queries queries =
            split_k_queries(shared_queries, ring.team().head_dim() / 16, ring.team().first_strip());
#pragma unroll 1
        for (; ring.has_more(); ring.next_kv_tile()) {
            const uint32_t kv_tile = ring.kv_tile();
            const Position position = read_position(kv_tile);
            if (ring.is_empty())
                continue;
            if (position.is_raw)
                accumulate_tile(ring, queries, position, lane, rules, n_tokens);
            else
                accumulate_page(ring, queries, slots, kv_tile, position, lane, rules);
        }
    }

    __device__ __forceinline__ void store(const WarpResults &to, uint32_t warp,
                                          uint32_t lane) const {
        constexpr int kLows = SplitKAccumulator<kStrips, kKind>::kLows;
        const uint32_t column = lane & 3u;
        float lows[kLows];
#pragma unroll
        for (int i = 0; i < kLows; ++i)
            lows[i] = split_k_sum(g_.low[i]);
        float *out = to.outputs + (warp * to.n_columns + column) * to.stride + (lane >> 2);
        uint32_t group = 0;
        uint32_t next_group = 0;
#pragma unroll
        for (int s = 0; s < kStrips; ++s) {
            if (s == next_group) {
                group += s != 0;
                next_group += kHasAnyGroups<kKind> ? value_group_strips_ : kF8GroupStrips;
            }
            const float low = split_k_sum_of(kLows == 2 && group >= 4 ? lows[kLows - 1] : lows[0],
                                             group % 4, lane);
            const float(&o)[4] = g_.o[s][0];
            if (column >= to.n_columns)
                continue;
            out[s * 16] = fmaf(o[0] + o[1], g_.output_scale, low);
            out[s * 16 + 8] = fmaf(o[2] + o[3], g_.output_scale, low);
        }
        if (lane < to.n_columns && to.has_stats) {
            to.row_maxes[warp * to.n_columns + column] = g_.row_max;
            to.row_sums[warp * to.n_columns + column] = g_.row_sum;
        }
    }

  private:
    __device__ __forceinline__ void accumulate_tile(Ring<Team> &ring, const Queries &queries,
                                                    const Position &position, const ByteLane &lane,
                                                    const LogitRules &rules, uint32_t n_tokens) {
        const uint32_t first = position.first_token + position.tile * 16u;
        const Column &column = rules.mask.columns[lane.t()];
        float x[2];
        multiply_raw_split_k_keys<kStrips>(ring, queries, lane.lane, x);
        x[0] = fmaf(x[0], column.factor, column.offset);
        x[1] = fmaf(x[1], column.factor, column.offset);
        const bool is_masked = rules.mask.hides(first, first + 16);
        if (is_masked || rules.cap > 0)
            finish_logits<true>(x, rules, is_masked, first + (lane.lane >> 2), lane.t());
        accumulate_raw_split_k(ring, position, lane, n_tokens, x, g_);
    }

    __device__ __forceinline__ void accumulate_page(Ring<Team> &ring, const Queries &queries,
                                                    uint32_t slots, uint32_t kv_tile,
                                                    const Position &position, const ByteLane &lane,
                                                    const LogitRules &rules) {
        uint32_t pairs[kTokenTiles];
        float weight_scale;
        uint32_t metadata = ring.value_metadata();
        Work<1, kTokenTiles> work;
        {
            const Keys keys = read_keys<Team>(kv_tile);
            const Queries arranged =
                queries_of_page<kStrips, kKind>(ring, keys, queries, slots, lane.lane);
            multiply_keys<kStrips, KeysBySplitK<kKind>>(ring, keys, arranged, slots, lane.lane,
                                                        work);
            float x[kTokenTiles * 2];
            finish_split_k<Team, kStrips, kKind>(keys, kv_tile, work, position.first_token, lane,
                                                 rules, x);
            if (kWidens<kKind> && read_values(kv_tile).is_f8) {
                (void)ring.wait();
                const Values values = read_values(kv_tile);
                metadata =
                    widened({metadata, values.minima_offset}, ring.widened_values(), lane.lane)
                        .ranges;
            }
            weight_scale = make_weights(ring, read_values(kv_tile), metadata, lane, x, pairs);
        }
        Values values = read_values(kv_tile);
        if (kWidens<kKind> && values.is_f8)
            values.minima_offset *= 2;
        (void)ring.wait();
        add_split_k_minima<kStrips>(pairs, values, metadata, weight_scale, lane, g_);
        if (kHasAnyGroups<kKind>)
            value_group_strips_ = min(value_group_strips_, values.group_strips);
        multiply_split_k_values<kStrips>(ring, values, metadata, pairs, lane, work, g_);
    }

    // Logits to weights, which are 1 / the returned scale of what they stand for. Where FP16 ranges
    // are large, weights stay below 1.
    __device__ __forceinline__ float make_weights(const Ring<Team> &ring, const Values &values,
                                                  uint32_t metadata, const ByteLane &lane,
                                                  const float (&x)[kTokenTiles * 2],
                                                  uint32_t (&pairs)[kTokenTiles]) {
        float most[2] = {kHidden, kHidden};
#pragma unroll
        for (int i = 0; i < kTokenTiles * 2; ++i)
            most[i % 2] = fmaxf(most[i % 2], x[i]);
        bool is_large = false;
        if (!kHasF8<kKind>) {
            (void)ring.wait();
            is_large = ring.team().any(has_large_ranges<kKind>(values, metadata, lane.lane));
        }
        const float scale = is_large ? 1.0f : kSplitKScale<kKind>;
        const float parameter_scale = values.bits < 16 ? kParameterScale<kKind> : 1.0f;
        g_.raise(fmaxf(most[0], most[1]), scale * parameter_scale * code_scale(values.bits),
                 is_large ? 0.0f : kSlack);
        const float up = is_large ? 0.0f : static_cast<float>(kSplitKUp<kKind>);
        make_split_k_weights<kTokenTiles>(x, up - g_.row_max, pairs);
        return scale;
    }

    SplitKAccumulator<kStrips, kKind> g_;
    uint32_t value_group_strips_;  // of the packed pages, which have the same groups
};

}  // namespace cuda
}  // namespace lk

#endif
