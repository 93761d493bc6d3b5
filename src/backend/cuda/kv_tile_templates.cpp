// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/kv_tile_templates.h"

#include "base/status.h"

namespace lk {
namespace cuda {

namespace {

KvTileTemplate page_template(const CacheLayout &layout, const gpu::CacheTables &constants,
                             const EntryFormats &formats) {
    KvTileTemplate page{};
    fill_side(&page.kv_tile, gpu::format_info(layout.formats[formats.packed_key], 0), 0);
    fill_side(&page.kv_tile, gpu::format_info(layout.formats[formats.packed_value], 0), 1);
    if (formats.ordered_key != kNoFormat)
        page.permutation = constants.permutation(layout, formats.ordered_key);
    page.key_format = formats.packed_key;
    page.value_format = formats.packed_value;
    return page;
}

}  // namespace

lk_status KvTileTemplates::open(const CacheLayout &layout, const gpu::CacheTables &constants,
                                const Allocator &allocator, gpu::TableMemory *memory) {
    Array<KvTileTemplate> pages(allocator);
    for (uint32_t i = 0; i < layout.n_entries; ++i)
        if (!pages.push(page_template(layout, constants, layout.entry_formats[i])))
            return fail(LK_E_NOMEM, "no memory for the page formats of %u heads", layout.n_entries);
    const uint64_t bytes = pages.size() * sizeof(KvTileTemplate);
    const lk_status status = table_.open(memory, bytes, "the page formats of a cache");
    return status ? status : memory->put(table_.address(), pages.data(), bytes);
}

}  // namespace cuda
}  // namespace lk
