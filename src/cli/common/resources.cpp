// SPDX-License-Identifier: Apache-2.0
#include "cli/common/resources.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "llama/safetensors.h"

namespace cli {
namespace {

namespace fs = std::filesystem;

fs::path executable_folder() {
    std::error_code error;
    const fs::path self = fs::read_symlink("/proc/self/exe", error);
    return error ? fs::path() : self.parent_path();
}

}  // namespace

std::string find_resource(const std::vector<std::string> &names) {
    const fs::path folder = executable_folder();
    for (const std::string &name : names) {
        std::vector<fs::path> candidates = {fs::path(name)};
        if (!folder.empty()) {
            candidates.push_back(folder / ".." / name);        // build/lowkey
            candidates.push_back(folder / "../../.." / name);  // build/tests/lab/lowkey-lab
            candidates.push_back(folder / "../share/lowkey" / fs::path(name).filename());
        }
        for (const fs::path &candidate : candidates) {
            std::error_code error;
            if (fs::is_regular_file(candidate, error)) {
                return candidate.lexically_normal().string();
            }
        }
    }
    return "";
}

std::string read_file(const std::string &path) {
    llama::check_file(path);
    std::ifstream in(path, std::ios::binary);
    if (!in) {
        throw llama::Error("cannot open " + path + ": " + std::strerror(errno));
    }
    std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (in.bad()) {
        throw llama::Error("cannot read " + path + ": " + std::strerror(errno));
    }
    return text;
}

std::vector<std::string> words_beside(const std::string &model_path) {
    std::ifstream in(fs::path(model_path).parent_path() / "words.txt");
    return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
}

}  // namespace cli
