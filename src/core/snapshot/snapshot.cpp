// The calls of lowkey/snapshot.h.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/snapshot.h"

#include "core/cache.h"
#include "core/snapshot/callbacks.h"
#include "core/snapshot/file.h"
#include "core/snapshot/load.h"
#include "core/snapshot/save.h"
#include "core/snapshot/stream.h"

namespace lk {

static_assert(kMaxFingerprintBytes == LK_FINGERPRINT_BYTES, "files hold any fingerprint");

namespace {

constexpr size_t kDescBytes = sizeof(lk_snapshot_desc);

lk_status save_memory(lk_cache *cache, const SnapshotChoice &choice, void *buffer,
                      uint64_t capacity_bytes, uint64_t *needed_bytes) {
    if (!buffer && capacity_bytes)
        return fail(LK_E_ARGUMENT, "buffer is NULL with a capacity of %llu", ull{capacity_bytes});
    uint64_t needed = 0;
    LK_TRY(snapshot_bytes(cache, choice, &needed));
    if (needed_bytes)
        *needed_bytes = needed;
    if (!capacity_bytes)
        return LK_OK;
    if (capacity_bytes < needed)
        return fail(LK_E_ARGUMENT, "capacity_bytes is %llu, the snapshot needs %llu",
                    ull{capacity_bytes}, ull{needed});
    MemorySink sink(buffer, needed);
    return save_snapshot(cache, choice, &sink);
}

}  // namespace

lk_status import_snapshot_desc(const lk_snapshot_desc *from, lk_snapshot_desc *out) {
    *out = {};
    if (!from)
        return LK_OK;
    LK_TRY(import_struct(out, kDescBytes, kDescBytes, from, "snapshot_desc"));
    if (out->fingerprint_bytes > kMaxFingerprintBytes)
        return fail(LK_E_ARGUMENT, "snapshot_desc.fingerprint_bytes is %u, at most %u",
                    out->fingerprint_bytes, kMaxFingerprintBytes);
    if (out->fingerprint_bytes && !out->fingerprint)
        return fail(LK_E_ARGUMENT, "snapshot_desc.fingerprint is NULL with %u bytes",
                    out->fingerprint_bytes);
    return LK_OK;
}

lk_status report_progress(const lk_snapshot_desc &desc, uint64_t done_bytes, uint64_t total_bytes) {
    int32_t refusal = 0;
    if (desc.progress)
        LK_TRY(call_progress(desc, done_bytes, total_bytes, &refusal));
    return refusal
               ? fail(LK_E_IO, "the progress callback ended it with %d after %llu of %llu bytes",
                      refusal, ull{done_bytes}, ull{total_bytes})
               : LK_OK;
}

lk_status settle_cache(lk_cache *cache, const char *verb) {
    if (cache->step.is_open)
        return fail(LK_E_BUSY, "a step is open: commit or discard it before the cache is %s", verb);
    if (cache->device->is_capturing())
        return fail(LK_E_STATE, "the cache's queue is being captured: the cache is %s after that",
                    verb);
    return leave_recording(cache);
}

lk_status plan_text(const Plan &plan, const Allocator &allocator, Array<uint8_t> *out) {
    Plan first(allocator);
    if (!copy_plan(plan, &first))
        return fail(LK_E_NOMEM, "no memory for a copy of the plan");
    for (LayerPlan &layer : first.layers)
        layer.rung = layer.n_rungs ? layer.rungs[0] : layer.rung;
    size_t n_bytes = 0;
    lk_status status = plan_to_json(first, nullptr, 0, &n_bytes);
    if (!status && !out->resize(n_bytes))
        status = fail(LK_E_NOMEM, "no memory for the plan's JSON of %zu bytes", n_bytes);
    if (!status)
        status = plan_to_json(first, reinterpret_cast<char *>(out->data()), n_bytes, &n_bytes);
    if (!status)
        out->pop();
    return status;
}

lk_status parse_plan_text(const Array<uint8_t> &text, Plan *out) {
    const lk_status status =
        plan_from_json(reinterpret_cast<const char *>(text.data()), text.size(), out);
    return status ? status : validate_plan(*out);
}

lk_status check_header_plan(const SnapshotHeader &header, const Plan &plan) {
    if (header.geometry_hash != geometry_hash(plan) || header.n_entries != plan.n_entries() ||
        header.page_tokens != plan.page_tokens || header.sink_tokens != plan.sink_tokens)
        return fail(LK_E_CORRUPT,
                    "snapshot: the header has %u entries in blocks of %u tokens after %u sinks, "
                    "the plan %llu, %u and %u",
                    header.n_entries, header.page_tokens, header.sink_tokens, ull{plan.n_entries()},
                    plan.page_tokens, plan.sink_tokens);
    return LK_OK;
}

}  // namespace lk

