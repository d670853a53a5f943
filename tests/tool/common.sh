# common.sh - what the tests of the tool share: a folder of their own, counting, comparing.
# shellcheck shell=sh
# The environment gives MOETOKEN (the tool), TENSOR_TEXT (the helper) and MOETOKEN_RUNNER (what runs
# them on another architecture's build, or nothing).
set -u
: "${MOETOKEN:?path of the tool}" "${TENSOR_TEXT:?path of the helper}"
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
checks=0
failures=0

moetoken() {
    # shellcheck disable=SC2086
    ${MOETOKEN_RUNNER:-} "$MOETOKEN" "$@"
}

tensor_text() {
    # shellcheck disable=SC2086
    ${MOETOKEN_RUNNER:-} "$TENSOR_TEXT" "$@"
}

fail() {
    failures=$((failures + 1))
    echo "FAILED: $*" >&2
}

# good WHAT COMMAND...: the command must succeed. Variables of functions here begin with in_: POSIX
# shells have no local ones.
good() {
    checks=$((checks + 1))
    in_what=$1
    shift
    "$@" >stdout 2>stderr || {
        fail "$in_what: exit status $?"
        cat stdout stderr >&2
    }
}

# equal_text WHAT GOT WANTED
equal_text() {
    checks=$((checks + 1))
    [ "$2" = "$3" ] || fail "$1: got
$2
expected
$3"
}

# same WHAT FILE FILE: the same bytes.
same() {
    checks=$((checks + 1))
    cmp "$2" "$3" >/dev/null 2>&1 || fail "$1: $2 and $3 differ"
}

# rejected STATUS WHAT PATTERN COMMAND...: the exit status, one line on standard error that matches.
rejected() {
    checks=$((checks + 1))
    in_status=$1 in_what=$2 in_pattern=$3
    shift 3
    "$@" >stdout 2>stderr
    in_got=$?
    [ "$in_got" -eq "$in_status" ] ||
        fail "$in_what: exit status $in_got, expected $in_status"
    grep -q -- "$in_pattern" stderr ||
        fail "$in_what: expected '$in_pattern', got: $(cat stderr)"
    # A sanitizer's note on an allocation that it refused is not the tool's, nor what the coverage
    # build says when it may not write its counts.
    [ "$in_status" -ne 1 ] || [ "$(grep -c -v -e '^==[0-9]*==WARNING' -e '^libgcov' stderr)" -eq 1 ] ||
        fail "$in_what: expected one line, got: $(cat stderr)"
}

# The instruction sets of this CPU.
levels() {
    moetoken info --isa-list
}

# Ends the script; at least LEAST checks must have been made.
finish() {
    [ "$checks" -ge "$1" ] || fail "only $checks checks, expected $1"
    echo "$checks checks, $failures failures"
    [ "$failures" -eq 0 ]
}
