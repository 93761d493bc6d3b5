// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

namespace lk {

namespace {

lk_status report_bad(lk_cache *cache, uint32_t layer, const ConvertResult &result) {
    cache->step.is_poisoned = true;
    const lk_status status = fail(
        LK_E_DATA, "%s of layer %u, KV head %u, token %u of the step hold an infinity or a NaN",
        result.bad_is_value ? "values" : "keys", layer, result.bad_head, result.bad_token);
    set_fault(cache, status);
    return status;
}

lk_status flush_stores(lk_cache *cache) {
    lk_status status = LK_OK;
    if (!cache->stores.empty())
        status = cache->context->backend->store(cache->stores.data(),
                                                static_cast<uint32_t>(cache->stores.size()));
    cache->stores.clear();
    return status;
}

// The part of a sequence's new tokens that lies in one 16-bit row.
lk_status store_row(lk_cache *cache, uint32_t layer, const StepSequence &part, const Row &row) {
    const LayerInfo &info = cache->layers[layer];
    const uint64_t length = part.sequence->length;
    const uint64_t begin = row.first_token > length ? row.first_token : length;
    const uint64_t row_end = row.first_token + row.capacity_tokens;
    const uint64_t end = row_end < length + part.n_new ? row_end : length + part.n_new;
    StoreArgs item{};
    item.classes = cache->classes.data();
    item.staging = staging_of(cache, layer);
    item.head_dim = info.view.head_dim;
    item.first_staged = part.first_new + static_cast<uint32_t>(begin - length);
    item.token_in_row = static_cast<uint32_t>(begin - row.first_token);
    item.n_tokens = static_cast<uint32_t>(end - begin);
    for (uint32_t head = 0; head < info.view.n_kv_heads; ++head) {
        item.kv_head = head;
        item.entry = &row.entries[info.first_entry + head];
        cache->stores.push(item);
        if (cache->stores.size() < kBatch)
            continue;
        const lk_status status = flush_stores(cache);
        if (status)
            return status;
    }
    return LK_OK;
}

lk_status store_tokens(lk_cache *cache, uint32_t layer) {
    for (const StepSequence &part : cache->step.sequences)
        for (uint64_t r = row_of_token(cache->plan.model, part.sequence->length);
             r < part.sequence->rows.size(); ++r) {
            const Row &row = *part.sequence->row(r);
            const lk_status status = row.is_direct ? LK_OK : store_row(cache, layer, part, row);
            if (status)
                return status;
        }
    return flush_stores(cache);
}

lk_status append(lk_cache *cache, uint32_t layer, const lk_tensor *k, const lk_tensor *v) {
    lk_status status = check_step(cache, layer);
    if (status)
        return status;
    Step &step = cache->step;
    if (step.layers[layer] != kNoKeys)
        return fail(LK_E_STATE, "layer %u has its keys in this step already", layer);
    const LayerView &view = cache->layers[layer].view;
    const TensorShape shape = {step.n_tokens, view.n_kv_heads, view.head_dim};
    const lk_memory memory = memory_of(cache->context->desc.backend);
    ConvertArgs args{};
    TensorRange k_range;
    TensorRange v_range;
    status = import_tensor(k, "k", shape, memory, false, &args.k, &k_range);
    if (!status)
        status = import_tensor(v, "v", shape, memory, false, &args.v, &v_range);
    if (status)
        return status;
    args.n_kv_heads = view.n_kv_heads;
    args.head_dim = view.head_dim;
    args.staging = staging_of(cache, layer);
    step.last_layer = kNoLayer;  // its staged tokens are overwritten from here on
    ConvertResult result{};
    status = cache->context->backend->convert(args, &result);
    if (status)
        return status;
    if (!result.is_finite)
        return report_bad(cache, layer, result);
    status = store_tokens(cache, layer);
    if (!status)
        status = pack_direct_rows(cache, layer);
    if (status)
        return status;
    cache->stats.values_saturated += result.n_saturated;
    step.layers[layer] = kHasKeys;
    step.last_layer = layer;
    step.k = k_range;
    step.v = v_range;
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_append(lk_cache *cache, uint32_t layer, const lk_tensor *k,
                               const lk_tensor *v) {
    if (!cache)
        return lk::fail(LK_E_ARGUMENT, "cache is NULL");
    const lk_status status = lk::append(cache, layer, k, v);
    lk::publish(cache);
    return lk::logged(cache->context, status);
}