extern "C" lk_status lk_snapshot_desc_init(lk_snapshot_desc *desc, size_t struct_bytes) {
    return lk::init_struct(desc, struct_bytes, sizeof(lk_snapshot_desc), "snapshot_desc");
}

extern "C" lk_status lk_snapshot_save(lk_cache *cache, uint32_t n_sequences, const lk_sequence *ids,
                                      const lk_snapshot_desc *desc, lk_write_fn write, void *user) {
    return lk::on_cache(cache, [&] {
        if (!write)
            return lk::fail(LK_E_ARGUMENT, "write is NULL");
        lk::CallbackSink sink(cache->context->allocator, write, user);
        return lk::save_snapshot(cache, {n_sequences, ids, desc}, &sink);
    });
}

extern "C" lk_status lk_snapshot_save_memory(lk_cache *cache, uint32_t n_sequences,
                                             const lk_sequence *ids, const lk_snapshot_desc *desc,
                                             void *buffer, uint64_t capacity_bytes,
                                             uint64_t *needed_bytes) {
    return lk::on_cache(cache, [&] {
        return lk::save_memory(cache, {n_sequences, ids, desc}, buffer, capacity_bytes,
                               needed_bytes);
    });
}

extern "C" lk_status lk_snapshot_save_file(lk_cache *cache, uint32_t n_sequences,
                                           const lk_sequence *ids, const lk_snapshot_desc *desc,
                                           const char *path) {
    return lk::on_cache(cache, [&] {
        return path ? lk::save_snapshot_file(cache, {n_sequences, ids, desc}, path)
                    : lk::fail(LK_E_ARGUMENT, "path is NULL");
    });
}

extern "C" lk_status lk_snapshot_load(lk_cache *cache, const lk_snapshot_desc *desc,
                                      lk_read_fn read, void *user, uint32_t capacity,
                                      lk_sequence *ids, uint32_t *n_sequences) {
    return lk::on_cache(cache, [&] {
        if (!read)
            return lk::fail(LK_E_ARGUMENT, "read is NULL");
        lk::CallbackSource source(cache->context->allocator, read, user, 0);
        return lk::load_snapshot(cache, {desc, capacity, ids, n_sequences}, &source);
    });
}

extern "C" lk_status lk_snapshot_load_memory(lk_cache *cache, const lk_snapshot_desc *desc,
                                             const void *data, uint64_t n_bytes, uint32_t capacity,
                                             lk_sequence *ids, uint32_t *n_sequences) {
    return lk::on_cache(cache, [&] {
        if (!data)
            return lk::fail(LK_E_ARGUMENT, "data is NULL");
        lk::MemorySource source(data, n_bytes);
        return lk::load_snapshot(cache, {desc, capacity, ids, n_sequences}, &source);
    });
}

extern "C" lk_status lk_snapshot_load_file(lk_cache *cache, const lk_snapshot_desc *desc,
                                           const char *path, uint32_t capacity, lk_sequence *ids,
                                           uint32_t *n_sequences) {
    return lk::on_cache(cache, [&] {
        return lk::with_snapshot_file(
            cache->context->allocator, path, [&](lk::SnapshotSource *source) {
                return lk::load_snapshot(cache, {desc, capacity, ids, n_sequences}, source);
            });
    });
}
