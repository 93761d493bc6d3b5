// Codes of a page and the words that hold them: docs/FORMAT.md, sections 4, 5 and 9.4. A warp
// writes a strip.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PACK_WORDS_CUH
#define LK_CUDA_PACK_WORDS_CUH

#include "cuda/pack/groups.cuh"

namespace lk {
namespace cuda {

// A lane's words of a strip in the order of its tiles, stored by four.
template <uint32_t kBits>
class WordWriter {
  public:
    __device__ WordWriter(uint8_t *strip, uint32_t lane)
        : next_(reinterpret_cast<uint4 *>(strip) + lane) {}

    // Codes of a tile, two in each register.
    __device__ void add(uint32_t tile, const uint32_t (&codes)[4]) {
        if constexpr (kBits == 8) {
            push(codes[0] | codes[1] << 8);
            push(codes[2] | codes[3] << 8);
            store_vector(tile);
        } else {
            add_fields(tile, codes[0] << field_bit(0) | codes[1] << field_bit(1) |
                                 codes[2] << field_bit(2) | codes[3] << field_bit(3));
        }
    }

    // Below 8 bits, kWordTiles tiles share a word: a tile's codes, where the first of them has its.
    __device__ void add_fields(uint32_t tile, uint32_t fields) {
        word_ |= fields << (kBits == 4   ? 0
                            : kBits == 2 ? 2 * (tile & 1)
                                         : (tile & 1) << 1 | (tile >> 1 & 1));
        if (tile % kWordTiles == kWordTiles - 1) {
            push(word_);
            word_ = 0;
            store_vector(tile);
        }
    }
    static LK_BOTH constexpr uint32_t field_bit(uint32_t r) { return 8 * (r & 1) + 4 * (r >> 1); }

    // A strip of less than a vector for each lane.
    __device__ void finish(uint8_t *strip, uint32_t page_tokens, uint32_t lane) const {
        const uint32_t n_words = lane_words(page_tokens, kBits);
        if (n_words == 2)
            reinterpret_cast<uint2 *>(strip)[lane] = make_uint2(last_.z, last_.w);
        else if (n_words == 1)
            reinterpret_cast<uint32_t *>(strip)[lane] = last_.w;
    }

  private:
    static constexpr uint32_t kWordTiles = kBits == 8 ? 1 : 4 / kBits;
    static constexpr uint32_t kVectorTiles = 16 / kBits;

    __device__ void store_vector(uint32_t tile) {
        if (tile % kVectorTiles == kVectorTiles - 1) {
            *next_ = last_;
            next_ += LK_LANES;
        }
    }
    __device__ void push(uint32_t word) { last_ = make_uint4(last_.y, last_.z, last_.w, word); }

    uint4 *next_;
    uint32_t word_ = 0;
    uint4 last_ = {0, 0, 0, 0};
};

// The inputs of the warp that writes a strip.
struct StripTask {
    const FormatInfo &c;
    const uint4 *slots;
    const Group *groups;
    uint8_t *payload;
    StripPosition position;
    uint32_t strip;
    uint32_t lane;

    __device__ void load(uint32_t tile, uint32_t (&registers)[4]) const {
        const uint32_t page_tiles = c.page_tokens / LK_TILE_TOKENS;
        const uint4 vector = slots[(strip * page_tiles + tile) * LK_LANES + lane];
        registers[0] = vector.x;
        registers[1] = vector.y;
        registers[2] = vector.z;
        registers[3] = vector.w;
    }
    __device__ uint8_t *strip_bytes() const { return payload + position.offset; }
    __device__ uint8_t *high_bytes() const { return payload + position.high_offset; }
};

// The first of the 16 neighbouring entries that has (slot, token).
LK_BOTH uint32_t entry_group(const FormatInfo &c, uint32_t slot, uint32_t token) {
    const uint32_t group =
        c.is_token_axis ? slot / c.group * (c.page_tokens / LK_TILE_TOKENS) + token / LK_TILE_TOKENS
                        : slot / LK_STRIP_CHANNELS * c.n_groups + token / c.group;
    return group * LK_STRIP_CHANNELS;
}

// The groups of a lane's elements in a tile: of its four k, or of its two rows.
template <bool kByRow>
struct LaneGroups {
    static constexpr uint32_t kCount = kByRow ? 2 : 4;
    Quantizer quantizers[kCount];
    uint32_t thresholds[kCount][2];

