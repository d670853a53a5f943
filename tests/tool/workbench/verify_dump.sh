#!/bin/sh
# verify DUMP: a folder with the layout that msprobe writes, made here. The routing is the worked example
# of docs/contract.md: t0 -> {e0, e2}, t1 -> {e1}, t2 -> {e0, e1}; rows in expert order 0..4.
. "$(dirname "$0")/../common.sh"

rank=dump/step0/rank0
mkdir -p $rank/dump_tensor_data

# tensor CALL.DIRECTION.PUT.PLACE TYPE SHAPE VALUES: writes the tensor, prints its entry.
tensor() {
    tensor_text pt "$rank/dump_tensor_data/$1.pt" ":$2:$3=$4" || exit 1
    printf '{"type": "torch.Tensor", "dtype": "%s", "shape": [%s], "Max": 1, "Min": 0, "Mean": 0.5,
        "Norm": 1, "requires_grad": false, "data_name": "%s.pt"}' "$2" "$(echo "$3" | tr x ,)" "$1"
}
value() {
    printf '{"type": "%s", "value": %s}' "$1" "$2"
}

# entries NAME: the text of dump.json up to now stays in the file "entries".
entry() {
    printf '%s"%s": {%s}' "$separator" "$1" "$2" >>entries
    separator=', '
}

json() {
    printf '{"task": "tensor", "level": "L1", "framework": "pytorch",
        "dump_data_dir": "/nowhere/dump_tensor_data", "data": {%s}}' "$(cat entries)" >$rank/dump.json
}

map=1,0,1,0,1,0,1,1,0
probs=0.5,0,2,0,1,0,0.25,4,0

