// lowkey: the command.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>

#include "command.h"

namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

int fail(const char *sentence, int exit_code) {
    std::fprintf(stderr, "lowkey: %s\n", sentence);
    return exit_code;
}

}  // namespace

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
        "  lowkey plan kitty-pro --explain  what a plan keeps, at how many bits\n"
        "  lowkey eval --demo               let a small model answer from every cache\n"
        "lowkey COMMAND --help explains a command.");
    app.set_version_flag("--version", std::string(lk_version()));
    app.require_subcommand(1);
    cli::add_info(app, exit_code);
    cli::add_plan(app, exit_code);
    cli::add_calibrate(app, exit_code);
    cli::add_inspect(app, exit_code);
    cli::add_verify(app, exit_code);
    cli::add_bench(app, exit_code);
    cli::add_eval(app, exit_code);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        return app.exit(error) == 0 ? 0 : kUsage;
    } catch (const cli::UsageError &error) {
        return fail(error.what(), kUsage);
    } catch (const std::exception &error) {
        return fail(error.what(), kFailure);
    }
    return exit_code;
}
