#!/bin/sh
# router and router-grad: results worked by hand, every setting against verify, what verify rejects,
# wrong input; and the README's way from logits to output.
readme=$(cd "$(dirname "$0")/../.." && pwd)/README.md || exit 1 # before the folder changes
. "$(dirname "$0")/common.sh"

seed=${MOETOKEN_TEST_SEED:-4711}
echo "seed $seed"
all="expert_ids,weights,scores,rows_per_expert,routing_map,probs"

# print_rows FILE NAME: the rows, split at '/'.
print_rows() {
    tensor_text print "$1" "$2" | tr '\n' '/'
}

# By hand: the sigmoid of 0 is 1/2, of -inf 0. Token 0: a tie, the lower indices win. Token 1: the
# bias lifts expert 2. Token 2 is masked.
tensor_text write case "logits:f32:3x3=0,0,0,0,-inf,-inf,0,0,0" "token_mask:bool:3=1,1,0" \
    "bias:f32:3=0,0,0.25" META=score=sigmoid META=topk=2 META=scale=3
good "by hand" moetoken router case -o out -q --outputs "$all"
equal_text "ids" "$(print_rows out expert_ids)" "2 0/0 2/-1 -1/"
equal_text "weights" "$(print_rows out weights)" "1.5 1.5/1.5 0/0 0/"
equal_text "scores" "$(print_rows out scores)" "0.5 0.5 0.5/0.5 0 0/0 0 0/"
equal_text "map" "$(print_rows out routing_map)" "1 0 1/1 0 1/0 0 0/"
equal_text "probs" "$(print_rows out probs)" "1.5 0 1.5/1.5 0 0/0 0 0/"
equal_text "counts" "$(print_rows out rows_per_expert)" "2 0 2/"
good "verify by hand" moetoken verify case out
good "options go before the file" moetoken router case -o out -q --topk 1 --scale 4 --normalize --eps 0.5
equal_text "weights" "$(print_rows out weights)" "2/2/0/"
equal_text "no map unasked" "$(tensor_text print out routing_map 2>&1 | grep -c tensor_text)" 1
good "verify options" moetoken verify case out
# Two groups: {0, 1} has the best expert, {2, 3} the best two together.
tensor_text write case "logits:f32:1x4=5,-9,4,3" META=topk=2 META=groups_num=2 META=score=softmax_after
good "groups by their best" moetoken router case -o out -q
equal_text "ids" "$(print_rows out expert_ids)" "0 1/"
good "groups by two" moetoken router case -o out -q --group-score-count 2
equal_text "ids" "$(print_rows out expert_ids)" "2 3/"
good "verify groups" moetoken verify case out
rejected 1 "verify other groups" "^moetoken: out: expert_ids\[0,0\] = 2" \
    moetoken verify case out --group-score-count 1
# The gradient of a sigmoid at 0 is 1/4; with scale -2 and gradients 8 and 4: -4 and -2; a score's: 1.
tensor_text write case "logits:f32:2x2=0,0,0,0" "expert_ids:i64:2x1=1,-1" "weights_grad:f32:2x1=8,7" \
    "scores_grad:f32:2x2=0,0,4,0" META=score=sigmoid META=scale=-2
good "the gradient by hand" moetoken router-grad case -o out -q
equal_text "gradient" "$(print_rows out logits_grad | sed 's/-0\([ /]\)/0\1/g')" "0 -4/1 0/"
good "verify the gradient" moetoken verify case out

# Every score, type and option; tokens left out, and logits that are huge, tiny and zero.
for type in f32 bf16 f64; do
    for score in softmax sigmoid sqrtsoftplus softmax_after; do
        for more in "" "--normalize --eps 1e-20 --scale 2.5 --normalize-scores"; do
            what="$type $score $more"
            good generate moetoken generate -q --logits --recipe glm-4.5 --tokens 40 --experts 16 \
                --hidden 0 --holes --probs-dtype $type --dtype $type --extremes 50 --seed "$seed" -o case
            # shellcheck disable=SC2086
            good "router $what" moetoken router -q case --recipe mixtral --topk 4 --normalize=false \
                --score $score $more --groups-num 4 --groups-top 2 --weights-dtype logits \
                --outputs "$all" -o out
            good "verify $what" moetoken verify case out
            good generate moetoken generate -q --operator router-grad --tokens 40 --experts 16 --topk 4 \
                --hidden 0 --holes --probs-dtype $type --dtype $type --extremes 50 --seed "$seed" -o case
            # shellcheck disable=SC2086
            good "router-grad $what" moetoken router-grad -q case --score $score $more -o out
            good "verify router-grad $what" moetoken verify case out
        done
    done
done
# The same bits on every instruction set, and in both formats.
good generate moetoken generate -q --logits --model deepseek-v3 --hidden 0 --tokens 50 -o case.npz
good base moetoken router -q case.npz -o base
for isa in $(levels); do
    good "$isa" moetoken router -q case.npz -o out --isa "$isa" --threads 3
    same "$isa" base out
