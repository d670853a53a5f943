#!/bin/sh
# readme_example.sh - takes the first ```c block out of README.md, compiles it with warnings as
# errors, and runs it.
#
# usage: readme_example.sh README COMPILER LIBRARY RUNNER FLAG...
#        RUNNER: what runs programs of the target, or "" when the machine itself does
set -eu
readme=$1 compiler=$2 library=$3 runner=$4
shift 4

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# shellcheck disable=SC2016 # the backquotes are Markdown's
awk '/^```/ { if (inside) exit; inside = ($0 ~ /^```c[[:space:]]*$/); next } inside' \
    "$readme" >"$work/example.c"
if ! [ -s "$work/example.c" ]; then
    echo "$readme has no block that starts with \`\`\`c" >&2
    exit 1
fi
lines=$(grep -c . "$work/example.c")
if [ "$lines" -gt 40 ]; then
    echo "the example of $readme has $lines lines; it should be a short one" >&2
    exit 1
fi
"$compiler" -std=c11 -Wall -Wextra -Werror "$@" "$work/example.c" -o "$work/example" "$library" \
    -Wl,-rpath,"$(dirname "$library")" -lm
# shellcheck disable=SC2086 # a runner may be a command with options
$runner "$work/example"
