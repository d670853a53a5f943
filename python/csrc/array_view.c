/* array_view.c - asks a Python array for its memory: NumPy's C array interface, DLPack (the C
 * exchange table, else the capsule), or the buffer protocol, whichever it has, in this order. */
#include "array_view.h"

#include <stdint.h>

#include "dlpack_exchange.h"

#define DLPACK_BOOL 6 /* kDLBool and the types below: headers before 0.8 leave them unnamed */
#define DLPACK_NO_TYPE                                                                             \
    ((DLDataType){255, 0, 0}) /* refused by the library with a message that names the argument */

/* What an array's __array_struct__ capsule points to (NumPy's array interface, version 3). */
struct array_interface {
    int two, ndim;
    char kind;
    int itemsize, flags;
    intptr_t *shape, *strides;
    void *data;
    PyObject *description;
};
enum {
    ARRAY_INTERFACE_NATIVE_ORDER = 0x200,
    ARRAY_INTERFACE_WRITEABLE = 0x400
};

static struct {
    PyObject *numpy_array;
    PyObject *array_struct, *dtype, *name, *dlpack, *exchange_api, *is_neg; /* attribute names */
    PyObject *no_arguments, *max_version;
    PyObject *bfloat16;        /* ml_dtypes' dtype, once one has been seen */
    PyObject *exchanging_type; /* the first type that was seen to have an exchange table */
    const struct dlpack_exchange_table *exchange_table; /* its own */
} python;

bool array_view_setup(PyObject *numpy_array)
{
    Py_IncRef(numpy_array);
    python.numpy_array = numpy_array;
    python.array_struct = PyUnicode_InternFromString("__array_struct__");
    python.dtype = PyUnicode_InternFromString("dtype");
    python.name = PyUnicode_InternFromString("name");
    python.dlpack = PyUnicode_InternFromString("__dlpack__");
    python.exchange_api = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
    python.is_neg = PyUnicode_InternFromString("is_neg");
    python.no_arguments = PyTuple_New(0);
    python.max_version = Py_BuildValue("{s:(ii)}", "max_version", 1, 0);
    return python.array_struct && python.dtype && python.name && python.dlpack &&
           python.exchange_api && python.is_neg && python.no_arguments && python.max_version;
}

static enum array_view_result refuse_read_only(const char *name)
{
    PyErr_Format(PyExc_ValueError, "%s is read-only, expected an array that can be written to",
                 name);
    return ARRAY_VIEW_ERROR;
}

/* The exception that is set, from an array that would not say where its memory is, is followed by
 * one that names the argument. What is no fault of the array (no memory, Ctrl-C) passes. */
static enum array_view_result refuse_without_memory(const char *name)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError))
        return ARRAY_VIEW_ERROR;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_Format(PyExc_TypeError, "%s does not lend its memory: %S", name, value ? value : type);
    PyObject *held[] = {type, value, traceback};
    for (int i = 0; i < 3; i++)
        if (held[i])
            Py_DecRef(held[i]);
    return ARRAY_VIEW_ERROR;
}

/* An attribute, or NULL without an exception when there is none. */
static PyObject *find_attribute(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (!value)
        PyErr_Clear();
    return value;
}

/* Shape and strides in bytes -> the view's own, in elements; in bytes where elements cannot say
 * them. Strides that move nothing are 0. */
static enum array_view_result take_shape(struct array_view *view, int ndim, intptr_t itemsize,
                                         const intptr_t *shape, const intptr_t *strides)
{
    DLTensor *tensor = &view->tensor;
    tensor->ndim = ndim;
    tensor->shape = view->shape;
    if (ndim > ARRAY_VIEW_MAX_NDIM || itemsize <= 0)
        return ARRAY_VIEW_OK; /* refused for its rank or type before the shape is read */
    bool empty = false;
    for (int dim = 0; dim < ndim; dim++) {
        view->shape[dim] = shape[dim];
        empty |= shape[dim] == 0;
    }
    if (!strides)
        return ARRAY_VIEW_OK;
    tensor->strides = view->strides;
    bool expressible = true;
    for (int dim = 0; dim < ndim; dim++) {
        view->strides[dim] = !empty && shape[dim] > 1 ? strides[dim] : 0;
        expressible &= view->strides[dim] >= 0 && view->strides[dim] % itemsize == 0;
    }
    for (int dim = 0; expressible && dim < ndim; dim++)
        view->strides[dim] /= itemsize;
    return expressible ? ARRAY_VIEW_OK : ARRAY_VIEW_STRIDES;
}

