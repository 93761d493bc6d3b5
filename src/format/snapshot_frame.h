// The frame of a snapshot: its header, its chunks, and what their bodies hold. docs/FORMAT.md,
// section 16. Nothing here knows a cache or a plan; every byte that is read is untrusted.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_SNAPSHOT_FRAME_H
#define LK_FORMAT_SNAPSHOT_FRAME_H

#include "base/memory.h"
#include "base/status.h"
#include "format/layout_record.h"

namespace lk {

constexpr uint16_t kSnapshotVersion = 3;       // that is written where there are recurrent states
constexpr uint16_t kStatelessVersion = 2;      // that is written where there are none
constexpr uint16_t kFirstSnapshotVersion = 1;  // that is read
constexpr uint32_t kMaxFingerprintBytes = 256;
constexpr uint64_t kMaxPlanText = 64u << 20;  // as lk_plan_from_json()
constexpr uint64_t kMaxPartBytes = 1u << 20;  // body of a chunk of blocks
constexpr uint32_t kMaxSnapshotSequences = 65536;
constexpr uint32_t kMaxFileFormats = 65535;
constexpr uint32_t kMaxStates = 4096;
constexpr uint64_t kMaxStateBytes = uint64_t{1} << 40;  // of all states of a sequence
constexpr uint32_t kMaxVersions = 4097;                 // of a sequence
constexpr uint16_t kAbsentPage = 0xffff;                // instead of a format: the page is not kept

struct SnapshotHeader {
    char magic[4];
    uint16_t version;
    uint16_t header_bytes;
    uint64_t total_bytes;
    uint64_t geometry_hash;
    uint64_t plan_hash;  // of the plan's text
    uint64_t n_tokens;   // over all sequences
    uint64_t n_blocks;   // in the snapshot
    uint32_t n_sequences;
    uint32_t n_formats;
    uint32_t n_entries;  // of a block
    uint32_t page_tokens;
    uint32_t sink_tokens;
    uint32_t fingerprint_bytes;
    uint32_t n_states;  // of a sequence; from here on 0 before version 3
    uint32_t padding;   // 0
    uint64_t n_versions;
    uint8_t reserved[32];
    uint64_t header_hash;
};
static_assert(sizeof(SnapshotHeader) == 128, "the table of docs/FORMAT.md");

struct ChunkHeader {
    char kind[4];
    uint32_t reserved;
    uint64_t number;  // counted from 0
    uint64_t body_bytes;
    uint64_t body_hash;
};
static_assert(sizeof(ChunkHeader) == 32, "the table of docs/FORMAT.md");

enum class ChunkKind { kModel, kPlan, kClasses, kSequence, kRows, kStateSizes, kVersions, kStates };

struct FormatRecord {
    LayoutRecord layout;
    uint32_t flags;
    uint32_t reserved;
};
static_assert(sizeof(FormatRecord) == 32, "the table of docs/FORMAT.md");

struct SequenceRecord {
    uint64_t id;
    uint64_t n_tokens;
    uint32_t n_runs;
    uint32_t n_channels;  // that are ranked by queries
    uint32_t n_sums;      // of blocks that are not packed
    uint32_t flags;
    uint32_t n_chunks;  // that have classes; 0 in version 1
    uint32_t deferral;  // lk_defer; 0 in version 1
};
static_assert(sizeof(SequenceRecord) == 40, "the table of docs/FORMAT.md");
constexpr uint32_t kHasFolded = 1;  // packed blocks have added to the base
constexpr uint32_t kHasChunks = 2;  // classes were assigned, be it to no chunk; not in version 1

struct BlockRun {
    uint64_t first_block;
    uint64_t n_blocks;
};
struct SumRecord {
    uint64_t row;  // of the sequence
    uint64_t is_gap;
};

struct BlockRecord {
    uint64_t row;  // in the snapshot
    uint64_t first_token;
    uint32_t n_tokens;
    uint32_t first_entry;
    uint32_t n_entries;
    // The same in all parts of a block:
    uint32_t n_packed;     // entries that have left the recent tokens
    uint32_t chunk_class;  // lk_chunk_class; version 1 ends before it
    uint32_t reserved;
};
static_assert(sizeof(BlockRecord) == 40, "the table of docs/FORMAT.md");
constexpr uint64_t kBlockRecordBytes1 = 32;  // of version 1

// A version of the recurrent states of a sequence.
struct VersionRecord {
    uint64_t n_tokens;  // that it is after
    uint64_t number;    // in the snapshot
};
// Bytes of a version, whose states follow each other.
struct StateRecord {
    uint64_t number;  // of the version
    uint64_t first_byte;
};

struct EntryRecord {
    uint16_t key_format;
    uint16_t value_format;
};

// A format as the file has it; the permutation points into the file's bytes.
struct FileFormat {
    PageLayout layout;
    const uint8_t *permutation;  // permutation_bytes(), null for none
};

// Fill in magic, version, sizes and hash.
void seal_header(SnapshotHeader *header);
// LK_E_CORRUPT, or LK_E_MISMATCH for another version. known_bytes: of the whole, 0 = unknown.
lk_status read_header(const uint8_t *bytes, uint64_t known_bytes, SnapshotHeader *out);

void write_chunk_header(ChunkKind kind, uint64_t number, const uint8_t *body, uint64_t body_bytes,
                        uint8_t *bytes);
bool is_chunk_of(ChunkKind kind, const uint8_t *bytes);
// The chunk that must come now; left_bytes: of the file after this header.
lk_status read_chunk_header(const uint8_t *bytes, ChunkKind kind, uint64_t number,
                            uint64_t left_bytes, ChunkHeader *out);
lk_status check_chunk_body(const ChunkHeader &header, const uint8_t *body);

uint64_t format_record_bytes(const FileFormat &from);
void write_format(const FileFormat &from, uint8_t *bytes);
// The table of formats of a chunk's body; *out is cleared first.
lk_status read_formats(const uint8_t *body, uint64_t n_bytes, uint32_t n_formats,
                       Array<FileFormat> *out);

// A sequence's chunk; the arrays point into its body and may not be aligned.
struct SequencePart {
    SequenceRecord record;
    const uint8_t *runs;      // BlockRun [n_runs]
    const uint8_t *base;      // u64 [n_channels]
    const uint8_t *sums;      // n_sums times SumRecord, u64 [n_channels]
    const uint8_t *order;     // u32 [n_chunks], by position: the chunk
    const uint8_t *assigned;  // u8 [n_chunks], by chunk: its lk_chunk_class

