// lowkey: the command.
//
// SPDX-License-Identifier: Apache-2.0
#include "cli/common/command.h"
#include "cli/common/run.h"

int main(int argc, char **argv) {
    int exit_code = 0;
    CLI::App app{
        "lowkey keeps the key/value cache of a language model in packed low-bit pages and runs\n"
        "attention on them. This command shows what it does on this machine.\n"
        "Data goes to stdout, notes and progress to stderr. Exit code: 0 done, 1 failed, 2 usage."};
    app.name("lowkey");
    app.footer(
        "Start with:\n"
        "  lowkey info                      what this build and machine can do\n"
        "  lowkey demo                      a small model answers from every cache\n"
        "  lowkey plan kitty-pro --explain  what a plan keeps, at how many bits\n"
        "  lowkey bench                     how fast attention reads each plan's pages here\n"
        "then make a plan of your own model:\n"
        "  lowkey calibrate dump.safetensors -o stats.safetensors\n"
        "  lowkey plan auto --stats stats.safetensors --bits 2.5 -o plan.json\n"
        "  lowkey inspect plan.json\n"
        "lowkey COMMAND --help explains a command.");
    cli::add_info(app, exit_code);
    cli::add_demo(app, exit_code);
    cli::add_plan(app, exit_code);
    cli::add_calibrate(app, exit_code);
    cli::add_inspect(app, exit_code);
    cli::add_verify(app, exit_code);
    cli::add_bench(app, exit_code);
    return cli::run(app, argc, argv, exit_code);
}
