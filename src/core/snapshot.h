// Snapshots inside the library: where their bytes go to and come from, and the reader that loads
// and inspections share.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SNAPSHOT_H
#define LK_CORE_SNAPSHOT_H

#include "format/snapshot_frame.h"
#include "plan/plan.h"

#include <lowkey/snapshot.h>

namespace lk {

// Where the bytes of a save go, piece by piece.
class SnapshotSink {
  public:
    virtual ~SnapshotSink() = default;
    // Room for the next piece; null without memory. Valid until put().
    virtual uint8_t *room(uint64_t n_bytes) = 0;
    // The first n_bytes of the room are the piece. LK_E_IO.
    virtual lk_status put(uint64_t n_bytes) = 0;
};

// Where the bytes of a load come from.
class SnapshotSource {
  public:
    virtual ~SnapshotSource() = default;
    // Of the whole, 0 = not known.
    virtual uint64_t known_bytes() const = 0;
    // The next n_bytes, at *out until the next call. What is not known to be there is not
    // allocated at once. LK_E_CORRUPT (there are fewer), LK_E_IO, LK_E_NOMEM.
    virtual lk_status take(uint64_t n_bytes, const uint8_t **out) = 0;
    // The next n_bytes where they lie in memory for as long as the source; else null.
    virtual const uint8_t *peek(uint64_t) const { return nullptr; }
    // LK_E_CORRUPT unless nothing is left.
    virtual lk_status finish() = 0;
};

// In memory that somebody else owns.
class MemorySink final : public SnapshotSink {
  public:
    MemorySink(void *data, uint64_t n_bytes) : at_(static_cast<uint8_t *>(data)), left_(n_bytes) {}
    uint8_t *room(uint64_t n_bytes) override { return n_bytes <= left_ ? at_ : nullptr; }
    lk_status put(uint64_t n_bytes) override {
        at_ += n_bytes;
        left_ -= n_bytes;
        return LK_OK;
    }

  private:
    uint8_t *at_;
    uint64_t left_;
};

class MemorySource final : public SnapshotSource {
  public:
    MemorySource(const void *data, uint64_t n_bytes)
        : at_(static_cast<const uint8_t *>(data)), whole_(n_bytes), left_(n_bytes) {}
    uint64_t known_bytes() const override { return whole_; }
    lk_status take(uint64_t n_bytes, const uint8_t **out) override;
    const uint8_t *peek(uint64_t n_bytes) const override {
        return n_bytes <= left_ ? at_ : nullptr;
    }
    lk_status finish() override;

  private:
    const uint8_t *at_;
    const uint64_t whole_;
    uint64_t left_;
};

// Through callbacks, and through a buffer of the largest piece.
class CallbackSink final : public SnapshotSink {
  public:
    CallbackSink(const Allocator &allocator, lk_write_fn write, void *user)
        : buffer_(allocator), write_(write), user_(user) {}
    uint8_t *room(uint64_t n_bytes) override {
        return buffer_.reserve(n_bytes) ? buffer_.data() : nullptr;
    }
    lk_status put(uint64_t n_bytes) override;

  private:
    Array<uint8_t> buffer_;
    const lk_write_fn write_;
    void *const user_;
};

class CallbackSource final : public SnapshotSource {
  public:
    CallbackSource(const Allocator &allocator, lk_read_fn read, void *user, uint64_t known_bytes)
        : buffer_(allocator), read_(read), user_(user), known_bytes_(known_bytes) {}
    uint64_t known_bytes() const override { return known_bytes_; }
    lk_status take(uint64_t n_bytes, const uint8_t **out) override;
    lk_status finish() override;

  private:
    lk_status fill(uint8_t *to, uint64_t n_bytes);

    Array<uint8_t> buffer_;
    const lk_read_fn read_;
    void *const user_;
    const uint64_t known_bytes_;
};

// A row of the snapshot that a sequence has.
struct SnapshotRow {
    uint64_t number;  // in the snapshot
    bool is_new;      // its parts follow
};

// Reads a snapshot in the order of its bytes and checks all that needs no cache: frames, hashes,
// contents of halves, positions, that every row is whole. Calls come in this order:
//
//   open()
//   for each sequence: next_sequence(), then next_row() for each of its rows;
//       for a new row next_part() until it returns a part that ends at header().n_entries
//   finish()
class SnapshotReader {
  public:
    SnapshotReader(const Allocator &allocator, SnapshotSource *source)
        : allocator_(allocator),
          source_(*source),
          fingerprint_(allocator),
          plan_text_(allocator),
          class_bytes_(allocator),
          classes_(allocator),
          sequence_(allocator),
          rows_(allocator) {}

    lk_status open();
    const SnapshotHeader &header() const { return header_; }
    const Array<uint8_t> &fingerprint() const { return fingerprint_; }
    const Array<uint8_t> &plan_text() const { return plan_text_; }  // without a zero
    const Array<FileFormat> &classes() const { return classes_; }
    uint64_t done_bytes() const { return done_bytes_; }

