/* binding.c - the four operators as Python functions: objects -> DLTensors -> the library.
 *
 * The package's Python code loads this library with ctypes and gets the functions from
 * moetoken_python_functions(). They take every argument by position: inputs, outputs (None: not
 * wanted), numbers, then flags and threads. They return None; NotImplemented where an array has
 * strides that only a copy can mend; or raise what errors below says, with the library's message.
 * The GIL is released while the library works. */
#include "call.h"

#include "binding_buffers.h"
#include "binding_ids.h"
#include "binding_router.h"
#include "torch/direct_ids.h"
#include "torch/direct_indices.h"
#include "torch/direct_map.h"
#include "torch/plain.h"

/* A bool and a {T, H} pair, whose numbers are None when it is not given. */
static bool read_mode_and_shape(PyObject *const *values, bool *drop_and_pad, int64_t shape[2],
                                const int64_t **given)
{
    int truth = PyObject_IsTrue(values[0]);
    *drop_and_pad = truth == 1;
    *given = NULL;
    if (truth < 0)
        return false;
    if (values[1] == Py_None)
        return true;
    *given = shape;
    return call_read_number(values[1], &shape[0]) && call_read_number(values[2], &shape[1]);
}

static const char *const unpermute_grad_names[] = {
    "unpermuted_tokens_grad", "out_index", "permute_token_id",     "routing_map",
    "permuted_tokens",        "probs",     "permuted_tokens_grad", "probs_grad"};

