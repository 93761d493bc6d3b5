// A save writes to a file of its own, which replaces the old one when it is on the disk.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "core/cache.h"
#include "core/snapshot/save.h"
#include "core/snapshot/stream.h"

namespace lk {

namespace {

constexpr char kSuffix[] = ".partial";
constexpr char kAccessList[] = "system.posix_acl_access";
constexpr int kMostAttempts = 100;         // to be the one that writes
constexpr int64_t kFlushBytes = 32 << 20;  // handed to the disk at once

lk_status fail_io(const char *action, const char *path) {
    return fail(LK_E_IO, "%s %s: %s", action, path, std::strerror(errno));
}

const char *kind_of(const struct stat &file) {
    switch (file.st_mode & S_IFMT) {
        case S_IFREG: return "a file";
        case S_IFDIR: return "a folder";
        case S_IFLNK: return "a link";
        case S_IFIFO: return "a pipe";
        case S_IFSOCK: return "a socket";
        default: return "a device";
    }
}

bool is_same(const struct stat &a, const struct stat &b) {
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool sync(int descriptor) {
    int failed = 0;
    do
        failed = fsync(descriptor);
    while (failed && errno == EINTR);
    return !failed;
}

// The file that becomes `path`. All its names are looked up in one open folder, so they mean the
// same files until the end.
class OutputFile {
  public:
    explicit OutputFile(const Allocator &allocator)
        : folder_name_(allocator), partial_(allocator) {}
    ~OutputFile();
    OutputFile(const OutputFile &) = delete;
    OutputFile &operator=(const OutputFile &) = delete;

    lk_status open(const char *path);
    static int32_t write(void *self, const void *data, size_t n_bytes);
    // Replace `path` by it.
    lk_status keep();
    int error() const { return error_; }

  private:
    const char *partial() const { return partial_.data(); }             // its path
    const char *partial_name() const { return partial() + n_folder_; }  // in the folder
    const char *name() const { return path_ + n_folder_; }

    lk_status open_folder();
    lk_status look_at_target();
    lk_status open_locked(bool *is_ours);
    lk_status lock(int descriptor) const;
    lk_status remove_left(const struct stat &named) const;
    lk_status keep_access() const;
    bool keep_access_list() const;
    lk_status sync_folder() const;
    void start_flush();

    const char *path_ = nullptr;
    size_t n_folder_ = 0;  // characters of the path before the name
    Array<char> folder_name_;
    Array<char> partial_;
    int folder_ = -1;           // names are looked up in it
    int readable_folder_ = -1;  // the same; -1 where the process may not read it
    int descriptor_ = -1;       // while there is a partial file
    bool has_old_ = false;
    struct stat old_ {};
    int error_ = 0;  // errno of the write that failed
    int64_t n_written_ = 0;
    int64_t n_started_ = 0;  // of them, on their way to the disk
};

OutputFile::~OutputFile() {
    if (descriptor_ >= 0) {
        (void)unlinkat(folder_, partial_name(), 0);
        (void)close(descriptor_);
    }
    if (readable_folder_ >= 0)
        (void)close(readable_folder_);
    if (folder_ >= 0)
        (void)close(folder_);
}

lk_status OutputFile::open(const char *path) {
    path_ = path;
    const size_t length = std::strlen(path);
    if (!length)
        return fail(LK_E_ARGUMENT, "path is empty");
    const char *slash = std::strrchr(path, '/');
    n_folder_ = slash ? static_cast<size_t>(slash - path) + 1 : 0;
    if (!partial_.resize(length + sizeof kSuffix) || !folder_name_.resize(n_folder_ + 2))
        return fail(LK_E_NOMEM, "no memory for a path of %zu bytes", length);
    std::memcpy(partial_.data(), path, length);
    std::memcpy(partial_.data() + length, kSuffix, sizeof kSuffix);
    std::memcpy(folder_name_.data(), slash ? path : ".", slash ? n_folder_ : 1);
    if (n_folder_ == length)
        return fail(LK_E_IO, "%s is a folder", path);
    LK_TRY(open_folder());
    LK_TRY(look_at_target());
    bool is_ours = false;
    for (int i = 0; i < kMostAttempts && !is_ours; ++i)
        LK_TRY(open_locked(&is_ours));
    if (!is_ours)
        return fail(LK_E_IO, "%s is being written by other saves", partial());
    return has_old_ ? keep_access() : LK_OK;
}

lk_status OutputFile::open_folder() {
    folder_ = ::open(folder_name_.data(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder_ < 0)
        return fail_io("cannot open the folder", folder_name_.data());
    readable_folder_ = openat(folder_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return readable_folder_ < 0 && errno != EACCES
               ? fail_io("cannot open the folder", folder_name_.data())
               : LK_OK;
}

// A name that is free, or a file: a save replaces nothing else.
lk_status OutputFile::look_at_target() {
    has_old_ = !fstatat(folder_, name(), &old_, AT_SYMLINK_NOFOLLOW);
    if (!has_old_)
        return errno == ENOENT ? LK_OK : fail_io("cannot look at", path_);
    return S_ISREG(old_.st_mode)
               ? LK_OK
               : fail(LK_E_IO, "%s is %s, and a save replaces files alone", path_, kind_of(old_));
}

// Between the making of the file and its lock another save may have removed it as one that was
// left: then there is a new file to be made.
lk_status OutputFile::open_locked(bool *is_ours) {
    struct stat named;
    if (!fstatat(folder_, partial_name(), &named, AT_SYMLINK_NOFOLLOW))
        LK_TRY(remove_left(named));
    const mode_t mode = has_old_ ? S_IRUSR | S_IWUSR : 0666;
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    const int descriptor = openat(folder_, partial_name(), flags, mode);
    if (descriptor < 0)
        return errno == EEXIST ? LK_OK : fail_io("cannot write", partial());
    struct stat opened;
    const lk_status status = lock(descriptor);
    *is_ours = !status && !fstat(descriptor, &opened) &&
               !fstatat(folder_, partial_name(), &named, AT_SYMLINK_NOFOLLOW) &&
               is_same(opened, named);
    if (*is_ours)
        descriptor_ = descriptor;
    else
        (void)close(descriptor);
    return status;
}

lk_status OutputFile::lock(int descriptor) const {
    if (!flock(descriptor, LOCK_EX | LOCK_NB))
        return LK_OK;
    return errno == EWOULDBLOCK ? fail(LK_E_IO, "%s is being written by another save", partial())
                                : fail_io("cannot lock", partial());
}

// A file that a save left which has ended. Its bytes may be open elsewhere and its mode is of
// another time, so it is not written again.
lk_status OutputFile::remove_left(const struct stat &named) const {
    if (!S_ISREG(named.st_mode))
        return fail(LK_E_IO, "%s is %s, and a save needs the name for a file", partial(),
                    kind_of(named));
    const int flags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW;
    const int descriptor = openat(folder_, partial_name(), flags);
    if (descriptor < 0)
        return errno == ENOENT ? LK_OK : fail_io("cannot write", partial());
    struct stat opened;
    struct stat now;
    lk_status status = lock(descriptor);
    const bool is_left = !status && !fstat(descriptor, &opened) && S_ISREG(opened.st_mode) &&
                         !fstatat(folder_, partial_name(), &now, AT_SYMLINK_NOFOLLOW) &&
                         is_same(opened, now);
    if (is_left && unlinkat(folder_, partial_name(), 0))
        status = fail_io("cannot remove", partial());
    (void)close(descriptor);
    return status;
}

// The new file is open to nobody whom the old one was closed to. Until here it is the owner's.
lk_status OutputFile::keep_access() const {
    struct stat made;
    if (fstat(descriptor_, &made))
        return fail_io("cannot look at", partial());
    bool has_group = made.st_gid == old_.st_gid;
    if (made.st_uid != old_.st_uid || !has_group)
        has_group = !fchown(descriptor_, old_.st_uid, old_.st_gid) ||
                    !fchown(descriptor_, static_cast<uid_t>(-1), old_.st_gid) || has_group;
    // Members of a group that cannot be kept are others now.
    const mode_t group = old_.st_mode >> 3 & 07;
    mode_t mode = old_.st_mode & 0777;
    if (!has_group)
        mode = (mode & 0700) | (mode & group);
    if (fchmod(descriptor_, mode))
        return fail_io("cannot set the mode of", partial());
    if (!keep_access_list() && fchmod(descriptor_, mode & 0700))
        return fail_io("cannot set the mode of", partial());
    return LK_OK;
}

// The list of users and groups next to the mode, or that there is none. False when the file has
// another one than the old file.
bool OutputFile::keep_access_list() const {
    const ssize_t n = lgetxattr(path_, kAccessList, nullptr, 0);
    if (n <= 0)
        return !fremovexattr(descriptor_, kAccessList) || errno == ENODATA || errno == ENOTSUP;
    Array<char> list;
    return list.resize(static_cast<size_t>(n)) &&
           lgetxattr(path_, kAccessList, list.data(), list.size()) == n &&
           !fsetxattr(descriptor_, kAccessList, list.data(), list.size(), 0);
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
    LK_TRY(look_at_target());
    if (renameat(folder_, partial_name(), folder_, name()))
        return fail_io("cannot rename to", path_);
    const lk_status status = sync_folder();
    const int descriptor = descriptor_;
    descriptor_ = -1;
    (void)close(descriptor);
    return status;
}

// The name is on the disk when the folder is. One that cannot be read is flushed with its whole
// file system; some file systems have no such call for folders.
lk_status OutputFile::sync_folder() const {
    const bool is_there =
        readable_folder_ < 0 ? !syncfs(descriptor_) : sync(readable_folder_) || errno == EINVAL;
    return is_there ? LK_OK
                    : fail(LK_E_IO,
                           "%s is the new file, which a crash may undo: flushing its folder: %s",
                           path_, std::strerror(errno));
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
    struct stat found;
    if (stat(path, &found))
        return fail_io("cannot open", path);
    // What is opened may be another file by then: the open must not wait for a pipe's writer.
    if (S_ISREG(found.st_mode)) {
        descriptor_ = ::open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (descriptor_ < 0 || fstat(descriptor_, &found))
            return fail_io("cannot open", path);
    }
    if (!S_ISREG(found.st_mode))
        return fail(LK_E_IO, "%s is %s, not a file", path, kind_of(found));
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
