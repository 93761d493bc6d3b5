// A file's bytes, mapped and not copied.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_MAPPED_FILE_H
#define LLAMA_MAPPED_FILE_H

#include <cstddef>
#include <cstdint>
#include <string>

namespace llama {

class MappedFile {
  public:
    // Throws Error for what is no regular file or cannot be opened. Nobody may cut the file while
    // it is mapped.
    explicit MappedFile(const std::string &path);
    ~MappedFile();
    MappedFile(const MappedFile &) = delete;
    MappedFile &operator=(const MappedFile &) = delete;

    const std::uint8_t *data() const { return data_; }
    std::size_t size() const { return size_; }

  private:
    const std::uint8_t *data_ = nullptr;
    std::size_t size_ = 0;
};

// Throws Error where the path is a pipe, a device or a folder: the end of one may never come.
void check_file(const std::string &path);

}  // namespace llama

#endif
