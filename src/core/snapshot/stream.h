// Where the bytes of a snapshot go to and come from.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SNAPSHOT_STREAM_H
#define LK_CORE_SNAPSHOT_STREAM_H

#include "base/memory.h"
#include "base/status.h"

#include <lowkey/snapshot.h>

namespace lk {

// Where the bytes of a save go, chunk by chunk.
class SnapshotSink {
  public:
    virtual ~SnapshotSink() = default;
    // Memory for the next chunk; null without memory. Valid until put().
    virtual uint8_t *reserve(uint64_t n_bytes) = 0;
    // The first n_bytes of that memory are the chunk. LK_E_IO.
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

// LK_E_CORRUPT with the sentence of a snapshot that ends too early.
lk_status fail_short(uint64_t n_bytes, uint64_t left);

// In memory that somebody else owns.
class MemorySink final : public SnapshotSink {
  public:
    MemorySink(void *data, uint64_t n_bytes) : at_(static_cast<uint8_t *>(data)), left_(n_bytes) {}
    uint8_t *reserve(uint64_t n_bytes) override { return n_bytes <= left_ ? at_ : nullptr; }
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

// Through callbacks, with a buffer of the largest chunk.
class CallbackSink final : public SnapshotSink {
  public:
    CallbackSink(const Allocator &allocator, lk_write_fn write, void *user)
        : buffer_(allocator), write_(write), user_(user) {}
    uint8_t *reserve(uint64_t n_bytes) override {
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

}  // namespace lk

#endif
