#!/bin/sh
# left_alone.sh - rank 1 of three does not call, or dies: ranks 0 and 2 are told, in time, and mpiexec ends.
# Launchers end all ranks when one dies unless they are asked not to.
#
# usage: left_alone.sh absent|dies MPIEXEC PROGRAM [FLAG...]
set -u
mode=$1 mpiexec=$2 program=$3
shift 3
if [ "$mode" = dies ]; then
    case $("$mpiexec" --version 2>&1) in
    *"Open MPI"* | *OpenRTE*) set -- "$@" --enable-recovery ;;
    *HYDRA* | *hydra* | *MPICH*) set -- "$@" -disable-auto-cleanup ;;
    esac
fi
# How mpiexec itself ends does not matter: the ranks cannot finalise MPI any more.
output=$(timeout 100 "$mpiexec" "$@" -n 3 "$program" "$mode" 2>&1)
[ $? != 124 ] || { echo "mpiexec did not end"; exit 1; }
for rank in 0 2; do
    if ! printf '%s\n' "$output" | grep -q "rank $rank was told: waited .* for the other ranks\|rank $rank was told: .*MPI"; then
        echo "rank $rank was told nothing:"
        printf '%s\n' "$output"
        exit 1
    fi
done
