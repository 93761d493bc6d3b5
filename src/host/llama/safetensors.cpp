// SPDX-License-Identifier: Apache-2.0
#include "safetensors.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

namespace llama {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100u << 20;
constexpr std::uint64_t kLengthBytes = 8;

std::uint64_t element_bytes(const std::string &dtype) {
    static const std::map<std::string, std::uint64_t> sizes = {
        {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
        {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
        {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8}};
    const auto found = sizes.find(dtype);
    return found == sizes.end() ? 0 : found->second;
}

std::vector<std::uint8_t> read_file(const std::string &path) {
    std::ifstream in(path, std::ios::binary | std::ios::ate);
    if (!in)
        throw Error("cannot open " + path);
    const std::streamoff size = in.tellg();
    if (size < 0)
        throw Error("cannot read " + path);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
    in.seekg(0);
    if (size > 0 && !in.read(reinterpret_cast<char *>(bytes.data()), size)) {
        throw Error("cannot read " + path);
    }
    return bytes;
}

std::uint64_t read_length(const std::uint8_t *at) {
    std::uint64_t length = 0;
    for (std::uint64_t i = 0; i < kLengthBytes; ++i)
        length |= std::uint64_t{at[i]} << (8 * i);
    return length;
}

bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t &product) {
    if (b != 0 && a > std::numeric_limits<std::uint64_t>::max() / b)
        return false;
    product = a * b;
    return true;
}

// One entry of the header: dtype, shape and data_offsets agree and lie in the file.
Tensor read_entry(const std::string &name, const nlohmann::json &entry, const std::uint8_t *data,
                  std::uint64_t n_data_bytes) {
    const std::string where = "tensor \"" + name + "\"";
    if (!entry.is_object())
        throw Error(where + " is not an object");
    Tensor tensor;
    tensor.name = name;
    tensor.dtype = entry.at("dtype").get<std::string>();
    const std::uint64_t size = element_bytes(tensor.dtype);
    if (size == 0)
        throw Error(where + " has the unknown dtype " + tensor.dtype);
    tensor.n_elements = 1;
    for (const nlohmann::json &extent : entry.at("shape")) {
        if (!extent.is_number_unsigned())
            throw Error(where + " has a bad shape");
        tensor.shape.push_back(extent.get<std::uint64_t>());
        if (!multiply(tensor.n_elements, tensor.shape.back(), tensor.n_elements)) {
            throw Error(where + " has a shape beyond 64 bits");
        }
    }
    if (!multiply(tensor.n_elements, size, tensor.n_bytes)) {
        throw Error(where + " has a shape beyond 64 bits");
    }
    const nlohmann::json &offsets = entry.at("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
        throw Error(where + " has bad data_offsets");
    }
    const std::uint64_t begin = offsets[0].get<std::uint64_t>();
    const std::uint64_t end = offsets[1].get<std::uint64_t>();
    if (begin > end || end > n_data_bytes)
        throw Error(where + " lies outside the file");
    if (end - begin != tensor.n_bytes)
        throw Error(where + " has offsets that do not fit its shape");
    tensor.data = data + begin;
    return tensor;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string &path) : bytes_(read_file(path)) {
    if (bytes_.size() < kLengthBytes)
        throw Error(path + " is too short for a safetensors file");
    const std::uint64_t header_bytes = read_length(bytes_.data());
    if (header_bytes > kMaxHeaderBytes || header_bytes > bytes_.size() - kLengthBytes) {
        throw Error(path + " states a header of " + std::to_string(header_bytes) +
                    " bytes, more than the file or the format holds");
    }
    try {
        parse_header(path, header_bytes);
    } catch (const nlohmann::json::exception &error) {
        throw Error(path + " has a bad header: " + error.what());
    }
}

void SafetensorsFile::parse_header(const std::string &path, std::uint64_t header_bytes) {
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(kLengthBytes);
    const auto end = begin + static_cast<std::ptrdiff_t>(header_bytes);
    const nlohmann::json header = nlohmann::json::parse(begin, end);
    if (!header.is_object())
        throw Error(path + " has a header that is not an object");
    const std::uint8_t *data = bytes_.data() + kLengthBytes + header_bytes;
    const std::uint64_t n_data_bytes = bytes_.size() - kLengthBytes - header_bytes;
    for (const auto &[name, entry] : header.items()) {
        if (name == "__metadata__") {
            metadata_ = entry.get<std::map<std::string, std::string>>();
        } else {
            tensors_.push_back(read_entry(name, entry, data, n_data_bytes));
        }
    }
    std::stable_sort(tensors_.begin(), tensors_.end(),
                     [](const Tensor &a, const Tensor &b) { return a.data < b.data; });
    check_layout(path, n_data_bytes);
}

// The format forbids holes and overlaps; both hide bytes from whoever reads the header.
void SafetensorsFile::check_layout(const std::string &path, std::uint64_t n_data_bytes) const {
    const std::uint8_t *next = bytes_.data() + (bytes_.size() - n_data_bytes);
    for (const Tensor &tensor : tensors_) {
        if (tensor.n_bytes != 0 && tensor.data != next) {
            throw Error("tensor \"" + tensor.name + "\" of " + path + " overlaps or leaves a hole");
        }
        next += tensor.n_bytes;
    }
    if (next != bytes_.data() + bytes_.size())
        throw Error(path + " has bytes that no tensor owns");
}

const Tensor *SafetensorsFile::find(const std::string &name) const {
    const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const Tensor &tensor) { return tensor.name == name; });
    return found == tensors_.end() ? nullptr : &*found;
}

const Tensor &SafetensorsFile::at(const std::string &name) const {
    const Tensor *tensor = find(name);
    if (tensor == nullptr)
        throw Error("the file has no tensor \"" + name + "\"");
    return *tensor;
}

}  // namespace llama
