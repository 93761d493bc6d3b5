// The reader of snapshots that loads and inspections share.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SNAPSHOT_READER_H
#define LK_CORE_SNAPSHOT_READER_H

#include "core/snapshot/stream.h"
#include "format/snapshot_frame.h"
#include "plan/plan.h"

namespace lk {

// Blocks of the snapshot that a sequence has one after another.
struct SnapshotBlocks {
    uint64_t number;  // of the first one, in the snapshot
    uint64_t n;       // 1 if it is new
    bool is_new;      // its parts follow
};

// A version of recurrent states that a sequence has, and bytes of it.
struct SnapshotVersion {
    uint64_t number;  // in the snapshot
    uint64_t n_tokens;
    bool is_new;  // its bytes follow
};
struct SnapshotStates {
    uint64_t first_byte;
    uint64_t n_bytes;
    const uint8_t *bytes;
};

// Reads a snapshot in the order of its bytes and checks all that needs no cache: frames, hashes,
// contents of pages, positions, that every block is whole. Calls come in this order:
//
//   open()
//   for each sequence: next_sequence(); next_version() for each of n_versions(), for a new one
//       next_states() until it has returned version_bytes(); then next_blocks() until it has all of
//       its blocks; for a new block next_part() until it returns a part that ends at
//       header().n_entries
//   finish()
class SnapshotReader {
  public:
    SnapshotReader(const Allocator &allocator, SnapshotSource *source)
        : allocator_(allocator),
          source_(*source),
          fingerprint_(allocator),
          plan_text_(allocator),
          format_bytes_(allocator),
          formats_(allocator),
          state_bytes_(allocator),
          sequence_(allocator),
          versions_(allocator),
          blocks_(allocator),
          version_tokens_(allocator) {}

    lk_status open();
    const SnapshotHeader &header() const { return header_; }
    const Array<uint8_t> &fingerprint() const { return fingerprint_; }
    const Array<uint8_t> &plan_text() const { return plan_text_; }  // without a zero
    const Array<FileFormat> &formats() const { return formats_; }
    const Array<uint64_t> &state_bytes() const { return state_bytes_; }  // of each state
    uint64_t version_bytes() const { return version_bytes_; }            // of all
    uint64_t done_bytes() const { return done_bytes_; }

    // The plan is the one of plan_text().
    lk_status next_sequence(const Plan &plan, const SequencePart **out);
    size_t n_versions() const { return versions_.size(); }
    lk_status next_version(SnapshotVersion *out);
    // Valid until the next call.
    lk_status next_states(SnapshotStates *out);
    lk_status next_blocks(SnapshotBlocks *out);
    // Valid until the next call.
    lk_status next_part(BlockPart *out);
    // Check the part that comes next, where its bytes are there already, so that next_part() need
    // not. Any thread, while nobody else calls the reader; parts that were taken stay valid.
    void look_ahead();
    lk_status finish();

  private:
    struct KnownBlock {
        uint64_t first_token;
        uint64_t chain;  // the first of the whole blocks that follow each other up to this one
        uint32_t n_tokens;
        bool is_whole;
    };
    lk_status check_shared(const SnapshotBlocks &blocks, uint64_t ordinal) const;
    lk_status add_block(const BlockRecord &record);
    lk_status take(uint64_t n_bytes, const uint8_t **out);
    bool looks_good_ahead();
    lk_status take_chunk(ChunkKind kind, uint64_t least_bytes, uint64_t most_bytes,
                         const uint8_t **body, uint64_t *n_bytes);
    lk_status keep_chunk(ChunkKind kind, uint64_t least_bytes, uint64_t most_bytes,
                         Array<uint8_t> *out);
    lk_status check_blocks_of_sequence() const;
    lk_status check_chunks_of_sequence() const;
    lk_status check_position(const BlockRecord &record) const;

    const Allocator &allocator_;
    SnapshotSource &source_;
    SnapshotHeader header_{};
    uint64_t done_bytes_ = 0;
    uint64_t n_chunks_ = 0;
    Array<uint8_t> fingerprint_;
    Array<uint8_t> plan_text_;
    Array<uint8_t> format_bytes_;
    Array<FileFormat> formats_;
    Array<uint64_t> state_bytes_;
    uint64_t version_bytes_ = 0;

    const Plan *plan_ = nullptr;
    Array<uint8_t> sequence_;  // body of the chunk that part_ points into
    SequencePart part_{};
    Array<VersionRecord> versions_;  // of the sequence
    size_t next_version_ = 0;
    uint64_t next_state_byte_ = 0;  // of the version that is being read
    uint32_t n_sequences_ = 0;      // begun
    uint64_t n_tokens_ = 0;         // of them
    uint64_t block_of_sequence_ = 0;
    uint32_t run_ = 0;
    uint64_t block_of_run_ = 0;
    uint32_t next_entry_ = 0;    // of the block that is being read
    uint32_t block_packed_ = 0;  // likewise
    uint32_t block_chunk_class_ = 0;
    Array<KnownBlock> blocks_;
    Array<uint64_t> version_tokens_;  // by number

    uint64_t chunk_ahead_ = UINT64_MAX;  // was found good
    BlockPart part_ahead_{};             // in it
};

}  // namespace lk

#endif
