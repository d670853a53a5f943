#!/bin/sh
# check_install.sh BUILD PREFIX - installs BUILD under PREFIX, moves it, and builds programs outside
# the tree against it: with pkg-config, shared and static, and with CMake.
set -eu
build=$1
prefix=$2
moved=$prefix-moved
rm -rf "$prefix" "$moved"
cmake --install "$build" --prefix "$prefix" >"$build.install.log"
mv "$prefix" "$moved" # nothing in it may know where it was installed

libdir=$(dirname "$(find "$moved" -name moetoken.pc)")/..
export PKG_CONFIG_PATH="$libdir/pkgconfig" LD_LIBRARY_PATH="$libdir"
for file in include/moetoken/moetoken.h bin/moetoken share/man/man1/moetoken.1; do
    [ -e "$moved/$file" ] || { echo "not installed: $file"; exit 1; }
done

work=$moved/outside
mkdir -p "$work"
cp tests/package/outside_program.c "$work/main.c"
cd "$work"
# shellcheck disable=SC2046 # lists of words
cc -std=c11 -Wall -Werror main.c -o shared $(pkg-config --cflags --libs moetoken)
# shellcheck disable=SC2046
cc -std=c11 main.c -o static $(pkg-config --cflags moetoken) "$libdir/libmoetoken.a" \
    $(pkg-config --static --libs-only-other moetoken) -lm
cat >CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.20)
project(outside C)
find_package(moetoken REQUIRED)
add_executable(by_cmake main.c)
target_link_libraries(by_cmake moetoken::moetoken)
add_executable(by_cmake_static main.c)
target_link_libraries(by_cmake_static moetoken::moetoken_static)
CMAKE
cmake -S . -B b -G Ninja -DCMAKE_PREFIX_PATH="$moved" >cmake.log
cmake --build b >>cmake.log
for program in ./shared ./static b/by_cmake b/by_cmake_static; do
    "$program"
done
"$moved/bin/moetoken" --version
echo "installed tree: shared, static, pkg-config and CMake programs run"
