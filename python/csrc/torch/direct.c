/* direct.c - plain tensors -> DLTensors, new outputs, and results. */
#include "direct.h"

#include "../binding_buffers.h"
#include "../buffer_cache.h"
#include "../call.h"
#include "plain.h"
#include "shim.h"

void direct_begin(struct direct *call, PyObject *const *values, int inputs, Py_ssize_t count,
                  Py_ssize_t expected)
{
    call->values = values;
    call->failed = count != expected;
    for (int i = 0; i < DIRECT_MAX_OUTPUTS; i++)
        call->outputs[i].object = NULL;
    for (int i = 0; !call->failed && i < inputs; i++) {
        call->inputs[i] = values[i] == Py_None ? NULL : &call->storage[i];
        call->failed = call->inputs[i] && !torch_open(values[i], &call->storage[i]);
    }
    call->options = (moetoken_options){0};
}

int64_t direct_number(struct direct *call, int i)
{
    int64_t number = 0;
    if (!call->failed && !call_read_number(call->values[i], &number)) {
        PyErr_Clear();
        call->failed = true;
    }
    return number;
}

bool direct_flag(struct direct *call, int i)
{
    if (call->failed)
        return false;
    call->failed = call->values[i] != Py_True && call->values[i] != Py_False;
    return call->values[i] == Py_True;
}

int64_t direct_size(struct direct *call, int i, int ndim, int dim)
{
    if (!call->failed)
        call->failed = !call->inputs[i] || call->inputs[i]->ndim != ndim;
    return call->failed ? 0 : call->inputs[i]->shape[dim];
}

/* The bytes of the output, or SIZE_MAX: too many. */
static size_t bytes_of(const DLTensor *tensor)
{
    size_t bytes = tensor->dtype.bits / 8;
    for (int dim = 0; dim < tensor->ndim; dim++)
        if (tensor->shape[dim] < 0 ||
            __builtin_mul_overflow(bytes, (size_t)tensor->shape[dim], &bytes))
            return SIZE_MAX;
    return bytes;
}

/* Makes output i, whose type and sizes are there. Large ones have memory of the cache or, where
 * they cannot, are left to the long way. */
static const DLTensor *make(struct direct *call, int i, int ndim, bool may_be_large)
{
    struct direct_output *output = &call->outputs[i];
    if (call->failed)
        return NULL;
    output->tensor.device = (DLDevice){kDLCPU, 0};
    output->tensor.ndim = ndim;
    output->tensor.shape = output->shape;
    output->tensor.strides = NULL;
    output->tensor.byte_offset = 0;
    if (bytes_of(&output->tensor) < BUFFER_CACHE_LEAST_BYTES)
        output->object = torch_shim_empty(&output->tensor);
    else if (may_be_large)
        output->object = buffer_tensor_new(torch_exchange_table(), &output->tensor);
    PyErr_Clear();
    call->failed = !output->object;
    return call->failed ? NULL : &output->tensor;
}

const DLTensor *direct_rows(struct direct *call, int i, DLDataType type, int64_t rows,
                            int64_t columns)
{
    struct direct_output *output = &call->outputs[i];
    output->tensor.dtype = type;
    output->shape[0] = rows;
    output->shape[1] = columns;
    return make(call, i, 2, true);
}

const DLTensor *direct_vector(struct direct *call, int i, DLDataType type, int64_t size)
{
    struct direct_output *output = &call->outputs[i];
    output->tensor.dtype = type;
    output->shape[0] = size;
    return make(call, i, 1, false);
}

const DLTensor *direct_matrix(struct direct *call, int i, DLDataType type, int64_t first,
                              int64_t second)
{
    struct direct_output *output = &call->outputs[i];
    output->tensor.dtype = type;
    output->shape[0] = first;
    output->shape[1] = second;
    return make(call, i, 2, false);
}

typedef moetoken_status operator(const void *args, const moetoken_options *options);

static void run(struct direct *call, operator* function, const void *args)
{
    if (call->failed)
        return;
    call->options.threads = torch_shim_threads();
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = function(args, &call->options);
    PyEval_RestoreThread(state);
    call->failed = status != MOETOKEN_OK;
}

static moetoken_status permute(const void *args, const moetoken_options *options)
{
    return moetoken_permute(args, options);
}

void direct_run_permute(struct direct *call, const moetoken_permute_args *args)
{
    run(call, permute, args);
}

static moetoken_status permute_grad(const void *args, const moetoken_options *options)
{
    return moetoken_permute_grad(args, options);
}

void direct_run_permute_grad(struct direct *call, const moetoken_permute_grad_args *args)
{
    run(call, permute_grad, args);
}

static moetoken_status unpermute(const void *args, const moetoken_options *options)
{
    return moetoken_unpermute(args, options);
}

void direct_run_unpermute(struct direct *call, const moetoken_unpermute_args *args)
{
    run(call, unpermute, args);
}

static moetoken_status unpermute_grad(const void *args, const moetoken_options *options)
{
    return moetoken_unpermute_grad(args, options);
}

void direct_run_unpermute_grad(struct direct *call, const moetoken_unpermute_grad_args *args)
{
    run(call, unpermute_grad, args);
}

/* Drops what has been made for a call that failed. */
static PyObject *give_up(struct direct *call)
{
    for (int i = 0; i < DIRECT_MAX_OUTPUTS; i++)
        if (call->outputs[i].object)
            Py_DecRef(call->outputs[i].object);
    return call_new_reference(Py_NotImplemented);
}

PyObject *direct_finish(struct direct *call, int count)
{
    if (call->failed)
        return give_up(call);
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *object = call->outputs[i].object;
        PyTuple_SetItem(tuple, i, object ? object : call_new_reference(Py_None));
    }
    return tuple;
}

PyObject *direct_finish_single(struct direct *call)
{
    return call->failed ? give_up(call) : call->outputs[0].object;
}
