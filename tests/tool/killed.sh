#!/bin/sh
# A killed run leaves no output under the final name, and an old output as it was. Where output files
# have temporary names (NO_TMPFILE is preloaded), a signal leaves none of those behind either, and
# what SIGKILL leaves the next run removes.
. "$(dirname "$0")/common.sh"

good generate moetoken generate -o case -q --model mixtral-8x7b --tokens 256 --dtype f32
echo old >out.safetensors

temporaries() {
    find . -name '.moetoken-*' | grep -c .
}

# kill_run SIGNAL PRELOADED: starts a run, kills it, compares.
kill_run() {
    # So many repetitions would take minutes.
    # shellcheck disable=SC2086
    LD_PRELOAD=$2 ${MOETOKEN_RUNNER:-} "$MOETOKEN" unpermute-grad case -o out.safetensors \
        --repeat 1000000 -q &
    run=$!
    sleep 0.7
    during=$(temporaries)
    kill "-$1" $run 2>/dev/null || fail "the run was over before it was killed"
    wait $run 2>/dev/null
    rm -f /dev/shm/__KMP_REGISTERED_LIB_${run}_* # left by LLVM's OpenMP; see remove_openmp_notes in ./check
    checks=$((checks + 1))
    equal_text "the old output after SIG$1" "$(cat out.safetensors)" old
}

for signal in KILL TERM; do
    kill_run $signal "${LD_PRELOAD:-}"
done
if [ -n "${NO_TMPFILE:-}" ]; then
    for signal in TERM HUP; do
        kill_run $signal "$NO_TMPFILE"
        equal_text "temporary files before SIG$signal" "$during" 1
        equal_text "temporary files after SIG$signal" "$(temporaries)" 0
    done
    kill_run KILL "$NO_TMPFILE"
    equal_text "temporary files after SIGKILL" "$(temporaries)" 1
fi
good "the next run" moetoken unpermute-grad case -o out.safetensors -q
equal_text "temporary files after the next run" "$(temporaries)" 0
good "its output" moetoken verify case out.safetensors -q
finish 6