# build ROWS_GRAD PROBS_GRAD TOKENS COMBINED: all calls, with these results.
build() {
    : >entries
    separator=
    entry Functional.linear.0.forward '"input_args": [], "input_kwargs": {}, "output": []'
    entry Functional.linear.1.forward '"input_args": [], "input_kwargs": {}, "output": []'
    entry Module.layer.Linear.forward.0 '"input_args": []'
    # By map, with a gradient: rows 0..4 are tokens 0, 2, 1, 2, 0.
    f=NPU.npu_moe_token_permute_with_routing_map.0
    entry $f.forward "\"input_args\": [$(tensor $f.forward.input.0 f32 3x2 1,2,3,4,5,6),
        $(tensor $f.forward.input.1 bool 3x3 $map)], \"input_kwargs\": {\"num_out_tokens\":
        $(value int 6), \"probs\": $(tensor $f.forward.input.probs f32 3x3 $probs),
        \"drop_and_pad\": $(value bool false)}, \"output\": [
        $(tensor $f.forward.output.0 f32 5x2 1,2,5,6,3,4,5,6,1,2),
        $(tensor $f.forward.output.1 f32 5 0.5,0.25,1,4,2),
        $(tensor $f.forward.output.2 i32 6 0,4,2,-1,1,3)]"
    # Rows 0 and 4 come back to token 0, 2 to token 1, 1 and 3 to token 2.
    entry $f.backward "\"input\": [$(tensor $f.backward.input.0 f32 5x2 1,2,3,4,5,6,7,8,9,10),
        null, null], \"output\": [$(tensor $f.backward.output.0 f32 3x2 "$3"), null]"
    # x row r is (r + 1, 1): token 0 is 0.5 (1, 1) + 2 (5, 1), token 2 is 0.25 (2, 1) + 4 (4, 1).
    f=NPU.npu_moe_token_unpermute_with_routing_map.0
    entry $f.forward "\"input_args\": [$(tensor $f.forward.input.0 f32 5x2 1,1,2,1,3,1,4,1,5,1),
        $(tensor $f.forward.input.1 i32 6 0,4,2,-1,1,3), $(value torch.Size '[3, 2]'),
        $(tensor $f.forward.input.3 f32 3x3 $probs)], \"input_kwargs\": {\"routing_map\":
        $(tensor $f.forward.input.routing_map bool 3x3 $map)},
        \"output\": [$(tensor $f.forward.output.0 f32 3x2 "$4")]"
    entry $f.backward "\"input\": [$(tensor $f.backward.input.0 f32 3x2 1,2,3,4,5,6)],
        \"output\": [$(tensor $f.backward.output.0 f32 5x2 "$1"), null, null,
        $(tensor $f.backward.output.3 f32 3x3 "$2")]"
    # By ids: slots 0..5 are experts 2, 0 | 1, 2 | 0, 0; sorted: 1, 4, 5 | 2 | 0, 3.
    f=NPU.npu_moe_token_permute.3
    entry $f.forward "\"input_args\": [$(tensor $f.forward.input.0 bf16 3x2 1,2,3,4,5,6),
        $(tensor $f.forward.input.1 i64 3x2 2,0,1,2,0,0), $(value int 5)], \"input_kwargs\": {},
        \"output\": [$(tensor $f.forward.output.0 bf16 5x2 1,2,5,6,5,6,3,4,1,2),
        $(tensor $f.forward.output.1 i32 6 4,0,3,5,1,2)]"
    # Row 5, slot 3, is cut off.
    entry $f.backward "\"input\": [$(tensor $f.backward.input.0 bf16 5x2 1,2,3,4,5,6,7,8,9,10), null],
        \"output\": [$(tensor $f.backward.output.0 bf16 3x2 10,12,7,8,8,10), null]"
    f=NPU.npu_moe_token_unpermute.3
    entry $f.forward "\"input_args\": [$(tensor $f.forward.input.0 f32 4x2 1,2,3,4,5,6,7,8),
        $(tensor $f.forward.input.1 i32 4 2,0,3,1)], \"input_kwargs\": {\"probs\":
        $(tensor $f.forward.input.probs f32 2x2 1,2,3,4)},
        \"output\": [$(tensor $f.forward.output.0 f32 2x2 7,10,33,40)]"
    entry NPU.npu_moe_gating_top_k.0.forward '"input_args": [], "output": []'
    # Column order: slots k * T + t; skip (10, 20) and (30, 40), weights 1 and 2, 3 and 4.
    f=NPU.npu_moe_finalize_routing.0
    entry $f.forward "\"input_args\": [$(tensor $f.forward.input.0 f32 4x2 1,2,3,4,5,6,7,8),
        $(tensor $f.forward.input.1 f32 2x2 10,20,30,40), null, null,
        $(tensor $f.forward.input.4 f32 2x2 1,2,3,4), $(tensor $f.forward.input.5 i32 4 0,1,2,3)],
        \"input_kwargs\": {}, \"output\": [$(tensor $f.forward.output.0 f32 2x2 21,34,67,84)]"
    f=NPU.npu_moe_init_routing_v2.0
    entry $f.forward "\"input_args\": [$(tensor $f.forward.input.0 f32 2x2 1,2,3,4),
        $(tensor $f.forward.input.1 i32 2x2 1,0,1,1)], \"input_kwargs\": {\"expert_num\":
        $(value int 2), \"expert_tokens_num_flag\": $(value bool true), \"expert_tokens_num_type\":
        $(value int 1)}, \"output\": [$(tensor $f.forward.output.0 f32 4x2 1,2,1,2,3,4,3,4),
        $(tensor $f.forward.output.1 i32 4 1,0,2,3), $(tensor $f.forward.output.2 i64 2 1,3)]"
    json
}
rows_grad=0.5,1,1.25,1.5,3,4,20,24,2,4
probs_grad=3,0,7,0,13,0,16,26,0
tokens=10,12,5,6,10,12
combined=10.5,2.5,3,1,16.5,4.25

build $rows_grad $probs_grad $tokens $combined
good "all right" moetoken verify dump
equal_text "summary" "$(tail -n 1 stdout)" \
    "verify: 9 calls, 15 of 15 results passed, 0 not checked"
