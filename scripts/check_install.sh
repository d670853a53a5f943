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
    $(pkg-config --static --libs-only-other moetoken) -ldl -lm
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

# A project in C++ alone, which may include the header and link both libraries.
mkdir cxx
cat >cxx/main.cpp <<'PROGRAM'
#include <moetoken/moetoken.h>
#include <cstdio>
static_assert(MOETOKEN_VERSION_NUMBER >= 200 && MOETOKEN_VERSION_NUMBER < 300, "0.2");
int main()
{
    std::printf("libmoetoken %s: %d threads\n", moetoken_version(), int(moetoken_threads_chosen(0)));
    return moetoken_permute(nullptr, nullptr) == MOETOKEN_ERR_NULL ? 0 : 1;
}
PROGRAM
cat >cxx/CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.20)
project(outside CXX)
find_package(moetoken 0.2 REQUIRED)
add_executable(cxx main.cpp)
target_link_libraries(cxx moetoken::moetoken)
add_executable(cxx_static main.cpp)
target_link_libraries(cxx_static moetoken::moetoken_static)
CMAKE
cmake -S cxx -B cxx/b -G Ninja -DCMAKE_PREFIX_PATH="$moved" >>cmake.log
cmake --build cxx/b >>cmake.log

# Programs ask for the library by the version of its interface.
readelf -d shared | grep -q 'NEEDED.*libmoetoken.so.0.2' || { echo "SONAME is not 0.2"; exit 1; }
readelf -V shared | grep -q 'MOETOKEN_0.2' || { echo "symbols have no version"; exit 1; }
if readelf -d "$libdir/libmoetoken.so" | grep -q 'NEEDED.*gomp'; then
    echo "the library needs an OpenMP runtime"
    exit 1
fi

for program in ./shared ./static b/by_cmake b/by_cmake_static cxx/b/cxx cxx/b/cxx_static; do
    "$program"
done
"$moved/bin/moetoken" --version

# The MPI library, where it was built: with mpicc and pkg-config, and as a component of the package.
if [ -e "$libdir/libmoetoken-mpi.so" ]; then
    cat >over_mpi.c <<'PROGRAM'
#include <moetoken/mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    moetoken_mpi_comm *comm;
    MPI_Init(&argc, &argv);
    moetoken_status status = moetoken_mpi_open(MPI_COMM_WORLD, NULL, &comm);
    printf("libmoetoken-mpi: %s\n", moetoken_status_name(status));
    moetoken_mpi_close(comm);
    MPI_Finalize();
    return status != MOETOKEN_OK;
}
PROGRAM
    cat >CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.20)
project(outside C)
find_package(moetoken REQUIRED COMPONENTS mpi)
add_executable(over_mpi over_mpi.c)
target_link_libraries(over_mpi moetoken::moetoken_mpi)
CMAKE
    mpicc=$(sed -n 's/^MPI_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
    # shellcheck disable=SC2046 # a list of words
    "$mpicc" -std=c11 -Wall -Werror over_mpi.c -o over_mpi $(pkg-config --cflags --libs moetoken-mpi)
    cmake -S . -B mpi -G Ninja -DCMAKE_PREFIX_PATH="$moved" -DMPI_C_COMPILER="$mpicc" >>cmake.log
    cmake --build mpi >>cmake.log
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
    ./over_mpi # one rank needs no launcher
    mpi/over_mpi
fi
echo "installed tree: shared, static, pkg-config and CMake programs run"
