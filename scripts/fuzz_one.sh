#!/bin/sh
# fuzz_one.sh SECONDS HARNESS - runs one libFuzzer harness; prints a line, and all of it on a fault.
set -eu
seconds=$1
harness=$2
name=$(basename "$harness")
here=$(dirname "$harness")
work=$here/work_$name
mkdir -p "$work/corpus"
cd "$work"
case $name in
fuzz_operators | fuzz_interface) set -- ;;
*) set -- -max_len=4096 "$here/io_corpus" ;; # whole small files to start from
esac
if ! "$harness" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=2048 -print_final_stats=1 \
    corpus "$@" >log 2>&1; then
    tail -n 60 log
    echo "FAILED: $name (input and log in $work)"
    exit 1
fi
echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' log) inputs in $seconds s, no fault"
