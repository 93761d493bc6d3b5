// Snapshots in files.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SNAPSHOT_FILE_H
#define LK_CORE_SNAPSHOT_FILE_H

#include "core/snapshot/save.h"

namespace lk {

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
    LK_TRY(file.open(path));
    CallbackSource source(allocator, InputFile::read, &file, file.n_bytes());
    return use(&source);
}

}  // namespace lk

#endif
