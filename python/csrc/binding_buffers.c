/* binding_buffers.c - the buffer cache -> NumPy's holders of memory, and tensors by DLPack. */
#include "binding_buffers.h"

#include <stdbool.h>
#include <stdlib.h>

#include "buffer_cache.h"
#include "call.h"
#include "dlpack_exchange.h"

static bool expect(Py_ssize_t count, Py_ssize_t expected)
{
    if (count != expected)
        PyErr_Format(PyExc_TypeError, "%zd arguments, expected %zd", count, expected);
    return count == expected;
}

PyObject *python_buffer_take(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    int64_t bytes;
    if (!expect(count, 1) || !call_read_number(values[0], &bytes))
        return NULL;
    struct buffer *buffer = bytes < 0 ? NULL : buffer_take((size_t)bytes);
    if (!buffer)
        return call_new_reference(Py_None);
    return Py_BuildValue("(KK)", (unsigned long long)(uintptr_t)buffer->data,
                         (unsigned long long)(uintptr_t)buffer);
}

PyObject *python_buffer_give(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    int64_t handle;
    if (!expect(count, 1) || !call_read_number(values[0], &handle))
        return NULL;
    buffer_give((struct buffer *)(uintptr_t)handle);
    return call_new_reference(Py_None);
}

struct owned_tensor {
    struct dlpack_versioned_tensor managed;
    int64_t shape[2], strides[2];
};

/* Called by whichever thread drops the last tensor that shares the memory, with or without the
 * GIL. */
static void give_owned(struct dlpack_versioned_tensor *managed)
{
    buffer_give(managed->manager);
    free(managed);
}

/* A tensor of this shape over memory of the cache; NULL: none to be had. */
static struct owned_tensor *take_owned(DLDataType type, int64_t rows, int64_t columns)
{
    size_t bytes = type.bits / 8;
    if (rows <= 0 || columns <= 0 || __builtin_mul_overflow(bytes, (size_t)rows, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)columns, &bytes) || bytes < BUFFER_CACHE_LEAST_BYTES)
        return NULL;
    struct owned_tensor *owned = malloc(sizeof *owned);
    struct buffer *buffer = owned ? buffer_take(bytes) : NULL;
    if (!buffer) {
        free(owned);
        return NULL;
    }
    *owned = (struct owned_tensor){
        .managed = {.version = {1, 0}, .manager = buffer, .deleter = give_owned},
        .shape = {rows, columns},
        .strides = {columns, 1}};
    owned->managed.tensor = (DLTensor){.data = buffer->data,
                                       .device = {kDLCPU, 0},
                                       .ndim = 2,
                                       .dtype = type,
                                       .shape = owned->shape,
                                       .strides = owned->strides};
    return owned;
}

PyObject *buffer_tensor_new(const struct dlpack_exchange_table *table, DLTensor *tensor)
{
    if (!table->from_managed)
        return NULL;
    struct owned_tensor *owned = take_owned(tensor->dtype, tensor->shape[0], tensor->shape[1]);
    if (!owned)
        return NULL;
    tensor->data = owned->managed.tensor.data;
    void *object = NULL;
    /* Whose the memory is after a failure, DLPack does not say: then it is nobody's. */
    return table->from_managed(&owned->managed, &object) ? NULL : object;
}

PyObject *python_new_tensor(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    int64_t rows, columns;
    if (!expect(count, 3) || !call_read_number(values[1], &rows) ||
        !call_read_number(values[2], &columns))
        return NULL;
    const struct dlpack_exchange_table *table = dlpack_exchange_table_of(values[0]);
    DLTensor like;
    if (!table || !table->to_tensor || !table->from_managed)
        return call_new_reference(Py_None);
    if (table->to_tensor(values[0], &like)) { /* the operator says what is wrong with it */
        PyErr_Clear();
        return call_new_reference(Py_None);
    }
    if (like.device.device_type != kDLCPU)
        return call_new_reference(Py_None);
    like.shape = (int64_t[]){rows, columns};
    PyObject *made = buffer_tensor_new(table, &like);
    return made || PyErr_Occurred() ? made : call_new_reference(Py_None);
}

PyObject *python_buffer_limit(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    int64_t bytes = -1;
    if (!expect(count, 1) || (values[0] != Py_None && !call_read_number(values[0], &bytes)))
        return NULL;
    if (bytes < 0)
        buffer_cache_empty();
    else
        buffer_cache_limit((size_t)bytes);
    return call_new_reference(Py_None);
}

PyObject *python_buffer_stats(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    (void)values;
    if (!expect(count, 0))
        return NULL;
    struct buffer_stats stats = buffer_cache_stats();
    const struct buffer_count *counts[] = {&stats.allocation, &stats.allocated_bytes,
                                           &stats.segment, &stats.reserved_bytes};
    PyObject *tuple = PyTuple_New(4);
    for (int i = 0; tuple && i < 4; i++) {
        const struct buffer_count *one = counts[i];
        PyObject *item = Py_BuildValue("(LLLL)", (long long)one->current, (long long)one->peak,
                                       (long long)one->gained, (long long)one->lost);
        if (!item) {
            Py_DecRef(tuple);
            return NULL;
        }
        PyTuple_SetItem(tuple, i, item);
    }
    return tuple;
}
