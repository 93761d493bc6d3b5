// SPDX-License-Identifier: Apache-2.0
#include "format/snapshot_frame.h"

#include "format/bulk.h"
#include "format/layout_record.h"
#include "format/pagefile.h"

namespace lk {

namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structs are copied as they lie");

using ull = unsigned long long;

constexpr char kSnapshotMagic[4] = {'L', 'K', 'S', 'N'};
constexpr uint32_t kHasPermutation = 1;
constexpr uint64_t kPagesAlign = 16;
constexpr uint32_t kAfterFormats = 4;  // lk_chunk_class ends at 3,
constexpr uint32_t kLastDeferral = 2;  // lk_defer at 2

struct KindName {
    char bytes[5];
};
constexpr KindName kKinds[] = {{"MODL"}, {"PLAN"}, {"CLSS"}, {"SEQN"},
                               {"ROWS"}, {"STSZ"}, {"VERS"}, {"STAT"}};

const char *kind_name(ChunkKind kind) { return kKinds[static_cast<int>(kind)].bytes; }

template <class T>
T load(const uint8_t *bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

uint64_t hash_header(SnapshotHeader header) {
    header.header_hash = 0;
    return hash_bytes(&header, sizeof header);
}

bool is_zero(const uint8_t *bytes, size_t n) {
    uint8_t any = 0;
    for (size_t i = 0; i < n; ++i)
        any |= bytes[i];
    return !any;
}

lk_status check_counts(const SnapshotHeader &h, uint64_t known_bytes) {
    if (!is_zero(h.reserved, sizeof h.reserved) || h.padding)
        return fail(LK_E_CORRUPT, "snapshot: reserved bytes of the header are set");
    const bool has_states = h.version > kStatelessVersion;
    if (has_states != (h.n_states != 0) || h.n_states > kMaxStates || (h.n_versions && !has_states))
        return fail(LK_E_CORRUPT, "snapshot: version %u with %llu versions of %u states", h.version,
                    ull{h.n_versions}, h.n_states);
    if (known_bytes && h.total_bytes != known_bytes)
        return fail(LK_E_CORRUPT, "snapshot: %llu bytes, its header says %llu", ull{known_bytes},
                    ull{h.total_bytes});
    if (h.n_sequences > kMaxSnapshotSequences || h.n_formats > kMaxFileFormats ||
        h.fingerprint_bytes > kMaxFingerprintBytes)
        return fail(LK_E_CORRUPT,
                    "snapshot: %u sequences, %u classes and a fingerprint of %u bytes are more "
                    "than %u, %u and %u",
                    h.n_sequences, h.n_formats, h.fingerprint_bytes, kMaxSnapshotSequences,
                    kMaxFileFormats, kMaxFingerprintBytes);
    return LK_OK;
}

lk_status check_format(const FormatRecord &r, uint32_t index) {
    if (!names_layout(r.layout) || r.flags & ~kHasPermutation || r.reserved ||
        (r.flags && r.layout.permutes))
        return fail(LK_E_CORRUPT, "snapshot: class %u has a field out of range", index);
    return LK_OK;
}

// One page at *at, which is moved after it.
lk_status check_half(const Array<FileFormat> &classes, uint16_t index, Side side,
                     const BlockRecord &record, const uint8_t **at, const uint8_t *end) {
    if (index == kAbsentPage)
        return LK_OK;
    if (index >= classes.size())
        return fail(LK_E_CORRUPT, "snapshot: row %llu has a half of class %u of %zu",
                    ull{record.row}, index, classes.size());
    const PageLayout &layout = classes[index].layout;
    if (layout.side != side || record.n_tokens > layout.page_tokens)
        return fail(LK_E_CORRUPT, "snapshot: class %u does not fit row %llu of %u tokens", index,
                    ull{record.row}, record.n_tokens);
    const uint64_t payload = payload_bytes(layout);
    const uint64_t metadata = metadata_bytes(layout);
    if (static_cast<uint64_t>(end - *at) < payload + metadata)
        return fail(LK_E_CORRUPT, "snapshot: block %llu is shorter than its pages",
                    ull{record.row});
    const uint8_t *parameters = metadata ? *at + payload : nullptr;
    const lk_status status = check_page_contents({layout, *at, parameters, nullptr});
    *at += payload + metadata;
    return status;
}

uint64_t block_record_bytes(uint16_t version) {
    return version < 2 ? kBlockRecordBytes1 : sizeof(BlockRecord);
}

bool is_order(const SequencePart &part, Array<uint8_t> *seen) {
    for (uint32_t p = 0; p < part.record.n_chunks; ++p) {
        const uint32_t chunk = part.chunk_at(p);
        if (chunk >= part.record.n_chunks || (*seen)[chunk]++)
            return false;
    }
    return true;
}

// The chunks of a sequence.
lk_status check_chunks(uint16_t version, const SequencePart &part, const Allocator &allocator) {
    const SequenceRecord &record = part.record;
    const uint32_t known = version < 2 ? kHasFolded : kHasFolded | kHasChunks;
    if (record.flags & ~known || (record.n_chunks && !(record.flags & kHasChunks)) ||
        record.deferral > (version < 2 ? 0 : kLastDeferral))
        return fail(LK_E_CORRUPT,
                    "snapshot: sequence %llu has flags %#x, deferral %u and %u chunks",
                    ull{record.id}, record.flags, record.deferral, record.n_chunks);
    for (uint32_t c = 0; c < record.n_chunks; ++c)
        if (!part.assigned[c] || part.assigned[c] >= kAfterFormats)
            return fail(LK_E_CORRUPT, "snapshot: chunk %u of sequence %llu has class %u", c,
                        ull{record.id}, part.assigned[c]);
    Array<uint8_t> seen(allocator);
    if (!seen.resize(record.n_chunks))
        return fail(LK_E_NOMEM, "no memory for a list of %u chunks", record.n_chunks);
    return is_order(part, &seen)
               ? LK_OK
               : fail(LK_E_CORRUPT,
                      "snapshot: the order of sequence %llu does not hold each of "
                      "its %u chunks once",
                      ull{record.id}, record.n_chunks);
}

}  // namespace

void seal_header(SnapshotHeader *header) {
    std::memcpy(header->magic, kSnapshotMagic, sizeof kSnapshotMagic);
    header->version = header->n_states ? kSnapshotVersion : kStatelessVersion;
    header->header_bytes = sizeof *header;
    header->header_hash = hash_header(*header);
}

lk_status read_header(const uint8_t *bytes, uint64_t known_bytes, SnapshotHeader *out) {
    const auto header = load<SnapshotHeader>(bytes);
    if (std::memcmp(header.magic, kSnapshotMagic, sizeof kSnapshotMagic) != 0)
        return fail(LK_E_CORRUPT, "snapshot: does not start with LKSN");
    if (header.version < kFirstSnapshotVersion || header.version > kSnapshotVersion)
        return fail(LK_E_MISMATCH, "snapshot: version %u, this library reads %u to %u",
                    header.version, kFirstSnapshotVersion, kSnapshotVersion);
    if (header.header_bytes != sizeof header)
        return fail(LK_E_CORRUPT, "snapshot: header of %u bytes, version %u has %zu",
                    header.header_bytes, header.version, sizeof header);
    if (header.header_hash != hash_header(header))
        return fail(LK_E_CORRUPT, "snapshot: the header does not fit its hash");
    const lk_status status = check_counts(header, known_bytes);
    if (!status)
        *out = header;
    return status;
}

void write_chunk_header(ChunkKind kind, uint64_t number, const uint8_t *body, uint64_t body_bytes,
                        uint8_t *bytes) {
    ChunkHeader header{};
    std::memcpy(header.kind, kind_name(kind), sizeof header.kind);
    header.number = number;
    header.body_bytes = body_bytes;
    header.body_hash = hash_bytes(body, body_bytes);
    std::memcpy(bytes, &header, sizeof header);
}

bool is_chunk_of(ChunkKind kind, const uint8_t *bytes) {
    return !std::memcmp(bytes, kind_name(kind), sizeof ChunkHeader::kind);
}

lk_status read_chunk_header(const uint8_t *bytes, ChunkKind kind, uint64_t number,
                            uint64_t left_bytes, ChunkHeader *out) {
    const auto header = load<ChunkHeader>(bytes);
    if (!is_chunk_of(kind, bytes))
        return fail(LK_E_CORRUPT, "snapshot: chunk %llu is not the chunk %s that must come here",
                    ull{number}, kind_name(kind));
    if (header.number != number || header.reserved)
        return fail(LK_E_CORRUPT, "snapshot: chunk %llu has number %llu and reserved bytes %#x",
                    ull{number}, ull{header.number}, header.reserved);
    if (header.body_bytes > left_bytes)
        return fail(LK_E_CORRUPT, "snapshot: chunk %llu has %llu bytes, %llu are left", ull{number},
                    ull{header.body_bytes}, ull{left_bytes});
    *out = header;
    return LK_OK;
}

lk_status check_chunk_body(const ChunkHeader &header, const uint8_t *body) {
    if (header.body_hash != hash_bytes(body, header.body_bytes))
        return fail(LK_E_CORRUPT, "snapshot: chunk %llu does not fit its hash", ull{header.number});
    return LK_OK;
}

uint64_t format_record_bytes(const FileFormat &from) {
    return sizeof(FormatRecord) + (from.permutation ? permutation_bytes(from.layout.head_dim) : 0);
}

void write_format(const FileFormat &from, uint8_t *bytes) {
    const PageLayout &layout = from.layout;
    FormatRecord record{};
    record.layout = record_of(layout);
    record.flags = from.permutation ? kHasPermutation : 0;
    std::memcpy(bytes, &record, sizeof record);
    if (from.permutation)
        std::memcpy(bytes + sizeof record, from.permutation, permutation_bytes(layout.head_dim));
}

lk_status read_formats(const uint8_t *body, uint64_t n_bytes, uint32_t n_formats,
                       Array<FileFormat> *out) {
    out->clear();
    const uint8_t *at = body;
    const uint8_t *end = body + n_bytes;
    for (uint32_t i = 0; i < n_formats; ++i) {
        if (static_cast<uint64_t>(end - at) < sizeof(FormatRecord))
            return fail(LK_E_CORRUPT, "snapshot: the table of classes ends at class %u", i);
        const auto record = load<FormatRecord>(at);
        lk_status status = check_format(record, i);
        if (status)
            return status;
        at += sizeof record;
        FileFormat made = {layout_of(record.layout), nullptr};
        if (const char *error = layout_error(made.layout))
            return fail(LK_E_CORRUPT, "snapshot: class %u: %s", i, error);
        if (record.flags) {
            if (static_cast<uint64_t>(end - at) < permutation_bytes(made.layout.head_dim) ||
                !is_permutation(at, made.layout.head_dim))
                return fail(LK_E_CORRUPT,
                            "snapshot: the permutation of class %u does not hold every channel "
                            "once",
                            i);
            made.permutation = at;
            at += permutation_bytes(made.layout.head_dim);
        }
        if (!out->push(made))
            return fail(LK_E_NOMEM, "no memory for a snapshot's %u classes", n_formats);
    }
    return at == end ? LK_OK
                     : fail(LK_E_CORRUPT, "snapshot: %llu bytes after the table of formats",
                            static_cast<ull>(end - at));
}

BlockRun SequencePart::run(uint64_t i) const { return load<BlockRun>(runs + i * sizeof(BlockRun)); }

SumRecord SequencePart::sum(uint64_t i, const uint8_t **values) const {
    const uint64_t stride = sizeof(SumRecord) + uint64_t{record.n_channels} * sizeof(uint64_t);
    *values = sums + i * stride + sizeof(SumRecord);
    return load<SumRecord>(sums + i * stride);
}

uint32_t SequencePart::chunk_at(uint64_t place) const {
    return load<uint32_t>(order + place * sizeof(uint32_t));
}

// 32-bit counts: nothing overflows.
uint64_t sequence_bytes(const SequenceRecord &record) {
    const uint64_t channels = uint64_t{record.n_channels} * sizeof(uint64_t);
    return sizeof record + uint64_t{record.n_runs} * sizeof(BlockRun) + channels +
           uint64_t{record.n_sums} * sizeof(SumRecord) + record.n_sums * channels +
           uint64_t{record.n_chunks} * (sizeof(uint32_t) + 1);
}

lk_status read_sequence(uint16_t version, const uint8_t *body, uint64_t n_bytes,
                        const Allocator &allocator, SequencePart *out) {
    constexpr uint32_t kMost = 1u << 28;  // of channels and of sums: their product fits 64 bits
    if (n_bytes < sizeof(SequenceRecord))
        return fail(LK_E_CORRUPT, "snapshot: a sequence of %llu bytes", ull{n_bytes});
    const auto record = load<SequenceRecord>(body);
    if (record.n_channels > kMost || record.n_sums > kMost ||
        (record.n_sums && !record.n_channels) || n_bytes != sequence_bytes(record))
        return fail(LK_E_CORRUPT,
                    "snapshot: a sequence of %llu bytes with %u runs, %u sums of %u channels, "
                    "%u chunks",
                    ull{n_bytes}, record.n_runs, record.n_sums, record.n_channels, record.n_chunks);
    out->record = record;
    out->runs = body + sizeof record;
    out->base = out->runs + uint64_t{record.n_runs} * sizeof(BlockRun);
    out->sums = out->base + uint64_t{record.n_channels} * sizeof(uint64_t);
    out->assigned = body + n_bytes - record.n_chunks;
    out->order = out->assigned - uint64_t{record.n_chunks} * sizeof(uint32_t);
    return check_chunks(version, *out, allocator);
}

lk_status read_state_sizes(const uint8_t *body, uint64_t n_bytes, uint32_t n_states,
                           Array<uint64_t> *out, uint64_t *total_bytes) {
    if (n_bytes != uint64_t{n_states} * sizeof(uint64_t))
        return fail(LK_E_CORRUPT, "snapshot: sizes of %u states in %llu bytes", n_states,
                    ull{n_bytes});
    if (!out->resize(n_states))
        return fail(LK_E_NOMEM, "no memory for the sizes of %u states", n_states);
    std::memcpy(out->data(), body, n_bytes);
    *total_bytes = 0;
    for (uint32_t i = 0; i < n_states; ++i) {
        const uint64_t bytes = (*out)[i];
        if (!bytes || bytes % 16 || bytes > kMaxStateBytes - *total_bytes)
            return fail(LK_E_CORRUPT, "snapshot: state %u of a sequence has %llu bytes", i,
                        ull{bytes});
        *total_bytes += bytes;
    }
    return LK_OK;
}

lk_status read_versions(const uint8_t *body, uint64_t n_bytes, uint64_t n_tokens,
                        Array<VersionRecord> *out) {
    const uint64_t n = n_bytes / sizeof(VersionRecord);
    if (n_bytes % sizeof(VersionRecord) || n > kMaxVersions || (n != 0) != (n_tokens != 0))
        return fail(LK_E_CORRUPT, "snapshot: versions of states of %llu tokens in %llu bytes",
                    ull{n_tokens}, ull{n_bytes});
    if (!out->resize(n))
        return fail(LK_E_NOMEM, "no memory for a list of %llu versions", ull{n});
    if (n)
        std::memcpy(out->data(), body, n_bytes);
    uint64_t before = 0;
    for (const VersionRecord &version : *out) {
        if (version.n_tokens <= before || version.n_tokens > n_tokens)
            return fail(LK_E_CORRUPT, "snapshot: a version of states after %llu of %llu tokens",
                        ull{version.n_tokens}, ull{n_tokens});
        before = version.n_tokens;
    }
    return before == n_tokens
               ? LK_OK
               : fail(LK_E_CORRUPT, "snapshot: %llu tokens have states up to token %llu",
                      ull{n_tokens}, ull{before});
}

EntryRecord BlockPart::entry(uint32_t i) const {
    return load<EntryRecord>(entries + uint64_t{i} * sizeof(EntryRecord));
}

uint64_t block_head_bytes(uint32_t n_entries, uint16_t version) {
    return round_up(block_record_bytes(version) + uint64_t{n_entries} * sizeof(EntryRecord),
                    kPagesAlign);
}

lk_status read_block_part(uint16_t version, const uint8_t *body, uint64_t n_bytes,
                          const Array<FileFormat> &classes, BlockPart *out) {
    const uint64_t record_bytes = block_record_bytes(version);
    if (n_bytes < record_bytes || n_bytes > kMaxPartBytes)
        return fail(LK_E_CORRUPT, "snapshot: a part of a row of %llu bytes", ull{n_bytes});
    BlockPart part{};
    std::memcpy(&part.record, body, record_bytes);
    if (part.record.chunk_class >= kAfterFormats || part.record.reserved)
        return fail(LK_E_CORRUPT, "snapshot: row %llu has chunk class %u and reserved bytes %#x",
                    ull{part.record.row}, part.record.chunk_class, part.record.reserved);
    const uint64_t head = block_head_bytes(part.record.n_entries, version);
    if (!part.record.n_entries || head > n_bytes)
        return fail(LK_E_CORRUPT, "snapshot: row %llu has a part of %u entries in %llu bytes",
                    ull{part.record.row}, part.record.n_entries, ull{n_bytes});
    part.entries = body + record_bytes;
    part.pages = body + head;
    const uint8_t *padding = part.entries + part.record.n_entries * sizeof(EntryRecord);
    if (!is_zero(padding, static_cast<size_t>(part.pages - padding)))
        return fail(LK_E_CORRUPT, "snapshot: padding of row %llu is set", ull{part.record.row});
    const uint8_t *at = part.pages;
    const uint8_t *end = body + n_bytes;
    for (uint32_t i = 0; i < part.record.n_entries; ++i) {
        const EntryRecord entry = part.entry(i);
        lk_status status = check_half(classes, entry.key_format, Side::kKey, part.record, &at, end);
        if (!status)
            status = check_half(classes, entry.value_format, Side::kValue, part.record, &at, end);
        if (status)
            return status;
    }
    if (at != end)
        return fail(LK_E_CORRUPT, "snapshot: %llu bytes after the pages of block %llu",
                    static_cast<ull>(end - at), ull{part.record.row});
    *out = part;
    return LK_OK;
}

}  // namespace lk