static DLDataType dlpack_type(int code, intptr_t itemsize)
{
    return (DLDataType){(uint8_t)code, (uint8_t)(itemsize > 16 ? 0 : itemsize * 8), 1};
}

/* NumPy has no kind of its own for bfloat16: ml_dtypes' type is told by its name. */
static bool is_bfloat16(PyObject *array)
{
    PyObject *dtype = find_attribute(array, python.dtype);
    if (!dtype)
        return false;
    bool found = dtype == python.bfloat16;
    PyObject *name = found ? NULL : find_attribute(dtype, python.name);
    if (name && PyUnicode_CompareWithASCIIString(name, "bfloat16") == 0) {
        found = true;
        Py_IncRef(dtype);
        python.bfloat16 = dtype;
    }
    if (name)
        Py_DecRef(name);
    Py_DecRef(dtype);
    return found;
}

static DLDataType array_interface_type(const struct array_interface *array, PyObject *object)
{
    if (!(array->flags & ARRAY_INTERFACE_NATIVE_ORDER) && array->itemsize > 1)
        return DLPACK_NO_TYPE;
    switch (array->kind) {
    case 'f':
        return dlpack_type(kDLFloat, array->itemsize);
    case 'i':
        return dlpack_type(kDLInt, array->itemsize);
    case 'u':
        return dlpack_type(kDLUInt, array->itemsize);
    case 'b':
        return dlpack_type(DLPACK_BOOL, array->itemsize);
    default:
        if (array->itemsize == 2 && is_bfloat16(object))
            return dlpack_type(kDLBfloat, 2);
        return DLPACK_NO_TYPE;
    }
}

static enum array_view_result open_array_interface(struct array_view *view, PyObject *object,
                                                   const char *name, bool writes)
{
    view->keeper = PyObject_GetAttr(object, python.array_struct);
    if (!view->keeper)
        return ARRAY_VIEW_ERROR;
    const struct array_interface *array = PyCapsule_GetPointer(view->keeper, NULL);
    if (!array)
        return ARRAY_VIEW_ERROR;
    view->tensor.data = array->data;
    view->tensor.dtype = array_interface_type(array, object);
    /* The flags of a type with fields mean nothing; the library refuses the type. */
    if (writes && view->tensor.dtype.bits && !(array->flags & ARRAY_INTERFACE_WRITEABLE))
        return refuse_read_only(name);
    return take_shape(view, array->ndim, array->itemsize, array->shape, array->strides);
}

const struct dlpack_exchange_table *dlpack_exchange_table_of(PyObject *object)
{
    PyObject *type = PyObject_Type(object); /* held by the object */
    Py_DecRef(type);
    return type == python.exchanging_type ? python.exchange_table
                                          : dlpack_exchange_table_of_type(type);
}

const struct dlpack_exchange_table *dlpack_exchange_table_of_type(PyObject *type)
{
    PyObject *capsule = find_attribute(type, python.exchange_api);
    const struct dlpack_exchange_header *header = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        header = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    while (header && header->version.major != 1)
        header = header->previous;
    if (capsule)
        Py_DecRef(capsule);
    if (header && !python.exchanging_type) {
        Py_IncRef(type);
        python.exchanging_type = type;
        python.exchange_table = (const struct dlpack_exchange_table *)header;
    }
    return (const struct dlpack_exchange_table *)header; /* lives as long as the process */
}

/* Borrows the memory of an object that has an exchange table. PyTorch's tensors may be negated when
 * they are read, which their memory does not tell. */
static enum array_view_result open_exchanged(struct array_view *view,
                                             const struct dlpack_exchange_table *table,
                                             PyObject *object, const char *name)
{
    PyObject *answer = PyObject_CallMethodObjArgs(object, python.is_neg, NULL);
    int negated = answer ? PyObject_IsTrue(answer) : 0;
    if (answer)
        Py_DecRef(answer);
    else
        PyErr_Clear();
    if (negated > 0) {
        PyErr_Format(PyExc_ValueError,
                     "%s is a lazy view, negated when read: expected its resolve_neg()", name);
        return ARRAY_VIEW_ERROR;
    }
    return table->to_tensor(object, &view->tensor) ? refuse_without_memory(name) : ARRAY_VIEW_OK;
}

