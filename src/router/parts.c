/* parts.c - memory of the parts, and their way through the tokens. */
#include "router/parts.h"

#include "status.h"

#include <moetoken/router.h>

#include <inttypes.h>

/* Rows of 8 bytes an expert in struct moetoken_router_part. */
#define ROWS 10

/* Logits that a part takes at a time: enough work to hide what taking costs. */
#define LOGITS_AT_ONCE 4096

size_t moetoken_router_least_bytes(int64_t row_length, int64_t tail)
{
    size_t bytes, more;
    if (__builtin_mul_overflow((size_t)row_length, (size_t)(ROWS * 8), &bytes) ||
        __builtin_mul_overflow((size_t)tail, (size_t)8, &more) ||
        __builtin_add_overflow(bytes, more, &bytes))
        return SIZE_MAX;
    return bytes;
}

moetoken_status moetoken_router_workspace_size(int64_t tokens_num, int64_t experts_num,
                                               int64_t topk, int32_t threads, size_t *bytes)
{
    if (bytes == NULL)
        return moetoken_fail(MOETOKEN_ERR_NULL, "bytes is NULL, expected where to put the size");
    if (tokens_num < 0 || experts_num < 0 || topk < 0 || threads < 1)
        return moetoken_fail(MOETOKEN_ERR_SHAPE,
                             "tokens_num = %" PRId64 ", experts_num = %" PRId64 ", topk = %" PRId64
                             ", threads = %" PRId32 ", expected at least 0, 0, 0 and 1",
                             tokens_num, experts_num, topk, threads);
    /* Parts, a number a token and one an expert; or, to drop, 16 bytes a slot and 8 an expert. */
    int64_t row_length = experts_num > topk ? experts_num : topk;
    size_t parts = moetoken_router_least_bytes(row_length, 0), slots, total;
    if (parts == SIZE_MAX || __builtin_mul_overflow(parts, (size_t)threads, &parts) ||
        __builtin_mul_overflow((size_t)tokens_num, (size_t)topk, &slots) ||
        __builtin_add_overflow(slots, (size_t)tokens_num, &slots) ||
        __builtin_add_overflow(slots, (size_t)1, &slots) ||
        __builtin_mul_overflow(slots, (size_t)16, &slots) ||
        __builtin_add_overflow(parts, slots, &total) ||
        __builtin_add_overflow(total, (size_t)experts_num * 8, &total))
        return moetoken_fail(MOETOKEN_ERR_OVERFLOW,
                             "the workspace for tokens_num = %" PRId64 ", experts_num = %" PRId64
                             ", topk = %" PRId64 " does not fit in size_t",
                             tokens_num, experts_num, topk);
    *bytes = total;
    return MOETOKEN_OK;
}

static struct moetoken_router_part part_at(const struct moetoken_router_parts *parts, int64_t i)
{
    double *row = (double *)(void *)((char *)parts->memory.memory + (size_t)i * parts->part_bytes);
    int64_t n = parts->row_length;
    int64_t *whole = (int64_t *)(void *)(row + 7 * n);
    return (struct moetoken_router_part){row,         row + n,      row + 2 * n, row + 3 * n,
                                         row + 4 * n, row + 5 * n,  row + 6 * n, whole,
                                         whole + n,   whole + 2 * n};
}

moetoken_status moetoken_router_check_memory(const struct moetoken_call *known, size_t least)
{
    const moetoken_options *options = &known->options;
    bool has_more = options->workspace != NULL && options->workspace_bytes > least;
    return moetoken_call_check_memory_of(known, has_more ? options->workspace_bytes : least);
}

moetoken_status moetoken_router_parts_open(const struct moetoken_call *known, int64_t tokens_num,
                                           int64_t row_length, int64_t tail,
                                           struct moetoken_router_parts *parts)
{
    const moetoken_options *options = &known->options;
    *parts = (struct moetoken_router_parts){.tokens_num = tokens_num, .row_length = row_length};
    moetoken_call_plan(known, &parts->run);
    parts->kernels = moetoken_scores_select(options->isa_mask);
    parts->part_bytes = moetoken_router_least_bytes(row_length, 0);
    parts->parts_num = parts->run.threads < tokens_num ? parts->run.threads : tokens_num;
    if (parts->parts_num < 1)
        parts->parts_num = 1;
    size_t tail_bytes = (size_t)tail * sizeof(double), needed;
    if (options->workspace && parts->part_bytes > 0) {
        size_t most = (options->workspace_bytes - tail_bytes) / parts->part_bytes;
        if ((size_t)parts->parts_num > most)
            parts->parts_num = (int64_t)most;
    }
    if (moetoken_router_least_bytes(row_length, tail) == SIZE_MAX ||
        __builtin_mul_overflow(parts->part_bytes, (size_t)parts->parts_num, &needed) ||
        __builtin_add_overflow(needed, tail_bytes, &needed))
        return moetoken_fail(MOETOKEN_ERR_OVERFLOW,
                             "the workspace for rows of %" PRId64 " does not fit in size_t",
                             row_length);
    moetoken_status status =
        moetoken_workspace_take(options, needed > 0 ? needed : 1, &parts->memory);
    if (status != MOETOKEN_OK)
        return status;
    for (int64_t i = 0; i < parts->parts_num && row_length > 0; i++)
        memset(part_at(parts, i).counts, 0, (size_t)row_length * sizeof(int64_t));
    parts->tail = part_at(parts, parts->parts_num).logits;
    return MOETOKEN_OK;
}

static void run_parts(const void *context, int64_t first, int64_t end)
{
    struct moetoken_router_parts *parts = *(struct moetoken_router_parts *const *)context;
    int64_t length = LOGITS_AT_ONCE / (parts->row_length + 1) + 1;
    for (int64_t i = first; i < end; i++) {
        struct moetoken_router_part part = part_at(parts, i);
        for (;;) {
            int64_t token = __atomic_fetch_add(&parts->next, length, __ATOMIC_RELAXED);
            if (token >= parts->tokens_num)
                break;
            int64_t left = parts->tokens_num - token;
            for (int64_t last = token + (left < length ? left : length); token < last; token++)
                parts->body(parts->call, &part, token);
        }
    }
}

void moetoken_router_parts_run(struct moetoken_router_parts *parts, moetoken_router_token_fn *body,
                               const void *call)
{
    parts->next = 0;
    parts->body = body;
    parts->call = call;
    if (parts->tokens_num > 0)
        moetoken_run_ranges(&parts->run, parts->parts_num, run_parts, &parts);
}

int64_t moetoken_router_parts_count(const struct moetoken_router_parts *parts, int64_t expert)
{
    int64_t count = 0;
    for (int64_t i = 0; i < parts->parts_num; i++)
        count += part_at(parts, i).counts[expert];
    return count;
}

void moetoken_router_parts_close(struct moetoken_router_parts *parts)
{
    moetoken_workspace_release(&parts->memory);
}
