// What a snapshot holds, without a cache.
//
// SPDX-License-Identifier: Apache-2.0
#include "base/float_mode.h"
#include "core/sequence/block_table.h"
#include "core/snapshot/file.h"
#include "core/snapshot/reader.h"
#include "core/snapshot/snapshot.h"
#include "core/snapshot/stream.h"

// Its memory is the C library's: it belongs to no context.
struct lk_snapshot {
    lk_snapshot_info info{};
    lk_plan plan;
    lk::Array<lk_snapshot_sequence> sequences;
    lk::Array<lk_snapshot_format> classes;
};

namespace lk {

namespace {

constexpr size_t kOldestInfo = offsetof(lk_snapshot_info, n_state_versions);

class Inspection {
  public:
    Inspection(SnapshotSource *source, const lk_snapshot_desc &desc, lk_snapshot *out)
        : desc_(desc), reader_(default_allocator(), source), out_(*out) {}

    lk_status run();

  private:
    lk_status add_formats();
    lk_status add_sequence();
    lk_status count_versions();
    lk_status add_blocks(lk_snapshot_sequence *sequence);
    lk_status count_block();
    lk_status report() const;
    void count(uint16_t file_format);
    void fill_info();

    const lk_snapshot_desc &desc_;
    SnapshotReader reader_;
    lk_snapshot &out_;
};

lk_status Inspection::run() {
    LK_TRY(reader_.open());
    LK_TRY(parse_plan_text(reader_.plan_text(), &out_.plan.model));
    LK_TRY(check_header_plan(reader_.header(), out_.plan.model));
    LK_TRY(add_formats());
    for (uint32_t i = 0; i < reader_.header().n_sequences; ++i)
        LK_TRY(add_sequence());
    LK_TRY(reader_.finish());
    fill_info();
    return LK_OK;
}

lk_status Inspection::add_formats() {
    for (const FileFormat &file : reader_.formats()) {
        lk_snapshot_format made{};
        made.size = sizeof made;
        made.is_value = file.layout.side == Side::kValue;
        made.head_dim = file.layout.head_dim;
        made.page_tokens = file.layout.page_tokens;
        static_assert(sizeof made.channels == kPlaneCount * sizeof(uint32_t), "one count a plane");
        for (uint32_t p = 0; p < kPlaneCount; ++p)
            made.channels[p] = file.layout.strips[p] * LK_STRIP_CHANNELS;
        if (!out_.classes.push(made))
            return fail(LK_E_NOMEM, "no memory for %zu classes", reader_.formats().size());
    }
    return LK_OK;
}

void Inspection::count(uint16_t file_format) {
    if (file_format == kAbsentPage)
        return;
    const PageLayout &layout = reader_.formats()[file_format].layout;
    lk_snapshot_format &own = out_.classes[file_format];
    ++own.n_pages;
    own.payload_bytes += payload_bytes(layout);
    own.metadata_bytes += metadata_bytes(layout);
}

lk_status Inspection::report() const {
    return report_progress(desc_, reader_.done_bytes(), reader_.header().total_bytes);
}

// All parts of a new block.
lk_status Inspection::count_block() {
    for (uint32_t n_entries = 0; n_entries < reader_.header().n_entries;) {
        BlockPart part;
        LK_TRY(reader_.next_part(&part));
        for (uint32_t i = 0; i < part.record.n_entries; ++i) {
            count(part.entry(i).key_format);
            count(part.entry(i).value_format);
        }
        n_entries = part.record.first_entry + part.record.n_entries;
        LK_TRY(report());
    }
    return LK_OK;
}

lk_status Inspection::count_versions() {
    for (size_t i = 0; i < reader_.n_versions(); ++i) {
        SnapshotVersion version;
        LK_TRY(reader_.next_version(&version));
        SnapshotStates part{};
        while (version.is_new && part.first_byte + part.n_bytes < reader_.version_bytes()) {
            LK_TRY(reader_.next_states(&part));
            LK_TRY(report());
        }
    }
    return LK_OK;
}

lk_status Inspection::add_blocks(lk_snapshot_sequence *sequence) {
    SnapshotBlocks blocks;
    LK_TRY(reader_.next_blocks(&blocks));
    sequence->n_blocks += blocks.n;
    sequence->n_shared_blocks += blocks.is_new ? 0 : blocks.n;
    return blocks.is_new ? count_block() : LK_OK;
}

lk_status Inspection::add_sequence() {
    const SequencePart *part = nullptr;
    LK_TRY(reader_.next_sequence(out_.plan.model, &part));
    lk_snapshot_sequence made{};
    made.size = sizeof made;
    made.id = part->record.id;
    made.n_tokens = part->record.n_tokens;
    LK_TRY(count_versions());
    const uint64_t n_blocks = block_count(out_.plan.model, made.n_tokens);
    while (made.n_blocks < n_blocks)
        LK_TRY(add_blocks(&made));
    if (!out_.sequences.push(made))
        return fail(LK_E_NOMEM, "no memory for %zu sequences", out_.sequences.size() + 1);
    return report();
}

void Inspection::fill_info() {
    const SnapshotHeader &header = reader_.header();
    lk_snapshot_info &info = out_.info;
    info.size = sizeof info;
    info.version = header.version;
    info.n_sequences = header.n_sequences;
    info.n_formats = header.n_formats;
    info.total_bytes = header.total_bytes;
    info.n_tokens = header.n_tokens;
    info.n_blocks = header.n_blocks;
    info.geometry_hash = header.geometry_hash;
    info.plan_hash = header.plan_hash;
    info.fingerprint_bytes = header.fingerprint_bytes;
    info.n_states = header.n_states;
    info.n_state_versions = header.n_versions;
    info.version_bytes = reader_.version_bytes();
    if (header.fingerprint_bytes)
        std::memcpy(info.fingerprint, reader_.fingerprint().data(), header.fingerprint_bytes);
}

lk_status open_snapshot(SnapshotSource *source, const lk_snapshot_desc &desc, lk_snapshot **out) {
    lk_snapshot *made = create<lk_snapshot>(default_allocator());
    if (!made)
        return fail(LK_E_NOMEM, "no memory for a snapshot's description");
    const lk_status status = Inspection(source, desc, made).run();
    if (status)
        destroy(default_allocator(), made);
    else
        *out = made;
    return status;
}

lk_status check_handle(const lk_snapshot *snapshot) {
    return snapshot ? LK_OK : fail(LK_E_ARGUMENT, "snapshot is NULL");
}

template <class T>
lk_status get_item(const lk_snapshot *snapshot, const Array<T> lk_snapshot::*list, uint32_t index,
                   T *out, const char *name) {
    LK_TRY(check_handle(snapshot));
    const Array<T> &items = snapshot->*list;
    if (index >= items.size())
        return fail(LK_E_NOT_FOUND, "index is %u, the snapshot has %zu of %s", index, items.size(),
                    name);
    return export_struct(out, &items[index], sizeof(T), sizeof(T), name);
}

}  // namespace

}  // namespace lk

