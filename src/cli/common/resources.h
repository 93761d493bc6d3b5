// Files that the command finds by itself.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_RESOURCES_H
#define CLI_RESOURCES_H

#include <string>
#include <vector>

namespace cli {

// The first of names (paths from the top of the source tree) that exists: from the current folder,
// from the tree that holds the executable's build folder, or installed in share/lowkey. Empty when
// there is none.
std::string find_resource(const std::vector<std::string> &names);

std::string read_file(const std::string &path);  // throws llama::Error

// Words of words.txt next to the model; empty when there is none.
std::vector<std::string> words_beside(const std::string &model_path);

}  // namespace cli

#endif
