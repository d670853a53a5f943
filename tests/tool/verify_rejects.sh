#!/bin/sh
# verify rejects every output after one flipped bit: lowest, sign, and in entries that are zero.
. "$(dirname "$0")/common.sh"

seed=${MOETOKEN_TEST_SEED:-4711}
echo "seed $seed"

# reject WHAT NAME BIT: one bit of OUT flipped.
reject() {
    cp out flipped
    tensor_text flip flipped "$2" "$3" || fail "flip $2 $3"
    rejected 1 "$1: $2, bit $3" "^moetoken: flipped: $2\[" moetoken verify case flipped
}

# The last bit of an element of so many bytes, one in the middle, the sign; of several elements.
reject_all() { # WHAT NAME BYTES ELEMENTS...
    in_what=$1 in_name=$2 in_bytes=$3
    shift 3
    for element in "$@"; do
        for bit in ${lowest:-0} $((in_bytes * 4)) $((in_bytes * 8 - 1)); do
            reject "$in_what" "$in_name" $((element * in_bytes * 8 + bit))
        done
    done
}

for type in f32 f16 bf16 f64; do
    case $type in
    f32) bytes=4 probs=4 ;;
    f64) bytes=8 probs=8 ;;
    *) bytes=2 probs=4 ;;
    esac
    for mode in "--holes --spare-rows 4" "--drop-and-pad" "--no-probs"; do
        make() { # OPERATOR
            # shellcheck disable=SC2086
            good generate moetoken generate -o case -q --operator "$1" --dtype $type $mode \
                --tokens 13 --hidden 19 --experts 5 --topk 2 --extremes 0 --seed "$seed"
            good "$1" moetoken "$1" case -o out -q
            good "verify $1" moetoken verify case out
        }
        what="$type $mode"
        make unpermute-grad
        reject_all "$what" permuted_tokens_grad $bytes 0 130
        # The last element is in a row that no slot names, where there are such rows.
        last=$(($(tensor_text print out permuted_tokens_grad | wc -w) - 1))
        reject_all "$what" permuted_tokens_grad $bytes $last
        if [ "$mode" != --no-probs ]; then
            # float64 sums may differ within the bound, so that the last bit proves nothing there.
            # Sums of 16-bit products may lie half way between two float32 numbers, and then the
            # bound lets both pass; the last bit but one always counts.
            if [ $type = f64 ]; then
                reject "$what" probs_grad $((63 + 64 * 7))
                reject "$what" probs_grad $((40 + 64 * 7))
            else
                [ $type = f32 ] || lowest=1
                reject_all "$what" probs_grad $probs 0 1 2 3 4 33
                lowest=0
            fi
        fi
        make unpermute
        reject_all "$what" unpermuted_tokens $bytes 200
        reject_all "$what" out_index 4 9
        reject_all "$what" permute_token_id 4 25
        if [ "$mode" = --no-probs ]; then
            reject_all "$what" permuted_probs $bytes 3
        else
            reject_all "$what" permuted_probs $probs 0 3
        fi
        make permute
        reject_all "$what" permuted_tokens $bytes 31
        [ "$mode" = --no-probs ] || reject_all "$what" permuted_probs $probs 4
        reject_all "$what" sorted_indices 4 12
        make permute-grad
        reject_all "$what" tokens_grad $bytes 100
        [ "$mode" = --no-probs ] || reject_all "$what" probs_grad $probs 0 1 2 3 7
    done
done

# What OUT lacks, or has in another shape or type.
good generate moetoken generate -o case -q --tokens 13 --hidden 19 --experts 5 --topk 2
good run moetoken unpermute-grad case -o out -q
tensor_text write less BASE=out DROP=probs_grad
rejected 1 "missing output" "less: probs_grad is missing" moetoken verify case less
tensor_text write other BASE=out "probs_grad:f32:1x5=0,0,0,0,0"
rejected 1 "other shape" "probs_grad has shape\[0\] = 1, expected 13" moetoken verify case other
tensor_text write other BASE=out "probs_grad:f16:1x5=0,0,0,0,0"
rejected 1 "other type" "probs_grad has the wrong type" moetoken verify case other
tensor_text write other BASE=out META=drop_and_pad=perhaps
rejected 1 "metadata" "other: metadata drop_and_pad = 'perhaps'" moetoken verify case other
rejected 1 "another operator" "there is no tensor" moetoken verify case out --operator permute
rejected 1 "no file" "nothing" moetoken verify case nothing
good generate moetoken generate -o case2 -q --tokens 13 --hidden 19 --experts 5 --topk 2 --seed 2
rejected 1 "another case" "out: permuted_tokens_grad\[" moetoken verify case2 out
finish 500
