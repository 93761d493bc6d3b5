// SPDX-License-Identifier: Apache-2.0
#include "cli/common/run.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
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

// What CLI11 knows of words that belong to no option is their number and not their command.
std::string unexpected_words(const CLI::App &app) {
    const CLI::App *command = &app;
    std::string name;
    for (auto chosen = command->get_subcommands(); !chosen.empty();
         chosen = command->get_subcommands()) {
        command = chosen.front();
        name += command->get_name() + " ";
    }
    std::string sentence = name + "does not take";
    for (const std::string &word : app.remaining(true))
        sentence += " " + word;
    return sentence + "; see " + app.get_name() + " " + name + "--help";
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
    } catch (const CLI::ExtrasError &) {
        return fail(unexpected_words(app).c_str(), kUsage);
    } catch (const CLI::ParseError &error) {
        if (error.get_exit_code() != 0)
            std::fprintf(stderr, "%s: ", app.get_name().c_str());
        if (app.exit(error) != 0)
            return kUsage;
    } catch (const UsageError &error) {
        return fail(error.what(), kUsage);
    } catch (const std::exception &error) {
        return fail(error.what(), kFailure);
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        return fail((std::string("cannot write to stdout: ") + std::strerror(errno)).c_str(),
                    kFailure);
    return exit_code;
}

}  // namespace cli