equal_text "a line" "$(grep -c 'permute_with_routing_map.0.forward *output.1 *permuted_probs *float32 \[5\]' stdout)" 1
equal_text "others" "$(sed -n '/^other/,/^verify/p' stdout | sed '1d;$d' | tr -s ' ' | tr '\n' ',')" \
    " linear: 2, entries that are no calls, of modules for one: 1, npu_moe_gating_top_k: 1,"
good "a rank's folder, several standards" moetoken verify $rank --standard bits,ulp:1,atk-double
equal_text "lines" "$(grep -c PASS stdout)" 45
good "a step's folder" moetoken verify dump/step0 -q
equal_text "quiet" "$(cat stdout)" ""

# One element at a time is corrupted: it is found, with token, slot, expert and row.
corrupted() { # WHAT PATTERN ROWS_GRAD PROBS_GRAD TOKENS COMBINED
    build "$3" "$4" "$5" "$6"
    rejected 1 "$1" "$2" moetoken verify dump
    equal_text "$1, one of 15" "$(tail -n 1 stdout | grep -o '14 of 15')" "14 of 15"
}
corrupted "a row of the gradient" "backward output.0 permuted_tokens_grad \[3,0\] \
(token 2, slot 5, expert 1, row 3) = 21 (0x41a80000), golden 20 (0x4034000000000000) fails by" \
    0.5,1,1.25,1.5,3,4,21,24,2,4 $probs_grad $tokens $combined
corrupted "a weight's gradient" "output.3 probs_grad \[0,2\] (token 0, slot 1, expert 2, row 4) = 8" \
    $rows_grad 3,0,8,0,13,0,16,26,0 $tokens $combined
corrupted "a token's gradient" "permute_with_routing_map.0.backward output.0 tokens_grad \[2,1\] \
(token 2, slots 4 (row 1), 5 (row 3)) = nan" $rows_grad $probs_grad 10,12,5,6,10,nan $combined
corrupted "a sum" "unpermute_with_routing_map.0.forward output.0 unpermuted_tokens \[0,0\] \
(token 0, slots 0 (expert 0, row 0), 1 (expert 2, row 4)) = 11" \
    $rows_grad $probs_grad $tokens 11,2.5,3,1,16.5,4.25

# Faults of the folder.
build $rows_grad $probs_grad $tokens $combined
cp $rank/dump.json whole.json
f=NPU.npu_moe_token_permute.3.forward.input.1.pt
mv $rank/dump_tensor_data/$f away.pt
rejected 1 "a tensor is missing" "npu_moe_token_permute.3.forward  was not checked: .*$f: cannot be opened" \
    moetoken verify dump
mv away.pt $rank/dump_tensor_data/$f
sed "s/$f/..\/..\/$f/" whole.json >$rank/dump.json
rejected 1 "a name that leaves the folder" "expected the name of a .pt or .npy file" moetoken verify dump
sed 's/"shape": \[3,3\]/"shape": [9]/' whole.json >$rank/dump.json
rejected 1 "another shape" "has another shape than dump.json says" moetoken verify dump
sed 's/"data_name"/"md5"/g' whole.json >$rank/dump.json
rejected 1 "statistics" "is a dump of statistics without tensors" moetoken verify dump
printf '{"data": [' >$rank/dump.json
rejected 1 "no JSON" "dump.json: is not JSON from byte" moetoken verify dump
printf '[]' >$rank/dump.json
rejected 1 "no data" "has no object 'data'" moetoken verify dump
printf '{"data": {"Functional.relu.0.forward": {"output": [{"data_name": "x.pt"}]}}}' >$rank/dump.json
rejected 1 "no call" "holds no call of these operators" moetoken verify dump
rm $rank/dump.json
rejected 1 "no dump" "has no dump.json, expected one in step\*/rank\*/" moetoken verify dump
rejected 2 "one file that is no folder" "an argument is missing" moetoken verify whole.json
finish 25