    BlockRun run(uint64_t i) const;
    SumRecord sum(uint64_t i, const uint8_t **values) const;
    uint32_t chunk_at(uint64_t place) const;
};
uint64_t sequence_bytes(const SequenceRecord &record);
lk_status read_sequence(uint16_t version, const uint8_t *body, uint64_t n_bytes,
                        const Allocator &allocator, SequencePart *out);

// The bytes of a sequence's states and their sum; *out is cleared first.
lk_status read_state_sizes(const uint8_t *body, uint64_t n_bytes, uint32_t n_states,
                           Array<uint64_t> *out, uint64_t *total_bytes);
// The versions of a sequence of n_tokens tokens; *out is cleared first.
lk_status read_versions(const uint8_t *body, uint64_t n_bytes, uint64_t n_tokens,
                        Array<VersionRecord> *out);

// Entries of one block: their pages follow each other, key payload, key metadata, value
// payload, value metadata.
struct BlockPart {
    BlockRecord record;
    const uint8_t *entries;  // EntryRecord [n_entries]
    const uint8_t *pages;

    EntryRecord entry(uint32_t i) const;
};
uint64_t block_head_bytes(uint32_t n_entries, uint16_t version = kSnapshotVersion);
// Checks all contents too.
lk_status read_block_part(uint16_t version, const uint8_t *body, uint64_t n_bytes,
                          const Array<FileFormat> &classes, BlockPart *out);

}  // namespace lk

#endif
