#!/bin/sh
# Routings by expert ids: generated cases, and verify against results worked by hand.
. "$(dirname "$0")/common.sh"

# By hand: ids [2,0] [1,-1] [0,2]. Expert 0 has slots 1 and 4, expert 1 slot 2, expert 2 slots 0, 5.
case="expert_ids:i32:3x2=2,0,1,-1,0,2 weights:f32:3x2=0.5,0.25,1,9,2,4"
# shellcheck disable=SC2086
tensor_text write case "tokens:f32:3x1=1,2,3" $case META=experts_num=3
tensor_text write out "permuted_tokens:f32:5x1=1,3,2,1,3" "permuted_probs:f32:5=0.25,2,1,0.5,4" \
    "sorted_indices:i32:6=3,0,2,-1,1,4" "source_slots:i32:5=1,4,2,0,5" \
    "rows_per_expert:i64:3=2,1,2" META=operator=permute
good "verify permute" moetoken verify case out
for wrong in "permuted_tokens:f32:5x1=1,3,2,3,1" "permuted_probs:f32:5=0.25,2,1,4,0.5" \
    "sorted_indices:i32:6=3,0,2,2,1,4" "source_slots:i32:5=1,4,2,5,0" \
    "rows_per_expert:i64:3=2,2,1"; do
    tensor_text write bad BASE=out "$wrong"
    rejected 1 "verify $wrong" "^moetoken: bad: ${wrong%%:*}\[" moetoken verify case bad
done
# Experts [1,3) alone, and one row of each expert at most.
tensor_text write out "permuted_tokens:f32:3x1=2,1,3" "permuted_probs:f32:3=1,0.5,4" \
    "sorted_indices:i32:6=1,-1,0,-1,-1,2" "source_slots:i32:3=2,0,5" "rows_per_expert:i64:2=1,2" \
    META=operator=permute
good "verify a range" moetoken verify case out --expert-begin 1 --expert-end 3
rejected 1 "verify another range" "^moetoken: out: " moetoken verify case out --expert-end 2
tensor_text write out "permuted_tokens:f32:4x1=1,3,2,0" "permuted_probs:f32:4=0.25,2,1,0" \
    "sorted_indices:i32:6=-1,0,2,-1,1,-1" "source_slots:i32:4=1,4,2,-1" \
    "rows_per_expert:i64:2=2,1" META=operator=permute META=capacity=2 META=expert_end=2
good "verify a capacity" moetoken verify case out
# A row twice, two residuals (1 + 2 first), a bias: 3 + 0.5 * 4 + 0.5 * 10 + 0.25 * 4 + 0.25 * 20.
tensor_text write case "permuted_tokens:f32:2x1=4,8" "sorted_indices:i32:4=0,0,-1,1" \
    "weights:f32:2x2=0.5,0.25,9,2" "expert_ids:i32:2x2=0,1,1,0" "expert_bias:f32:2x1=10,20" \
    "residual:f32:2x1=1,-1" "residual2:f32:2x1=2,0"
tensor_text write out "unpermuted_tokens:f32:2x1=16,35" "out_index:i32:4=0,0,-1,1" \
    "permute_token_id:i32:4=0,0,1,1" "permuted_probs:f32:4=0.5,0.25,0,2" META=operator=unpermute
good "verify unpermute" moetoken verify case out
tensor_text write out BASE=out "unpermuted_tokens:f32:2x1=16,36"
rejected 1 "verify a wrong sum" "^moetoken: out: unpermuted_tokens\[1,0\] = 36" \
    moetoken verify case out
# weights_grad: 4 * 2 + 10 * 2, 8 * 2 + 20 * 2; 0 of the unused slot.
tensor_text write case "unpermuted_tokens_grad:f32:2x1=2,3" "out_index:i32:4=0,1,-1,-1" \
    "permuted_tokens:f32:2x1=4,8" "weights:f32:2x2=0.5,0.25,9,9" "expert_ids:i32:2x2=0,1,1,0" \
    "expert_bias:f32:2x1=10,20"
tensor_text write out "permuted_tokens_grad:f32:2x1=1,0.5" "weights_grad:f32:2x2=28,56,0,0" \
    META=operator=unpermute-grad
