#!/bin/sh
# A killed run leaves no output under the final name, and an old output as it was.
. "$(dirname "$0")/common.sh"

good generate moetoken generate -o case -q --model mixtral-8x7b --tokens 256 --dtype f32
echo old >out.safetensors
for signal in KILL TERM; do
    # So many repetitions would take minutes.
    # shellcheck disable=SC2086
    ${MOETOKEN_RUNNER:-} "$MOETOKEN" unpermute-grad case -o out.safetensors --repeat 1000000 -q &
    run=$!
    sleep 0.7
    kill -$signal $run 2>/dev/null || fail "the run was over before it was killed"
    wait $run 2>/dev/null
    checks=$((checks + 1))
    equal_text "the old output after SIG$signal" "$(cat out.safetensors)" old
done
good "the next run" moetoken unpermute-grad case -o out.safetensors -q
good "its output" moetoken verify case out.safetensors -q
finish 5
