// Decode of up to four query columns over pages with several groups: keys.
//
// A B fragment has eight columns, of which columns 2h and 2h + 1 are both of query column h. Next
// to codes of 8 bits or fewer they are a column pair: the first has the queries' upper bits, the
// second their lower ones, so that a product with a range of FP8 is exact; next to ranges of FP16
// both have the queries, and the second has what the rounding of the first left. So the sum of both
// columns is exact to 2^-13 of the largest product or better, and a key counts as minimum + code *
// step.
//
// Next to minima and 16-bit numbers they are split-k columns: the first has k 0-7, then zeros, the
// second k 8-15. A product of both is what one column's would be. Lows take two strips at once: the
// first split-k column's k 0-7 are of one strip, its k 8-15 of the next.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_SPLIT_K_KEYS_CUH
#define LK_CUDA_DECODE_SPLIT_K_KEYS_CUH

#include "cuda/decode/page_keys.cuh"

namespace lk {
namespace cuda {

// Copies of the queries. Split-k columns, [copy][strip][lane] words, each lane's pair of a B
// fragment: raw blocks need the order of channels, minima that of stored channels.
enum SplitKCopy : uint32_t { kSplitKChannels, kSplitKSlots, kSplitKCopies };
constexpr uint32_t kSplitKStripBytes = kWarp * 4;
// Column pairs follow, [strip][lane] two words, of k 0-7 and of k 8-15, in the order of stored
// channels: times step / range, divided by 16 for k 8-15; then, for half of the strips, the same
// for bit 1 of those with partners.
enum PairCopy : uint32_t { kPairSteps, kPairHighs };
constexpr uint32_t kPairStripBytes = 2 * kSplitKStripBytes;

// The offset of element k of a column in a copy, in FP16 numbers.
__device__ __forceinline__ uint32_t split_k_offset(uint32_t head_dim, SplitKCopy copy,
                                                   uint32_t column, uint32_t k) {
    const uint32_t split_k = column * 2 + (k >> 3 & 1u);
    return ((copy * (head_dim / 16) + (k >> 4)) * kWarp + split_k * 4 + (k >> 1 & 3u)) * 2 +
           (k & 1u);
}
// That of the first of a column pair; the second is kPairOffset further on.
constexpr uint32_t kPairOffset = 16;
__device__ __forceinline__ uint32_t pair_offset(uint32_t head_dim, PairCopy copy, uint32_t column,
                                                uint32_t k) {
    const uint32_t strip = (kSplitKCopies / 2 + copy) * (head_dim / 16) + (k >> 4);
    return strip * kPairStripBytes / 2 + (column * 8 + (k >> 1 & 3u)) * 4 + (k >> 3 & 1u) * 2 +
           (k & 1u);
}
// The bits of a number that its product with a range of FP8, which has four, leaves exact.
__device__ __forceinline__ float upper_bits(float x) {
    return __uint_as_float((__float_as_uint(x) + 0x10000u) & 0xFFFE0000u);
}

// The copies of slots [begin, begin + n_slots), in their order, from that in the order of channels.
struct SplitKSlots {
    uint32_t begin;
    uint32_t n_slots;
    uint32_t plane;  // slot of the 2-bit plane, of which the first 2 n_shared are shared
    uint32_t n_shared;
};
template <DecodeKind kKind, class ChannelOf>
__device__ __forceinline__ void arrange_split_k(const SplitKSlots &slots, const __half *channels,
                                                __half *copies, ChannelOf channel_of,
                                                uint32_t column, uint32_t lane) {
    const uint32_t n_shared = slots.n_shared;
    const uint32_t end_of_highs = (n_shared + 15u) & ~15u;
    // Those of the plane have the first place of their copy.
    const uint32_t first_high = max(slots.begin, slots.plane);
    const auto put = [&](PairCopy copy, uint32_t slot, float value) {
        const float x = slot & 8u ? value * 0.0625f : value;
        __half *to = copies + pair_offset(slots.n_slots, copy, column, slot);
        const float first = kHasF8<kKind> ? upper_bits(x) : x;
        to[0] = __float2half_rn(first);
        to[kPairOffset] = __float2half_rn(kHasF8<kKind> ? x - first : x);
    };
    const auto query_of = [&](uint32_t slot) {
        return __half2float(channels[split_k_offset(0, kSplitKChannels, column, channel_of(slot))]);
    };
#pragma unroll
    for (uint32_t i = lane; i < slots.n_slots; i += kWarp) {
        const uint32_t slot = slots.begin + i;
        const float q = query_of(slot);
        const uint32_t of_plane = slot - slots.plane;  // if it is not below 0
        const bool is_partner = slot >= slots.plane && of_plane < n_shared;
        const bool is_outlier = slot >= slots.plane && !is_partner && of_plane < 2 * n_shared;
        const float step = is_partner ? 3.0f : is_outlier ? 3.0f / 7.0f : 1.0f;
        copies[split_k_offset(slots.n_slots, kSplitKSlots, column, i)] = __float2half_rn(q);
        put(kPairSteps, i, q * step);
        if (is_partner)
            put(kPairHighs, slot - first_high, query_of(slot + n_shared) * (6.0f / 7.0f));
        else if (slot >= slots.plane && of_plane < end_of_highs)
            put(kPairHighs, slot - first_high, q * step);
    }
}

// The copies of a page with an order of its own, for one warp: those after the first, of its
// strips. order: shared, the channels of the page's stored channels. Returns where the copies would
// begin.
template <int kStrips, DecodeKind kKind, bool kIsTeam>
__device__ __noinline__ uint32_t arrange_own_split_k(const Keys &keys, uint32_t first_strip,
                                                     uint32_t of_channel, uint32_t queries,
                                                     uint32_t own_queries, uint32_t order,
                                                     uint32_t lane) {
    const uint32_t copies = own_queries - kStrips * kSplitKStripBytes;
    const auto *from = static_cast<const __half *>(__cvta_shared_to_generic(queries));
    auto *to = static_cast<__half *>(__cvta_shared_to_generic(copies));
    const uint32_t plane = first_strip + keys.end4 - (kIsTeam ? keys.plane2_strips : 0);
    const SplitKSlots slots = {first_strip * 16, kStrips * 16, plane * 16, keys.n_shared};
    __syncwarp();
#pragma unroll 1
    for (uint32_t column = 0; column < 4; ++column)
        arrange_split_k<kKind>(
            slots, from, to,
            [&](uint32_t slot) {
                return of_channel == 1 ? load_shared_byte(order + slot)
                                       : load_shared_half(order + slot * 2);
            },
            column, lane);
    __syncwarp();
    return copies;
}
// The queries of n_strips strips at `copies`, for a warp that has those from the first one on.
__device__ __forceinline__ Queries split_k_queries(uint32_t copies, uint32_t n_strips,
                                                   uint32_t first) {
    const uint32_t bytes = n_strips * kSplitKStripBytes;
    return {copies + first * kSplitKStripBytes, bytes,
            copies + kSplitKCopies * bytes + first * kPairStripBytes};
}
// The queries of a page: those of its head, or of its own order.
template <int kStrips, DecodeKind kKind, class Team>
__device__ __forceinline__ Queries queries_of_page(const Ring<Team> &ring, const Keys &keys,
                                                   const Queries &queries, uint32_t order,
                                                   uint32_t lane) {
    const bool is_raw = Team::kIsTeam ? keys.is_raw_page : keys.end16 == kStrips;
    if (!kHasAllFormats<kKind> || !keys.has_own_order || is_raw)
        return queries;
    (void)ring.wait();
    if (keys.permutation_offset)
        order = ring.key_metadata() + keys.permutation_offset;
    const uint32_t first = ring.team().first_strip();
    const uint32_t own = arrange_own_split_k<kStrips, kKind, Team::kIsTeam>(
        keys, first, bytes_of_channel(ring.team().head_dim()),
        queries.address - first * kSplitKStripBytes, ring.own_queries(), order, lane);
    return split_k_queries(own, kStrips, 0);
}

struct SplitKQuery {
    uint32_t b0;
    uint32_t b1;
};
__device__ __forceinline__ uint32_t load_split_k(const Queries &queries, SplitKCopy copy,
                                                 uint32_t strip, uint32_t lane) {
    return load_shared1(queries.address + copy * queries.tile_bytes + strip * kSplitKStripBytes +
                        lane * 4);
}
__device__ __forceinline__ SplitKQuery split_k_query(uint32_t pair, uint32_t lane) {
    return {lane & 4u ? 0u : pair, lane & 4u ? pair : 0u};
}

// A lane's words of a strip of a column pair.
__device__ __forceinline__ SplitKQuery load_pair(const Queries &queries, PairCopy copy,
                                                 uint32_t strip, uint32_t lane) {
    const uint2 pair = load_shared2(queries.pairs + 2 * copy * queries.tile_bytes +
                                    strip * kPairStripBytes + lane * 8);
    return {pair.x, pair.y};
}

// A lane's two ranges: of its split-k column's k.
template <DecodeKind kKind>
__device__ __forceinline__ uint32_t split_k_ranges(uint32_t parameters, uint32_t lane) {
    if (!kHasF8<kKind>)
        return load_shared1(parameters + (lane & 3u) * 8 + (lane & 4u));
    return f8_ranges(load_shared<uint16_t>(parameters + (lane & 3u) * 4 + (lane & 4u) / 2),
                     kLowPair);
}
// Its two minima as an A fragment: rows 0-3 are k 0-7 of four groups, rows 4-7 are k 8-15.
template <DecodeKind kKind>
__device__ __forceinline__ uint32_t split_k_minima(uint32_t parameters, uint32_t lane) {
    if (!kHasF8<kKind>)
        return load_shared1(parameters + (lane & 3u) * 8 + (lane & 16u) / 4);
    return f8_minima(load_shared<uint16_t>(parameters + (lane & 3u) * 4 + (lane & 16u) / 8),
                     kLowPair);
}
// The row's group.
__device__ __forceinline__ uint32_t split_k_group(uint32_t lane) { return lane >> 2 & 3u; }
// Products with such a fragment, of the lane's rows and both split-k columns: the one that counts;
// kHighRows: of rows 8-15.
template <bool kHighRows = false>
__device__ __forceinline__ float split_k_low(const float (&c)[4], uint32_t lane) {
    return lane & 16u ? c[kHighRows * 2 + 1] : c[kHighRows * 2];
}
// The sum of a group, from the sums of the lanes.
__device__ __forceinline__ float split_k_sum(float low) {
    return low + __shfl_xor_sync(kAllLanes, low, 16);
}
__device__ __forceinline__ float split_k_sum_of(float sums, uint32_t group, uint32_t lane) {
    return __shfl_sync(kAllLanes, sums, group * 4 + (lane & 3u));
}

template <int kBits, int kCount, DecodeKind kKind>
class SplitKKeyStrips {
  public:
    static constexpr int kTokenTiles = kTilesOf<kKind>;
    using PageWork = Work<1, kTokenTiles>;

