// A save writes to a file of its own, which replaces the old one when it is on the disk.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/cache.h"
#include "core/snapshot/save.h"
#include "core/snapshot/stream.h"

namespace lk {

namespace {

constexpr char kSuffix[] = ".partial";
constexpr int64_t kFlushBytes = 32 << 20;  // handed to the disk at once

lk_status fail_io(const char *action, const char *path) {
    return fail(LK_E_IO, "%s %s: %s", action, path, std::strerror(errno));
}

bool sync(int descriptor) {
    int failed = 0;
    do
        failed = fsync(descriptor);
    while (failed && errno == EINTR);
    return !failed;
}

// The file that becomes `path`.
class OutputFile {
  public:
    explicit OutputFile(const Allocator &allocator) : partial_(allocator) {}
    ~OutputFile();
    OutputFile(const OutputFile &) = delete;
    OutputFile &operator=(const OutputFile &) = delete;

    lk_status open(const char *path);
    static int32_t write(void *self, const void *data, size_t n_bytes);
    // Replace `path` by it.
    lk_status keep();
    int error() const { return error_; }

  private:
    const char *partial() const { return partial_.data(); }
    lk_status open_locked(bool *is_ours);
    lk_status sync_folder() const;
    void start_flush();

    const char *path_ = nullptr;
    Array<char> partial_;
    int descriptor_ = -1;
    int error_ = 0;  // errno of the write that failed
    int64_t n_written_ = 0;
    int64_t n_started_ = 0;  // of them, on their way to the disk
};

OutputFile::~OutputFile() {
    if (descriptor_ < 0)
        return;
    (void)unlink(partial());
    (void)close(descriptor_);
}

lk_status OutputFile::open(const char *path) {
    path_ = path;
    const size_t length = std::strlen(path);
    if (!length)
        return fail(LK_E_ARGUMENT, "path is empty");
    if (!partial_.resize(length + sizeof kSuffix))
        return fail(LK_E_NOMEM, "no memory for a path of %zu bytes", length);
    std::memcpy(partial_.data(), path, length);
    std::memcpy(partial_.data() + length, kSuffix, sizeof kSuffix);
    for (bool is_ours = false; !is_ours;)
        LK_TRY(open_locked(&is_ours));
    return ftruncate(descriptor_, 0) ? fail_io("cannot empty", partial()) : LK_OK;
}

// Between the opening and the lock another save may have renamed the file: then what was opened is
// somebody's finished snapshot, and there is a new file to be made.
lk_status OutputFile::open_locked(bool *is_ours) {
    const int descriptor = ::open(partial(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor < 0)
        return fail_io("cannot write", partial());
    struct stat opened;
    struct stat named;
    const bool is_locked = !flock(descriptor, LOCK_EX | LOCK_NB);
    if (!is_locked || fstat(descriptor, &opened)) {
        const lk_status status =
            is_locked ? fail_io("cannot look at", partial())
                      : fail(LK_E_IO, "%s is being written by another save", partial());
        (void)close(descriptor);
        return status;
    }
    *is_ours =
        !stat(partial(), &named) && opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
    if (*is_ours)
        descriptor_ = descriptor;
    else
        (void)close(descriptor);
    return LK_OK;
}

int32_t OutputFile::write(void *self, const void *data, size_t n_bytes) {
    auto *file = static_cast<OutputFile *>(self);
    const char *at = static_cast<const char *>(data);
    while (n_bytes) {
        const ssize_t n = ::write(file->descriptor_, at, n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            file->error_ = n ? errno : ENOSPC;
            return 1;
        }
        at += n;
        n_bytes -= static_cast<size_t>(n);
        file->n_written_ += n;
    }
    file->start_flush();
    return 0;
}

// The disk works while the rest is made: keep() waits for less. A system that cannot, or will not,
// does it all there.
void OutputFile::start_flush() {
#ifdef SYNC_FILE_RANGE_WRITE
    const int64_t n = n_written_ - n_started_;
    if (n < kFlushBytes)
        return;
    (void)sync_file_range(descriptor_, n_started_, n, SYNC_FILE_RANGE_WRITE);
    n_started_ = n_written_;
#endif
}

lk_status OutputFile::keep() {
    if (!sync(descriptor_))
        return fail_io("cannot flush", partial());
    if (rename(partial(), path_))
        return fail_io("cannot rename to", path_);
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (close(descriptor))
        return fail_io("cannot close", path_);
    return sync_folder();
}

// The name is on the disk when the folder is.
lk_status OutputFile::sync_folder() const {
    const char *slash = std::strrchr(path_, '/');
    Array<char> folder;
    const size_t length = slash ? static_cast<size_t>(slash - path_) + 1 : 1;
    if (!folder.resize(length + 1))
        return fail(LK_E_NOMEM, "no memory for a path of %zu bytes", length);
    std::memcpy(folder.data(), slash ? path_ : ".", length);
    const int descriptor = ::open(folder.data(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return fail_io("cannot open the folder", folder.data());
    // Some file systems have no such call for folders.
    const bool is_there = sync(descriptor) || errno == EINVAL;
    const lk_status status = is_there ? LK_OK : fail_io("cannot flush the folder", folder.data());
    (void)close(descriptor);
    return status;
}

}  // namespace

lk_status save_snapshot_file(lk_cache *cache, const SnapshotChoice &choice, const char *path) {
    OutputFile file(cache->context->allocator);
    LK_TRY(file.open(path));
    CallbackSink sink(cache->context->allocator, OutputFile::write, &file);
    lk_status status = save_snapshot(cache, choice, &sink);
    if (file.error())
        return fail(LK_E_IO, "cannot write %s: %s", path, std::strerror(file.error()));
    return status ? status : file.keep();
}

InputFile::~InputFile() {
    if (descriptor_ >= 0)
        (void)close(descriptor_);
}

lk_status InputFile::open(const char *path) {
    if (!path)
        return fail(LK_E_ARGUMENT, "path is NULL");
    descriptor_ = ::open(path, O_RDONLY | O_CLOEXEC);
    struct stat found;
    if (descriptor_ < 0 || fstat(descriptor_, &found))
        return fail_io("cannot open", path);
    if (!S_ISREG(found.st_mode))
        return fail(LK_E_IO, "%s is not a file", path);
    n_bytes_ = static_cast<uint64_t>(found.st_size);
    return n_bytes_ ? LK_OK : fail(LK_E_CORRUPT, "%s is empty", path);
}

int64_t InputFile::read(void *self, void *data, size_t n_bytes) {
    ssize_t n = 0;
    do
        n = ::read(static_cast<InputFile *>(self)->descriptor_, data, n_bytes);
    while (n < 0 && errno == EINTR);
    return n;
}

}  // namespace lk
