// lowkey inspect of a snapshot.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_INSPECT_SNAPSHOT_H
#define CLI_INSPECT_SNAPSHOT_H

#include <string>

namespace cli {

// Does the file begin as a snapshot does?
bool is_snapshot_file(const std::string &path);

// Print what it holds, and draw its bytes by class when png is a path. Throws llama::Error.
void inspect_snapshot(const std::string &path, bool as_json, const std::string &png);

}  // namespace cli

#endif