    template <class SlotsOf>
    __device__ __forceinline__ SplitKKeyStrips(const Keys &keys, const Queries &queries,
                                               uint32_t metadata, const SlotsOf &, uint32_t strip,
                                               uint32_t lane)
        : keys_(keys), metadata_(metadata), strip_(strip), lane_(lane), sign_(pair_sign(lane)) {
        const bool is_raw = kBits == 16 && (SlotsOf::kIsTeam ? keys.is_raw_page
                                                             : keys.end16 * kSplitKStripBytes ==
                                                                   queries.tile_bytes);
#pragma unroll
        for (int n = 0; n < kCount; ++n) {
            plain_[n] =
                load_split_k(queries, is_raw ? kSplitKChannels : kSplitKSlots, strip + n, lane);
            queries_[n] = kBits == 16 ? split_k_query(plain_[n], lane)
                                      : load_pair(queries, kPairSteps, strip + n, lane);
            if (kBits == 8)
                queries_[n].b1 = multiply_f16(queries_[n].b1, 0x4C004C00u);  // 16
        }
    }

    __device__ __forceinline__ void multiply(PageWork &out, uint32_t words) {
        if constexpr (kBits == 16) {
            multiply_tiles(out, words, 0);
        } else {
            add_minima(out);
            for_turns([&](uint32_t turn) { multiply_tiles(out, words, turn); });
        }
    }

