// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/order.h"

namespace lk {

ChunkShape::ChunkShape(const Plan &plan)
    : chunk_tokens(plan.chunks.tokens),
      block_tokens(plan.page_tokens),
      block_chunks(chunk_tokens < block_tokens ? block_tokens / chunk_tokens : 1),
      chunk_blocks(chunk_tokens > block_tokens ? chunk_tokens / block_tokens : 1) {}

bool ChunkOrder::open(uint32_t n_chunks) {
    return order.resize(n_chunks) && kept_at.resize(n_chunks) && wanted.resize(n_chunks);
}

namespace {

class Arranger {
  public:
    Arranger(ChunkOrder *layout, const ChunkShape &shape, const float *scores,
             const Allocator &allocator)
        : layout_(*layout),
          shape_(shape),
          scores_(scores),
          old_(allocator),
          is_kept_(allocator),
          loose_(allocator) {}

    bool run();

  private:
    bool stays(uint32_t first) const;
    void find_kept();
    bool list_loose(uint8_t width);
    void widen();
    bool add_class(uint8_t width);
    bool add_rest();

    ChunkOrder &layout_;
    const ChunkShape &shape_;
    const float *scores_;
    Array<uint32_t> old_;     // order
    Array<uint8_t> is_kept_;  // by chunk: its block stays
    Array<uint32_t> loose_;   // of a class, by ascending indices
};

// Does the block whose first chunk is at this index stay as it is?
bool Arranger::stays(uint32_t first) const {
    if (first + shape_.block_chunks > old_.size())
        return false;
    const uint8_t width = layout_.kept_at[old_[first]];
    if (width == kAt16Bits)
        return false;
    for (uint32_t i = 0; i < shape_.block_chunks; ++i) {
        const uint32_t chunk = old_[first + i];
        if (layout_.kept_at[chunk] != width || layout_.wanted[chunk] != width)
            return false;
    }
    return true;
}

void Arranger::find_kept() {
    for (uint32_t first = 0; first < old_.size(); first += shape_.block_chunks)
        if (stays(first))
            for (uint32_t i = 0; i < shape_.block_chunks; ++i)
                is_kept_[old_[first + i]] = 1;
}

bool Arranger::list_loose(uint8_t width) {
    loose_.clear();
    for (const uint32_t chunk : old_)
        if (layout_.wanted[chunk] == width && !is_kept_[chunk] && !loose_.push(chunk))
            return false;
    return true;
}

// The best of the loose chunks that fill no block go to the next class.
void Arranger::widen() {
    for (size_t n = loose_.size() % shape_.block_chunks; n; --n) {
        size_t best = loose_.size() - 1;
        for (size_t i = best; scores_ && i--;)
            if (scores_[loose_[i]] >= scores_[loose_[best]])
                best = i;
        ++layout_.wanted[loose_[best]];
        for (size_t i = best; i + 1 < loose_.size(); ++i)
            loose_[i] = loose_[i + 1];
        loose_.pop();
    }
}

bool Arranger::add_class(uint8_t width) {
    if (!list_loose(width))
        return false;
    widen();
    const size_t before = layout_.order.size();
    for (const uint32_t chunk : old_)
        if (is_kept_[chunk] && layout_.wanted[chunk] == width && !layout_.order.push(chunk))
            return false;
    for (const uint32_t chunk : loose_)
        if (!layout_.order.push(chunk))
            return false;
    const uint64_t n_blocks =
        (layout_.order.size() - before) / shape_.block_chunks * shape_.chunk_blocks;
    for (uint64_t i = 0; i < n_blocks; ++i)
        if (!layout_.block_classes.push(width))
            return false;
    return true;
}

// At 16 bits, those first that are so already: they may be where they shall be.
bool Arranger::add_rest() {
    for (const bool was_raw : {true, false})
        for (const uint32_t chunk : old_)
            if (layout_.wanted[chunk] == kAt16Bits &&
                (layout_.kept_at[chunk] == kAt16Bits) == was_raw && !layout_.order.push(chunk))
                return false;
    return true;
}

bool Arranger::run() {
    if (!old_.assign(layout_.order.data(), layout_.order.size()) ||
        !is_kept_.resize(layout_.wanted.size()))
        return false;
    find_kept();
    layout_.order.clear();
    layout_.block_classes.clear();
    for (const uint8_t width : {LK_CHUNK_LOW, LK_CHUNK_MIDDLE, LK_CHUNK_HIGH})
        if (!add_class(width))
            return false;
    return add_rest();
}

}  // namespace

lk_status ChunkOrder::arrange(const ChunkShape &shape, bool reorders, const float *scores,
                              const Allocator &allocator) {
    bool fits = true;
    if (reorders) {
        fits = Arranger(this, shape, scores, allocator).run();
    } else {  // a block is a chunk
        block_classes.clear();
        for (const uint8_t width : wanted)
            fits = fits && block_classes.push(width);
    }
    return fits ? LK_OK : fail(LK_E_NOMEM, "no memory for the order of %zu chunks", wanted.size());
}

}  // namespace lk
