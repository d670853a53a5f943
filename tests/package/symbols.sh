#!/bin/sh
# symbols.sh - the names the libraries give away: the shared one exactly the functions that the
# public headers declare, the static one nothing that does not start with moetoken_.
#
# usage: symbols.sh NM SHARED STATIC HEADER...
set -eu
nm=$1 shared=$2 static=$3
shift 3

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A declaration may run over lines: take the name before the first parenthesis after MOETOKEN_API.
cat "$@" | tr '\n' ' ' | sed 's/MOETOKEN_API/\n&/g' |
    sed -n 's/^MOETOKEN_API [^(;]*[ *]\(moetoken_[a-z0-9_]*\)(.*/\1/p' | sort -u >"$work/declared"
# The version of the interface is a name of its own, an absolute one.
"$nm" -D --defined-only "$shared" | awk '$2 != "A" { print $NF }' | sed 's/@.*//' | sort -u >"$work/exported"

status=0
if ! [ -s "$work/declared" ]; then
    echo "no declarations found in $*" >&2
    status=1
fi
if ! diff "$work/declared" "$work/exported" >"$work/difference"; then
    echo "$shared exports (>) other names than $* declare (<):" >&2
    grep '^[<>]' "$work/difference" >&2
    status=1
fi
"$nm" -g --defined-only "$static" | awk 'NF >= 3 { print $NF }' | sort -u >"$work/archive"
if ! [ -s "$work/archive" ]; then
    echo "no names found in $static" >&2
    status=1
fi
if grep -v '^moetoken_' "$work/archive" >"$work/foreign"; then
    echo "$static defines global names that do not start with moetoken_:" >&2
    cat "$work/foreign" >&2
    status=1
fi
exit $status
