# Completion of lowkey for bash. Subcommands and options are what --help says.
_lowkey() {
    local word=${COMP_WORDS[COMP_CWORD]} command= i
    for ((i = 1; i < COMP_CWORD; ++i)); do
        if [[ ${COMP_WORDS[i]} != -* ]]; then
            command=${COMP_WORDS[i]}
            # A method of plan has options of its own.
            [[ $command != plan || $((i + 1)) -ge $COMP_CWORD ]] || command+=" ${COMP_WORDS[i + 1]}"
            break
        fi
    done
    local help words
    help=$("${COMP_WORDS[0]}" $command --help 2>/dev/null) || return 0
    words=$(sed -nE 's/^  (-[^ {]*).*/\1/p' <<<"$help" | tr , '\n' | sed 's/ .*//')
    if [[ -z $command || $command == plan ]]; then
        words+=" "$(sed -nE '/^Subcommands:/,/^$/s/^  ([a-z0-9-]+).*/\1/p' <<<"$help")
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    [[ $word == -* || -z $command ]] || mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
}
complete -o filenames -F _lowkey lowkey
