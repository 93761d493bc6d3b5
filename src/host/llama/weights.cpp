// SPDX-License-Identifier: Apache-2.0
#include "weights.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "json.h"

namespace llama {
namespace {

namespace fs = std::filesystem;

const char *const kWeightsFile = "model.safetensors";
const char *const kIndexFile = "model.safetensors.index.json";

std::string shape_text(const std::vector<std::uint64_t> &shape) {
    std::string text;
    for (const std::uint64_t extent : shape)
        text += "[" + std::to_string(extent) + "]";
    return text.empty() ? "[]" : text;
}

// The index's tensors by shard. A shard is a file of the folder.
std::map<std::string, std::vector<std::string>> read_index(const std::string &path) {
    const nlohmann::json index = parse_object(read_json_text(path), path);
    const auto list = index.find("weight_map");
    if (list == index.end() || !list->is_object() || list->empty())
        throw Error(path + " has no weight_map");
    std::map<std::string, std::vector<std::string>> shards;
    for (const auto &[tensor, shard] : list->items()) {
        if (!shard.is_string())
            throw Error(path + " has no shard for the tensor \"" + tensor + "\"");
        const std::string name = shard.get<std::string>();
        if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
            name.find('\0') != std::string::npos)
            throw Error(path + " has the shard \"" + name + "\", which is no file of the folder");
        shards[name].push_back(tensor);
    }
    return shards;
}

// A path that cannot be looked at is not there.
bool is_there(const fs::path &path) {
    std::error_code error;
    return fs::exists(path, error);
}

Weights read_shards(const fs::path &folder) {
    const std::string index = (folder / kIndexFile).string();
    const auto shards = read_index(index);
    for (const auto &[name, tensors] : shards)
        if (!is_there(folder / name))
            throw Error(index + " has the shard " + name + ", which is not there");
    Weights weights;
    for (const auto &[name, tensors] : shards) {
        weights.add((folder / name).string());
        for (const std::string &tensor : tensors)
            if (weights.files().back()->find(tensor) == nullptr)
                throw Error(index + " has the tensor \"" + tensor + "\" in " + name +
                            ", which does not have it");
    }
    return weights;
}

}  // namespace

void Weights::add(const std::string &path) {
    auto file = std::make_unique<SafetensorsFile>(path);
    for (const Tensor &tensor : file->tensors()) {
        const auto [place, is_new] = by_name_.emplace(tensor.name, Place{files_.size(), &tensor});
        if (!is_new)
            throw Error("tensor \"" + tensor.name + "\" is in " + paths_[place->second.file] +
                        " and in " + path);
    }
    files_.push_back(std::move(file));
    paths_.push_back(path);
}

const Tensor &Weights::at(const std::string &name,
                          std::initializer_list<std::uint64_t> shape) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end())
        throw Error("the model has no tensor \"" + name + "\"");
    const Tensor &tensor = *found->second.tensor;
    const std::string where = "tensor \"" + name + "\" of " + paths_[found->second.file];
    if (!std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end()))
        throw Error(where + " is " + shape_text(tensor.shape) + ", its config states " +
                    shape_text(shape));
    if (tensor.dtype != "F16" && tensor.dtype != "BF16" && tensor.dtype != "F32")
        throw Error(where + " is " + tensor.dtype + ", must be F16, BF16 or F32");
    return tensor;
}

ModelSource read_model_file(const std::string &path) {
    ModelSource source;
    source.weights.add(path);
    source.config = read_metadata(*source.weights.files().front(), path);
    source.is_unpacked = true;
    return source;
}

ModelSource read_model_folder(const std::string &path) {
    const fs::path folder(path);
    const std::string config = (folder / "config.json").string();
    ModelSource source;
    source.config_text = read_json_text(config);
    source.config = read_config(source.config_text, config);
    if (is_there(folder / kWeightsFile))
        source.weights.add((folder / kWeightsFile).string());
    else if (is_there(folder / kIndexFile))
        source.weights = read_shards(folder);
    else
        throw Error(path + " has neither " + kWeightsFile + " nor " + kIndexFile);
    return source;
}

}  // namespace llama