extern "C" {

lk_status lk_snapshot_open(const lk_snapshot_desc *desc, lk_read_fn read, void *user,
                           lk_snapshot **out) {
    const lk::FloatMode mode;
    if (!out)
        return lk::fail(LK_E_ARGUMENT, "out is NULL");
    *out = nullptr;
    if (!read)
        return lk::fail(LK_E_ARGUMENT, "read is NULL");
    lk_snapshot_desc own;
    LK_TRY(lk::import_snapshot_desc(desc, &own));
    lk::CallbackSource source(lk::default_allocator(), read, user, 0);
    return lk::open_snapshot(&source, own, out);
}

lk_status lk_snapshot_open_memory(const void *data, uint64_t n_bytes, lk_snapshot **out) {
    const lk::FloatMode mode;
    if (!out)
        return lk::fail(LK_E_ARGUMENT, "out is NULL");
    *out = nullptr;
    if (!data)
        return lk::fail(LK_E_ARGUMENT, "data is NULL");
    lk::MemorySource source(data, n_bytes);
    return lk::open_snapshot(&source, {}, out);
}

lk_status lk_snapshot_open_file(const char *path, lk_snapshot **out) {
    const lk::FloatMode mode;
    if (!out)
        return lk::fail(LK_E_ARGUMENT, "out is NULL");
    *out = nullptr;
    return lk::with_snapshot_file(lk::default_allocator(), path, [&](lk::SnapshotSource *source) {
        return lk::open_snapshot(source, {}, out);
    });
}

void lk_snapshot_close(lk_snapshot **snapshot) {
    if (!snapshot || !*snapshot)
        return;
    lk::destroy(lk::default_allocator(), *snapshot);
    *snapshot = nullptr;
}

lk_status lk_snapshot_info_init(lk_snapshot_info *info, size_t struct_bytes) {
    return lk::init_struct(info, struct_bytes, lk::kOldestInfo, "snapshot_info");
}

lk_status lk_snapshot_sequence_init(lk_snapshot_sequence *sequence, size_t struct_bytes) {
    return lk::init_struct(sequence, struct_bytes, sizeof *sequence, "snapshot_sequence");
}

lk_status lk_snapshot_format_init(lk_snapshot_format *kind, size_t struct_bytes) {
    return lk::init_struct(kind, struct_bytes, sizeof *kind, "snapshot_class");
}

lk_status lk_snapshot_get_info(const lk_snapshot *snapshot, lk_snapshot_info *info) {
    LK_TRY(lk::check_handle(snapshot));
    return lk::export_struct(info, &snapshot->info, sizeof *info, lk::kOldestInfo, "snapshot_info");
}

const lk_plan *lk_snapshot_plan(const lk_snapshot *snapshot) {
    return snapshot ? &snapshot->plan : nullptr;
}

lk_status lk_snapshot_get_sequence(const lk_snapshot *snapshot, uint32_t index,
                                   lk_snapshot_sequence *sequence) {
    return lk::get_item(snapshot, &lk_snapshot::sequences, index, sequence, "sequences");
}

lk_status lk_snapshot_get_format(const lk_snapshot *snapshot, uint32_t index,
                                 lk_snapshot_format *kind) {
    return lk::get_item(snapshot, &lk_snapshot::classes, index, kind, "classes");
}

}  // extern "C"
