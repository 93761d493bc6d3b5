// The weights of a model, in one file or in shards, which stay mapped.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_WEIGHTS_H
#define LLAMA_WEIGHTS_H

#include <initializer_list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "config.h"
#include "safetensors.h"

namespace llama {

class Weights {
  public:
    Weights() = default;
    // Adds a file. Throws Error where a tensor of it is there already.
    void add(const std::string &path);

    const std::vector<std::unique_ptr<SafetensorsFile>> &files() const { return files_; }
    // Throws Error when the tensor is absent, of another shape, or not F16, BF16 or F32.
    const Tensor &at(const std::string &name, std::initializer_list<std::uint64_t> shape) const;

  private:
    struct Place {
        std::size_t file;
        const Tensor *tensor;
    };

    std::vector<std::unique_ptr<SafetensorsFile>> files_;
    std::vector<std::string> paths_;
    std::unordered_map<std::string, Place> by_name_;
};

// A model as its files state it. Nothing of the weights has been read.
struct ModelSource {
    Config config;
    Weights weights;
    std::string config_text;   // what the config was read from, where that is a file of its own
    bool is_unpacked = false;  // keep weights as floats, for steps of few tokens
};

// A safetensors file of the form of the shipped model. Throws Error.
ModelSource read_model_file(const std::string &path);

// A folder of transformers: config.json, and model.safetensors or the shards of
// model.safetensors.index.json. Throws Error.
ModelSource read_model_folder(const std::string &path);

}  // namespace llama

#endif
