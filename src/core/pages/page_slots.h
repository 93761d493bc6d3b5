// Which slots the pages of an entry take, and taking and giving them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_PAGES_PAGE_SLOTS_H
#define LK_CORE_PAGES_PAGE_SLOTS_H

#include "core/pages/formats.h"
#include "core/sequence/block_table.h"

namespace lk {

// What a page of some format takes.
struct PageNeed {
    uint16_t page_format;
    uint64_t payload;  // slot sizes, 0 = none
    uint64_t metadata;
};
// As the plan has it: packed where the page packs and is_packed, else at 16 bits.
PageNeed need_of(const PageInfo &page, bool is_packed);
// Of a page that may be at 16 bits too and is of this packed format.
PageNeed packed_need_of(const Formats &formats, const PageInfo &page, uint16_t packed);
// Of a packed block: of chunks, or with LK_CHUNK_NONE as the plan has it.
PageNeed packed_need(const Formats &formats, const EntryInfo &info, bool is_value,
                     lk_chunk_class chunk_class);
PageNeed sink_need(const Formats &formats, uint16_t page_format);

// Slots for both pages of an entry. On failure nothing is taken.
lk_status take_pages(lk_cache *cache, const PageNeed &key, const PageNeed &value, PageEntry *out);
// The slots of one entry in a block of a kind. On failure nothing is taken.
lk_status take_entry(lk_cache *cache, uint32_t entry, BlockKind kind, bool is_last_sink,
                     PageEntry *out);
// Give back the slots of an entry.
void give_entry(lk_cache *cache, const PageEntry &entry);

}  // namespace lk

#endif
