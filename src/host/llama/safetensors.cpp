// SPDX-License-Identifier: Apache-2.0
#include "safetensors.h"

#include <algorithm>
#include <limits>
#include <utility>

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

// One entry of the header, as it says.
struct Entry {
    std::string name;
    bool has_dtype = false, has_shape = false, has_offsets = false;
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::vector<std::uint64_t> offsets;
};

// dtype, shape and data_offsets agree and lie in the file.
Tensor tensor_of(const Entry &entry, const std::uint8_t *data, std::uint64_t n_data_bytes) {
    const std::string where = "tensor \"" + entry.name + "\"";
    if (!entry.has_dtype || !entry.has_shape || !entry.has_offsets)
        throw Error(where + " must have a dtype, a shape and data_offsets");
    Tensor tensor;
    tensor.name = entry.name;
    tensor.dtype = entry.dtype;
    tensor.shape = entry.shape;
    const std::uint64_t size = element_bytes(tensor.dtype);
    if (size == 0)
        throw Error(where + " has the unknown dtype " + tensor.dtype);
    tensor.n_elements = 1;
    for (const std::uint64_t extent : tensor.shape)
        if (!multiply(tensor.n_elements, extent, tensor.n_elements))
            throw Error(where + " has a shape beyond 64 bits");
    if (!multiply(tensor.n_elements, size, tensor.n_bytes)) {
        throw Error(where + " has a shape beyond 64 bits");
    }
    if (entry.offsets.size() != 2)
        throw Error(where + " has bad data_offsets");
    const std::uint64_t begin = entry.offsets[0], end = entry.offsets[1];
    if (begin > end || end > n_data_bytes)
        throw Error(where + " lies outside the file");
    if (end - begin != tensor.n_bytes)
        throw Error(where + " has offsets that do not fit its shape");
    tensor.data = data + begin;
    return tensor;
}

// Reads a header value by value, so that its memory follows the tensors and not the text.
template <class AddEntry, class AddText>
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
  public:
    HeaderReader(std::string path, AddEntry add_entry, AddText add_text)
        : path_(std::move(path)), add_entry_(add_entry), add_text_(add_text) {}

    bool null() override { return scalar("null"); }
    bool boolean(bool) override { return scalar("a boolean"); }
    bool number_integer(number_integer_t) override { return scalar("a number below 0"); }
    bool number_float(number_float_t, const string_t &) override {
        return scalar("no whole number");
    }
    bool number_unsigned(number_unsigned_t number) override {
        if (place_ == Place::kShape)
            entry_.shape.push_back(number);
        else if (place_ == Place::kOffsets && entry_.offsets.size() < 3)
            entry_.offsets.push_back(number);
        else if (place_ != Place::kOffsets)
            return scalar("a number");
        return true;
    }
    bool string(string_t &text) override {
        if (place_ == Place::kMetadata)
            add_text_(key_, text);
        else if (place_ == Place::kEntry && member_ == "dtype")
            entry_.dtype = text;
        else
            return scalar("a string");
        return true;
    }
    bool binary(binary_t &) override { return false; }
    bool start_object(std::size_t) override {
        if (place_ == Place::kOutside) {
            place_ = Place::kRoot;
        } else if (place_ == Place::kRoot && key_ == "__metadata__") {
            place_ = Place::kMetadata;
        } else if (place_ == Place::kRoot) {
            place_ = Place::kEntry;
            entry_ = {};
            entry_.name = key_;
        } else {
            scalar("an object");
        }
        return true;
    }
    bool end_object() override {
        if (place_ == Place::kEntry)
            add_entry_(entry_);
        place_ = place_ == Place::kRoot ? Place::kOutside : Place::kRoot;
        return true;
    }
    bool start_array(std::size_t) override {
        if (place_ == Place::kEntry && member_ == "shape")
            place_ = Place::kShape;
        else if (place_ == Place::kEntry && member_ == "data_offsets")
            place_ = Place::kOffsets;
        else
            scalar("an array");
        return true;
    }
    bool end_array() override {
        place_ = Place::kEntry;
        return true;
    }
    bool key(string_t &name) override {
        if (place_ != Place::kEntry) {
            key_ = name;
            return true;
        }
        member_ = name;
        bool *has = name == "dtype"          ? &entry_.has_dtype
                    : name == "shape"        ? &entry_.has_shape
                    : name == "data_offsets" ? &entry_.has_offsets
                                             : nullptr;
        if (has == nullptr)
            throw Error(where() + " has a member \"" + name + "\" that the format does not know");
        if (*has)
            throw Error(where() + " has its " + name + " twice");
        *has = true;
        return true;
    }
    bool parse_error(std::size_t, const std::string &,
                     const nlohmann::detail::exception &error) override {
        throw Error(path_ + " has a bad header: " + error.what());
    }

  private:
    enum class Place { kOutside, kRoot, kMetadata, kEntry, kShape, kOffsets };

    std::string where() const { return "tensor \"" + entry_.name + "\""; }
    // A value that its place does not have.
    [[noreturn]] bool scalar(const char *what) const {
        switch (place_) {
            case Place::kOutside: throw Error(path_ + " has a header that is not an object");
            case Place::kRoot: throw Error("tensor \"" + key_ + "\" is not an object");
            case Place::kMetadata:
                throw Error(path_ + " has metadata \"" + key_ + "\" that is " + what +
                            ", must be a string");
            case Place::kShape: throw Error(where() + " has a bad shape");
            case Place::kOffsets: throw Error(where() + " has bad data_offsets");
            default: throw Error(where() + " has a bad " + member_);
        }
    }

    const std::string path_;
    AddEntry add_entry_;
    AddText add_text_;
    Place place_ = Place::kOutside;
    std::string key_;     // of the header, or of its metadata
    std::string member_;  // of the entry
    Entry entry_;
};

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string &path) : bytes_(path) {
    if (bytes_.size() < kLengthBytes)
        throw Error(path + " is too short for a safetensors file");
    const std::uint64_t header_bytes = read_length(bytes_.data());
    if (header_bytes > kMaxHeaderBytes || header_bytes > bytes_.size() - kLengthBytes) {
        throw Error(path + " states a header of " + std::to_string(header_bytes) +
                    " bytes, more than the file or the format holds");
    }
    parse_header(path, header_bytes);
}

