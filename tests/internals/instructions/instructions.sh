#!/bin/sh
# instructions.sh - fails when a kernel needs over 3 % more instructions than it did: the guard of
# speed that does not depend on how busy a machine is.
#
# usage: instructions.sh [--update] PROGRAM EXPECTED ISA_MASK
#   PROGRAM   kernel_instructions
#   EXPECTED  file of lines "kernel instructions"; --update writes it anew
# Exit status 77 (skipped): no valgrind, no file for this compiler, or a CPU without the kernels.
set -eu

update=no
if [ "$1" = --update ]; then
    update=yes
    shift
fi
program=$1 expected=$2 mask=$3
percent=3

command -v valgrind >/dev/null || { echo "valgrind is not installed"; exit 77; }
if [ $update = no ] && [ ! -f "$expected" ]; then
    echo "$expected does not exist: nothing is known of this compiler"
    exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
isa=$(valgrind --tool=callgrind --instr-atstart=no --callgrind-out-file="$work/out" \
    "$program" "$mask" 2>"$work/log") || { cat "$work/log"; exit 1; }
case $expected in
*"$isa".txt) ;;
*) echo "this CPU runs $isa kernels, which $expected is not about"; exit 77 ;;
esac

for dump in "$work"/out.*; do
    awk '/^desc: Trigger: Client Request:/ { name = $NF }
         /^(totals|summary):/ { if ($2 > 0) instructions = $2 }
         END { if (name != "") print name, instructions }' "$dump"
done | sort >"$work/counts"
[ "$(wc -l <"$work/counts")" -ge 19 ] || { echo "too few kernels were counted"; exit 1; }

if [ $update = yes ]; then
    cp "$work/counts" "$expected"
    exit 0
fi

awk -v percent="$percent" '
    NR == FNR { wanted[$1] = $2; next }
    {
        change = $1 in wanted ? 100 * ($2 / wanted[$1] - 1) : 0
        verdict = ""
        if (!($1 in wanted)) verdict = "not in the list of what is expected"
        else if (change > percent) verdict = "more than " percent " % above"
        else if (change < -percent) verdict = "better: --update"
        printf "%-22s %8d  expected %8d  %+.1f %%  %s\n", $1, $2, wanted[$1], change, verdict
        if (verdict != "" && change >= -percent) failed = 1
        delete wanted[$1]
    }
    END {
        for (name in wanted) { print name " was not counted"; failed = 1 }
        exit failed
    }' "$expected" "$work/counts"