  protected:
    // A branch around each folding of FP16 ranges, six instructions, would part the products of a
    // strip: every second tile folds, be it the same again. Where each tile is a group, even tiles
    // have a turn, then odd ones, with zeros for the codes of the others.
    static constexpr bool kFoldsEvenTiles = !kHasF8<kKind>;
    __device__ __forceinline__ bool has_turns() const {
        return kFoldsEvenTiles && n_groups() == kTokenTiles;
    }
    template <class Multiply>
    __device__ __forceinline__ void for_turns(const Multiply &multiply) const {
        if constexpr (kFoldsEvenTiles) {
#pragma unroll 1
            for (uint32_t turn = 0; turn <= has_turns(); ++turn)
                multiply(turn);
        } else {
            multiply(0);
        }
    }
    __device__ __forceinline__ void keep_tiles_of_turn(uint4 &w, uint32_t turn) const {
        if (!has_turns())
            return;
        const uint32_t mask = kBits < 4 ? turn ? 0xCCCCCCCCu : 0x33333333u : turn ? ~0u : 0u;
        w.x &= kBits < 4 ? mask : ~mask;
        w.y &= kBits == 8 ? ~mask : mask;
        w.z &= kBits == 4 ? ~mask : mask;
        w.w &= mask;
    }

    static constexpr uint32_t kParameters = 16 * kParameterBytes<kKind>;  // of a strip and a group

