#!/bin/sh
# Every fault of the specification: one line on standard error that names file, tensor, place and
# values, exit status 1, and no output file.
. "$(dirname "$0")/common.sh"

slots="out_index:i32:6=0,4,2,-1,1,3 permute_token_id:i32:6=0,0,1,1,2,2"
# shellcheck disable=SC2086
tensor_text write good $slots "unpermuted_tokens_grad:f32:3x2=1,2,3,-4,0.5,8" \
    "routing_map:bool:3x3=1,0,1,0,1,0,1,1,0" "probs:f32:3x3=0.5,0,2,0,-1,0.25,4,0.125,0" \
    "permuted_tokens:f32:5x2=1,1,2,-1,0.25,0.5,-3,2,4,0.5"
tensor_text write padded BASE=good META=drop_and_pad=true "out_index:i32:6=0,4,2,5,1,3" \
    "permuted_tokens:f32:6x2=1,1,2,-1,0.25,0.5,-3,2,4,0.5,10,-6"

no_output() { # WHAT
    checks=$((checks + 1))
    [ ! -e out ] || fail "$1: there is an output file"
    for left in out?* .out*; do
        [ ! -e "$left" ] || fail "$1: $left was left behind"
    done
}

# fault BASE PATTERN OPTIONS... -- CHANGES...: unpermute-grad on the changed case.
fault() {
    base=$1 pattern=$2
    shift 2
    options=
    while [ "$1" != -- ]; do
        options="$options $1"
        shift
    done
    shift
    tensor_text write bad BASE="$base" "$@" || fail "write $*"
    # shellcheck disable=SC2086
    rejected 1 "$*$options" "^moetoken: bad: .*$pattern" moetoken unpermute-grad bad -o out $options
    no_output "$*"
}

good "the good case" moetoken unpermute-grad good -o out
rm out
good "the good padded case" moetoken unpermute-grad padded -o out
rm out

# What is missing.
fault good "no tensor unpermuted_tokens_grad" -- DROP=unpermuted_tokens_grad
fault good "no tensor out_index" -- DROP=out_index
fault good "no tensor routing_map" -- DROP=routing_map
fault good "no tensor permuted_tokens" -- DROP=permuted_tokens
fault padded "no tensor permute_token_id" -- DROP=permute_token_id
fault good "outputs probs_grad: this case has no such outputs" --outputs probs_grad -- DROP=probs

# Rank, type, shape.
fault good "unpermuted_tokens_grad.*3" -- "unpermuted_tokens_grad:f32:3x2x1=1,2,3,-4,0.5,8"
fault good "unpermuted_tokens_grad.*1" -- "unpermuted_tokens_grad:f32:6=1,2,3,-4,0.5,8"
fault good "unpermuted_tokens_grad" -- "unpermuted_tokens_grad:i32:3x2=1,2,3,-4,0,8"
fault good "out_index" -- "out_index:f32:6=0,4,2,-1,1,3"
fault good "out_index" -- "out_index:i32:6x1=0,4,2,-1,1,3"
fault good "permute_token_id.*N = 6" -- "permute_token_id:i32:5=0,0,1,1,2"
fault good "routing_map" -- "routing_map:f32:3x3=1,0,1,0,1,0,1,1,0"
fault good "routing_map.*E = 3" -- "routing_map:bool:3x2=1,0,1,0,1,0"
fault good "routing_map.*T = 3" -- "routing_map:bool:2x3=1,0,1,0,1,0"
fault good "probs" -- "probs:f64:3x3=0.5,0,2,0,-1,0.25,4,0.125,0"
fault good "probs" -- "probs:f16:3x3=0.5,0,2,0,-1,0.25,4,0.125,0"
fault good "probs.*T = 3" -- "probs:f32:2x3=0.5,0,2,0,-1,0.25"
fault good "permuted_tokens.*H = 2" -- "permuted_tokens:f32:5x1=1,1,2,-1,3"
fault good "permuted_tokens" -- "permuted_tokens:f16:5x2=1,1,2,-1,0.25,0.5,-3,2,4,0.5"
fault good "restore_shape" -- META=restore_shape=3,4
fault good "metadata restore_shape = 'large'" -- META=restore_shape=large
fault good "metadata drop_and_pad = 'perhaps'" -- META=drop_and_pad=perhaps
fault good "restore_shape" --restore-shape 4,2 --

