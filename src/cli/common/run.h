// The main function of a program with subcommands.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include <CLI/CLI.hpp>

namespace cli {

// Parses, runs the chosen subcommand, and prints one sentence for what was refused. The exit code
// is the subcommand's, 1 for a failure, 2 for a wrong command line.
int run(CLI::App &app, int argc, char **argv, const int &exit_code);

}  // namespace cli

#endif
