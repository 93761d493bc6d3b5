// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/kv_tile_templates.h"

#include "base/status.h"

namespace lk {
namespace cuda {

namespace {

KvTileTemplate page_template(const CacheLayout &layout, const device::CacheTables &constants,
                             const EntryFormats &classes) {
    KvTileTemplate page{};
    fill_side(&page.kv_tile, device::class_info(layout.formats[classes.packed_key], 0), 0);
    fill_side(&page.kv_tile, device::class_info(layout.formats[classes.packed_value], 0), 1);
    if (classes.ordered_key != kNoFormat)
        page.permutation = constants.permutation(layout, classes.ordered_key);
    page.key_format = classes.packed_key;
    page.value_format = classes.packed_value;
    return page;
}

}  // namespace

lk_status KvTileTemplates::open(const CacheLayout &layout, const device::CacheTables &constants,
                                const Allocator &allocator, device::TableMemory *memory) {
    Array<KvTileTemplate> pages(allocator);
    for (uint32_t i = 0; i < layout.n_entries; ++i)
        if (!pages.push(page_template(layout, constants, layout.entry_formats[i])))
            return fail(LK_E_NOMEM, "no memory for the page classes of %u heads", layout.n_entries);
    const uint64_t bytes = pages.size() * sizeof(KvTileTemplate);
    const lk_status status = table_.open(memory, bytes, "the page classes of a cache");
    return status ? status : memory->put(table_.address(), pages.data(), bytes);
}

}  // namespace cuda
}  // namespace lk
