#!/bin/sh
# The worked example of the specification (T=3, E=3, K=2), with values computed by hand, through
# files of both formats, for all four operators, both modes, all types.
. "$(dirname "$0")/common.sh"

g=1,2,3,-4,0.5,8
x=1,1,2,-1,0.25,0.5,-3,2,4,0.5
p=0.5,0,2,0,-1,0.25,4,0.125,0
map=1,0,1,0,1,0,1,1,0

# print_rows FILE NAME: the rows, split at '/'.
print_rows() {
    tensor_text print "$1" "$2" | tr '\n' '/'
}

zero_to_zero() { # -0 is not 0
    sed 's/-0\([ /]\)/MINUS ZERO\1/g'
}

expect() { # WHAT FILE NAME ROWS
    equal_text "$1 $3" "$(print_rows "$2" "$3" | zero_to_zero)" "$4"
}

run() { # OPERATOR CASE OUT OPTIONS...
    operator=$1 case=$2 out=$3
    shift 3
    good "$operator $case" moetoken "$operator" "$case" -o "$out" "$@"
    good "verify $operator $case" moetoken verify "$case" "$out"
}

unpermute_grad() { # TYPE PROBS_TYPE INDEX_TYPE MAP_TYPE SUFFIX
    t=$1 pt=$2 it=$3 mt=$4 s=$5
    probs="probs:$pt:3x3=$p routing_map:$mt:3x3=$map"
    slots="out_index:$it:6=0,4,2,-1,1,3 permute_token_id:$it:6=0,0,1,1,2,2"
    # shellcheck disable=SC2086
    {
        tensor_text write "five$s" "unpermuted_tokens_grad:$t:3x2=$g" $slots $probs \
            "permuted_tokens:$t:5x2=$x"
        tensor_text write "six$s" BASE="five$s" "permuted_tokens:$t:6x2=$x,10,-6"
        tensor_text write "padded$s" BASE="six$s" META=drop_and_pad=true \
            "out_index:$it:6=0,4,2,5,1,3"
        tensor_text write "plain$s" BASE="five$s" DROP=probs DROP=permuted_tokens \
            DROP=routing_map DROP=permute_token_id
    }
    rows="0.5 1/2 32/-3 4/0.0625 1/2 4/"
    dots="3 0 5/0 -1.25 0/-7 14.5 0/"
    run unpermute-grad "five$s" "out$s"
    expect "R=5 $t" "out$s" permuted_tokens_grad "$rows"
    expect "R=5 $t" "out$s" probs_grad "$dots"
    run unpermute-grad "six$s" "out$s"
    expect "R=6 $t" "out$s" permuted_tokens_grad "${rows}0 0/"
    expect "R=6 $t" "out$s" probs_grad "$dots"
    run unpermute-grad "padded$s" "out$s"
    expect "padded $t" "out$s" permuted_tokens_grad "${rows}0.75 -1/"
    expect "padded $t" "out$s" probs_grad "3 0 5/0 -1.25 54/-7 14.5 0/"
    run unpermute-grad "padded$s" "out$s" --mask-fill-slots
    expect "masked $t" "out$s" permuted_tokens_grad "${rows}0 0/"
    expect "masked $t" "out$s" probs_grad "$dots"
    run unpermute-grad "plain$s" "out$s"
    expect "no probs $t" "out$s" permuted_tokens_grad "1 2/0.5 8/3 -4/0.5 8/1 2/0 0/"
    good "one output" moetoken unpermute-grad "five$s" -o "out$s" --outputs probs_grad
    expect "one output $t" "out$s" probs_grad "$dots"
    good "verify one output" moetoken verify "five$s" "out$s" --outputs probs_grad
    rejected 1 "an output is missing" "permuted_tokens_grad is missing" \
        moetoken verify "five$s" "out$s"
}

