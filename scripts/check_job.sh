#!/bin/sh
# check_job.sh TOOL WORK - the main job, as a user does it: a case with a real model's shape in each mode
# and type, its gradients by every instruction set and several numbers of threads. All files must be
# equal, byte for byte, and verify must accept them.
set -eu
tool=$1
work=$2
rm -rf "$work"
mkdir -p "$work"
levels=$("$tool" info --isa-list)
for type in f32 f16 bf16 f64; do
    for mode in "" --holes --drop-and-pad --no-probs; do
        # shellcheck disable=SC2086 # no mode is no argument
        "$tool" generate -q --model granite-3.0-3b-a800m --tokens 61 --dtype $type $mode \
            -o "$work/case"
        first=
        for isa in $levels; do
            for threads in 1 2 5; do
                out=$work/$isa-$threads
                "$tool" unpermute-grad -q --isa "$isa" --threads $threads "$work/case" -o "$out"
                [ -n "$first" ] || first=$out
                cmp "$first" "$out"
            done
        done
        "$tool" verify -q "$work/case" "$first"
    done
done
rm -rf "$work"
echo "bits equal over $(echo "$levels" | xargs) and 1, 2, 5 threads: 4 types, 4 modes, all verified"