    // The plan is the one of plan_text().
    lk_status next_sequence(const Plan &plan, const SequencePart **out);
    lk_status next_row(SnapshotRow *out);
    // Valid until the next call.
    lk_status next_part(BlockPart *out);
    // Check the part that comes next, where its bytes are there already, so that next_part() need
    // not. Any thread, while nobody else calls the reader; parts that were taken stay valid.
    void look_ahead();
    lk_status finish();

  private:
    struct KnownRow {
        uint64_t first_token;
        uint32_t n_tokens;
    };
    lk_status take(uint64_t n_bytes, const uint8_t **out);
    bool looks_good_ahead();
    lk_status take_chunk(ChunkKind kind, uint64_t least_bytes, uint64_t most_bytes,
                         const uint8_t **body, uint64_t *n_bytes);
    lk_status keep_chunk(ChunkKind kind, uint64_t least_bytes, uint64_t most_bytes,
                         Array<uint8_t> *out);
    lk_status check_rows_of_sequence() const;
    lk_status check_chunks_of_sequence() const;
    lk_status check_position(const BlockRecord &record) const;

    const Allocator &allocator_;
    SnapshotSource &source_;
    SnapshotHeader header_{};
    uint64_t done_bytes_ = 0;
    uint64_t n_chunks_ = 0;
    Array<uint8_t> fingerprint_;
    Array<uint8_t> plan_text_;
    Array<uint8_t> class_bytes_;
    Array<FileFormat> classes_;

    const Plan *plan_ = nullptr;
    Array<uint8_t> sequence_;  // body of the chunk that part_ points into
    SequencePart part_{};
    uint32_t n_sequences_ = 0;  // begun
    uint64_t n_tokens_ = 0;     // of them
    uint64_t row_of_sequence_ = 0;
    uint32_t run_ = 0;
    uint64_t row_of_run_ = 0;
    uint32_t next_entry_ = 0;  // of the row that is being read
    uint32_t row_packed_ = 0;  // likewise
    uint32_t row_chunk_class_ = 0;
    Array<KnownRow> rows_;

    uint64_t chunk_ahead_ = UINT64_MAX;  // was found good
    BlockPart part_ahead_{};             // in it
};

// Sequences of a cache, as the save of all forms is called with.
struct SnapshotChoice {
    uint32_t n_sequences;
    const lk_sequence *ids;
    const lk_snapshot_desc *desc;
};
lk_status snapshot_bytes(lk_cache *cache, const SnapshotChoice &choice, uint64_t *n_bytes);
lk_status save_snapshot(lk_cache *cache, const SnapshotChoice &choice, SnapshotSink *sink);

struct SnapshotTarget {
    const lk_snapshot_desc *desc;
    uint32_t capacity;
    lk_sequence *ids;
    uint32_t *n_sequences;
};
lk_status load_snapshot(lk_cache *cache, const SnapshotTarget &target, SnapshotSource *source);

// What both need of a desc. LK_E_ARGUMENT.
lk_status import_snapshot_desc(const lk_snapshot_desc *from, lk_snapshot_desc *out);
// LK_E_IO when the callback says so.
lk_status tell_progress(const lk_snapshot_desc &desc, uint64_t done_bytes, uint64_t total_bytes);

// Bring the cache's device to where its bytes can be read: no step is open, nothing is captured,
// what was recorded is left. LK_E_BUSY, LK_E_STATE, LK_E_DEVICE.
lk_status settle_cache(lk_cache *cache, const char *verb);

// The plan's text as snapshots have it: at the first rung of every ladder, so that what a cache
// shrinks does not change it. Without a zero.
lk_status plan_text(const Plan &plan, const Allocator &allocator, Array<uint8_t> *out);

lk_status parse_plan_text(const Array<uint8_t> &text, Plan *out);
// Does the header say of the plan what the plan says? LK_E_CORRUPT.
lk_status check_header_plan(const SnapshotHeader &header, const Plan &plan);

// Files (snapshot_file.cpp).
lk_status save_snapshot_file(lk_cache *cache, const SnapshotChoice &choice, const char *path);
// Open a file, call use(source), close it.
template <class Use>
lk_status with_snapshot_file(const Allocator &allocator, const char *path, const Use &use);

// A file that is read.
class InputFile {
  public:
    InputFile() = default;
    ~InputFile();
    InputFile(const InputFile &) = delete;
    InputFile &operator=(const InputFile &) = delete;

    lk_status open(const char *path);  // LK_E_ARGUMENT, LK_E_IO
    uint64_t n_bytes() const { return n_bytes_; }
    static int64_t read(void *self, void *data, size_t n_bytes);

  private:
    int descriptor_ = -1;
    uint64_t n_bytes_ = 0;
};

template <class Use>
lk_status with_snapshot_file(const Allocator &allocator, const char *path, const Use &use) {
    InputFile file;
    const lk_status status = file.open(path);
    if (status)
        return status;
    CallbackSource source(allocator, InputFile::read, &file, file.n_bytes());
    return use(&source);
}

}  // namespace lk

#endif