    // entries: 16 that lie together.
    __device__ LaneGroups(const Group *entries, uint32_t lane) {
        for (uint32_t i = 0; i < kCount; ++i) {
            const Group group = entries[kCount * (kByRow ? lane / 4 : lane % 4) + i];
            quantizers[i] = make_quantizer(group);
            thresholds[i][0] = group.thresholds[0];
            thresholds[i][1] = group.thresholds[1];
        }
    }
    static __device__ constexpr uint32_t index(uint32_t r, uint32_t half) {
        return kByRow ? r % 2 : r / 2 * 2 + half;
    }
    // A threshold of both elements of a register.
    __device__ __half2 threshold(uint32_t r, uint32_t i) const {
        return as_half2(__byte_perm(thresholds[index(r, 0)][i / 2], thresholds[index(r, 1)][i / 2],
                                    i % 2 ? 0x7632 : 0x5410));
    }
};

// Values become codes.
template <uint32_t kBits, bool kByRow>
__device__ __forceinline__ void quantize_tile(const LaneGroups<kByRow> &groups,
                                              uint32_t (&registers)[4]) {
    for (uint32_t r = 0; r < 4; ++r) {
        const __half2 values = as_half2(registers[r]);
        if constexpr (kBits == 1) {
            registers[r] = __hge2_mask(values, groups.threshold(r, 0)) & 0x10001u;
        } else if constexpr (kBits == 2) {
            const uint32_t one = __hge2_mask(values, groups.threshold(r, 1));
            const uint32_t two = __hge2_mask(values, groups.threshold(r, 2));
            const uint32_t three = __hge2_mask(values, groups.threshold(r, 3));
            registers[r] = ((one ^ two ^ three) & 0x10001u) | (two & 0x20002u);
        } else {
            constexpr Width kWidth = make_width(kBits);
            const uint32_t low =
                quantize(__low2float(values), groups.quantizers[groups.index(r, 0)], kWidth);
            const uint32_t high =
                quantize(__high2float(values), groups.quantizers[groups.index(r, 1)], kWidth);
            registers[r] = __byte_perm(low, high, 0x5410);
        }
    }
}

template <uint32_t kBits, bool kByRow>
__device__ inline void pack_strip(const StripTask &task) {
    const uint32_t page_tokens = task.c.page_tokens;
    const uint32_t group_tiles = task.c.is_token_axis ? 1 : task.c.group / LK_TILE_TOKENS;
    WordWriter<kBits == 3 ? 2 : kBits> low(task.strip_bytes(), task.lane);
    WordWriter<1> high(task.high_bytes(), task.lane);
    const Group *entries = task.groups + entry_group(task.c, task.strip * LK_STRIP_CHANNELS, 0);
    for (uint32_t first = 0; first < page_tokens / LK_TILE_TOKENS; first += group_tiles) {
        const LaneGroups<kByRow> groups(entries, task.lane);
        entries += LK_TILE_TOKENS;
#pragma unroll 1
        for (uint32_t tile = first; tile < first + group_tiles; ++tile) {
            uint32_t codes[4];
            task.load(tile, codes);
            quantize_tile<kBits>(groups, codes);
            if constexpr (kBits == 3) {
                uint32_t upper[4];
                for (uint32_t r = 0; r < 4; ++r) {
                    upper[r] = codes[r] >> 2 & 0x10001u;
                    codes[r] &= 0x30003u;
                }
                high.add(tile, upper);
            }
            low.add(tile, codes);
        }
    }
    low.finish(task.strip_bytes(), page_tokens, task.lane);
    if constexpr (kBits == 3)
        high.finish(task.high_bytes(), page_tokens, task.lane);
}

// A value of a plane with shared slots, quantized to 1, 2 or 3 bits.
__device__ inline uint32_t shared_slot_code(const StripTask &task, uint32_t slot, uint32_t token,
                                            uint32_t bits) {
    constexpr Width kOne = make_width(1);
    constexpr Width kTwo = make_width(2);
    constexpr Width kThree = make_width(3);
    const ValueOrder order = strips_order(task.c);
    const auto *values = reinterpret_cast<const uint16_t *>(task.slots);
    const float value =
        half_to_float(values[order.tokens.offset(token) + order.channels.offset(slot)]);
    const uint32_t in_tile = token % LK_TILE_TOKENS;
    const uint32_t entry =
        entry_group(task.c, slot, token) +
        (task.c.is_token_axis ? LK_ROW_ORDER(in_tile) : LK_K_ORDER(slot % LK_STRIP_CHANNELS));
    return quantize(value, make_quantizer(task.groups[entry]),
                    bits == 1   ? kOne
                    : bits == 2 ? kTwo
                                : kThree) &
           7u;
}

// The two bits of a slot: a partner holds the highest bit of its outlier's code.
__device__ inline uint32_t shared_field(const StripTask &task, uint32_t k, uint32_t token) {
    const uint32_t slot = task.strip * LK_STRIP_CHANNELS + k;
    const uint32_t bits = shared_bits(task.c, task.position.in_plane * LK_STRIP_CHANNELS + k);
    const uint32_t code = shared_slot_code(task, slot, token, bits) & 3u;
    if (bits != 1)
        return code;
    return code | (shared_slot_code(task, slot + task.c.n_shared, token, 3) >> 2) << 1;
}

// A strip of keys with shared slots, value by value: a plane has few of them.
__device__ inline void pack_shared_strip(const StripTask &task) {
    const uint32_t page_tokens = task.c.page_tokens;
    WordWriter<2> words(task.strip_bytes(), task.lane);
    for (uint32_t tile = 0; tile < page_tokens / LK_TILE_TOKENS; ++tile) {
        uint32_t fields = 0;
#pragma unroll 1
        for (uint32_t i = 0; i < kLaneValues; ++i) {
            const uint32_t token = tile * LK_TILE_TOKENS + LK_TILE_ROW(task.lane, i / 2);
            const uint32_t k = LK_TILE_K(task.lane, i / 2) + i % 2;
            fields |= shared_field(task, k, token) << (words.field_bit(i / 2) + 16 * (i % 2));
        }
        words.add_fields(tile, fields);
    }
    words.finish(task.strip_bytes(), page_tokens, task.lane);
}

__device__ inline void copy_strip(const StripTask &task) {
    auto *vectors = reinterpret_cast<uint4 *>(task.strip_bytes());
    for (uint32_t tile = 0; tile < task.c.page_tokens / LK_TILE_TOKENS; ++tile) {
        uint32_t r[4];
        task.load(tile, r);
        vectors[tile * LK_LANES + task.lane] = make_uint4(r[0], r[1], r[2], r[3]);
    }
}

template <bool kByRow>
__device__ inline void write_strip(const StripTask &task) {
    switch (task.position.bits) {
        case 16: return copy_strip(task);
        case 8: return pack_strip<8, kByRow>(task);
        case 4: return pack_strip<4, kByRow>(task);
        case 3: return pack_strip<3, kByRow>(task);
        case 1: return pack_strip<1, kByRow>(task);
        default:
            return task.position.in_plane * LK_STRIP_CHANNELS < 2u * task.c.n_shared
                       ? pack_shared_strip(task)
                       : pack_strip<2, kByRow>(task);
    }
}

}  // namespace cuda
}  // namespace lk

#endif
