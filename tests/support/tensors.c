/* tensors.c - DLTensors over guarded memory, in any layout, with element access. */
#include "tensors.h"

#include "random.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_strides(struct test_tensor *tensor, const struct layout *layout)
{
    int64_t inner = layout->column_stride == 0 ? 1 : layout->column_stride;
    bool one = tensor->dl.ndim == 1;
    int64_t inner_size = one || layout->transposed ? tensor->shape[0] : tensor->shape[1];
    int64_t outer = inner_size * inner + layout->row_gap;
    tensor->strides[0] = one || layout->transposed ? inner : outer;
    tensor->strides[1] = layout->transposed ? outer : inner;
    if (layout->repeat_rows) {
        tensor->strides[0] = 0;
    }
    if (layout->repeat_columns) {
        tensor->strides[1] = 0;
    }
}

static bool is_plain(const struct layout *layout)
{
    return layout->column_stride <= 1 && layout->row_gap == 0 && !layout->transposed &&
           !layout->repeat_rows && !layout->repeat_columns && !layout->write_strides;
}

/* Elements from the first to the last one, both included. */
static int64_t span(const struct test_tensor *tensor)
{
    int64_t last = 0;
    for (int d = 0; d < tensor->dl.ndim; d++) {
        if (tensor->shape[d] == 0) {
            return 0;
        }
        last += (tensor->shape[d] - 1) * tensor->strides[d];
    }
    return last + 1;
}

void tensor_make(struct test_tensor *tensor, moetoken_type type, int ndim, int64_t rows,
                 int64_t columns, const struct layout *layout)
{
    struct layout plain = {0};
    layout = layout == NULL ? &plain : layout;
    *tensor = (struct test_tensor){.type = type, .shape = {rows, ndim == 2 ? columns : 1}};
    tensor->dl = moetoken_tensor(NULL, type, ndim, tensor->shape);
    set_strides(tensor, layout);
    if (!is_plain(layout)) {
        tensor->dl.strides = tensor->strides;
    }
    size_t bytes = (size_t)span(tensor) * number_size(type) + (size_t)layout->byte_offset;
    buffer_make(&tensor->buffer, bytes, layout->placement, layout->misalignment);
    tensor->dl.data = tensor->buffer.data;
    tensor->dl.byte_offset = layout->byte_offset;
}

void tensor_free(struct test_tensor *tensor)
{
    if (tensor->buffer.memory != NULL) {
        buffer_free(&tensor->buffer);
    }
    free(tensor->snapshot);
    *tensor = (struct test_tensor){0};
}

struct layout layout_random(bool output)
{
    struct layout layout = {0};
    switch (random_below(4)) {
    case 0:
        layout.placement = BUFFER_BEFORE_PAGE;
        break;
    case 1:
        layout.placement = BUFFER_AFTER_PAGE;
        break;
    default:
        layout.misalignment = (size_t)random_below(64);
        break;
    }
    layout.byte_offset = random_chance(30) ? (uint64_t)random_below(40) : 0;
    layout.row_gap = random_chance(30) ? random_below(5) : 0;
    layout.column_stride = random_chance(20) ? 1 + random_below(3) : 1;
    layout.transposed = random_chance(10);
    layout.write_strides = random_chance(50);
    layout.repeat_rows = !output && random_chance(5);
    layout.repeat_columns = !output && random_chance(5);
    return layout;
}

moetoken_type tensor_type(const DLTensor *tensor)
{
    for (moetoken_type type = MOETOKEN_F32; type < MOETOKEN_U8; type++) {
        DLDataType dtype = moetoken_dtype(type);
        if (dtype.code == tensor->dtype.code && dtype.bits == tensor->dtype.bits) {
            return type;
        }
    }
    return MOETOKEN_U8;
}

int64_t tensor_columns(const DLTensor *tensor)
{
    return tensor->ndim == 2 ? tensor->shape[1] : 1;
}

void *tensor_at(const DLTensor *tensor, int64_t row, int64_t column)
{
    int64_t offset = row * tensor_columns(tensor) + column;
    if (tensor->strides != NULL) {
        offset = row * tensor->strides[0] + (tensor->ndim == 2 ? column * tensor->strides[1] : 0);
    }
    return (char *)tensor->data + tensor->byte_offset + offset * (tensor->dtype.bits / 8);
}

