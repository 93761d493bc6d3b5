// Files that the command writes.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_OUTPUT_FILE_H
#define CLI_OUTPUT_FILE_H

#include <string>

namespace cli {

// Throws llama::Error if write_file() could not write the path: before work that may take hours.
// An empty path is no file.
void check_output(const std::string &path);

// Writes a file whole: under the name PATH.partial, which then replaces an older file of the path
// and takes its mode, so that a full disk or an interruption leaves that one as it was. A link, a
// device or a pipe is written in place. Throws llama::Error.
void write_file(const std::string &path, const std::string &bytes);

}  // namespace cli

#endif
