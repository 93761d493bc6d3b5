// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/callbacks.h"

#include <cxxabi.h>

namespace lk {

namespace {

// A forced unwind has no object, so the reference of its handler is null. GCC checks references for
// both of these reasons at once.
template <class Call>
__attribute__((no_sanitize("null", "alignment"))) lk_status contain(const char *name,
                                                                    const Call &call) {
    try {
        call();
        return LK_OK;
#ifdef __GLIBCXX__  // libc++ has no such type, and cancellation passes its catch (...)
    } catch (abi::__forced_unwind &) {
        throw;  // the thread is being cancelled, which nothing may stop
#endif
    } catch (...) {
        return fail(LK_E_IO, "the %s callback threw an exception", name);
    }
}

}  // namespace

lk_status call_write(lk_write_fn write, void *user, const void *data, size_t n_bytes,
                     int32_t *result) {
    return contain("write", [&] { *result = write(user, data, n_bytes); });
}

lk_status call_read(lk_read_fn read, void *user, void *data, size_t n_bytes, int64_t *result) {
    return contain("read", [&] { *result = read(user, data, n_bytes); });
}

lk_status call_progress(const lk_snapshot_desc &desc, uint64_t done_bytes, uint64_t total_bytes,
                        int32_t *result) {
    return contain("progress",
                   [&] { *result = desc.progress(desc.progress_user, done_bytes, total_bytes); });
}

}  // namespace lk
