#!/usr/bin/env bash
# limits_command.sh TOOL - `moetoken limits`: verdicts and exit statuses for cases that each product
# takes, some refuse, and none has.
set -euo pipefail
tool=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

expect() { # exit status, words, arguments of `moetoken limits`
    local status=0 output
    output=$("$tool" limits "${@:3}" 2>&1) || status=$?
    if [ "$status" != "$1" ] || ! grep -qF -- "$2" <<<"$output"; then
        echo "moetoken limits ${*:3}: exit status $status, expected $1; no \"$2\" in" >&2
        echo "$output" >&2
        exit 1
    fi
}
make() { # file, options of `moetoken generate`
    "$tool" generate --quiet "${@:2}" -o "$scratch/$1"
}

make many.npz --tokens 2 --hidden 8 --experts 50000 --topk 4
expect 0 "host          accepted" "$scratch/many.npz"
expect 0 "Ascend910B    refused: experts_num = 50000 is above 38624" "$scratch/many.npz"
expect 0 "Ascend950     accepted" "$scratch/many.npz"
expect 0 "Ascend310P    absent" "$scratch/many.npz"
expect 1 "Ascend910_93  refused" --soc Ascend910_93 "$scratch/many.npz"
expect 0 "Ascend950     accepted" --soc Ascend950 "$scratch/many.npz"
expect 1 "does not have this operator" --soc Ascend310B "$scratch/many.npz"
# Worked by hand for A2, float32: room = 196352 - 12 * 256 - 36 = 193244; 193244 / 5 = 38648.8, in
# whole blocks of 32 38624.
make edge.npz --tokens 1 --hidden 2 --experts 38640 --topk 1
expect 0 "Ascend910B    refused: experts_num = 38640 is above 38624" "$scratch/edge.npz"
expect 0 "takes up to 38648, the document 38624; above 38592, with float32, the device computes" \
    "$scratch/edge.npz"
make edge.npz --tokens 1 --hidden 2 --experts 38600 --topk 1
expect 0 "Ascend910B    accepted: but the vendor's tiling" --soc Ascend910B "$scratch/edge.npz"
make edge.npz --tokens 1 --hidden 2 --experts 38592 --topk 1
expect 0 "Ascend910B    accepted" --soc Ascend910B "$scratch/edge.npz"
if "$tool" limits --soc Ascend910B "$scratch/edge.npz" | grep -q tiling; then
    echo "38592 experts: document and tiling agree" >&2
    exit 1
fi
# 512 * floor(194272 / 24) = 512 * 8094 = 4144128; 256 * 194272 / 12 = 4144469.3
make edge.npz --tokens 1 --hidden 4144200 --experts 1 --topk 1 --capacity 1
expect 0 "takes hidden_size up to 512 * floor((UB - 2080) / (2 * (8 + S))) = 4144128, the document up to 4144469" \
    --soc Ascend910B "$scratch/edge.npz"
make mixed.npz --tokens 4 --hidden 8 --experts 4 --topk 2 --dtype f16 --probs-dtype f32
expect 1 "with bfloat16 tokens only" --soc Ascend910B "$scratch/mixed.npz"
make padded.safetensors --tokens 16 --hidden 8 --experts 4 --topk 2 --capacity 8 --dtype bf16
expect 0 "Ascend910B    accepted" "$scratch/padded.safetensors"
make bare.npz --tokens 4 --hidden 8 --experts 4 --topk 2 --no-probs
expect 0 "Ascend950     accepted: without probs nothing is limited" "$scratch/bare.npz"
make wide.npz --tokens 4 --hidden 8 --experts 4 --topk 2 --index-dtype i64
expect 1 "indices of type int64" --soc host "$scratch/wide.npz"
make forward.npz --operator permute --tokens 4 --hidden 8 --experts 4 --topk 2
expect 1 "there is no tensor unpermuted_tokens_grad" "$scratch/forward.npz"
expect 2 "--soc Quantum: expected one of host" --soc Quantum "$scratch/bare.npz"
expect 2 "an argument is missing"

# By expert ids: a line a product and operator.
ids() { make "$1" --ids --tokens 4 --hidden 2 --experts 8 --topk 2 "${@:2}"; }
ids permute.npz --operator permute
expect 0 "Ascend910B    aclnnMoeTokenPermute            accepted" "$scratch/permute.npz"
expect 0 "Ascend950     aclnnMoeTokenPermuteWithEp      refused: only Atlas A2 and A3" "$scratch/permute.npz"
expect 0 "Ascend310P    aclnnMoeInitRoutingV3           absent: " "$scratch/permute.npz"
make wide.npz --ids --operator permute --tokens 1 --hidden 2 --experts 10240 --topk 513 --index-dtype i32
expect 0 "Ascend910B    aclnnMoeTokenPermute            refused: K = 513 is above 512" "$scratch/wide.npz"
expect 0 "Ascend910B    aclnnMoeInitRoutingV3           accepted" "$scratch/wide.npz"
expect 0 "host          aclnnMoeTokenPermute            accepted" "$scratch/wide.npz"
make wide.npz --ids --operator permute --tokens 1 --hidden 2 --experts 10241 --topk 1 --index-dtype i32
expect 0 "Ascend950     aclnnMoeInitRoutingV3           refused: E = 10241 is above 10240" "$scratch/wide.npz"
ids long.npz --operator permute --index-dtype i64
expect 0 "Ascend910B    aclnnMoeInitRoutingV3           refused: ids of type int64" "$scratch/long.npz"
expect 0 "Ascend910B    aclnnMoeInitRoutingV2           accepted" "$scratch/long.npz"
ids backward.npz --operator permute-grad --no-probs
expect 0 "Ascend910B    aclnnMoeInitRoutingV2Grad       accepted" "$scratch/backward.npz"
ids backward.npz --operator permute-grad
expect 0 "Ascend910B    aclnnMoeTokenPermuteGrad        refused: it has no gradient of weights" \
    "$scratch/backward.npz"
expect 0 "Ascend910B    aclnnMoeTokenPermuteWithEpGrad  accepted" "$scratch/backward.npz"
ids combine.npz --operator unpermute --dtype f16 --probs-dtype f32
expect 0 "Ascend910B    aclnnMoeTokenUnpermute          accepted" "$scratch/combine.npz"
expect 0 "Ascend910B    aclnnMoeFinalizeRoutingV2       refused: Atlas A2 and A3 take weights of the tokens' type, or float32 with bfloat16" \
    "$scratch/combine.npz"
expect 0 "Ascend950     aclnnMoeFinalizeRoutingV2       accepted" "$scratch/combine.npz"
ids grad.npz --operator unpermute-grad --dtype bf16 --probs-dtype f32
expect 1 "Ascend310B    aclnnMoeTokenUnpermuteGrad      absent" --soc Ascend310B "$scratch/grad.npz"
expect 0 "Ascend910B    aclnnMoeTokenUnpermuteGrad      accepted" --soc Ascend910B "$scratch/grad.npz"
expect 0 "Ascend910B    aclnnMoeFinalizeRoutingV2Grad   refused: Atlas A2 and A3 take weights of the tokens' type" \
    "$scratch/grad.npz"
echo "all verdicts are right"
