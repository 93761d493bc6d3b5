// Decode: query columns, the mask of their keys, and logits capped or hidden.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_LOGITS_CUH
#define LK_CUDA_DECODE_LOGITS_CUH

#include "cuda/decode/page_keys.cuh"

namespace lk {
namespace cuda {

constexpr float kNothing = -1e30f;  // row_max before any logit
constexpr float kHidden = -__builtin_huge_valf();

// A query column: its new token, the new tokens visible to it, and the factor from its products to
// logits in powers of two.
struct alignas(16) Column {
    uint64_t ancestors;
    uint32_t position;
    float factor;
    float offset;    // of its logits: the product of the query and the center of keys
    uint32_t token;  // of the batch
    uint32_t head;
    uint32_t is_beyond;  // its query is beyond the layer's limit
};
// The mask of columns: which keys are visible to them.
struct Mask {
    const Column *columns;      // shared
    const uint32_t *positions;  // of the new tokens, global; null: they follow each other
    uint32_t n_history;
    uint32_t n_new;
    uint32_t latest;  // position of all columns
    uint32_t window_tokens;
    uint32_t window_sink_tokens;

    __device__ __forceinline__ bool in_window(uint32_t column, uint32_t at) const {
        return !window_tokens || at + window_tokens > columns[column].position ||
               at < window_sink_tokens;
    }
    __device__ __forceinline__ bool is_visible(uint32_t column, uint32_t token) const {
        uint32_t at = token;
        if (token >= n_history) {
            const uint32_t i = token - n_history;
            if (i >= n_new || !(columns[column].ancestors >> i & 1u))
                return false;
            at = positions ? positions[i] : token;
        }
        return in_window(column, at);
    }
    // Is any token of [first, end) hidden from any column?
    __device__ __forceinline__ bool hides(uint32_t first, uint32_t end) const {
        if (end > n_history + (n_new == 1))
            return true;
        return window_tokens && end > window_sink_tokens && first + window_tokens <= latest;
    }
};

struct LogitRules {
    Mask mask;
    float cap;         // in powers of two, 0 = off
    float cap_factor;  // 2 / soft-cap: from powers of two to those of tanh
};
__device__ __forceinline__ float capped(float x, const LogitRules &rules) {
    return rules.cap * (1.0f - __fdividef(2.0f, 1.0f + exp2_fast(x * rules.cap_factor)));
}

// kRaw: of a 16-bit page, whose tokens may be new ones.
template <bool kRaw>
__device__ __forceinline__ bool is_seen(const LogitRules &rules, uint32_t column, uint32_t token) {
    return kRaw ? rules.mask.is_visible(column, token) : rules.mask.in_window(column, token);
}

// Which of kCount logits of a column are hidden: bit i for the token that token_of(i) gives. The
// loop stays one, since few pages come here and code for each logit would be as long as that of a
// page.
template <bool kRaw, uint32_t kCount, class TokenOf>
__device__ __forceinline__ uint32_t hidden_bits(const LogitRules &rules, uint32_t column,
                                                TokenOf token_of) {
    static_assert(kCount <= 32, "a bit each");
    uint32_t hidden = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < kCount; ++i) {
        const uint32_t token = token_of(i);
        hidden |= (is_seen<kRaw>(rules, column, token) ? 0u : 1u) << i;
    }
    return hidden;
}
__device__ __forceinline__ float finished(float x, const LogitRules &rules, bool is_hidden) {
    return is_hidden ? kHidden : rules.cap > 0 ? capped(x, rules) : x;
}

// The logits of a tile, capped, and hidden where a token is not visible to its column; first_token
// is the tile's.
template <bool kRaw, int kTiles>
__device__ __forceinline__ void finish_tile(float (&s)[kTiles][4], const LogitRules &rules,
                                            bool is_masked, uint32_t first_token, uint32_t lane) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t column = c * 8 + (lane & 3u) * 2 + (i & 1);
            const uint32_t token = first_token + (lane >> 2) + (i >> 1) * 8;
            const bool is_visible = is_seen<kRaw>(rules, column, token);
            s[c][i] = finished(s[c][i], rules, is_masked && !is_visible);
        }
}

}  // namespace cuda
}  // namespace lk

#endif