    // Groups of 16 tokens are this many. Four are rows 0-7 of a product, the next four rows 8-15.
    static constexpr bool kHasEightGroups = kHasAllFormats<kKind> && kTokenTiles == 8;

    // Of tokens: 1, 2, 4, or 8.
    __device__ __forceinline__ uint32_t n_groups() const {
        return kHasAnyGroups<kKind> ? keys_.n_groups : kF8Groups;
    }
    // Does a token group begin with this tile?
    __device__ __forceinline__ bool begins_group(int t) const {
        if (kFoldsEvenTiles)
            return t % 2 == 0;
        if (t % 2)
            return kHasAllFormats<kKind> && n_groups() == kTokenTiles;
        return t == 0 || n_groups() >= kTokenTiles / (t % 4 ? 2 : 4);
    }
    __device__ __forceinline__ uint32_t group_of(int t) const {
        return t * n_groups() / kTokenTiles;
    }
    __device__ __forceinline__ uint32_t parameters(int n, uint32_t group) const {
        return metadata_ + ((strip_ + n) * n_groups() + group) * kParameters;
    }
    __device__ __forceinline__ uint32_t minima(int n, uint32_t group) const {
        return split_k_minima<kKind>(parameters(n, group) + keys_.minima_offset, lane_);
    }
    // Four groups are rows 0-7, where fewer repeat; the next four are rows 8-15.
    __device__ __forceinline__ void add_minima(PageWork &out) const {
        const uint32_t group = split_k_group(lane_) & (n_groups() - 1u);
        const uint32_t second = kCount == 1 ? 0 : minima(kCount - 1, group);
        const uint32_t plain = kCount == 1 ? 0 : plain_[kCount - 1];
        if (kHasEightGroups && n_groups() == 8)
            mma(out.midpoint[0], minima(0, group), minima(0, group + 4), second,
                kCount == 1 ? 0 : minima(kCount - 1, group + 4), plain_[0], plain);
        else
            mma(out.midpoint[0], minima(0, group), 0, second, 0, plain_[0], plain);
    }
    __device__ __forceinline__ uint2 ranges(int n, uint32_t group) const {
        return load_ranges<kKind>(parameters(n, group) + (lane_ & 3u) * 4 * kParameterBytes<kKind>,
                                  0);
    }
    __device__ __forceinline__ void fold(int n, const uint2 &ranges) {
        const auto fold_word = [&](uint32_t q, uint32_t r) {
            return kHasF8<kKind> ? multiply_f16(q, r) : multiply_pair(q, r, sign_);
        };
        folded_[n][0][0] = fold_word(queries_[n].b0, ranges.x);
        folded_[n][0][1] = fold_word(queries_[n].b1, ranges.y);
    }

