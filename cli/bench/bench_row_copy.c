/* bench_row_copy.c - see bench_row_copy.h. */
#include "bench_row_copy.h"

#include <stdlib.h>
#include <string.h>

#include "bench_team.h"
#include "values/number_formats.h"

/* How far ahead rows are asked for, as the operators' kernels do. */
#define PIECE_BYTES ((size_t)1024)

/* The same for sums, whose rows are many streams at once. */
#define SUM_PIECE_BYTES ((size_t)512)
#define SUM_AHEAD_BYTES ((size_t)1024)

/* ---- the slots of each token ----------------------------------------------------------------- */

/* The tensor that says the rows, or padded the tokens, of all slots. */
static const DLTensor *find_indices(const struct bench_case *bench)
{
    static const char *const names[] = {"out_index", "sorted_indices", "out_sorted_indices"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const DLTensor *tensor = bench_case_tensor(bench, names[i]);
        if (tensor != NULL)
            return tensor;
    }
    return NULL;
}

struct slot {
    int64_t token, row;
};

static struct slot slot_at(const struct bench_case *bench, const DLTensor *indices, int64_t i)
{
    const DLTensor *ids = bench_case_tensor(bench, "permute_token_id");
    int64_t index = integer_at(indices, i);
    if (ids != NULL)
        return (struct slot){integer_at(ids, i), index};
    if (bench->drop_and_pad)
        return (struct slot){index, i};
    int64_t per_token = bench->tokens > 0 ? bench->slots / bench->tokens : 1;
    return (struct slot){i / (per_token > 0 ? per_token : 1), index};
}

bool row_copy_make(struct row_copy *copy, const struct bench_case *bench)
{
    const DLTensor *indices = find_indices(bench);
    const struct traffic *traffic = &bench->traffic;
    bool grad = bench->operator_kind == OPERATOR_UNPERMUTE_GRAD;
    *copy = (struct row_copy){.operator_kind = bench->operator_kind,
                              .from_rows = grad && traffic->read[0] != NULL,
                              .tokens = bench->tokens,
                              .row_bytes = (size_t)bench->hidden * type_size(bench->token_type),
                              .token_side = grad ? traffic->read[1] : traffic->read[0],
                              .expert_side = traffic->read[0],
                              .out = traffic->write};
    copy->start = calloc((size_t)bench->tokens + 2, sizeof *copy->start);
    copy->row = calloc((size_t)bench->slots + 1, sizeof *copy->row);
    if (copy->start == NULL || copy->row == NULL)
        return false;
    for (int64_t i = 0; i < bench->slots; i++) {
        struct slot slot = slot_at(bench, indices, i);
        copy->start[slot.token + 2] += slot.row >= 0;
    }
    for (int64_t t = 0; t < bench->tokens; t++)
        copy->start[t + 2] += copy->start[t + 1];
    for (int64_t i = 0; i < bench->slots; i++) {
        struct slot slot = slot_at(bench, indices, i);
        if (slot.row >= 0)
            copy->row[copy->start[slot.token + 1]++] = slot.row;
    }
    return true;
}

void row_copy_free(struct row_copy *copy)
{
    free(copy->start);
    free(copy->row);
    *copy = (struct row_copy){0};
}

/* ---- moving ---------------------------------------------------------------------------------- */

static void prefetch(const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(from + at);
}

/* Copies a row (to NULL: reads it), piece by piece, while the piece that comes two later is
 * prefetched: past the end of the row that is one of `next`. */
static void move_row(const struct row_copy *copy, const char *from, char *to, const char *next,
                     bool streaming)
{
    for (size_t at = 0; at < copy->row_bytes; at += PIECE_BYTES) {
        size_t ahead = at + 2 * PIECE_BYTES, left = copy->row_bytes - at;
        if (ahead < copy->row_bytes)
            prefetch(from + ahead, PIECE_BYTES);
        else if (next != NULL && ahead - copy->row_bytes < copy->row_bytes)
            prefetch(next + (ahead - copy->row_bytes), PIECE_BYTES);
        size_t bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        if (to != NULL)
            ceiling_copy(from + at, to + at, bytes, streaming);
        else
            ceiling_read(from + at, bytes);
    }
}

/* What is read of slot s, and behind the last one nothing. */
static const char *source_of(const struct row_copy *copy, int64_t s)
{
    return s < copy->start[copy->tokens]
               ? copy->expert_side + (size_t)copy->row[s] * copy->row_bytes
               : NULL;
}

/* Each piece of all rows of a token in turn, as the sums are formed: the first row's goes out. */
static void copy_sum(const struct row_copy *copy, int64_t token, bool streaming)
{
    const int64_t begin = copy->start[token], end = copy->start[token + 1];
    char *out = copy->out + (size_t)token * copy->row_bytes;
    for (size_t at = 0; at < copy->row_bytes; at += SUM_PIECE_BYTES) {
        size_t left = copy->row_bytes - at;
        size_t bytes = left < SUM_PIECE_BYTES ? left : SUM_PIECE_BYTES;
        for (int64_t s = begin; s < end; s++) {
            size_t ahead = at + SUM_AHEAD_BYTES;
            const char *row = source_of(copy, s), *next = source_of(copy, s + (end - begin));
            if (ahead < copy->row_bytes)
                prefetch(row + ahead, bytes);
            else if (next != NULL && ahead - copy->row_bytes < copy->row_bytes)
                prefetch(next + (ahead - copy->row_bytes), bytes);
            if (s == begin)
                ceiling_copy(row + at, out + at, bytes, streaming);
            else
                ceiling_read(row + at, bytes);
        }
    }
}

static void copy_token(const struct row_copy *copy, int64_t token, bool streaming)
{
    const char *own = copy->token_side + (size_t)token * copy->row_bytes;
    const char *next = token + 1 < copy->tokens ? own + copy->row_bytes : NULL;
    int64_t begin = copy->start[token];
    if (copy->from_rows)
        move_row(copy, own, NULL, source_of(copy, begin), streaming);
    for (int64_t s = begin; s < copy->start[token + 1]; s++) {
        char *row = copy->out + (size_t)copy->row[s] * copy->row_bytes;
        if (copy->from_rows)
            move_row(copy, source_of(copy, s), row, source_of(copy, s + 1), streaming);
        else
            move_row(copy, own, row, next, streaming);
    }
}

struct turn {
    const struct row_copy *copy;
    bool streaming;
};

static void copy_tokens(const void *context, int member, int members)
{
    const struct turn *turn = context;
    const int64_t tokens = turn->copy->tokens;
    const bool sums = turn->copy->operator_kind == OPERATOR_UNPERMUTE ||
                      turn->copy->operator_kind == OPERATOR_PERMUTE_GRAD;
    for (int64_t t = tokens * member / members; t < tokens * (member + 1) / members; t++)
        if (sums)
            copy_sum(turn->copy, t, turn->streaming);
        else
            copy_token(turn->copy, t, turn->streaming);
    ceiling_fence();
}

void row_copy_run(const struct row_copy *copy, int threads, enum ceiling_stores stores)
{
    const struct turn turn = {copy, stores == CEILING_STREAMING};
    team_run(threads, copy_tokens, &turn);
}
