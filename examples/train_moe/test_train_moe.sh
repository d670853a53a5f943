#!/bin/sh
# test_train_moe.sh TEST - runs the training program for some steps and checks what it says.
# From the environment: TRAIN_MOE (the program), MOETOKEN_TOOL (the tool, for `dumps`), EMULATOR
# (a command in front of both, or nothing). The text is the program's own source.
set -eu

# shellcheck source=examples/train_moe/test_support.sh
. "$(dirname "$0")/test_support.sh"

# train LOG OPTION...
train() {
    log=$1
    shift
    # shellcheck disable=SC2086 # EMULATOR and small are lists of words
    ${EMULATOR:-} "$TRAIN_MOE" $small "$@" "$here/model/moe.c" "$here/model/model.c" "$here/model/layers.c" >"$log"
}

# resume LOG OPTION...
resume() {
    log=$1
    shift
    # shellcheck disable=SC2086
    ${EMULATOR:-} "$TRAIN_MOE" "$@" "$here/model/moe.c" "$here/model/model.c" "$here/model/layers.c" >"$log"
}

# below LOG BOUND: the last validation loss; also that it began as a guess among 256 bytes
below() {
    awk -v bound="$2" '
        /^ *1 +[0-9.]+ / { first = $2 }
        /^validation loss/ { last = $3 }
        END {
            printf "training loss %s at first, validation loss %s at last, bound %s\n",
                first, last, bound
            exit !(first > 5.3 && first < 5.8 && last > 0 && last < bound)
        }' "$1" || {
        cat "$1"
        fail "the validation loss is not below $2"
    }
}

# The bytes' own frequencies would give 3.28 nats: the bound needs more than those.
test_learns() {
    for options in "--dtype float32" "--dtype bfloat16" "--router deepseek-v3" "--capacity-factor 1.0"; do
        # shellcheck disable=SC2086
        train "$work/log" --steps 70 --warmup 10 --learning-rate 0.01 --evaluate-every 1 \
            --stop-at 1 $options
        grep -E '^ *1 ' "$work/log" >"$work/first"
        # shellcheck disable=SC2086
        train "$work/log" --steps 70 --warmup 10 --learning-rate 0.01 --evaluate-every 70 $options
        cat "$work/first" "$work/log" >"$work/both"
        printf '%s: ' "$options"
        below "$work/both" 3.0
    done
    tail -n 5 "$work/log" | grep -q ' [1-9][0-9]*\.[0-9]*%$\| 0\.[0-9]*[1-9][0-9]*%$' ||
        fail "with a capacity no token was dropped"
}

test_resumes() {
    for options in "--dtype float32" "--router deepseek-v3" \
        "--dtype bfloat16 --capacity-factor 1.25 --schedule constant"; do
        rm -f "$work/run"
        # shellcheck disable=SC2086
        train "$work/whole" --steps 12 --warmup 3 --evaluate-every 4 $options
        # shellcheck disable=SC2086
        train "$work/part" --steps 12 --warmup 3 --evaluate-every 4 --stop-at 6 \
            --checkpoint "$work/run" $options
        resume "$work/rest" --resume "$work/run" --checkpoint "$work/run" --checkpoint-every 5
        numbers "$work/part" | grep -E '^[0-9]' >"$work/joined" || true
        numbers "$work/rest" >>"$work/joined"
        numbers "$work/whole" >"$work/expected"
        [ "$(wc -l <"$work/expected")" -eq 5 ] || fail "expected 5 lines of numbers"
        cmp "$work/expected" "$work/joined" || fail "$options: a resumed run differs"
        [ ! -e "$work/run.tmp" ] || fail "the temporary file is left"
        echo "same after resuming: $options"
    done
}

# Large enough for the operators and the products to start threads.
test_same_bits() {
    for options in "--dtype float32" "--router deepseek-v3" "--dtype bfloat16 --capacity-factor 1"; do
        options="$options --width 64 --batch 16 --steps 2 --evaluate-every 2"
        # shellcheck disable=SC2086
        train "$work/base" --threads 1 $options
        # shellcheck disable=SC2086
        train "$work/other" --threads 3 $options
        same "$work/base" "$work/other" "3 threads: $options"
        for isa in scalar avx2 avx512 neon; do
            # shellcheck disable=SC2086
            if train "$work/other" --threads 2 --isa $isa $options 2>"$work/error"; then
                same "$work/base" "$work/other" "$isa, 2 threads: $options"
            else
                grep -q "which this CPU or MOETOKEN_ISA lacks" "$work/error" ||
                    fail "$isa: $(cat "$work/error")"
            fi
        done
    done
    train "$work/other" --seed 2 --width 64 --batch 16 --steps 2 --evaluate-every 2
    numbers "$work/other" >"$work/two"
    ! cmp -s "$work/one" "$work/two" || fail "another seed gives the same losses"
}

