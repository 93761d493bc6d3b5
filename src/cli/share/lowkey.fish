# Completion of lowkey for fish. Subcommands and options are what --help says.
function __lowkey_commands
    lowkey --help 2>/dev/null | sed -nE '/^Subcommands:/,/^$/s/^  ([a-z]+) +(.*)/\1\t\2/p'
end
function __lowkey_options
    set -l words (string match -v -- '-*' (commandline -opc)[2..])
    # A method of plan has options of its own.
    if test "$words[1]" != plan
        set words $words[1]
    else
        set words $words[1..2]
    end
    lowkey $words --help 2>/dev/null | sed -nE 's/^  (-[^ ]*).*/\1/p' | tr , '\n'
end
function __lowkey_methods
    lowkey plan --help 2>/dev/null | sed -nE '/^Subcommands:/,/^$/s/^  ([a-z0-9-]+) +(.*)/\1\t\2/p'
end
complete -c lowkey -n '__fish_seen_subcommand_from plan' -a '(__lowkey_methods)'
complete -c lowkey -n __fish_use_subcommand -f -a '(__lowkey_commands)'
complete -c lowkey -n 'string match -q -- "-*" (commandline -ct)' -f -a '(__lowkey_options)'
