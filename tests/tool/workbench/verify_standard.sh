#!/bin/sh
# verify --standard: golden results and a third party's are computed by the tool; the worst element is
# told with its token, slot, expert and row. The case is the worked example of docs/contract.md.
. "$(dirname "$0")/../common.sh"

# t0 -> {e0, e2}, t1 -> {e1}, t2 -> {e0, e1}; H = 2, x row r = (r + 1, 1).
tensor_text write case.npz unpermuted_tokens_grad:f32:3x2=1,2,3,4,5,6 out_index:i32:6=0,4,2,-1,1,3 \
    permute_token_id:i32:6=0,0,1,1,2,2 routing_map:bool:3x3=1,0,1,0,1,0,1,1,0 \
    permuted_tokens:f32:5x2=1,1,2,1,3,1,4,1,5,1 probs:f32:3x3=0.5,0,2,0,1,0,0.25,4,0 || exit 1
all=bits,ulp:0,ecosystem-2026-04,ecosystem-2026-07,msprobe,atk-double,commercial-L0-2026-04
all=$all,commercial-L1-2026-04,commercial-L2-2026-04

# out ROWS PAIRS: rows are p * g, pairs <x, g>.
out() {
    tensor_text write out.npz META=operator=unpermute-grad "permuted_tokens_grad:f32:5x2=$1" \
        "probs_grad:f32:3x3=$2" || exit 1
}
rows=0.5,1,1.25,1.5,3,4,20,24,2,4
pairs=3,0,7,0,13,0,16,26,0

out $rows $pairs
good "all right" moetoken verify case.npz out.npz --standard $all
equal_text "all standards, both outputs" "$(grep -c '  PASS$' stdout)" 18
equal_text "summary" "$(tail -n 1 stdout)" "verify unpermute-grad: passed"

# wrong WHAT ROWS PAIRS PLACE: the one element that is wrong fails by every standard that is asked.
wrong() {
    out "$2" "$3"
    for in_standard in bits ulp:4 ecosystem-2026-07 commercial-L2-2026-04 atk-double; do
        rejected 1 "$1, $in_standard" "$4 fails by $in_standard" \
            moetoken verify case.npz out.npz --standard $in_standard
        rejected 1 "$1, $in_standard, place" "$5" moetoken verify case.npz out.npz -q -s $in_standard
    done
}
wrong "a row" 0.5,1,1.25,1.5,3,4,20,24,2,4.5 $pairs 'permuted_tokens_grad\[4,1\]' \
    '(token 0, slot 1, expert 2, row 4)'
wrong "a pair" $rows 3,0,7,0,13,0,16,27,0 'probs_grad\[2,1\]' '(token 2, slot 5, expert 1, row 3)'
wrong "an entry without a slot" $rows 3,0,7,1,13,0,16,26,0 'probs_grad\[1,0\]' \
    '(token 1, expert 0, no slot)'
wrong "a NaN" 0.5,1,nan,1.5,3,4,20,24,2,4 $pairs 'permuted_tokens_grad\[1,0\]' \
    '(token 2, slot 4, expert 0, row 1)'
out 0.5,1,1.25,1.5,3,4,20,24,2,4.5 $pairs
moetoken verify case.npz out.npz -s ulp:1 >stdout 2>/dev/null
equal_text "worst" "$(grep worst stdout)" "    worst [4,1], token 0, slot 1, expert 2, row 4 = 4.5 (0x40900000), \
golden 4 (0x4010000000000000), third party 4 (0x40800000)"
good "only the named" moetoken verify case.npz out.npz -s bits --outputs probs_grad

# A row that no slot names, and an output of another shape or none.
tensor_text write more.npz BASE=case.npz permuted_tokens:f32:6x2=1,1,2,1,3,1,4,1,5,1,6,1 || exit 1
tensor_text write out.npz META=operator=unpermute-grad \
    "permuted_tokens_grad:f32:6x2=$rows,0,7" "probs_grad:f32:3x3=$pairs" || exit 1
