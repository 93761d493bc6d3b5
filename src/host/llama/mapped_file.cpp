// SPDX-License-Identifier: Apache-2.0
#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "error.h"

namespace llama {

MappedFile::MappedFile(const std::string &path) {
    check_file(path);
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0)
        throw Error("cannot open " + path + ": " + std::strerror(errno));
    struct stat found;
    void *bytes = nullptr;
    const bool has_size = fstat(file, &found) == 0 && found.st_size >= 0;
    if (has_size && found.st_size > 0)
        bytes =
            mmap(nullptr, static_cast<std::size_t>(found.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    (void)close(file);
    if (!has_size || bytes == MAP_FAILED)
        throw Error("cannot read " + path);
    data_ = static_cast<const std::uint8_t *>(bytes);
    size_ = static_cast<std::size_t>(found.st_size);
}

MappedFile::~MappedFile() {
    if (size_ != 0)
        (void)munmap(const_cast<std::uint8_t *>(data_), size_);
}

void check_file(const std::string &path) {
    std::error_code error;
    const std::filesystem::file_status found = std::filesystem::status(path, error);
    if (std::filesystem::exists(found) && !std::filesystem::is_regular_file(found))
        throw Error(path + (std::filesystem::is_directory(found) ? " is a folder, not a file"
                            : std::filesystem::is_fifo(found)    ? " is a pipe, not a file"
                                                                 : " is a device, not a file"));
}

}  // namespace llama
