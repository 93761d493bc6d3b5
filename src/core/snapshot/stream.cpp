// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/stream.h"

#include "core/snapshot/callbacks.h"

namespace lk {

namespace {

constexpr uint64_t kStride = 1u << 20;  // that a source trusts beyond what has come

}  // namespace

lk_status fail_short(uint64_t n_bytes, uint64_t left) {
    return fail(LK_E_CORRUPT, "snapshot: ends where %llu more bytes must be, %llu are there",
                ull{n_bytes}, ull{left});
}

lk_status MemorySource::take(uint64_t n_bytes, const uint8_t **out) {
    if (n_bytes > left_)
        return fail_short(n_bytes, left_);
    *out = at_;
    at_ += n_bytes;
    left_ -= n_bytes;
    return LK_OK;
}

lk_status MemorySource::finish() {
    return left_ ? fail(LK_E_CORRUPT, "snapshot: %llu bytes after its end", ull{left_}) : LK_OK;
}

lk_status CallbackSink::put(uint64_t n_bytes) {
    int32_t refusal = 0;
    LK_TRY(call_write(write_, user_, buffer_.data(), n_bytes, &refusal));
    return refusal ? fail(LK_E_IO, "writing %llu bytes of a snapshot was refused with %d",
                          ull{n_bytes}, refusal)
                   : LK_OK;
}

lk_status CallbackSource::fill(uint8_t *to, uint64_t n_bytes) {
    for (uint64_t done = 0; done < n_bytes;) {
        int64_t n = 0;
        LK_TRY(call_read(read_, user_, to + done, n_bytes - done, &n));
        if (n < 0 || static_cast<uint64_t>(n) > n_bytes - done)
            return fail(LK_E_IO, "reading %llu bytes of a snapshot gave %lld", ull{n_bytes - done},
                        static_cast<long long>(n));
        if (!n)
            return fail_short(n_bytes, done);
        done += static_cast<uint64_t>(n);
    }
    return LK_OK;
}

// Memory grows with the bytes that have come, so a short stream that states a long chunk takes
// little.
lk_status CallbackSource::take(uint64_t n_bytes, const uint8_t **out) {
    uint64_t done = 0;
    while (done < n_bytes) {
        const uint64_t trusted = done < kStride ? kStride : done;
        const uint64_t end = n_bytes - done < trusted ? n_bytes : done + trusted;
        if (!buffer_.resize(end))
            return fail(LK_E_NOMEM, "no memory for a chunk of a snapshot of %llu bytes",
                        ull{n_bytes});
        LK_TRY(fill(buffer_.data() + done, end - done));
        done = end;
    }
    *out = buffer_.data();
    return LK_OK;
}

lk_status CallbackSource::finish() {
    uint8_t more;
    int64_t n = 0;
    LK_TRY(call_read(read_, user_, &more, 1, &n));
    if (n < 0)
        return fail(LK_E_IO, "reading after a snapshot gave %lld", static_cast<long long>(n));
    return n ? fail(LK_E_CORRUPT, "snapshot: bytes after its end") : LK_OK;
}

}  // namespace lk
