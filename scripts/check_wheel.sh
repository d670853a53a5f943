#!/bin/sh
# check_wheel.sh FOLDER [VENV] - builds the wheel (scripts/wheel.sh) and uses it as its users do: installed into a
# fresh virtual environment, the first example of docs/python.md, far from the sources. PYTHONS ("python3") are
# the interpreters to try.
set -eu
folder=$1
sh scripts/wheel.sh "$@"
wheel=$(ls "$folder"/moetoken-*.whl)
case $wheel in
*-py3-none-manylinux*) ;;
*) echo "$wheel: expected a tag py3-none-manylinux..." && exit 1 ;;
esac
needed=$(unzip -p "$wheel" moetoken/libmoetoken_python.so >"$folder/library.so" && objdump -p "$folder/library.so" |
    awk '/NEEDED/ && $2 !~ /^(libc\.so|libm\.so|ld-linux)/ { print $2 }')
[ -z "$needed" ] || { echo "the wheel's library needs $needed, expected libc and libm alone" && exit 1; }

awk '/^## /  { section = $2 }
     /^### / { section = "" }
     /^```/  { code = section == "NumPy" && $0 == "```python"; next }
     code' docs/python.md >"$folder/first_example.py"
for python in ${PYTHONS:-python3}; do
    rm -rf "$folder/venv"
    "$python" -m venv "$folder/venv"
    here=$folder/venv/bin/python
    "$here" -m pip install -q --disable-pip-version-check "$wheel"
    "$here" -I -m moetoken
    "$here" -I -W error "$folder/first_example.py" >/dev/null
done
