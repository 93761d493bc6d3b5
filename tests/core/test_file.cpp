// Snapshots in files: a save replaces the old file whole or not at all.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/file.h"

#include "snapshot_rig.h"

#include <cerrno>
#include <cstdio>
#include <string>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

// A folder of its own, which goes with all that a test may leave in it.
class Folder {
  public:
    Folder() { assert_non_null(mkdtemp(path_)); }
    ~Folder() {
        for (const char *name : {"/snapshot", "/snapshot.partial", "/empty"})
            (void)unlink((path_ + std::string(name)).c_str());
        assert_int_equal(rmdir(path_), 0);
    }
    Folder(const Folder &) = delete;
    Folder &operator=(const Folder &) = delete;
    std::string operator/(const char *name) const { return path_ + std::string("/") + name; }

  private:
    char path_[32] = "lowkey-file-XXXXXX";
};

std::vector<uint8_t> content_of(const std::string &path) {
    std::vector<uint8_t> bytes;
    const auto append = [&](lk::SnapshotSource *source) {
        const uint8_t *out = nullptr;
        const uint64_t n_bytes = source->known_bytes();
        assert_int_equal(source->take(n_bytes, &out), LK_OK);
        bytes.assign(out, out + n_bytes);
        return source->finish();
    };
    assert_int_equal(lk::with_snapshot_file(lk::default_allocator(), path.c_str(), append), LK_OK);
    return bytes;
}
bool is_there(const std::string &path) { return access(path.c_str(), F_OK) == 0; }

const lk::SnapshotChoice kAll = {0, nullptr, nullptr};

void files_are_what_memory_would_be(void **) {
    const Folder folder;
    const std::string path = folder / "snapshot";
    CacheRig rig;
    lk::Sequence *sequence = rig.add();
    rig.step(sequence, 16 + 40);
    for (int again = 0; again < 2; ++again) {
        assert_int_equal(lk::save_snapshot_file(rig.cache, kAll, path.c_str()), LK_OK);
        assert_true(content_of(path) == save_all(&rig));
        assert_false(is_there(folder / "snapshot.partial"));
        rig.step(sequence, 1);
    }
}

void a_failed_save_keeps_the_old_file(void **) {
    const Folder folder;
    const std::string path = folder / "snapshot";
    CacheRig rig;
    rig.step(rig.add(), 16 + 40);
    const std::vector<uint8_t> old = save_all(&rig);
    assert_int_equal(lk::save_snapshot_file(rig.cache, kAll, path.c_str()), LK_OK);
    rig.step(rig.add(), 5);
    rig.device().fails_copies = true;
    assert_int_equal(lk::save_snapshot_file(rig.cache, kAll, path.c_str()), LK_E_DEVICE);
    rig.device().fails_copies = false;
    assert_true(rig.run_out_of_memory([&] {
        const lk_status status = lk::save_snapshot_file(rig.cache, kAll, path.c_str());
        if (status) {
            assert_true(content_of(path) == old);
            assert_false(is_there(folder / "snapshot.partial"));
        }
        return status;
    }) >= 3);
    assert_true(content_of(path) == save_all(&rig));
}

void one_save_at_a_time(void **) {
    const Folder folder;
    const std::string path = folder / "snapshot";
    const std::string partial = folder / "snapshot.partial";
    CacheRig rig;
    rig.step(rig.add(), 5);
    const int descriptor = open(partial.c_str(), O_RDWR | O_CREAT, 0600);
    assert_true(descriptor >= 0);
    assert_int_equal(flock(descriptor, LOCK_EX), 0);
    assert_int_equal(lk::save_snapshot_file(rig.cache, kAll, path.c_str()), LK_E_IO);
    sentence_has("is being written by another save");
    assert_true(is_there(partial));
    assert_false(is_there(path));
    // What a save that was killed has left is written over.
    assert_int_equal(write(descriptor, "old", 3), 3);
    assert_int_equal(close(descriptor), 0);
    assert_int_equal(lk::save_snapshot_file(rig.cache, kAll, path.c_str()), LK_OK);
    assert_true(content_of(path) == save_all(&rig));
}

void paths_that_cannot_be_written_are_refused(void **) {
    const Folder folder;
    CacheRig rig;
    assert_int_equal(lk::save_snapshot_file(rig.cache, kAll, ""), LK_E_ARGUMENT);
    const std::string missing = folder / "none/snapshot";
    assert_int_equal(lk::save_snapshot_file(rig.cache, kAll, missing.c_str()), LK_E_IO);
    sentence_has("cannot open the folder");
    // A link in place of the file that is written would lead elsewhere.
    assert_int_equal(symlink("elsewhere", (folder / "snapshot.partial").c_str()), 0);
    const std::string path = folder / "snapshot";
    assert_int_equal(lk::save_snapshot_file(rig.cache, kAll, path.c_str()), LK_E_IO);
    // A folder is not replaced.
    assert_int_equal(unlink((folder / "snapshot.partial").c_str()), 0);
    assert_int_equal(mkdir(path.c_str(), 0700), 0);
    assert_int_equal(lk::save_snapshot_file(rig.cache, kAll, path.c_str()), LK_E_IO);
    sentence_has("is a folder");
    assert_false(is_there(folder / "snapshot.partial"));
    assert_int_equal(rmdir(path.c_str()), 0);
}

void only_files_with_bytes_are_read(void **) {
    const Folder folder;
    const auto open_only = [](const char *path) {
        lk::InputFile file;
        return file.open(path);
    };
    assert_int_equal(open_only(nullptr), LK_E_ARGUMENT);
    assert_int_equal(open_only((folder / "snapshot").c_str()), LK_E_IO);
    sentence_has("cannot open");
    assert_int_equal(open_only((folder / "").c_str()), LK_E_IO);
    sentence_has("is a folder, not a file");
    const std::string empty = folder / "empty";
    const int descriptor = open(empty.c_str(), O_RDWR | O_CREAT, 0600);
    assert_int_equal(open_only(empty.c_str()), LK_E_CORRUPT);
    sentence_has("is empty");
    assert_int_equal(write(descriptor, "abc", 3), 3);
    assert_int_equal(close(descriptor), 0);
    lk::InputFile file;
    assert_int_equal(file.open(empty.c_str()), LK_OK);
    assert_int_equal(file.n_bytes(), 3);
    char bytes[8];
    assert_int_equal(lk::InputFile::read(&file, bytes, 2), 2);
    assert_int_equal(lk::InputFile::read(&file, bytes, 8), 1);
    assert_int_equal(lk::InputFile::read(&file, bytes, 8), 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(files_are_what_memory_would_be),
        cmocka_unit_test(a_failed_save_keeps_the_old_file),
        cmocka_unit_test(one_save_at_a_time),
        cmocka_unit_test(paths_that_cannot_be_written_are_refused),
        cmocka_unit_test(only_files_with_bytes_are_read),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
