#!/bin/sh
# test_ranks.sh TEST MPIEXEC [FLAG...] - runs the training program over ranks of this machine.
# From the environment: TRAIN_MOE (the program for one process), TRAIN_MOE_MPI (that for ranks).
set -eu
test=$1
shift
launcher=$*

# shellcheck source=examples/train_moe/test_support.sh
. "$(dirname "$0")/test_support.sh"

# over RANKS LOG ARGUMENT...
over() {
    ranks=$1
    log=$2
    shift 2
    # shellcheck disable=SC2086 # launcher is a list of words
    $launcher -n "$ranks" "$TRAIN_MOE_MPI" "$@" --threads 1 --exact "$here/model/model.c" >"$log"
}

# alone LOG ARGUMENT...
alone() {
    log=$1
    shift
    "$TRAIN_MOE" "$@" --threads 1 --exact "$here/model/model.c" >"$log"
}

# All ranks and none: the bits of the program that knows no MPI. Three sequences over four ranks
# leave one without tokens, the capacity drops choices whose expert another rank has filled.
same_over_ranks() {
    # shellcheck disable=SC2086
    alone "$work/base" $small --steps 6 --evaluate-every 3 $1
    for count in 1 2 4; do
        # shellcheck disable=SC2086
        over $count "$work/ranks" $small --steps 6 --evaluate-every 3 $1
        same "$work/base" "$work/ranks" "$count ranks: $1"
        [ "$(grep -c '^model:' "$work/ranks")" -eq 1 ] || fail "more than one rank prints"
    done
}

# A file that two ranks wrote goes on over one, four and without MPI; one of none over two.
test_resumes() {
    run="--steps 9 --evaluate-every 3 --dtype bfloat16"
    # shellcheck disable=SC2086
    alone "$work/whole" $small $run
    # shellcheck disable=SC2086
    over 2 "$work/part" $small $run --stop-at 4 --checkpoint "$work/run"
    for count in 1 4; do
        over $count "$work/rest" --resume "$work/run"
        joined "$work/part" "$work/rest" "from 2 ranks to $count"
    done
    alone "$work/rest" --resume "$work/run"
    joined "$work/part" "$work/rest" "from 2 ranks to none"
    # shellcheck disable=SC2086
    alone "$work/part" $small $run --stop-at 4 --checkpoint "$work/run"
    over 2 "$work/rest" --resume "$work/run" --checkpoint "$work/run"
    joined "$work/part" "$work/rest" "from none to 2 ranks"
    [ ! -e "$work/run.tmp" ] || fail "the temporary file is left"
}

# joined LOG LOG WHAT: the rows of both are those of the whole run
joined() {
    numbers "$1" | grep -E '^[0-9]' >"$work/joined"
    numbers "$2" >>"$work/joined"
    numbers "$work/whole" >"$work/expected"
    [ "$(wc -l <"$work/expected")" -eq 5 ] || fail "expected 5 lines of numbers"
    cmp "$work/expected" "$work/joined" || fail "$3: the run differs"
    echo "same: $3"
}

# refused WORDS COMMAND...: fails, and its messages together are one line, WORDS
refused() {
    words=$1
    shift
    ! timeout 60 "$@" >"$work/log" 2>"$work/error" || fail "$*: went well"
    grep '^train_moe: ' "$work/error" >"$work/messages" || fail "no message: $(cat "$work/error")"
    [ "$(wc -l <"$work/messages")" -eq 1 ] || fail "not one message: $(cat "$work/messages")"
    grep -qF -- "$words" "$work/messages" || fail "$words: $(cat "$work/messages")"
    echo "refused: $(cat "$work/messages")"
}

test_errors() {
    text=$here/model/model.c
    # shellcheck disable=SC2086
    set -- $launcher
    refused "train_moe: --experts 16 cannot be spread evenly over 3 ranks" \
        "$@" -n 3 "$TRAIN_MOE_MPI" "$text"
    refused "train_moe: unknown option --deep" "$@" -n 2 "$TRAIN_MOE_MPI" --deep 3 "$text"
    refused "train_moe: --dump-step is for train_moe" \
        "$@" -n 2 "$TRAIN_MOE_MPI" --dump-step 1 "$work/case" "$text"
    refused "train_moe: rank 1: cannot open the text $work/none" \
        "$@" -n 1 "$TRAIN_MOE_MPI" "$text" : -n 1 "$TRAIN_MOE_MPI" "$work/none"
    refused "train_moe: rank 1: the options, the text or the checkpoint are not those of rank 0" \
        "$@" -n 1 "$TRAIN_MOE_MPI" "$text" : -n 1 "$TRAIN_MOE_MPI" "$here/model/moe.c" "$text"
    # shellcheck disable=SC2086
    refused "train_moe: rank 0: cannot create $work/none/run.tmp" \
        "$@" -n 2 "$TRAIN_MOE_MPI" $small --steps 1 --checkpoint "$work/none/run" "$text"
    # A rank that may not have the 64 GB which its options ask for, while rank 0 waits for it.
    # shellcheck disable=SC2016 # for the inner shell
    refused "train_moe: rank 1: no memory for" "$@" -n 1 "$TRAIN_MOE_MPI" "$text" : -n 1 sh -c \
        'ulimit -v 4000000; exec "$@"' sh "$TRAIN_MOE_MPI" --width 4096 --hidden 65536 --experts 64 "$text"
    # Every process of the other program says it.
    ! "$@" -n 2 "$TRAIN_MOE" "$text" >"$work/log" 2>"$work/error" || fail "train_moe ran twice"
    grep -q "is one of 2 processes" "$work/error" || fail "$(cat "$work/error")"
    [ ! -e "$work/case" ] || fail "a refused run wrote a case"
}

case $test in
mixtral) same_over_ranks "" ;;
deepseek) same_over_ranks "--router deepseek-v3 --dtype bfloat16" ;;
uneven) same_over_ranks "--batch 3 --capacity-factor 0.9 --router frozen-random" ;;
resumes) test_resumes ;;
errors) test_errors ;;
*) fail "usage: test_ranks.sh mixtral|deepseek|uneven|resumes|errors MPIEXEC [FLAG...]" ;;
esac