good "verify unpermute-grad" moetoken verify case out
tensor_text write out BASE=out "weights_grad:f32:2x2=28,56,0,1"
rejected 1 "verify a gradient of an unused slot" "weights_grad\[1,1\]" moetoken verify case out
tensor_text write case "permuted_tokens_grad:f32:3x1=1,2,4" "permuted_probs_grad:f32:3=8,16,32" \
    "sorted_indices:i32:4=2,0,-1,1" META=tokens_num=2
tensor_text write out "tokens_grad:f32:2x1=5,2" "weights_grad:f32:2x2=32,8,0,16" \
    META=operator=permute-grad
good "verify permute-grad" moetoken verify case out
tensor_text write out BASE=out "weights_grad:f32:2x2=32,8,0,15"
rejected 1 "verify a wrong weight" "weights_grad\[1,1\]" moetoken verify case out
# Both spellings at once.
tensor_text write case "tokens:f32:1x1=1" "expert_ids:i32:1x1=0" "routing_map:bool:1x1=1" \
    META=experts_num=1
tensor_text write out "permuted_tokens:f32:1x1=1" META=operator=permute
rejected 1 "both spellings" "routing_map" moetoken verify case out

# Generated ids: K different experts of each token, or -1; the same map as the other spelling.
for skew in 0 0.5 2; do
    good "ids" moetoken generate -o ids -q --ids --operator permute --tokens 50 --hidden 3 \
        --experts 7 --topk 3 --skew $skew
    good "map" moetoken generate -o map -q --operator permute --tokens 50 --hidden 3 \
        --experts 7 --topk 3 --skew $skew
    tensor_text print ids expert_ids | tr ' ' '\n' | sort | uniq -c | awk '{print $2, $1}' >by_ids
    tensor_text print map routing_map | awk '{for (i = 1; i <= NF; i++) n[i] += $i}
        END {for (i = 1; i <= 7; i++) if (n[i]) print i - 1, n[i]}' >by_map
    same "tokens of each expert, skew $skew" by_ids by_map
    tensor_text print ids expert_ids | awk '{if ($1 == $2 || $1 == $3 || $2 == $3) bad++}
        END {print bad + 0}' >twice
    equal_text "experts twice, skew $skew" "$(cat twice)" 0
done
good "holes" moetoken generate -o ids -q --ids --holes --operator permute --tokens 200 --hidden 3 \
    --experts 7 --topk 3
equal_text "some slots are unused" "$(tensor_text print ids expert_ids | grep -c -e -1 | tr '1-9' x | cut -c 1)" x

# The operators, on every type, against verify.
for type in f32 f16 bf16 f64; do
    for operator in permute unpermute unpermute-grad permute-grad; do
        for mode in "" "--no-probs" "--holes --shuffle --spare-rows 3 --index-dtype i64"; do
            # shellcheck disable=SC2086
            good "generate $mode" moetoken generate -o case -q --ids --operator $operator $mode \
                --dtype $type --tokens 23 --hidden 37 --experts 7 --topk 3
            good "$operator $type $mode" moetoken $operator case -o out -q
            good "verify $operator $type $mode" moetoken verify case out
        done
    done
done
good "generate" moetoken generate -o case -q --ids --holes --operator permute --tokens 23 --hidden 5 \
    --experts 7 --topk 3
for range in "" "--expert-begin 2 --expert-end 5"; do
    for capacity in 0 2 30; do
        # shellcheck disable=SC2086
        good "permute $range, capacity $capacity" moetoken permute case -o out $range \
            --capacity $capacity
        good "verify $range, capacity $capacity" moetoken verify case out
    done
done
rejected 1 "an inverted range" "expert_" moetoken permute case -o no --expert-begin 5 --expert-end 2
tensor_text write case BASE=case META=experts_num=2
rejected 1 "an id outside" "^moetoken: case: expert_ids" moetoken permute case -o no
tensor_text write case "permuted_tokens:bf16:3x2=1,2,3,4,5,6" "sorted_indices:i64:6=0,0,-1,1,2,2" \
    "weights:f32:3x2=0.5,0.25,9,2,0,-1" "expert_ids:i32:3x2=0,1,-1,0,1,1" \
    "expert_bias:bf16:2x2=10,20,30,40" "residual:bf16:3x2=1,-1,0.5,2,3,4" \
    "residual2:bf16:3x2=2,0,1,8,-3,1"
good "unpermute, residuals and bias" moetoken unpermute case -o out
good "verify residuals and bias" moetoken verify case out
[ ! -e no ] || fail "an error wrote a file"
finish 180