double tensor_get(const DLTensor *tensor, int64_t row, int64_t column)
{
    return number_load(tensor_at(tensor, row, column), tensor_type(tensor));
}

int64_t tensor_get_index(const DLTensor *tensor, int64_t i)
{
    uint64_t bits = tensor_get_bits(tensor, i, 0);
    return tensor->dtype.bits == 64 ? (int64_t)bits : (int32_t)(uint32_t)bits;
}

uint64_t tensor_get_bits(const DLTensor *tensor, int64_t row, int64_t column)
{
    return number_load_bits(tensor_at(tensor, row, column), tensor_type(tensor));
}

void tensor_set(const DLTensor *tensor, int64_t row, int64_t column, double value)
{
    number_store(tensor_at(tensor, row, column), tensor_type(tensor), value);
}

void tensor_set_bits(const DLTensor *tensor, int64_t row, int64_t column, uint64_t bits)
{
    number_store_bits(tensor_at(tensor, row, column), tensor_type(tensor), bits);
}

void tensor_fill(const DLTensor *tensor, double value)
{
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        for (int64_t j = 0; j < tensor_columns(tensor); j++) {
            tensor_set(tensor, i, j, value);
        }
    }
}

void tensor_fill_from(const DLTensor *tensor, const double *values)
{
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        for (int64_t j = 0; j < tensor_columns(tensor); j++) {
            tensor_set(tensor, i, j, values[i * tensor_columns(tensor) + j]);
        }
    }
}

void tensor_fill_indices(const DLTensor *tensor, const int64_t *values)
{
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        tensor_set_bits(tensor, i, 0, (uint64_t)values[i]);
    }
}

void tensor_fill_random(const DLTensor *tensor, int special_percent)
{
    moetoken_type type = tensor_type(tensor);
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        for (int64_t j = 0; j < tensor_columns(tensor); j++) {
            bool special = special_percent > 0 && random_chance(special_percent);
            tensor_set_bits(tensor, i, j, special ? random_special(type) : random_number(type));
        }
    }
}

void tensor_fill_poison(const DLTensor *tensor)
{
    moetoken_type type = tensor_type(tensor);
    bool floating = type <= MOETOKEN_F64;
    uint64_t bits = floating ? number_quiet_nan(type) | number_sign_bit(type) | 5 : UINT64_MAX - 6;
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        for (int64_t j = 0; j < tensor_columns(tensor); j++) {
            tensor_set_bits(tensor, i, j, bits);
        }
    }
}

void tensor_snapshot(struct test_tensor *tensor)
{
    free(tensor->snapshot);
    tensor->snapshot = malloc(tensor->buffer.bytes + 1);
    if (tensor->snapshot == NULL) {
        perror("tensor snapshot");
        exit(99);
    }
    memcpy(tensor->snapshot, tensor->buffer.data, tensor->buffer.bytes);
}

bool tensor_unchanged(const struct test_tensor *tensor)
{
    return buffer_guards_hold(&tensor->buffer) &&
           memcmp(tensor->snapshot, tensor->buffer.data, tensor->buffer.bytes) == 0;
}

bool tensor_gaps_unchanged(const struct test_tensor *tensor)
{
    /* Elements are carried over into a copy of the old bytes; what is left over is the gaps. */
    char *merged = malloc(tensor->buffer.bytes + 1);
    if (merged == NULL) {
        return false;
    }
    memcpy(merged, tensor->snapshot, tensor->buffer.bytes);
    DLTensor copy = tensor->dl;
    copy.data = merged;
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        for (int64_t j = 0; j < tensor_columns(&copy); j++) {
            memcpy(tensor_at(&copy, i, j), tensor_at(&tensor->dl, i, j), number_size(tensor->type));
        }
    }
    bool same = memcmp(merged, tensor->buffer.data, tensor->buffer.bytes) == 0;
    free(merged);
    return same && buffer_guards_hold(&tensor->buffer);
}

int64_t tensor_difference(const DLTensor *left, const DLTensor *right)
{
    int64_t columns = tensor_columns(left);
    for (int64_t i = 0; i < left->shape[0] * columns; i++) {
        if (tensor_get_bits(left, i / columns, i % columns) !=
            tensor_get_bits(right, i / columns, i % columns)) {
            return i;
        }
    }
    return -1;
}
