// SPDX-License-Identifier: Apache-2.0
#include "cli/common/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "llama/error.h"

namespace cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_output(const std::string &path, const std::string &reason) {
    throw llama::Error("cannot write " + path + ": " + reason);
}

// A new file or one that another may replace.
bool is_replaceable(const fs::path &path) {
    std::error_code error;
    const fs::file_status found = fs::symlink_status(path, error);
    return !fs::exists(found) || fs::is_regular_file(found);
}

void write_in_place(const std::string &path, const std::string &bytes) {
    errno = 0;
    std::ofstream out(path, std::ios::binary);
    out << bytes;
    out.close();
    if (!out)
        refuse_output(path, std::strerror(errno != 0 ? errno : EIO));
}

}  // namespace

void check_output(const std::string &path) {
    if (path.empty())
        return;
    std::error_code error;
    const fs::file_status found = fs::status(path, error);
    if (fs::is_directory(found))
        refuse_output(path, std::strerror(EISDIR));
    if (fs::exists(found) && access(path.c_str(), W_OK) != 0)
        refuse_output(path, std::strerror(errno));
    if (!is_replaceable(path))
        return;
    const fs::path folder = fs::path(path).parent_path();
    if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0)
        refuse_output(path, std::strerror(errno));
}

void write_file(const std::string &path, const std::string &bytes) {
    check_output(path);
    if (!is_replaceable(path))
        return write_in_place(path, bytes);
    const std::string partial = path + ".partial";
    try {
        write_in_place(partial, bytes);
        std::error_code error;
        const fs::file_status old = fs::status(path, error);
        if (fs::exists(old))
            fs::permissions(partial, old.permissions(), error);
        fs::rename(partial, path, error);
        if (error)
            refuse_output(path, error.message());
    } catch (const llama::Error &) {
        (void)unlink(partial.c_str());
        throw;
    }
}

}  // namespace cli
