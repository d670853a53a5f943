/* plain.c - asks PyTorch what its dispatcher would do with a call. */
#include "plain.h"

#include <moetoken/moetoken.h>

#include "../call.h"
#include "../dlpack_exchange.h"
#include "shim.h"

#define LEARNT_SETS 2 /* with and without inference mode */

static struct {
    bool is_ready; /* nothing is plain before */
    PyObject *tensor, *parameter, *int32, *int64;
    PyObject *tensor_keys, *thread_keys, *profiles, *traces;
    PyObject *raw_repr, *requires_grad; /* attribute names */
    unsigned long long plain_tensors[LEARNT_SETS], plain_threads[LEARNT_SETS];
    const struct dlpack_exchange_table *table;
} torch;

static bool read_sets(PyObject *const *values, unsigned long long sets[LEARNT_SETS])
{
    for (int i = 0; i < LEARNT_SETS; i++)
        sets[i] = PyLong_AsUnsignedLongLong(values[i]);
    return !PyErr_Occurred();
}

PyObject *python_torch_setup(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    PyObject **const kept[] = {&torch.tensor,   &torch.parameter,   &torch.int32,
                               &torch.int64,    &torch.tensor_keys, &torch.thread_keys,
                               &torch.profiles, &torch.traces};
    enum {
        KEPT = sizeof kept / sizeof kept[0]
    };
    if (count != KEPT + 2 * LEARNT_SETS) {
        PyErr_Format(PyExc_TypeError, "%zd arguments, expected %d", count, KEPT + 2 * LEARNT_SETS);
        return NULL;
    }
    for (int i = 0; i < KEPT; i++)
        *kept[i] = call_new_reference(values[i]);
    torch.raw_repr = PyUnicode_InternFromString("raw_repr");
    torch.requires_grad = PyUnicode_InternFromString("requires_grad");
    if (!torch.raw_repr || !torch.requires_grad || !read_sets(values + KEPT, torch.plain_tensors) ||
        !read_sets(values + KEPT + LEARNT_SETS, torch.plain_threads))
        return NULL;
    torch.table = dlpack_exchange_table_of_type(torch.tensor);
    bool found = torch_shim_find();
    torch.is_ready = found;
    return PyBool_FromLong(found && torch.table && torch.table->to_tensor);
}

/* Whether `keys`, a new reference or NULL, are one of the sets. Exceptions are dropped. */
static bool is_one_of(PyObject *keys, const unsigned long long sets[LEARNT_SETS])
{
    PyObject *number = keys ? PyObject_CallMethodObjArgs(keys, torch.raw_repr, NULL) : NULL;
    unsigned long long found = number ? PyLong_AsUnsignedLongLong(number) : 0;
    bool failed = !number || PyErr_Occurred();
    PyErr_Clear();
    if (number)
        Py_DecRef(number);
    if (keys)
        Py_DecRef(keys);
    return !failed && (found == sets[0] || found == sets[1]);
}

/* Whether a function of PyTorch's answers this object. */
static bool answers(PyObject *function, PyObject *expected)
{
    PyObject *answer = PyObject_CallFunctionObjArgs(function, NULL);
    if (!answer) {
        PyErr_Clear();
        return false;
    }
    Py_DecRef(answer); /* None and False live on */
    return answer == expected;
}

static bool is_thread_plain(void)
{
    return torch.is_ready &&
           is_one_of(PyObject_CallFunctionObjArgs(torch.thread_keys, NULL), torch.plain_threads) &&
           answers(torch.profiles, Py_False) && answers(torch.traces, Py_None);
}

/* Whether the object's type is exactly torch.Tensor or torch.nn.Parameter. */
static bool is_tensor(PyObject *object)
{
    PyObject *type = PyObject_Type(object); /* held by the object */
    Py_DecRef(type);
    return type == torch.tensor || type == torch.parameter;
}

static bool requires_grad(PyObject *tensor)
{
    PyObject *answer = PyObject_GetAttr(tensor, torch.requires_grad);
    if (!answer) {
        PyErr_Clear();
        return true;
    }
    Py_DecRef(answer);
    return answer != Py_False;
}

static enum torch_plainness plainness(PyObject *const *values, Py_ssize_t count)
{
    if (!is_thread_plain())
        return TORCH_NOT_PLAIN;
    bool records = torch_shim_records_gradients(), recorded = false;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = values[i];
        if (is_tensor(value)) {
            if (!is_one_of(PyObject_CallFunctionObjArgs(torch.tensor_keys, value, NULL),
                           torch.plain_tensors))
                return TORCH_NOT_PLAIN;
            recorded |= records && requires_grad(value);
        } else if (value != Py_None && PyObject_IsInstance(value, torch.tensor) != 0) {
            PyErr_Clear();
            return TORCH_NOT_PLAIN; /* a subclass */
        }
    }
    return recorded ? TORCH_PLAIN_BUT_RECORDED : TORCH_PLAIN;
}

PyObject *python_torch_plainness(PyObject *self, PyObject *const *values, Py_ssize_t count)
{
    (void)self;
    return PyLong_FromLong(plainness(values, count));
}

bool torch_open(PyObject *object, DLTensor *tensor)
{
    if (!is_tensor(object))
        return false;
    if (torch.table->to_tensor(object, tensor)) {
        PyErr_Clear();
        return false;
    }
    return tensor->device.device_type == kDLCPU;
}

bool torch_index_type(PyObject *dtype, DLDataType *type)
{
    *type = moetoken_dtype(dtype == torch.int32 ? MOETOKEN_I32 : MOETOKEN_I64);
    return dtype == torch.int32 || dtype == torch.int64;
}

const struct dlpack_exchange_table *torch_exchange_table(void)
{
    return torch.table;
}
