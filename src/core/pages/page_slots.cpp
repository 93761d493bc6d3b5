// SPDX-License-Identifier: Apache-2.0
#include "core/pages/page_slots.h"

#include "core/cache.h"

namespace lk {

namespace {

// Slots taken by one call, given back unless it succeeds.
class Taken {
  public:
    explicit Taken(Slots &slots) : slots_(slots) {}
    ~Taken() {
        for (uint32_t i = 0; i < n_; ++i)
            slots_.give(addresses_[i]);
    }
    lk_status take(uint64_t bytes, uint64_t *address) {
        *address = 0;
        if (!bytes)
            return LK_OK;
        const lk_status status = slots_.take(bytes, address);
        if (!status)
            addresses_[n_++] = *address;
        return status;
    }
    void keep() { n_ = 0; }

  private:
    Slots &slots_;
    uint64_t addresses_[4];
    uint32_t n_ = 0;
};

}  // namespace

PageNeed need_of(const PageInfo &page, bool is_packed) {
    if (is_packed && page.packs())
        return {page.packed_format, page.slots.packed_payload, page.metadata_slot()};
    return {page.recent_format, page.slots.recent_payload, page.slots.recent_metadata};
}

PageNeed packed_need_of(const Formats &formats, const PageInfo &page, uint16_t packed) {
    const PageLayout &layout = formats[packed].layout;
    return {packed, slot_bytes(payload_bytes(layout)),
            page.slots.recent_metadata ? page.slots.recent_metadata
                                       : slot_bytes(metadata_bytes(layout))};
}

PageNeed packed_need(const Formats &formats, const EntryInfo &info, bool is_value,
                     lk_chunk_class chunk_class) {
    const PageInfo &page = is_value ? info.value : info.key;
    if (chunk_class == LK_CHUNK_NONE)
        return need_of(page, true);
    const uint16_t packed =
        page.chunk_format[chunk_class - LK_CHUNK_LOW][formats.layers[info.layer].rung];
    return formats[packed].layout.is_raw() ? need_of(page, false)
                                           : packed_need_of(formats, page, packed);
}

PageNeed sink_need(const Formats &formats, uint16_t page_format) {
    return {page_format, slot_bytes(payload_bytes(formats[page_format].layout)), 0};
}

lk_status take_pages(lk_cache *cache, const PageNeed &key, const PageNeed &value, PageEntry *out) {
    PageEntry made{};
    made.key_format = key.page_format;
    made.value_format = value.page_format;
    Taken taken(cache->slots);
    LK_TRY(taken.take(key.payload, &made.key_payload));
    LK_TRY(taken.take(key.metadata, &made.key_metadata));
    LK_TRY(taken.take(value.payload, &made.value_payload));
    LK_TRY(taken.take(value.metadata, &made.value_metadata));
    taken.keep();
    cache->statistics.count_pages(cache->formats[made.key_format], 1);
    cache->statistics.count_pages(cache->formats[made.value_format], 1);
    *out = made;
    return LK_OK;
}

lk_status take_entry(lk_cache *cache, uint32_t entry, BlockKind kind, bool is_last_sink,
                     PageEntry *out) {
    const EntryInfo &info = cache->formats.entries[entry];
    const LayerInfo &layer = cache->formats.layers[info.layer];
    if (kind == BlockKind::kSink)
        return take_pages(
            cache,
            sink_need(cache->formats, is_last_sink ? layer.last_sink_key : info.key.recent_format),
            sink_need(cache->formats,
                      is_last_sink ? layer.last_sink_value : info.value.recent_format),
            out);
    if (kind == BlockKind::kRecent)
        return take_pages(cache, need_of(info.key, false), need_of(info.value, false), out);
    const lk_chunk_class chunk_class = chunk_class_of(kind);
    return take_pages(cache, packed_need(cache->formats, info, false, chunk_class),
                      packed_need(cache->formats, info, true, chunk_class), out);
}

void give_entry(lk_cache *cache, const PageEntry &entry) {
    if (entry.is_absent)
        return;
    cache->slots.give(entry.key_payload);
    cache->slots.give(entry.key_metadata);
    cache->slots.give(entry.value_payload);
    cache->slots.give(entry.value_metadata);
    cache->statistics.count_pages(cache->formats[entry.key_format], -1);
    cache->statistics.count_pages(cache->formats[entry.value_format], -1);
}

}  // namespace lk
