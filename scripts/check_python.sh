#!/bin/sh
# check_python.sh TOOL VENV - installs the Python package with PyTorch, JAX and Megatron-Core into a virtual
# environment and runs its tests, every framework for real, in the versions of python/constraints.txt (another
# file by MOETOKEN_CONSTRAINTS; /dev/null: the newest of everything). The first time it downloads gigabytes:
# PyPI's PyTorch brings the libraries of a GPU along.
set -eu
tool=$1
venv=$2
log=$venv/pip.log
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
if ! "$venv/bin/pip" install -q -c "${MOETOKEN_CONSTRAINTS:-python/constraints.txt}" '.[test]' >"$log" 2>&1; then
    tail -n 40 "$log"
    echo "pip failed (all of it: $log)"
    exit 1
fi
MOETOKEN_REQUIRE_FRAMEWORKS=1 MOETOKEN_TOOL=$tool "$venv/bin/python" -m pytest -q python
