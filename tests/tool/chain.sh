#!/bin/sh
# The four operators one after the other, each from the files of the ones before, in both modes; and
# the round trip: permute, then unpermute with weights that sum to 1, gives back the tokens.
. "$(dirname "$0")/common.sh"

for mode in "" "--drop-and-pad" "--holes"; do
    # shellcheck disable=SC2086
    good generate moetoken generate -o case -q --operator permute $mode --tokens 21 --hidden 33 \
        --experts 6 --topk 2 --seed 5
    good permute moetoken permute case -o permuted -q
    good unpermute moetoken unpermute permuted case -o combined.npz -q
    # shellcheck disable=SC2086
    good gradient moetoken generate -o gradient -q $mode --tokens 21 --hidden 33 --experts 6 \
        --topk 2 --seed 6
    tensor_text write only_gradient BASE=gradient DROP=out_index DROP=permute_token_id DROP=probs \
        DROP=routing_map DROP=permuted_tokens
    good unpermute-grad moetoken unpermute-grad only_gradient combined.npz permuted case -o grad -q
    # Whoever uses permuted_probs has a gradient for it; here it is permuted_probs itself.
    tensor_text write probs BASE=permuted DROP=permuted_tokens DROP=sorted_indices
    values=$(tensor_text print permuted permuted_probs | tr ' \n' ',,' | sed 's/,$//')
    rows=$(echo "$values" | tr ',' '\n' | wc -l)
    tensor_text write probs "permuted_probs_grad:f32:$rows=$values"
    good permute-grad moetoken permute-grad grad probs permuted case -o tokens -q
    good "verify permute" moetoken verify case permuted
    good "verify unpermute" moetoken verify permuted case combined.npz
    good "verify unpermute-grad" moetoken verify only_gradient combined.npz permuted case grad
    good "verify permute-grad" moetoken verify grad probs permuted case tokens
done

# Weights 1/2 for each of two experts: exact for every value that is not subnormal.
for type in f32 f16 bf16 f64; do
    good generate moetoken generate -o case -q --operator permute --dtype $type --probs-dtype $type \
        --tokens 5 --hidden 37 --experts 3 --topk 2 --extremes 0 --seed 9
    half=0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5
    tensor_text write halves BASE=case "probs:$type:5x3=$half"
    good permute moetoken permute halves -o permuted -q
    good unpermute moetoken unpermute permuted halves -o combined -q
    tensor_text print combined unpermuted_tokens >got
    tensor_text print case tokens >wanted
    same "round trip $type" got wanted
done
finish 40