    const Keys &keys_;
    const uint32_t metadata_;
    const uint32_t strip_;
    const uint32_t lane_;
    const uint32_t sign_;
    uint32_t plain_[kCount];
    SplitKQuery queries_[kCount];
    uint32_t folded_[kCount][1][2];

  private:
    __device__ __forceinline__ void multiply_tiles(PageWork &out, uint32_t words, uint32_t turn) {
#pragma unroll
        for (int v = 0; v < kLaneVectors<kBits, kTokenTiles>; ++v) {
            constexpr int kTiles = kVectorTiles<kBits, kTokenTiles>;
            uint4 w[kCount];
#pragma unroll
            for (int n = 0; n < kCount; ++n) {
                w[n] = load_vector<kBits, kTokenTiles>(words + n * kStripBytes<kBits, kTokenTiles> +
                                                       v * 512);
                if (kBits < 16)
                    keep_tiles_of_turn(w[n], turn);
            }
#pragma unroll
            for (int n = 0; n < kCount; ++n)
#pragma unroll
                for (int i = 0; i < kTiles; ++i)
                    multiply_tile_of(out, n, v * kTiles + i, i, w[n], turn);
        }
    }
    // Tile t, the i-th of vector w of strip n. Strips take turns, so that products of a tile are
    // far apart.
    __device__ __forceinline__ void multiply_tile_of(PageWork &out, int n, int t, int i,
                                                     const uint4 &w, uint32_t turn) {
        if (kBits < 16 && begins_group(t))
            fold(n, ranges(n, group_of(t) + turn));
        const uint32_t word[4] = {w.x, w.y, w.z, w.w};
        if (kBits == 16) {
            const uint32_t b[1][2] = {{queries_[n].b0, queries_[n].b1}};
            multiply_f16_tile(out.s[t], w, b);
        } else if (kBits == 8) {
            multiply_byte_tile(out.s[t], word[2 * i], word[2 * i + 1], folded_[n]);
        } else if (kBits == 4) {
            multiply_tile(out.s[t], word[i], kMask4, folded_[n]);
        } else if (kBits == 1) {
            multiply_tile(out.s[t], word[i / 4], kMask1 << bit_position(1, t), folded_[n]);
        } else {
            multiply_tile(out.s[t], word[i / 2], mask2_of(i), folded_[n]);
        }
    }
};

// A strip with partners, see decode/shared_keys.cuh.
template <class SlotsOf, DecodeKind kKind>
class SharedSplitKStrip : public SplitKKeyStrips<2, 1, kKind> {
    using Base = SplitKKeyStrips<2, 1, kKind>;
    using Base::folded_;
    using Base::keys_;
    using Base::lane_;
    using Base::metadata_;
    using Base::queries_;
    using Base::strip_;
    using typename Base::PageWork;

