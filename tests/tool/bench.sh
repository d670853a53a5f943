#!/bin/sh
# bench: what it prints is complete and consistent, for every operator, a case file, and as JSON. How fast
# it is, is not a matter for a test.
. "$(dirname "$0")/common.sh"
export OMP_NUM_THREADS=1 # unless told otherwise: other tests want the cores

small="--hidden 64 --experts 4 --topk 2 --tokens 8 --rounds 3 --no-scaling"
for operator in unpermute-grad unpermute permute permute-grad; do
    # shellcheck disable=SC2086 # a list of words
    good "$operator" moetoken bench $small --operator $operator --dtype f16
    equal_text "$operator rows" "$(grep -c '^custom  *8 f16' stdout)" 1
done

# shellcheck disable=SC2086
good json moetoken bench $small --dtype bf16 --json
for key in name tokens dtype probs drop_and_pad threads isa seconds ceiling_seconds percent \
    percent_least_draw percent_most_draw row_copy_seconds percent_of_row_copy draws ceiling_beaten; do
    equal_text "key $key" "$(grep "\"name\"" stdout | grep -c "\"$key\": ")" 1
done
equal_text "no geometric mean without 4096 tokens" "$(grep -c '"geomean_percent": null' stdout)" 1
percent=$(sed -n 's/.*"percent": \([0-9.]*\),.*/\1/p' stdout)
equal_text "percent is positive" "$(awk "BEGIN {print ($percent > 0)}")" 1

# Rounds of one token and the comparison of numbers of threads, beside that of the ceiling.
good scaling moetoken bench --quick --tokens 1 --rounds 3 --threads 2 --json
equal_text "two numbers of threads" "$(grep -c '"ceiling_speedup": ' stdout)" 2
equal_text "one thread is as fast as one" \
    "$(grep '"threads": 1,' stdout | grep -c '"speedup": 1.000, "ceiling_speedup": 1.000}')" 1

# shellcheck disable=SC2086
good groups moetoken bench --hidden 16 --experts 4 --topk 1 --tokens 4096 --rounds 3
equal_text "a line for each group" \
    "$(grep -c '^\(bf16\|f16 \|f32 \) \(yes\|no\) *dropless *1 *[0-9.]* *[0-9.]* *[0-9.]*  custom$' stdout)" 1
good groups moetoken bench --hidden 16 --experts 4 --topk 1 --tokens 4096 --rounds 3 --json
for key in dtype probs drop_and_pad tokens cases geomean_percent_of_row_copy geomean_percent least_percent least_name; do
    equal_text "groups: $key" \
        "$(sed -n '/"groups"/,$p' stdout | grep "least_name" | grep -c "\"$key\": ")" 1
done

# Verified, with and without a buffer of its own for the gradient.
verified() { # WHAT WHETHER-IN-PLACE OPTION...
    what=$1 wanted=$2
    shift 2
    good "$what" moetoken bench --hidden 97 --experts 8 --topk 3 --tokens 50 --rounds 3 --verify --json "$@"
    equal_text "$what in place" "$(grep -c "\"in_place\": $wanted" stdout)" 1
    for key in tensor_bytes workspace_bytes grown_bytes verified_rows verified_elements; do
        equal_text "$what $key" "$(grep -c "\"$key\": [0-9]" stdout)" 1
    done
    rows=$(sed -n 's/.*"rows": \([0-9]*\),.*/\1/p' stdout)
    equal_text "$what all rows and pairs" \
        "$(sed -n 's/.*"verified_elements": \([0-9]*\)[,}].*/\1/p' stdout)" $((rows * 97 + 50 * 8))
}
for type in f32 f16 bf16 f64; do
    verified "$type" false --dtype $type
    verified "$type in place" true --dtype $type --in-place
done
verified "padded in place" true --dtype bf16 --in-place --drop-and-pad
# 300 rows of 128 float32: in place, one tensor of them less.
bytes() {
    moetoken bench --hidden 128 --experts 6 --topk 2 --tokens 150 --rounds 3 --dtype f32 --json "$@" |
        sed -n 's/.*"tensor_bytes": \([0-9]*\),.*/\1/p'
}
equal_text "bytes in place" $(($(bytes) - $(bytes --in-place))) $((300 * 128 * 4))
good "chosen rows" moetoken bench --hidden 97 --experts 8 --topk 3 --tokens 2000 --rounds 3 \
    --verify-rows 20
equal_text "chosen rows" "$(grep -c '^    verified 2[0-2] rows of 6000, .*: all right$' stdout)" 1
good "without probs" moetoken bench --hidden 97 --experts 8 --topk 3 --tokens 50 --rounds 3 \
    --no-probs --verify
equal_text "without probs" "$(grep -c "verified 150 rows of 150, $((150 * 97)) elements" stdout)" 1

# The router, beside the plain loop.
for operator in router router-grad; do
    good "$operator" moetoken bench --operator $operator --experts 16 --topk 3 --tokens 40 --rounds 3
    equal_text "$operator rows" "$(grep -c '^custom  *40 *16 *3 ' stdout)" 1
done
good "router of a model" moetoken bench --operator router --model deepseek-v3 --tokens 9 --rounds 3 --json
equal_text "router JSON" "$(grep -c '"operator": "router", "tokens": 9, "experts": 256, "topk": 8' stdout)" 1
rejected 2 "router without K" "give --model, or --experts and --topk" \
    moetoken bench --operator router --experts 4
rejected 1 "router, K beyond E" "config.topk = 5, expected at most E = 4" \
    moetoken bench --operator router --experts 4 --topk 5 --tokens 3
rejected 2 "in place, operator" "--in-place with --operator permute: only unpermute-grad" \
    moetoken bench --in-place --operator permute
rejected 2 "in place, no probs" "--in-place with --no-probs: without probs" \
    moetoken bench --in-place --no-probs
rejected 2 "verify, operator" "--verify with --operator unpermute: bench verifies" \
    moetoken bench --verify --operator unpermute
rejected 2 "no rows" "expected a number from 1" moetoken bench --verify-rows 0
rejected 1 "too large" "no memory for a case of 100000000 rows: it needs about [0-9]* MB, [0-9]* MB are" \
    moetoken bench --hidden 1000000 --experts 2 --topk 1 --tokens 100000000

good case moetoken generate -q --hidden 32 --experts 4 --topk 2 --tokens 8 -o case
good "a case file" moetoken bench --rounds 3 --no-scaling case
good "a case file, in place" moetoken bench --rounds 3 --in-place --verify case
equal_text "a case file, verified" "$(grep -c 'verified 16 rows of 16, 544 elements' stdout)" 1
good case moetoken generate -q --hidden 32 --experts 4 --topk 2 --tokens 8 --no-probs -o bare
rejected 1 "nothing to replace" "bare: permuted_tokens is missing: in place" \
    moetoken bench --rounds 3 --in-place bare
rejected 2 "rounds" "expected a number from 3" moetoken bench --rounds 1
rejected 2 "model" "nomodel" moetoken bench --model nomodel
rejected 1 "no file" "nothing" moetoken bench nothing
finish 115
