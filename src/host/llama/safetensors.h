// Reader of safetensors files. The file is untrusted: everything is checked before use.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_SAFETENSORS_H
#define LLAMA_SAFETENSORS_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "error.h"
#include "mapped_file.h"

namespace llama {

struct Tensor {
    std::string name;
    std::string dtype;  // as in the file: "F16", "BF16", "F32", "I32", "U8", ...
    std::vector<std::uint64_t> shape;
    const std::uint8_t *data = nullptr;  // owned by the file; not aligned
    std::uint64_t n_elements = 0;
    std::uint64_t n_bytes = 0;
};

class SafetensorsFile {
  public:
    // Maps the file and validates its header against its size. Throws Error.
    explicit SafetensorsFile(const std::string &path);
    SafetensorsFile(const SafetensorsFile &) = delete;
    SafetensorsFile &operator=(const SafetensorsFile &) = delete;

    const MappedFile &bytes() const { return bytes_; }
    const std::vector<Tensor> &tensors() const { return tensors_; }  // in file order
    const std::map<std::string, std::string> &metadata() const { return metadata_; }

    const Tensor *find(const std::string &name) const;  // nullptr when absent
    const Tensor &at(const std::string &name) const;    // throws Error when absent

  private:
    void parse_header(const std::string &path, std::uint64_t header_bytes);
    void check_layout(const std::string &path, std::uint64_t n_data_bytes) const;
    void index_names(const std::string &path);

    MappedFile bytes_;
    std::vector<Tensor> tensors_;
    std::vector<std::size_t> by_name_;  // indices of tensors_
    std::map<std::string, std::string> metadata_;
};

// F16, BF16, F32 or F64 to float. Throws Error for another dtype.
std::vector<float> to_floats(const Tensor &tensor);

// The same for elements [first, first + n) of the tensor, which it has.
void to_floats(const Tensor &tensor, std::uint64_t first, std::size_t n, float *out);

// I32, I64 or U8 to int32. Throws Error for another dtype or a value out of range.
std::vector<std::int32_t> to_ints(const Tensor &tensor);

float float_from_half(std::uint16_t half);

}  // namespace llama

#endif
