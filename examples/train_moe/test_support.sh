# shellcheck shell=sh disable=SC2034
# test_support.sh - what the tests of the training program share. To be sourced by them.

# Threads that wait asleep: the tests share the machine, and take more threads than it has.
export OMP_WAIT_POLICY=passive

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A small model of the same make as the default one.
small="--layers 2 --width 32 --heads 2 --context 64 --batch 8 --experts 8 --topk 2 --hidden 32"

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# The lines that hold losses, without the speed; and the checksum of the parameters.
numbers() {
    awk '/^ *[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9]+ / { $4 = ""; print } /checksum|validation loss/' "$1"
}

# same LOG LOG WHAT
same() {
    numbers "$1" >"$work/one"
    numbers "$2" >"$work/two"
    [ -s "$work/one" ] || fail "$3: no numbers"
    cmp -s "$work/one" "$work/two" || {
        diff "$work/one" "$work/two" >&2 || true
        fail "$3: the losses differ"
    }
    echo "same: $3"
}
