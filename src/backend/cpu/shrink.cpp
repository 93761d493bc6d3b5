// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/shrink.h"

#include <cstring>

#include "format/layout.h"

namespace lk {
namespace cpu {

namespace {

// The widest strip is 16 channels x 128 tokens at 8 bits.
constexpr uint32_t kMaxWords = strip_bytes(LK_MAX_PAGE_TOKENS, 8) / 4;

// Words 2i and 2i + 1 make word i; the compiler does eight and more of them at once.
template <uint32_t kBits>
void merge_pairs(const uint32_t *from, uint32_t n, uint32_t *to) {
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t even = from[2 * i];
        const uint32_t odd = from[2 * i + 1];
        to[i] = kBits == 4 ? LK_MERGE_8_TO_4(even, odd) : LK_MERGE_4_TO_2(even, odd);
    }
}

// A lane's pairs become neighbours again: its vectors 2v and 2v + 1, 32 vectors apart, make vector
// v. Lanes of fewer words follow each other, before and after.
template <uint32_t kBits>
void shrink_strip_fast(const uint32_t *from, uint32_t page_tokens, uint32_t *to) {
    constexpr uint32_t kRow = LK_LANES * LK_VECTOR_WORDS;
    const uint32_t n = lane_words(page_tokens, kBits) * LK_LANES;
    uint32_t merged[kMaxWords / 2];
    merge_pairs<kBits>(from, n, merged);
    if (n < kRow) {
        std::memcpy(to, merged, n * sizeof *to);
        return;
    }
    for (uint32_t v = 0; v < n; v += kRow)
        for (uint32_t lane = 0; lane < LK_LANES; ++lane) {
            const uint32_t *low = merged + v + lane * 2;
            const uint32_t words[] = {low[0], low[1], low[kRow / 2], low[kRow / 2 + 1]};
            std::memcpy(to + v + lane * LK_VECTOR_WORDS, words, sizeof words);
        }
}

// Strips ascend: a narrow strip ends before the next wide one begins, in place too.
void shrink_page(const ShrinkItem &item, const uint8_t *source, uint8_t *target) {
    const uint64_t narrow_bytes = strip_bytes(item.page_tokens, item.bits);
    for (uint32_t s = 0; s < item.n_strips; ++s) {
        const auto *from = reinterpret_cast<const uint32_t *>(source + s * 2 * narrow_bytes);
        auto *to = reinterpret_cast<uint32_t *>(target + s * narrow_bytes);
        if (item.bits == 4)
            shrink_strip_fast<4>(from, item.page_tokens, to);
        else
            shrink_strip_fast<2>(from, item.page_tokens, to);
    }
    if (item.tail_bytes)
        std::memcpy(target + item.n_strips * narrow_bytes,
                    source + item.n_strips * 2 * narrow_bytes, item.tail_bytes);
}

}  // namespace

void shrink_item(const ShrinkItem &item) {
    for (uint32_t h = 0; h < item.n_pages; ++h) {
        const uint64_t offset = uint64_t{h} * item.stride_bytes;
        shrink_page(item, reinterpret_cast<const uint8_t *>(item.source + offset),
                    reinterpret_cast<uint8_t *>(item.target + offset));
    }
}

}  // namespace cpu
}  // namespace lk