rejected 1 "a row without a slot" '\[5,1\] fails by bits (row 5, which no slot names)' \
    moetoken verify more.npz out.npz -s bits
rejected 1 "rows" 'permuted_tokens_grad has shape\[0\] = 6, expected 5' \
    moetoken verify case.npz out.npz -s bits
tensor_text write out.npz META=operator=unpermute-grad "probs_grad:f32:3x3=$pairs" || exit 1
rejected 1 "missing" 'permuted_tokens_grad is missing' moetoken verify case.npz out.npz -s bits

# A sum over the slots of a token: unpermute by ids, 2 * (1, 2) + 3 * (10, 20) and 1 * (100, 200).
tensor_text write sums.npz permuted_tokens:f32:3x2=1,2,10,20,100,200 sorted_indices:i32:4=0,1,2,-1 \
    weights:f32:2x2=2,3,1,5 expert_ids:i32:2x2=4,0,7,-1 META=experts_num=8 || exit 1
tensor_text write total.npz META=operator=unpermute unpermuted_tokens:f32:2x2=32,64,100,200.5 \
    out_index:i32:4=0,1,2,-1 permute_token_id:i32:4=0,0,1,1 permuted_probs:f32:4=2,3,1,0 || exit 1
rejected 1 "a sum" '\[1,1\] fails by ulp:1 (token 1, slots 2 (expert 7, row 2), 3 (no row))' \
    moetoken verify sums.npz total.npz -s ulp:1
# Residual rows and biases: (1,1) + (10,10) + 2 ((1,2) + (3,4)) + 3 ((10,20) + (1,2)); a weight of 0 adds
# nothing, not even an infinity.
tensor_text write sums.npz permuted_tokens:f32:3x2=1,2,10,20,inf,200 sorted_indices:i32:4=0,1,2,-1 \
    weights:f32:2x2=2,3,0,5 expert_ids:i32:2x2=2,0,1,-1 residual:f32:2x2=1,1,2,2 \
    residual2:f32:2x2=10,10,20,20 expert_bias:f32:3x2=1,2,inf,5,3,4 || exit 1
tensor_text write total.npz META=operator=unpermute unpermuted_tokens:f32:2x2=52,89,22,22 || exit 1
good "residuals and biases" moetoken verify sums.npz total.npz -s ulp:0,atk-double \
    --outputs unpermuted_tokens

# Padded, with fill slots that have no weight.
moetoken generate -q -o c.npz --tokens 12 --hidden 5 --experts 4 --topk 1 --drop-and-pad --capacity 9 ||
    exit 1
moetoken unpermute-grad c.npz -q -o o.npz --mask-fill-slots || exit 1
good "masked fill slots" moetoken verify c.npz o.npz --mask-fill-slots -s ecosystem-2026-04
rejected 1 "unmasked" "fails by ecosystem-2026-04" \
    moetoken verify c.npz o.npz --mask-fill-slots=false -s ecosystem-2026-04

good "list" moetoken verify --standard list
equal_text "list" "$(grep -c '^[a-z]' stdout)" 9
rejected 2 "no such standard" "'bots' is no standard" moetoken verify case.npz out.npz -s bots

# The tool's own results, in each type, by the strictest of each kind; not exact where sums are float32.
for operator in unpermute-grad unpermute permute permute-grad; do
    for words in "--dtype bf16" "--dtype f32 --drop-and-pad" "--dtype f16 --ids" "--dtype f64 --holes"; do
        # shellcheck disable=SC2086
        moetoken generate -q -o c.npz --operator $operator --tokens 40 --hidden 67 --experts 8 \
            --topk 2 $words || exit 1
        moetoken $operator c.npz -q -o o.npz || exit 1
        good "$operator $words" moetoken verify c.npz o.npz \
            -s ecosystem-2026-04,ecosystem-2026-07,msprobe,atk-double,commercial-L2-2026-04
    done
done
finish 71
