// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/c_locale.h"

namespace lk {

namespace {

thread_local char t_sentence[512];

uint32_t struct_size(const void *s) {
    uint32_t size;
    std::memcpy(&size, s, sizeof size);
    return size;
}

// A struct without its init has any bytes as its size, and what lies after it is not the caller's.
lk_status check_most(size_t size, const char *name) {
    if (size <= LK_MAX_STRUCT_BYTES)
        return LK_OK;
    return fail(LK_E_ARGUMENT, "%s.size is %zu, must be at most %d: start from its init function",
                name, size, LK_MAX_STRUCT_BYTES);
}

}  // namespace

lk_status fail(lk_status status, const char *format, ...) {
    const CLocale c_locale;
    va_list args;
    va_start(args, format);
    std::vsnprintf(t_sentence, sizeof t_sentence, format, args);
    va_end(args);
    return status;
}

const char *last_sentence() { return t_sentence; }

lk_status import_struct(void *dst, size_t dst_bytes, size_t oldest, const void *src,
                        const char *name) {
    if (!src)
        return fail(LK_E_ARGUMENT, "%s is NULL", name);
    const uint32_t size = struct_size(src);
    if (size < oldest)
        return fail(LK_E_ARGUMENT,
                    "%s.size is %u, the smallest known is %zu: start from its init function", name,
                    size, oldest);
    LK_TRY(check_most(size, name));
    const auto *bytes = static_cast<const unsigned char *>(src);
    for (size_t i = dst_bytes; i < size; ++i)
        if (bytes[i])
            return fail(
                LK_E_UNSUPPORTED,
                "%s.size is %u and byte %zu is set, which this library (%zu bytes) does not know",
                name, size, i, dst_bytes);
    std::memcpy(dst, src, size < dst_bytes ? size : dst_bytes);
    const auto own = static_cast<uint32_t>(dst_bytes);
    std::memcpy(dst, &own, sizeof own);
    return LK_OK;
}

lk_status init_struct(void *dst, size_t caller_bytes, size_t our_bytes, const char *name) {
    if (!dst)
        return fail(LK_E_ARGUMENT, "%s is NULL", name);
    if (caller_bytes < our_bytes)
        return fail(LK_E_ARGUMENT, "%s has %zu bytes, the smallest known is %zu", name,
                    caller_bytes, our_bytes);
    LK_TRY(check_most(caller_bytes, name));
    std::memset(dst, 0, caller_bytes);
    const auto size = static_cast<uint32_t>(caller_bytes);
    std::memcpy(dst, &size, sizeof size);
    return LK_OK;
}

lk_status export_struct(void *dst, const void *src, size_t our_bytes, size_t oldest,
                        const char *name) {
    if (!dst)
        return fail(LK_E_ARGUMENT, "%s is NULL", name);
    const uint32_t size = struct_size(dst);
    if (size < oldest)
        return fail(LK_E_ARGUMENT,
                    "%s.size is %u, the smallest known is %zu: start from its init function", name,
                    size, oldest);
    LK_TRY(check_most(size, name));
    std::memcpy(dst, src, size < our_bytes ? size : our_bytes);
    std::memcpy(dst, &size, sizeof size);
    return LK_OK;
}

}  // namespace lk

extern "C" lk_status lk_last_error(char *buffer, size_t capacity_bytes, size_t *needed_bytes) {
    if (!buffer && capacity_bytes)
        return LK_E_ARGUMENT;
    const char *sentence = lk::last_sentence();
    const size_t length = std::strlen(sentence) + 1;
    if (needed_bytes)
        *needed_bytes = length;
    if (capacity_bytes) {
        const size_t n = length < capacity_bytes ? length : capacity_bytes;
        std::memcpy(buffer, sentence, n - 1);
        buffer[n - 1] = 0;
    }
    return LK_OK;
}

namespace {

struct StatusRow {
    lk_status status;
    const char *name;
    const char *text;
};

const StatusRow kRows[] = {
    {LK_OK, "LK_OK", "The call did what it says."},
    {LK_E_ARGUMENT, "LK_E_ARGUMENT", "A stated precondition does not hold; correct the call."},
    {LK_E_STATE, "LK_E_STATE", "The call came in the wrong order; the sentence says what is open."},
    {LK_E_NOT_FOUND, "LK_E_NOT_FOUND", "There is no such id, preset, device or field."},
    {LK_E_UNSUPPORTED, "LK_E_UNSUPPORTED",
     "The request is valid but this build or device cannot run it."},
    {LK_E_NOMEM, "LK_E_NOMEM", "Memory is exhausted; free some and call again."},
    {LK_E_BUDGET, "LK_E_BUDGET",
     "The byte budget does not hold it; remove sequences or raise the budget."},
    {LK_E_CORRUPT, "LK_E_CORRUPT", "The bytes fail validation and nothing was taken from them."},
    {LK_E_MISMATCH, "LK_E_MISMATCH",
     "The plan or bytes are valid but made for another geometry or version."},
    {LK_E_DATA, "LK_E_DATA", "K or V holds an infinity or a NaN; discard the step."},
    {LK_E_BUSY, "LK_E_BUSY", "The object is in use by children or an open step."},
    {LK_E_IO, "LK_E_IO", "A file or callback could not be read or written."},
    {LK_E_DEVICE, "LK_E_DEVICE",
     "The device is lost; destroy what hangs on the context, then the context."},
    {LK_E_INTERNAL, "LK_E_INTERNAL", "A defect of lowkey; report it with the sentence."},
};

const StatusRow *find_row(lk_status status) {
    for (const StatusRow &row : kRows)
        if (row.status == status)
            return &row;
    return nullptr;
}

}  // namespace

extern "C" const char *lk_status_name(lk_status status) {
    const StatusRow *row = find_row(status);
    return row ? row->name : "LK_E_?";
}

extern "C" const char *lk_status_text(lk_status status) {
    const StatusRow *row = find_row(status);
    return row ? row->text : "This number is not a status of lowkey.";
}

extern "C" lk_status lk_tensor_init(lk_tensor *tensor, size_t struct_bytes) {
    return lk::init_struct(tensor, struct_bytes, sizeof(lk_tensor), "tensor");
}

extern "C" lk_status lk_queue_init(lk_queue *queue, size_t struct_bytes) {
    return lk::init_struct(queue, struct_bytes, sizeof(lk_queue), "queue");
}