# Numbers of slots.
fault good "5" -- DROP=permute_token_id "out_index:i32:5=0,4,2,-1,1"
fault padded "5" -- "out_index:i32:5=0,4,2,3,1" "permute_token_id:i32:5=0,0,1,1,2" \
    "permuted_tokens:f32:5x2=1,1,2,-1,0.25,0.5,-3,2,4,0.5"
fault padded "C = 4\|capacity\|4" -- "out_index:i32:12=0,1,2,3,4,5,6,7,8,9,10,11" \
    "permute_token_id:i32:12=0,0,0,0,1,1,1,1,2,2,2,2" \
    "permuted_tokens:f32:12x2=1,2,3,4,5,6,7,8,9,10,11,12,1,2,3,4,5,6,7,8,9,10,11,12"
fault good "R\|rows" -- "permuted_tokens:f32:7x2=1,2,3,4,5,6,7,8,9,10,11,12,1,2"

# Indices.
fault good "out_index\[4\] = 5 is outside \[0, 5)" -- "out_index:i32:6=0,4,2,-1,5,3"
fault good "out_index\[0\] = -2 is outside \[0, 5)" -- "out_index:i64:6=-2,4,2,-1,1,3"
fault good "out_index\[1\] = 1099511627776 is outside" -- "out_index:i64:6=0,1099511627776,2,-1,1,3"
fault padded "out_index\[3\] = -1 is outside \[0, 6)" -- "out_index:i32:6=0,4,2,-1,1,3"
fault good "permute_token_id\[5\] = 3 is outside \[0, 3)" -- "permute_token_id:i32:6=0,0,1,1,2,3"
fault good "permute_token_id\[0\] = -1 is outside \[0, 3)" -- "permute_token_id:i32:6=-1,0,1,1,2,2"
fault good "out_index\[5\] = 1 .*out_index\[4\]" -- "out_index:i32:6=0,4,2,-1,1,1"
fault padded "out_index\[5\] = 1 .*out_index\[4\]" -- "out_index:i32:6=0,4,2,5,1,1"

# Slots against the routing map.
fault good "out_index\[3\] = 1 .*routing_map\[1\]" -- "out_index:i32:6=0,4,2,1,-1,3"
fault good "routing_map\[1\] has 3 set experts" -- "routing_map:bool:3x3=1,0,1,1,1,1,1,1,0"
tensor_text write bad BASE=good "out_index:i32:6=0,4,2,1,-1,3"
good "a tolerated mismatch" moetoken unpermute-grad bad -o out --tolerate-routing-mismatch
good "verify the tolerated mismatch" moetoken verify bad out
rejected 1 "verify without the tolerance" "routing_map\[1\]" \
    moetoken verify bad out --tolerate-routing-mismatch=false
rm out

# The flag wins over the metadata, both ways.
rejected 1 "padded by flag" "R = 5 rows" \
    moetoken unpermute-grad good -o out --drop-and-pad
no_output "padded by flag"
good "dropless by flag" moetoken unpermute-grad padded -o out --drop-and-pad=false \
    --tolerate-routing-mismatch
rm out

# The other operators.
tensor_text write bad "tokens:f32:3x2=1,2,3,4,5,6" "routing_map:bool:3x3=1,0,1,0,1,0,1,1,0"
rejected 1 "more experts than K" "^moetoken: bad: routing_map\[0\]" \
    moetoken permute bad -o out --num-out-tokens 3
