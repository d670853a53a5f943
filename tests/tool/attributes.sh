#!/bin/sh
# Attributes that NumPy's users store as arrays of their own: the same results as from metadata, and
# an error that names what does not fit.
. "$(dirname "$0")/common.sh"

map="routing_map:bool:3x3=1,0,1,0,1,0,1,1,0"
permute="tokens:f32:3x2=1,2,3,4,5,6 $map"
for suffix in .npz ""; do
    # shellcheck disable=SC2086
    tensor_text write "text$suffix" $permute META=drop_and_pad=true META=num_out_tokens=6
    good "permute, metadata" moetoken permute "text$suffix" -o wanted
    for flag in bool:=1 bool:1=1 i64:=1 i32:1=1 u8:=1 i8:1=1; do
        for number in i64:=6 i32:1=6 u8:=6 i8:1=6; do
            # shellcheck disable=SC2086
            tensor_text write "array$suffix" $permute "drop_and_pad:$flag" "num_out_tokens:$number"
            good "permute, $flag, $number" moetoken permute "array$suffix" -o got
            same "permute, $flag, $number" wanted got
            good "verify, $flag, $number" moetoken verify "array$suffix" got
        done
    done
    # shellcheck disable=SC2086
    tensor_text write "array$suffix" $permute drop_and_pad:bool:=1 num_out_tokens:i64:=6
    good "an option goes first" moetoken permute "array$suffix" -o got --num-out-tokens 3
    good "its result" moetoken permute "text$suffix" -o wanted --num-out-tokens 3
    same "an option goes first" wanted got

    unpermute="permuted_tokens:f32:4x2=1,2,3,4,5,6,7,8 sorted_indices:i32:4=0,2,1,3"
    # shellcheck disable=SC2086
    tensor_text write "text$suffix" $unpermute META=restore_shape=2,2
    good "unpermute, metadata" moetoken unpermute "text$suffix" -o wanted
    for shape in i64:2=2,2 i32:2=2,2 u8:2=2,2; do
        # shellcheck disable=SC2086
        tensor_text write "array$suffix" $unpermute "restore_shape:$shape"
        good "unpermute, $shape" moetoken unpermute "array$suffix" -o got
        same "unpermute, $shape" wanted got
    done

    # unfit NAME VALUE...: refused by name, nothing written.
    for unfit in drop_and_pad:f32:=1 drop_and_pad:bool:2=1,1 drop_and_pad:bool:0= \
        drop_and_pad:bool:1x1=1 drop_and_pad:i64:=2 drop_and_pad:i64:=-1 num_out_tokens:f64:=6 \
        num_out_tokens:bool:=1 num_out_tokens:i64:=-6 num_out_tokens:i64:2=6,6; do
        # shellcheck disable=SC2086
        tensor_text write "array$suffix" $permute "$unfit"
        option=--drop-and-pad
        [ "${unfit%%:*}" = num_out_tokens ] || option=--num-out-tokens=6
        rejected 1 "$unfit" "^moetoken: array$suffix: tensor ${unfit%%:*}: expected one" \
            moetoken permute "array$suffix" -o out $option
    done
    for unfit in restore_shape:f32:2=2,2 restore_shape:i64:3=2,2,2 restore_shape:i64:=2 \
        restore_shape:i64:2=2,-2 restore_shape:bool:2=1,1 restore_shape:i64:1x2=2,2; do
        # shellcheck disable=SC2086
        tensor_text write "array$suffix" $unpermute "$unfit"
        rejected 1 "$unfit" "^moetoken: array$suffix: tensor restore_shape: expected two" \
            moetoken unpermute "array$suffix" -o out
    done
done
[ ! -e out ] || fail "an error wrote a file"
finish 180
