#!/bin/sh
# check_format.sh CHECK SCRIPTS CLANG_FORMAT_STYLE - `./check format` looks at the files of a tree that is no git
# repository: it refuses an ill-formatted one, and a tree without any file.
set -eu
for tool in clang-format shellcheck; do
    command -v $tool >/dev/null || { echo "$tool is not installed"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/.ci" "$work/bench/peers" "$work/tests" "$work/examples" "$work/src"
cp "$1" "$work/check"
cp -r "$2" "$work/scripts"
cp "$3" "$work/.clang-format"
for script in run .ci/run bench/peers/run tests/test.sh; do
    printf '#!/bin/sh\ntrue\n' >"$work/$script"
done
cd "$work"

if ./check format >out 2>&1 || ! grep -q 'no .*\.c' out; then
    echo "a tree without C files passed:" && cat out && exit 1
fi
printf 'int  answer( void )\n{return 42;}\n' >src/answer.c
if ./check format >out 2>&1 || ! grep -q 'src/answer.c' out; then
    echo "an ill-formatted file passed:" && cat out && exit 1
fi
clang-format -i src/answer.c
./check format >out 2>&1 || { echo "a well-formatted file was refused:" && cat out && exit 1; }
echo "no file: refused, ill-formatted: refused, well-formatted: passed"