# K and C are rounded down: 7 / 3 and 8 / 3 are 2.
for mode in --drop-and-pad=false --drop-and-pad; do
    good "permute $mode" moetoken permute bad -o six $mode --num-out-tokens 6
    for n in 7 8; do
        good "$n slots $mode" moetoken permute bad -o rounded $mode --num-out-tokens $n
        same "$n slots $mode" six rounded
        good "verify $n slots $mode" moetoken verify bad rounded --num-out-tokens $n
    done
done
tensor_text write eight BASE=bad META=num_out_tokens=8
good "gradcheck rounds" moetoken gradcheck eight -q
rejected 1 "no capacity" "the capacity is not known" moetoken permute bad -o out --drop-and-pad
tensor_text write bad "permuted_tokens:f32:3x2=1,2,3,4,5,6" "sorted_indices:i32:4=0,1,2,0"
rejected 1 "no T" "the number of tokens is not known" moetoken unpermute bad -o out
rejected 1 "a row twice" "^moetoken: bad: sorted_indices\[3\] = 0" \
    moetoken unpermute bad -o out --restore-shape 2,2
tensor_text write bad "permuted_tokens_grad:f32:3x2=1,2,3,4,5,6" "sorted_indices:i32:4=0,1,9,-1"
rejected 1 "a row outside" "^moetoken: bad: sorted_indices\[2\] = 9 is outside \[0, 3)" \
    moetoken permute-grad bad -o out --tokens-num 2
no_output "the other operators"

# Numbers that would overflow.
huge=2305843009213693952
good generate moetoken generate -o bad -q --operator permute --tokens 4 --hidden 3 --experts 3 --topk 1
good "permute" moetoken permute bad -o permuted
tensor_text write bad BASE=bad META=num_out_tokens=$huge
rejected 1 "2^61 slots" "^moetoken: bad: " moetoken permute bad -o out
tensor_text write permuted BASE=permuted META=num_out_tokens=$huge
rejected 1 "verify 2^61 slots" "a size is above 2^48" moetoken verify bad permuted
rejected 1 "gradcheck 2^61 slots" "too large" moetoken gradcheck bad
tall=4503599627370496
tensor_text write bad "unpermuted_tokens_grad:f32:${tall}x0=" "out_index:i32:0=" || fail write
rejected 1 "2^52 tokens" "^moetoken: bad: " moetoken unpermute-grad bad -o out
no_output "overflow"

# Sizes that no data stand behind: the work would be theirs to choose.
tensor_text write bad "unpermuted_tokens_grad:f32:1000000000x0=" "out_index:i32:0=" || fail write
rejected 1 "10^9 tokens" "^moetoken: bad: .*do not justify" moetoken unpermute-grad bad -o out
tensor_text write out2 "permuted_tokens_grad:f32:0x0=" || fail write
rejected 1 "verify 10^9 tokens" "^moetoken: out2: .*do not justify" moetoken verify bad out2
rm out2
rejected 1 "bench 10^9 tokens" "^moetoken: bad: .*do not justify" moetoken bench bad
tensor_text write bad "permuted_tokens:f32:1x2=1,2" "sorted_indices:i32:4=0,-1,-1,-1" \
    META=restore_shape=4,2
good "four tokens" moetoken unpermute bad -o out
rm out
tensor_text write bad "permuted_tokens_grad:f32:1x2=1,2" "permuted_probs_grad:f32:1=1" \
    "sorted_indices:i32:1=0" "routing_map:bool:1x1=1" META=drop_and_pad=true
rejected 1 "2^40 experts" "^moetoken: bad: " moetoken permute-grad bad -o out --experts-num 1099511627776
tensor_text write bad "routing_map:bool:1000000000x0=" "tokens:f32:1000000000x0=" \
    META=num_out_tokens=0
rejected 1 "gradcheck 10^9 tokens" "^moetoken: bad: .*do not justify" \
    moetoken gradcheck bad --samples 1
