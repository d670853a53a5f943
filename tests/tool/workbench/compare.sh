#!/bin/sh
# compare: pairs of tensors, files of all kinds, exit statuses, what is printed. The figures themselves
# are tested in units/judge_test.c and judge_limits_test.c.
. "$(dirname "$0")/../common.sh"

tensor_text write golden.safetensors x:f32:2x2=1,2,3,4 n:i64:3=1,2,3 || exit 1
tensor_text write right.npz x:bf16:2x2=1,2,3,4 n:i32:3=1,2,3 || exit 1
tensor_text write wrong.npz x:bf16:2x2=1,2,3.5,4 n:i32:3=1,2,4 || exit 1

good "other types, all right" moetoken compare right.npz golden.safetensors --standard ecosystem-2026-07,bits,ulp:0
equal_text "passes" "$(grep -c PASS stdout)" 6
equal_text "heading" "$(grep '^x' stdout)" "x: bfloat16 [2,2] against float32 [2,2]"
equal_text "sources" "$(sed -n 1p stdout)" \
    "ecosystem-2026-07: CANN opbase, experimental_standard.md, 2026-07-15, its limit as of 2026-09-23"
equal_text "summary" "$(tail -n 1 stdout)" "compare: 2 of 2 tensors passed"

# 0.5 at 3: 0.5 / 2^-6 = 32 ulp of bfloat16; 0.5 > 2^-6 + 2^-6 * 3; one of four elements.
rejected 1 "one element" "^moetoken: wrong.npz: x\[1,0\] fails by ecosystem-2026-07$" \
    moetoken compare wrong.npz golden.safetensors --standard ecosystem-2026-07,ulp:32
equal_text "worst" "$(grep 'worst \[1,0\]' stdout | head -n 1)" \
    "    worst [1,0] = 3.5 (0x4060), golden 3 (0x40400000)"
equal_text "figure" "$(grep 'matched ratio' stdout | tr -s ' ')" " matched ratio 0.75 >= 0.99 FAIL"
equal_text "ulp" "$(grep 'error in ulp' stdout | tr -s ' ')" " largest error in ulp 32 <= 32 pass"
equal_text "integers" "$(grep 'worst \[2\]' stdout | head -n 1)" "    worst [2] = 4, golden 3"
rejected 1 "only the named" "n\[2\] fails by bits" \
    moetoken compare wrong.npz golden.safetensors --standard bits --tensors n
equal_text "only the named" "$(grep -c PASS stdout)$(tail -n 1 stdout)" "0compare: 0 of 1 tensors passed"
rejected 1 "quiet" "x\[1,0\] fails by bits" moetoken compare wrong.npz golden.safetensors -q -s bits
equal_text "quiet" "$(cat stdout)" ""

# Names on one side, shapes, kinds of types: each is named.
tensor_text write other.npz x:f32:4=1,2,3,4 z:f32:1=1 n:f32:3=1,2,3 || exit 1
rejected 1 "what cannot be compared" "x has shape \[4\], expected \[2,2\] as in the golden result" \
    moetoken compare other.npz golden.safetensors --standard bits
equal_text "missing there" "$(grep 'is not in' stdout)" "    is not in GOLDEN (golden.safetensors)"
equal_text "kinds" "$(grep 'cannot be compared' stdout)" \
    "    has type float32, which cannot be compared with int64 of the golden result"
rejected 1 "missing here" "z is not in ACTUAL (golden.safetensors)" \
    moetoken compare golden.safetensors other.npz --standard bits --tensors z
rejected 1 "nothing" "there is no tensor to compare" \
    moetoken compare golden.safetensors other.npz --standard bits --tensors q

# A third party: its errors are the measure.
tensor_text write third.npz x:f32:2x2=1,2,3.25,4 n:i64:3=1,2,3 || exit 1
tensor_text write near.npz x:f32:2x2=1,2,3.25,4 n:i64:3=1,2,3 || exit 1
good "as wrong as the third party" moetoken compare near.npz golden.safetensors \
    --third-party third.npz --standard commercial-L2-2026-04
