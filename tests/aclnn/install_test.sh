#!/usr/bin/env bash
# install_test.sh BUILD SOURCES EXPECTED CC CXX THIS_FOLDER - the layer installed under another prefix:
# everything of build_files_test.sh, and the flags of moetoken-aclnn.pc.
set -euo pipefail
build=$1 sources=$2 expected=$3 cc=$4 cxx=$5 here=$6
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT

cmake --install "$build" --component aclnn --prefix "$prefix" >/dev/null
tree=$(dirname "$(find "$prefix" -name set_env.sh)")
[ ! -L "$tree/include" ] || { echo "include/ was not installed" >&2; exit 1; }
bash "$here/build_files_test.sh" "$tree" "$sources" "$expected" "$cc" "$cxx" moved

if command -v pkg-config >/dev/null; then
    pc=$(dirname "$(find "$prefix" -name moetoken-aclnn.pc)")
    read -ra flags <<<"$(PKG_CONFIG_PATH="$pc" pkg-config --cflags --libs moetoken-aclnn)"
    "$cc" -std=c11 "$sources/layer_forward_backward.c" -o "$prefix/program" "${flags[@]}"
    "$prefix/program" | cmp - "$expected/layer_forward_backward_c.txt"
fi

# CMake's way.
mkdir "$prefix/project"
cat >"$prefix/project/CMakeLists.txt" <<PROJECT
cmake_minimum_required(VERSION 3.20)
project(program C)
find_package(moetoken-aclnn REQUIRED PATHS "$tree/lib64/cmake/moetoken-aclnn" NO_DEFAULT_PATH)
add_executable(program "$sources/layer_forward_backward.c")
target_link_libraries(program PRIVATE moetoken-aclnn::opapi)
PROJECT
cmake -G Ninja -S "$prefix/project" -B "$prefix/project/build" -DCMAKE_C_COMPILER="$cc" >/dev/null
cmake --build "$prefix/project/build" >/dev/null
"$prefix/project/build/program" | cmp - "$expected/layer_forward_backward_c.txt"
