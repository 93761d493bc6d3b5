// SPDX-License-Identifier: Apache-2.0
#include "core/pages/shrink.h"

#include "core/cache.h"
#include "core/memory/compact.h"
#include "core/pages/ladders.h"

namespace lk {

namespace {

uint16_t format_of(const PageEntry &entry, bool is_value) {
    return is_value ? entry.value_format : entry.key_format;
}

}  // namespace

bool ShrinkLists::reserve(size_t n_formats) {
    return runs.reserve(kBatch) && blocks.reserve(kBatch) && moved.reserve(kBatch) &&
           left_slots.reserve(kBatch) && format_changes.resize(n_formats);
}

Shrinker::Shrinker(lk_cache *cache, uint32_t layer)
    : cache_(cache),
      lists_(cache->shrinking),
      steps_(cache->formats.shrink_steps.data()),
      layer_(cache->formats.layers[layer]),
      rung_(rung_bits(cache, layer)),
      serial_(++cache->sequences.next_walk),
      spare_(&cache->ledger) {
    lists_.runs.clear();
    lists_.blocks.clear();
    lists_.moved.clear();
}

bool Shrinker::shrinks(const PageEntry &entry, bool is_value) const {
    return steps_[format_of(entry, is_value)].bits > rung_ && !entry.is_absent;
}

// The second slot of a run gives its stride.
void Shrinker::add_staying(uint64_t payload, const ShrinkStep &step) {
    has_more_ = has_more_ || steps_[step.to].bits > rung_;
    ++n_found_;
    Array<ShrinkItem> &runs = lists_.runs;
    if (!runs.empty() && run_format_ == step.alike) {
        ShrinkItem &run = runs.back();
        if (run.n_pages == 1 && payload - run.source < LK_EXTENT_BYTES) {
            run.stride_bytes = static_cast<uint32_t>(payload - run.source);
            next_payload_ = payload;
        }
        if (payload == next_payload_ && run.n_pages < kRunPages) {
            ++run.n_pages;
            next_payload_ += run.stride_bytes;
            return;
        }
    }
    run_format_ = step.alike;
    next_payload_ = 0;
    *runs.extend(1) = {
        payload,         payload, 0, 0, 1, step.n_strips, static_cast<uint16_t>(step.bits / 2),
        step.page_tokens};
}

// A page at 16 bits goes to its layer's rung at once. Some stay, or are packed when their block's
// turn comes (pack.h).
void Shrinker::add_moving(CacheBlock *block, uint32_t index, bool is_value) {
    PageEntry *entry = &block->entries[index];
    const uint16_t from = format_of(*entry, is_value);
    uint16_t to = steps_[from].to;
    if (steps_[from].bits == 16) {
        const EntryInfo &info = cache_->formats.entries[index];
        const PageInfo &rules = is_value ? info.value : info.key;
        to = rules.packed_format;
        if (index >= block->n_packed || !rules.packs())
            return;
    }
    *lists_.moved.extend(1) = {block, entry, 0, from, to, is_value};
    has_more_ = has_more_ || steps_[to].bits > rung_;
    ++n_found_;
}

lk_status Shrinker::add(CacheBlock *block) {
    if (block->shrinker == serial_)
        return LK_OK;
    const uint32_t n_heads = layer_.view.n_kv_heads;
    const bool is_full = n_moving() + 2 * n_heads > kBatch ||
                         lists_.runs.size() + 2 * n_heads > kBatch ||
                         lists_.blocks.size() == kBatch;
    LK_TRY(is_full ? flush() : LK_OK);
    block->shrinker = serial_;
    const uint32_t n_before = n_found_ - n_moving();
    for (uint32_t e = layer_.first_entry; e < layer_.first_entry + n_heads; ++e) {
        const PageEntry &entry = block->entries[e];
        for (const bool is_value : {false, true}) {
            if (!shrinks(entry, is_value))
                continue;
            const ShrinkStep &step = steps_[format_of(entry, is_value)];
            if (step.moves())
                add_moving(block, e, is_value);
            else
                add_staying(is_value ? entry.value_payload : entry.key_payload, step);
        }
    }
    if (n_found_ - n_moving() != n_before)
        *lists_.blocks.extend(1) = block;
    return LK_OK;
}

// Of the slot that the page moves to.
uint64_t Shrinker::target_bytes(const MovedPage &page) const {
    return slot_bytes(payload_bytes(cache_->formats[page.to].layout));
}

// Targets for pages from the first on, as far as slabs have free slots. Returns where that ends.
uint32_t Shrinker::take_from_slabs(uint32_t first) {
    constexpr uint32_t kRun = 64;  // pages that move to slots of one size
    MovedPage *pages = lists_.moved.data();
    uint32_t i = first;
    while (i < n_moving()) {
        const uint64_t bytes = target_bytes(pages[i]);
        uint32_t n = 1;
        while (n < kRun && i + n < n_moving() &&
               (pages[i + n].to == pages[i + n - 1].to || target_bytes(pages[i + n]) == bytes))
            ++n;
        uint64_t addresses[kRun];
        const uint32_t n_taken = cache_->slots.take_many(bytes, n, addresses);
        for (uint32_t taken = 0; taken < n_taken; ++taken)
            pages[i++].target = addresses[taken];
        if (n_taken < n)
            break;
    }
    return i;
}

// Targets for as many as there are slots for, at least one. Pages that shrink first free slots for
// the others, so a slab is added only where nothing else helps.
lk_status Shrinker::take(uint32_t first, uint32_t *end) {
    *end = take_from_slabs(first);
    if (*end != first)
        return LK_OK;
    MovedPage &page = lists_.moved[first];
    const uint64_t bytes = target_bytes(page);
    lk_status status = cache_->slots.take(bytes, &page.target);
    if (status == LK_E_BUDGET && compact(cache_))
        status = cache_->slots.take(bytes, &page.target);
    if (!status)
        *end = take_from_slabs(first + 1);
    return status;
}

void Shrinker::queue(const MovedPage *first, const MovedPage *end) {
    for (const MovedPage *page = first; page != end; ++page) {
        const ShrinkStep &step = steps_[page->from];
        const uint64_t source = page->payload();
        if (step.bits == 16)
            *cache_->work.packs.extend(1) = {
                &cache_->formats[page->to],   page->target, page->metadata(),
                &cache_->formats[page->from], source,       0};
        else
            *lists_.runs.extend(1) = {source,
                                      page->target,
                                      0,
                                      step.tail_bytes,
                                      1,
                                      step.n_strips,
                                      static_cast<uint16_t>(step.bits / 2),
                                      step.page_tokens};
    }
}

// Pages of a block that changed their format.
void Shrinker::count(const CacheBlock &block, uint16_t from, uint16_t to, uint32_t n) {
    lists_.format_changes[from] -= static_cast<int32_t>(n);
    lists_.format_changes[to] += static_cast<int32_t>(n);
    cache_->statistics.counts.pages_shrunk += n;
    n_done_ += n;
    if (block.n_holders < 2)
        return;
    const PageBytes before = page_bytes(cache_->formats[from]);
    const PageBytes after = page_bytes(cache_->formats[to]);
    cache_->statistics.counts.shared_bytes +=
        n * (after.payload + after.metadata - before.payload - before.metadata - before.recent);
}

void Shrinker::count_changes() {
    for (size_t c = 0; c < lists_.format_changes.size(); ++c) {
        int32_t &n = lists_.format_changes[c];
        if (n)
            cache_->statistics.count_pages(cache_->formats[static_cast<uint16_t>(c)], n);
        n = 0;
    }
}

// The pages that add() found, keys then values: the formats of a side follow each other.
void Shrinker::apply_staying(CacheBlock *block) {
    PageEntry *const first = block->entries + layer_.first_entry;
    PageEntry *const end = first + layer_.view.n_kv_heads;
    for (const bool is_value : {false, true}) {
        uint16_t from = 0;
        uint32_t n = 0;
        for (PageEntry *entry = first; entry != end; ++entry) {
            uint16_t *page_format = is_value ? &entry->value_format : &entry->key_format;
            if (!shrinks(*entry, is_value) || steps_[*page_format].moves())
                continue;
            if (n && *page_format != from) {
                count(*block, from, steps_[from].to, n);
                n = 0;
            }
            from = *page_format;
            *page_format = steps_[from].to;
            ++n;
        }
        if (n)
            count(*block, from, steps_[from].to, n);
    }
}

// Formats change when the device has its work, and slots are free for later work.
lk_status Shrinker::apply_staying() {
    lk_status status = LK_OK;
    for (CacheBlock *block : lists_.blocks) {
        if (!status)
            status = cache_->device->entries_changed(block);
        apply_staying(block);
    }
    for (const ShrinkItem &run : lists_.runs)
        cache_->slots.halve({run.source, run.stride_bytes, run.n_pages});
    count_changes();
    return status;
}

// Likewise, with addresses.
lk_status Shrinker::apply(const MovedPage *first, const MovedPage *end) {
    lk_status status = LK_OK;
    lists_.left_slots.clear();
    const CacheBlock *last = nullptr;
    for (const MovedPage *page = first; page != end; ++page) {
        if (page->block != last && !status)
            status = cache_->device->entries_changed(page->block);
        last = page->block;
        uint64_t &payload = page->payload();
        *lists_.left_slots.extend(1) = payload;
        payload = page->target;
        page->page_format() = page->to;
        count(*page->block, page->from, page->to, 1);
    }
    cache_->slots.give(lists_.left_slots.data(), lists_.left_slots.size());
    count_changes();
    return status;
}

// Those that have targets; nothing changes when the device fails.
lk_status Shrinker::run(const MovedPage *first, const MovedPage *end) {
    queue(first, end);
    lk_status status = flush_packs(cache_);
    if (!status && !lists_.runs.empty())
        status =
            cache_->device->shrink(lists_.runs.data(), static_cast<uint32_t>(lists_.runs.size()));
    lists_.runs.clear();
    if (!status)
        return apply(first, end);
    for (const MovedPage *page = first; page != end; ++page)
        cache_->slots.give(page->target);
    return status;
}

lk_status Shrinker::flush_staying() {
    if (lists_.runs.empty())
        return LK_OK;
    lk_status status =
        cache_->device->shrink(lists_.runs.data(), static_cast<uint32_t>(lists_.runs.size()));
    if (!status)
        status = apply_staying();
    lists_.runs.clear();
    lists_.blocks.clear();
    return status;
}

// Pages that stay go first: they free slots for those that move.
lk_status Shrinker::flush() {
    const MovedPage *pages = lists_.moved.data();
    lk_status status = flush_staying();
    for (uint32_t first = 0; !status && first < n_moving();) {
        uint32_t end = first;
        status = take(first, &end);
        if (!status)
            status = run(pages + first, pages + end);
        first = end;
    }
    lists_.moved.clear();
    return status;
}

}  // namespace lk
