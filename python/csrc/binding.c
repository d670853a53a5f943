/* binding.c - the four operators as Python functions: objects -> DLTensors -> the library.
 *
 * The package's Python code loads this library with ctypes and gets the functions from
 * moetoken_python_functions(). They take every argument by position: inputs, outputs (None: not
 * wanted), numbers, then flags and threads. They return None; NotImplemented where an array has
 * strides that only a copy can mend; or raise what errors below says, with the library's message.
 * The GIL is released while the library works. */
#include <moetoken/moetoken.h>

#include "array_view.h"

#define MAX_ARRAYS 10

/* One call's arrays, in the order of `names`. */
struct call {
    const char *const *names;
    PyObject *const *values;
    int arrays_count, opened_count;
    struct array_view views[MAX_ARRAYS];
    const DLTensor *tensors[MAX_ARRAYS]; /* NULL: None was given */
    moetoken_options options;
};

static PyObject *raise_status(moetoken_status status)
{
    PyObject *exception = PyExc_ValueError;
    if (status == MOETOKEN_ERR_TYPE)
        exception = PyExc_TypeError;
    else if (status == MOETOKEN_ERR_INDEX)
        exception = PyExc_IndexError;
    else if (status == MOETOKEN_ERR_MEMORY)
        exception = PyExc_MemoryError;
    PyErr_SetString(exception, moetoken_last_error());
    return NULL;
}

/* Reads a number; false with an exception when it is none. */
static bool read_number(PyObject *value, int64_t *number)
{
    *number = PyLong_AsLongLong(value);
    return *number != -1 || !PyErr_Occurred();
}

/* The last two values of every call: flags and threads. */
static bool read_options(PyObject *const *values, moetoken_options *options)
{
    int64_t flags, threads;
    if (!read_number(values[0], &flags) || !read_number(values[1], &threads))
        return false;
    if (flags < 0 || flags > UINT32_MAX || threads < 0 || threads > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "flags or threads is negative or too large");
        return false;
    }
    *options = (moetoken_options){.flags = (uint32_t)flags, .threads = (int32_t)threads};
    return true;
}

static PyObject *new_reference(PyObject *object)
{
    Py_IncRef(object);
    return object;
}

/* Opens the first `inputs` + `outputs` values. NULL when all went well, else what to return:
 * an exception (*failed) or NotImplemented. */
static PyObject *open_arrays(struct call *call, int inputs, int outputs, bool *failed)
{
    *failed = true;
    call->arrays_count = inputs + outputs;
    for (int i = 0; i < call->arrays_count; i++) {
        enum array_view_result result =
            array_view_open(&call->views[i], call->values[i], call->names[i], i >= inputs);
        call->opened_count = i + 1;
        if (result == ARRAY_VIEW_ERROR)
            return NULL;
        if (result == ARRAY_VIEW_STRIDES)
            return new_reference(Py_NotImplemented);
        call->tensors[i] = result == ARRAY_VIEW_ABSENT ? NULL : &call->views[i].tensor;
    }
    *failed = false;
    return NULL;
}

static void close_arrays(struct call *call)
{
    for (int i = 0; i < call->opened_count; i++)
        array_view_close(&call->views[i]);
}

/* Checks the number of values, reads options and opens arrays. False: *result is to be returned. */
static bool begin(struct call *call, const char *const *names, PyObject *const *values, int inputs,
                  int outputs, Py_ssize_t count, Py_ssize_t expected, PyObject **result)
{
    *result = NULL;
    call->names = names;
    call->values = values;
    call->opened_count = 0;
    if (count != expected) {
        PyErr_Format(PyExc_TypeError, "%zd arguments, expected %zd", count, expected);
        return false;
    }
    if (!read_options(values + expected - 2, &call->options))
        return false;
    bool failed;
    *result = open_arrays(call, inputs, outputs, &failed);
    if (failed)
        close_arrays(call);
    return !failed;
}

