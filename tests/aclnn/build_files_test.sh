#!/usr/bin/env bash
# build_files_test.sh TREE SOURCES EXPECTED CC CXX - programs are built as build files written for CANN
# build them, against the tree that TREE/set_env.sh announces: link names old and new, a binary that
# was linked against other files of the same names, and what the library exports.
set -euo pipefail
tree=$1 sources=$2 expected=$3 cc=$4 cxx=$5
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fault() {
    echo "build_files_test: $*" >&2
    exit 1
}

unset ASCEND_HOME_PATH ASCEND_TOOLKIT_HOME LIBRARY_PATH
# shellcheck source=/dev/null
. "$tree/set_env.sh"
[ "$ASCEND_HOME_PATH" -ef "$tree" ] || fault "ASCEND_HOME_PATH is $ASCEND_HOME_PATH, not $tree"
[ "$ASCEND_TOOLKIT_HOME" = "$ASCEND_HOME_PATH" ] || fault "ASCEND_TOOLKIT_HOME differs"
from_sh=$(sh -c ". \"$tree/set_env.sh\"; echo \"\$ASCEND_HOME_PATH\"")
[ -d "$from_sh/include/acl" ] || [ "${6:-}" = moved ] || fault "sh finds $from_sh"


# Where MindSpore looks.
for name in opapi opapi_math opapi_nn opapi_cv opapi_transformer; do
    [ -f "$ASCEND_OPP_PATH/../x86_64-linux/lib64/lib$name.so" ] ||
        fault "lib$name.so is not under \$ASCEND_OPP_PATH/../x86_64-linux/lib64"
done

includes=(-I"$ASCEND_HOME_PATH/include" -I"$ASCEND_HOME_PATH/include/aclnn"
    -I"$ASCEND_HOME_PATH/include/aclnnop")
build_and_run() { # name compiler-and-flags... -- link names...
    local program=$scratch/$1 source=$sources/$2 want=$expected/$3
    shift 3
    local compile=()
    while [ "$1" != -- ]; do
        compile+=("$1")
        shift
    done
    shift
    "${compile[@]}" "${includes[@]}" "$source" -o "$program" -L"$ASCEND_HOME_PATH/lib64" "$@"
    "$program" >"$program.txt" || fault "$program failed"
    cmp "$program.txt" "$want" || fault "$program printed something else"
}
c=("$cc" -std=c11 -Wall -Wextra -pedantic -Werror)
cpp=("$cxx" -std=c++17 -Wall -Wextra -pedantic -Werror)
build_and_run c layer_forward_backward.c layer_forward_backward_c.txt "${c[@]}" -- \
    -lascendcl -lnnopbase -lopapi
build_and_run cpp layer_forward_backward.cpp layer_forward_backward_cpp.txt "${cpp[@]}" -- \
    -lascendcl -lnnopbase -lopapi
build_and_run newer unpermute_grad_repeated.cpp unpermute_grad_repeated_cpp.txt "${cpp[@]}" -- \
    -lascendcl -lnnopbase -lopapi_transformer -lopapi_math
build_and_run custom unpermute_grad_padded.c unpermute_grad_padded_c.txt "${c[@]}" -- \
    -lcust_opapi -lascendcl

exported=$(nm -D --defined-only "$ASCEND_HOME_PATH/lib64/libascendcl.so" | awk '{print $3}')
if others=$(grep -vE '^(acl(rt|nn|[A-Z])|AclSet)' <<<"$exported"); then
    fault "exported beside CANN's names: $others"
fi

# A binary linked elsewhere asks for each file by its own name.
mkdir "$scratch/elsewhere"
for name in ascendcl nnopbase opapi opapi_transformer opapi_math opapi_nn opapi_cv cust_opapi; do
    if [ $name = ascendcl ]; then
        awk '{print "void " $1 "(void) {}"}' <<<"$exported"
    fi | "$cc" -shared -fPIC -w -x c - -Wl,-soname,lib$name.so -o "$scratch/elsewhere/lib$name.so"
done
"${c[@]}" "${includes[@]}" "$sources/layer_forward_backward.c" -o "$scratch/binary" \
    -Wl,--no-as-needed -L"$scratch/elsewhere" \
    -lascendcl -lnnopbase -lopapi -lopapi_transformer -lopapi_math -lopapi_nn -lopapi_cv -lcust_opapi
[ "$(readelf -d "$scratch/binary" | grep -cE 'NEEDED.*(ascendcl|nnopbase|opapi)')" = 8 ] ||
    fault "the binary does not need all eight"
"$scratch/binary" >"$scratch/binary.txt"
cmp "$scratch/binary.txt" "$expected/layer_forward_backward_c.txt"

echo "all programs were built, run and compared"