void SafetensorsFile::parse_header(const std::string &path, std::uint64_t header_bytes) {
    const std::uint8_t *text = bytes_.data() + kLengthBytes;
    const std::uint8_t *data = text + header_bytes;
    const std::uint64_t n_data_bytes = bytes_.size() - kLengthBytes - header_bytes;
    const auto add_tensor = [&](const Entry &entry) {
        tensors_.push_back(tensor_of(entry, data, n_data_bytes));
    };
    const auto add_text = [&](const std::string &key, const std::string &value) {
        if (!metadata_.emplace(key, value).second)
            throw Error(path + " has the metadata \"" + key + "\" twice");
    };
    HeaderReader reader(path, add_tensor, add_text);
    // Newer standard libraries have no traits of unsigned characters, which the parser needs.
    const char *chars = reinterpret_cast<const char *>(text);
    nlohmann::json::sax_parse(chars, chars + header_bytes, &reader);
    std::stable_sort(tensors_.begin(), tensors_.end(),
                     [](const Tensor &a, const Tensor &b) { return a.data < b.data; });
    check_layout(path, n_data_bytes);
    index_names(path);
}

// Two tensors of one name are two answers to one question.
void SafetensorsFile::index_names(const std::string &path) {
    for (std::size_t i = 0; i < tensors_.size(); ++i)
        by_name_.push_back(i);
    std::sort(by_name_.begin(), by_name_.end(),
              [&](std::size_t a, std::size_t b) { return tensors_[a].name < tensors_[b].name; });
    for (std::size_t i = 1; i < by_name_.size(); ++i)
        if (tensors_[by_name_[i]].name == tensors_[by_name_[i - 1]].name)
            throw Error(path + " has the tensor \"" + tensors_[by_name_[i]].name + "\" twice");
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
    const auto found = std::lower_bound(
        by_name_.begin(), by_name_.end(), name,
        [&](std::size_t i, const std::string &wanted) { return tensors_[i].name < wanted; });
    return found == by_name_.end() || tensors_[*found].name != name ? nullptr : &tensors_[*found];
}

const Tensor &SafetensorsFile::at(const std::string &name) const {
    const Tensor *tensor = find(name);
    if (tensor == nullptr)
        throw Error("the file has no tensor \"" + name + "\"");
    return *tensor;
}

}  // namespace llama