static PyObject *finish(struct call *call, moetoken_status status)
{
    close_arrays(call);
    return status == MOETOKEN_OK ? new_reference(Py_None) : raise_status(status);
}

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
    return read_number(values[1], &shape[0]) && read_number(values[2], &shape[1]);
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
    if (!begin(&call, unpermute_grad_names, values, 6, 2, count, 13, &result))
        return result;
    int64_t shape[2];
    moetoken_unpermute_grad_args args = {.unpermuted_tokens_grad = call.tensors[0],
                                         .out_index = call.tensors[1],
                                         .permute_token_id = call.tensors[2],
                                         .routing_map = call.tensors[3],
                                         .permuted_tokens = call.tensors[4],
                                         .probs = call.tensors[5],
                                         .permuted_tokens_grad = call.tensors[6],
                                         .probs_grad = call.tensors[7]};
    if (!read_mode_and_shape(values + 8, &args.drop_and_pad, shape, &args.restore_shape)) {
        close_arrays(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_unpermute_grad(&args, &call.options);
    PyEval_RestoreThread(state);
    return finish(&call, status);
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
    if (!begin(&call, unpermute_names, values, 4, 4, count, 13, &result))
        return result;
    int64_t shape[2];
    moetoken_unpermute_args args = {.permuted_tokens = call.tensors[0],
                                    .sorted_indices = call.tensors[1],
                                    .routing_map = call.tensors[2],
                                    .probs = call.tensors[3],
                                    .unpermuted_tokens = call.tensors[4],
                                    .out_index = call.tensors[5],
                                    .permute_token_id = call.tensors[6],
                                    .permuted_probs = call.tensors[7]};
    if (!read_mode_and_shape(values + 8, &args.drop_and_pad, shape, &args.restore_shape)) {
        close_arrays(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_unpermute(&args, &call.options);
    PyEval_RestoreThread(state);
    return finish(&call, status);
}

static const char *const permute_names[] = {"tokens",          "routing_map",    "probs",
                                            "permuted_tokens", "permuted_probs", "sorted_indices"};

/* 3 inputs, 3 outputs, drop_and_pad, num_out_tokens, flags, threads. */
static PyObject *python_permute(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    struct call call;
    PyObject *result;
    if (!begin(&call, permute_names, values, 3, 3, count, 10, &result))
        return result;
    moetoken_permute_args args = {.tokens = call.tensors[0],
                                  .routing_map = call.tensors[1],
                                  .probs = call.tensors[2],
                                  .drop_and_pad = PyObject_IsTrue(values[6]) == 1,
                                  .permuted_tokens = call.tensors[3],
                                  .permuted_probs = call.tensors[4],
                                  .sorted_indices = call.tensors[5]};
    if (PyErr_Occurred() || !read_number(values[7], &args.num_out_tokens)) {
        close_arrays(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_permute(&args, &call.options);
    PyEval_RestoreThread(state);
    return finish(&call, status);
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
    if (!begin(&call, permute_grad_names, values, 4, 2, count, 11, &result))
        return result;
    moetoken_permute_grad_args args = {.permuted_tokens_grad = call.tensors[0],
                                       .permuted_probs_grad = call.tensors[1],
                                       .sorted_indices = call.tensors[2],
                                       .routing_map = call.tensors[3],
                                       .drop_and_pad = PyObject_IsTrue(values[6]) == 1,
                                       .tokens_grad = call.tensors[4],
                                       .probs_grad = call.tensors[5]};
    if (PyErr_Occurred() || !read_number(values[7], &args.tokens_num) ||
        !read_number(values[8], &args.experts_num)) {
        close_arrays(&call);
        return NULL;
    }
    PyThreadState *state = PyEval_SaveThread();
    moetoken_status status = moetoken_permute_grad(&args, &call.options);
    PyEval_RestoreThread(state);
    return finish(&call, status);
}

static PyMethodDef functions[] = {
    {"permute", python_permute, METH_FASTCALL, NULL},
    {"permute_grad", python_permute_grad, METH_FASTCALL, NULL},
    {"unpermute", python_unpermute, METH_FASTCALL, NULL},
    {"unpermute_grad", python_unpermute_grad, METH_FASTCALL, NULL},
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
