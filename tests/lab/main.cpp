// lowkey-lab: the studies that prove the methods. Built for tests, never installed.
//
// SPDX-License-Identifier: Apache-2.0
#include "cli/common/run.h"
#include "lab/commands.h"

int main(int argc, char **argv) {
    int exit_code = 0;
    CLI::App app{
        "lowkey-lab runs the studies of docs/lab/results.md: answers of a model from packed "
        "caches,\n"
        "steps of methods one by one, plans at equal bytes, attention on hard numbers."};
    app.name("lowkey-lab");
    app.footer("./dev eval runs all of them. lowkey-lab COMMAND --help explains a command.");
    cli::add_eval(app, exit_code);
    cli::add_ablation(app, exit_code);
    cli::add_suite(app, exit_code);
    cli::add_tables(app, exit_code);
    cli::add_stress(app, exit_code);
    cli::add_throughput(app, exit_code);
    cli::add_speeds(app, exit_code);
    return cli::run(app, argc, argv, exit_code);
}
