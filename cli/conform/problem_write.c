/* problem_write.c - a problem as a case file: its tensors, filled by its rules, and metadata. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "problem.h"
#include "values/number_formats.h"
#include "values/random_values.h"

/* The streams of values; 1 to 3 are those of the layout. */
enum {
    STREAM_TOKENS = 16,
    STREAM_ROWS,
    STREAM_WEIGHTS,
    STREAM_ROW_WEIGHTS,
    STREAM_MAP
};

/* ---- values ---------------------------------------------------------------------------------- */

/* In [-1, 1]. */
static double symmetric(uint64_t bits)
{
    return (double)((int64_t)bits >> 10) * 0x1p-53;
}

/* The sum of twelve uniform numbers, less 6: close enough to a normal distribution. */
static double normal(uint64_t key, uint64_t i)
{
    double sum = -6;
    for (uint64_t n = 0; n < 12; n++)
        sum += random_unit(key, 12 * i + n);
    return sum;
}

static double subnormal(moetoken_type type, double sign)
{
    double least = type == MOETOKEN_F16 ? 0x1p-16 : type == MOETOKEN_F64 ? 0x1p-1030 : 0x1p-130;
    return sign * least;
}

static double special_value(const struct problem *problem, uint64_t bits, double plain)
{
    uint64_t in_8 = bits % 8, in_64 = bits % 64;
    switch (problem->values) {
    case VALUES_SUBNORMAL:
        return in_8 == 0 ? subnormal(problem->token_type, plain) : plain;
    case VALUES_NEGATIVE_0:
        return in_8 == 0 ? -0.0 : plain;
    case VALUES_NAN:
        return in_64 == 0 ? (double)NAN : plain;
    case VALUES_INFINITE:
        return in_64 == 0 ? copysign((double)INFINITY, plain) : plain;
    default:
        return plain;
    }
}

/* Element (who, column) of a stream of token-like values. */
static double value_of(const struct problem *problem, uint64_t stream, int64_t who, int64_t column)
{
    uint64_t key = random_key(random_key(problem->seed, stream), (uint64_t)who);
    uint64_t bits = random_bits(key, (uint64_t)column);
    double unit = symmetric(bits);
    uint64_t level = random_bits(random_key(problem->seed, stream), UINT64_MAX - 1);
    switch (problem->values) {
    case VALUES_TINY:
        return 0.001 * unit;
    case VALUES_NORMAL:
        return 100 * symmetric(level) +
               (1 + 24 * (double)(level % 1024) / 1023) * normal(key, (uint64_t)column);
    case VALUES_OUTLIERS:
        return bits % 1000 == 0 ? 5000 * unit : 5 * unit;
    case VALUES_WHOLE:
        return (double)(1 + bits % 3) * (unit < 0 ? -1 : 1);
    case VALUES_ONES:
        return 1;
    default:
        return special_value(problem, bits, 5 * unit);
    }
}

