# Completion of lowkey for fish. Subcommands and options are what --help says.
function __lowkey_commands
    lowkey --help 2>/dev/null | sed -nE '/^Subcommands:/,/^$/s/^  ([a-z]+) +(.*)/\1\t\2/p'
end
function __lowkey_words
    string match -v -- '-*' (commandline -opc)[2..]
end
function __lowkey_options
    set -l words (__lowkey_words)
    # A method of plan has options of its own.
    if test "$words[1]" != plan
        set words $words[1]
    else
        set words $words[1..2]
    end
    lowkey $words --help 2>/dev/null | sed -nE 's/^  (-[^ {]*).*/\1/p' | tr , '\n'
end
function __lowkey_methods
    lowkey plan --help 2>/dev/null | sed -nE '/^Subcommands:/,/^$/s/^  ([a-z0-9-]+) +(.*)/\1\t\2/p'
end
function __lowkey_takes_method
    set -l words (__lowkey_words)
    test "$words" = plan
end
complete -c lowkey -n __lowkey_takes_method -a '(__lowkey_methods)'
complete -c lowkey -n __fish_use_subcommand -f -a '(__lowkey_commands)'
complete -c lowkey -n 'string match -q -- "-*" (commandline -ct)' -f -a '(__lowkey_options)'
