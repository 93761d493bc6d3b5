// Error sentences: the one way a call of lowkey fails.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BASE_STATUS_H
#define LK_BASE_STATUS_H

#include <lowkey/base.h>

namespace lk {

using ull = unsigned long long;  // what %llu prints

// Store this thread's last error sentence (printf form) and return status.
lk_status fail(lk_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

// An argument that must not be NULL is.
inline lk_status null_argument(const char *name) { return fail(LK_E_ARGUMENT, "%s is NULL", name); }

// This thread's last sentence; "" before any failure.
const char *last_sentence();

// Copy a caller's struct over defaults that *dst already holds. A shorter, older struct
// leaves the tail at its defaults; a longer, newer one is accepted only when every byte we
// do not know is zero. oldest is the size of the first published layout.
lk_status import_struct(void *dst, size_t dst_bytes, size_t oldest, const void *src,
                        const char *name);

// Check the size of a struct that the caller wants filled, and zero it. The size field is set.
lk_status init_struct(void *dst, size_t caller_bytes, size_t our_bytes, const char *name);

// Copy our filled struct (size first) into the caller's, as far as the caller's size goes.
lk_status export_struct(void *dst, const void *src, size_t our_bytes, size_t oldest,
                        const char *name);

// init_struct(), then our defaults up to the caller's own size.
template <class Struct>
lk_status init_with(Struct *out, size_t struct_bytes, size_t oldest, const Struct &defaults,
                    const char *name) {
    const lk_status status = init_struct(out, struct_bytes, oldest, name);
    return status == LK_OK ? export_struct(out, &defaults, sizeof defaults, oldest, name) : status;
}

}  // namespace lk

// Return the status of a call from the function around it, unless it is LK_OK. A function that has
// to undo something first keeps the status and returns it at its end.
#define LK_TRY(...)                              \
    do {                                         \
        const lk_status lk_try_ = (__VA_ARGS__); \
        if (lk_try_)                             \
            return lk_try_;                      \
    } while (0)

#endif
