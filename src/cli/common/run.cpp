// SPDX-License-Identifier: Apache-2.0
#include "cli/common/run.h"

#include <cstdio>
#include <exception>

#include "cli/common/command.h"
#include "cli/common/report.h"

namespace cli {
namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

bool has_command(CLI::App &app, const std::string &name) {
    return !app.get_subcommands([&](CLI::App *command) { return command->get_name() == name; })
                .empty();
}

}  // namespace

int run(CLI::App &app, int argc, char **argv, const int &exit_code) {
    const auto fail = [&](const char *sentence, int code) {
        std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), printable(sentence).c_str());
        return code;
    };
    app.set_version_flag("--version", std::string(lk_version()));
    app.require_subcommand(1);
    // Subcommands take all that comes after their names, so a word before them names none.
    if (argc > 1 && argv[1][0] != '-' && !has_command(app, argv[1]))
        return fail(("there is no command " + std::string(argv[1]) + "; see --help").c_str(),
                    kUsage);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        if (error.get_exit_code() != 0)
            std::fprintf(stderr, "%s: ", app.get_name().c_str());
        return app.exit(error) == 0 ? 0 : kUsage;
    } catch (const UsageError &error) {
        return fail(error.what(), kUsage);
    } catch (const std::exception &error) {
        return fail(error.what(), kFailure);
    }
    return exit_code;
}

}  // namespace cli
