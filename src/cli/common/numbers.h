// Numbers of the command line with a suffix after them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_NUMBERS_H
#define CLI_NUMBERS_H

#include <CLI/CLI.hpp>

namespace cli {

// For CLI::Option::transform(): a count such as 4096 or 128K, bytes such as 48G or 2GiB. K, M, G
// and T are powers of 1024 in either case. Anything else, a sign included, is refused by name.
CLI::Validator Count();
CLI::Validator Bytes();

}  // namespace cli

#endif
