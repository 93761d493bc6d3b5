// Saves and loads where a file is not what it seems: pipes, links, devices and folders, modes and
// owners, names that somebody else holds. As root, the program runs a second time as nobody.
//
// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
}

#include "api/rig.h"
#include "child.h"

namespace {

constexpr uid_t kNobody = 65534;
constexpr const char *kPath = "cache.lksnap";
constexpr const char *kPartial = "cache.lksnap.partial";
constexpr unsigned kSeconds = 60;  // in which a call that waits for ever ends the program

struct Scene {
    rig r{};
    lk_sequence id = 0;
    std::string folder;
};

// A cache in a fresh folder, which is the current one.
int open_scene(void **state) {
    alarm(kSeconds);
    (void)umask(022);
    auto *s = new Scene;
    char folder[] = "/tmp/lowkey-hostile-XXXXXX";
    assert_non_null(mkdtemp(folder));
    s->folder = folder;
    assert_int_equal(chdir(folder), 0);
    rig_geometry(&s->r, 1, 2, 1, 32);
    rig_open(&s->r);
    rig_preset(&s->r, "kivi2");
    rig_recent(&s->r, 32, 0, 32);
    assert_int_equal(rig_cache(&s->r, 4, 100, 16u << 20), LK_OK);
    assert_int_equal(lk_sequence_add(s->r.cache, &s->id), LK_OK);
    assert_int_equal(rig_fill(&s->r, s->id, 1, 0, 100, 50, nullptr), LK_OK);
    *state = s;
    return 0;
}

int close_scene(void **state) {
    auto *s = static_cast<Scene *>(*state);
    rig_close(&s->r);
    (void)chmod(s->folder.c_str(), 0700);
    const std::string command = "rm -rf " + s->folder;
    const int status = std::system(command.c_str());
    delete s;
    return status;
}

const Scene &scene(void **state) { return *static_cast<Scene *>(*state); }

lk_status save(const Scene &s, const char *path = kPath, const lk_snapshot_desc *desc = nullptr) {
    return lk_snapshot_save_file(s.r.cache, 0, nullptr, desc, path);
}
lk_status load(const Scene &s, const char *path) {
    lk_sequence id = 0;
    const lk_status status = lk_snapshot_load_file(s.r.cache, nullptr, path, 1, &id, nullptr);
    if (!status)
        assert_int_equal(lk_sequence_remove(s.r.cache, id), LK_OK);
    return status;
}
lk_status inspect(const char *path) {
    lk_snapshot *snapshot = nullptr;
    const lk_status status = lk_snapshot_open_file(path, &snapshot);
    lk_snapshot_close(&snapshot);
    return status;
}

void write_file(const char *path, mode_t mode) {
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(file >= 0);
    assert_int_equal(write(file, "old", 3), 3);
    assert_int_equal(fchmod(file, mode), 0);
    assert_int_equal(close(file), 0);
}
struct stat look(const char *path) {
    struct stat found {};
    assert_int_equal(lstat(path, &found), 0);
    return found;
}
mode_t mode_of(const char *path) { return look(path).st_mode & 07777; }
bool is_there(const char *path) {
    struct stat found {};
    return !lstat(path, &found);
}
bool is_old(const char *path) { return look(path).st_size == 3; }

lk_snapshot_desc with_progress(lk_progress_fn progress, void *user) {
    lk_snapshot_desc desc;
    assert_int_equal(lk_snapshot_desc_init(&desc, sizeof desc), LK_OK);
    desc.progress = progress;
    desc.progress_user = user;
    return desc;
}

// Each kind of file that is none, at a path; false where this system or user makes none.
using Make = bool (*)(const char *path);
struct Kind {
    const char *name;
    Make make;
};
const Kind kKinds[] = {
    {"a pipe", [](const char *path) { return !mkfifo(path, 0666); }},
    {"a folder", [](const char *path) { return !mkdir(path, 0777); }},
    {"a device", [](const char *path) { return !mknod(path, S_IFCHR | 0666, makedev(1, 3)); }},
    {"a socket",
     [](const char *path) {
         sockaddr_un address{};
         address.sun_family = AF_UNIX;
         std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
         const int file = socket(AF_UNIX, SOCK_STREAM, 0);
         const int failed = bind(file, reinterpret_cast<sockaddr *>(&address), sizeof address);
         return !close(file) && !failed;
     }},
};

void reads_files_alone(void **state) {
    const Scene &s = scene(state);
    for (const Kind &kind : kKinds) {
        if (!kind.make("other"))
            continue;
        assert_int_equal(load(s, "other"), LK_E_IO);
        rig_sentence(kind.name);
        assert_int_equal(inspect("other"), LK_E_IO);
        rig_sentence(kind.name);
        assert_int_equal(remove("other"), 0);
    }
    assert_int_equal(inspect("/dev/zero"), LK_E_IO);
    assert_int_equal(inspect("none"), LK_E_IO);
    assert_int_equal(save(s), LK_OK);
    assert_int_equal(symlink(kPath, "link"), 0);
    assert_int_equal(load(s, "link"), LK_OK);
    assert_int_equal(inspect("link"), LK_OK);
}

// What is no file stays, at the path and where the partial file would be.
void replaces_files_alone(void **state) {
    const Scene &s = scene(state);
    for (const char *at : {kPath, kPartial})
        for (const Kind &kind : kKinds) {
            if (!kind.make(at))
                continue;
            const struct stat before = look(at);
            assert_int_equal(save(s), LK_E_IO);
            rig_sentence(kind.name);
            const struct stat after = look(at);
            assert_int_equal(before.st_ino, after.st_ino);
            assert_int_equal(before.st_mode, after.st_mode);
            assert_false(is_there(at == kPath ? kPartial : kPath));
            assert_int_equal(remove(at), 0);
        }
    assert_int_equal(save(s, "folder/"), LK_E_IO);
    assert_int_equal(save(s, "none/file"), LK_E_IO);
    assert_int_equal(save(s, ""), LK_E_ARGUMENT);
}

void follows_no_link(void **state) {
    const Scene &s = scene(state);
    write_file("target", 0644);
    for (const char *at : {kPath, kPartial})
        for (const char *to : {"target", "none"}) {
            assert_int_equal(symlink(to, at), 0);
            assert_int_equal(save(s), LK_E_IO);
            rig_sentence("a link");
            assert_true(S_ISLNK(look(at).st_mode));
            assert_int_equal(unlink(at), 0);
        }
    assert_true(is_old("target"));
    assert_false(is_there("none"));
    assert_int_equal(mkdir("folder", 0777), 0);
    assert_int_equal(symlink("folder", "way"), 0);
    assert_int_equal(save(s, "way/cache"), LK_OK);
    assert_int_equal(inspect("folder/cache"), LK_OK);
}

// A device that is replaced would be gone for the whole machine.
void dev_null_stays(void **state) {
    const Scene &s = scene(state);
    assert_int_not_equal(save(s, "/dev/null"), LK_OK);
    assert_true(S_ISCHR(look("/dev/null").st_mode));
    assert_false(is_there("/dev/null.partial"));
}

int32_t check_private(void *user, uint64_t, uint64_t) {
    *static_cast<mode_t *>(user) |= mode_of(kPartial);
    return 0;
}

void keeps_the_mode(void **state) {
    const Scene &s = scene(state);
    assert_int_equal(save(s), LK_OK);
    assert_int_equal(mode_of(kPath), 0644);
    for (const mode_t mode : {0600u, 0640u, 0604u, 0400u, 0666u}) {
        write_file("fresh", mode);
        assert_int_equal(rename("fresh", kPath), 0);
        mode_t seen = 0;
        const lk_snapshot_desc desc = with_progress(check_private, &seen);
        assert_int_equal(save(s, kPath, &desc), LK_OK);
        assert_int_equal(mode_of(kPath), mode);
        assert_int_equal(seen, mode);
        assert_int_equal(inspect(kPath), mode & 0400 ? LK_OK : LK_E_IO);
    }
}

// Of version 2: a tag, permissions and an id for the owner, user 1234, the group, all of these, and
// others.
const uint8_t kAccessList[] = {2, 0,   0,   0,   1,   0,   6,  0, 255, 255, 255, 255, 2,   0,  4,
                               0, 210, 4,   0,   0,   4,   0,  0, 0,   255, 255, 255, 255, 16, 0,
                               4, 0,   255, 255, 255, 255, 32, 0, 0,   0,   255, 255, 255, 255};
constexpr const char *kListName = "system.posix_acl_access";

void keeps_the_access_list(void **state) {
    const Scene &s = scene(state);
    write_file(kPath, 0600);
    if (setxattr(kPath, kListName, kAccessList, sizeof kAccessList, 0))
        skip();
    assert_int_equal(save(s), LK_OK);
    uint8_t list[sizeof kAccessList + 8];
    assert_int_equal(getxattr(kPath, kListName, list, sizeof list), sizeof kAccessList);
    assert_memory_equal(list, kAccessList, sizeof kAccessList);
}

void keeps_the_owner(void **state) {
    const Scene &s = scene(state);
    if (geteuid() != 0)
        skip();
    write_file(kPath, 0600);
    assert_int_equal(chown(kPath, kNobody, kNobody), 0);
    assert_int_equal(save(s), LK_OK);
    assert_int_equal(look(kPath).st_uid, kNobody);
    assert_int_equal(look(kPath).st_gid, kNobody);
    assert_int_equal(mode_of(kPath), 0600);
}

void become_nobody() {
    if (setgroups(0, nullptr) || setresgid(kNobody, kNobody, kNobody) ||
        setresuid(kNobody, kNobody, kNobody)) {
        std::perror("nobody");
        _exit(1);
    }
    (void)prctl(PR_SET_DUMPABLE, 1);  // a check for leaks traces its own process
}

void save_as_nobody(void *user) {
    become_nobody();
    REQUIRE(save(*static_cast<Scene *>(user)) == LK_OK);
}

// A group that cannot be kept has no access, and its members are not more than they were.
void another_owner(void **state) {
    const Scene &s = scene(state);
    if (geteuid() != 0)
        skip();
    const mode_t modes[][2] = {{0640, 0600}, {0644, 0604}, {0606, 0600}, {0664, 0604}};
    for (const auto &mode : modes) {
        (void)unlink(kPath);
        write_file(kPath, mode[0]);
        assert_int_equal(chown(".", kNobody, kNobody), 0);
        assert_int_equal(in_child(save_as_nobody, const_cast<Scene *>(&s)), 0);
        assert_int_equal(look(kPath).st_uid, kNobody);
        assert_int_equal(mode_of(kPath), mode[1]);
    }
}

void a_partial_file_was_left(void **state) {
    const Scene &s = scene(state);
    write_file(kPartial, 0666);
    const int reader = open(kPartial, O_RDONLY);
    assert_int_equal(save(s), LK_OK);
    struct stat left {};
    assert_int_equal(fstat(reader, &left), 0);
    assert_int_equal(left.st_size, 3);
    assert_int_equal(left.st_nlink, 0);
    assert_int_equal(mode_of(kPath), 0644);
    assert_int_equal(close(reader), 0);
    write_file(kPartial, 0600);
    const int holder = open(kPartial, O_RDONLY);
    assert_int_equal(flock(holder, LOCK_EX), 0);
    assert_int_equal(save(s), LK_E_IO);
    rig_sentence("another save");
    assert_true(is_old(kPartial));
    assert_int_equal(close(holder), 0);
    assert_int_equal(save(s), LK_OK);
    assert_false(is_there(kPartial));
}

void folders_with_few_rights(void **state) {
    const Scene &s = scene(state);
    write_file(kPath, 0600);
    assert_int_equal(chmod(".", 0300), 0);
    assert_int_equal(save(s), LK_OK);
    assert_int_equal(inspect(kPath), LK_OK);
    assert_int_equal(save(s, "new"), LK_OK);
    assert_int_equal(chmod(".", 0500), 0);
    if (geteuid() == 0)
        return;
    const struct stat before = look(kPath);
    assert_int_equal(save(s), LK_E_IO);
    assert_int_equal(look(kPath).st_ino, before.st_ino);
    assert_int_equal(save(s, "other"), LK_E_IO);
    assert_false(is_there("other"));
}

void other_names_keep_the_old_bytes(void **state) {
    const Scene &s = scene(state);
    write_file(kPath, 0600);
    assert_int_equal(link(kPath, "second"), 0);
    assert_int_equal(save(s), LK_OK);
    assert_true(is_old("second"));
    assert_int_equal(inspect(kPath), LK_OK);
}

int32_t leave_folder(void *, uint64_t, uint64_t) { return chdir("/"); }

// A relative path means the folder in which the save began.
void the_current_folder_changes(void **state) {
    const Scene &s = scene(state);
    const lk_snapshot_desc desc = with_progress(leave_folder, nullptr);
    assert_int_equal(save(s, kPath, &desc), LK_OK);
    assert_int_equal(chdir(s.folder.c_str()), 0);
    assert_int_equal(inspect(kPath), LK_OK);
    assert_false(is_there(kPartial));
}

int32_t put_pipe(void *, uint64_t done, uint64_t total) {
    return done == total && unlink(kPath) + mkfifo(kPath, 0600);
}

void the_target_changes(void **state) {
    const Scene &s = scene(state);
    write_file(kPath, 0600);
    const lk_snapshot_desc desc = with_progress(put_pipe, nullptr);
    assert_int_equal(save(s, kPath, &desc), LK_E_IO);
    assert_true(S_ISFIFO(look(kPath).st_mode));
    assert_false(is_there(kPartial));
}

int32_t throw_progress(void *, uint64_t, uint64_t) { throw std::runtime_error("progress"); }
int32_t throw_write(void *, const void *, size_t) { throw 7; }
int64_t throw_read(void *, void *, size_t) { throw std::string("read"); }

void callbacks_that_throw(void **state) {
    const Scene &s = scene(state);
    write_file(kPath, 0600);
    const lk_snapshot_desc desc = with_progress(throw_progress, nullptr);
    assert_int_equal(save(s, kPath, &desc), LK_E_IO);
    rig_sentence("progress callback threw");
    assert_false(is_there(kPartial));
    assert_true(is_old(kPath));
    assert_int_equal(lk_snapshot_save(s.r.cache, 0, nullptr, nullptr, throw_write, nullptr),
                     LK_E_IO);
    rig_sentence("write callback threw");
    assert_int_equal(save(s), LK_OK);
    lk_sequence id = 0;
    assert_int_equal(lk_snapshot_load_file(s.r.cache, &desc, kPath, 1, &id, nullptr), LK_E_IO);
    assert_int_equal(lk_snapshot_load(s.r.cache, nullptr, throw_read, nullptr, 1, &id, nullptr),
                     LK_E_IO);
    rig_sentence("read callback threw");
    assert_int_equal(rig_stats(&s.r).n_sequences, 1);
    assert_int_equal(load(s, kPath), LK_OK);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, open_scene, close_scene)

int run_all() {
    const struct CMUnitTest tests[] = {
        CASE(reads_files_alone),
        CASE(replaces_files_alone),
        CASE(follows_no_link),
        CASE(dev_null_stays),
        CASE(keeps_the_mode),
        CASE(keeps_the_access_list),
        CASE(keeps_the_owner),
        CASE(another_owner),
        CASE(a_partial_file_was_left),
        CASE(folders_with_few_rights),
        CASE(other_names_keep_the_old_bytes),
        CASE(the_current_folder_changes),
        CASE(the_target_changes),
        CASE(callbacks_that_throw),
    };
    return cmocka_run_group_tests_name("files", tests, nullptr, nullptr);
}

void run_as_nobody(void *) {
    become_nobody();
    alarm(kSeconds);
    _exit(run_all() ? 1 : 0);
}

}  // namespace

int main() {
    const int status = geteuid() == 0 ? in_child(run_as_nobody, nullptr) : 0;
    return run_all() || status;
}
