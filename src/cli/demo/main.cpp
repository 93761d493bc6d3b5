// lowkey-demo: the demo alone, which builds in a fraction of the command's time. Not installed.
//
// SPDX-License-Identifier: Apache-2.0
#include "cli/common/command.h"
#include "cli/common/run.h"

int main(int argc, char **argv) {
    int exit_code = 0;
    CLI::App app{"The demo of lowkey alone."};
    app.name("lowkey-demo");
    cli::add_demo(app, exit_code);
    return cli::run(app, argc, argv, exit_code);
}
