// SPDX-License-Identifier: Apache-2.0
#include "plan/size_model.h"

namespace lk {

namespace {

Packing packing_of(const PageSlots &key, const PageSlots &value) {
    Packing out = {};
    out.count = 1;
    out.taken[0] = size_index(key.packed_payload);
    out.taken[1] = key.recent_metadata ? kNoSlot : size_index(key.packed_metadata);
    out.taken[2] = size_index(value.packed_payload);
    out.taken[3] = value.recent_metadata ? kNoSlot : size_index(value.packed_metadata);
    out.given[0] = key.packed_payload ? size_index(key.recent_payload) : kNoSlot;
    out.given[1] = value.packed_payload ? size_index(value.recent_payload) : kNoSlot;
    return out;
}

void add_page(const PageSlots &slots, const PageLayout &layout, uint64_t times, SizeModel *model) {
    model->recent_block.used[size_index(slots.recent_payload)] += times;
    model->recent_block.used[size_index(slots.recent_metadata)] += times;
    const bool raw = !slots.packed_payload;
    model->packed_block.used[size_index(raw ? slots.recent_payload : slots.packed_payload)] +=
        times;
    model->packed_block.used[size_index(raw ? slots.recent_metadata : slots.packed_metadata)] +=
        times;
    model->page.values += times * layout.head_dim * layout.page_tokens;
    (raw ? model->page.raw : model->page.payload) += times * payload_bytes(layout);
    model->page.metadata += times * metadata_bytes(layout);
}

// One run of equal heads of a layer.
bool add_run(uint32_t layer, uint32_t head, uint32_t count, SizeModel *model) {
    const Plan &plan = *model->plan;
    KeyFormat key;
    ValueFormat value;
    const uint32_t cap = model->cap(layer);
    resolve_key_at(plan, layer, head, cap, &key);
    resolve_value_at(plan, layer, head, cap, &value);
    const PageSlots k = key_slots_at(plan, layer, head, cap);
    const PageSlots v = value_slots_at(plan, layer, head, cap);
    add_page(k, key.layout, count, model);
    add_page(v, value.layout, count, model);
    Packing packing = packing_of(k, v);
    packing.count = count;
    return model->packings.push(packing);
}

void add_sinks(uint32_t layer, SizeModel *model) {
    const Plan &plan = *model->plan;
    const uint64_t blocks = sink_blocks(plan);
    if (!blocks)
        return;
    const uint64_t n_heads = plan.layers[layer].geometry.n_kv_heads;
    const auto add = [&](uint64_t block, SlotCounts *slots) {
        const SinkSlots own = sink_slots(plan, layer, block);
        slots->used[size_index(own.key)] += n_heads;
        slots->used[size_index(own.value)] += n_heads;
    };
    add(0, &model->sink_block);
    add(blocks - 1, &model->last_sink_block);
}

// What a layer has added to the blocks since before_layer.
bool add_window(uint32_t layer, const Sums &page, SizeModel *model) {
    const lk_layer &geometry = model->plan->layers[layer].geometry;
    if (model->keeps_windowed || !frees_hidden_pages(*model->plan, geometry))
        return true;
    size_t w = 0;
    while (w < model->windows.size() &&
           model->windows[w].layer->window_tokens != geometry.window_tokens)
        ++w;
    if (w == model->windows.size()) {
        if (!model->windows.resize(w + 1))
            return false;
        model->windows[w].layer = &geometry;
    }
    Window &window = model->windows[w];
    window.packed_block.add(model->packed_block, 1);
    window.packed_block.remove(model->before_layer, 1);
    window.page.payload += model->page.payload - page.payload;
    window.page.metadata += model->page.metadata - page.metadata;
    window.page.raw += model->page.raw - page.raw;
    return true;
}

}  // namespace

bool build_size_model(const Plan &plan, SizeModel *model) {
    for (SlotCounts *slots :
         {&model->recent_block, &model->packed_block, &model->sink_block, &model->last_sink_block})
        slots->clear();
    model->packings.clear();
    model->windows.clear();
    model->page = {};
    for (uint32_t l = 0; l < plan.layers.size(); ++l) {
        if (!plan.owns_kv(l))
            continue;
        const uint32_t n_heads = plan.layers[l].geometry.n_kv_heads;
        model->before_layer = model->packed_block;
        const Sums page = model->page;
        for (uint32_t h = 0, end; h < n_heads; h = end) {
            end = plan.run(l, h).end;
            if (!add_run(l, h, end - h, model))
                return false;
        }
        add_sinks(l, model);
        if (!add_window(l, page, model))
            return false;
    }
    for (SlotCounts *slots :
         {&model->recent_block, &model->packed_block, &model->sink_block, &model->last_sink_block})
        slots->used[kNoSlot] = 0;
    return true;
}

}  // namespace lk
