// The subcommands of lowkey-lab.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LAB_COMMANDS_H
#define LAB_COMMANDS_H

#include "cli/common/command.h"

namespace cli {

// Each adds its subcommand; when chosen it runs and sets exit_code (0 done, 1 failed).
void add_eval(CLI::App &app, int &exit_code);
void add_ablation(CLI::App &app, int &exit_code);
void add_suite(CLI::App &app, int &exit_code);
void add_tables(CLI::App &app, int &exit_code);
void add_stress(CLI::App &app, int &exit_code);
void add_throughput(CLI::App &app, int &exit_code);
void add_speeds(CLI::App &app, int &exit_code);

}  // namespace cli

#endif