test_dumps() {
    for options in "--dtype float32" "--dtype bfloat16" "--capacity-factor 1.5" \
        "--dtype bfloat16 --capacity-factor 0.7"; do
        # shellcheck disable=SC2086
        train "$work/log" --steps 6 --evaluate-every 6 \
            --dump-step 5 "$work/case.safetensors" $options
        # shellcheck disable=SC2086
        train "$work/without" --steps 6 --evaluate-every 6 $options
        same "$work/without" "$work/log" "with and without a dump: $options"
        ${EMULATOR:-} "$MOETOKEN_TOOL" unpermute-grad "$work/case.safetensors" \
            -o "$work/out.safetensors"
        ${EMULATOR:-} "$MOETOKEN_TOOL" verify "$work/case.safetensors" "$work/out.safetensors"
    done
}

# refused STATUS WORDS OPTION...: the exit status, and words of the one line of the message
refused() {
    status=$1
    words=$2
    shift 2
    got=0
    ${EMULATOR:-} "$TRAIN_MOE" "$@" >"$work/log" 2>"$work/error" || got=$?
    [ "$got" -eq "$status" ] || fail "$*: exit status $got, not $status"
    grep -qF -- "$words" "$work/error" || fail "$*: $(cat "$work/error")"
    [ "$(wc -l <"$work/error")" -eq 1 ] || fail "$*: more than one line"
    echo "refused: $(cat "$work/error")"
}

test_errors() {
    refused 1 "cannot open the text $work/none" "$work/none"
    echo short >"$work/short"
    refused 1 "the text has 6 bytes; expected at least" "$work/short"
    refused 2 "--topk 5 is more than --experts 4" --topk 5 --experts 4
    refused 2 "--width 30 is not a multiple of --heads 4" --width 30
    refused 2 "--layers is 0; expected a whole number from 1 to 8" --layers 0
    refused 2 "--steps is many" --steps many
    refused 2 "--dtype is float16; expected float32 or bfloat16" --dtype float16
    refused 2 "--router is learned; expected mixtral, deepseek-v3 or frozen-random" --router learned
    refused 2 "unknown option --deep" --deep 3
    refused 2 "--steps lacks its value" --steps
    refused 2 "cannot open the checkpoint $work/none" --resume "$work/none"

    train "$work/log" --steps 2 --evaluate-every 1 --checkpoint "$work/run"
    refused 2 "--seed cannot go with --resume" --resume "$work/run" --seed 3
    refused 1 "belongs to another text" --resume "$work/run" "$here/model/moe.c" "$here/model/model.c"
    refused 1 "--dump-step is 3; the run is at step 2 of 2" --resume "$work/run" \
        --dump-step 3 "$work/case" "$here/model/moe.c" "$here/model/model.c" "$here/model/layers.c"
    head -c 30000 "$work/run" >"$work/cut"
    refused 1 "ends too early" --resume "$work/cut" "$here/model/moe.c" "$here/model/model.c" "$here/model/layers.c"
    cp "$work/run" "$work/damaged"
    printf 'X' | dd of="$work/damaged" bs=1 seek=60000 conv=notrunc 2>"$work/log"
    refused 1 "is damaged" --resume "$work/damaged" "$here/model/moe.c" "$here/model/model.c" "$here/model/layers.c"
    refused 2 "is not a checkpoint" --resume "$here/model/moe.c"
    [ ! -e "$work/case" ] || fail "a refused run wrote a case"
}

# A bias that pulls hard keeps the load more even than none.
test_balances() {
    for rate in 0 0.02; do
        train "$work/log" --router deepseek-v3 --bias-rate $rate --steps 60 --evaluate-every 60
        awk '/^ *60 / { print $5 }' "$work/log" >"$work/entropy$rate"
    done
    awk 'NR == 1 { without = $1 } NR == 2 { exit !($1 > without) }' "$work/entropy0" "$work/entropy0.02" ||
        fail "load entropy $(cat "$work/entropy0") without a bias, $(cat "$work/entropy0.02") with one"
}

test_plots() {
    train "$work/log" --steps 4 --evaluate-every 1 --dense --checkpoint "$work/dense"
    train "$work/log" --steps 4 --evaluate-every 1 --plot "$work/plot.svg" --baseline "$work/dense"
    grep -q '^</svg>$' "$work/plot.svg" || fail "the picture does not end"
    grep -q '>dense: [0-9]' "$work/plot.svg" || fail "the baseline is missing"
    # two losses of validation, one of training; 8 experts; 2 layers; 4 points each
    [ "$(grep -c '<polyline' "$work/plot.svg")" -eq 13 ] || fail "not 13 lines"
    ! grep '<polyline' "$work/plot.svg" | grep -vE "points='([0-9.]+,[0-9.]+ ){4}'" ||
        fail "a line without its 4 points"
}

case ${1:-} in
learns) test_learns ;;
resumes) test_resumes ;;
same_bits) test_same_bits ;;
dumps) test_dumps ;;
errors) test_errors ;;
balances) test_balances ;;
plots) test_plots ;;
*) fail "usage: test_train_moe.sh learns|resumes|same_bits|dumps|errors|balances|plots" ;;
esac