equal_text "third party" "$(grep worst stdout)" \
    "    worst [1,0] = 3.25 (0x40500000), golden 3 (0x40400000), third party 3.25 (0x40500000)"
tensor_text write bare.npz n:i64:3=1,2,3 || exit 1
rejected 1 "third party without the tensor" "x is not in the third party (bare.npz)" \
    moetoken compare near.npz golden.safetensors --third-party bare.npz --standard atk-double

# Raw files and .npy: two tensors alone are a pair whatever they are called.
printf '\000\000\200\077\000\000\000\100' >raw.bin # 1 and 2 in float32
tensor_text write pair.npz whatever:f32:2=1,2 || exit 1
good "raw" moetoken compare raw.bin pair.npz --standard bits --dtype f32 --shape 2
rejected 1 "raw of another size" "raw.bin: has 8 bytes, expected 12 for F32 of shape \[3,1\]" \
    moetoken compare raw.bin pair.npz --standard bits --dtype f32 --shape 3,1
rejected 1 "raw beyond all sizes" "raw.bin: has 8 bytes" moetoken compare raw.bin pair.npz \
    --standard bits --dtype f64 --shape 4611686018427387904,4611686018427387904
printf '\223NUMPY\001\000\106\000%-69s\n\000\000\200\077\000\000\000\100' \
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }" >array.npy
good "npy" moetoken compare array.npy pair.npz --standard bits
equal_text "its name is the file's" "$(grep against stdout)" "array: float32 [2] against float32 [2]"

# JSON that a parser takes, with figures and the worst element.
moetoken compare wrong.npz golden.safetensors --standard ulp:1 --json >json 2>/dev/null
equal_text "status with JSON" $? 1
if command -v python3 >/dev/null; then
    equal_text "JSON" "$(python3 -c "
import json
found = json.load(open('json'))
x = found['tensors'][0]['judgements'][0]
print(found['passed'], x['passed'], x['standard'], x['worst']['index'], x['worst']['actual'],
      x['figures'][1]['value'], x['figures'][1]['limit'], found['standards'][0]['name'])")" \
        "False False ulp:1 [1, 0] 3.5 32 1 ulp:1"
fi
tensor_text write nan.npz x:f32:1=nan || exit 1
tensor_text write 'q"uote.npz' x:f32:1=inf || exit 1
moetoken compare nan.npz 'q"uote.npz' --standard bits --json >json 2>/dev/null
if command -v python3 >/dev/null; then
    equal_text "JSON of what is no number" "$(python3 -c "
import json
found = json.load(open('json'))
print(found['golden'], found['tensors'][0]['judgements'][0]['worst']['actual'])")" 'q"uote.npz nan'
fi

good "list" moetoken compare --standard list
equal_text "list" "$(grep -c '^[a-z]' stdout)" 9
rejected 2 "no standard" "standard NAME is missing" moetoken compare a b
rejected 2 "one file" "an argument is missing" moetoken compare a --standard bits
rejected 2 "no such standard" "'bit' is no standard" moetoken compare a b --standard ulp:1,bit
rejected 2 "needs a third party" "standard commercial-L0-2026-04 needs --third-party" \
    moetoken compare a b --standard bits,commercial-L0-2026-04
rejected 2 "raw without a type" "raw.bin: a raw file needs --dtype and --shape" \
    moetoken compare raw.bin pair.npz --standard bits --shape 2
rejected 2 "no shape" "shape 2x2: expected up to 8 sizes" \
    moetoken compare raw.bin pair.npz --standard bits --dtype f32 --shape 2x2
rejected 1 "no file" "nowhere.npz: cannot be opened" \
    moetoken compare nowhere.npz golden.safetensors --standard bits
finish 39
