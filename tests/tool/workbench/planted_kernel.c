/* planted_kernel.c - unpermute_grad by routing_map in plain loops, with a fault by name:
 *
 *     planted_kernel FAULT CASE OUT
 *
 * What `moetoken conform` must find. It shares nothing with the library but the file formats. OUT
 * is read before it is replaced, as a kernel that writes into memory finds what was there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/tensor_file.h"
#include "values/number_formats.h"

enum {
    STATUS_SKIPPED = 77
};

static const char *fault;
static struct tensor_file *inputs;

static bool has_fault(const char *name)
{
    return strcmp(fault, name) == 0;
}

static const DLTensor *input(const char *name)
{
    return tensor_file_find(inputs, name);
}

static void store(DLTensor *tensor, int64_t i, double value)
{
    moetoken_type type = MOETOKEN_F32;
    type_of_tensor(tensor, &type);
    size_t size = type_size(type);
    store_bits((char *)tensor->data + tensor->byte_offset + (size_t)i * size, size,
               double_to_bits(type, value));
}

/* The expert of slot i: of row r when padded, else the ordinal-th set one of its token. */
static int64_t expert_of(int64_t i, int64_t token, int64_t row, bool padded)
{
    const DLTensor *map = input("routing_map"), *tokens = input("permute_token_id");
    int64_t experts = map->shape[1], ordinal = 0;
    if (padded)
        return row / (tokens->shape[0] / experts);
    for (int64_t j = 0; j < i; j++)
        ordinal += integer_at(tokens, j) == token;
    for (int64_t e = 0; e < experts; e++)
        if (set_at(map, token * experts + e) && ordinal-- == 0)
            return e;
    return -1;
}

static double dot(const DLTensor *x, int64_t row, const DLTensor *g, int64_t token)
{
    int64_t hidden = g->shape[1];
    double sum = 0;
    for (int64_t h = 0; h < hidden; h++) {
        sum += float_at(x, row * hidden + h) * float_at(g, token * hidden + h);
        if (has_fault("bf16-sum"))
            sum = bits_to_double(MOETOKEN_BF16, double_to_bits(MOETOKEN_BF16, sum));
    }
    return sum;
}

/* Where a row begins; offsets of 14 bits wrap around as those of 32 do in larger tensors. */
static int64_t offset_of(int64_t row, int64_t hidden)
{
    return has_fault("narrow-offset") ? (row * hidden) & 0x3fff : row * hidden;
}

static void write_slot(int64_t i, bool padded, DLTensor *rows, double *probs_grad)
{
    const DLTensor *g = input("unpermuted_tokens_grad"), *x = input("permuted_tokens");
    const DLTensor *map = input("routing_map");
    int64_t row = integer_at(input("out_index"), i), hidden = g->shape[1], experts = map->shape[1];
    int64_t token = integer_at(input("permute_token_id"), i);
    if (has_fault("swapped-k-e") && !padded)
        token = i / experts; /* K is meant */
    if (row < 0 && !has_fault("no-hole-check"))
        return;
    row = row < 0 ? 0 : row;
    int64_t expert = expert_of(i, token, row, padded);
    if (expert < 0 || row >= x->shape[0])
        return;
    double weight = float_at(input("probs"), token * experts + expert);
    for (int64_t h = 0; h < hidden; h++)
        store(rows, offset_of(row, hidden) + h, weight * float_at(g, token * hidden + h));
    double product = dot(x, row, g, token);
    double *sum = &probs_grad[token * experts + expert];
    *sum = has_fault("dropped-duplicate") ? product : *sum + product;
}

static void compute(bool padded, DLTensor *rows, DLTensor *probs_grad)
{
    int64_t slots = input("out_index")->shape[0];
    int64_t pairs = probs_grad->shape[0] * probs_grad->shape[1];
    double *sums = calloc((size_t)pairs + 1, sizeof *sums);
    if (sums == NULL)
        abort();
    if (!has_fault("unwritten-rows"))
        for (int64_t i = 0; i < rows->shape[0] * rows->shape[1]; i++)
            store(rows, i, 0);
    for (int64_t i = 0; i < slots; i++)
        write_slot(i, padded, rows, sums);
    for (int64_t i = 0; i < pairs; i++)
        store(probs_grad, i, sums[i]);
    free(sums);
}

/* OUT as it was, in a new file of the same tensors. */
static struct tensor_writer *reopen(const char *path, DLTensor *outputs[2], char *error)
{
    struct tensor_file *before = tensor_file_open(path, error);
    struct tensor_spec specs[2] = {{.name = "permuted_tokens_grad", .ndim = 2},
                                   {.name = "probs_grad", .ndim = 2}};
    if (before == NULL)
        return NULL;
    for (int i = 0; i < 2; i++) {
        const DLTensor *tensor = tensor_file_find(before, specs[i].name);
        if (tensor == NULL || !type_of_tensor(tensor, &specs[i].type))
            return NULL;
        specs[i].shape[0] = tensor->shape[0];
        specs[i].shape[1] = tensor->shape[1];
    }
    struct tensor_writer *writer = tensor_writer_open(path, specs, 2, NULL, error);
    for (int i = 0; writer != NULL && i < 2; i++) {
        const DLTensor *tensor = tensor_file_find(before, specs[i].name);
        outputs[i] = tensor_writer_tensor(writer, (size_t)i);
        size_t bytes = (size_t)(tensor->shape[0] * tensor->shape[1]) * tensor->dtype.bits / 8;
        memcpy((char *)outputs[i]->data + outputs[i]->byte_offset,
               (const char *)tensor->data + tensor->byte_offset, bytes);
    }
    tensor_file_close(before);
    return writer;
}

int main(int argc, char **argv)
{
    char error[TENSOR_FILE_ERROR_SIZE] = "";
    DLTensor *outputs[2];
    if (argc != 4)
        return 2;
    fault = argv[1];
    inputs = tensor_file_open(argv[2], error);
    if (inputs == NULL)
        return 1;
    if (input("routing_map") == NULL || input("probs") == NULL) {
        tensor_file_close(inputs);
        return STATUS_SKIPPED;
    }
    const char *padded = tensor_file_metadata(inputs, "drop_and_pad");
    if (has_fault("hang"))
        sleep(1000);
    if (has_fault("crash") && input("out_index")->shape[0] > 3)
        abort();
    struct tensor_writer *writer = reopen(argv[3], outputs, error);
    if (writer == NULL) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    compute(padded != NULL && strcmp(padded, "true") == 0, outputs[0], outputs[1]);
    tensor_file_close(inputs);
    return tensor_writer_commit(writer, error) ? 0 : 1;
}
