#!/bin/sh
# bench with more than 2^31 elements, in place: right on sampled rows, and the process does not grow in
# the call. Needs 6 GB and half a minute; skipped where there is less.
. "$(dirname "$0")/common.sh"

available=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' /proc/meminfo)
if [ "${available:-0}" -lt 6000000 ]; then
    echo "skipped: $available kB of memory are available, 6000000 are needed"
    exit 77
fi

number() { # KEY: of the one case
    sed -n "s/.*\"$1\": \([0-9][0-9]*\)[,}].*/\1/p" stdout
}
good "2.15 * 10^9 elements" \
    moetoken bench --model deepseek-v3 --tokens 37500 --in-place --verify --rounds 3 --json
equal_text "rows" "$(number rows)" 300000
equal_text "above 2^31 elements" "$(($(number rows) * $(number hidden) > 2147483648))" 1
equal_text "rows verified" "$(($(number verified_rows) >= 1000))" 1
# g, permuted_tokens, routing_map, probs, probs_grad, out_index and permute_token_id: no second
# permuted_tokens.
equal_text "bytes of the tensors" "$(number tensor_bytes)" \
    $((37500 * 7168 * 2 + 300000 * 7168 * 2 + 37500 * 256 * (1 + 4 + 4) + 300000 * (4 + 4)))
equal_text "bytes of the workspace" "$(number workspace_bytes)" $((16 * (300000 + 37500)))
grown=$(number grown_bytes)
equal_text "growth, 4 MiB at most: $grown" "$((${grown:-0} <= 4194304))" 1
cat stdout
finish 7
