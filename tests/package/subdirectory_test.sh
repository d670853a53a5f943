#!/bin/sh
# subdirectory_test.sh SOURCES CC DLPACK_INCLUDE_DIR - a project that takes the library in with
# add_subdirectory: it links moetoken::moetoken and _static, and neither the tool nor the layer nor
# what they need is asked for.
set -eu
sources=$1 cc=$2 dlpack=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/CMakeLists.txt" <<PROJECT
cmake_minimum_required(VERSION 3.20)
project(outside C)
# What only the tool, the layer and the tests may look for.
foreach(package OpenMP cJSON libzip PkgConfig)
  set(CMAKE_DISABLE_FIND_PACKAGE_\${package} TRUE)
endforeach()
add_subdirectory("$sources" moetoken)
foreach(target moetoken_tool moetoken_aclnn train_moe)
  if(TARGET \${target})
    message(FATAL_ERROR "\${target} is built unasked")
  endif()
endforeach()
add_executable(shared "$sources/tests/package/outside_program.c")
target_link_libraries(shared PRIVATE moetoken::moetoken)
add_executable(static "$sources/tests/package/outside_program.c")
target_link_libraries(static PRIVATE moetoken::moetoken_static)
PROJECT
cmake -G Ninja -S "$work" -B "$work/b" -DCMAKE_C_COMPILER="$cc" -DDLPACK_INCLUDE_DIR="$dlpack" \
    >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/b" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/b/shared"
"$work/b/static"

# Nor is anything installed unasked.
cmake --install "$work/b" --prefix "$work/prefix" >/dev/null
if [ -e "$work/prefix" ]; then
    echo "installed unasked:" && find "$work/prefix" -type f
    exit 1
fi