  public:
    __device__ __forceinline__ SharedSplitKStrip(const Keys &keys, const Queries &queries,
                                                 uint32_t metadata, const SlotsOf &slots,
                                                 uint32_t strip, uint32_t lane)
        : Base(keys, queries, metadata, slots, strip, lane),
          all_queries_(queries),
          slots_(slots),
          first_((strip - keys.end4 + keys.plane2_strips) * 16) {}

    __device__ __forceinline__ void multiply(PageWork &out, uint32_t words) {
        const uint4 all = load_vector<2, Base::kTokenTiles>(words);
        this->add_minima(out);
        multiply_bits(out, all, kBit0, [&](uint32_t group) { return this->ranges(0, group); });
        queries_[0] =
            load_pair(all_queries_, kPairHighs, first_ / 16 - slots_.first_strip(), lane_);
        uint32_t positions[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t slot = first_ + (lane_ & 3u) * 2 + i % 2 + i / 2 * 8;
            positions[i] = high_range(slots_, keys_, slot, this->n_groups());
        }
        multiply_bits(out, all, kBit1, [&](uint32_t group) {
            const uint32_t from = metadata_ + group * Base::kParameters;
            return make_uint2(load_two_ranges<kKind>(from, positions[0], positions[1]),
                              load_two_ranges<kKind>(from, positions[2], positions[3]));
        });
    }

  private:
    template <class Ranges>
    __device__ __forceinline__ void multiply_bits(PageWork &out, const uint4 &all, uint32_t mask,
                                                  Ranges ranges) {
        this->for_turns([&](uint32_t turn) {
            uint4 w = all;
            this->keep_tiles_of_turn(w, turn);
            const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int t = 0; t < Base::kTokenTiles; ++t) {
                if (this->begins_group(t))
                    this->fold(0, ranges(this->group_of(t) + turn));
                multiply_tile(out.s[t], word[t / 2], mask << t % 2 * 2, folded_[0]);
            }
        });
    }

    const Queries &all_queries_;
    const SlotsOf slots_;
    const uint32_t first_;  // slot of the strip, in the plane
};

template <DecodeKind kOfKind>
struct KeysBySplitK {
    static constexpr int kTiles = 1;
    static constexpr int kTokenTiles = kTilesOf<kOfKind>;
    static constexpr DecodeKind kKind = kOfKind;
    static constexpr bool kHasPairs = false;  // finish_split_k() adds them up
    template <int kBits, int kCount>
    using Strips = SplitKKeyStrips<kBits, kCount, kKind>;
    template <class SlotsOf>
    using SharedStrip = SharedSplitKStrip<SlotsOf, kKind>;
    static constexpr bool kHasBytes = kKind != kDecodeF8Narrow;
    static constexpr uint32_t kSlotsOfPair = 1;
};

// Keys of a tile of a raw block: logits of tokens g and g + 8, but for their factor.
template <int kStrips, class Team>
__device__ __forceinline__ void multiply_raw_split_k_keys(Ring<Team> &ring, const Queries &queries,
                                                          uint32_t lane, float (&x)[2]) {
    float s[1][4] = {};
    uint32_t strip = 0;
#pragma unroll 1
    while (true) {
        uint32_t words = ring.wait() + lane * 16;
        const uint32_t end = min(strip + kRawStrips, uint32_t{kStrips});
#pragma unroll 1
        for (; strip < end; ++strip, words += 512) {
            const SplitKQuery q =
                split_k_query(load_split_k(queries, kSplitKChannels, strip, lane), lane);
            const uint32_t b[1][2] = {{q.b0, q.b1}};
            multiply_f16_tile(s, load_shared4(words), b);
        }
        if constexpr (Team::kIsTeam)
            if (strip == kStrips)
                ring.template add_up<4>(lane, [&](int i) -> float & { return s[0][i]; });
        ring.next();
        if (strip == kStrips)
            break;
    }
    x[0] = s[0][0] + s[0][1];
    x[1] = s[0][2] + s[0][3];
}

}  // namespace cuda
}  // namespace lk

#endif