/* 6 inputs, 2 outputs, drop_and_pad, T and H of restore_shape, flags, threads. */
static PyObject *python_unpermute_grad(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, unpermute_grad_names, values, 6, 2, count, 13, &result))
        return result;
    int64_t shape[2];
    moetoken_unpermute_grad_args args = {.struct_size = sizeof args,
                                         .unpermuted_tokens_grad = call.tensors[0],
                                         .out_index = call.tensors[1],
                                         .permute_token_id = call.tensors[2],
                                         .routing_map = call.tensors[3],
                                         .permuted_tokens = call.tensors[4],
                                         .probs = call.tensors[5],
                                         .permuted_tokens_grad = call.tensors[6],
                                         .probs_grad = call.tensors[7]};
    if (!read_mode_and_shape(values + 8, &args.drop_and_pad, shape, &args.restore_shape)) {
        call_close(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_unpermute_grad(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}

static const char *const unpermute_names[] = {
    "permuted_tokens",   "sorted_indices", "routing_map",      "probs",
    "unpermuted_tokens", "out_index",      "permute_token_id", "permuted_probs"};

/* 4 inputs, 4 outputs, drop_and_pad, T and H of restore_shape, flags, threads. */
static PyObject *python_unpermute(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, unpermute_names, values, 4, 4, count, 13, &result))
        return result;
    int64_t shape[2];
    moetoken_unpermute_args args = {.struct_size = sizeof args,
                                    .permuted_tokens = call.tensors[0],
                                    .sorted_indices = call.tensors[1],
                                    .routing_map = call.tensors[2],
                                    .probs = call.tensors[3],
                                    .unpermuted_tokens = call.tensors[4],
                                    .out_index = call.tensors[5],
                                    .permute_token_id = call.tensors[6],
                                    .permuted_probs = call.tensors[7]};
    if (!read_mode_and_shape(values + 8, &args.drop_and_pad, shape, &args.restore_shape)) {
        call_close(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_unpermute(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}

static const char *const permute_names[] = {"tokens",          "routing_map",    "probs",
                                            "permuted_tokens", "permuted_probs", "sorted_indices"};

/* 3 inputs, 3 outputs, drop_and_pad, num_out_tokens, flags, threads. */
static PyObject *python_permute(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, permute_names, values, 3, 3, count, 10, &result))
        return result;
    moetoken_permute_args args = {.struct_size = sizeof args,
                                  .tokens = call.tensors[0],
                                  .routing_map = call.tensors[1],
                                  .probs = call.tensors[2],
                                  .drop_and_pad = PyObject_IsTrue(values[6]) == 1,
                                  .permuted_tokens = call.tensors[3],
                                  .permuted_probs = call.tensors[4],
                                  .sorted_indices = call.tensors[5]};
    if (PyErr_Occurred() || !call_read_number(values[7], &args.num_out_tokens)) {
        call_close(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_permute(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}

static const char *const permute_grad_names[] = {"permuted_tokens_grad", "permuted_probs_grad",
                                                 "sorted_indices",       "routing_map",
                                                 "tokens_grad",          "probs_grad"};

/* 4 inputs, 2 outputs, drop_and_pad, tokens_num, experts_num, flags, threads. */
static PyObject *python_permute_grad(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!call_begin(&call, permute_grad_names, values, 4, 2, count, 11, &result))
        return result;
    moetoken_permute_grad_args args = {.struct_size = sizeof args,
                                       .permuted_tokens_grad = call.tensors[0],
                                       .permuted_probs_grad = call.tensors[1],
                                       .sorted_indices = call.tensors[2],
                                       .routing_map = call.tensors[3],
                                       .drop_and_pad = PyObject_IsTrue(values[6]) == 1,
                                       .tokens_grad = call.tensors[4],
                                       .probs_grad = call.tensors[5]};
    if (PyErr_Occurred() || !call_read_number(values[7], &args.tokens_num) ||
        !call_read_number(values[8], &args.experts_num)) {
        call_close(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_permute_grad(&args, &call.options);
    PyEval_RestoreThread(state);
    return call_finish(&call, status);
}

/* The memory of one array (an object, its name as bytes, whether it will be written to): (address,
 * bytes of an element, sizes of two dimensions, their strides in bytes), or None for None and for
 * a rank that the library refuses. */
static PyObject *python_span(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    const char *name = count == 3 ? PyBytes_AsString(values[1]) : NULL;
    if (!name) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%zd arguments, expected 3", count);
        return NULL;
    }
    struct array_view view;
    enum array_view_result result =
        array_view_open(&view, values[0], name, PyObject_IsTrue(values[2]) == 1);
    const DLTensor *tensor = &view.tensor;
    PyObject *span = NULL;
    if (result == ARRAY_VIEW_ABSENT || (result != ARRAY_VIEW_ERROR && tensor->ndim > 2)) {
        span = call_new_reference(Py_None);
    } else if (result != ARRAY_VIEW_ERROR) {
        int64_t size = tensor->dtype.bits / 8;
        int64_t shape[2] = {1, 1}, strides[2] = {0, 0}, contiguous = size;
        for (int dim = tensor->ndim - 1; dim >= 0; dim--) {
            shape[dim] = tensor->shape[dim];
            strides[dim] = !tensor->strides               ? contiguous
                           : result == ARRAY_VIEW_STRIDES ? tensor->strides[dim]
                                                          : tensor->strides[dim] * size;
            contiguous *= shape[dim];
        }
        span = Py_BuildValue("(KLLLLL)",
                             (unsigned long long)(uintptr_t)tensor->data + tensor->byte_offset,
                             (long long)size, (long long)shape[0], (long long)shape[1],
                             (long long)strides[0], (long long)strides[1]);
    }
    array_view_close(&view);
    return span;
}

static PyMethodDef functions[] = {
    {"permute", python_permute, METH_FASTCALL, NULL},
    {"permute_grad", python_permute_grad, METH_FASTCALL, NULL},
    {"unpermute", python_unpermute, METH_FASTCALL, NULL},
    {"unpermute_grad", python_unpermute_grad, METH_FASTCALL, NULL},
    {"permute_by_ids", python_permute_by_ids, METH_FASTCALL, NULL},
    {"permute_grad_by_ids", python_permute_grad_by_ids, METH_FASTCALL, NULL},
    {"unpermute_by_ids", python_unpermute_by_ids, METH_FASTCALL, NULL},
    {"unpermute_grad_by_ids", python_unpermute_grad_by_ids, METH_FASTCALL, NULL},
    {"router", python_router, METH_FASTCALL, NULL},
    {"router_grad", python_router_grad, METH_FASTCALL, NULL},
    {"router_balance_loss", python_router_balance_loss, METH_FASTCALL, NULL},
    {"router_z_loss", python_router_z_loss, METH_FASTCALL, NULL},
    {"router_update_bias", python_router_update_bias, METH_FASTCALL, NULL},
    {"router_drop", python_router_drop, METH_FASTCALL, NULL},
    {"router_recipe", python_router_recipe, METH_FASTCALL, NULL},
    {"buffer_take", python_buffer_take, METH_FASTCALL, NULL},
    {"buffer_give", python_buffer_give, METH_FASTCALL, NULL},
    {"buffer_limit", python_buffer_limit, METH_FASTCALL, NULL},
    {"buffer_stats", python_buffer_stats, METH_FASTCALL, NULL},
    {"new_tensor", python_new_tensor, METH_FASTCALL, NULL},
    {"span", python_span, METH_FASTCALL, NULL},
    {"torch_setup", python_torch_setup, METH_FASTCALL, NULL},
    {"torch_plainness", python_torch_plainness, METH_FASTCALL, NULL},
    {"direct_permute", python_direct_permute, METH_FASTCALL, NULL},
    {"direct_permute_grad", python_direct_permute_grad, METH_FASTCALL, NULL},
    {"direct_unpermute", python_direct_unpermute, METH_FASTCALL, NULL},
    {"direct_unpermute_grad", python_direct_unpermute_grad, METH_FASTCALL, NULL},
    {"direct_permute_by_ids", python_direct_permute_by_ids, METH_FASTCALL, NULL},
    {"direct_permute_grad_by_ids", python_direct_permute_grad_by_ids, METH_FASTCALL, NULL},
    {"direct_unpermute_by_ids", python_direct_unpermute_by_ids, METH_FASTCALL, NULL},
    {"direct_unpermute_grad_by_ids", python_direct_unpermute_grad_by_ids, METH_FASTCALL, NULL},
    {"direct_within", python_direct_within, METH_FASTCALL, NULL},
    {"direct_rows_of_slots", python_direct_rows_of_slots, METH_FASTCALL, NULL},
    {"direct_map_rows", python_direct_map_rows, METH_FASTCALL, NULL},
    {"direct_map_slots", python_direct_map_slots, METH_FASTCALL, NULL},
};
enum {
    FUNCTIONS_COUNT = sizeof functions / sizeof functions[0]
};

MOETOKEN_API PyObject *moetoken_python_functions(PyObject *numpy_array);

/* A tuple of the functions above, in this order; called once, with the GIL held. */
PyObject *moetoken_python_functions(PyObject *numpy_array)
{
    if (!array_view_setup(numpy_array))
        return NULL;
    PyObject *tuple = PyTuple_New(FUNCTIONS_COUNT);
    for (int i = 0; tuple && i < FUNCTIONS_COUNT; i++) {
        PyObject *function = PyCFunction_NewEx(&functions[i], NULL, NULL);
        if (!function) {
            Py_DecRef(tuple);
            return NULL;
        }
        PyTuple_SetItem(tuple, i, function);
    }
    return tuple;
}
