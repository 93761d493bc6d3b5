# Completion of lowkey for fish. Subcommands and options are what --help says.
function __lowkey_commands
    lowkey --help 2>/dev/null | sed -nE '/^Subcommands:/,/^$/s/^  ([a-z]+) +(.*)/\1\t\2/p'
end
function __lowkey_options
    set -l command (commandline -opc)[2..]
    lowkey (string match -v -- '-*' $command)[1] --help 2>/dev/null | sed -nE 's/^  (-[^ ]*).*/\1/p' | tr , '\n'
end
complete -c lowkey -n __fish_use_subcommand -f -a '(__lowkey_commands)'
complete -c lowkey -n 'string match -q -- "-*" (commandline -ct)' -f -a '(__lowkey_options)'