tensor_text write bad "tokens:f32:4503599627370496x0=" "routing_map:bool:3x3=1,0,1,0,1,0,1,1,1"
rejected 1 "2^52 tokens of 3 slots" "^moetoken: bad: " moetoken permute bad -o out
tensor_text write bad BASE=good "probs:f32:4503599627370496x4503599627370496x0="
rejected 1 "a shape of 2^104 x 0" "^moetoken: bad: probs" moetoken unpermute-grad bad -o out
rejected 1 "generate: capacity times experts" "experts = 9223372036854775807" \
    moetoken generate -o out -q --hidden 1 --tokens 4 --capacity 4 --experts 9223372036854775807
no_output "sizes without data"

# What -o names.
cp good same
ln -s same link
for name in same ./same link; do
    rejected 2 "-o $name, which is the input" "-o $name: is an input of this command" \
        moetoken unpermute-grad same -o "$name"
    same "an input" same good
done
rm link same
good "a file for the owner alone" sh -c '(umask 077 && : >private)'
good "written over" moetoken unpermute-grad good -o private
equal_text "its mode" "$(find private -perm 600)" private
ln -s behind dangling
good "a dangling link" moetoken unpermute-grad good -o dangling
same "what it names" private behind
[ -L dangling ] || fail "the link was replaced"
rm dangling behind private
rejected 1 "a limit on the size of files" "^moetoken: out: .*File too large" \
    sh -c "ulimit -f 64 && exec ${MOETOKEN_RUNNER:-} '$MOETOKEN' generate -o out --model dbrx --tokens 8"
no_output "a limit on the size of files"

# limits: a capacity above T is a line of the table.
tensor_text write bad BASE=padded "out_index:i32:12=0,1,2,3,4,5,6,7,8,9,10,11" \
    "permute_token_id:i32:12=0,0,0,0,1,1,1,1,2,2,2,2" \
    "permuted_tokens:f32:12x2=1,2,3,4,5,6,7,8,9,10,11,12,1,2,3,4,5,6,7,8,9,10,11,12" \
    META=drop_and_pad=true
good "limits, C > T" moetoken limits bad
equal_text "limits, C > T" "$(grep -c 'refused: capacity = N / E = 12 / 3 = 4 is above T = 3' stdout)" 4
moetoken limits bad --soc host >stdout
equal_text "limits, C > T, one product" "$?" 1
tensor_text write bad BASE=bad META=drop_and_pad=true "routing_map:bool:2x3=1,0,1,0,1,0"
rejected 1 "limits, C > T and a wrong shape" "^moetoken: bad: routing_map" moetoken limits bad

# Files.
rejected 1 "no such file" "^moetoken: nothing" moetoken unpermute-grad nothing -o out
echo garbage >bad
rejected 1 "no tensor file" "^moetoken: bad" moetoken unpermute-grad bad -o out
head -c 100 good >bad
rejected 1 "a cut file" "^moetoken: bad" moetoken unpermute-grad bad -o out
no_output "broken files"
rejected 1 "no folder for the output" "^moetoken: nowhere/out" \
    moetoken unpermute-grad good -o nowhere/out

# An output that is there already stays as it is.
echo kept >out
tensor_text write bad BASE=good "out_index:i32:6=0,4,2,-1,5,3"
rejected 1 "an old output" "out_index\[4\]" moetoken unpermute-grad bad -o out
equal_text "an old output" "$(cat out)" kept
rm out

# Sizes of 0 are ordinary.
tensor_text write bad BASE=good "unpermuted_tokens_grad:f32:3x0=" "permuted_tokens:f32:5x0="
good "H = 0" moetoken unpermute-grad bad -o out
good "verify H = 0" moetoken verify bad out
tensor_text write bad "unpermuted_tokens_grad:f32:0x2=" "out_index:i32:0=" "probs:f32:0x3=" \
    "routing_map:bool:0x3=" "permuted_tokens:f32:0x2="
good "T = 0" moetoken unpermute-grad bad -o out
good "verify T = 0" moetoken verify bad out
finish 150