done

# One bit wrong, or two experts exchanged.
good generate moetoken generate -q --logits --model olmoe-1b-7b --hidden 0 --tokens 9 --extremes 0 \
    --seed "$seed" -o case
good router moetoken router -q case -o out --outputs "$all"
for flip in "expert_ids 0" "expert_ids 2080" "weights 23" "weights 1000" "scores 31" "scores 7777" \
    "rows_per_expert 0" "rows_per_expert 4032" "routing_map 8" "routing_map 4600" "probs 30"; do
    cp out flipped
    # shellcheck disable=SC2086
    tensor_text flip flipped $flip || fail "flip $flip"
    rejected 1 "flip $flip" "^moetoken: flipped: ${flip%% *}\[" moetoken verify case flipped
done
tensor_text write case "logits:f32:1x3=1,1,1" META=topk=2
tensor_text write out "expert_ids:i32:1x2=1,0" "weights:f32:1x2=0.33333334,0.33333334" \
    "scores:f32:1x3=0.33333334,0.33333334,0.33333334" "rows_per_expert:i64:3=1,1,0" \
    META=operator=router
rejected 1 "a tie to the higher index" "^moetoken: out: expert_ids\[0,0\] = 1, expected 0" \
    moetoken verify case out
# Nearer to one another than binary64 tells: either order is right.
tensor_text write case "logits:f64:1x3=40,41,42" META=topk=2 META=score=sigmoid
tensor_text write out "expert_ids:i32:1x2=1,0" META=operator=router
good "an order that cannot be told" moetoken verify case out --outputs expert_ids
tensor_text write case "logits:f64:1x3=30,31,32" META=topk=2 META=score=sigmoid
rejected 1 "an order that can" "expert_ids\[0,0\] = 1, expected 2" \
    moetoken verify case out --outputs expert_ids
good generate moetoken generate -q --operator router-grad --tokens 9 --experts 5 --topk 2 --hidden 0 \
    --extremes 0 --seed "$seed" -o case
good router-grad moetoken router-grad -q case -o out
for bit in 20 31 1000; do
    cp out flipped
    tensor_text flip flipped logits_grad $bit || fail "flip $bit"
    rejected 1 "flip $bit" "^moetoken: flipped: logits_grad\[" moetoken verify case flipped
done

# Wrong input: one line that names it.
tensor_text write bare "logits:f32:1x3=1,2,3"
rejected 1 "no K" "give --topk or --recipe" moetoken router bare -o none
rejected 1 "no such recipe" 'no recipe is named "gpt-5"' moetoken router bare -o none --recipe gpt-5
rejected 1 "K beyond E" "config.topk = 4, expected at most E = 3" moetoken router bare -o none -k 4
rejected 1 "groups" "config.groups_num = 2 does not divide E = 3" \
    moetoken router bare -o none -k 1 --groups-num 2
rejected 2 "eps" "--eps -1: expected" moetoken router bare -o none -k 1 --normalize --eps=-1
rejected 2 "scale" "--scale nan: expected" moetoken router bare -o none -k 1 --scale nan
rejected 1 "no logits" "there is no tensor logits" moetoken router out -o none -k 1
rejected 1 "no such output" "this case has no such outputs" \
    moetoken router case.npz -o none --outputs weights,nothing
tensor_text write bad "logits:f32:1x3=1,2,3" META=score=tanh META=topk=1
rejected 1 "score" "metadata score = 'tanh': expected softmax|sigmoid" moetoken router bad -o none
tensor_text write bad "logits:f32:1x3=1,2,3" META=scale=2x META=topk=1
rejected 1 "scale" "metadata scale = '2x': expected a finite number" moetoken router bad -o none
tensor_text write bad "logits:f32:1x3=1,2,3" "expert_ids:i32:1x1=3" "weights_grad:f32:1x1=1"
rejected 1 "an id" "expert_ids\[0,0\] = 3 is outside" moetoken router-grad bad -o none
rejected 1 "no gradient" "weights_grad, probs_grad" moetoken router-grad bare -o none
rejected 2 "recipe of an operator" "--recipe: expected with --logits" \
    moetoken generate --model dbrx --recipe mixtral -o none
[ ! -e none ] || fail "a refused command wrote a file"

# The README's commands, as they stand there.
sed -n '/^moetoken generate --logits/,/^```/p' "$readme" | grep -v '^```' >commands
equal_text "commands in the README" "$(grep -c '^moetoken ' commands)" 7
while read -r line; do
    eval "good \"README: ${line%%#*}\" ${line%%#*}" </dev/null
done <commands
equal_text "outputs" "$(tensor_text print output.safetensors unpermuted_tokens | wc -l)" 64
finish 150