static double weight_of(const struct problem *problem, uint64_t stream, int64_t who)
{
    uint64_t key = random_key(problem->seed, stream);
    double share = random_unit(key, (uint64_t)who);
    switch (problem->weights) {
    case WEIGHTS_ZEROS:
        return random_bits(key, (uint64_t)who) % 4 == 0 ? 0 : share;
    case WEIGHTS_HUGE:
        return (1 + share) * (problem->probs_type == MOETOKEN_F16 ? 512 : 0x1p40);
    case WEIGHTS_ONES:
        return 1;
    default:
        return share;
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

struct case_writer {
    const struct problem *problem;
    const struct layout *layout;
    struct tensor_spec specs[8];
    size_t count;
};

static void store_float(DLTensor *tensor, moetoken_type type, int64_t i, double value)
{
    size_t size = type_size(type);
    store_bits((char *)tensor->data + tensor->byte_offset + (size_t)i * size, size,
               double_to_bits(type, value));
}

static void store_whole(DLTensor *tensor, int64_t i, int64_t value)
{
    size_t size = tensor->dtype.bits / 8u;
    store_bits((char *)tensor->data + tensor->byte_offset + (size_t)i * size, size,
               (uint64_t)value);
}

static void fill_rows(const struct case_writer *writer, DLTensor *tensor, bool by_row)
{
    const struct problem *problem = writer->problem;
    int64_t count = by_row ? writer->layout->rows : problem->tokens;
    for (int64_t r = 0; r < count; r++) {
        int64_t who = by_row ? writer->layout->row_key[r] : problem->token_id[r];
        for (int64_t h = 0; h < problem->hidden; h++)
            store_float(tensor, problem->token_type, r * problem->hidden + h,
                        value_of(problem, by_row ? STREAM_ROWS : STREAM_TOKENS, who,
                                 problem->column_id[h]));
    }
}

static void fill_weights(const struct case_writer *writer, DLTensor *tensor)
{
    const struct problem *problem = writer->problem;
    bool ids = problem->mode == MODE_IDS;
    int64_t width = ids ? problem->topk : problem->experts;
    const int64_t *who = ids ? problem->slot_id : problem->expert_id;
    for (int64_t t = 0; t < problem->tokens; t++)
        for (int64_t i = 0; i < width; i++)
            store_float(tensor, problem->probs_type, t * width + i,
                        weight_of(problem, STREAM_WEIGHTS, problem->token_id[t] * 4096 + who[i]));
}

/* bool: 0 or 1. int8 and uint8: any byte but 0 is set, so any comes up. */
static void fill_map(const struct case_writer *writer, DLTensor *tensor)
{
    const struct problem *problem = writer->problem;
    uint64_t key = random_key(problem->seed, STREAM_MAP);
    for (int64_t i = 0; i < problem->tokens * problem->experts; i++) {
        int64_t byte = 1;
        if (problem->map_type != MOETOKEN_BOOL)
            byte = 1 + (int64_t)(random_bits(key, (uint64_t)i) % 255);
        store_whole(tensor, i, problem->map[i] == PAIR_UNSET ? 0 : byte);
    }
}

static void fill_tensor(const struct case_writer *writer, size_t i, DLTensor *tensor)
{
    const struct problem *problem = writer->problem;
    const struct layout *layout = writer->layout;
    const char *name = writer->specs[i].name;
    const int64_t *source = layout->row;
    if (strcmp(name, "routing_map") == 0) {
        fill_map(writer, tensor);
    } else if (strcmp(name, "probs") == 0 || strcmp(name, "weights") == 0) {
        fill_weights(writer, tensor);
    } else if (strcmp(name, "permuted_probs_grad") == 0) {
        for (int64_t r = 0; r < layout->rows; r++)
            store_float(tensor, problem->probs_type, r,
                        value_of(problem, STREAM_ROW_WEIGHTS, layout->row_key[r], 0));
    } else if (type_is_float(writer->specs[i].type)) {
        fill_rows(writer, tensor, strncmp(name, "permuted", 8) == 0);
    } else {
        if (strcmp(name, "permute_token_id") == 0)
            source = layout->token;
        else if (strcmp(name, "expert_ids") == 0)
            source = problem->ids;
        else if (strcmp(name, "sorted_indices") == 0 && problem->mode == MODE_PADDED)
            source = layout->by_row;
        for (int64_t s = 0; s < layout->slots; s++)
            store_whole(tensor, s, source[s]);
    }
}

static void add(struct case_writer *writer, const char *name, moetoken_type type, int ndim,
                int64_t first, int64_t second)
{
    writer->specs[writer->count++] =
        (struct tensor_spec){.name = name, .type = type, .ndim = ndim, .shape = {first, second}};
}

/* What the operator is given, in the order of its arguments. */
static void list_tensors(struct case_writer *writer)
{
    const struct problem *p = writer->problem;
    const int64_t rows = writer->layout->rows, slots = writer->layout->slots;
    bool ids = p->mode == MODE_IDS, padded = p->mode == MODE_PADDED;
    bool map = !ids && (p->weighted || padded || p->operator_kind == OPERATOR_PERMUTE);
    switch (p->operator_kind) {
    case OPERATOR_UNPERMUTE_GRAD:
        add(writer, "unpermuted_tokens_grad", p->token_type, 2, p->tokens, p->hidden);
        add(writer, "out_index", p->index_type, 1, slots, 0);
        if (!ids)
            add(writer, "permute_token_id", p->index_type, 1, slots, 0);
        if (p->weighted)
            add(writer, "permuted_tokens", p->token_type, 2, rows, p->hidden);
        break;
    case OPERATOR_UNPERMUTE:
        add(writer, "permuted_tokens", p->token_type, 2, rows, p->hidden);
        add(writer, "sorted_indices", p->index_type, 1, slots, 0);
        break;
    case OPERATOR_PERMUTE:
        add(writer, "tokens", p->token_type, 2, p->tokens, p->hidden);
        if (ids)
            add(writer, "expert_ids", p->index_type, 2, p->tokens, p->topk);
        break;
    case OPERATOR_PERMUTE_GRAD:
        add(writer, "permuted_tokens_grad", p->token_type, 2, rows, p->hidden);
        if (p->weighted)
            add(writer, "permuted_probs_grad", p->probs_type, 1, rows, 0);
        add(writer, "sorted_indices", p->index_type, 1, slots, 0);
        break;
    case OPERATOR_ROUTER:
    case OPERATOR_ROUTER_GRAD: /* not a choice of the command */
        break;
    }
    if (map)
        add(writer, "routing_map", p->map_type, 2, p->tokens, p->experts);
    if (p->weighted && p->operator_kind != OPERATOR_PERMUTE_GRAD)
        add(writer, ids ? "weights" : "probs", p->probs_type, 2, p->tokens,
            ids ? p->topk : p->experts);
}

bool problem_write(const struct problem *problem, const struct layout *layout, const char *path,
                   char error[TENSOR_FILE_ERROR_SIZE])
{
    struct case_writer writer = {.problem = problem, .layout = layout};
    bool padded = problem->mode == MODE_PADDED, ids = problem->mode == MODE_IDS;
    bool capped = padded || (ids && problem->capacity > 0);
    char text[6][48];
    const int64_t values[] = {layout->slots, problem->tokens, problem->experts, problem->topk,
                              problem->capacity};
    for (int i = 0; i < 5; i++)
        snprintf(text[i], sizeof text[i], "%" PRId64, values[i]);
    snprintf(text[5], sizeof text[5], "%" PRId64 ",%" PRId64, problem->tokens, problem->hidden);
    const char *metadata[] = {"operator",
                              operator_outputs[problem->operator_kind].name,
                              "drop_and_pad",
                              padded ? "true" : "false",
                              "restore_shape",
                              text[5],
                              "num_out_tokens",
                              text[0],
                              "tokens_num",
                              text[1],
                              "experts_num",
                              text[2],
                              padded ? "capacity" : "topK_num",
                              padded ? text[4] : text[3],
                              capped && !padded ? "capacity" : NULL,
                              text[4],
                              NULL};
    list_tensors(&writer);
    struct tensor_writer *file =
        tensor_writer_open(path, writer.specs, writer.count, metadata, error);
    if (file == NULL)
        return false;
    for (size_t i = 0; i < writer.count; i++)
        fill_tensor(&writer, i, tensor_writer_tensor(file, i));
    return tensor_writer_commit(file, error);
}
