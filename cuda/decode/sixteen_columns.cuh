// Decode: accumulation of 16 query columns over plain pages whose keys fit a chunk, 4 and 2 bits.
// See decode/sixteen_keys.cuh.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_SIXTEEN_COLUMNS_CUH
#define LK_CUDA_DECODE_SIXTEEN_COLUMNS_CUH

#include "cuda/decode/merge.cuh"
#include "cuda/decode/sixteen_values.cuh"

namespace lk {
namespace cuda {

template <int kStrips>
class BySixteen {
  public:
    using Team = OneWarp<kStrips>;
    static constexpr int kStripCount = kStrips;
    static constexpr uint32_t kColumns = 16;
    static constexpr int kTokenTiles = kPageTiles;
    static constexpr bool kSkipsRawPages = true;
    static constexpr bool kLooksUpInLoop = true;
    static constexpr int kQueryShift = 0;

    // A query in shared memory, [column / 8][channel][column % 8].
    static __device__ __forceinline__ void put_query(__half *queries, uint32_t, uint32_t column,
                                                     uint32_t channel, float value) {
        queries[((column / 8) * kStrips * 16 + channel) * 8 + column % 8] = __float2half_rn(value);
    }
    static __device__ __forceinline__ void end_column(const KvTileTemplate &, __half *, uint32_t,
                                                      uint32_t, uint32_t) {}

    __device__ __forceinline__ void clear() { g_.clear(); }

    __device__ __forceinline__ void accumulate(Ring<Team> &ring, uint32_t shared_queries,
                                               uint32_t slots, const LogitRules &rules,
                                               uint32_t n_tokens, uint32_t lane) {
        const Queries queries = {shared_queries, kStrips * 256};
#pragma unroll 1
        for (; ring.has_more(); ring.next_kv_tile()) {
            const uint32_t kv_tile = ring.kv_tile();
            const Position position = read_position(kv_tile);
            if (ring.is_empty()) {
                if (load_shared_byte(kv_tile + kRawOffset) == kRawPage)
                    accumulate_raw_page(queries, kv_tile, position, lane, rules);
                continue;
            }
            if (position.is_raw)
                accumulate_tile(ring, queries, position, lane, rules, n_tokens);
            else
                accumulate_page(ring, queries, {slots}, kv_tile, position, lane, rules);
        }
    }

    __device__ __forceinline__ void store(const WarpResults &to, uint32_t warp,
                                          uint32_t lane) const {
#pragma unroll
        for (int r = 0; r < kRowsOfLane; ++r) {
            const uint32_t column = (lane >> 2) + r * 8;
            if (column >= to.n_columns)
                continue;
            const uint32_t at = warp * to.n_columns + column;
            float *out = to.outputs + at * to.stride + (lane & 3u) * 2;
#pragma unroll
            for (int i = 0; i < kStrips * 4; ++i)
                out[i / 2 * 8 + i % 2] = fmaf(g_.o[i / 4][i / 2 % 2][r * 2 + i % 2],
                                              g_.output_scale, g_.sums[r * 2] * g_.weight_scale);
            if ((lane & 3u) == 0) {
                to.row_maxes[at] = g_.row_max[r];
                to.row_sums[at] = g_.sums[r * 2 + 1] * g_.weight_scale;
            }
        }
    }

  private:
    __device__ __forceinline__ void accumulate_tile(Ring<Team> &ring, const Queries &queries,
                                                    const Position &position, uint32_t lane,
                                                    const LogitRules &rules, uint32_t n_tokens) {
        float s[2][4];
        uint32_t weights[4];
        multiply_raw_sixteen_keys<kStrips>(ring, queries, lane, s);
        weigh_raw_sixteen(position, lane, rules, s, weights, g_);
        multiply_raw_sixteen_values(ring, position, lane, n_tokens, weights, g_.o);
    }

    // A page at 16 bits among packed ones, which are few: tile by tile, from where it lies.
    __device__ __forceinline__ void accumulate_raw_page(const Queries &queries, uint32_t kv_tile,
                                                        Position position, uint32_t lane,
                                                        const LogitRules &rules) {
        const auto *keys = reinterpret_cast<const uint4 *>(load_shared_address(kv_tile)) + lane;
        const auto *page =
            reinterpret_cast<const uint4 *>(load_shared_address(kv_tile + 32)) + lane;
#pragma unroll 1
        for (position.tile = 0; position.tile < kPageTiles; ++position.tile) {
            float s[2][4] = {};
            uint32_t weights[4];
#pragma unroll 4
            for (int strip = 0; strip < kStrips; ++strip) {
                uint32_t a[4];
                load_sixteen_queries(queries, strip * 16 + query_k(lane), lane, a);
                multiply_f16_codes(s, a, __ldcg(keys + (strip * kPageTiles + position.tile) * 32));
            }
            weigh_raw_sixteen(position, lane, rules, s, weights, g_);
#pragma unroll
            for (int strip = 0; strip < kStrips; ++strip)
                multiply_f16_codes(g_.o[strip], weights,
                                   __ldcg(page + (strip * kPageTiles + position.tile) * 32));
        }
    }

    __device__ __forceinline__ void accumulate_page(Ring<Team> &ring, const Queries &queries,
                                                    Slots<kStrips> slots, uint32_t kv_tile,
                                                    const Position &position, uint32_t lane,
                                                    const LogitRules &rules) {
        const Keys keys = read_keys<Team>(kv_tile);
        const Values values = read_values(kv_tile);
        if (keys.permutation_offset)
            slots.address = ring.key_metadata() + keys.permutation_offset;
        const uint32_t chunk = ring.wait();
        const uint32_t metadata = ring.key_metadata();
        SixteenWeights weights;
        PassLogits s;
        float midpoint[4] = {};
        multiply_pass<0>(keys, queries, metadata, slots, chunk, lane, s, midpoint);
        ring.wait_after();
        const SixteenPage page = {
            keys, values, ring.value_metadata(), position.first_token,
            has_large_ranges<kDecodePlain>(values, ring.value_metadata(), lane)};
        weigh_pass<0>(page, lane, rules, midpoint, s, weights, g_);
        multiply_pass<1>(keys, queries, metadata, slots, chunk, lane, s, midpoint);
        ring.next();
        weigh_pass<1>(page, lane, rules, midpoint, s, weights, g_);
        if (values.bits == 2)
            multiply_sixteen_values<2>(ring, lane, weights, g_.o);
        else
            multiply_sixteen_values<4>(ring, lane, weights, g_.o);
    }

    SixteenAccumulator<kStrips> g_;
};

}  // namespace cuda
}  // namespace lk

#endif
