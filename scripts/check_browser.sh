#!/bin/sh
# check_browser.sh TOOL FOLDER - the pages of `moetoken inspect` in a real browser, Debian's chromium
# without a window: light and dark, wide and narrow. Each page must draw itself without an error on the
# browser's console; what is in the files must come out as text. The screenshots stay in FOLDER.
set -eu
tool=$(realpath "$1")
mkdir -p "$2"
cd "$2"
rm -rf ./*
export HOME="$PWD" # its profile and caches

browse() { # browse ARGUMENT...
    timeout 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars \
        --disable-dev-shm-usage --disable-crash-reporter --user-data-dir="$PWD/profile" \
        --enable-logging=stderr "$@" 2>console
}

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# A page with an error must be noticed, or the silence of the others says nothing.
echo '<script>nowhere()</script>' >broken.html
browse --dump-dom "file://$PWD/broken.html" >/dev/null
grep -q CONSOLE console || fail "an error on the console goes unnoticed"

# shows PAGE TEXT...: draws itself, with those texts.
shows() {
    page=$1
    shift
    browse --dump-dom "file://$PWD/$page" >dom
    if grep CONSOLE console; then fail "$page: an error on the console"; fi
    for text in "$@"; do
        grep -q -F -- "$text" dom || fail "$page does not show: $text"
    done
}

"$tool" generate -o case -q --model dbrx --tokens 300 --hidden 96 --holes --skew 1 --seed 2
"$tool" unpermute-grad case -o good -q
"$tool" inspect case good -o good.html
shows good.html '✓ All outputs are what' 'Rows of each expert' '<canvas' 'Ascend910B' \
    '<table>' 'role="region" tabindex="0"'

# The gradient of other tokens: nearly everything is wrong.
"$tool" generate -o other -q --model dbrx --tokens 300 --hidden 96 --holes --skew 1 --seed 2 --extremes 9
"$tool" unpermute-grad other -o bad -q
"$tool" inspect case bad -o bad.html
shows bad.html '✗ Not what' 'Worst elements' '<svg'

"$tool" generate -o large -q --tokens 25000 --hidden 4 --experts 1000 --topk 4
"$tool" unpermute-grad large -o large_out -q
"$tool" inspect large large_out -o large.html
shows large.html 'Added up: a cell stands for 391 tokens by 16 experts' '100,000 slots'

name='</script><script>document.title=1</script><img src=x onerror=alert(1)>'
header="{\"$name\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
length=$(printf %s "$header" | wc -c)
# shellcheck disable=SC2059 # the length is a byte of the format
{ printf "\\$(printf %o "$length")\\0\\0\\0\\0\\0\\0\\0"; printf '%s\0\0\200\077' "$header"; } >'<b>evil'
"$tool" inspect '<b>evil' -o evil.html
shows evil.html '&lt;/script&gt;&lt;script&gt;document.title=1&lt;/script&gt;&lt;img src=x' '&lt;b&gt;evil'
if grep -q '<img\|<b>' dom; then fail "a name became markup"; fi
grep -q '<title>tensors' dom || fail "a name ran as a script"

for look in light dark; do
    scheme=
    [ $look = light ] || scheme=--blink-settings=preferredColorScheme=0
    for size in 1280,1800 420,2600; do
        # shellcheck disable=SC2086 # nothing, or one word
        browse $scheme --window-size=$size --screenshot="$look-${size%,*}.png" "file://$PWD/bad.html" >/dev/null
        if grep CONSOLE console; then fail "$look $size: an error on the console"; fi
        [ "$(wc -c <"$look-${size%,*}.png")" -gt 20000 ] || fail "$look $size: an empty screenshot"
    done
done
cmp -s light-1280.png dark-1280.png && fail "light and dark look alike"
rm -rf profile
echo "inspect's pages: 4 in a browser, 4 screenshots in $PWD"
