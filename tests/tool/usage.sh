#!/bin/sh
# Usage errors exit with 2 and say how it is done; help and man page name every command and option.
. "$(dirname "$0")/common.sh"
: "${MAN_PAGE:?path of the man page}"

rejected 2 "nothing at all" "usage: moetoken COMMAND" moetoken
rejected 2 "unknown command" "unknown command frobnicate" moetoken frobnicate
rejected 2 "help of unknown command" "unknown command frobnicate" moetoken help frobnicate
rejected 2 "no case" "argument is missing" moetoken unpermute-grad -o out
rejected 2 "no output" "-o OUT is missing" moetoken unpermute-grad case
rejected 2 "unknown option" "unknown option --colour" moetoken unpermute-grad case -o out --colour
rejected 2 "unknown letter" "unknown option" moetoken unpermute-grad case -o out -Z
rejected 2 "unknown letter in front" "unknown option -Z" moetoken bench -Zq
rejected 2 "unknown letter behind" "unknown option -Z" moetoken permute case -qZ
rejected 2 "value missing behind" "option -o needs a value" moetoken permute case -qo
rejected 2 "a flag with a value" "option --quiet takes no value" moetoken permute --quiet=3 case
rejected 2 "help with a value" "option --help takes no value" moetoken permute --help=3
rejected 2 "value missing" "--threads needs a value" moetoken unpermute-grad case -o out --threads
rejected 2 "value missing" "-o needs a value" moetoken unpermute-grad case -o
rejected 2 "no number" "--threads many: expected a number" \
    moetoken unpermute-grad case -o out --threads many
rejected 2 "out of range" "--threads 0: expected a number from 1" \
    moetoken unpermute-grad case -o out --threads 0
rejected 2 "no choice" "--isa mmx: expected scalar|avx2|avx512|neon" \
    moetoken unpermute-grad case -o out --isa mmx
rejected 2 "no switch" "--drop-and-pad maybe: expected true|false" \
    moetoken unpermute-grad case -o out --drop-and-pad=maybe
rejected 2 "another operator's option" "unknown option --num-out-tokens" \
    moetoken unpermute-grad case -o out --num-out-tokens 6
rejected 2 "verify one file" "argument is missing" moetoken verify case
rejected 2 "generate without shape" "give --model, or --hidden" moetoken generate -o case
rejected 2 "generate without output" "-o CASE is missing" moetoken generate --model dbrx
rejected 2 "no such model" "--model gpt-9: expected a name" moetoken generate -o c --model gpt-9
rejected 2 "K above E" "--topk: expected at most" \
    moetoken generate -o c --hidden 4 --experts 2 --topk 3
rejected 2 "probs type" "--probs-dtype" moetoken generate -o c --model dbrx --probs-dtype f16
rejected 2 "ids are dropless" "--ids: a routing by expert ids is dropless" \
    moetoken generate -o c --model dbrx --ids --drop-and-pad
rejected 2 "too much" "too many arguments, from 'more' on" moetoken generate -o c more
rejected 2 "info takes nothing" "too many arguments" moetoken info more
for file in c out; do
    [ ! -e $file ] || fail "a usage error wrote $file"
done

if [ -e /dev/full ]; then
    for words in --version help "help permute" "permute --help" info "generate --list-models"; do
        checks=$((checks + 1))
        # shellcheck disable=SC2086
        moetoken $words >/dev/full 2>stderr
        equal_text "exit status of $words, output full" "$?" 1
        equal_text "$words, output full" "$(cat stderr)" \
            "moetoken: standard output could not be written"
    done
fi

equal_text version "$(moetoken --version | grep -c '^moetoken [0-9]*\.[0-9]*\.[0-9]*$')" 1
good "info" moetoken info
equal_text "info names the kernels" "$(grep -c '^kernels' stdout)" 1
equal_text "info obeys MOETOKEN_ISA" \
    "$(
        export MOETOKEN_ISA=scalar
        moetoken info | sed -n 's/^kernels  *\([a-z0-9]*\):.*/\1/p'
    )" scalar
equal_text "the list and the table of instruction sets" "$(moetoken info --isa-list)" \
    "$(moetoken info | sed -n 's/^  \([a-z0-9]*\) *yes .*/\1/p')"
equal_text "14 models" "$(moetoken generate --model list | tail -n +2 | grep -c .)" 14
equal_text "14 models" "$(moetoken generate --list-models | grep -c '^deepseek-v3  *7168  *256  *8 ')" 1

plain() { # the man page without escapes
    sed 's/\\-/-/g; s/\\f[BIRP]//g' "$MAN_PAGE"
}
commands=$(moetoken help | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p')
equal_text "commands" "$(echo "$commands" | grep -c -x -e unpermute-grad -e verify -e info)" 3
for command in $commands; do
    good "help $command" moetoken help "$command"
    cp stdout help
    good "$command --help" moetoken "$command" --help
    same "help and --help" help stdout
    good "$command -h" moetoken "$command" -h
    same "help and -h" help stdout
    equal_text "man page: $command" "$(plain | grep -c "^\.SS moetoken $command\$")" 1
    grep -o '^ *\(-[a-z], \)\{0,1\}--[a-z-]*' help | grep -o -e '--[a-z-]*' >options
    while read -r option; do
        checks=$((checks + 1))
        plain | grep -q -- "$option" || fail "the man page has no $option (of $command)"
    done <options
done
finish 100
