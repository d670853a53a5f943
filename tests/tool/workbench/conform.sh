#!/bin/sh
# conform: our own operators pass; each planted fault is found and shrunk to at most four tokens; what a
# command does wrong besides numbers is a finding too.
. "$(dirname "$0")/../common.sh"
: "${PLANTED_KERNEL:?path of the kernel with faults}"
seed=${MOETOKEN_TEST_SEED:-11}

conform() {
    moetoken conform --operator unpermute-grad --seed "$seed" --jobs 2 --repeats 1 --keep kept "$@"
}

# The same bits as documented; every theme once or more.
for operator in unpermute-grad unpermute permute permute-grad; do
    good "$operator conforms" moetoken conform --operator $operator --standard contract \
        --seed "$seed" --cases 27 --jobs 2 \
        --run "${MOETOKEN_RUNNER:-} '$MOETOKEN' $operator {case} -o {out} -q"
done
good "a standard with a third party" conform --cases 27 --standard commercial-L1-2026-04 \
    --run "${MOETOKEN_RUNNER:-} '$MOETOKEN' unpermute-grad {case} -o {out} -q"
[ ! -e kept ] || fail "something was kept although all passed"

planted() { # planted FAULT ARGUMENT...
    in_fault=$1
    shift
    conform --modes dropless,padded --run "'$PLANTED_KERNEL' $in_fault {case} {out}" "$@" >stdout 2>stderr
    in_got=$?
}

planted none --cases 54
equal_text "the kernel without a fault" $in_got 0

for fault in narrow-offset unwritten-rows dropped-duplicate swapped-k-e bf16-sum no-hole-check; do
    rm -rf kept
    planted $fault --cases 81 --shrink 120
    equal_text "$fault: exit status" $in_got 1
    checks=$((checks + 1))
    sed -n 's/^   smallest: .* T=\([0-9]*\) .*/\1/p' stdout >sizes
    [ -s sizes ] || fail "$fault: nothing was shrunk: $(cat stdout stderr)"
    while read -r tokens; do
        [ "$tokens" -le 4 ] || fail "$fault: shrunk to $tokens tokens: $(cat stdout)"
    done <sizes
    script=$(find kept -name reproduce.sh | sort | head -n 1)
    checks=$((checks + 1))
    PATH="$(dirname "$MOETOKEN"):$PATH" sh "$script" >reproduced 2>&1 &&
        fail "$fault: $script finds nothing"
    grep -q FAIL reproduced || fail "$fault: $script: $(cat reproduced)"
done

planted crash --cases 27
equal_text "a crash" $in_got 1
checks=$((checks + 1))
grep -q '^1. crash, ' stdout || fail "a crash: $(cat stdout stderr)"
planted hang --cases 1 --shrink 1 --seconds 1 --modes dropless
checks=$((checks + 1))
grep -q 'no answer within 1 s' stdout || fail "a hang: $(cat stdout stderr)"

finding() { # finding WHAT PATTERN COMMAND
    checks=$((checks + 1))
    conform --cases 3 --shrink 3 --run "$3" >stdout 2>stderr && fail "$1: passed"
    grep -q -- "$2" stdout || fail "$1: no $2: $(cat stdout stderr)"
}
finding "nothing written" "unwritten elements" ": {case} {out}"
finding "an exit status" "exit status 3: no luck" "echo no luck; : {case} {out}; exit 3"
finding "no file of tensors" "unreadable output" "echo hello >{out}; : {case}"
finding "a case as output" "missing output" "cat {case} >{out}"
finding "nothing but skipped" "NOTHING TRIED" ": {case} {out}; exit 77"
rejected 1 "no such command" "cannot be run" conform --cases 3 --run "no-such-command {case} {out}"
rejected 2 "no command" "--run" conform
rejected 2 "no place for OUT" "expected {case} and {out}" conform --run "true {case}"
rejected 2 "no such standard" "expected contract or" conform --standard iso --run "x {case} {out}"
rejected 2 "no such output" "writes no such tensor" conform --outputs tokens --run "x {case} {out}"
good "a list" conform --list --cases 40
equal_text "40 cases" "$(wc -l <stdout | tr -d ' ')" 40
finish 30