static enum array_view_result open_capsule(struct array_view *view, const char *name, bool writes)
{
    if (PyCapsule_IsValid(view->keeper, "dltensor_versioned")) {
        const struct dlpack_versioned_tensor *managed =
            PyCapsule_GetPointer(view->keeper, "dltensor_versioned");
        if (managed->version.major > 1) {
            PyErr_Format(PyExc_BufferError, "%s has DLPack version %u, expected at most 1", name,
                         (unsigned)managed->version.major);
            return ARRAY_VIEW_ERROR;
        }
        if (writes && managed->flags & DLPACK_READ_ONLY)
            return refuse_read_only(name);
        view->tensor = managed->tensor;
        return ARRAY_VIEW_OK;
    }
    const DLManagedTensor *managed = PyCapsule_GetPointer(view->keeper, "dltensor");
    if (!managed)
        return ARRAY_VIEW_ERROR;
    view->tensor = managed->dl_tensor;
    return ARRAY_VIEW_OK;
}

/* object.__dlpack__(max_version=(1, 0)), or without argument where that is not known yet. */
static enum array_view_result open_dlpack(struct array_view *view, PyObject *method,
                                          const char *name, bool writes)
{
    view->keeper = PyObject_Call(method, python.no_arguments, python.max_version);
    if (!view->keeper && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        view->keeper = PyObject_Call(method, python.no_arguments, NULL);
    }
    return view->keeper ? open_capsule(view, name, writes) : refuse_without_memory(name);
}

static DLDataType buffer_type(const Py_buffer *buffer)
{
    const char *format = buffer->format ? buffer->format : "B";
    if (*format == '@' || *format == '=' || *format == '<')
        format++;
    if (format[0] == '\0' || format[1] != '\0')
        return DLPACK_NO_TYPE;
    switch (format[0]) {
    case '?':
        return dlpack_type(DLPACK_BOOL, buffer->itemsize);
    case 'e':
    case 'f':
    case 'd':
        return dlpack_type(kDLFloat, buffer->itemsize);
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
        return dlpack_type(kDLInt, buffer->itemsize);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
        return dlpack_type(kDLUInt, buffer->itemsize);
    default:
        return DLPACK_NO_TYPE;
    }
}

static enum array_view_result open_buffer(struct array_view *view, PyObject *object,
                                          const char *name, bool writes)
{
    if (PyObject_GetBuffer(object, &view->buffer, PyBUF_RECORDS_RO) != 0) {
        view->buffer.obj = NULL;
        PyErr_Format(PyExc_TypeError,
                     "%s is no array, expected an object with DLPack or the buffer protocol", name);
        return ARRAY_VIEW_ERROR;
    }
    if (writes && view->buffer.readonly)
        return refuse_read_only(name);
    view->tensor.data = view->buffer.buf;
    view->tensor.dtype = buffer_type(&view->buffer);
    return take_shape(view, view->buffer.ndim, view->buffer.itemsize, view->buffer.shape,
                      view->buffer.strides);
}

enum array_view_result array_view_open(struct array_view *view, PyObject *object, const char *name,
                                       bool writes)
{
    view->keeper = NULL;
    view->buffer.obj = NULL;
    view->tensor = (DLTensor){.device = {kDLCPU, 0}};
    if (object == Py_None)
        return ARRAY_VIEW_ABSENT;
    PyObject *type = PyObject_Type(object); /* held by the object */
    Py_DecRef(type);
    if (type == python.numpy_array)
        return open_array_interface(view, object, name, writes);
    const struct dlpack_exchange_table *table = dlpack_exchange_table_of(object);
    if (table && table->to_tensor)
        return open_exchanged(view, table, object, name);
    if (PyCapsule_IsValid(object, "dltensor") || PyCapsule_IsValid(object, "dltensor_versioned")) {
        Py_IncRef(object);
        view->keeper = object;
        return open_capsule(view, name, writes);
    }
    PyObject *found = find_attribute(object, python.array_struct);
    if (found) { /* NumPy's subclasses, and what behaves like NumPy */
        Py_DecRef(found);
        return open_array_interface(view, object, name, writes);
    }
    found = find_attribute(object, python.dlpack);
    if (!found)
        return open_buffer(view, object, name, writes);
    enum array_view_result result = open_dlpack(view, found, name, writes);
    Py_DecRef(found);
    return result;
}

void array_view_close(struct array_view *view)
{
    if (view->keeper)
        Py_DecRef(view->keeper);
    if (view->buffer.obj)
        PyBuffer_Release(&view->buffer);
}