family() { # TYPE PROBS_TYPE INDEX_TYPE
    t=$1 pt=$2 it=$3
    index=i32
    [ "$it" = i32 ] || index=i64
    tensor_text write c "tokens:$t:3x2=$g" "routing_map:bool:3x3=$map" "probs:$pt:3x3=$p"
    run permute c o --num-out-tokens 6 --index-dtype $index
    expect "permute $t" o permuted_tokens "1 2/0.5 8/3 -4/0.5 8/1 2/"
    expect "permute $t" o permuted_probs "0.5 4 -1 0.125 2/"
    expect "permute $t" o sorted_indices "0 4 2 -1 1 3/"
    run permute c o
    expect "permute, K from the map $t" o sorted_indices "0 4 2 -1 1 3/"
    run permute c o --num-out-tokens 6 --drop-and-pad
    expect "permute padded $t" o permuted_tokens "1 2/0.5 8/3 -4/0.5 8/1 2/3 -4/"
    expect "permute padded $t" o permuted_probs "0.5 4 -1 0.125 2 0.25/"
    expect "permute padded $t" o sorted_indices "0 2 1 2 0 1/"

    tensor_text write c "permuted_tokens:$t:5x2=$x" "sorted_indices:$it:6=0,4,2,-1,1,3" \
        "routing_map:u8:3x3=$map" "probs:$pt:3x3=$p"
    run unpermute c o
    expect "unpermute $t" o unpermuted_tokens "8.5 1.5/-0.25 -0.5/7.625 -3.75/"
    expect "unpermute $t" o out_index "0 4 2 -1 1 3/"
    expect "unpermute $t" o permute_token_id "0 0 1 1 2 2/"
    expect "unpermute $t" o permuted_probs "0.5 2 -1 0 4 0.125/"
    tensor_text write d BASE=c "permuted_tokens:$t:6x2=$x,10,-6" "sorted_indices:$it:6=0,2,1,2,0,1"
    run unpermute d o --drop-and-pad
    expect "unpermute padded $t" o unpermuted_tokens "8.5 1.5/2.25 -2/7.625 -3.75/"
    expect "unpermute padded $t" o out_index "0 4 2 5 1 3/"
    expect "unpermute padded $t" o permute_token_id "0 0 1 1 2 2/"
    expect "unpermute padded $t" o permuted_probs "0.5 4 -1 0.125 2 0.25/"
    run unpermute d o --drop-and-pad --mask-fill-slots
    expect "unpermute masked $t" o unpermuted_tokens "8.5 1.5/-0.25 -0.5/7.625 -3.75/"

    tensor_text write c "permuted_tokens_grad:$t:5x2=$x" "permuted_probs_grad:$pt:5=1,2,3,4,5" \
        "sorted_indices:$it:6=0,4,2,-1,1,3" "routing_map:i8:3x3=$map"
    run permute-grad c o
    expect "permute-grad $t" o tokens_grad "5 1.5/0.25 0.5/-1 1/"
    expect "permute-grad $t" o probs_grad "1 0 5/0 3 0/2 4 0/"
    tensor_text write d BASE=c "permuted_tokens_grad:$t:6x2=$x,10,-6" \
        "permuted_probs_grad:$pt:6=1,2,3,4,5,6" "sorted_indices:$it:6=0,2,1,2,0,1"
    run permute-grad d o --drop-and-pad
    expect "permute-grad padded $t" o tokens_grad "5 1.5/10.25 -5.5/-1 1/"
    expect "permute-grad padded $t" o probs_grad "1 0 5/0 3 6/2 4 0/"
}

special_values() { # TYPE PROBS_TYPE
    t=$1 pt=$2
    # A weight of exactly 0 (or -0) adds nothing: the infinity and the NaN in its row do not leak.
    tensor_text write c "permuted_tokens:$t:4x2=inf,1,2,nan,3,4,5,6" "sorted_indices:i32:4=0,2,1,3" \
        "routing_map:bool:2x2=1,1,1,1" "probs:$pt:2x2=0,2,-0,1"
    run unpermute c o
    expect "weight 0 $t" o unpermuted_tokens "6 8/5 6/"
    expect "weight 0 $t" o permuted_probs "0 2 MINUS ZERO 1/"
    tensor_text write c BASE=c "probs:$pt:2x2=1,2,1,1"
    run unpermute c o
    expect "infinity and NaN $t" o unpermuted_tokens "inf 9/7 nan/"
    # w * g: 0 * inf and NaN are NaN; sums of products with both infinities too.
    tensor_text write c "unpermuted_tokens_grad:$t:2x2=inf,1,nan,-inf" "out_index:i32:4=0,1,2,3" \
        "routing_map:bool:2x2=1,1,1,1" "probs:$pt:2x2=0,2,1,-1" \
        "permuted_tokens:$t:4x2=1,1,-1,0.5,0,0,inf,inf"
    run unpermute-grad c o
    expect "infinity and NaN $t" o permuted_tokens_grad "nan 0/inf 2/nan -inf/nan inf/"
    expect "infinity and NaN $t" o probs_grad "inf -inf/nan nan/"
    cp o wrong
    tensor_text write wrong BASE=o "probs_grad:$pt:2x2=inf,inf,nan,nan"
    rejected 1 "the other infinity" "probs_grad\[0,1\] = inf .*, expected -inf" \
        moetoken verify c wrong
    tensor_text write wrong BASE=o "permuted_tokens_grad:$t:4x2=0,0,inf,2,nan,-inf,nan,inf"
    rejected 1 "a number for NaN" "permuted_tokens_grad\[0,0\] = 0 .*, expected -\{0,1\}nan" \
        moetoken verify c wrong
}

special_values f32 f32
special_values f16 f32
special_values bf16 bf16
special_values f64 f64
unpermute_grad f32 f32 i32 bool .safetensors
unpermute_grad f16 f32 i64 i8 .npz
unpermute_grad bf16 bf16 i32 u8 .npz
unpermute_grad f16 f16 i64 bool .safetensors
unpermute_grad bf16 f32 i64 bool .safetensors
unpermute_grad f64 f64 i64 bool .safetensors
family f32 f32 i32
family f16 f32 i64
family bf16 bf16 i32
family f64 f64 i64
finish 320
