#!/bin/sh
# inspect writes one page that fetches nothing, stays small, and takes names from files as text. What
# it looks like in a browser is scripts/check_browser.sh's.
. "$(dirname "$0")/../common.sh"

# data PAGE: the JSON in it, on one line.
data() {
    sed -n 's/.*<script type="application\/json" id="data">\(.*\)<\/script>$/\1/p' "$1"
}

has() { # has WHAT PAGE TEXT: the page's data hold the text
    checks=$((checks + 1))
    data "$2" | grep -q -F -- "$3" || fail "$1: no $3"
}

# The worked example of docs/contract.md: experts 0, 1, 2 have 2, 2 and 1 rows, one slot is a hole.
tensor_text write case unpermuted_tokens_grad:f32:3x2=1,2,3,4,5,6 out_index:i32:6=0,4,2,-1,1,3 \
    permute_token_id:i32:6=0,0,1,1,2,2 routing_map:bool:3x3=1,0,1,0,1,0,1,1,0 \
    probs:f32:3x3=0.5,0.1,0.25,0.1,1,0.1,2,4,0.1 permuted_tokens:f32:5x2=1,1,2,2,3,3,4,4,5,5
good "a case alone" moetoken inspect case -o page.html
has "rows of each expert" page.html '"rows":[2,2,1],"fill":[0,0,0],"most":2'
has "tokens by used slots" page.html '"tokens":[0,1,2],"without":0'
has "a hole" page.html '"slots_num":6,"unused":1,"fill":0,"unnamed_rows":0'
has "slots by token and expert" page.html '"cells":[1,0,1,0,1,0,1,1,0]'
has "products" page.html '"name":"Ascend910B","sold_as"'
checks=$((checks + 1))
data page.html | grep -q '"outputs"' && fail "outputs without an output file"

# permuted_tokens_grad[2,1] = 1 * 4; float32's unit there is 2^-21, so that 5 is 2^21 units off.
good gradient moetoken unpermute-grad case -o out -q
good "a case and its outputs" moetoken inspect case out -o page.html
has "all right" page.html '"name":"permuted_tokens_grad","type":"float32","checked":10,"wrong":0,"worst_ulp":"0"'
tensor_text write bad BASE=out permuted_tokens_grad:f32:5x2=0.5,1,10,12,3,5,20,24,0.25,nan
good "wrong outputs" moetoken inspect case bad -o page.html
has "two wrong" page.html '"checked":10,"wrong":2,"worst_ulp":"no number"'
has "the worst, with its place" page.html \
    '"place":"[4, 1]","token":0,"slot":1,"expert":2,"row":4,"got":"nan'
has "the other" page.html \
    '"place":"[2, 1]","token":1,"slot":2,"expert":1,"row":2,"got":"5 (0x40a00000)","want":"4","ulp":"2.097e+06","right":false'
has "the map" page.html '"wrong":[0,0,1,0,1,0,0,0,0]'

# Padded, by ids, and the other operators.
for mode in "" --drop-and-pad --ids; do
    for operator in permute unpermute permute-grad unpermute-grad; do
        # shellcheck disable=SC2086
        good "generate $operator $mode" moetoken generate -o generated -q --operator $operator $mode \
            --tokens 40 --hidden 7 --experts 5 --topk 2 --seed 3
        good "$operator $mode" moetoken $operator generated -o result -q
        good "inspect $operator $mode" moetoken inspect generated result -o page.html
        has "$operator $mode" page.html "\"title\":\"$operator\""
        checks=$((checks + 1))
        data page.html | grep -q '"wrong":[1-9]' && fail "$operator $mode: found wrong"
        data page.html | grep -q '"problem"' && fail "$operator $mode: a problem"
    done
done

# 100,000 rows: added up, below 2 MB.
good "a large case" moetoken generate -o large -q --tokens 25000 --hidden 4 --experts 1000 --topk 4
good "its outputs" moetoken unpermute-grad large -o large_out -q
good "a large page" moetoken inspect large large_out -o page.html
checks=$((checks + 1))
[ "$(wc -c <page.html)" -lt 2000000 ] || fail "the page has $(wc -c <page.html) bytes"
has "added up" page.html '"tokens_size":391'

# Names are text: nothing of them comes out as markup, broken UTF-8 included.
evil='</script><script>alert(1)</script><img src=x>'
tensor_text write "$(printf 'evil <b>\377')" "$evil:f32:1=1"
good "hostile names" moetoken inspect "$(printf 'evil <b>\377')" -o page.html
checks=$((checks + 1))
data page.html | grep -q '<' && fail "markup among the data"
equal_text "one script of data, one of ours" "$(grep -c '<script' page.html)" 2
has "the name" page.html 'u003c/script>\u003cscript>alert(1)'
has "the path" page.html "$(printf 'evil \\u003cb>\357\277\275')"

# What is no case is said on the page.
tensor_text write half unpermuted_tokens_grad:f32:1x1=1
good "an incomplete case" moetoken inspect half -o page.html
has "an incomplete case" page.html '"problem":"This is no complete case'
tensor_text write wrong BASE=case out_index:i32:6=0,4,2,-1,1,9
good "an index beyond" moetoken inspect wrong -o page.html
has "an index beyond" page.html '"problem":"out_index[5] = 9 is outside [0, 5)"'

rejected 2 "no page" "-o PAGE is missing" moetoken inspect case
rejected 2 "onto an input" "is an input" moetoken inspect case -o case
rejected 1 "no file" "nowhere" moetoken inspect nowhere -o page2.html
[ ! -e page2.html ] || fail "a page about nothing"
finish 60
