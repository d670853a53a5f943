#!/bin/sh
# bench: what it prints is complete and consistent, for every operator, a case file, and as JSON. How fast
# it is, is not a matter for a test.
. "$(dirname "$0")/common.sh"

small="--hidden 64 --experts 4 --topk 2 --tokens 8 --rounds 3 --no-scaling"
for operator in unpermute-grad unpermute permute permute-grad; do
    # shellcheck disable=SC2086 # a list of words
    good "$operator" moetoken bench $small --operator $operator --dtype f16
    equal_text "$operator rows" "$(grep -c '^custom  *8 f16' stdout)" 1
done

# shellcheck disable=SC2086
good json moetoken bench $small --dtype bf16 --json
for key in name tokens dtype probs drop_and_pad threads isa seconds ceiling_seconds percent; do
    equal_text "key $key" "$(grep "\"name\"" stdout | grep -c "\"$key\": ")" 1
done
equal_text "no geometric mean without 4096 tokens" "$(grep -c '"geomean_percent": null' stdout)" 1
percent=$(sed -n 's/.*"percent": \([0-9.]*\),.*/\1/p' stdout)
equal_text "percent is positive" "$(awk "BEGIN {print ($percent > 0)}")" 1

good case moetoken generate -q --hidden 32 --experts 4 --topk 2 --tokens 8 -o case
good "a case file" moetoken bench --rounds 3 --no-scaling case
rejected 2 "rounds" "expected a number from 3" moetoken bench --rounds 1
rejected 2 "model" "nomodel" moetoken bench --model nomodel
rejected 1 "no file" "nothing" moetoken bench nothing
finish 20
