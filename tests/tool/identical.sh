#!/bin/sh
# Every operator, mode and type: the same bytes from every instruction set and number of threads,
# and verify accepts them.
. "$(dirname "$0")/common.sh"

seed=${MOETOKEN_TEST_SEED:-20261}
echo "seed $seed"
levels=$(levels)

compare() { # WHAT OPERATOR OPTIONS...
    what=$1 command=$2
    shift 2
    good "$what scalar" moetoken "$command" case -o scalar -q --isa scalar --threads 1 "$@"
    good "$what verify" moetoken verify case scalar
    for level in $levels; do
        [ "$level" != scalar ] || continue
        good "$what $level" moetoken "$command" case -o "$level" -q --isa "$level" "$@"
        same "$what" scalar "$level"
    done
}

# Small cases, on one thread: tails of every vector length.
for type in f32 f16 bf16 f64; do
    for operator in unpermute-grad unpermute permute permute-grad; do
        for mode in "" "--no-probs" "--holes --shuffle --spare-rows 3 --map-dtype u8" \
            "--drop-and-pad --index-dtype i64" \
            "--drop-and-pad --holes --random-fill --shuffle --map-dtype i8 --probs-dtype $type"; do
            # shellcheck disable=SC2086
            good generate moetoken generate -o case -q --operator $operator --dtype $type $mode \
                --tokens 23 --hidden 107 --experts 7 --topk 3 --extremes 40 --seed "$seed"
            # shellcheck disable=SC2086
            compare "$operator $type $mode" $operator
            case $operator,$mode in
            *unpermute*,*drop-and-pad*)
                compare "$operator $type $mode masked" $operator --mask-fill-slots
                ;;
            esac
        done
    done
done

# Large enough for threads.
for type in f32 bf16; do
    for operator in unpermute-grad unpermute permute permute-grad; do
        for mode in "--holes --shuffle" "--drop-and-pad --capacity 19 --random-fill"; do
            # shellcheck disable=SC2086
            good generate moetoken generate -o case -q --operator $operator --dtype $type $mode \
                --tokens 61 --hidden 1031 --experts 9 --topk 4 --seed "$seed"
            compare "$operator $type $mode" $operator
            for threads in 2 3 8; do
                for stores in cached streaming; do
                    good "$threads threads" moetoken $operator case -o threads -q \
                        --threads $threads --stores $stores
                    same "$operator $type $mode $threads threads $stores stores" scalar threads
                done
            done
        done
    done
done
finish 500
