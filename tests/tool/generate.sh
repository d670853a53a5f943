#!/bin/sh
# generate: the same bytes for the same seed, with any number of threads, on every machine; every
# model of the table; routings of the promised kind.
. "$(dirname "$0")/common.sh"

# pinned CHECKSUM OPTIONS...: POSIX cksum of the tensors' bytes behind the header.
pinned() {
    wanted=$1
    shift
    good "generate $*" moetoken generate -o case -q "$@"
    length=$(od -An -t u8 -N 8 case | tr -d ' ')
    equal_text "checksum of $*" "$(tail -c "+$((length + 9))" case | cksum | cut -d ' ' -f 1)" "$wanted"
}

shape="--tokens 29 --hidden 41 --experts 7 --topk 3 --extremes 50"
# shellcheck disable=SC2086
{
    pinned 20423032 $shape --seed 1
    pinned 1406097612 $shape --seed 2 --dtype bf16 --skew 0
    pinned 2847642433 $shape --seed 3 --dtype f16 --holes --shuffle --index-dtype i64 --spare-rows 2
    pinned 2507626682 $shape --seed 4 --dtype f64 --drop-and-pad --random-fill --map-dtype u8
    pinned 1809438616 $shape --seed 5 --operator permute --dtype bf16 --probs-dtype bf16 --skew 1.25
    pinned 168145421 $shape --seed 6 --operator permute-grad --no-probs
}

big="--tokens 301 --hidden 1001 --experts 33 --topk 5 --dtype bf16"
for mode in "" "--holes --shuffle" "--drop-and-pad --random-fill" "--operator permute"; do
    # shellcheck disable=SC2086
    {
        export OMP_NUM_THREADS=1
        good one moetoken generate -o one -q $big $mode --seed 8
        export OMP_NUM_THREADS=3
        good three moetoken generate -o three -q $big $mode --seed 8
        same "threads, $mode" one three
        good another moetoken generate -o another -q $big $mode --seed 9
        checks=$((checks + 1))
        ! cmp -s one another || fail "two seeds gave the same bytes"
    }
done

for model in $(moetoken generate --list-models | tail -n +2 | cut -d ' ' -f 1); do
    good "$model" moetoken generate -o case -q --model "$model" --tokens 3
    good "$model unpermute-grad" moetoken unpermute-grad case -o out -q
    good "$model verify" moetoken verify case out
done

# Routing: K experts a token; 0 to K with holes, and some slots dropped; C rows for each expert.
good plain moetoken generate -o case -q --tokens 200 --hidden 1 --experts 6 --topk 2 --seed 3
equal_text "K experts a token" \
    "$(tensor_text print case routing_map | tr -d ' ' | tr -d 0 | sort | uniq -c | tr -d ' ')" 20011
sorted=$(tensor_text print case out_index | tr ' ' '\n' | sort -n | uniq | tr '\n' ' ')
equal_text "every row once" "$sorted" "$(seq 0 399 | tr '\n' ' ')"
load=$(tensor_text print case routing_map | awk '{ for (e = 1; e <= NF; e++) n[e] += $e }
    END { for (e = 1; e <= 6; e++) { if (n[e] > most) most = n[e] } print (most > 100 && most < 200) }')
equal_text "some expert has more than its share" "$load" 1
good holes moetoken generate -o case -q --tokens 200 --hidden 1 --experts 6 --topk 2 --holes
equal_text "0, 1 or 2 experts" \
    "$(tensor_text print case routing_map | tr -d ' 0' | sort -u | tr '\n' '/')" "/1/11/"
holes=$(tensor_text print case out_index | tr ' ' '\n' | grep -c -x -e -1)
unset=$(tensor_text print case routing_map | tr -d ' 0' | awk '{ n += 2 - length } END { print n }')
checks=$((checks + 1))
[ "$holes" -gt "$unset" ] || fail "no slot of a set expert was dropped: $holes $unset"
good padded moetoken generate -o case -q --tokens 60 --hidden 1 --experts 6 --topk 2 --drop-and-pad
pairs=$(tensor_text print case permute_token_id | wc -w)
equal_text "padded, C = 20" "$pairs" 120
finish 80
