#!/bin/sh
# gradcheck: all modes below 1e-6, with small shapes, a model's shape and cases on file.
. "$(dirname "$0")/common.sh"

seed=${MOETOKEN_TEST_SEED:-77}
echo "seed $seed"
good modes moetoken gradcheck --seed "$seed"
# 40 by map; by ids 7 modes of 4, less the two gradients of weights that one mode does not have.
equal_text "modes and gradients" "$(grep -c 'permute  *[a-z_]*grad' stdout)" 66
equal_text "router" "$(grep -c 'router  *logits_grad' stdout)" 9
equal_text "residuals" "$(grep -c 'unpermute  *residual' stdout)" 2
equal_text "worst" "$(grep -c '^worst relative error [0-9.e-]*: all gradients agree$' stdout)" 1
good "another shape" moetoken gradcheck --tokens 6 --hidden 17 --experts 3 --topk 1 --seed "$seed"
good "E = K" moetoken gradcheck --tokens 4 --hidden 3 --experts 2 --topk 2 --seed "$seed"
good "a model" moetoken gradcheck --model olmoe-1b-7b --tokens 5 --samples 4 --seed "$seed"
for mode in "" "--holes --shuffle" "--drop-and-pad --random-fill" "--operator unpermute" \
    "--operator permute --holes" "--operator unpermute --drop-and-pad --dtype bf16"; do
    # shellcheck disable=SC2086
    good generate moetoken generate -o case.npz -q --tokens 9 --hidden 6 --experts 5 --topk 2 \
        --seed "$seed" --extremes 0 $mode
    good "case $mode" moetoken gradcheck case.npz --samples 0
done
for settings in "--logits --recipe deepseek-v3" "--logits --recipe gpt-oss --holes" \
    "--operator router-grad --topk 3 --holes"; do
    # shellcheck disable=SC2086
    good generate moetoken generate -o case.npz -q --tokens 9 --hidden 6 --experts 16 \
        --seed "$seed" --extremes 0 $settings
    good "router, $settings" moetoken gradcheck case.npz --samples 0
done
tensor_text write bare "routing_map:bool:1x2=1,0"
rejected 1 "a case without rows" "holds neither rows nor slots" moetoken gradcheck bare
finish 26
